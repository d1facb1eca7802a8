"""One renewal, from the first look at the store to the new token."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import secrets
from collections.abc import AsyncIterator
from typing import Final

from boardclient._activities import PARENT, Activity
from boardclient.credentials._code_exchange import EXCHANGE_SECONDS, exchange_code
from boardclient.credentials._config import AuthorizationRequest, OAuthClientConfig
from boardclient.credentials._credentials import Exchange
from boardclient.credentials._guards import Outcome, begin
from boardclient.credentials._token_state import TokenState
from boardclient.credentials._tokens import LeaseState, RenewalFailure, StoredToken, Token
from boardclient.errors import ConsentRequired, CredentialError, SessionClosedError
from boardclient.logs import followers
from boardclient.models import check_text

_POLL_SECONDS: Final = (0.05, 0.2)
"""The random pause between two looks at a store that another worker may publish to: workers must not look in step."""
_CODES_ASKED: Final = 2
"""How many codes a renewal asks for: a second one if the exchange of the first had an unknown effect."""
_PUBLISH_ATTEMPTS: Final = 3
"""How often a new token is published if the store was restored, or lost its file, while the user was asked."""


class Renewal:
    """One renewal, for all callers that wait on this event loop.

    It runs in a task of its own. Owned by its provider; the session whose pool it uses cancels it when it closes.
    """

    def __init__(self, config: OAuthClientConfig, token_state: TokenState, exchange: Exchange) -> None:
        self._config = config
        self._steps = config.steps
        self._token_state = token_state
        self._exchange = exchange
        self._holder = secrets.token_hex(8)
        self._seen = token_state.held

    async def run(self) -> RenewalFailure | None:
        """Obtain another token than before, or return why there is none.

        None is also returned if the session closes meanwhile: the caller finds no new token then.
        """
        call = PARENT.get()
        followed = Activity(
            kind="renewal",
            operation="credentials.renew",
            instruments=followers() if call is None else call.instruments,
            call_id="" if call is None else call.call_id,
            account=self._config.account,
            parent=call,
        ).begin()
        PARENT.set(followed)  # in the context of this task
        failure: RenewalFailure | None = None
        try:
            failure = await self._look_or_renew()
            return failure
        except SessionClosedError:
            return None
        except CredentialError as error:
            failure = RenewalFailure(error.message, error.__cause__)
        except ValueError as error:
            failure = RenewalFailure(str(error))
        except Exception as error:  # an application's own Exchange may raise anything
            failure = RenewalFailure(f"the renewal failed: {type(error).__name__}", error)
        finally:
            followed.end(None if failure is None else failure.error())
        assert failure is not None  # noqa: S101 -- each handler has set it
        self._note(failure)
        return failure

    async def _look_or_renew(self) -> RenewalFailure | None:
        """Renew the token. In a cool-down, or without `authorize`, only look for one in the store."""
        state = self._token_state
        state.note_look()
        if (cooling := state.failure) is not None:
            return None if await self._is_published_meanwhile() else cooling
        if self._config.authorize is None:
            if not await self._is_published():
                failure = self._config.consent_needed()
                self._note(failure)
                return failure
            return None
        self._exchange.check_url(self._config.auth_url, "auth_url")
        return await self._lead_or_follow()

    def _note(self, failure: RenewalFailure) -> float:
        """Note a failure, and return the seconds of its cool-down.

        There is none if only the user's consent is missing.
        """
        if failure.consent is None and self._config.authorize is not None:
            return self._token_state.fail(failure)
        self._token_state.note_consent(failure)
        return 0.0

    async def _is_published(self) -> bool:
        """Look at the store, and return True if another good token is in use now."""
        stored = await self._steps.read()
        if stored is not None:
            return self._token_state.adopt(stored, self._seen)
        if self._seen is not None:
            self._token_state.drop(await self._steps.generation())
        return False

    async def _is_published_meanwhile(self) -> bool:
        """Look at the store as `_is_published` does. A store that fails counts as one without a new token."""
        try:
            return await self._is_published()
        except CredentialError:
            return False

    async def _lead_or_follow(self) -> RenewalFailure | None:
        """Wait for the token of the lease's holder, or take the lease and obtain one."""
        while not await self._is_published():
            state = await self._lease()
            if state == "granted":
                return await self._lead()
            if state == "cooling":
                failure = RenewalFailure("a renewal by another holder of the account has just failed")
                self._note(failure)
                return failure
            self._token_state.waits_for = "the renewal by another worker"
            await asyncio.sleep(_pause())
        return None

    async def _lease(self) -> LeaseState:
        """Try to take the lease. If cancelled while waiting, release it before re-raising."""
        try:
            return await self._steps.lease(self._holder, self._config.lease_seconds)
        except asyncio.CancelledError:
            await self._release_at_once()
            raise

    async def _lead(self) -> RenewalFailure | None:
        """Obtain a token as the holder of the lease, then release the lease. A failure begins a cool-down."""
        cooldown = 0.0
        try:
            async with self._lease_kept():
                failure = await self._obtain()
            if failure is not None:
                if await self._is_published_meanwhile():
                    failure = None
                else:
                    cooldown = self._note(failure)
        except asyncio.CancelledError:
            await self._release_at_once()
            raise
        except Exception:
            with contextlib.suppress(CredentialError):
                await self._steps.release(self._holder)
            raise
        await self._steps.release(self._holder, cooldown)
        return failure

    async def _release_at_once(self) -> None:
        with contextlib.suppress(CredentialError):
            await self._steps.release_at_once(self._holder)

    @contextlib.asynccontextmanager
    async def _lease_kept(self) -> AsyncIterator[None]:
        """Extend the lease until the block ends."""
        ended = asyncio.Event()
        keeper = asyncio.create_task(self._keep_lease(ended))
        try:
            yield
        finally:
            # Wait for a running step: cancelled, it may still run in a thread, and take the lease again after its release.
            ended.set()
            await asyncio.wait({keeper}, timeout=self._config.lease_seconds)
            keeper.cancel()

    async def _keep_lease(self, ended: asyncio.Event) -> None:
        seconds = self._config.lease_seconds
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds / 3)
                return
            with contextlib.suppress(CredentialError):  # losing the lease costs at most a second code
                await self._steps.lease(self._holder, seconds, grace_seconds=0.0)

    async def _obtain(self) -> RenewalFailure | None:
        """Obtain and publish a token. If another worker was faster, use that worker's."""
        before = await self._steps.read()
        if before is not None and self._token_state.adopt(before, self._seen):
            return None
        generation = await self._steps.generation() if before is None else before.generation
        token = await self._new_token(is_first=before is None)
        return await self._publish(token, generation) if isinstance(token, Token) else token

    async def _publish(self, token: Token, after: int) -> RenewalFailure | None:
        """Publish the new token. If another worker was faster, use that worker's."""
        for _ in range(_PUBLISH_ATTEMPTS):
            if await self._steps.publish(token, after):
                self._token_state.adopt(StoredToken(token, after + 1), self._seen, is_own=True)
                return None
            found = await self._steps.read()
            generation = await self._steps.generation() if found is None else found.generation
            if generation >= after:
                if found is not None and self._token_state.adopt(found, self._seen):
                    return None
                break
            after = generation  # the store was restored or lost its file: a lower generation than it had
        return RenewalFailure("the token store took no new token, and holds no other")

    async def _new_token(self, *, is_first: bool) -> Token | RenewalFailure | None:
        """Ask for a code and exchange it. Return None if another worker publishes a token meanwhile.

        A code is sent once. If the effect of its exchange is unknown, a second code is asked for.
        """
        outcome: RenewalFailure | None = None
        for _ in range(_CODES_ASKED):
            self._token_state.asked += 1
            code = await self._ask_for_code(
                AuthorizationRequest(account=self._config.account, first_time=is_first, attempt=self._token_state.asked)
            )
            if not isinstance(code, str):
                return code
            token = await self._exchange_code(code)
            if not isinstance(token, RenewalFailure) or not token.is_in_doubt:
                return token
            outcome = token
        return outcome

    async def _ask_for_code(self, request: AuthorizationRequest) -> str | RenewalFailure | None:
        """Ask the application for a code. Return None if another worker publishes a token first.

        The callback runs in a task of its own. If it ignores its cancellation, the renewal does not wait for it.
        """
        assert self._config.authorize is not None  # noqa: S101 -- _look_or_renew has asked
        try:
            asked = self._config.authorize(request)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever the application raises is the cause
            return self._failure_of(error)
        if not inspect.isawaitable(asked):
            return RenewalFailure("authorize must be an async function: it returned no awaitable")
        self._token_state.waits_for = f"the user's consent (the authorize callback of account {self._config.account!r})"
        task, outcome = begin(asked)
        watch = asyncio.create_task(self._watch())
        try:
            done, _ = await asyncio.wait(
                {task, watch}, timeout=self._config.authorize_timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            task.cancel()
            watch.cancel()
            self._token_state.waits_for = "the token store"
        if watch in done:
            return None
        if task not in done:
            return RenewalFailure(f"authorize gave no code within {self._config.authorize_timeout:g} s")
        return self._check_code(outcome)

    async def _watch(self) -> None:
        """Wait until another worker has published a token."""
        while True:
            await asyncio.sleep(_pause())
            if await self._is_published_meanwhile():
                return

    def _check_code(self, outcome: Outcome) -> str | RenewalFailure:
        """Return the code that the callback returned, or why it can't be used."""
        if outcome.error is not None:
            return self._failure_of(outcome.error)
        try:
            text = check_text(outcome.value, "the code")
        except (TypeError, ValueError) as error:
            return RenewalFailure(f"authorize gave no code: {error}")
        if not text:
            return RenewalFailure("authorize gave an empty code")
        if self._token_state.is_lost(text):
            return RenewalFailure("authorize gave a code that was sent before, with unknown effect: send each code once")
        return text

    def _failure_of(self, error: BaseException) -> RenewalFailure:
        """Return the failure that an exception of the callback stands for. `ConsentRequired` begins no cool-down."""
        if isinstance(error, ConsentRequired):
            return self._config.consent_needed(error.login_url, error.__cause__)
        if isinstance(error, asyncio.CancelledError):
            return RenewalFailure("authorize was cancelled")
        return RenewalFailure(f"authorize raised {type(error).__name__}", error)

    async def _exchange_code(self, code: str) -> Token | RenewalFailure:
        """Exchange the code. It takes at most a third of a call's timeout, so that waiting callers get its error."""
        timeout = EXCHANGE_SECONDS if self._exchange.timeout is None else self._exchange.timeout / 3
        self._token_state.waits_for = f"the token exchange at {self._config.auth_url}"
        token = await exchange_code(self._config, code, self._exchange, timeout)
        self._token_state.waits_for = "the token store"
        if isinstance(token, RenewalFailure) and token.is_in_doubt:
            self._token_state.lose(code)
        return token


def _pause() -> float:
    return random.uniform(*_POLL_SECONDS)  # noqa: S311 -- no secret depends on it
