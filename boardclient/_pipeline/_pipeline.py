"""Runs a call in stages, within one deadline.

The stages are credentials, limiter, send, interpret, renew once and retry. Each is a method of `Pipeline`. Errors are returned as
values until `call` raises them from a frame that holds no credentials.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Coroutine, Generator, Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from boardclient import retry as _retry
from boardclient._activities import INSTALLED, Instrument
from boardclient._operations import AT_ONCE_BYTES, Request, error_of, unreadable
from boardclient._pipeline._core import SessionCore
from boardclient._pipeline._guards import AttemptLimiter, GuardedLimiter, GuardedProvider, checked_observers, notify_all
from boardclient._pipeline._in_flight import CallContext
from boardclient._pipeline._options import CallOptions
from boardclient._pipeline._reporting import (
    begin_attempt,
    begin_call,
    complete,
    end_early,
    end_success,
    note_attempt,
    note_closed,
    note_pause,
    note_renewal,
    without_secrets,
)
from boardclient._pipeline._slots import ConnectionSlots
from boardclient._statuses import SUCCESSES, is_throttling
from boardclient._transport import RawResponse, TransportResult
from boardclient.credentials import CredentialProvider, Credentials, CredentialsIn
from boardclient.errors import AuthenticationError, BoardClientError, CredentialError, DecodeError
from boardclient.logs import is_info_logged
from boardclient.models import check_seconds

if TYPE_CHECKING:
    from boardclient._pace import Limiter
    from boardclient.events import Event, Observer

T = TypeVar("T")


class _Unsent(enum.Enum):
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
        if timeout is not None and not check_seconds(timeout, "timeout", "a number of seconds or None") > 0:
            raise ValueError("timeout must be more than 0 seconds, or None")
        self.provider = provider
        self.policy = policy
        self.timeout = timeout
        self.limiter = limiter
        self.observers = checked_observers(observers)
        self.credentials_in: CredentialsIn = credentials_in
        self._core = core
        self._in_flight: Final = core.in_flight
        self._root: Final = core.base_url
        self._provider: Final = GuardedProvider(provider, core)
        self._limiter = None if limiter is None else GuardedLimiter(limiter)
        self.follower = _follower(self.observers) if self.observers else None
        self._note_success = _nothing if policy is None else policy.note_success
        self._enters_policy_first = policy is not None and policy.needs_first_attempt

    def replace(self, **changes: Any) -> Pipeline:
        """Return a pipeline on the same core with other options."""
        names = ("provider", "policy", "timeout", "limiter", "observers", "credentials_in")
        return Pipeline(self._core, **({name: getattr(self, name) for name in names} | changes))

    # --- a call, from its beginning to its end

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call within its deadline, and return its value.

        Raises:
            BoardClientError: the call failed; its `attempts` have the history.
        """
        if (self.observers or INSTALLED or is_info_logged()) and (options is None or options.activity is None):
            return await self._followed(request, options)
        context = self._in_flight.begin(request, self.timeout, options)
        outcome: T | BoardClientError
        try:
            if self._enters_policy_first:
                context.is_tracked = True
                outcome = await self._retried(request, context, None)
            else:
                outcome = await self._attempt(request, context, self._provider.current())
                if context.is_tracked:
                    outcome = await self._renew_and_retry(request, context, outcome)
                else:
                    self._note_success()
        except BaseException as error:
            ended = end_early(context, self._core.host)
            if ended is None:
                context.release()  # this frame stays with the exception
                # The same exception; a cancellation without the frames that hold the signed request.
                raise error.with_traceback(None) if isinstance(error, asyncio.CancelledError) else error  # noqa: B904 -- it is being handled
            error.__traceback__ = None  # a trace config may keep the cancellation
            outcome, ended = ended, None
        finally:
            self._in_flight.end(context)
        if context.is_tracked:  # as are all failures and interruptions
            outcome = self._final_outcome(request, context, outcome)
            if isinstance(outcome, BoardClientError) and not context.returns_error:
                context.release()
                del context  # this frame stays with the error
                try:
                    raise outcome
                finally:
                    del outcome  # it would be in a reference cycle with this frame
            if options is not None:
                options.history.extend(context.attempts)
        return outcome  # type: ignore[return-value]  # -- an error of ours only where a callback returned it as the value

    def _final_outcome(self, request: Request[T], context: CallContext, outcome: T | BoardClientError) -> T | BoardClientError:
        """Return the final outcome of a call. An error gets the history and other facts of the call."""
        # Application code may have swallowed the cancellation of an interrupted call.
        interrupted = None if context.interruption is None else end_early(context, self._core.host)
        if not isinstance(outcome, BoardClientError) or context.returns_error:
            return outcome
        error = outcome if interrupted is None else interrupted
        complete(error, request, context, self._root, self.credentials_in)
        return error

    async def _followed(self, request: Request[T], options: CallOptions | None) -> T:
        """Make a call that instruments or observers follow."""
        activity = begin_call(request, self._root, self._account, self.follower)
        options = options or CallOptions()
        options.activity, error = activity, None
        try:
            return await self.call(request, options)
        except BaseException as raised:
            error = raised
            if isinstance(raised, BoardClientError):
                activity.effect = raised.effect
            raise
        finally:
            options.activity = None
            activity.end(error)
            del error

    # --- an attempt: credentials, limiter, send, interpret

    def _attempt(
        self, request: Request[T], context: CallContext, credentials: Credentials | None
    ) -> Coroutine[Any, Any, T | BoardClientError]:
        """Send the request once, at once if it need not wait for anything."""
        limiter = context.options.limiter or self._limiter
        if credentials is None or (limiter is not None and limiter.must_be_entered()):
            return self._attempt_after_waiting(request, context, credentials, limiter)
        return self._send(request, context, credentials)

    async def _attempt_after_waiting(
        self, request: Request[T], context: CallContext, credentials: Credentials | None, limiter: AttemptLimiter | None
    ) -> T | BoardClientError:
        """Wait for credentials and for the limiter, then send the request once."""
        while True:
            if credentials is None:
                obtained = await self._provider.obtain(context, None)
                if isinstance(obtained, CredentialError):
                    return obtained
                credentials = obtained
            if limiter is None or not limiter.must_be_entered():
                return await self._send(request, context, credentials)
            outcome = await self._send_within(limiter, request, context, credentials)
            if not isinstance(outcome, _Unsent):
                return outcome
            credentials = self._provider.current()

    async def _send_within(
        self, limiter: AttemptLimiter, request: Request[T], context: CallContext, credentials: Credentials
    ) -> T | BoardClientError | _Unsent:
        """Send the request inside the limiter, unless its credentials are outdated."""
        outcome: T | BoardClientError | _Unsent = _Unsent.OUTDATED
        self._in_flight.suspend(context)
        context.waits_for = _waiting_for_limiter
        try:
            async with limiter:
                self._in_flight.resume(context)
                context.waits_for = None
                if context.is_cancelled and context.may_send:  # the limiter swallowed the caller's cancellation
                    raise asyncio.CancelledError
                context.is_tracked |= limiter.is_reporting
                if self._provider.is_outdated(credentials):
                    return outcome
                outcome = await self._send(request, context, credentials)
        except asyncio.CancelledError:
            if isinstance(outcome, _Unsent) or context.interruption is None:
                raise
            # The limiter was too slow to be left. The outcome of the attempt stands.
        return outcome

    async def _send(self, request: Request[T], context: CallContext, credentials: Credentials) -> T | BoardClientError:
        """Sign and send the request, and return the value or the error of the response."""
        if not context.may_send:
            return note_closed(context)
        definition = request.definition
        context.credentials = credentials
        context.started = time()
        signed = credentials.sign(request, self.credentials_in)
        headers = begin_attempt(context, context.activity) if context.activity is not None else None
        response = await self._core.pool.send(
            definition.method, self._root + signed.target, signed.body, context, headers=headers
        )
        if response.status is None or response.status not in SUCCESSES:
            failure: T | BoardClientError = self._error_of(request, context, response)
            return self._record_attempt(context, response, failure)
        if credentials is not self._provider.accepted:
            self._provider.note_accepted(credentials)
        try:
            if definition.read_in_steps is None or len(response.body) <= AT_ONCE_BYTES:
                value = definition.read(response, request.identifier)
            else:
                value = await _read(definition.read_in_steps(response), context)
        except DecodeError as error:
            shown = without_secrets(context, response)
            return self._record_attempt(context, response, unreadable(request, error, shown, self._core.host))
        return self._record_attempt(context, response, value) if context.is_tracked else value

    def _error_of(self, request: Request[T], context: CallContext, response: TransportResult) -> T | BoardClientError:
        """Return the error of a response. Credentials that the response repeats are redacted."""
        if isinstance(response, RawResponse):
            response = without_secrets(context, response)
        return error_of(request, response, context.effect, time(), self._core.host)

    def _record_attempt(
        self, context: CallContext, response: TransportResult, outcome: T | BoardClientError
    ) -> T | BoardClientError:
        """Record an attempt in the history, and return its outcome.

        A first attempt that succeeds is only reported to observers, unless the limiter or the policy needs it.
        """
        limiter = context.options.limiter or self._limiter
        is_recorded = (
            context.attempts or limiter is not None or self._enters_policy_first or isinstance(outcome, BoardClientError)
        )
        if not is_recorded and context.attempt_activity is not None:
            end_success(context, context.attempt_activity, cast("RawResponse", response))  # only one of them succeeds
        else:
            note_attempt(context, response, outcome, limiter)
        return outcome

    # --- what follows a failure: renew once, retry

    async def _renew_and_retry(
        self, request: Request[T], context: CallContext, first: T | BoardClientError
    ) -> T | BoardClientError:
        """Renew refused credentials after the first attempt, then retry by the policy."""
        outcome = await self._renewed(request, context, first)
        if self.policy is None:
            return outcome
        if not isinstance(outcome, BoardClientError):
            self._note_success()
            return outcome
        if context.options.leaves_throttling and is_throttling(outcome):
            return outcome
        # tenacity is entered only after a first failure: passing through it costs 13 microseconds.
        return await self._retried(request, context, _retry.FirstOutcome(outcome, context.seconds_since_beginning))

    async def _renewed(self, request: Request[T], context: CallContext, outcome: T | BoardClientError) -> T | BoardClientError:
        """After a 401, renew the credentials and send the request again, once in a call."""
        if not isinstance(outcome, AuthenticationError):
            return outcome
        refused = context.credentials
        assert refused is not None  # noqa: S101 -- the 401 is the response to a request that was signed with them
        if context.is_renewed:
            return await self._provider.note_refused(context, refused, outcome)
        context.is_renewed = True
        renewed = await self._provider.obtain(context, refused)
        if isinstance(renewed, CredentialError):
            return renewed
        if renewed == refused:
            return outcome
        context.rejected = refused
        if self._core.count_renewal(renewed):
            note_renewal(context)
        self._core.replays += 1
        again = await self._attempt(request, context, renewed)
        if isinstance(again, AuthenticationError):
            return await self._provider.note_refused(context, context.credentials or renewed, again)
        return again

    async def _retried(
        self, request: Request[T], context: CallContext, first: _retry.FirstOutcome[T] | None
    ) -> T | BoardClientError:
        """Repeat the request as the policy says."""

        async def attempt() -> T | BoardClientError:
            context.waits_for = None
            outcome = await self._attempt(request, context, self._provider.current())
            return await self._renewed(request, context, outcome)

        def paused(seconds: float) -> None:
            note_pause(context, seconds)
            self._core.retries += 1

        assert self.policy is not None  # noqa: S101 -- asked by the callers
        outcome = await self.policy.drive(request.operation, attempt, paused, first)
        if isinstance(outcome, _retry.CallbackValue):
            context.returns_error = True
            return outcome.value
        return outcome

    # --- what bulk runs need of a session

    def withdraw(self, options: Collection[CallOptions]) -> None:
        """Withdraw the calls with these options that have not been sent.

        They wait for the limiter, for a pause or for a connection.
        """
        self._in_flight.withdraw(options)

    def notify(self, event: Event) -> None:
        """Pass an event to the observers."""
        notify_all(self.observers, event)

    @property
    def is_observed(self) -> bool:
        """Whether the session has observers."""
        return bool(self.observers)

    @property
    def max_connections(self) -> int:
        """How many requests can be in flight at a time."""
        return self._core.slots.number

    @property
    def slots(self) -> ConnectionSlots:
        """The connection slots that bulk runs share."""
        return self._core.slots

    @property
    def identity(self) -> Mapping[str, str]:
        """The service and the account that calls are made for, without credentials."""
        service, account = {"service": self._root}, self._account
        return service if account is None else {**service, "account": account}

    @property
    def _account(self) -> str | None:
        account = getattr(self.provider, "account", None)
        return account if isinstance(account, str) else None


def _follower(observers: Iterable[Observer]) -> Instrument:
    from boardclient._pipeline._observers import ObserverInstrument  # with the classes of events, for sessions with observers

    return ObserverInstrument(observers)


def _nothing() -> None:
    """Do nothing after a success: there is no policy."""


def _waiting_for_limiter() -> str:
    return "the limiter"


async def _read(steps: Generator[None, None, T], context: CallContext) -> T:
    """Read a response in steps, and let other tasks run in between."""
    context.stage = "receive"
    while True:
        try:
            next(steps)
        except StopIteration as end:
            context.stage = "idle"
            value: T = end.value
            return value
        await asyncio.sleep(0)
