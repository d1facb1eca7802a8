"""Waiting for a task that has to end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def to_the_end(task: asyncio.Future[Any], *, cancels: bool = False) -> None:
    """Wait until a task or future is done, and raise its error. A cancellation of the caller is raised afterwards.

    With `cancels` it also cancels the task.
    """
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
            if cancels:
                task.cancel()
    if cancellation is not None:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # retrieved, so that asyncio does not log it
        raise cancellation
    if not task.cancelled():  # before it began
        task.result()
