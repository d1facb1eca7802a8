"""Await coroutines that applications supply.

They may raise anything, cancel themselves, hang, or return anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import attrs


@attrs.define(eq=False)
class Outcome:
    """What application code returned or raised in time; otherwise `is_late` is True.

    It is not the result of the task, since asyncio prints results of tasks in debug mode, and this one may be a token.
    """

    value: Any = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)
    is_late: bool = False


def begin(awaitable: Awaitable[object]) -> tuple[asyncio.Task[None], Outcome]:
    """Await in a task that never fails and returns None. Return it, and the outcome that it fills in."""
    outcome = Outcome()
    return asyncio.create_task(_fill(awaitable, outcome)), outcome


async def _fill(awaitable: Awaitable[object], outcome: Outcome) -> None:
    try:
        outcome.value = await awaitable
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a CancelledError that the application raised itself
        outcome.error = error


async def outcome_of(awaitable: Awaitable[object], seconds: float, grace_seconds: float = 0.0) -> Outcome:
    """Await at most so many seconds, and return the outcome.

    A task that takes longer is cancelled and not waited for. If the caller is cancelled, the task has `grace_seconds` to end.
    """
    task, outcome = begin(awaitable)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_seconds)
        raise
    finally:
        task.cancel()
    return outcome if task.done() else Outcome(is_late=True)
