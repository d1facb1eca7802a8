"""One renewal, from the question who may begin it to the token that everybody uses. It runs in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Final

import attrs

from boardclient.credentials._exchange_answer import ParseToken, read_token
from boardclient.credentials._failure import RenewalFailure, without_frames
from boardclient.credentials._protocol import Exchange
from boardclient.credentials._token_state import TokenState
from boardclient.credentials._tokens import LeaseState, StoredToken, Token, TokenStore
from boardclient.errors import CredentialError, Effect, SessionClosedError, TransportError
from boardclient.models import check_text

EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
_EXCHANGE_SECONDS: Final = 30.0
"""For an exchange of a session whose calls have no deadline: a renewal must end."""
_POLL_SECONDS: Final = (0.05, 0.2)
"""Between looks at a store whose lease another holds, at random, so that those who wait don't look in step."""
_CODES_ASKED: Final = 2
"""Per renewal: a second one where the exchange of the first had an unknown effect."""


@attrs.frozen(kw_only=True)
class AuthorizationRequest:
    """Tell the application why it is asked for an authorization code; nothing in it is secret.

    `first_time` says that no token was ever kept for the account; `attempt` counts from 1 how often a code was asked for since
    the service last accepted a token.
    """

    account: str
    first_time: bool
    attempt: int


Authorize = Callable[[AuthorizationRequest], Awaitable[str]]


@attrs.frozen(kw_only=True)
class OAuthClientConfig:
    """What a renewal works with: the registered client, the application's callbacks, where the token is kept."""

    client_id: str = attrs.field(repr=False)
    client_secret: str = attrs.field(repr=False)
    redirect_uri: str = attrs.field(repr=False)
    auth_url: str
    authorize: Authorize
    parse_token: ParseToken | None
    store: TokenStore
    account: str
    authorize_timeout: float
    lease_seconds: float


_UNDER_WAY: Final[ContextVar[tuple[Renewal, ...]]] = ContextVar("boardclient_renewals", default=())
"""The renewals that the running task is a part of, outermost first."""


def is_within_renewal(client: OAuthClientConfig) -> bool:
    """Tell whether the running task is part of a renewal of the same account, and would wait for itself."""
    return any(
        not renewal.is_over and renewal.client.store is client.store and renewal.client.account == client.account
        for renewal in _UNDER_WAY.get()
    )


class Renewal:
    """One renewal for all who wait on this loop. Owned by its provider; the session whose exchange it uses ends it early."""

    def __init__(self, client: OAuthClientConfig, token_state: TokenState, exchange: Exchange) -> None:
        self.client = client
        self.is_over = False
        self._token_state = token_state
        self._exchange = exchange
        self._holder = secrets.token_hex(8)
        self._seen = token_state.held

    async def run(self) -> RenewalFailure | None:
        """Hold another token than before, or return why not; neither where the session closes meanwhile."""
        _UNDER_WAY.set((*_UNDER_WAY.get(), self))
        try:
            self._exchange.check_url(self.client.auth_url, "auth_url")
            return await self._lead_or_follow()
        except SessionClosedError:
            return None
        except CredentialError as error:  # a store's own, which says what to do
            failure = RenewalFailure(error.message, error.__cause__)
        except ValueError as error:
            failure = RenewalFailure(str(error))
        except Exception as error:  # whatever an application's store raises is the cause
            failure = RenewalFailure(f"the token store failed: {type(error).__name__}", without_frames(error))
        finally:
            self.is_over = True
        self._token_state.fail(failure)
        return failure

    async def _lead_or_follow(self) -> RenewalFailure | None:
        """Use the token that another holder of the account publishes, or become the holder and obtain one."""
        while not await self._is_published():
            state = await self._lease()
            if state == "granted":
                return await self._lead()
            if state == "cooling":
                failure = RenewalFailure("a renewal by another holder of the account has just failed")
                self._token_state.fail(failure)
                return failure
            await asyncio.sleep(random.uniform(*_POLL_SECONDS))  # noqa: S311 -- no secret depends on it
        return None

    async def _lease(self) -> LeaseState:
        """Ask for the right to renew; whoever ends this meanwhile does not leave it behind."""
        client = self.client
        asked = asyncio.ensure_future(client.store.lease(client.account, self._holder, client.lease_seconds))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asyncio.wait({asked})
            await client.store.release(client.account, self._holder)
            raise

    async def _lead(self) -> RenewalFailure | None:
        client, cooldown = self.client, 0.0
        try:
            async with self._lease_kept():
                failure = await self._obtain()
            if failure is not None:
                cooldown = self._token_state.fail(failure)
            return failure
        finally:
            await client.store.release(client.account, self._holder, cooldown)

    async def _is_published(self) -> bool:
        stored = await self.client.store.read(self.client.account)
        return stored is not None and self._token_state.adopt(stored, self._seen)

    @contextlib.asynccontextmanager
    async def _lease_kept(self) -> AsyncIterator[None]:
        """Extend the lease as long as the block lasts."""
        ended = asyncio.Event()
        keeper = asyncio.create_task(self._keep_lease(ended))
        try:
            yield
        finally:
            # A step at the store is awaited and not cancelled: one that goes on in a thread would take the lease back later.
            ended.set()
            await asyncio.wait({keeper}, timeout=self.client.lease_seconds)
            keeper.cancel()

    async def _keep_lease(self, ended: asyncio.Event) -> None:
        client = self.client
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), client.lease_seconds / 3)
                return
            with contextlib.suppress(Exception):  # without the lease the worst is a second code
                await client.store.lease(client.account, self._holder, client.lease_seconds)

    async def _obtain(self) -> RenewalFailure | None:
        """Get a token and publish it, unless another holder was faster: then theirs is used."""
        client = self.client
        before = await client.store.read(client.account)
        if before is not None and self._token_state.adopt(before, self._seen):
            return None
        token = await self._new_token(is_first=before is None)
        if isinstance(token, RenewalFailure):
            return token
        generation = 0 if before is None else before.generation
        if await client.store.publish(client.account, token, generation):
            self._token_state.adopt(StoredToken(token, generation + 1), self._seen, is_own=True)
        elif not await self._is_published():
            return RenewalFailure("the token store took no new token, and holds no other")
        return None

    async def _new_token(self, *, is_first: bool) -> Token | RenewalFailure:
        """Ask for a code and exchange it; once more where the effect of the exchange is unknown, for a code is sent once only."""
        outcome = RenewalFailure("")
        for _ in range(_CODES_ASKED):
            self._token_state.asked += 1
            code = await self._code(
                AuthorizationRequest(account=self.client.account, first_time=is_first, attempt=self._token_state.asked)
            )
            if isinstance(code, RenewalFailure):
                return code
            token = await self._exchanged(code)
            if not isinstance(token, RenewalFailure) or not token.is_in_doubt:
                return token
            outcome = token
        return outcome

    async def _code(self, request: AuthorizationRequest) -> str | RenewalFailure:
        """Ask the application for a code, in a task of its own: one that doesn't end when told is left behind."""
        try:
            asked = self.client.authorize(request)
        except Exception as error:  # whatever the application raises is the cause
            return RenewalFailure(f"authorize raised {type(error).__name__}", error)
        if not inspect.isawaitable(asked):
            return RenewalFailure("authorize must be an async function: it returned no awaitable")
        task = asyncio.ensure_future(asked)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.client.authorize_timeout)
        finally:
            task.add_done_callback(_forget)
            task.cancel()
        if not done:
            return RenewalFailure(f"authorize gave no code within {self.client.authorize_timeout:g} s")
        if task.cancelled():
            return RenewalFailure("authorize was cancelled")
        if (cause := task.exception()) is not None:
            return RenewalFailure(f"authorize raised {type(cause).__name__}", cause)
        return self._checked(task.result())

    def _checked(self, code: object) -> str | RenewalFailure:
        try:
            text = check_text(code, "the code")
        except (TypeError, ValueError) as error:
            return RenewalFailure(f"authorize gave no code: {error}")
        if not text:
            return RenewalFailure("authorize gave an empty code")
        if self._token_state.is_lost(text):
            return RenewalFailure("authorize gave a code that was sent before, with unknown effect: send each code once")
        return text

    async def _exchanged(self, code: str) -> Token | RenewalFailure:
        """Exchange the code for a token (interface 4.12), once."""
        client = self.client
        fields = {
            "client_id": client.client_id,
            "client_secret": client.client_secret,
            "code": code,
            "redirect_uri": client.redirect_uri,
        }
        # Whoever waits is to learn of a first exchange, and of a second one, before the deadline of its own call.
        timeout = _EXCHANGE_SECONDS if self._exchange.timeout is None else self._exchange.timeout / 3
        try:
            answer = await self._exchange.post_form(client.auth_url + EXCHANGE_PATH, fields, timeout)
        except TransportError as error:
            lost = error.with_traceback(None)
        else:
            return read_token(answer, time.time(), client.parse_token)
        if lost.effect is Effect.NOT_SENT:
            return RenewalFailure(f"the token exchange was not sent: {lost.message}", lost)
        self._token_state.lose(code)
        return RenewalFailure(f"the token exchange failed, with unknown effect: {lost.message}", lost, is_in_doubt=True)


def _forget(task: asyncio.Future[str]) -> None:
    """Look at how a task ended, so that nobody is told that nobody did."""
    if not task.cancelled():
        task.exception()
