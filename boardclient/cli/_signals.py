"""Run one coroutine until it ends or SIGINT or SIGTERM comes; nothing is printed here."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from boardclient.cli._errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` on a new event loop until it ends or a signal cancels it.

    Signals after the first act as they would without this. Must be called on the main thread, as signals are handled there only.

    Raises:
        StoppedError: a signal came; `work` has been cancelled and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine that runs is a task's

        def stop(signal_number: int) -> None:
            received.append(signal_number)
            handlers.close()
            task.cancel()

        with ExitStack() as handlers:
            for number in _SIGNALS:
                _handle(number, stop, handlers)
            await work()

    try:
        asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
    except KeyboardInterrupt:
        received.append(signal.SIGINT)
    if received:
        raise StoppedError(received[0])


def _handle(number: signal.Signals, stop: Callable[[int], None], handlers: ExitStack) -> None:
    """Call `stop` on the running loop for a signal, until `handlers` is closed."""
    loop = asyncio.get_running_loop()
    handlers.callback(signal.signal, number, signal.getsignal(number))
    try:
        # Unlike a handler of the signal module this wakes the loop even when the kernel gives the signal to another thread.
        loop.add_signal_handler(number, stop, number)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop, number))
    else:
        handlers.callback(loop.remove_signal_handler, number)
