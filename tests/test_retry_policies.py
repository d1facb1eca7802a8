"""Any policy of tenacity's behaves as tenacity says, at once or cancelled amid anything."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import tenacity
from hypothesis import given, settings
from hypothesis import strategies as st
from retry_helpers import Naps, Script, call, driven, failure, outcomes_of, retrying
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_fixed, wait_none
from tenacity.asyncio import retry as async_retry

from boardclient.errors import ApiError, BoardClientError, Effect, NotFoundError, RateLimitError
from boardclient.retry import Policy, budget, wait_retry_after, when_safe, when_status

# --- any policy behaves as tenacity says


def is_low(value: object) -> bool:
    return isinstance(value, int) and value < 2


async def is_low_soon(value: object) -> bool:
    await asyncio.sleep(0)
    return is_low(value)


def own_predicate(state: RetryCallState) -> bool:
    return state.attempt_number < 3


RETRIES: dict[str, Any] = {
    "when_safe": when_safe,
    "when_status": when_status(404, 500),
    "any": when_safe | when_status(404),
    "all": when_safe & when_status(429),
    "type": tenacity.retry_if_exception_type(BoardClientError),
    "not type": tenacity.retry_if_not_exception_type(ApiError),
    "unless type": tenacity.retry_unless_exception_type(NotFoundError),
    "message": tenacity.retry_if_exception_message(match="^4"),
    "not message": tenacity.retry_if_not_exception_message(match="^4"),
    "result": tenacity.retry_if_result(is_low),
    "not result": tenacity.retry_if_not_result(is_low),
    "result or safe": when_safe | tenacity.retry_if_result(is_low),
    "async result": async_retry.retry_if_result(is_low_soon),
    "async any": async_retry.retry_any(async_retry.retry_if_result(is_low_soon), when_safe),
    "async exception": async_retry.retry_if_exception(is_low_soon),
    "always": tenacity.retry_always,
    "never": tenacity.retry_never,
    "function": own_predicate,
}
STOPS: dict[str, Any] = {
    "1": stop_after_attempt(1),
    "2": stop_after_attempt(2),
    "4 of any": stop_after_attempt(4) | stop_after_attempt(9),
    "all": stop_after_attempt(2) & stop_after_attempt(3),
    "function": lambda state: state.idle_for > 3 or state.attempt_number > 4,
}
WAITS: dict[str, Any] = {
    "none": wait_none(),
    "fixed": wait_fixed(2),
    "exponential": tenacity.wait_exponential(multiplier=0.5),
    "chain": tenacity.wait_chain(wait_fixed(1), wait_fixed(3)),
    "function": lambda state: state.attempt_number * 0.5,
    "sum": wait_fixed(1) + wait_fixed(0.5),
    "asked": wait_retry_after(otherwise=wait_fixed(1)),
}
KINDS = ["connect", "transport", "429", "500", "404", "400", "decode"]


class Hooks:
    """Callbacks that write down what they are shown, plain or as coroutines."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def make(self, name: str, kind: str) -> Any:
        def plain(state: RetryCallState) -> None:
            outcome = state.outcome
            shown = (
                None if outcome is None else (outcome.failed, str(outcome.exception() if outcome.failed else outcome.result()))
            )
            upcoming = None if state.next_action is None else state.next_action.sleep
            self.calls.append((name, state.attempt_number, shown, upcoming, state.idle_for, state.upcoming_sleep))

        async def awaited(state: RetryCallState) -> None:
            await asyncio.sleep(0)
            plain(state)

        return plain if kind == "plain" else awaited

    def answer(self, kind: str) -> Any:
        note = self.make("callback", "plain")

        def plain(state: RetryCallState) -> str:
            note(state)
            return "instead"

        async def awaited(state: RetryCallState) -> str:
            await asyncio.sleep(0)
            return plain(state)

        return plain if kind == "plain" else awaited


HOOK = st.sampled_from(["", "", "plain", "async"])
SPECS = st.fixed_dictionaries(
    {
        "retry": st.sampled_from(list(RETRIES)),
        "stop": st.sampled_from(list(STOPS)),
        "wait": st.sampled_from(list(WAITS)),
        "before": HOOK,
        "after": HOOK,
        "before_sleep": HOOK,
        "retry_error_callback": HOOK,
        "reraise": st.booleans(),
        "enabled": st.sampled_from([True, True, True, False]),
    }
)
SCRIPTS = st.lists(st.sampled_from(KINDS) | st.integers(0, 3), min_size=1, max_size=6)


def policy_of(spec: dict[str, Any], hooks: Hooks, naps: Naps) -> AsyncRetrying:
    options: dict[str, Any] = {
        name: hooks.make(name, spec[name]) for name in ("before", "after", "before_sleep") if spec[name]
    }  # fmt: skip
    if spec["retry_error_callback"]:
        options["retry_error_callback"] = hooks.answer(spec["retry_error_callback"])
    return AsyncRetrying(
        retry=RETRIES[spec["retry"]], stop=STOPS[spec["stop"]], wait=WAITS[spec["wait"]], sleep=naps,
        reraise=spec["reraise"], enabled=spec["enabled"], **options,
    )  # fmt: skip


async def run_plainly(retrying: AsyncRetrying, script: Script) -> Any:
    """Do what tenacity does with a function that raises, and give the outcome as a value."""
    try:
        return await retrying(script.raising)
    except tenacity.RetryError as error:
        last = error.last_attempt
        return last.exception() if last.failed else BoardClientError(effect=Effect.DONE)
    except BoardClientError as error:
        return error


@settings(deadline=None)
@given(SPECS, SCRIPTS)
def test_any_policy_does_what_tenacity_does(spec: dict[str, Any], items: list[Any]) -> None:
    """Attempts, callbacks, what they are shown, sleeps and the outcome are tenacity's own, whatever the policy."""

    async def main() -> None:
        hooks, plain_hooks, naps, plain_naps = Hooks(), Hooks(), Naps(), Naps()
        script, plain = Script(outcomes_of(items)), Script(outcomes_of(items))
        outcome = await call(policy_of(spec, hooks, naps), [], script)
        expected = await run_plainly(policy_of(spec, plain_hooks, plain_naps), plain)
        assert script.made == plain.made
        assert hooks.calls == plain_hooks.calls
        assert naps.seconds == plain_naps.seconds == script.pauses
        assert type(outcome) is type(expected)
        if isinstance(expected, BoardClientError):
            assert outcome.effect is expected.effect
            assert type(expected) is BoardClientError or outcome is script.outcomes[min(script.made, len(items)) - 1]
            assert (outcome.__traceback__, outcome.__context__, outcome.__cause__) == (None, None, None)
        else:
            assert outcome == expected

    asyncio.run(main())


class MyRetryError(tenacity.RetryError):
    pass


async def test_a_custom_retry_error_is_raised() -> None:
    """The application's own retry_error_cls comes out as tenacity raises it, caused by the last error."""
    error = failure("connect")
    with pytest.raises(MyRetryError) as caught:
        await call(retrying(reraise=False, retry_error_cls=MyRetryError), [error])
    assert caught.value.__cause__ is error
    assert await call(retrying(reraise=True, retry_error_cls=MyRetryError), [error]) is error


async def test_elapsed_time_counts_the_first_attempt() -> None:
    """stop_after_delay sees the time since the call began, the attempt made before tenacity was entered included."""
    for seconds, made in ((100, 0), (0, 1)):
        script = Script(["value"])
        policy = Policy(retrying(stop=tenacity.stop_after_delay(50)))
        outcome = await driven(policy, script.attempt, script.may_pause, failure("connect"), seconds)
        assert script.made == made
        assert (outcome == "value") is bool(made)


async def test_callbacks_see_the_name_of_the_operation(caplog: pytest.LogCaptureFixture) -> None:
    """The logging callbacks of tenacity name the operation, and no function of this package."""
    log = logging.getLogger("application")
    policy = retrying(
        before=tenacity.before_log(log, logging.INFO),
        after=tenacity.after_log(log, logging.INFO),
        before_sleep=tenacity.before_sleep_log(log, logging.INFO),
    )
    with caplog.at_level(logging.INFO, "application"):
        assert await call(policy, [failure("connect"), "value"]) == "value"
    assert len(caplog.messages) == 4
    assert all("boardclient.cards.get" in message for message in caplog.messages)


async def test_a_sleep_may_be_a_plain_function() -> None:
    """A sleep that returns nothing to await is allowed."""
    naps: list[float] = []
    assert await call(retrying(sleep=naps.append, wait=wait_fixed(7)), [failure("connect"), 1]) == 1
    assert naps == [7.0]


async def test_a_pause_may_be_refused() -> None:
    """The error raised instead of a pause is the outcome, nothing sleeps, and a budget is not charged for it."""
    naps, error, tokens = Naps(), failure("connect"), budget()

    def refuse(pause: float) -> None:
        raise error

    policy = Policy(retrying(sleep=naps, wait=wait_fixed(9), stop=stop_after_attempt(3) | tokens))
    script = Script([1])
    outcome = await driven(policy, script.attempt, refuse, error)
    assert outcome is error
    assert (script.made, naps.seconds, tokens.tokens) == (0, [], 500)
    assert (outcome.__traceback__, outcome.__context__) == (None, None)


@pytest.mark.parametrize("thing", [None, 3, tenacity.Retrying(), tenacity.retry, lambda: None])
def test_only_an_asynchronous_policy_is_one(thing: Any) -> None:
    """Anything but an AsyncRetrying is a TypeError that names its type."""
    with pytest.raises(TypeError, match=type(thing).__name__):
        Policy(thing)


# --- concurrency and cancellation


async def test_concurrent_calls_of_one_policy_do_not_mix() -> None:
    """Of many calls at once on one policy, each makes its own number of attempts and gets its own error or value."""
    seen: list[int] = []

    async def note(state: RetryCallState) -> None:
        for _ in range(state.attempt_number % 3):
            await asyncio.sleep(0)
        seen.append(state.attempt_number)

    policy = Policy(retrying(stop=stop_after_attempt(5), wait=wait_fixed(1), after=note, before_sleep=note))
    scripts = [Script([*(failure("connect") for _ in range(index % 7)), index]) for index in range(200)]
    outcomes = await asyncio.gather(*(call(policy, [], script) for script in scripts))
    for index, (script, outcome) in enumerate(zip(scripts, outcomes, strict=True)):
        failures = index % 7
        assert script.made == min(failures + 1, 5)
        assert outcome is script.outcomes[4] if failures >= 5 else outcome == index
    assert len(seen) == sum(min(index % 7, 5) + min(index % 7, 4) for index in range(200))


def part(name: str, started: asyncio.Event) -> Callable[..., Awaitable[Any]]:
    async def hang(*_: object) -> Any:
        started.set()
        await asyncio.Event().wait()

    return hang


@pytest.mark.parametrize(
    "place", ["attempt", "sleep", "before", "after", "before_sleep", "retry", "wait", "stop", "retry_error_callback"]
)
@pytest.mark.parametrize("predicate", list(RETRIES))
async def test_a_cancellation_is_never_swallowed(place: str, predicate: str) -> None:
    """A call that is cancelled while any part of any policy awaits ends as cancelled, and makes no further attempt."""
    started = asyncio.Event()
    hang = part(place, started)
    options: dict[str, Any] = {"retry": RETRIES[predicate], "stop": stop_after_attempt(3), "wait": wait_fixed(1)}
    if place == "retry_error_callback":
        options["stop"] = stop_after_attempt(1)
    if place != "attempt":
        options[place] = hang
    policy = Policy(retrying(**options))
    error = failure("429")
    error.status = 404 if predicate == "when_status" else error.status  # type: ignore[attr-defined]  # -- it is an ApiError

    async def attempt() -> Any:
        return await hang() if place == "attempt" else error

    task = asyncio.create_task(driven(policy, attempt, lambda pause: True))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not started.is_set():  # this predicate gives up before that part is asked
        assert isinstance(await task, RateLimitError)
        return
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancelled_attempt_is_no_failure_to_repeat() -> None:
    """A CancelledError raised by the attempt itself passes through even where the policy repeats everything."""
    made = []

    async def attempt() -> Any:
        made.append(1)
        raise asyncio.CancelledError

    for predicate in RETRIES.values():
        made.clear()
        with pytest.raises(asyncio.CancelledError):
            await Policy(retrying(retry=predicate)).drive("x", attempt, lambda pause: True)
        assert made == [1]


async def test_a_wait_that_is_no_number_ends_the_call_with_words() -> None:
    """A pause of nan would never end. The call raises its last error, which says so; a refused success does as well."""
    for outcomes, effect in (([failure("connect"), 1], Effect.NOT_SENT), ([1, 2], Effect.DONE)):
        policy = AsyncRetrying(retry=tenacity.retry_always, wait=lambda state: math.nan, stop=stop_after_attempt(3), reraise=True)
        error = await call(policy, outcomes)
        assert isinstance(error, BoardClientError)
        assert (error.effect, "the retry policy's wait returned nan, which is no pause" in str(error)) == (effect, True)
