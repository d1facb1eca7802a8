"""Instruments of others on sessions of our own: they see every call, their headers are sent, and no credential reaches them."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import aiohttp
import pytest

from boardclient import AsyncSession, StaticCredentials, TransportError
from boardclient._base._redaction import shown_url
from boardclient.testing import BoardService

KEY, TOKEN = "the-k3y-of-the-application", "the-t0ken-of-the-user"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SIGNALS = [name for name in vars(aiohttp.TraceConfig) if name.startswith("on_")]


class Traced:
    """What a trace config saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.config = aiohttp.TraceConfig()
        for name in SIGNALS:
            getattr(self.config, name).append(functools.partial(self._note, name))

    async def _note(self, name: str, session: Any, context: Any, params: Any) -> None:
        self.seen.append((name, params))
        if name == "on_request_start":
            params.headers["traceparent"] = TRACEPARENT

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    def secrets_seen(self) -> list[str]:
        shown = [f"{params!r} {vars(params) if hasattr(params, '__dict__') else ''}" for _, params in self.seen]
        return [text for text in shown if KEY in text or TOKEN in text]


@pytest.fixture
def traced() -> Traced:
    """Give a trace config that notes what it sees."""
    return Traced()


def instrument(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    def init(self: Any, *args: Any, init: Any = aiohttp.ClientSession.__init__, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "trace_configs": [*(kwargs.get("trace_configs") or ()), traced.config]})

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", init)


async def answering(seen: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        seen.append(head + await reader.readexactly(length))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"id": "c"}')


def session_of(url: str, **options: Any) -> AsyncSession:
    return AsyncSession(StaticCredentials(TOKEN, KEY), url, retry=None, **options)


@pytest.mark.parametrize("is_late", [False, True])
async def test_trace_configs_of_others(raw_server: Any, monkeypatch: pytest.MonkeyPatch, traced: Traced, is_late: bool) -> None:
    """Trace configs see each call without credentials, and what they add is sent, also where they come after the session."""
    seen: list[bytes] = []
    async with raw_server.run(functools.partial(answering, seen)) as url, session_of(url) as session:
        if is_late:
            await session.cards.get("c")
        instrument(monkeypatch, traced)
        await session.cards.get("c")
        await session.cards.create("a card", list_id="l")
        monkeypatch.undo()
        await session.cards.get("c")
    assert traced.secrets_seen() == []
    assert traced.names.count("on_request_start") == traced.names.count("on_request_end") == 2
    assert traced.names.count("on_request_headers_sent") == 2
    start = dict(traced.seen)["on_request_start"]
    end = dict(traced.seen)["on_request_end"]
    assert (start.method, str(start.url)) == ("POST", f"{url}/1/cards")
    assert (end.response.status, end.response.reason, end.response.ok, end.response.real_url) == (200, "OK", True, end.url)
    traces = [request.count(f"traceparent: {TRACEPARENT}\r\n".encode()) for request in seen]
    assert traces == [*([0] if is_late else []), 1, 1, 0]
    assert all(TOKEN.encode() in request for request in seen)
    assert raw_server.served == 1


async def test_trace_configs_see_failures(raw_server: Any, monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    """A call that fails or is cancelled ends its trace with an exception that holds nothing of the request."""

    async def handler(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if raw_server.served == 2:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}")
        elif raw_server.served == 3:
            arrived.set()
            await asyncio.Event().wait()

    arrived = asyncio.Event()
    instrument(monkeypatch, traced)
    async with raw_server.run(handler) as url, session_of(url) as session:
        for _ in range(2):
            with pytest.raises(TransportError):
                await session.cards.get("c")
        cancelled = asyncio.ensure_future(session.cards.get("c"))
        await arrived.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
    errors = [params.exception for name, params in traced.seen if name == "on_request_exception"]
    assert traced.names.count("on_request_end") + len(errors) == 3
    assert isinstance(errors[-1], asyncio.CancelledError)
    assert traced.secrets_seen() == []
    assert not [error for error in errors if TOKEN in repr(error) or KEY in repr(error)]


async def test_a_trace_config_that_adds_what_cannot_be_sent(
    raw_server: Any, monkeypatch: pytest.MonkeyPatch, traced: Traced
) -> None:
    """What an instrument adds is sent where it is well-formed and frames nothing."""
    seen: list[bytes] = []

    async def adding(session: Any, context: Any, params: Any) -> None:
        params.headers["X-Framed"] = "a\r\nX-Other: b"
        params.headers["Content-Length"] = "3"

    traced.config.on_request_start.append(adding)
    instrument(monkeypatch, traced)
    async with raw_server.run(functools.partial(answering, seen)) as url, session_of(url) as session:
        await session.cards.get("c")
    assert b"X-" not in seen[0]
    assert b"traceparent" in seen[0]


async def test_wrappers_of_the_request(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What wraps ClientSession._request, as ddtrace does, sees no credential in URL, body or response; its headers are sent."""
    seen: list[bytes] = []
    wrapped: list[str] = []

    async def wrapper(self: Any, *args: Any, original: Any = aiohttp.ClientSession._request, **kwargs: Any) -> Any:
        kwargs["headers"]["traceparent"] = TRACEPARENT
        response = await original(self, *args, **kwargs)
        wrapped.append(f"{args} {kwargs} {response} {response.url} {response.real_url} {response.request_info}")
        return response

    large = "x" * (2**20 + 1)
    async with raw_server.run(functools.partial(answering, seen)) as url, session_of(url) as session:
        await session.cards.get("c")
        await session.cards.create("a card", list_id="l")
        await session.cards.create("a card", list_id="l", desc=large)
        monkeypatch.setattr(aiohttp.ClientSession, "_request", wrapper)
        await session.cards.get("c")
        await session.cards.create("a card", list_id="l")
        await session.cards.create("a card", list_id="l", desc=large)
    assert len(wrapped) == 3
    assert not [text for text in wrapped if KEY in text or TOKEN in text]
    for plain, other in zip(seen[:3], seen[3:], strict=True):
        assert other.replace(f"traceparent: {TRACEPARENT}\r\n".encode(), b"") == plain


async def test_a_lent_session_with_traces_is_warned_of(caplog: pytest.LogCaptureFixture, service: BoardService) -> None:
    """An application's own traced session hands URLs with credentials to its traces, which is logged at DEBUG."""
    caplog.set_level(logging.DEBUG, "boardclient")
    async with (
        aiohttp.ClientSession(trace_configs=[aiohttp.TraceConfig()]) as http,
        service.session(http=http) as session,
    ):
        await session.members.me()
    assert "which see the credentials" in caplog.text


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_a_proxy_of_the_environment(raw_server: Any, monkeypatch: pytest.MonkeyPatch, is_allowed: bool) -> None:
    """Credentials for a loopback address go in clear to a proxy of the environment only with allow_insecure."""
    at_proxy: list[bytes] = []
    at_service: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        await answering(at_service, reader, writer)

    proxy = await asyncio.start_server(functools.partial(answering, at_proxy), "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    async with raw_server.run(handler) as url, session_of(url, trust_env=True, allow_insecure=is_allowed) as session:
        await session.cards.get("c")
    proxy.close()
    assert [len(at_proxy), len(at_service)] == ([1, 0] if is_allowed else [0, 1])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/1/x", "https://h/1/x"),
        ("https://h/1/x?token=t", "https://h/1/x"),
        ("https://h/1/x?key=k&token=t", "https://h/1/x"),
        ("https://h/1/x?fields=a%20b&KEY=k&%74oken=t&x", "https://h/1/x?fields=a%20b&x"),
    ],
)
def test_a_shown_url_has_no_credentials(url: str, shown: str) -> None:
    """Credentials are left out of a URL however they are spelt, and the rest stays as it is."""
    assert shown_url(url) == shown
