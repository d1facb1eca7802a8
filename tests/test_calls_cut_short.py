"""Calls that something else than the service ends: interrupts, a full stack, a wrong place, a provider that returns nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import traceback
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from session_helpers import KEY, TOKEN
from virtual_loop import Clock
from waiting import until

from boardclient import (
    AsyncSession,
    BoardClientError,
    Effect,
    StaticCredentials,
    TransportError,
)
from boardclient.events import ResponseReceived
from boardclient.testing import BoardService, assert_no_secrets, faults


def locals_of(error: BaseException) -> str:
    """Return what the frames of an error and of its contexts hold, without those of this test and of coroutines' runners."""
    shown: list[str] = []
    one: BaseException | None = error
    while one is not None:
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not frame.f_code.co_filename.startswith(__file__):
                shown += [f"{value!r} {getattr(value, '__dict__', '')!r}" for value in frame.f_locals.values()]
        one = one.__context__
    return "\n".join(shown)


async def create(session: AsyncSession) -> Any:
    return await session.cards.create("a card", list_id="l")


async def form(session: AsyncSession) -> Any:
    return await session.exchange.post_form(f"{session.base_url}/1/OAuthGetAccessToken", {"token": TOKEN, "code": KEY})


@pytest.mark.parametrize(
    ("kind", "is_direct"),
    [  # aiohttp writes in a task of its own, whose interrupts reach the event loop and not the call
        *((kind, True) for kind in (KeyboardInterrupt, SystemExit, RecursionError, MemoryError)),
        *((kind, False) for kind in (RecursionError, MemoryError)),
    ],
)
@pytest.mark.parametrize("call", [create, form])
def test_what_interrupts_a_call_holds_no_secret(
    kind: type[BaseException], is_direct: bool, call: Callable[[AsyncSession], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that is raised while a request is written leaves without the frames that hold it, and frees the connection."""
    written: list[bytes] = []

    def interrupted(self: Any, data: Any) -> None:
        written.append(bytes(data))
        raise kind("here")

    async def main() -> BaseException:
        async with BoardService() as service:
            # what the environment may say of proxies takes requests through ClientSession
            session = AsyncSession(StaticCredentials(TOKEN, KEY), service.base_url, retry=None, trust_env=not is_direct)
            session.base_url = service.base_url  # type: ignore[attr-defined]  # -- for `form`
            async with session:
                with pytest.raises(BoardClientError):  # the connection is open then, and idle
                    await session.cards.get("none")
                with monkeypatch.context() as patch:
                    patch.setattr(asyncio.selector_events._SelectorSocketTransport, "write", interrupted)  # type: ignore[attr-defined]  # -- of asyncio
                    try:
                        await call(session)
                    except BaseException as error:
                        caught = error
                assert session.stats().pool_open == session.stats().pool_idle
                return caught

    error = asyncio.run(main())
    assert written
    assert TOKEN not in locals_of(error)
    assert KEY not in locals_of(error)
    if issubclass(kind, Exception):
        assert isinstance(error, BoardClientError)
        assert error.effect is not Effect.NOT_SENT
    else:
        assert type(error) is kind


async def test_an_unexpected_end_has_an_effect(
    service: BoardService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong within the client while a request is sent is an error with its effect; the log says where, and no more."""

    async def send(self: Any, method: str, url: str, body: bytes, progress: Any, **options: Any) -> None:
        progress.stage = "send"
        raise MemoryError(body)

    monkeypatch.setattr("boardclient._transport._choice.TransportChoice.send", send)
    async with AsyncSession(StaticCredentials(TOKEN, KEY), service.base_url) as session:
        with pytest.raises(BoardClientError, match="ended by MemoryError, see the log") as caught:
            await session.cards.create("a card", list_id="l")
    assert [attempt.effect for attempt in caught.value.attempts] == [caught.value.effect] == [Effect.UNKNOWN]
    assert "in send" in caplog.text
    assert TOKEN not in caplog.text + locals_of(caught.value)
    assert not [record for record in caplog.records if record.exc_info]


class LeavingLimiter:
    """A limiter that keeps what it gets on leaving, and fails."""

    def __init__(self) -> None:
        self.given: list[BaseException] = []

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, error: BaseException | None, frames: types.TracebackType | None) -> None:
        if error is not None:
            self.given.append(error.with_traceback(frames or error.__traceback__))
        raise LookupError("leaving")


def fail_at_a_response(event: object) -> None:
    if isinstance(event, ResponseReceived):
        raise LookupError("an observer")


@pytest.mark.parametrize("end", ["deadline", "cancelled", "no json"])
@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("call", [create, form])
async def test_code_that_fails_while_a_call_ends_gets_none_of_its_frames(
    call: Callable[[AsyncSession], Awaitable[object]],
    is_direct: bool,
    end: str,
    service: BoardService,
    loop_clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither what a limiter gets nor the log of what it and observers raise leads to a frame with a credential."""
    service.faults.add(faults.foreign_body(TOKEN.encode()) if end == "no json" else faults.hang())
    limiter = LeavingLimiter()
    options: dict[str, Any] = {"observers": [fail_at_a_response], "limiter": limiter, "retry": None, "trust_env": not is_direct}
    async with AsyncSession(StaticCredentials(TOKEN, KEY), service.base_url, **options) as session:
        session.base_url = service.base_url  # type: ignore[attr-defined]  # -- for `form`
        calling = asyncio.ensure_future(call(session))
        await until(lambda: service.calls, calling)
        loop_clock.advance(31 if end == "deadline" else 0)
        if end == "cancelled" or (call is form and end == "deadline"):
            calling.cancel()
        with contextlib.suppress(asyncio.CancelledError, BoardClientError):
            await calling
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert {str(error) for error in logged} == {"an observer"} | ({"leaving"} if call is create else set())
    for error in [*logged, *limiter.given]:
        assert error is not None
        assert TOKEN not in locals_of(error)
        assert KEY not in locals_of(error)


async def test_a_limiter_that_raises_keeps_its_own_frames(service: BoardService) -> None:
    """What the code of an application raises is raised with its own traceback, and without ours."""

    class Limiter:
        async def __aenter__(self) -> None:
            raise LookupError("no turn")

        async def __aexit__(self, *exc: object) -> None:
            raise AssertionError

    async with service.session(limiter=Limiter()) as session:
        with pytest.raises(LookupError) as caught:
            await session.members.me()
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert names[-1] == "__aenter__"
    assert "_send" not in names
    assert_no_secrets(caught.value, secrets=[service.token, service.key])


def test_a_call_outside_of_asyncio_says_so() -> None:
    """Without an event loop, as under another framework, the error names what is missing."""
    session = AsyncSession(StaticCredentials("t"), "https://board.example")
    with pytest.raises(RuntimeError, match=r"asyncio task, such as that of asyncio\.run"):
        session.members.me().send(None)
    session._discard()


async def test_a_call_outside_of_a_task_says_so() -> None:
    """A callback of the event loop runs in no task: the error names what is missing."""
    loop, session = asyncio.get_running_loop(), AsyncSession(StaticCredentials("t"), "https://board.example")
    ended = loop.create_future()
    loop.call_soon(lambda: ended.set_result(_raised_by(session.members.me())))
    assert "asyncio task, such as that of asyncio.run" in str(await ended)
    session._discard()


def _raised_by(call: Coroutine[object, object, object]) -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        call.send(None)
    return caught.value


async def _awaited(event: object) -> None:
    raise AssertionError


class _Awaited:
    async def __call__(self, event: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("observer", [_awaited, _Awaited(), functools.partial(_awaited), _Awaited().__call__])
def test_an_observer_that_is_a_coroutine_function_is_refused(observer: Any) -> None:
    """An observer is called and not awaited, so a coroutine function is refused when the session is made."""
    with pytest.raises(TypeError, match="not awaited"):
        AsyncSession(StaticCredentials("t"), "https://board.example", observers=[observer])


async def _generator(item: object) -> AsyncIterator[object]:
    yield item


def _made(item: object) -> Iterator[object]:
    yield item


class _Limiter:
    async def __aenter__(self) -> None:
        raise AssertionError

    async def __aexit__(self, *error: object) -> None:
        raise AssertionError

    async def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        raise AssertionError


@pytest.mark.parametrize("function", [_awaited, _Awaited(), functools.partial(_awaited), _generator, _made])
async def test_a_function_that_is_called_and_not_awaited_is_a_plain_one(function: Any, service: BoardService) -> None:
    """Wherever an application gives one, a coroutine function is a TypeError, before anything is sent."""
    async with service.session() as session:
        with pytest.raises(TypeError, match="on_progress must be a plain function"):
            session.cards.create_many([], on_progress=function)
        with pytest.raises(TypeError, match="marker must be a plain function"):
            session.cards.create_many([], board_id="b", marker=function)
    with pytest.raises(TypeError, match="on_call must be a plain function"):
        BoardService(on_call=function)
    with pytest.raises(TypeError, match="report must be a plain function"):
        service.session(limiter=_Limiter())
    assert service.calls == []


async def test_an_observer_that_returns_a_coroutine_is_logged(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """What only shows itself when it is called is closed and logged, and the call continues."""
    async with service.session(observers=[lambda event: _awaited(event)]) as session:
        await session.members.me()
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "an observer returned a coroutine, which is not awaited: observers must be plain functions"
    ] * 2


@pytest.mark.parametrize(
    "options",
    [{"proxy": f"ftp://u:{KEY}@proxy.example"}, {"proxy": f"http://u:{KEY}@p", "timeout": 0}, {"headers": {"X": f"{KEY}\n"}}],
)
def test_a_session_that_refuses_an_option_shows_no_secret(options: dict[str, Any]) -> None:
    """The frames of the error hold no option, and a session that was never built has a repr."""
    with pytest.raises(ValueError, match=r"proxy|timeout|headers") as caught:
        AsyncSession(StaticCredentials("t"), "http://127.0.0.1:1", **options)
    assert KEY not in locals_of(caught.value)
    assert repr(AsyncSession.__new__(AsyncSession)) == "<AsyncSession, not built>"


async def test_the_words_of_a_proxy_are_in_the_error() -> None:
    """A proxy that refuses a tunnel says why by its status, which is not taken for the service's."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with proxy, AsyncSession(StaticCredentials("t"), "https://board.example", proxy=address, retry=None) as session:
        with pytest.raises(TransportError, match=r"the proxy wants credentials \(status 407\)") as caught:
            await session.members.me()
    assert caught.value.effect is Effect.NOT_SENT
