"""AsyncSession: sign -> send -> renew -> retry under one deadline; owns the pool and the provider, and is the resources' caller.

Errors travel as values until `call` raises them, in a frame that has no credential in reach.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from ssl import SSLContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, TypeVar, cast

from boardclient import retry as _retry
from boardclient._flights import Flight
from boardclient._operations import Answer, Request, Response, effect_of, free_request, interpret, interpret_in_steps
from boardclient._shared import Shared
from boardclient._transport import Failure, Settings
from boardclient.credentials import CredentialProvider, Credentials
from boardclient.credentials._values import Place
from boardclient.errors import (
    Attempt,
    AuthenticationError,
    BoardClientError,
    CredentialError,
    Effect,
    NotFoundError,
    RateLimitError,
    SessionClosedError,
    TransportError,
)
from boardclient.events import AnswerReceived, CredentialsRenewed, Event, Observer, RequestSent, RetryScheduled
from boardclient.models import JsonValue
from boardclient.resources import Boards, Cards, Lists, Members

if TYPE_CHECKING:
    import aiohttp
    from tenacity import AsyncRetrying

T = TypeVar("T")
Limiter: TypeAlias = AbstractAsyncContextManager[object, bool | None]


class _Unset:
    """The type of UNSET: an option that was not given, which None is not."""

    def __repr__(self) -> str:
        return "…"


UNSET: Final = _Unset()


class Reporter(Protocol):
    """A limiter that is told of every answer: `status` is None where none came, times are in seconds."""

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Take note of an answer."""
        ...


class AsyncSession:
    """A board service as an application drives it: one connection pool, one credential provider.

    It may be built anywhere; the loop and process of its first call are its own from then on. Use it as an asynchronous context
    manager, or end it with `aclose`; one session serves any number of tasks.

    `timeout` is the one deadline of a call in seconds (None: no deadline), over waiting for a connection, every attempt and
    pause, and a renewal of credentials. `retry` is a `tenacity.AsyncRetrying`, None for one attempt; by default each session
    makes its own `boardclient.retry.default()`. `http` lends an application's own `aiohttp.ClientSession`, which is never closed.

    Raises:
        ValueError: an option is out of its range, or `http` comes together with options of the pool.
    """

    def __init__(
        self,
        credentials: CredentialProvider,
        base_url: str,
        *,
        retry: AsyncRetrying | _Unset | None = UNSET,
        timeout: float | None = 30.0,
        max_connections: int = 100,
        limiter: Limiter | None = None,
        http: aiohttp.ClientSession | None = None,
        trust_env: bool = False,
        ssl: SSLContext | bool | aiohttp.Fingerprint | None = None,
        proxy: str | None = None,
        headers: Mapping[str, str] | None = None,
        user_agent: str | None = None,
        observers: Iterable[Observer] = (),
        credentials_in: Place = "body",
        allow_insecure: bool = False,
        max_answer_bytes: int = 256 * 2**20,
    ) -> None:
        settings = Settings(
            max_connections=max_connections,
            trust_env=trust_env,
            ssl=ssl,
            proxy=proxy,
            headers=headers or {},
            user_agent=user_agent or "",
            allow_insecure=allow_insecure,
            max_answer_bytes=max_answer_bytes,
        )
        if http is not None and (max_connections, trust_env, ssl, proxy) != (100, False, None, None):
            raise ValueError("max_connections, trust_env, ssl and proxy are the lent session's own: they don't go with http=")
        if credentials_in not in {"body", "query"}:
            raise ValueError('credentials_in must be "body" or "query"')
        self._credentials_in: Place = credentials_in
        self._configure(credentials, _policy(_retry.default() if isinstance(retry, _Unset) else retry), timeout, limiter)
        self._shared, self._owns_shared = Shared(base_url, settings, http, observers, timeout), True

    def _configure(
        self, credentials: CredentialProvider, policy: _retry.Policy | None, timeout: float | None, limiter: Limiter | None
    ) -> None:
        """Set what a view may have of its own."""
        if not callable(getattr(credentials, "acquire", None)) or not callable(getattr(credentials, "renew", None)):
            raise TypeError("credentials must be a CredentialProvider, such as StaticCredentials(token=…)")
        if timeout is not None and not timeout > 0:
            raise ValueError("timeout must be more than 0 seconds, or None")
        self._provider = credentials
        self._note_accepted = getattr(credentials, "note_accepted", None)
        self._note_refused = getattr(credentials, "note_refused", None)
        self._accepted: Credentials | None = None
        self._policy = policy
        self._timeout = timeout
        self._limiter = limiter
        self._report = getattr(limiter, "report", None)

    # Made when asked for, in a tenth of a microsecond: a view stays small, and nothing of it needs the garbage collector.
    @property
    def boards(self) -> Boards:
        """The operations on boards."""
        return Boards(self)

    @property
    def lists(self) -> Lists:
        """The operations on lists."""
        return Lists(self)

    @property
    def cards(self) -> Cards:
        """The operations on cards."""
        return Cards(self)

    @property
    def members(self) -> Members:
        """The operations on members."""
        return Members(self)

    # --- views and life

    def with_credentials(self, credentials: CredentialProvider) -> AsyncSession:
        """Return a view for other credentials on the same pool; closing it closes nothing."""
        return self._view(credentials, self._policy, self._timeout, self._limiter)

    def with_options(
        self,
        *,
        retry: AsyncRetrying | _Unset | None = UNSET,
        timeout: float | _Unset | None = UNSET,
        limiter: Limiter | _Unset | None = UNSET,
    ) -> AsyncSession:
        """Return a view with other options on the same pool; closing it closes nothing."""
        return self._view(
            self._provider,
            self._policy if isinstance(retry, _Unset) else _policy(retry),
            self._timeout if isinstance(timeout, _Unset) else timeout,
            self._limiter if isinstance(limiter, _Unset) else limiter,
        )

    def _view(
        self, credentials: CredentialProvider, policy: _retry.Policy | None, timeout: float | None, limiter: Limiter | None
    ) -> AsyncSession:
        view = AsyncSession.__new__(AsyncSession)
        view._shared, view._owns_shared, view._credentials_in = self._shared, False, self._credentials_in
        view._configure(credentials, policy, timeout, limiter)
        return view

    async def aclose(self) -> None:
        """Close the session: calls under way end with `SessionClosedError`, as every later one does. Idempotent."""
        if self._owns_shared:
            await self._shared.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        shared = getattr(self, "_shared", None)  # absent where __init__ refused its arguments
        if shared is not None and self._owns_shared and not shared.flights.is_closed:
            warnings.warn("an AsyncSession was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._shared.flights.is_closed else "open"
        view = "" if self._owns_shared else " view"
        return f"<AsyncSession{view} {state}, {len(self._shared.flights)} calls, {self._shared.pool!r}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("an AsyncSession can't be pickled: build one where it is used")

    # --- calls

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int | float | bool] | None = None,
        json: JsonValue = None,
        repeatable: bool | None = None,
    ) -> Response:
        """Make a call that has no method of its own; it is signed, retried and renewed like the rest.

        `path` starts with "/1/"; `repeatable` tells the retry policy whether a second time does no harm (default: GET, PUT and
        DELETE). A status that is no success raises the error it stands for.

        Raises:
            TypeError, ValueError: it can't be sent, or names a credential itself.
        """
        return await self.call(free_request(method, path, params, json, repeatable))

    async def call(self, request: Request[T], history: list[Attempt] | None = None) -> T:
        """Sign, send, renew and retry one request within one deadline, and return the value of its answer.

        A call that succeeds leaves in `history` the attempts it made, unless the first one sufficed. One with a history is part
        of a bulk run: its deadline stands still while it waits for credentials.
        """
        flights = self._shared.flights
        flight = flights.begin(request.line, self._timeout, is_patient=history is not None)
        outcome: T | BoardClientError
        try:
            outcome = await self._walk(request, flight)
        except asyncio.CancelledError as cancellation:
            interrupted = flight.settle()
            if interrupted is None:
                raise cancellation.with_traceback(None)  # noqa: B904 -- the same one, without the frames that hold the signed request
            outcome = interrupted
        else:
            # An application's part that swallows the cancellation must not leave it behind in the task.
            interrupted = flight.settle()
            outcome = interrupted if interrupted is not None and isinstance(outcome, BoardClientError) else outcome
        finally:
            flights.end(flight)
        if not isinstance(outcome, BoardClientError):
            if history is not None:
                history.extend(flight.attempts)
            return outcome
        outcome.effect = Effect.worst([outcome.effect, *(attempt.effect for attempt in flight.attempts)])
        outcome.attempts = tuple(flight.attempts)
        raise outcome

    @property
    def is_observed(self) -> bool:
        """Tell whether anybody observes the session."""
        return bool(self._shared.observers)

    def notify(self, event: Event) -> None:
        """Hand an event to the observers."""
        self._shared.notify(event)

    async def _walk(self, request: Request[T], flight: Flight) -> T | BoardClientError:
        """Attempt the request as often as the policy wants."""
        policy = self._policy
        if policy is None or not policy.is_enabled:
            return await self._attempt(request, flight)
        first = None
        if not policy.sees_first:
            started = time.monotonic()
            outcome = await self._attempt(request, flight)
            if not isinstance(outcome, BoardClientError):
                policy.note_success()
                return outcome
            first = _retry.FirstOutcome(outcome, started)
        return await policy.drive(
            request.operation,
            lambda: self._attempt(request, flight),
            lambda pause: self._pause(request, flight, pause),
            first,
        )

    def _pause(self, request: Request[T], flight: Flight, pause: float) -> None:
        """Note a pause before it begins, or refuse one that the deadline would cut short by raising the error to give up with."""
        last = flight.attempts[-1]
        if not _retry.is_pause_possible(pause, flight.remaining_seconds):
            raise flight.last_error or BoardClientError(f"{request.line}: the next pause would pass the deadline", Effect.DONE)
        flight.note_pause(pause)
        if self._shared.observers:
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

    async def _attempt(self, request: Request[T], flight: Flight) -> T | BoardClientError:
        """Send the request once, and after a 401 once more with renewed credentials, at most once in a call."""
        credentials = await self._credentials(request, flight, None)
        if isinstance(credentials, CredentialError):
            return credentials
        outcome = await self._exchange(request, credentials, flight)
        if not isinstance(outcome, AuthenticationError):
            return outcome
        if flight.renewed:
            return await self._refused(credentials, outcome)
        flight.renewed = True
        renewed = await self._credentials(request, flight, credentials)
        if isinstance(renewed, CredentialError):
            return renewed
        if renewed == credentials:
            return outcome
        if self._shared.announce(renewed):
            self.notify(CredentialsRenewed(operation=request.operation))
        outcome = await self._exchange(request, renewed, flight, credentials)
        return await self._refused(renewed, outcome) if isinstance(outcome, AuthenticationError) else outcome

    async def _refused(self, credentials: Credentials, outcome: BoardClientError) -> BoardClientError:
        """Tell the provider of a 401 that is final for its call."""
        if self._note_refused is not None:
            await self._note_refused(credentials, self._shared)
        return outcome

    async def _credentials(
        self, request: Request[T], flight: Flight, rejected: Credentials | None
    ) -> Credentials | CredentialError:
        """Ask the provider for credentials, or for others than the rejected ones; a failure goes into the history."""
        provider, exchange, started = self._provider, self._shared, time.time()
        if flight.is_patient:
            self._shared.flights.suspend(flight)
        try:
            given = await (provider.acquire(exchange) if rejected is None else provider.renew(rejected, exchange))
            if isinstance(given, Credentials):
                return given
            failure = CredentialError(f"{request.line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            failure = error.with_traceback(None)
        except Exception as error:  # whatever the application raises is the cause
            failure = CredentialError(f"{request.line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
        finally:
            if flight.is_patient:
                self._shared.flights.resume(flight)
        flight.record(started, failure, None, Effect.NOT_SENT)
        return failure

    async def _exchange(
        self, request: Request[T], credentials: Credentials, flight: Flight, rejected: Credentials | None = None
    ) -> T | BoardClientError:
        """Sign, send and interpret one request."""
        if self._limiter is None:
            return await self._send(request, credentials, flight, rejected)
        async with self._limiter:
            return await self._send(request, credentials, flight, rejected)

    async def _send(
        self, request: Request[T], credentials: Credentials, flight: Flight, rejected: Credentials | None
    ) -> T | BoardClientError:
        core = self._shared
        if core.flights.is_closed:  # by the call's own task, which is not interrupted
            closed = SessionClosedError(f"{request.line}: the session was closed during the call")
            flight.record(time.time(), closed, None, Effect.NOT_SENT)
            return closed
        if core.observers:
            self.notify(
                RequestSent(
                    operation=request.operation, method=request.method, path=request.path, attempt=len(flight.attempts) + 1
                )
            )
        started = flight.started = time.time()
        signed = credentials.sign(request, self._credentials_in)
        answer = await core.pool.send(request.method, core.base_url + signed.target, signed.body, flight)
        if isinstance(answer, Answer) and answer.is_success:
            if credentials is not self._accepted:
                self._accept(credentials)
        elif isinstance(answer, Answer):
            for held in filter(None, (credentials, rejected)):
                answer = held.redact(answer)
        outcome = await _meaning(request, answer, flight, time.time())
        self._note(request, answer, outcome, flight, started)
        return outcome

    def _accept(self, credentials: Credentials) -> None:
        """Tell the provider, once, that the service took its credentials."""
        self._accepted = credentials
        if self._note_accepted is not None:
            self._note_accepted(credentials)

    def _note(
        self, request: Request[T], answer: Answer | Failure, outcome: T | BoardClientError, flight: Flight, started: float
    ) -> None:
        """Write an attempt into the history, and tell limiter and observers."""
        status = answer.status if isinstance(answer, Answer) else None
        is_over = not isinstance(outcome, BoardClientError) and (self._policy is None or not self._policy.sees_first)
        if is_over and not self._report and not self._shared.observers and not flight.attempts:
            return  # a call that succeeds at once has no history to be read
        effect = effect_of(answer.status) if isinstance(answer, Answer) else answer.effect
        attempt = flight.record(started, outcome, status, effect)
        if self._report is not None:
            self._report(status, outcome.retry_after if isinstance(outcome, RateLimitError) else None, attempt.seconds)
        if self._shared.observers:
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


def _policy(retry: AsyncRetrying | None) -> _retry.Policy | None:
    return None if retry is None else _retry.Policy(retry)


async def _unhurried(steps: Generator[None, None, T], flight: Flight) -> T:
    """Return what the steps return, and let other tasks run between them; the attempt is under way until then."""
    flight.stage = "receive"
    while True:
        try:
            next(steps)
        except StopIteration as end:
            flight.stage = "idle"
            return cast("T", end.value)
        await asyncio.sleep(0)


async def _meaning(request: Request[T], answer: Answer | Failure, flight: Flight, now: float) -> T | BoardClientError:
    """Return the value of an answer, or the error that it or its absence means."""
    if isinstance(answer, Failure):
        outcome: T | BoardClientError = TransportError(f"{request.line}: {answer.why}", answer.phase, request.line, answer.effect)
    elif request.read_in_steps is None:
        outcome = interpret(request, answer, now)
    else:
        steps = interpret_in_steps(request, answer, now)
        outcome = await _unhurried(steps, flight)
    if not isinstance(outcome, BoardClientError):
        return outcome
    if isinstance(outcome, NotFoundError) and request.method == "DELETE" and flight.effect is Effect.UNKNOWN:
        # An earlier attempt may have deleted it: that it is gone is what was asked for.
        return request.read(cast("Answer", answer))
    outcome.repeatable = request.repeatable
    return outcome
