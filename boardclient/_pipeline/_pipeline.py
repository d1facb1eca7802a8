"""Runs a call in stages, within one deadline.

The stages are credentials, limiter, send, interpret, renew once and retry. Each is a method of `Pipeline`. Errors are returned as
values until `call` raises them from a frame that holds no credentials.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Mapping
from time import monotonic, time
from typing import Any, TypeVar, cast

import attrs

from boardclient import retry as _retry
from boardclient._activities import INSTALLED, Activity
from boardclient._curl import ShownRequest
from boardclient._messages import Request
from boardclient._operations import error_of, interpret_in_steps, unreadable, value_of
from boardclient._pace import Limiter
from boardclient._pipeline._core import SessionCore
from boardclient._pipeline._following import ObserverInstrument, attempt_of, call_of, end_attempt
from boardclient._pipeline._guards import GuardedLimiter, guarded, log_failure, notify_all, own_error
from boardclient._pipeline._in_flight import CallContext
from boardclient._pipeline._options import CallOptions
from boardclient._pipeline._places import Places
from boardclient._statuses import is_throttling, status_of
from boardclient._transport import RawResponse, TransportResult
from boardclient.credentials import CredentialObserver, CredentialProvider, Credentials
from boardclient.credentials._values import CredentialsIn
from boardclient.errors import (
    ApiError,
    Attempt,
    AuthenticationError,
    BoardClientError,
    CredentialError,
    DecodeError,
    Effect,
    SessionClosedError,
)
from boardclient.events import CredentialsRenewed, Event, Observer, RetryScheduled
from boardclient.logs import is_info_logged

T = TypeVar("T")


class _Turn(enum.Enum):
    OUTDATED = "outdated"
    """Nothing was sent: the credentials were refused while the request waited for the limiter."""


class Pipeline:
    """Makes the calls of a session or view, with its credentials, policy and limiter.

    Owned by the session or view. It is the `CallRunner` that resources and bulk runs use.
    """

    def __init__(
        self,
        core: SessionCore,
        *,
        provider: CredentialProvider,
        policy: _retry.Policy | None,
        timeout: float | None,
        limiter: Limiter | None,
        observers: Iterable[Observer],
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
        self.observers = tuple(observers)
        self.credentials_in: CredentialsIn = credentials_in
        self._core = core
        self._follower = ObserverInstrument(self.observers) if self.observers else None
        self._limiter = None if limiter is None else GuardedLimiter(limiter)
        self._hooks = provider if isinstance(provider, CredentialObserver) else CredentialObserver()
        self._accepted: Credentials | None = None
        is_heard = self._limiter is not None and self._limiter.is_reporting
        self._enters_policy_first = policy is not None and policy.needs_first_attempt
        self._needs_every_result = bool(is_heard) or self._enters_policy_first

    def replace(self, **changes: Any) -> Pipeline:
        """Return a pipeline on the same core with other options."""
        names = ("provider", "policy", "timeout", "limiter", "observers", "credentials_in")
        return Pipeline(self._core, **({name: getattr(self, name) for name in names} | changes))

    # --- the stages of a call

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call within its deadline, and return its value.

        Raises:
            BoardClientError: the call failed; its `attempts` have the history.
        """
        if (self.observers or INSTALLED or is_info_logged()) and (options is None or options.activity is None):
            return await self._followed(request, options)
        in_flight, began = self._core.in_flight, monotonic()
        context = in_flight.begin(request, self.timeout, options)
        outcome: T | BoardClientError
        try:
            if self._needs_every_result:
                context.is_noted = True
            if self._enters_policy_first:
                outcome = await self._retried(request, context, None)
            else:
                # tenacity is entered only after a first failure: passing through it costs 13 microseconds.
                outcome = await self._attempt(request, context)
                if context.is_noted and isinstance(outcome, BoardClientError):  # every error is noted
                    outcome = await self._mended(request, context, outcome, began)
                elif self.policy is not None:
                    self.policy.note_success()
        except BaseException as error:
            ended = self._ended_early(request, context)
            if ended is None:
                context.credentials = context.rejected = None  # this frame stays with the exception
                # The same exception; a cancellation without the frames that hold the signed request.
                raise error.with_traceback(None) if isinstance(error, asyncio.CancelledError) else error  # noqa: B904 -- it is being handled
            outcome = ended
        finally:
            in_flight.end(context)
            if options is not None:
                options.context = None
        if context.interruption is not None:  # application code may have swallowed the cancellation
            ended = self._ended_early(request, context)
            if isinstance(outcome, BoardClientError) and not context.returns_error:
                outcome = ended or outcome
        if isinstance(outcome, BoardClientError) and not context.returns_error:
            outcome.effect = Effect.worst([outcome.effect, *(attempt.effect for attempt in context.attempts)])
            outcome.attempts = context.attempts
            outcome.shown_request = self._shown(request, context)
            if context.activity is not None:
                outcome.call_id = context.activity.call_id
            del context  # it holds credentials, and this frame stays with the error
            raise outcome
        if options is not None:
            options.history.extend(context.attempts)
        return outcome  # type: ignore[return-value]  # -- an error of ours only where a callback returned it as the value

    async def _followed(self, request: Request[T], options: CallOptions | None) -> T:
        """Make a call that instruments or observers follow."""
        activity = call_of(request, self._core.base_url, self.identity.get("account"), self._follower)
        options = options or CallOptions()
        options.activity, error = activity, None
        try:
            return await self.call(request, options)
        except BaseException as raised:
            error = raised
            raise
        finally:
            options.activity = None
            activity.end(error)
            del error

    async def _attempt(
        self, request: Request[T], context: CallContext, credentials: Credentials | None = None
    ) -> T | BoardClientError:
        """Send the request once, through the limiter, with these or current credentials."""
        while True:
            if credentials is None and (credentials := self._hooks.current()) is None:
                obtained = await self._obtain(request, context, None)
                if isinstance(obtained, CredentialError):
                    return obtained
                credentials = obtained
            limiter = context.limiter or self._limiter
            if limiter is None or limiter.is_idle:
                return await self._send(request, context, credentials)
            outcome = await self._send_in_turn(request, context, credentials, limiter)
            if not isinstance(outcome, _Turn):
                return outcome
            credentials = None

    async def _obtain(
        self, request: Request[T], context: CallContext, rejected: Credentials | None
    ) -> Credentials | CredentialError:
        """Ask the provider for credentials, other than the rejected ones if any.

        A failure is recorded in the history.
        """
        provider, core, started = self.provider, self._core, time()
        core.in_flight.suspend(context)
        context.waits_for = self._hooks.waiting_for
        try:
            given = await (provider.acquire(core) if rejected is None else provider.renew(rejected, core))
            if isinstance(given, Credentials):
                context.waits_for = None
                return given
            failure = CredentialError(f"{request.line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            failure = own_error(error)
        except (Exception, asyncio.CancelledError) as error:  # any other exception becomes the cause of a CredentialError
            if isinstance(error, asyncio.CancelledError) and context.is_cancelled:
                raise
            failure = CredentialError(f"{request.line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
        finally:
            core.in_flight.resume(context)
        context.waits_for = None
        context.record(started, failure, None, Effect.NOT_SENT)
        return failure

    async def _send_in_turn(
        self, request: Request[T], context: CallContext, credentials: Credentials, limiter: GuardedLimiter
    ) -> T | BoardClientError | _Turn:
        """Send the request inside the limiter, unless its credentials are outdated."""
        in_flight = self._core.in_flight
        outcome: T | BoardClientError | _Turn = _Turn.OUTDATED
        in_flight.suspend(context)
        context.waits_for = _turn
        try:
            async with limiter:
                in_flight.resume(context)
                context.waits_for = None
                if context.is_cancelled and context.may_send:  # the limiter swallowed the caller's cancellation
                    raise asyncio.CancelledError
                context.is_noted |= limiter.is_reporting
                if guarded("is_current of the credentials", self._hooks.is_current, credentials) not in {True, None}:
                    return outcome
                outcome = await self._send(request, context, credentials)
        except asyncio.CancelledError:
            if isinstance(outcome, _Turn) or context.interruption is None:
                raise
            # The limiter was too slow to be left. The outcome of the attempt stands.
        return outcome

    async def _send(self, request: Request[T], context: CallContext, credentials: Credentials) -> T | BoardClientError:
        """Sign and send the request, and return the value or the error of the response."""
        if not context.may_send:
            closed = SessionClosedError(f"{request.line}: the session was closed during the call")
            context.record(time(), closed, None, Effect.NOT_SENT)
            return closed
        context.credentials = credentials
        context.started = time()
        signed = credentials.sign(request, self.credentials_in)
        if context.activity is None:
            response = await self._core.pool.send(
                request.definition.method, self._core.base_url + signed.target, signed.body, context
            )
        else:
            headers = self._begin_attempt(context, context.activity)
            response = await self._core.pool.send(
                request.definition.method, self._core.base_url + signed.target, signed.body, context, headers=headers
            )
        if not isinstance(response, RawResponse) or response.status // 100 != 2:
            outcome = self._error_of(request, context, response)
        else:
            if credentials is not self._accepted:
                self._accept(credentials)
            if request.definition.read_in_steps is None:
                outcome = value_of(request, response)
            else:
                outcome = await _read_in_steps(request, context, response)
        if context.is_noted or isinstance(outcome, BoardClientError):
            if isinstance(outcome, DecodeError) and isinstance(response, RawResponse):
                outcome = unreadable(outcome, _without_secrets(context, response), self._core.host)
            self._note(request, context, response, outcome)
        return outcome

    async def _mended(
        self, request: Request[T], context: CallContext, error: BoardClientError, began: float
    ) -> T | BoardClientError:
        """Renew the credentials after a failed first attempt, then retry by the policy."""
        outcome = await self._renewed(request, context, error)
        if self.policy is None:
            return outcome
        if not isinstance(outcome, BoardClientError):
            self.policy.note_success()
            return outcome
        if context.leaves_throttling and is_throttling(outcome):
            return outcome
        return await self._retried(request, context, _retry.FirstOutcome(outcome, began))

    async def _renewed(self, request: Request[T], context: CallContext, outcome: T | BoardClientError) -> T | BoardClientError:
        """After a 401, renew the credentials and send the request again, once in a call."""
        if not isinstance(outcome, AuthenticationError):
            return outcome
        refused = context.credentials
        assert refused is not None  # noqa: S101 -- the 401 is the response to a request that was signed with them
        if context.is_renewed:
            return await self._refused(refused, outcome)
        context.is_renewed = True
        renewed = await self._obtain(request, context, refused)
        if isinstance(renewed, CredentialError):
            return renewed
        if renewed == refused:
            return outcome
        context.rejected = refused
        if self._core.announce(renewed) and (call := context.activity) is not None:
            call.note(CredentialsRenewed(operation=request.operation, call_id=call.call_id, account=call.account))
        self._core.replays += 1
        again = await self._attempt(request, context, renewed)
        if isinstance(again, AuthenticationError):
            return await self._refused(context.credentials or renewed, again)
        return again

    async def _refused(self, credentials: Credentials, outcome: AuthenticationError) -> AuthenticationError:
        """Notify the provider of a 401 that ends its call, and return the error."""
        try:
            await self._hooks.note_refused(credentials, self._core)
        except Exception:
            log_failure("note_refused of the credentials")
        return outcome

    async def _retried(
        self, request: Request[T], context: CallContext, first: _retry.FirstOutcome[T] | None
    ) -> T | BoardClientError:
        """Repeat the request as the policy says."""

        async def attempt() -> T | BoardClientError:
            context.waits_for = None
            outcome = await self._attempt(request, context)
            return await self._renewed(request, context, outcome)

        assert self.policy is not None  # noqa: S101 -- asked by the callers
        outcome = await self.policy.drive(request.operation, attempt, lambda pause: self._pause(request, context, pause), first)
        if isinstance(outcome, _retry.CallbackValue):
            context.returns_error = True
            return outcome.value
        return outcome

    # --- the history, the observers and the shown request

    def _pause(self, request: Request[T], context: CallContext, pause: float) -> None:
        """Note a pause before it begins, or raise the last error if it may not begin."""
        last = context.attempts[-1]
        if context.last_error is not None and context.leaves_throttling and is_throttling(context.last_error):
            raise context.last_error
        remaining = context.remaining_seconds
        if not _retry.is_pause_possible(pause, remaining):
            raise _beyond_deadline(request, context, pause, remaining or 0.0)
        context.note_pause(pause)
        self._core.retries += 1
        context.waits_for = _repeat
        if (call := context.activity) is not None:
            call.note(
                RetryScheduled(
                    operation=request.operation,
                    method=request.method,
                    path=request.path,
                    attempt=last.number,
                    pause_seconds=pause,
                    why=last.why,
                    call_id=call.call_id,
                    account=call.account,
                )
            )

    def _shown(self, request: Request[T], context: CallContext) -> ShownRequest:
        """Return the request without credentials, as its error shows it."""
        root, place, rejected = self._core.base_url, self.credentials_in, context.rejected
        if context.credentials is None:  # nothing was signed, so there are no credentials to redact
            return ShownRequest(method=request.method, url=root + request.path)
        return context.credentials.show(request, root, place, *([] if rejected is None else [rejected]))

    def _error_of(self, request: Request[T], context: CallContext, response: TransportResult) -> T | BoardClientError:
        """Return the error of a response. Credentials that the response repeats are redacted."""
        if isinstance(response, RawResponse):
            response = _without_secrets(context, response)
        return error_of(request, response, context.effect, time(), self._core.host)

    def _accept(self, credentials: Credentials) -> None:
        """Notify the provider, once, that the service accepted its credentials."""
        self._accepted = credentials
        guarded("note_accepted of the credentials", self._hooks.note_accepted, credentials)

    def _note(self, request: Request[T], context: CallContext, response: TransportResult, outcome: T | BoardClientError) -> None:
        """Record an attempt in the history, and report it to limiter and observers."""
        if isinstance(response, RawResponse):
            status, effect = response.status, status_of(response.status).effect
        else:
            status, effect = None, response.effect
        attempt = context.record(context.started, outcome, status, effect)
        followed = context.attempt_activity
        if followed is not None:
            if isinstance(response, RawResponse):
                followed.response_headers = _without_secrets(context, attrs.evolve(response, body=b"")).headers
            self._end_attempt(context, attempt)
        retry_after = outcome.retry_after if isinstance(outcome, ApiError) and is_throttling(outcome) else None
        limiter = context.limiter or self._limiter
        if limiter is not None and (status is not None or effect is not Effect.NOT_SENT):  # else it was not sent
            limiter.report(status, retry_after, attempt.seconds)

    def _ended_early(self, request: Request[T], context: CallContext) -> BoardClientError | None:
        """Return the error of a call that the session ended, or None for any other.

        The current attempt, if any, ends here for observers.
        """
        known = len(context.attempts)
        error = context.interruption_error(self._core.host)
        if error is None and context.stage != "idle":
            cancelled = BoardClientError("the call was cancelled")
            context.record(context.started, cancelled, None, context.effect_under_way)
        for attempt in context.attempts[known:]:
            self._end_attempt(context, attempt)
        return error

    def _begin_attempt(self, context: CallContext, call: Activity) -> Mapping[str, str]:
        """Notify the observers of an attempt. Return the headers that they add to it."""
        context.attempt_activity = attempt = attempt_of(call, len(context.attempts) + 1)
        return attempt.headers

    def _end_attempt(self, context: CallContext, attempt: Attempt) -> None:
        if context.attempt_activity is not None:
            end_attempt(context.attempt_activity, attempt, context.last_error)
            context.attempt_activity = None

    def notify(self, event: Event) -> None:
        """Pass an event to the observers."""
        notify_all(self.observers, event)

    # --- what bulk runs need of a session

    @property
    def is_observed(self) -> bool:
        """Whether the session has observers."""
        return bool(self.observers)

    @property
    def max_connections(self) -> int:
        """How many requests can be in flight at a time."""
        return self._core.places.number

    @property
    def places(self) -> Places:
        """The connection slots that bulk runs share."""
        return self._core.places

    @property
    def identity(self) -> Mapping[str, str]:
        """The service and the account that calls are made for, without credentials."""
        account = getattr(self.provider, "account", None)
        service = {"service": self._core.base_url}
        return {**service, "account": account} if isinstance(account, str) else service


def _turn() -> str:
    return "the limiter"


def _repeat() -> str:
    return "the pause before the next attempt"


def _beyond_deadline(request: Request[T], context: CallContext, pause: float, remaining: float) -> BoardClientError:
    """Return the error to raise if the next pause would exceed the deadline."""
    error = context.last_error
    if error is None:
        return BoardClientError(f"{request.line}: the next pause would pass the deadline", Effect.DONE)
    asked = error.retry_after if isinstance(error, ApiError) else None
    what = f"a pause of {pause:.2g} s" if asked is None else f"it asked for {asked:g} s, which"
    error.message += f"; {what} is beyond the {max(0.0, remaining):.2g} s that are left of the timeout of {context.seconds:g} s"
    error.args = (error.message, *error.args[1:])
    return error


async def _read_in_steps(request: Request[T], context: CallContext, response: RawResponse) -> T | BoardClientError:
    """Read a response in steps, and let other tasks run in between."""
    steps = interpret_in_steps(request, response)
    context.stage = "receive"
    while True:
        try:
            next(steps)
        except StopIteration as end:
            context.stage = "idle"
            return cast("T | BoardClientError", end.value)
        await asyncio.sleep(0)


def _without_secrets(context: CallContext, response: RawResponse) -> RawResponse:
    """Return a response with any credentials that it repeats redacted."""
    signed_with = context.credentials
    assert signed_with is not None  # noqa: S101 -- a response answers a request that was signed
    return signed_with.redact(response, *([] if context.rejected is None else [context.rejected]))
