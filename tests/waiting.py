"""Waiting for what running tasks bring about, and not for ever if they end."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *running: asyncio.Future[object]) -> None:
    """Return once a condition holds, or fail with what ended the tasks before it."""
    while not condition():
        for task in running:
            assert not task.done(), f"the task ended too early: {task!r}"
        await asyncio.sleep(0)
