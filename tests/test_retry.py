"""Retry predicates, waits, budgets and the default policy (contract section 5). Nothing sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from retry_helpers import Naps, Script, call, failure, retrying, state_of
from tenacity import AsyncRetrying, stop_after_attempt, wait_fixed

from boardclient.errors import ApiError, BoardClientError, RateLimitError, ServerError, TransportError
from boardclient.retry import Policy, budget, default, wait_retry_after, when_safe, when_status

# --- what is repeated

SAFE = [
    ("connect", True, True), ("unsent deadline", True, True), ("429", True, True),
    ("transport", True, False), ("deadline", True, False), ("500", True, False), ("503", True, False),
    *((kind, False, False) for kind in ("408", "302", "400", "401", "404", "decode", "credential", "closed")),
]  # fmt: skip


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
def test_a_pause_is_below_a_doubling_bound(outcome: Any, number: int, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is a random part of a bound that doubles, starts higher after a 429 and ends at 20 s."""
    state = state_of(failure(outcome) if isinstance(outcome, str) else outcome, number)
    assert 0 <= wait_retry_after()(state) <= bound
    monkeypatch.setattr("random.uniform", lambda low, high: (low, high))
    assert wait_retry_after()(state) == (0, pytest.approx(bound))


@pytest.mark.parametrize(
    ("asked", "at_most", "pause"),
    [(None, 60, 7.0), (0.0, 60, 0.0), (2.5, 60, 2.5), (60.0, 60, 60.0), (61.0, 60, 60.0), (1e300, 5, 5.0)],
)
@pytest.mark.parametrize("kind", [RateLimitError, ServerError])
def test_retry_after_is_waited_up_to_a_limit(kind: type[ApiError], asked: float | None, at_most: float, pause: float) -> None:
    """The pause is what the response asks for, at most `at_most`, and what `otherwise` says where it asks for nothing."""
    wait = wait_retry_after(otherwise=wait_fixed(7), at_most=at_most)
    assert wait(state_of(kind("x", 429, retry_after=asked))) == pause


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


async def test_a_budget_works_in_plain_tenacity() -> None:
    """A budget is a stop like any other: in a policy that tenacity itself drives it charges for each retry."""
    tokens, script = budget(30), Script([failure("connect")])
    with pytest.raises(TransportError):
        await retrying(stop=tokens)(script.raising)
    assert (script.made, tokens.tokens) == (3, 2)


# --- the default


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(("kind", "repeatable_one", "other"), SAFE)
async def test_the_default_makes_three_attempts_of_what_is_safe(
    kind: str, repeatable_one: bool, other: bool, repeatable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default what can do no harm is tried three times with jittered pauses, and anything else once."""
    naps, script = Naps(), Script([failure(kind, repeatable=repeatable)])
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    error = await call(default(sleep=naps), [], script)
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


def test_each_default_has_a_budget_of_its_own() -> None:
    """Two defaults share nothing, and each has one budget of 500 tokens; successes at once do not enter tenacity."""
    policies = [Policy(default()) for _ in range(2)]
    budgets = [policy.budgets for policy in policies]
    assert [[tokens.tokens for tokens in each] for each in budgets] == [[500], [500]]
    assert budgets[0][0] is not budgets[1][0]
    assert not any(policy.sees_first_attempt for policy in policies)
    assert isinstance(default(), AsyncRetrying)
    assert default().sleep is asyncio.sleep
