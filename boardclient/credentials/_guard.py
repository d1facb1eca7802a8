"""Await what applications supply. It may raise anything, cancel itself, hang or return anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import attrs


@attrs.define(eq=False)
class Outcome:
    """What application code returned or raised; neither where it did not end in time.

    It is a value of its own, because asyncio prints the results of tasks in debug mode.
    """

    value: Any = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)
    is_late: bool = False


def begin(awaitable: Awaitable[object]) -> tuple[asyncio.Task[None], Outcome]:
    """Await it in a task of its own, which never fails and returns nothing. The outcome is filled in when it ends."""
    outcome = Outcome()
    return asyncio.create_task(_fill(awaitable, outcome)), outcome


async def _fill(awaitable: Awaitable[object], outcome: Outcome) -> None:
    try:
        outcome.value = await awaitable
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a CancelledError that nobody asked for
        outcome.error = error


async def outcome_of(awaitable: Awaitable[object], seconds: float, grace_seconds: float = 0.0) -> Outcome:
    """Return the outcome, at the latest after so many seconds. Then the task is cancelled and not waited for.

    A caller that is cancelled gives a step under way `grace_seconds` to end.
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
