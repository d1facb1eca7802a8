"""OAuthCredentials: the OAuth 2.0 code exchange (interface 4.12, 5), with one renewal for everybody who needs one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Final

from boardclient._urls import check_root
from boardclient.credentials._exchange_answer import ParseToken
from boardclient.credentials._failure import RenewalFailure
from boardclient.credentials._memory_store import MemoryTokenStore
from boardclient.credentials._protocol import Exchange
from boardclient.credentials._renewal import Authorize, OAuthClientConfig, Renewal, is_within_renewal
from boardclient.credentials._token_state import TokenState
from boardclient.credentials._tokens import TokenStore
from boardclient.credentials._values import Credentials
from boardclient.errors import CredentialError
from boardclient.models import check_text

_EARLY_SECONDS: Final = 1.0
"""How long the call that begins an early renewal waits for it, before it goes on with the token that is still good."""


class OAuthCredentials:
    """Sign with a token that the application's consent obtains, on first use and when the service refuses the last one.

    `authorize` is asked for a fresh authorization code, which is exchanged once and kept as a token in `store`. However many
    tasks, sessions, loops or processes (through one store) meet a 401, one of them renews and all use what it gets:

    - a 401 for an older token never discards a newer one, and a cancelled caller doesn't cancel the renewal;
    - a renewal that fails does so for all who wait, and no other begins for `cooldown` seconds, doubling up to 60 until a token
      is accepted; a token that is refused as soon as it is new counts as such a failure;
    - `authorize` has `authorize_timeout` seconds, however short the deadlines of the calls that wait for it are.

    `account` says whose token it is in a store that holds many; `lease_seconds` how long others of the store wait for a holder
    that has died. With `renew_before_expiry` a token whose end is known is renewed so many seconds before it.

    May be used by any number of sessions, also on different loops; the session that a renewal began on ends it when it closes.

    Raises:
        ValueError, TypeError: an option can't work.
    """

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        redirect_uri: str,
        auth_url: str,
        authorize: Authorize,
        key: str | None = None,
        store: TokenStore | None = None,
        account: str = "default",
        authorize_timeout: float = 300.0,
        cooldown: float = 1.0,
        renew_before_expiry: float | None = None,
        parse_token: ParseToken | None = None,
        lease_seconds: float = 5.0,
    ) -> None:
        for name, text in {
            "client_id": client_id,
            "client_secret": client_secret,
            "redirect_uri": redirect_uri,
            "account": account,
            "key": "-" if key is None else key,
        }.items():
            if not check_text(text, name):
                raise ValueError(f"{name} must not be empty")
        if not callable(authorize) or not (parse_token is None or callable(parse_token)):
            raise TypeError("authorize must be an async function, and parse_token a function")
        if store is not None and not all(
            callable(getattr(store, name, None)) for name in ("read", "publish", "lease", "release")
        ):
            raise TypeError("store must be a TokenStore, such as MemoryTokenStore() or FileTokenStore(path)")
        if not authorize_timeout > 0 or not lease_seconds > 0 or not cooldown >= 0:
            raise ValueError("authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0")
        if renew_before_expiry is not None and not renew_before_expiry > 0:
            raise ValueError("renew_before_expiry must be more than 0 seconds, or None")
        self._client = OAuthClientConfig(
            client_id=client_id,
            client_secret=client_secret,
            redirect_uri=redirect_uri,
            auth_url=check_root(auth_url, "auth_url", allow_insecure=True),  # whether it may be plain http, the session says
            authorize=authorize,
            parse_token=parse_token,
            store=MemoryTokenStore() if store is None else store,
            account=account,
            authorize_timeout=authorize_timeout,
            lease_seconds=lease_seconds,
        )
        self._token_state = TokenState(key, cooldown, renew_before_expiry)
        self._renewals: dict[asyncio.AbstractEventLoop, asyncio.Task[RenewalFailure | None]] = {}

    @property
    def account(self) -> str:
        """Whose token it is, in the store."""
        return self._client.account

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return what to sign with: at once where a token is held, otherwise once a renewal has got one.

        Raises:
            CredentialError: none can be had.
        """
        credentials = self._token_state.credentials
        if credentials is None:
            return await self._renewed(exchange)
        if self._token_state.is_due:
            return await self._renewed_early(credentials, exchange)
        return credentials

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return what replaces credentials that were answered with 401: a newer token that is held, or that of a renewal.

        The same ones are returned, and the 401 is final, where the service refused a token as soon as it was new.

        Raises:
            CredentialError: none can be had.
        """
        if await self._is_final(rejected, exchange):
            return rejected
        return await self._renewed(exchange)

    def current(self) -> Credentials | None:
        """Return the token that is held, None where there is none or it is to be renewed early."""
        return None if self._token_state.is_due else self._token_state.credentials

    def is_current(self, credentials: Credentials) -> bool:
        """Tell whether these are the credentials of now, and not known to be refused."""
        return self._token_state.credentials == credentials

    def note_accepted(self, credentials: Credentials) -> None:
        """Take note that the service took these credentials; the session says so once."""
        self._token_state.accept(credentials)

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Take note of a 401 after which the session asks for no renewal, since the call has had its one."""
        await self._is_final(credentials, exchange)

    def __repr__(self) -> str:
        return f"OAuthCredentials(account={self._client.account!r}, auth_url={self._client.auth_url!r}, ***)"

    async def _is_final(self, rejected: Credentials, exchange: Exchange) -> bool:
        verdict = self._token_state.refuse(rejected)
        if verdict.cooldown_seconds:
            await self._share_cooldown(verdict.cooldown_seconds)
        return verdict.is_final

    async def _share_cooldown(self, seconds: float) -> None:
        """Let the others of the store rest as well; where that fails they find out by themselves."""
        client, holder = self._client, secrets.token_hex(8)
        with contextlib.suppress(Exception):
            if await client.store.lease(client.account, holder, client.lease_seconds) == "granted":
                await client.store.release(client.account, holder, seconds)

    async def _renewed(self, exchange: Exchange) -> Credentials:
        """Wait for the renewal under way on this loop, or begin one; where its session closes meanwhile, begin another."""
        token_state = self._token_state
        while (credentials := token_state.credentials) is None:
            if is_within_renewal(self._client):
                raise CredentialError("authorize waits for itself: it used a session whose credentials it is to renew")
            failure = token_state.failure
            if failure is None:
                renewal = self._renewal(exchange)
                await asyncio.wait({renewal})
                failure = None if renewal.cancelled() else renewal.result()
            if failure is not None and token_state.credentials is None:
                raise failure.error(token_state.rest_seconds)
        return credentials

    async def _renewed_early(self, credentials: Credentials, exchange: Exchange) -> Credentials:
        """Renew a token that may still be good: others go on with it meanwhile, and all do where that takes long or fails."""
        loop = asyncio.get_running_loop()
        if loop in self._renewals or self._token_state.failure is not None or is_within_renewal(self._client):
            return credentials
        await asyncio.wait({self._renewal(exchange)}, timeout=_EARLY_SECONDS)
        return self._token_state.credentials or credentials

    def _renewal(self, exchange: Exchange) -> asyncio.Task[RenewalFailure | None]:
        """Return the renewal under way on this loop, begun now where there is none."""
        loop = asyncio.get_running_loop()
        task = self._renewals.get(loop)
        if task is None or task.done():
            task = self._renewals[loop] = exchange.spawn(Renewal(self._client, self._token_state, exchange).run())
            task.add_done_callback(self._part)
        return task

    def _part(self, task: asyncio.Task[RenewalFailure | None]) -> None:
        """Forget a renewal that is over, unless the next one has begun."""
        loop = task.get_loop()
        if self._renewals.get(loop) is task:
            del self._renewals[loop]
