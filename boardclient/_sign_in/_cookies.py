"""The two cookies of a browser: the sign-ins that it has begun, and its account. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from boardclient._sign_in._browser import cookie_of, set_cookie
from boardclient._sign_in._flows import KEPT_SECONDS, Flows, Signer


class SignInCookies:
    """Reads and makes the cookies of a site's browsers. Owned by a `SignIn`.

    Args:
        signer: What signs them.
        is_secure: Whether browsers send them over https only. Their names begin with `__Host-` then.
        account_seconds: For how many seconds a user stays signed in.
        clock: A function that returns seconds since the epoch.
    """

    def __init__(self, signer: Signer, *, is_secure: bool, account_seconds: float, clock: Callable[[], float]) -> None:
        prefix = "__Host-" if is_secure else ""
        self._flows_name, self._account_name = f"{prefix}boardclient-flows", f"{prefix}boardclient-account"
        self._signer = signer
        self._is_secure = is_secure
        self._account_seconds = account_seconds
        self._clock = clock

    def flows(self, cookies: object) -> Flows:
        """Return the flows of a browser."""
        return self._signer.read_flows(cookie_of(cookies, self._flows_name))

    def account(self, cookies: object) -> str | None:
        """Return the account that is signed in, None if none is or its time is over."""
        return self._signer.read_account(cookie_of(cookies, self._account_name), self._clock(), self._account_seconds)

    def keep_flows(self, flows: Flows) -> str:
        """Return the value of the `Set-Cookie` header that keeps the flows."""
        return set_cookie(self._flows_name, self._signer.write_flows(flows), KEPT_SECONDS, is_secure=self._is_secure)

    def keep_account(self, account: str) -> str:
        """Return the value of the `Set-Cookie` header that signs an account in."""
        text = self._signer.write_account(account, self._clock())
        return set_cookie(self._account_name, text, int(self._account_seconds), is_secure=self._is_secure)

    def drop_account(self) -> str:
        """Return the value of the `Set-Cookie` header that signs the account out."""
        return set_cookie(self._account_name, "", 0, is_secure=self._is_secure)
