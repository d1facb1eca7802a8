"""The walk of a call: sign -> send -> renew -> retry under one deadline.

Errors travel as values until `call` raises them, in a frame that has no credential in reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from boardclient import retry as _retry
from boardclient._messages import Request
from boardclient._operations import api_error, interpret_in_steps, value_of
from boardclient._pipeline._core import SessionCore
from boardclient._pipeline._in_flight import CallContext
from boardclient._pipeline._options import CallOptions
from boardclient._statuses import status_of
from boardclient._transport import RawResponse, TransportFailure, TransportResult
from boardclient.credentials import CredentialProvider, Credentials
from boardclient.credentials._values import CredentialsIn
from boardclient.errors import (
    AuthenticationError,
    BoardClientError,
    CredentialError,
    Effect,
    NotFoundError,
    RateLimitError,
    SessionClosedError,
    TransportError,
)
from boardclient.events import AnswerReceived, CredentialsRenewed, Event, RequestSent, RetryScheduled

T = TypeVar("T")
Limiter: TypeAlias = AbstractAsyncContextManager[object, bool | None]

_AT_ONCE: Final = contextlib.nullcontext()


class _Stale:
    """The type of _STALE: nothing was sent, for the credentials were refused while the request waited for its turn."""


_STALE: Final = _Stale()


class Reporter(Protocol):
    """A limiter that is told of every answer: `status` is None where none came, times are in seconds."""

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Take note of an answer."""
        ...


class Pipeline:
    """Makes the calls of a session or a view: with its credentials, policy, deadline and limiter, on what they share.

    Owned by the session or view; it is the `CallRunner` of resources and bulk runs.
    """

    def __init__(
        self,
        core: SessionCore,
        provider: CredentialProvider,
        policy: _retry.Policy | None,
        timeout: float | None,
        limiter: Limiter | None,
        credentials_in: CredentialsIn,
    ) -> None:
        if not callable(getattr(provider, "acquire", None)) or not callable(getattr(provider, "renew", None)):
            raise TypeError("credentials must be a CredentialProvider, such as StaticCredentials(token=…)")
        if timeout is not None and not timeout > 0:
            raise ValueError("timeout must be more than 0 seconds, or None")
        self.provider = provider
        self.policy = policy
        self.timeout = timeout
        self.limiter = limiter
        self.credentials_in: CredentialsIn = credentials_in
        self._core = core
        self._note_accepted = getattr(provider, "note_accepted", None)
        self._note_refused = getattr(provider, "note_refused", None)
        self._current: Callable[[], Credentials | None] = _nothing_at_hand
        if _come_together(provider, "current", "acquire"):
            self._current = provider.current  # type: ignore[attr-defined]  # -- an optional part of the protocol
        self._is_current = getattr(provider, "is_current", None)
        self._accepted: Credentials | None = None
        self._report = getattr(limiter, "report", None)
        self._needs_every_result = bool(self._report or core.observers or (policy is not None and policy.needs_first_attempt))
        """Whether somebody hears of calls that succeed at once, too."""

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Sign, send, renew and retry one request within one deadline, and return the value of its answer."""
        in_flight = self._core.in_flight
        context = in_flight.begin(request.line, self.timeout, options)
        policy, began = self.policy, time.monotonic()
        outcome: T | BoardClientError
        try:
            if policy is not None and policy.needs_first_attempt:
                outcome = await self._drive(policy, request, context, None)
            else:
                # tenacity is entered after a first failure only: to pass through it costs 13 microseconds.
                outcome = await self._attempt(request, context)
                if policy is not None and isinstance(outcome, BoardClientError):
                    outcome = await self._drive(policy, request, context, _retry.FirstOutcome(outcome, began))
                elif policy is not None:
                    policy.note_success()
        except asyncio.CancelledError as cancellation:
            interrupted = context.interruption_error()
            if interrupted is None:
                raise cancellation.with_traceback(None)  # noqa: B904 -- the same one, without the frames that hold the signed request
            outcome = interrupted
        else:
            # An application's part that swallows the cancellation must not leave it behind in the task.
            interrupted = context.interruption_error()
            if isinstance(outcome, BoardClientError):
                outcome = interrupted or outcome
        finally:
            in_flight.end(context)
        if not isinstance(outcome, BoardClientError):
            if options is not None:
                options.history.extend(context.attempts)
            return outcome
        outcome.effect = Effect.worst([outcome.effect, *(attempt.effect for attempt in context.attempts)])
        outcome.attempts = tuple(context.attempts)
        raise outcome

    @property
    def max_connections(self) -> int:
        """How many requests can be under way at a time."""
        return self._core.settings.max_connections

    @property
    def identity(self) -> Mapping[str, str]:
        """Which service and account the calls go to, without any credential."""
        account = getattr(self.provider, "account", None)
        service = {"service": self._core.base_url}
        return {**service, "account": account} if isinstance(account, str) else service

    @property
    def is_observed(self) -> bool:
        """Tell whether anybody observes the session."""
        return bool(self._core.observers)

    def notify(self, event: Event) -> None:
        """Hand an event to the observers."""
        self._core.notify(event)

    async def _drive(
        self, policy: _retry.Policy, request: Request[T], context: CallContext, first: _retry.FirstOutcome[T] | None
    ) -> T | BoardClientError:
        """Attempt the request as often as the policy wants, where there was no first attempt yet or after it."""
        if first is not None and context.options is not None and isinstance(first.outcome, RateLimitError):
            return first.outcome
        return await policy.drive(
            request.operation,
            lambda: self._attempt(request, context),
            lambda pause: self._pause(request, context, pause),
            first,
        )

    def _pause(self, request: Request[T], context: CallContext, pause: float) -> None:
        """Note a pause before it begins, or refuse one that the deadline would cut short by raising the error to give up with."""
        last = context.attempts[-1]
        if context.options is not None and isinstance(context.last_error, RateLimitError):
            raise context.last_error
        if not _retry.is_pause_possible(pause, context.remaining_seconds):
            raise context.last_error or BoardClientError(f"{request.line}: the next pause would pass the deadline", Effect.DONE)
        context.note_pause(pause)
        if self._core.observers:
            self.notify(
                RetryScheduled(
                    operation=request.operation,
                    method=request.method,
                    path=request.path,
                    attempt=last.number,
                    pause_seconds=pause,
                    why=last.why,
                )
            )

    async def _attempt(self, request: Request[T], context: CallContext) -> T | BoardClientError:
        """Send the request once, and after a 401 once more with renewed credentials, at most once in a call."""
        # Most providers know what to sign with, and most calls wait for no turn: neither then costs a coroutine.
        credentials = self._current()
        if credentials is not None and self._skips_limiter(context):
            outcome = await self._send(request, credentials, context, None)
        else:
            credentials, outcome = await self._signed(request, context, credentials)  # type: ignore[arg-type]  # -- mypy takes the union for T
        if credentials is None or not isinstance(outcome, AuthenticationError):
            return outcome
        return await self._renewed(request, context, credentials, outcome)

    def _skips_limiter(self, context: CallContext) -> bool:
        """Tell whether a call waits for no turn."""
        return self.limiter is None and (context.options is None or context.options.skips_limiter)

    async def _renewed(
        self, request: Request[T], context: CallContext, refused: Credentials, refusal: AuthenticationError
    ) -> T | BoardClientError:
        """Send a request that was answered with 401 once more, with others than the refused credentials, once in a call."""
        if context.renewed:
            return await self._refused(refused, refusal)
        context.renewed = True
        renewed = await self._credentials(request, context, refused)
        if isinstance(renewed, CredentialError):
            return renewed
        if renewed == refused:
            return refusal
        if self._core.announce(renewed):
            self.notify(CredentialsRenewed(operation=request.operation))
        given, outcome = await self._signed(request, context, renewed, refused)  # type: ignore[arg-type]  # -- mypy takes the union for T
        if given is None or not isinstance(outcome, AuthenticationError):
            return outcome
        return await self._refused(given, outcome)

    async def _signed(
        self, request: Request[T], context: CallContext, given: Credentials | None, rejected: Credentials | None = None
    ) -> tuple[Credentials | None, T | BoardClientError]:
        """Send the request with these credentials, or those of now; return them with the outcome, None where there are none."""
        while True:
            credentials = given or self._current()
            if credentials is None:
                acquired = await self._credentials(request, context, None)
                if isinstance(acquired, CredentialError):
                    return None, acquired
                credentials = acquired
            if self._skips_limiter(context):
                return credentials, await self._send(request, credentials, context, rejected)
            outcome = await self._in_turn(request, credentials, context, rejected)
            if not isinstance(outcome, _Stale):
                return credentials, outcome
            given = None

    async def _refused(self, credentials: Credentials, outcome: BoardClientError) -> BoardClientError:
        """Tell the provider of a 401 that is final for its call."""
        if self._note_refused is not None:
            await self._note_refused(credentials, self._core)
        return outcome

    async def _credentials(
        self, request: Request[T], context: CallContext, rejected: Credentials | None
    ) -> Credentials | CredentialError:
        """Ask the provider for credentials, or for others than the rejected ones; a failure goes into the history."""
        provider, exchange, started = self.provider, self._core, time.time()
        if context.options is not None:
            self._core.in_flight.suspend(context)
        try:
            given = await (provider.acquire(exchange) if rejected is None else provider.renew(rejected, exchange))
            if isinstance(given, Credentials):
                return given
            failure = CredentialError(f"{request.line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            failure = _own_error(error)
        except Exception as error:  # whatever the application raises is the cause
            failure = CredentialError(f"{request.line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
        finally:
            if context.options is not None:
                self._core.in_flight.resume(context)
        context.record(started, failure, None, Effect.NOT_SENT)
        return failure

    async def _in_turn(
        self, request: Request[T], credentials: Credentials, context: CallContext, rejected: Credentials | None
    ) -> T | BoardClientError | _Stale:
        """Send the request when its turn has come, unless its credentials were refused meanwhile."""
        turns: Limiter = _AT_ONCE
        if context.options is not None:
            turns = context.options.turns or _AT_ONCE
            self._core.in_flight.suspend(context)
        async with turns, self.limiter or _AT_ONCE:
            if context.options is not None:
                self._core.in_flight.resume(context)
            if self._is_current is None or self._is_current(credentials):
                return await self._send(request, credentials, context, rejected)
        return _STALE

    async def _send(
        self, request: Request[T], credentials: Credentials, context: CallContext, rejected: Credentials | None
    ) -> T | BoardClientError:
        core = self._core
        if core.in_flight.is_closed:  # by the call's own task, which is not interrupted
            closed = SessionClosedError(f"{request.line}: the session was closed during the call")
            context.record(time.time(), closed, None, Effect.NOT_SENT)
            return closed
        if core.observers:
            self.notify(
                RequestSent(
                    operation=request.operation, method=request.method, path=request.path, attempt=len(context.attempts) + 1
                )
            )
        context.started = time.time()
        signed = credentials.sign(request, self.credentials_in)
        answer = await core.pool.send(request.method, core.base_url + signed.target, signed.body, context)
        if isinstance(answer, TransportFailure) or not answer.is_success:
            outcome = _refusal(request, answer, context, credentials, rejected)
        else:
            if credentials is not self._accepted:
                self._accept(credentials)
            if request.read_in_steps is None:
                outcome = value_of(request, answer)
            else:
                outcome = await _read_in_steps(request, answer, context)
        # A call that succeeds at once has no history to be read.
        is_heard = self._needs_every_result or (context.options is not None and not context.options.skips_limiter)
        if is_heard or context.attempts or isinstance(outcome, BoardClientError):
            self._note(request, answer, outcome, context)
        return outcome

    def _accept(self, credentials: Credentials) -> None:
        """Tell the provider, once, that the service took its credentials."""
        self._accepted = credentials
        if self._note_accepted is not None:
            self._note_accepted(credentials)

    def _note(self, request: Request[T], answer: TransportResult, outcome: T | BoardClientError, context: CallContext) -> None:
        """Write an attempt into the history, and tell limiter and observers."""
        status = answer.status if isinstance(answer, RawResponse) else None
        effect = status_of(answer.status).effect if isinstance(answer, RawResponse) else answer.effect
        attempt = context.record(context.started, outcome, status, effect)
        retry_after = outcome.retry_after if isinstance(outcome, RateLimitError) else None
        if self._report is not None:
            self._report(status, retry_after, attempt.seconds)
        if context.options is not None and (turns := context.options.turns) is not None:
            turns.report(status, retry_after, attempt.seconds)
        if self._core.observers:
            self.notify(
                AnswerReceived(
                    operation=request.operation,
                    method=request.method,
                    path=request.path,
                    attempt=attempt.number,
                    status=status,
                    seconds=attempt.seconds,
                    effect=effect,
                    why=attempt.why,
                )
            )


_raised: Final[weakref.WeakSet[CredentialError]] = weakref.WeakSet()
"""Errors of providers that a call has raised already."""


def _own_error(error: CredentialError) -> CredentialError:
    """Return the error, or a copy where another call has it: each call writes its own history into its error."""
    if error not in _raised:
        _raised.add(error)
        return error.with_traceback(None)
    try:
        copied = copy.copy(error)
        copied.message, copied.effect, copied.attempts = str(error), error.effect, ()
    except Exception:  # a subclass that can't be copied
        copied = CredentialError(f"the provider raised {type(error).__name__}")
    copied.__cause__ = error.__cause__
    return copied


def _nothing_at_hand() -> None:
    """Stand for a provider that has to be awaited."""


def _come_together(provider: object, hook: str, method: str) -> bool:
    """Tell whether a hook stands for a method: not where a subclass has overridden the method alone."""
    owners = [kind for kind in type(provider).__mro__ if hook in vars(kind) or method in vars(kind)]
    return bool(owners) and hook in vars(owners[0]) and method in vars(owners[0])


async def _read_in_steps(request: Request[T], answer: RawResponse, context: CallContext) -> T | BoardClientError:
    """Read an answer and let other tasks run in between; the attempt is under way until then."""
    steps = interpret_in_steps(request, answer, time.time())
    context.stage = "receive"
    while True:
        try:
            next(steps)
        except StopIteration as end:
            context.stage = "idle"
            return cast("T | BoardClientError", end.value)
        await asyncio.sleep(0)


def _refusal(
    request: Request[T],
    answer: TransportResult,
    context: CallContext,
    credentials: Credentials,
    rejected: Credentials | None,
) -> T | BoardClientError:
    """Return the error that no answer, or one that is no success, stands for; it holds none of the credentials."""
    error: BoardClientError
    if isinstance(answer, TransportFailure):
        error = TransportError(f"{request.line}: {answer.why}", answer.phase, request.line, answer.effect)
    else:
        answer = credentials.redact(answer) if rejected is None else credentials.redact(answer, rejected)
        error = api_error(request.line, answer, time.time())
        if isinstance(error, NotFoundError) and request.method == "DELETE" and context.effect is Effect.UNKNOWN:
            # An earlier attempt may have deleted it: that it is gone is what was asked for.
            return request.read(answer, request.identifier)
    error.repeatable = request.repeatable
    return error
