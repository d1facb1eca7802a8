"""The cookies of a sign-in: signed texts that only browsers keep. No I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from boardclient._base._environment import requires_extra
from boardclient._base._redaction import hides

if TYPE_CHECKING:
    from itsdangerous import URLSafeSerializer

Cookies: TypeAlias = Mapping[str, str] | str | bytes | None
"""The cookies of a request: a mapping, or the raw `Cookie` header."""

_KEPT_SECONDS: Final = 3600
"""How long the cookie of a sign-in is kept, so that an expired or replayed one is not taken for one of another browser."""
SKEW_SECONDS: Final = 60
"""By how much the clocks of two workers may differ."""
_MOST_FLOWS: Final = 5
"""How many sign-ins of a browser are under way, and how many that are over are kept."""
_SHORTEST_SECRET: Final = 16
_LONGEST_COOKIE: Final = 4096
"""Browsers drop a longer one: https://www.rfc-editor.org/rfc/rfc6265#section-6.1."""
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{22}")


@attrs.frozen
class Flow:
    """One sign-in in one browser tab, from the redirect until the browser is back."""

    state: str = attrs.field(repr=False)
    begun_at: int
    return_to: str
    has_challenge: bool = False
    is_over: bool = False


@attrs.frozen
class SignedAccount:
    """The account that is signed in at a browser, and the sign-in that did it."""

    account: str
    begun_at: int
    deletion: int
    """That of the token in the store. A sign-out changes it, and a store that begins anew. Another sign-in leaves it as it is."""
    state: str = attrs.field(repr=False)
    return_to: str


@hides("_keys")
class SignInCookies:
    """Write and read the cookies of one client at one service. Owned by its `SignIn`.

    Args:
        secret: What signs them, or several: the first one signs, all of them are accepted.
        client: The client and the service, which the signatures hold.
        name: What the names begin with. None: it comes from `client`, so that another sign-in on the same host, also on another
            port, has other cookies.
        is_secure: Whether browsers send them by https only.
        account_seconds: How long a user stays signed in.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        secret: str | bytes | Iterable[str | bytes],
        client: str,
        *,
        name: str | None,
        is_secure: bool,
        account_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        if name is None:
            name = f"boardclient-{hashlib.sha256(client.encode()).hexdigest()[:8]}"
        elif not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError("cookie_name must be letters, digits, - and _")
        self._name = f"__Host-{name}" if is_secure else name
        # `Lax`, since the redirect from the service comes from another site, and `Strict` would hold the cookie back.
        self._attributes = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if is_secure else ''}"
        self._keys = _keys_of(secret)
        self._client = client
        self._account_seconds = account_seconds
        self._clock = clock
        _serializer(self._keys[0], "")  # fails here if the extra is not installed

    # --- who is signed in

    def keep_account(self, account: str, deletion: int, flow: Flow) -> str:
        """Return the cookie of an account that a sign-in has signed in.

        Raises:
            ValueError: the name of the account is too long.
        """
        signed = SignedAccount(account, int(self._clock()), deletion, flow.state, flow.return_to)
        return self._set_cookie("account", self._seal("session", [*attrs.astuple(signed)]), int(self._account_seconds))

    def drop_account(self) -> str:
        return self._set_cookie("account", "", 0)

    def account_of(self, cookies: Cookies) -> SignedAccount | None:
        """Return who is signed in by these cookies, None if nobody is."""
        opened = self._unsealed("session", cookies_of(cookies).get(f"{self._name}-account"))
        if opened is None:
            return None
        signed = SignedAccount(*opened[0])
        return signed if -SKEW_SECONDS <= self._clock() - signed.begun_at <= self._account_seconds else None

    # --- sign-ins under way

    def keep_flow(self, flow: Flow) -> str:
        content = [flow.begun_at, flow.return_to, flow.has_challenge, flow.is_over]
        return self._set_cookie(f"flow-{flow.state}", self._seal(f"flow {flow.state}", content), _KEPT_SECONDS)

    def end_flow(self, flow: Flow) -> str:
        """Return the cookie that says that a sign-in is over. It is short, as several of them are kept."""
        return self.keep_flow(attrs.evolve(flow, return_to="", is_over=True))

    def flow_of(self, state: str, cookies: Cookies) -> tuple[Flow, bytes] | None:
        """Return the sign-in of this browser that has the state, and the secret that signed its cookie."""
        return self._flow_of(state, cookies_of(cookies))

    def drop_flows(self, cookies: Cookies) -> list[str]:
        """Return cookies that drop what a new sign-in replaces. What can't be opened may be another application's, and stays."""
        prefix, now, given = f"{self._name}-flow-", self._clock(), cookies_of(cookies)
        opened = [self._flow_of(name.removeprefix(prefix), given) for name in given if name.startswith(prefix)]
        # Browsers send the older of two cookies first: https://www.rfc-editor.org/rfc/rfc6265#section-5.4.
        found = [one[0] for one in reversed(opened) if one is not None]
        recent = sorted((flow for flow in found if now - flow.begun_at < _KEPT_SECONDS), key=lambda flow: -flow.begun_at)
        under_way = [flow for flow in recent if not flow.is_over]
        over = [flow for flow in recent if flow.is_over]
        kept = [*under_way[: _MOST_FLOWS - 1], *over[: _MOST_FLOWS - 1]]
        return [self._set_cookie(f"flow-{flow.state}", "", 0) for flow in found if flow not in kept]

    def verifier(self, state: str, key: bytes | None = None) -> str:
        """Return the code verifier (RFC 7636 4.1) of a state, derived from the secret that signs or signed its cookie."""
        # Derived and not kept, so that any worker can complete what another one began.
        raw = hmac.digest(self._keys[0] if key is None else key, b"boardclient.verifier " + state.encode(), "sha256")
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    def _flow_of(self, state: str, given: Mapping[str, str]) -> tuple[Flow, bytes] | None:
        if not _STATE.fullmatch(state):
            return None
        opened = self._unsealed(f"flow {state}", given.get(f"{self._name}-flow-{state}"))
        return None if opened is None else (Flow(state, *opened[0]), opened[1])

    # --- signing

    def _salt(self, purpose: str) -> str:
        # What it is for is signed as well, so that no cookie can stand for another, or for one of another client.
        return f"boardclient.2.{purpose} {self._client}"

    def _seal(self, purpose: str, content: list[Any]) -> str:
        dumped = _serializer(self._keys[0], self._salt(purpose)).dumps(content)
        return dumped if isinstance(dumped, str) else dumped.decode()

    def _unsealed(self, purpose: str, text: str | None) -> tuple[Any, bytes] | None:
        """Return the content of a signed text and the secret that signed it. None if no secret did."""
        from itsdangerous import BadData  # the constructor has imported it

        if text is None or not text.isascii():  # frameworks pass on bytes that are not UTF-8 as lone surrogates
            return None
        # Earlier secrets open what they have signed, so that a new secret signs nobody out.
        for key in self._keys:
            try:
                return _serializer(key, self._salt(purpose)).loads(text), key
            except BadData:
                pass
        return None

    def _set_cookie(self, name: str, value: str, max_age_seconds: int) -> str:
        cookie = f"{self._name}-{name}={value}; Max-Age={max_age_seconds}; {self._attributes}"
        if len(cookie) > _LONGEST_COOKIE:
            long = f"the cookie {self._name}-{name} has {len(cookie):,} bytes"
            raise ValueError(f"{long}, and browsers keep at most {_LONGEST_COOKIE:,}")
        return cookie


def cookies_of(cookies: object) -> dict[str, str]:
    """Return the cookies of a mapping or of a raw `Cookie` header in their order. The first of one name counts."""
    if isinstance(cookies, Mapping):
        return {name: value for name, value in cookies.items() if isinstance(name, str) and isinstance(value, str)}
    if isinstance(cookies, bytes | bytearray):
        cookies = bytes(cookies).decode("latin-1")
    if not isinstance(cookies, str):
        return {}
    found: dict[str, str] = {}
    for part in cookies.split(";"):
        # Only SP and HTAB surround a name (RFC 6265, section 4.2.1). `str.strip` also removes Unicode white space: browsers take
        # a cookie named U+2000 and `__Host-…`, which a sibling domain may set, for one without a prefix.
        name, _, value = part.strip(" \t").partition("=")
        found.setdefault(name.rstrip(" \t"), value.strip(' \t"'))
    return found


def _serializer(key: bytes, salt: str) -> URLSafeSerializer:
    with requires_extra("web", "SignIn"):
        from itsdangerous import URLSafeSerializer
    # The defaults are older: SHA-1, and a key that is joined to the salt (https://itsdangerous.palletsprojects.com/en/stable/signer/).
    # By default itsdangerous signs with SHA-1, and joins the key to the salt: https://itsdangerous.palletsprojects.com/.
    return URLSafeSerializer(key, salt=salt, signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"})


def _keys_of(secret: str | bytes | Iterable[str | bytes]) -> tuple[bytes, ...]:
    given = [secret] if isinstance(secret, str | bytes) else list(secret)
    keys = tuple(key.encode() if isinstance(key, str) else key for key in given)
    if not all(isinstance(key, bytes) for key in keys):
        raise TypeError("cookie_secret must be a text, or several")
    if not keys or min(map(len, keys)) < _SHORTEST_SECRET:
        raise ValueError(f"cookie_secret must have at least {_SHORTEST_SECRET} bytes: use a random one")
    return keys
