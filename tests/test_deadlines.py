"""When calls end: at their deadlines, when they are cancelled, when their session closes. In virtual time, without sockets."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from oauth_helpers import virtual

from boardclient import AsyncSession, DeadlineError, Effect, SessionClosedError, StaticCredentials


class Shut:
    """A limiter that lets nothing through."""

    async def __aenter__(self) -> None:
        await asyncio.Event().wait()

    async def __aexit__(self, *exc: object) -> None:
        raise AssertionError


def shut_session(**options: Any) -> AsyncSession:
    return AsyncSession(StaticCredentials("t"), "https://board.example", retry=None, limiter=Shut(), **options)


async def ended(session: AsyncSession) -> BaseException:
    """Return what a call ends with."""
    try:
        await session.members.me()
    except (Exception, asyncio.CancelledError) as error:
        return error
    raise AssertionError


@virtual
async def test_calls_end_at_their_own_deadlines() -> None:
    """Each call ends at its deadline, in whatever order the calls began, and one without a deadline continues."""
    loop = asyncio.get_running_loop()
    ends: list[tuple[float, str]] = []

    async def call(session: AsyncSession, timeout: float) -> None:
        error = await ended(session.with_options(timeout=timeout))
        assert isinstance(error, DeadlineError)
        assert (error.phase, error.effect, error.attempts) == ("deadline", Effect.NOT_SENT, ())
        ends.append((round(loop.time(), 3), str(error)))

    async with shut_session(timeout=None) as session:
        free = asyncio.ensure_future(ended(session))
        await asyncio.gather(*(call(session, timeout) for timeout in (0.1, 0.05, 7.5)))
        assert (free.done(), session.stats().in_flight) == (False, 1)
        free.cancel()
        assert isinstance(await free, asyncio.CancelledError)
        assert session.stats().in_flight == 0
    words = "GET /1/members/me: the deadline of {} s passed, waiting for the limiter"
    assert ends == [(seconds, words.format(seconds)) for seconds in (0.05, 0.1, 7.5)]


@virtual
async def test_a_cancellation_counts_more_than_the_end_of_the_session() -> None:
    """A call that is cancelled as its session closes ends with CancelledError; others end with SessionClosedError."""
    session = shut_session()
    cancelled, other = (asyncio.ensure_future(ended(session)) for _ in range(2))
    await asyncio.sleep(1)
    closing = asyncio.gather(session.aclose(), session.aclose())
    await asyncio.sleep(0)
    cancelled.cancel()
    await closing
    assert isinstance(await cancelled, asyncio.CancelledError)
    assert isinstance(await other, SessionClosedError)
    assert isinstance(await ended(session), SessionClosedError)


@virtual
async def test_a_cancellation_counts_more_than_a_deadline() -> None:
    """A task that is cancelled in the same moment as its deadline passes stays cancelled."""
    async with shut_session(timeout=5) as session:
        task = asyncio.ensure_future(ended(session))
        asyncio.get_running_loop().call_at(5, task.cancel)
        await asyncio.sleep(4.9)
        assert isinstance(await task, asyncio.CancelledError)


async def test_a_session_is_not_used_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process a session that was used before says what to do, and closing it waits for nothing."""
    session = shut_session(timeout=0.01)
    assert isinstance(await ended(session), DeadlineError)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child; tests/service/test_session_lifetime.py forks
    words = await asyncio.to_thread(lambda: str(asyncio.run(ended(session))))
    assert words == "this AsyncSession was used before the process forked: build one in each process"
    await session.aclose()
