"""Ending a run early, and finishing what must be done despite cancellations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Halted(Exception):  # noqa: N818 -- it is no error, and never leaves the package
    """The run is to begin nothing more."""


class Halt:
    """Whether a run is to begin nothing more, and the error that is the reason. Owned by the run."""

    def __init__(self) -> None:
        self.is_set = False
        self.error: BaseException | None = None
        """What ended the run early; the first one counts."""
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []

    def on_set(self, callback: Callable[[], object]) -> None:
        """Call this once the run is halted."""
        self._callbacks.append(callback)

    def set(self, error: BaseException | None = None) -> None:
        """Halt the run. `error`, if any, is raised after the last result."""
        if self.error is None:
            self.error = error
        if not self.is_set:
            self.is_set = True
            self._event.set()
            for callback in self._callbacks:
                callback()

    async def unless_set(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, and cancel it where the run is halted meanwhile.

        Raises:
            Halted: the run is halted, whether or not the work came to its end.
            Exception: what the work raises.
        """
        task, halted = asyncio.create_task(work), asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait({task, halted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            halted.cancel()
            await asyncio.wait({task, halted})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        if self.is_set or task.cancelled():
            raise Halted
        return task.result()


async def to_the_end(task: asyncio.Task[T]) -> T:
    """Wait for a task to its end. Where the caller is cancelled, raise that afterwards."""
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
