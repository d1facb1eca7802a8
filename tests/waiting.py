"""Waiting for what others bring about, and never for ever."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

SECONDS = 300.0
"""How long anything may take on the slowest machine, in real time."""


async def until(condition: Callable[[], object], *running: asyncio.Future[object], pause: float = 0.0) -> None:
    """Return once a condition holds. Fail with what ended the tasks before it, or if it does not come to hold."""
    end = time.monotonic() + SECONDS
    while not (await held if inspect.isawaitable(held := condition()) else held):
        for task in running:
            assert not task.done(), f"the task ended too early: {task!r}"
        assert time.monotonic() < end, f"what was waited for has not come in {SECONDS:.0f} s"
        await asyncio.sleep(pause)


def wait_until(condition: Callable[[], object]) -> None:
    """Return once a condition holds, in a test without an event loop. Fail if it does not come to hold."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"what was waited for has not come in {SECONDS:.0f} s"
        time.sleep(0.01)
