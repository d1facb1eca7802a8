"""Run one coroutine until it ends or SIGINT or SIGTERM comes; nothing is printed here."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import FrameType

from boardclient.cli._errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` on a new event loop; the first signal cancels it, a second one ends the process.

    Must be called on the main thread, as signals are handled there only.

    Raises:
        StoppedError: a signal came; `work` has been cancelled and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine that runs is a task's

        def stop(signal_number: int, _frame: FrameType | None) -> None:
            received.append(signal_number)
            restore()
            loop.call_soon_threadsafe(task.cancel)

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        previous = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            await work()
        finally:
            restore()

    try:
        asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
    except KeyboardInterrupt:
        received.append(signal.SIGINT)
    if received:
        raise StoppedError(received[0])
