"""Runs a coroutine until it ends, or SIGINT or SIGTERM stops it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from boardclient.cli._errors import StoppedError

_T = TypeVar("_T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ITEMS_PER_STEP = 500


class GracefulStop:
    """Makes the first signal stop the work gently instead of cancelling it.

    Owned by a command, which passes it to its work and to `run_until_signal`.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.is_requested = False
        self.on_request: Callable[[], None] = lambda: None
        """Called after the stop was requested."""

    @contextmanager
    def using(self, stop: Callable[[], None]) -> Iterator[None]:
        """Make the first signal within the block call `stop`."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def request(self) -> bool:
        """Stop the work gently. Return False if that was done before or is not possible."""
        stop, self._stop = self._stop, None
        if stop is None:
            return False
        self.is_requested = True
        stop()
        self.on_request()
        return True


def run_until_signal(work: Callable[[], Awaitable[None]], graceful_stop: GracefulStop | None = None) -> None:
    """Run `work` in a new event loop until it ends or a signal cancels it.

    With a `GracefulStop`, the first signal requests it and the second cancels. Later signals have their usual effect. Must be
    called from the main thread, the only one that can handle signals.

    Raises:
        StoppedError: a signal was received. `work` has ended or was cancelled, and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- asyncio.run makes a task

        def stop(signal_number: int) -> None:
            received.append(signal_number)
            if graceful_stop is None or not graceful_stop.request():
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


async def in_steps(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items, and let the event loop handle signals in between."""
    for number, item in enumerate(items):
        if number % _ITEMS_PER_STEP == 0:
            await asyncio.sleep(0)
        yield item


def _handle(number: signal.Signals, stop: Callable[[int], None], handlers: ExitStack) -> None:
    """Call `stop` in the running event loop on a signal, until `handlers` is closed."""
    loop = asyncio.get_running_loop()
    handlers.callback(signal.signal, number, signal.getsignal(number))
    try:
        # Unlike a handler of `signal.signal`, this wakes the loop even if the kernel delivers the signal to another thread.
        loop.add_signal_handler(number, stop, number)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop, number))
    else:
        handlers.callback(loop.remove_signal_handler, number)
