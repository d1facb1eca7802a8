"""Ending a run early, and completing work despite cancellations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

T = TypeVar("T")

ENDS_TASK: Final = (asyncio.CancelledError, GeneratorExit)
"""What ends a task from outside: it is cancelled, or its event loop was closed."""


class Halted(Exception):  # noqa: N818 -- it is no error, and never leaves the package
    """The run was halted while the work was running."""


class Halt:
    """Ends a run early: once set, the run starts nothing more. Owned by the run."""

    def __init__(self) -> None:
        self.is_set = False
        self.error: BaseException | None = None
        """The first error that ended the run early, or None."""
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []

    def on_set(self, callback: Callable[[], object]) -> None:
        """Register a callback for the moment when the run is halted."""
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

    async def unless_set(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> T:
        """Await the work and return its result. Cancel it if the run is halted meanwhile.

        The work runs in `context`, by default in a copy of the caller's.

        Raises:
            Halted: the run is halted, even if the work was completed.
            Exception: any error that the work raises.
        """
        task, halted = asyncio.create_task(work, context=context), asyncio.create_task(self._event.wait())
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
