"""Retry policies (contract section 5): tenacity's behaviour under any policy, and what is safe to repeat. Nothing sleeps."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import tenacity
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_fixed, wait_none
from tenacity.asyncio import retry as async_retry

from boardclient import retry as retries
from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    DeadlineError,
    DecodeError,
    Effect,
    NotFoundError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    TransportError,
)
from boardclient.retry import FirstOutcome, Policy, budget, default, wait_full_jitter, wait_retry_after, when_safe, when_status


class Naps:
    """A sleep that only takes notes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(float(seconds))
        await asyncio.sleep(0)


@attrs.define
class Script:
    """A call whose attempts give what the script says, the last again and again; errors are given as values."""

    outcomes: list[Any]
    made: int = 0
    pauses: list[float] = attrs.Factory(list)

    async def attempt(self) -> Any:
        outcome = self.outcomes[min(self.made, len(self.outcomes) - 1)]
        self.made += 1
        await asyncio.sleep(0)
        return outcome

    async def raising(self) -> Any:
        """Attempt as plain tenacity wants it."""
        outcome = await self.attempt()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def call(retrying: AsyncRetrying | Policy, outcomes: list[Any], script: Script | None = None) -> Any:
    """Make a call the way the session does: tenacity is entered after a failure, or at once where the policy has to see it."""
    policy = retrying if isinstance(retrying, Policy) else Policy(retrying)
    script = script or Script(outcomes)
    if not policy.is_enabled:
        return await script.attempt()
    first = None
    if not policy.needs_first_attempt:
        started = time.monotonic()
        outcome = await script.attempt()
        if not isinstance(outcome, BoardClientError):
            policy.note_success()
            return outcome
        first = FirstOutcome(outcome, time.monotonic() - started)
    return await policy.drive("cards.get", script.attempt, script.pauses.append, first)


def failure(kind: str = "transport", *, repeatable: bool = True) -> BoardClientError:
    """Make a fresh error of a kind."""
    error = {
        "connect": lambda: TransportError("no connection", "connect", effect=Effect.NOT_SENT),
        "transport": lambda: TransportError("broken", "receive"),
        "deadline": lambda: DeadlineError("late"),
        "unsent deadline": lambda: DeadlineError("late", effect=Effect.NOT_SENT),
        "429": lambda: RateLimitError("429", 429),
        "500": lambda: ServerError("500", 500, effect=Effect.UNKNOWN),
        "503": lambda: ServerError("503", 503, effect=Effect.UNKNOWN),
        "408": lambda: ApiError("408", 408, effect=Effect.UNKNOWN),
        "302": lambda: ApiError("302", 302),
        "400": lambda: BadRequestError("400", 400),
        "401": lambda: AuthenticationError("401", 401),
        "404": lambda: NotFoundError("404", 404),
        "decode": lambda: DecodeError("odd"),
        "credential": lambda: CredentialError("none"),
        "closed": lambda: SessionClosedError("closed"),
    }[kind]()
    error.repeatable = repeatable
    return error


def state_of(outcome: object, number: int = 1) -> RetryCallState:
    """Make the state that tenacity's parts are asked with."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = number
    if isinstance(outcome, BaseException):
        state.set_exception((type(outcome), outcome, None))
    elif outcome is not None:
        state.set_result(outcome)
    return state


def retrying(**options: Any) -> AsyncRetrying:
    return AsyncRetrying(**{"sleep": Naps(), "retry": when_safe, "stop": stop_after_attempt(3), "reraise": True, **options})


# --- what is repeated

SAFE = [
    ("connect", True, True), ("unsent deadline", True, True), ("429", True, True),
    ("transport", True, False), ("deadline", True, False), ("500", True, False), ("503", True, False),
    *((kind, False, False) for kind in ("408", "302", "400", "401", "404", "decode", "credential", "closed")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "repeatable_one", "other"), SAFE)
async def test_when_safe_repeats_only_what_can_do_no_harm(kind: str, repeatable_one: bool, other: bool) -> None:
    """NOT_SENT and 429 are repeated for every operation, other transport errors and 5xx for a repeatable one, the rest never."""
    for repeatable, expected in ((True, repeatable_one), (False, other)):
        error = failure(kind, repeatable=repeatable)
        script = Script([error, "value"])
        assert await call(retrying(), [], script) is (error if not expected else "value")
        assert script.made == 1 + expected
        assert script.pauses == [0.0] * expected
        assert when_safe(state_of(error)) is expected


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_when_safe_leaves_foreign_errors_alone(error: BaseException) -> None:
    """What is not an error of this package is never repeated, a cancellation least of all."""
    assert when_safe(state_of(error)) is False
    assert when_status(409)(state_of(error)) is False


@pytest.mark.parametrize(
    ("statuses", "kind", "expected"),
    [((404,), "404", True), ((404, 408), "408", True), ((404,), "400", False), ((), "404", False), ((429,), "connect", False)],
)
async def test_when_status_repeats_its_statuses(statuses: tuple[int, ...], kind: str, expected: bool) -> None:
    """The named statuses are repeated whatever the operation, and nothing else."""
    script = Script([failure(kind, repeatable=False), 1])
    await call(retrying(retry=when_status(*statuses)), [], script)
    assert script.made == 1 + expected


async def test_predicates_compose() -> None:
    """`|` and `&` of tenacity join our predicates with each other and with tenacity's own."""
    script = Script([failure("404"), failure("connect"), failure("400")])
    outcome = await call(retrying(retry=when_safe | when_status(404), stop=stop_after_attempt(9)), [], script)
    assert (script.made, outcome.status) == (3, 400)
    both = when_safe & tenacity.retry_if_exception_type(RateLimitError)
    script = Script([failure("429"), failure("connect")])
    assert isinstance(await call(retrying(retry=both), [], script), TransportError)
    assert script.made == 2


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
SEES_FIRST = {"unless type", "not message", "result", "not result", "result or safe", "async result", "async any", "always",
              "function"}  # fmt: skip
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
    "sum": wait_fixed(1) + wait_full_jitter(random=lambda: 0.5),
    "asked": wait_retry_after(otherwise=wait_fixed(1)),
}
KINDS = ["connect", "transport", "429", "500", "404", "400", "decode"]


def test_policies_that_see_the_first_attempt() -> None:
    """A policy is entered at once where it has a `before`, or a predicate that may refuse a success."""
    for name, predicate in RETRIES.items():
        assert Policy(retrying(retry=predicate)).needs_first_attempt is (name in SEES_FIRST), name
    assert Policy(retrying(before=lambda state: None)).needs_first_attempt


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


def outcomes_of(script: list[Any]) -> list[Any]:
    return [failure(item) if isinstance(item, str) else item for item in script]


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


@pytest.mark.parametrize("reraise", [True, False])
async def test_a_retry_error_never_escapes(reraise: bool) -> None:
    """Whatever `reraise` says, the last error itself comes out, without traceback, context or cause."""
    errors = [failure("connect") for _ in range(3)]
    outcome = await call(retrying(reraise=reraise), errors)
    assert outcome is errors[2]
    assert (outcome.__traceback__, outcome.__context__, outcome.__cause__) == (None, None, None)


@pytest.mark.parametrize("reraise", [True, False])
async def test_a_refused_success_says_so(reraise: bool) -> None:
    """Where a policy gives up on a success, the error is ours and its effect is DONE."""
    outcome = await call(retrying(retry=tenacity.retry_if_result(is_low), reraise=reraise), [0])
    assert type(outcome) is BoardClientError
    assert outcome.effect is Effect.DONE
    assert (outcome.__traceback__, outcome.__context__, outcome.__cause__) == (None, None, None)


class MyRetryError(tenacity.RetryError):
    pass


async def test_a_custom_retry_error_is_raised() -> None:
    """The application's own retry_error_cls comes out as tenacity raises it, caused by the last error."""
    error = failure("connect")
    with pytest.raises(MyRetryError) as caught:
        await call(retrying(reraise=False, retry_error_cls=MyRetryError), [error])
    assert caught.value.__cause__ is error
    assert await call(retrying(reraise=True, retry_error_cls=MyRetryError), [error]) is error


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("reraise", [True, False])
async def test_the_cause_of_an_error_is_kept(attempts: int, reraise: bool) -> None:
    """What the application raised stays the cause of a CredentialError, whether a policy repeats it or not."""
    error, cause = failure("credential"), KeyError("vault")
    error.__cause__ = cause
    every = tenacity.retry_if_exception_type(CredentialError)
    assert await call(retrying(retry=every, stop=stop_after_attempt(attempts), reraise=reraise), [error]) is error
    assert error.__cause__ is cause
    assert await call(default(sleep=Naps()), [error]) is error
    assert error.__cause__ is cause


async def test_elapsed_time_counts_the_first_attempt() -> None:
    """stop_after_delay sees the time since the call began, the attempt made before tenacity was entered included."""
    for seconds, made in ((100, 0), (0, 1)):
        script = Script(["value"])
        policy = Policy(retrying(stop=tenacity.stop_after_delay(50)))
        first = FirstOutcome(failure("connect"), seconds)
        outcome = await policy.drive("x", script.attempt, script.pauses.append, first)
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


async def test_a_disabled_policy_makes_one_attempt() -> None:
    """`enabled=False` is one attempt, as in tenacity."""
    script = Script([failure("connect"), 1])
    assert not Policy(retrying(enabled=False)).is_enabled
    assert isinstance(await call(retrying(enabled=False), [], script), TransportError)
    assert script.made == 1


async def test_a_pause_may_be_refused() -> None:
    """The error raised instead of a pause is the outcome, nothing sleeps, and a budget is not charged for it."""
    naps, error, tokens = Naps(), failure("connect"), budget()

    def refuse(pause: float) -> None:
        raise error

    policy = Policy(retrying(sleep=naps, wait=wait_fixed(9), stop=stop_after_attempt(3) | tokens))
    script = Script([1])
    outcome = await policy.drive("x", script.attempt, refuse, FirstOutcome(error, 0.0))
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

    task = asyncio.create_task(policy.drive("x", attempt, lambda pause: None, None))  # type: ignore[arg-type]  # -- Any
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
            await Policy(retrying(retry=predicate)).drive("x", attempt, lambda pause: None, None)
        assert made == [1]


# --- waits


@pytest.mark.parametrize(
    ("outcome", "number", "bound"),
    [
        *(
            ("transport", number, bound)
            for number, bound in ((1, 0.05), (2, 0.1), (3, 0.2), (9, 12.8), (10, 20.0), (10**6, 20.0))
        ),
        *(("429", number, bound) for number, bound in ((1, 1.0), (2, 2.0), (5, 16.0), (6, 20.0), (2000, 20.0))),
        ("500", 2, 0.1),
        (3, 1, 0.05),
        (None, 1, 0.05),
    ],
)
def test_full_jitter_waits_below_a_doubling_bound(outcome: Any, number: int, bound: float) -> None:
    """The pause is a random part of a bound that doubles, starts higher after a 429 and ends at 20 s."""
    state = state_of(failure(outcome) if isinstance(outcome, str) else outcome, number)
    for part_of in (0.0, 0.25, 1.0):
        assert wait_full_jitter(random=lambda part_of=part_of: part_of)(state) == pytest.approx(bound * part_of)
    assert wait_full_jitter(base=3, throttled=3, at_most=4, random=lambda: 1.0)(state_of(failure("429"), 1)) == 3
    assert 0 <= wait_full_jitter()(state) <= bound


@pytest.mark.parametrize(
    ("asked", "at_most", "pause"),
    [(None, 60, 7.0), (0.0, 60, 0.0), (2.5, 60, 2.5), (60.0, 60, 60.0), (61.0, 60, 60.0), (1e300, 5, 5.0)],
)
@pytest.mark.parametrize("kind", [RateLimitError, ServerError])
def test_retry_after_is_waited_up_to_a_limit(kind: type[ApiError], asked: float | None, at_most: float, pause: float) -> None:
    """The pause is what the response asks for, at most `at_most`, and what `otherwise` says where it asks for nothing."""
    wait = wait_retry_after(otherwise=wait_fixed(7), at_most=at_most)
    assert wait(state_of(kind("x", 429, retry_after=asked))) == pause


def test_retry_after_has_a_default_otherwise() -> None:
    """Without `otherwise` it is the full jitter, also for errors that no answer made and for successes."""
    for outcome in (failure("transport"), 3, failure("500")):
        assert 0 <= wait_retry_after()(state_of(outcome)) <= 0.05


@pytest.mark.parametrize(
    ("pause", "remaining", "possible"),
    [(5, None, True), (math.inf, None, True), (5, 5.1, True), (5, 5, False), (5, 4, False), (0, 0, False), (math.nan, 9, False),
     (math.inf, math.inf, False)],
)  # fmt: skip
def test_a_pause_must_end_before_the_deadline(pause: float, remaining: float | None, possible: bool) -> None:
    """A pause that would pass the deadline is not possible, and without one any is."""
    assert retries.is_pause_possible(pause, remaining) is possible


# --- budget

ORDERS: dict[str, Callable[[budget, Any], Any]] = {
    "budget last": lambda tokens, stop: stop | tokens,
    "budget first": lambda tokens, stop: tokens | stop,
    "nested": lambda tokens, stop: (tokens | stop) | tokens,
    "with all": lambda tokens, stop: (tokens & stop) | tokens | stop,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kind", "cost"), [("connect", 14), ("500", 14), ("transport", 14), ("429", 5)])
async def test_a_budget_pays_once_for_each_retry(order: str, kind: str, cost: int) -> None:
    """A retry costs 14 tokens, 5 after a 429, once in whatever order stops are joined, and one not made costs nothing."""
    tokens = budget()
    policy = Policy(retrying(stop=ORDERS[order](tokens, stop_after_attempt(3))))
    script = Script([failure(kind)])
    assert isinstance(await call(policy, [], script), BoardClientError)
    assert (script.made, tokens.tokens) == (3, 500 - 2 * cost)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_success_gives_back(order: str) -> None:
    """A success after retries returns the cost of the last one, a success at once one token, up to the capacity."""
    tokens = budget(100)
    policy = Policy(retrying(stop=ORDERS[order](tokens, stop_after_attempt(5))))
    assert await call(policy, [1]) == 1
    assert tokens.tokens == 100
    assert await call(policy, [failure("429"), failure("connect"), failure("429"), 1]) == 1
    assert tokens.tokens == 100 - 5 - 14
    assert await call(policy, [failure("connect"), failure("404")]) is not None
    assert tokens.tokens == 100 - 5 - 14 - 14
    assert await call(policy, [1]) == 1
    assert tokens.tokens == 100 - 5 - 14 - 14 + 1
    for _ in range(50):
        await call(policy, [1])
    assert tokens.tokens == 100


async def test_a_success_that_the_policy_saw_first_gives_one_back() -> None:
    """Where tenacity is entered at once, a success at once earns the same single token."""
    tokens = budget(50)
    policy = Policy(retrying(stop=stop_after_attempt(2) | tokens, before=lambda state: None))
    await call(policy, [failure("connect")])
    assert tokens.tokens == 36
    await call(policy, [1])
    assert tokens.tokens == 37


async def test_a_callbacks_value_is_no_success() -> None:
    """A value that retry_error_callback puts in place of a failure earns nothing."""
    tokens = budget()
    policy = Policy(retrying(stop=stop_after_attempt(3) | tokens, retry_error_callback=lambda state: "instead"))
    assert await call(policy, [failure("connect")]) == "instead"
    assert tokens.tokens == 500 - 2 * 14


async def test_an_empty_budget_stops() -> None:
    """While the bucket does not hold the cost, errors come out at once, of all calls, until successes refill it."""
    tokens = budget(30)
    policy = Policy(retrying(stop=stop_after_attempt(99) | tokens))
    script = Script([failure("connect")])
    await call(policy, [], script)
    assert (script.made, tokens.tokens) == (3, 2)
    for kind, made in (("connect", 1), ("429", 1)):
        script = Script([failure(kind)])
        await call(policy, [], script)
        assert script.made == made
    for _ in range(3):
        await call(policy, [1])
    script = Script([failure("429")])
    await call(policy, [], script)
    assert (script.made, tokens.tokens) == (2, 0)
    assert repr(tokens) == "<budget 0/30>"


async def test_budgets_of_one_policy_are_separate() -> None:
    """Two budgets in a policy each charge and return their own prices."""
    cheap, dear = budget(100, transport=1), budget(100, transport=40)
    policy = Policy(retrying(stop=cheap | dear))
    assert await call(policy, [failure("connect"), failure("connect"), 1]) == 1
    assert (cheap.tokens, dear.tokens) == (99, 60)
    await call(policy, [failure("connect")])
    assert (cheap.tokens, dear.tokens) == (98, 20)


async def test_a_budget_works_in_plain_tenacity() -> None:
    """A budget is a stop like any other: in a policy that tenacity itself drives it charges for each retry."""
    tokens, script = budget(30), Script([failure("connect")])
    with pytest.raises(TransportError):
        await retrying(stop=tokens)(script.raising)
    assert (script.made, tokens.tokens) == (3, 2)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["connect", "429", "500", "404"]) | st.just(0), min_size=1, max_size=6), max_size=30))
def test_a_budget_stays_within_its_bounds(calls: list[list[Any]]) -> None:
    """Whatever calls there are, at once on one policy, the bucket is never below zero nor above its capacity."""

    async def main() -> None:
        tokens = budget(60)
        policy = Policy(retrying(stop=tokens | stop_after_attempt(4)))
        await asyncio.gather(*(call(policy, outcomes_of(items)) for items in calls))
        assert 0 <= tokens.tokens <= 60

    asyncio.run(main())


# --- the default


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(("kind", "repeatable_one", "other"), SAFE)
async def test_the_default_makes_three_attempts_of_what_is_safe(
    kind: str, repeatable_one: bool, other: bool, repeatable: bool
) -> None:
    """By default what can do no harm is tried three times with jittered pauses, and anything else once."""
    naps, script = Naps(), Script([failure(kind, repeatable=repeatable)])
    error = await call(default(sleep=naps, random=lambda: 1.0), [], script)
    assert error is script.outcomes[0]
    if repeatable_one if repeatable else other:
        assert script.made == 3
        assert naps.seconds == ([1.0, 2.0] if kind == "429" else [0.05, 0.1])
    else:
        assert (script.made, naps.seconds) == (1, [])


async def test_the_default_heeds_retry_after_up_to_twenty_seconds() -> None:
    """A Retry-After sets the pause of the default, at most 20 s."""
    naps = Naps()
    slow, slower = RateLimitError("a", 429, retry_after=3.0), RateLimitError("b", 429, retry_after=99.0)
    assert await call(default(sleep=naps), [slow, slower, "value"]) == "value"
    assert naps.seconds == [3.0, 20.0]


async def test_the_default_can_make_more_attempts() -> None:
    """The number of attempts is the caller's."""
    script = Script([failure("connect")])
    await call(default(7, sleep=Naps()), [], script)
    assert script.made == 7


def test_each_default_has_a_budget_of_its_own() -> None:
    """Two defaults share nothing, and each has one budget of 500 tokens; successes at once do not enter tenacity."""
    policies = [Policy(default()) for _ in range(2)]
    budgets = [policy._budgets for policy in policies]
    assert [[tokens.tokens for tokens in each] for each in budgets] == [[500], [500]]
    assert budgets[0][0] is not budgets[1][0]
    assert not any(policy.needs_first_attempt for policy in policies)
    assert isinstance(default(), AsyncRetrying)
    assert default().sleep is asyncio.sleep
