"""What the tests of retries share: scripted calls, and a sleep that only takes notes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import attrs
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt

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
from boardclient.retry import Policy, when_safe


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

    def may_pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return True

    async def raising(self) -> Any:
        """Attempt as plain tenacity wants it."""
        outcome = await self.attempt()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def call(retrying: AsyncRetrying | Policy, outcomes: list[Any], script: Script | None = None) -> Any:
    """Make a call as the session does, and return its value or its error.

    tenacity is entered after a failure, or at once where the policy has to see it.
    """
    policy = retrying if isinstance(retrying, Policy) else Policy(retrying)
    script = script or Script(outcomes)
    if not policy.is_enabled:
        return await script.attempt()
    first, started = None, time.monotonic()
    if not policy.sees_first_attempt:
        outcome = await script.attempt()
        if not isinstance(outcome, BoardClientError):
            for budget in policy.budgets:
                budget.give_back(None)
            return outcome
        first = outcome
    return await driven(policy, script.attempt, script.may_pause, first, time.monotonic() - started)


async def driven(policy: Policy, *arguments: Any) -> Any:
    """Return the value or the error of a call that tenacity drives."""
    try:
        return await policy.drive("cards.get", *arguments)
    except BoardClientError as error:
        return error.with_traceback(None)


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


def outcomes_of(script: list[Any]) -> list[Any]:
    return [failure(item) if isinstance(item, str) else item for item in script]
