"""Calls in flight: deadlines, effects, closing, the loop and process a session belongs to. No sockets."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from boardclient import DeadlineError, Effect, ServerError, SessionClosedError
from boardclient._operations import build_request
from boardclient._pipeline import _in_flight
from boardclient._pipeline._in_flight import InFlightCalls

LINE = build_request("GET", "/1/x")


async def _fly(calls: InFlightCalls, seconds: float | None, seen: list[Any], stage: Any = "idle") -> None:
    context = calls.begin(LINE, seconds)
    try:
        context.progress.stage = stage
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        error = context.end_early()
        if error is None:
            raise
        seen.append(error)
    finally:
        calls.end(context)


@pytest.mark.usefixtures("passing_time")
async def test_one_timer_serves_every_deadline() -> None:
    """Calls end at their own deadlines, whichever order they began in, with one timer for all."""
    calls, seen = InFlightCalls(), []
    async with asyncio.timeout(60):
        await asyncio.gather(*(_fly(calls, seconds, seen) for seconds in (0.1, 0.05, 0.15)))
    passed = [f"GET /1/x: the deadline of {seconds} s passed" for seconds in ("0.05", "0.1", "0.15")]
    assert [str(error) for error in seen] == passed
    assert len(calls) == 0
    assert calls._timer is None


@pytest.mark.usefixtures("passing_time")
async def test_the_sweep_ignores_calls_without_a_deadline() -> None:
    """A call without a deadline is not touched by the sweep for another, and no timer is left for it."""
    calls, seen = InFlightCalls(), []
    free = asyncio.ensure_future(_fly(calls, None, seen))
    await _fly(calls, 0.05, seen)
    assert (len(seen), len(calls), calls._timer) == (1, 1, None)
    free.cancel()
    await asyncio.wait([free])
    assert free.cancelled()


@pytest.mark.usefixtures("passing_time")
@pytest.mark.parametrize(
    ("stage", "effect"),
    [
        ("idle", Effect.NOT_SENT),
        ("connect", Effect.NOT_SENT),
        ("write", Effect.NOT_SENT),
        ("handed", Effect.UNKNOWN),
        ("send", Effect.UNKNOWN),
        ("receive", Effect.UNKNOWN),
    ],
)
async def test_the_stage_of_an_attempt_decides_the_effect(stage: Any, effect: Effect) -> None:
    """The effect of a call whose deadline passes depends on how far its attempt was."""
    calls, seen = InFlightCalls(), []
    await _fly(calls, 0.01, seen, stage)
    (error,) = seen
    assert isinstance(error, DeadlineError)
    assert isinstance(error, TimeoutError)
    assert (error.phase, error.request, error.effect) == ("deadline", "GET /1/x", effect)


@pytest.mark.parametrize("stage", ["handed", "write", "send", "receive"])
async def test_a_call_that_may_be_on_the_wire_is_not_withdrawn(stage: Any) -> None:
    """A request that the next iteration of the event loop writes is not withdrawn, nor is one that was written."""
    calls = InFlightCalls()
    context = calls.begin(LINE, 60)
    context.progress.stage = stage
    context.withdraw()
    assert context.interruption is None
    assert context.may_send
    calls.end(context)


async def test_the_history_counts_in_the_effect() -> None:
    """The effect of an interrupted call is the worst of its attempts, and its history is in the error."""
    calls = InFlightCalls()
    context = calls.begin(LINE, 60)
    context.record(ServerError("boom", 500), Effect.UNKNOWN, 500, started=0.0)
    context.note_pause(1.5)
    context.record("value", Effect.DONE, 200, started=1_800_000_000.0)
    assert context.attempts[1].started_at == datetime(2027, 1, 15, 8, tzinfo=UTC)
    assert context.last_error is None
    assert context.effect is Effect.DONE
    history = [(attempt.number, attempt.why, attempt.status, attempt.pause_seconds) for attempt in context.attempts]
    assert history == [(1, "boom", 500, 1.5), (2, "success", 200, None)]
    assert context.remaining_seconds is not None
    assert 0 < context.remaining_seconds <= 60
    calls.end(context)
    assert calls.begin(LINE, None).remaining_seconds is None


async def test_a_cancellation_from_outside_counts_more() -> None:
    """A call that is cancelled from outside at its deadline too ends with CancelledError."""
    calls, seen = InFlightCalls(), []
    task = asyncio.ensure_future(_fly(calls, None, seen))
    await asyncio.sleep(0)
    calls.close()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == []


async def test_closing_interrupts_each_call_once() -> None:
    """Close interrupts each call once, is idempotent, and gives the same event to all who close."""
    calls, seen = InFlightCalls(), []
    tasks = [asyncio.ensure_future(_fly(calls, 60, seen)) for _ in range(3)]
    await asyncio.sleep(0)
    first, second = calls.close(), calls.close()
    assert first is not None
    assert first is second
    async with asyncio.timeout(60):
        await first.wait()
    assert calls.close() is None
    await asyncio.gather(*tasks)
    assert [type(error) for error in seen] == [SessionClosedError] * 3
    with pytest.raises(SessionClosedError):
        calls.begin(LINE, None)


async def test_a_task_may_close_amid_its_own_call() -> None:
    """A task that closes the session during its own call is not interrupted, and does not wait for itself."""
    calls, seen = InFlightCalls(), []
    other = asyncio.ensure_future(_fly(calls, 60, seen))
    await asyncio.sleep(0)
    mine = calls.begin("GET /1/mine", 60)
    assert calls.close() is None
    assert mine.end_early() is None
    calls.end(mine)
    await other
    assert len(seen) == 1


async def test_close_before_the_first_call() -> None:
    """Closing what was never used has nothing to wait for."""
    calls = InFlightCalls()
    assert calls.close() is None
    assert not calls.is_on_own_loop


def test_another_loop_gets_an_error() -> None:
    """A second loop is a RuntimeError that names the reason, and closing there waits for nothing."""
    calls = InFlightCalls()

    async def begin() -> None:
        calls.end(calls.begin(LINE, None))

    asyncio.run(begin())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(begin())

    async def close() -> None:
        assert calls.close() is None

    asyncio.run(close())


async def test_another_process_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork a call is a RuntimeError that names the reason, and closing there waits for nothing."""
    calls = InFlightCalls()
    calls.begin(LINE, 60)
    monkeypatch.setattr(_in_flight, "_process", _in_flight._process)
    _in_flight._note_fork()  # as a fork's child does
    with pytest.raises(RuntimeError, match="forked"):
        calls.begin(LINE, None)
    assert calls.close() is None


async def test_a_process_that_does_not_fork_can_still_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that ran without another process refuses nothing, and a closed session says so in a child as well."""
    calls, process = InFlightCalls(), _in_flight._process
    calls.end(calls.begin(LINE, None))
    _in_flight._note_fork()
    monkeypatch.setattr(_in_flight, "_process", process)
    calls.end(calls.begin(LINE, None))
    calls.close()
    with pytest.raises(SessionClosedError):
        calls.begin(LINE, None)


async def test_outside_a_task() -> None:
    """A call outside a task is a RuntimeError that says so."""
    calls, raised = InFlightCalls(), asyncio.get_running_loop().create_future()

    def begin() -> None:
        try:
            calls.begin(LINE, None)
        except RuntimeError as error:
            raised.set_result(str(error))

    asyncio.get_running_loop().call_soon(begin)
    assert "task" in await raised


def test_another_thread_is_another_loop() -> None:
    """A session used in one thread's loop is refused in another's at the same time."""
    calls, messages = InFlightCalls(), []

    async def begin() -> None:
        calls.begin(LINE, None)
        thread = threading.Thread(target=run)
        thread.start()
        await asyncio.to_thread(thread.join)

    def run() -> None:
        async def second() -> None:
            with pytest.raises(RuntimeError) as caught:
                calls.begin(LINE, None)
            messages.append(str(caught.value))

        asyncio.run(second())

    asyncio.run(begin())
    assert messages == ["this AsyncSession belongs to another event loop: build one for each loop"]
