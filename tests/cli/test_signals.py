"""The effect of signals on a coroutine that the command line runs."""

import asyncio
import signal

import pytest

from boardclient.cli._output import StoppedError
from boardclient.cli._running import GracefulStop, run_until_signal


def test_work_that_ends_by_itself_returns_and_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_until_signal(lambda: asyncio.sleep(0))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_work_that_swallows_its_cancellation_counts_as_stopped() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    with pytest.raises(StoppedError) as caught:
        run_until_signal(work)
    assert caught.value.signal_number == signal.SIGTERM


def test_a_cancellation_without_a_signal_is_raised() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work)


def test_further_interrupts_end_work_that_does_not_stop() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError) as caught:
        run_until_signal(work)
    assert caught.value.signal_number == signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_without_signal_handlers_stops_on_an_interrupt_too(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    async def work() -> None:
        signal.raise_signal(number)
        await asyncio.Event().wait()

    def refuse(self: object, *_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
    with pytest.raises(StoppedError) as caught:
        run_until_signal(work)
    assert caught.value.signal_number == number
    assert signal.getsignal(number) == before


def test_the_first_signal_stops_new_work_and_lets_the_rest_finish() -> None:
    graceful_stop, told = GracefulStop(), []

    async def work() -> None:
        stopped = asyncio.Event()
        with graceful_stop.using(stopped.set):
            signal.raise_signal(signal.SIGTERM)
            await stopped.wait()
        told.append("ended")

    with pytest.raises(StoppedError) as caught:
        run_until_signal(work, graceful_stop)
    assert caught.value.signal_number == signal.SIGTERM
    assert graceful_stop.is_requested
    assert told == ["ended"]


def test_the_second_signal_cancels_and_the_first_is_reported() -> None:
    graceful_stop = GracefulStop()

    async def work() -> None:
        stopped = asyncio.Event()
        with graceful_stop.using(stopped.set):
            signal.raise_signal(signal.SIGINT)
            await stopped.wait()
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(StoppedError) as caught:
        run_until_signal(work, graceful_stop)
    assert caught.value.signal_number == signal.SIGINT


def test_a_signal_cancels_at_once_if_there_is_nothing_to_finish() -> None:
    graceful_stop = GracefulStop()

    async def work() -> None:
        with graceful_stop.using(lambda: None):
            pass
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(StoppedError):
        run_until_signal(work, graceful_stop)
    assert not graceful_stop.is_requested
