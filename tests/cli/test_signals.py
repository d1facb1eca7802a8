"""What signals do to a coroutine that the command line runs."""

import asyncio
import signal

import pytest

from boardclient.cli._errors import StoppedError
from boardclient.cli._signals import run_until_signal


def test_work_that_ends_by_itself_returns_and_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_until_signal(lambda: asyncio.sleep(0))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_work_that_swallows_the_cancellation_was_stopped_all_the_same() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    with pytest.raises(StoppedError) as caught:
        run_until_signal(work)
    assert caught.value.signal_number == signal.SIGTERM


def test_a_cancellation_that_is_no_signal_s_is_passed_on() -> None:
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
def test_a_loop_without_signal_handlers_is_stopped_too(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
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
