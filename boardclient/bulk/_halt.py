"""Completing work despite cancellations."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(task: asyncio.Future[T]) -> T:
    """Wait until a task or future is done, and return its result. A cancellation of the caller is raised afterwards."""
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # retrieved, so that asyncio does not log it
        raise cancellation
    return task.result()
