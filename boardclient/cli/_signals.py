"""Runs a coroutine until it ends, or SIGINT or SIGTERM stops it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

from boardclient.cli._errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Brake:
    """Makes the first signal stop the work gently instead of cancelling it.

    Owned by a command, which passes it to its work and to `run_until_signal`.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self.is_pulled = False
        self.on_pull: Callable[[], None] = lambda: None
        """Called after the brake was pulled."""

    @contextmanager
    def by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Make the first signal within the block call `stop`."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def pull(self) -> bool:
        """Stop the work gently. Return False if that was done before or is not possible."""
        stop, self._stop = self._stop, None
        if stop is None:
            return False
        self.is_pulled = True
        stop()
        self.on_pull()
        return True


def run_until_signal(work: Callable[[], Awaitable[None]], brake: Brake | None = None) -> None:
    """Run `work` in a new event loop until it ends or a signal cancels it.

    With a brake, the first signal pulls it and the second cancels. Later signals have their usual effect. Must be called from the
    main thread, the only one that can handle signals.

    Raises:
        StoppedError: a signal was received. `work` has ended or was cancelled, and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- asyncio.run makes a task

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
