"""Run one coroutine until it ends or SIGINT or SIGTERM comes. Nothing is printed here."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

from boardclient.cli._errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Brake:
    """Replace the cancellation by the first signal with a gentle stop.

    Owned by a command, which gives it to its work and to `run_until_signal`.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.is_pulled = False
        self.on_pull: Callable[[], None] = lambda: None
        """Who is told of it."""

    @contextmanager
    def by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let the first signal call `stop` within the block."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def pull(self) -> bool:
        """Stop gently; return whether that could be done, which is once."""
        stop, self._stop = self._stop, None
        if stop is None:
            return False
        self.is_pulled = True
        stop()
        self.on_pull()
        return True


def run_until_signal(work: Callable[[], Awaitable[None]], brake: Brake | None = None) -> None:
    """Run `work` on a new event loop until it ends or a signal cancels it.

    One that pulls the brake leaves that to the next.

    Signals after that act as they would without this. Must be called on the main thread, as signals are handled there only.

    Raises:
        StoppedError: a signal came; `work` has come to its end or has been cancelled, and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine that runs is a task's

        def stop(signal_number: int) -> None:
            received.append(signal_number)
            if brake is None or not brake.pull():
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
