"""Retry policies and their building blocks: the one module that imports tenacity.

A policy is a `tenacity.AsyncRetrying`; everything here composes with tenacity's own parts:

```python
AsyncRetrying(
    retry=when_safe | when_status(409),
    stop=stop_after_attempt(5) | budget(),
    wait=wait_retry_after(otherwise=wait_random_exponential(max=20)),
)
```
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar, cast

import attrs
import tenacity
from tenacity import AsyncRetrying, RetryCallState
from tenacity.asyncio import retry as _async_retry
from tenacity.retry import retry_all, retry_any, retry_base, retry_if_exception, retry_never
from tenacity.stop import stop_all, stop_any, stop_base
from tenacity.wait import wait_base, wait_random_exponential

from boardclient._interface._responses import add_words, is_throttling, status_of
from boardclient.errors import ApiError, BoardClientError, Effect, TransportError

__all__ = ["budget", "default", "wait_retry_after", "when_safe", "when_status"]

T = TypeVar("T")


def _is_safe(error: BaseException) -> bool:
    if is_throttling(error):
        return True
    if not (isinstance(error, TransportError) or (isinstance(error, ApiError) and status_of(error.status).is_transient)):
        return False
    return error.effect is Effect.NOT_SENT or (error.repeatable and error.effect is Effect.UNKNOWN)


when_safe: Final = retry_if_exception(_is_safe)
"""Repeat what can't do harm.

Any operation is repeated if its connection failed before it was sent, or after a 429. Repeatable operations (GET, PUT, DELETE,
and `session.request(…, repeatable=True)`) are also repeated after a 5xx and after other transport errors.
"""


def when_status(*statuses: int) -> retry_base:
    """Repeat responses with these statuses, whatever the operation. A creation may be done twice."""
    wanted = frozenset(statuses)
    return retry_if_exception(lambda error: isinstance(error, ApiError) and error.status in wanted)


_soon: Final = wait_random_exponential(multiplier=0.05, max=20)
_later: Final = wait_random_exponential(multiplier=1, max=20)


def _back_off(retry_state: RetryCallState) -> float:
    """Return a random pause up to a bound that doubles with each attempt, from 0.05 seconds, or from 1 after a 429, to 20."""
    return (_later if is_throttling(_failure(retry_state)) else _soon)(retry_state)


class wait_retry_after(wait_base):  # noqa: N801 -- named as tenacity names its own
    """Wait as long as `Retry-After` asks for.

    ```python
    from tenacity import AsyncRetrying, stop_after_attempt

    policy = AsyncRetrying(
        retry=when_safe | when_status(502),
        wait=wait_retry_after(at_most=10),
        stop=stop_after_attempt(5) | budget(),
    )
    again = session.with_options(retry=policy)
    ```

    Args:
        otherwise: The wait if there is no such header. By default a random time from 0 to a bound that doubles with each attempt,
            from 0.05 seconds, or from 1 second after a 429, to 20.
        at_most: The longest wait in seconds, 60 by default. If the header asks for more, the call is repeated all the same.
    """

    def __init__(self, otherwise: wait_base | None = None, at_most: float = 60.0) -> None:
        self._otherwise = otherwise or _back_off
        self._at_most = at_most

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the pause in seconds."""
        error = _failure(retry_state)
        asked = error.retry_after if isinstance(error, ApiError) else None
        return self._otherwise(retry_state) if asked is None else min(asked, self._at_most)


class budget(stop_base):  # noqa: N801 -- named as tenacity names its own
    """Stop when a bucket of tokens, which all calls of the policy share, is empty.

    Each retry takes tokens. A call that succeeds after retries gives back what its last retry took. Combine it with other stops
    by `|`, in any order: a retry that another stop or the deadline forbids takes nothing.

    Args:
        tokens: The size of the bucket, 500 by default. It is full at first.
        transport: What a retry takes after a transport error or a 5xx, 14 by default.
        throttled: What a retry takes after a 429, 5 by default.
        success: What a call gives back that succeeds at once, 1 by default.
    """

    def __init__(self, tokens: float = 500, transport: float = 14, throttled: float = 5, success: float = 1) -> None:
        self.capacity: Final[float] = tokens
        self.tokens: float = tokens
        self._transport, self._throttled, self._success = transport, throttled, success

    def __call__(self, retry_state: RetryCallState) -> bool:
        """Pay for the retry. Return True, to stop, if the bucket holds too few tokens."""
        payments, number = _payments(retry_state), retry_state.attempt_number
        # A stop of several parts may ask each part more than once for the same attempt.
        if self in payments and payments[self].attempt == number:
            return False
        # A 429 costs less: the service works, and says itself how much it takes.
        cost = self._throttled if is_throttling(_failure(retry_state)) else self._transport
        if cost > self.tokens:
            return True
        self.tokens -= cost
        payments[self] = _Payment(number, cost)
        return False

    def give_back(self, retry_state: RetryCallState | None) -> None:
        """Note a success. `retry_state` is None for a call that succeeded at once."""
        paid = None if retry_state is None else _payments(retry_state).pop(self, None)
        self._add(self._success if paid is None else paid.cost)

    def take_back(self, retry_state: RetryCallState) -> None:
        """Undo the payment for a retry that was not made."""
        paid = _payments(retry_state).pop(self, None)
        if paid is not None and paid.attempt == retry_state.attempt_number:
            self._add(paid.cost)

    def _add(self, tokens: float) -> None:
        self.tokens = min(self.capacity, self.tokens + tokens)

    def __repr__(self) -> str:
        return f"<budget {self.tokens:g}/{self.capacity:g}>"


@attrs.frozen(eq=False)
class _Payment:
    """What a call has paid for the retry after one of its attempts."""

    attempt: int
    cost: float


def _payments(retry_state: RetryCallState) -> dict[budget, _Payment]:
    """Return the last payment of a call to each budget of its policy."""
    payments: dict[budget, _Payment] = vars(retry_state).setdefault("boardclient_payments", {})
    return payments


def default(attempts: int = 3, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncRetrying:
    """Make the policy that each session has by default, with a budget of its own.

    It repeats `when_safe` with the pauses of `wait_retry_after`, of at most 20 seconds.

    ```python
    async with AsyncSession.from_env(retry=default(attempts=10), timeout=300) as patient:
        await patient.members.me()
    ```

    Args:
        attempts: The most attempts of a call, 3 by default. The first one counts.
        sleep: An async function of seconds, by default `asyncio.sleep`.
    """
    return AsyncRetrying(
        retry=when_safe,
        stop=tenacity.stop_after_attempt(attempts) | budget(),
        wait=wait_retry_after(at_most=20),
        sleep=cast("Any", sleep),
        reraise=True,
    )


def _failure(retry_state: RetryCallState) -> BaseException | None:
    outcome = retry_state.outcome
    return outcome.exception() if outcome is not None and outcome.failed else None


def _parts(stop: object) -> Iterator[object]:
    """Yield the stops that a composed stop is made of."""
    for part in stop.stops if isinstance(stop, stop_any | stop_all) else ():
        yield from _parts(part)
    yield stop


def _sees_only_failures(retry: object) -> bool:
    """Return True if a predicate is known to refuse successes."""
    if isinstance(retry, retry_any | retry_all | _async_retry.retry_any | _async_retry.retry_all):
        return all(_sees_only_failures(part) for part in retry.retries)
    # By the method and not by the class: a subclass that overrides it may look at successes.
    known = (retry_if_exception.__call__, _async_retry.retry_if_exception.__call__, type(retry_never).__call__)
    return type(retry).__call__ in known


Attempted = Callable[[], Awaitable[T | BoardClientError]]
MayPause = Callable[[float], bool]


class Policy:
    """Run an application's `AsyncRetrying` for the calls of a session.

    Concurrent calls share the object, so each call that needs it works on a copy. A call that succeeds at once does not enter
    tenacity, unless the policy looks at first attempts or at successes (`sees_first_attempt`).
    """

    def __init__(self, retrying: AsyncRetrying) -> None:
        if not isinstance(retrying, AsyncRetrying):
            raise TypeError(f"retry must be a tenacity.AsyncRetrying or None, not {type(retrying).__name__}")
        try:
            # Tried once here, so that a subclass that can't be copied fails where it is given, and not in some call.
            retrying.copy()
        except Exception as error:
            why = f"retry must be a policy that tenacity can copy, {type(retrying).__name__} is not: {type(error).__name__}"
            raise TypeError(why) from None
        self._retrying = retrying
        self.budgets: Final = tuple({part: None for part in _parts(retrying.stop) if isinstance(part, budget)})  # each once
        self.is_enabled: Final[bool] = retrying.enabled
        self.sees_first_attempt: Final[bool] = retrying.before is not tenacity.before_nothing or not _sees_only_failures(
            retrying.retry
        )

    async def drive(
        self, name: str, attempt: Attempted[T], may_pause: MayPause, first: BoardClientError | None = None, seconds: float = 0.0
    ) -> T:
        """Repeat an attempt as tenacity would, and return the value of the call.

        Args:
            name: The name of the call in tenacity's logging callbacks.
            attempt: Makes an attempt, and returns its value or its error.
            may_pause: Called with each pause before it begins. If it returns False, the last outcome is that of the call. It may
                raise another error of the call.
            first: The error of the first attempt, if it was made already. Passing through tenacity takes 13 microseconds, so only
                calls whose first attempt failed do.
            seconds: The seconds since the call began.

        Raises:
            BoardClientError: the error of the last attempt.
        """
        retrying = self._retrying.copy()
        retrying.begin()
        state = RetryCallState(retrying, _named(name), (), {})
        # The first attempt was made before tenacity knew of the call, and `stop_after_delay` counts from its beginning.
        state.start_time -= seconds
        if first is not None:
            _record(state, first)
        try:
            return await self._loop(retrying, state, attempt, may_pause)
        except tenacity.RetryError as error:
            # A subclass is the application's own, which `retry_error_cls` names: it is what the caller wants to catch.
            if type(error) is not tenacity.RetryError:
                raise
        finally:
            for part in self.budgets:
                part.take_back(state)
        raise _last_error(state)

    async def _loop(self, retrying: AsyncRetrying, state: RetryCallState, attempt: Attempted[T], may_pause: MayPause) -> T:
        while True:
            step = await retrying.iter(retry_state=state)
            if isinstance(step, tenacity.DoAttempt):
                _record(state, await attempt())
            elif isinstance(step, tenacity.DoSleep):
                if math.isnan(step):  # an event loop would wait for ever, since nothing is before or after it
                    error = _last_error(state)
                    add_words(error, "it is not repeated: the retry policy's wait returned nan, which is no pause")
                    raise error
                if not may_pause(float(step)):
                    return cast("T", cast("Any", state.outcome).result())
                state.prepare_for_next_attempt()
                pause = cast("Any", retrying.sleep(step))
                if inspect.isawaitable(pause):  # a plain function may sleep as well, such as that of a test
                    await pause
            else:
                if _failure(state) is None:  # after a failure the value is that of a `retry_error_callback`
                    for part in self.budgets:
                        part.give_back(state)
                return cast("T", step)


def _named(name: str) -> Callable[[], None]:
    """Make a function, which is never called, for tenacity's callbacks to show its name."""

    def call() -> None: ...

    call.__qualname__, call.__module__ = name, "boardclient"
    return call


def _record(state: RetryCallState, outcome: object) -> None:
    if isinstance(outcome, BoardClientError):
        state.set_exception((type(outcome), outcome, None))
    else:
        state.set_result(outcome)


def _last_error(state: RetryCallState) -> BoardClientError:
    """Return the error behind a `RetryError`, or one that says that the policy refused a success."""
    error = _failure(state)
    if isinstance(error, BoardClientError):
        return error
    return BoardClientError("the retry policy gave up on a response that was a success", Effect.DONE)
