"""Runs a call in stages, within one deadline.

The stages are credentials, limiter, send, interpret, renew once and retry, in the methods of `Pipeline`. The error of an attempt
is a value until the call is over: a raised exception keeps the frames that it passes, which hold the signed request.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping
from time import perf_counter, time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs

from boardclient import retry as _retry
from boardclient._base._activities import INSTALLED, PARENT, Activity, Observers, followers, is_info_logged, new_call_id
from boardclient._base._guards import GuardedLimiter
from boardclient._base._redaction import forms_of, hides, masked_value
from boardclient._interface._operations import Request, outcome_of, unreadable
from boardclient._interface._responses import add_words, is_throttling, moment_in
from boardclient._pipeline._calls import PACED, CallContext, CallOptions
from boardclient._pipeline._session_parts import ConnectionSlots, SessionParts, check_timeout
from boardclient._transport._values import SUCCESSES, RawResponse, TransportResult
from boardclient.credentials import CredentialProvider, Credentials, CredentialsIn
from boardclient.credentials._credentials import GuardedProvider
from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BoardClientError,
    CredentialError,
    DeadlineError,
    DecodeError,
    Effect,
    InvalidIdentifierError,
    SessionClosedError,
    ShownRequest,
)

if TYPE_CHECKING:
    from boardclient._pipeline._pace import Limiter

T = TypeVar("T")
_logger: Final = logging.getLogger("boardclient")

_WARNINGS: Final = {
    Effect.UNKNOWN: "the service may have done it",
    Effect.DONE: "the status says that it was done",
}
"""What errors add, by their effect, if a second request would do more than the first."""
_ADVICE: Final = ": check before you send it again (docs/errors.md)"
"""What the caller can do then. A run checks by itself, or says why it did not."""
_LIMITER: Final = "the limiter"
"""What a call waits for while it enters one."""
_AT_ONCE_BYTES: Final = 256 * 2**10
"""The largest body that is read in one step, which takes about a millisecond."""
_SEARCHED_AT_ONCE: Final = 4 * 2**10
"""The largest body that is searched for credentials in one step, which takes up to some milliseconds."""
_FREED_AT_ONCE: Final = 4096


@hides("provider")
@attrs.define(kw_only=True, eq=False, repr=False, slots=False)  # slots would need the attributes below declared as well
class Pipeline:
    """Makes the calls of a session or view, for resources and bulk runs, with its credentials, policy and limiter."""

    parts: SessionParts
    provider: CredentialProvider = attrs.field(repr=False)
    policy: _retry.Policy | None
    timeout: float | None
    limiter: Limiter | None
    observers: Observers | None
    credentials_in: CredentialsIn

    def __attrs_post_init__(self) -> None:
        check_timeout(self.timeout)
        parts, policy = self.parts, self.policy
        self.max_connections: int = parts.transport.max_connections
        self.slots: ConnectionSlots = parts.slots
        self._in_flight, self._root = parts.in_flight, parts.base_url
        self._guarded_provider = GuardedProvider(self.provider, parts)
        self._guarded_limiter = None if self.limiter is None else GuardedLimiter(self.limiter)
        self._budgets = () if policy is None else policy.budgets
        self._sees_first = policy is not None and policy.sees_first_attempt

    def redacted(self, value: T, others: Iterable[str] = ()) -> T:
        """Return a value of JSON with `***` in place of the credentials in use, of the secret that renews them, and of others."""
        known = filter(None, (self._guarded_provider.accepted, self._guarded_provider.current()))
        secrets = [secret for one in known for secret in (one.token, one.key)] + [
            getattr(self.provider, "client_secret", None),
            *others,
        ]
        forms = forms_of(secret for secret in secrets if isinstance(secret, str) and secret)
        return masked_value(value, forms) if forms else value

    # --- a call, from its beginning to its end

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call within its deadline, and return its value or raise the error that has its history."""
        context = self._in_flight.begin(request, self.timeout, options)
        if (paced := PACED.get()) is not None and paced.begin(context, self.parts):
            context.paced = paced
        error: BaseException | None = None
        outcome: T | BoardClientError | None = None
        try:
            if self.observers is not None or INSTALLED or is_info_logged():
                context.activity, context.notes_success = self._activity_of(request), True
            if self._sees_first:
                outcome = await self._retry_by_policy(request, context, None)
            else:
                outcome = await self._attempt(request, context, self._guarded_provider.current())
                if not context.notes_success:  # a success at once, as most calls are
                    self._earn()
                    return outcome  # type: ignore[return-value]  # -- an error would be recorded
                outcome = await self._continue(request, context, outcome)
            if context.interruption is not None:  # application code has swallowed the cancellation: the outcome stands
                context.end(self.parts.host)
        except BaseException as raised:
            error = self._error_of_call(request, context, raised)
        finally:
            self._in_flight.end(context)
            if context.paced is not None:
                context.paced.end(context, error)
            if options is not None:
                options.connection, options.response_number = context.connection, context.response_number
        if context.activity is not None:
            context.activity.end(error)
        if error is None:
            if options is not None:
                options.history.extend(context.attempts)
            return outcome  # type: ignore[return-value]  # -- an error is raised below
        context.release()  # this frame stays with the error
        try:
            raise error
        finally:
            del self, error, outcome  # the error would be in a reference cycle with this frame

    def _error_of_call(self, request: Request[T], context: CallContext, raised: BaseException) -> BaseException:
        """Return the exception that a call ends with, without the frames that hold the signed request."""
        # Three cases: an error of this package, one that application code has raised, which keeps the frames of that code, and
        # any other exception, which becomes an error of this package.
        frames = None
        if isinstance(raised, Exception) and not isinstance(raised, BoardClientError):
            if context.stage == "idle":
                frames = _application_traceback(raised)
            if frames is None:
                raised = _unexpected(request.line, raised, context.effect)
        raised.__traceback__ = frames  # before observers run: what they raise has it as its context
        if frames is None:
            raised.__context__ = None
        error = context.end(self.parts.host, raised) or raised
        # A deadline or closing turns the cancellation into its error. What ends the program goes through as it is.
        if not isinstance(raised, Exception | asyncio.CancelledError):  # such as KeyboardInterrupt
            error = raised
        if isinstance(error, BoardClientError):
            self._complete(error, request, context)
        return error

    def _complete(self, error: BoardClientError, request: Request[Any], context: CallContext) -> None:
        """Write the effect, the history and the request of a call into its error."""
        error.effect = Effect.worst([error.effect, *(attempt.effect for attempt in context.attempts)])
        error.attempts = context.attempts
        error.repeatable = request.repeatable
        limiter = self._limiter_of(context)
        if limiter is not None and context.waits_for == _LIMITER and isinstance(error, DeadlineError):
            seconds = limiter.held_seconds
            error.retry_at = None if seconds is None else moment_in(seconds)
        if not request.repeatable and (warning := _WARNINGS.get(error.effect)) is not None:
            add_words(error, warning if context.options.is_of_run else warning + _ADVICE)
        signed_with = context.credentials
        if signed_with is None:  # nothing was sent, so there are no credentials to redact
            error.shown_request = ShownRequest(method=request.method, url=self._root + request.path)
        else:
            error.shown_request = signed_with.show(request, self._root, self.credentials_in, *context.used)
        if context.activity is not None:
            context.activity.effect, error.call_id = error.effect, context.activity.call_id

    def _activity_of(self, request: Request[Any]) -> Activity:
        operation = request.operation
        return Activity(
            kind="call",
            operation=operation.name,
            instruments=followers(self.observers),
            call_id=new_call_id(),
            account=self._guarded_provider.account,
            parent=PARENT.get(),
            method=operation.method,
            path=request.path,
            root=self._root,
            template=None if operation.name == "request" else operation.path,
        ).begin()

    # --- an attempt: credentials, limiter, send, interpret

    def _attempt(
        self, request: Request[T], context: CallContext, credentials: Credentials | None
    ) -> Coroutine[Any, Any, T | BoardClientError]:
        """Send the request once, at once if it need not wait for anything."""
        # Three cases: credentials or the limiter have to be waited for, the path would show a credential, or the request is sent
        # at once. The last one, as most are, returns the coroutine of `_send` itself: each frame in between costs at every step
        # of the loop.
        limiter = self._limiter_of(context)
        if credentials is None or limiter is not None:
            return self._attempt_after_waiting(request, context, credentials, limiter)
        if request.identifier and credentials.are_in(request.identifier):
            raise _path_refused(request, context, credentials)
        return self._send(request, context, credentials)

    def _limiter_of(self, context: CallContext) -> GuardedLimiter | None:
        limiter = context.options.limiter or self._guarded_limiter
        return limiter if context.paced is None else context.paced.limiter(context, limiter)

    async def _attempt_after_waiting(
        self, request: Request[T], context: CallContext, credentials: Credentials | None, limiter: GuardedLimiter | None
    ) -> T | BoardClientError:
        """Wait for credentials and for the limiter, then send the request once."""
        while True:  # again if the credentials were replaced while it waited
            if credentials is None:
                obtained = await self._obtain(context, None)
                if isinstance(obtained, CredentialError):
                    return obtained
                credentials = obtained
            if credentials.are_in(request.identifier):
                raise _path_refused(request, context, credentials)
            if limiter is None:
                return await self._send(request, context, credentials)
            outcome: T | BoardClientError | None = None
            is_sent = False
            self._in_flight.suspend(context)
            context.waits_for = _LIMITER
            try:
                async with limiter:
                    self._in_flight.resume(context)
                    context.waits_for = None
                    if context.is_cancelled() and context.may_continue:  # the limiter swallowed the caller's cancellation
                        raise asyncio.CancelledError
                    context.notes_success = True
                    if not self._guarded_provider.is_current(credentials):  # they may have been rejected in the meantime
                        credentials = self._guarded_provider.current()
                        continue
                    outcome = await self._send(request, context, credentials)
                    is_sent = True
            except asyncio.CancelledError:
                if not is_sent or context.interruption is None:
                    raise
                # The limiter was too slow to be left. The outcome of the attempt stands.
            return outcome  # type: ignore[return-value]  # -- it was set above

    async def _obtain(self, context: CallContext, rejected: Credentials | None) -> Credentials | CredentialError:
        """Ask the provider for credentials, other than the rejected ones if any, and record a failure in the history."""
        started = perf_counter()
        self._in_flight.suspend(context)
        context.waits_for = self._guarded_provider.waiting_for
        token = None if context.activity is None else PARENT.set(context.activity)
        try:
            obtained = await self._guarded_provider.obtain(context.line, rejected, context.is_cancelled)
        finally:
            self._in_flight.resume(context)
            if token is not None:
                PARENT.reset(token)
        context.waits_for = None
        if isinstance(obtained, CredentialError):
            context.record(obtained, Effect.NOT_SENT, started=started)
        return obtained

    async def _send(self, request: Request[T], context: CallContext, credentials: Credentials) -> T | BoardClientError:
        """Sign and send the request, and return the value or the error of the response."""
        context.started = perf_counter()
        if not context.may_continue:
            closed = SessionClosedError(f"{context.line}: the session was closed during the call")
            context.record(closed, Effect.NOT_SENT)
            return closed
        operation = request.operation
        context.credentials = credentials
        target, body = credentials.sign(request, self.credentials_in)
        headers = request.headers
        if context.activity is not None and (added := context.begin_attempt(context.activity)):
            headers = {**(headers or {}), **added}
        response = await self.parts.transport.send(operation.method, self._root + target, body, context, headers=headers)
        # Three cases: no success, a success that can be read, and one that can not, which is an error although the request was
        # done.
        if response.status is None or response.status not in SUCCESSES:
            if isinstance(response, RawResponse):
                response = await _redacted(response, credentials, context)
            earlier = Effect.worst([attempt.effect for attempt in context.attempts])
            outcome = outcome_of(request, response, earlier, time(), self.parts.host)
            return self._record(context, response, outcome)
        if credentials is not self._guarded_provider.accepted:
            self._guarded_provider.note_accepted(credentials)
        try:
            # Reading a long list takes many milliseconds, in which no other task would run.
            if operation.slices is None or len(response.body) <= _AT_ONCE_BYTES:
                value = operation.read(response, request)
            else:
                value = await _gather(operation.slices(response.body), context)
        except DecodeError as error:
            error.__traceback__ = None  # its frames hold the body, and observers run before it is handled
            failure = error
        else:
            return self._record(context, response, value) if context.notes_success else value
        shown = await _redacted(response, credentials, context)
        return self._record(context, response, unreadable(request, failure, shown, self.parts.host))

    def _record(self, context: CallContext, response: TransportResult, outcome: T | BoardClientError) -> T | BoardClientError:
        attempt = context.record_result(response, outcome)
        limiter = self._limiter_of(context)
        if limiter is not None and (attempt.status is not None or attempt.effect is not Effect.NOT_SENT):  # else it was not sent
            limiter.report(attempt.status, outcome.retry_after if isinstance(outcome, ApiError) else None, attempt.seconds)
        return outcome

    # --- what follows the first attempt: renew once, retry

    async def _continue(self, request: Request[T], context: CallContext, first: T | BoardClientError) -> T:
        """Renew rejected credentials after the first attempt, then retry by the policy."""
        outcome = await self._renew(request, context, first)
        outcome = await self._repeat_at_pace(request, context, outcome)
        # Four cases: it succeeded after the renewal, there is no policy, the bulk run decides about it, or the policy does.
        if not isinstance(outcome, BoardClientError):
            self._earn()
            return outcome
        if self.policy is None or _is_left_to_run(request, context, outcome):
            raise outcome
        return await self._retry_by_policy(request, context, outcome)

    async def _attempt_again(self, request: Request[T], context: CallContext) -> T | BoardClientError:
        context.waits_for = None
        outcome = await self._attempt(request, context, self._guarded_provider.current())
        return await self._renew(request, context, outcome)

    async def _repeat_at_pace(
        self, request: Request[T], context: CallContext, outcome: T | BoardClientError
    ) -> T | BoardClientError:
        """Repeat what 429 has refused if the pace alone decides about that."""
        while (pause := self._pause_of_pace(context, outcome)) is not None:
            self._in_flight.suspend(context)
            try:
                self._pause(context, pause)
                await asyncio.sleep(pause)
            finally:
                self._in_flight.resume(context)
            outcome = await self._attempt_again(request, context)
        return outcome

    def _pause_of_pace(self, context: CallContext, outcome: object) -> float | None:
        """Return the seconds until a refused call is made again, None if it is not refused or not made again."""
        if context.paced is None or not is_throttling(outcome):
            return None
        now = context.task.get_loop().time()
        context.refused_at = now if context.refused_at is None else context.refused_at
        return context.paced.record_refusal(context, outcome, now - context.refused_at)

    async def _renew(self, request: Request[T], context: CallContext, outcome: T | BoardClientError) -> T | BoardClientError:
        """After a 401, renew the credentials and send the request again, once in a call."""
        # Three cases: no 401; the first 401 of the call, which a renewal may mend; and a later one, which is final. Only of the
        # last one the provider is notified, since it knows of the first by `renew`.
        if context.options.is_single or not isinstance(outcome, AuthenticationError):
            return outcome
        rejected = context.credentials
        assert rejected is not None  # noqa: S101 -- the 401 is the response to a request that was signed with them
        if not context.has_tried_renewal:
            context.has_tried_renewal = True
            renewed = await self._obtain(context, rejected)
            if isinstance(renewed, CredentialError):
                return renewed
            # There are no others, as with static credentials: sent again the request would get the same 401.
            if renewed == rejected:
                return outcome
            if self.parts.count_renewal(renewed) and (call := context.activity) is not None:
                from boardclient.events import CredentialsRenewed  # for calls that are followed

                call.note(CredentialsRenewed(operation=call.operation, call_id=call.call_id, account=call.account))
            self.parts.replays += 1
            outcome = await self._attempt(request, context, renewed)
            if not isinstance(outcome, AuthenticationError):
                return outcome
            rejected = context.credentials
            assert rejected is not None  # noqa: S101 -- as above
        await self._guarded_provider.note_refused(rejected)
        return outcome

    async def _retry_by_policy(self, request: Request[T], context: CallContext, first: BoardClientError | None) -> T:
        """Repeat the request as the policy says, after a first attempt that failed."""

        async def attempt() -> T | BoardClientError:
            outcome = await self._attempt_again(request, context)
            return await self._repeat_at_pace(request, context, outcome)

        def may_pause(seconds: float) -> bool:
            if _is_left_to_run(request, context, context.last_error):
                return False
            self._pause(context, seconds)
            return True

        assert self.policy is not None  # noqa: S101 -- asked by the callers
        context.notes_success = True
        value = await self.policy.drive(request.operation.name, attempt, may_pause, first, context.seconds_since_beginning)
        if context.options.is_of_run and context.last_error is not None:  # the run gets no value of a `retry_error_callback`
            raise context.last_error
        return value

    def _pause(self, context: CallContext, seconds: float) -> None:
        """Note a pause before it begins, or raise the last error if it may not begin."""
        last = context.attempts[-1]
        remaining = context.remaining_seconds
        if remaining is not None and not seconds < remaining:  # NaN passes no deadline
            raise _beyond_deadline(context, seconds, max(0.0, remaining))
        context.record_pause(seconds)
        context.waits_for = "the pause before the next attempt"
        self.parts.retries += 1
        if (call := context.activity) is not None:
            from boardclient.events import RetryScheduled  # for calls that are followed

            call.note(call.event(RetryScheduled, attempt=last.number, pause_seconds=seconds, why=last.why))

    def _earn(self) -> None:
        """Give the budgets of the policy what a call that succeeds at once is worth."""
        for budget in self._budgets:
            if budget.tokens < budget.capacity:
                budget.give_back(None)

    # --- what bulk runs need of a session

    def withdraw(self, options: Collection[CallOptions]) -> None:
        """Withdraw the calls with these options that still wait for the limiter, a pause or a connection."""
        self._in_flight.withdraw(options)

    @property
    def identity(self) -> Mapping[str, str]:
        service, account = {"service": self._root}, self._guarded_provider.account
        return service if account is None else {**service, "account": account}


def _path_refused(request: Request[Any], context: CallContext, credentials: Credentials) -> InvalidIdentifierError:
    """Return the error of a path that holds one of the credentials, which errors, logs and events would show."""
    context.credentials = credentials  # the error shows its request without them
    return InvalidIdentifierError(f"{request.method}: the path holds the key or the token, which errors and logs would show")


def _is_left_to_run(request: Request[Any], context: CallContext, error: BoardClientError | None) -> bool:
    """Return True if the run itself decides: about a success, a single request, a pause asked for, a creation in doubt."""
    if not context.options.is_of_run:
        return False
    if error is None or context.options.is_single or is_throttling(error) or (isinstance(error, ApiError) and error.retry_at):
        return True
    return not request.repeatable and error.effect in {Effect.UNKNOWN, Effect.DONE}


def _beyond_deadline(context: CallContext, pause: float, remaining: float) -> BoardClientError:
    """Return the error to raise if the next pause would exceed the deadline."""
    error = context.last_error
    if error is None:
        return BoardClientError(f"{context.line}: the next pause would pass the deadline", Effect.DONE)
    left = f"the {remaining:.2g} s that the timeout of {context.seconds:g} s leaves"
    add_words(error, f"a pause of {pause:.3g} s is more than {left}")
    return error


def _application_traceback(error: Exception) -> TracebackType | None:
    """Return the part of a traceback that begins with a function of the application, None if only this package is in it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("boardclient."):
        frames = frames.tb_next
    return frames


def _unexpected(line: str, error: Exception, effect: Effect) -> BoardClientError:
    """Return the error of a call that failed within this package or aiohttp, and log where."""
    where = "".join(traceback.format_tb(error.__traceback__))  # a record that is kept must not keep the frames
    _logger.error("%s ended by %s\n%s", line, type(error).__name__, where)
    return BoardClientError(f"{line}: ended by {type(error).__name__}, see the log", effect)


async def _redacted(response: RawResponse, credentials: Credentials, context: CallContext) -> RawResponse:
    """Return a response without credentials. A long body is searched in steps, between which other tasks run."""
    if len(response.body) <= _SEARCHED_AT_ONCE:
        return credentials.redact(response, *context.used)
    context.stage = "receive"
    steps = credentials.redact_in_steps(response, *context.used)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            context.stage = "idle"
            return cast("RawResponse", end.value)
        await asyncio.sleep(0)


async def _gather(slices: Iterator[T], context: CallContext) -> T:
    """Read a long list, and let other tasks run after each slice."""
    context.stage = "receive"
    values: Any = []
    try:
        for values_of_slice in slices:
            values += values_of_slice
            await asyncio.sleep(0)
    except BaseException:
        _free(values)
        raise
    context.stage = "idle"
    return cast("T", values)


def _free(values: list[object]) -> None:
    """Drop the values in small steps: freeing a million takes a quarter of a second, in which no other task would run."""
    del values[-_FREED_AT_ONCE:]
    if values:
        asyncio.get_running_loop().call_soon(_free, values)
