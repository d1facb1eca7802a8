"""Which transport is taken: what is used of aiohttp is probed, and what is out of the ordinary goes by `ClientSession`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aioresponses import aioresponses as AioResponses
from transport_helpers import OK, read_request, send

from boardclient import Effect
from boardclient._transport import RawResponse, TransportFailure, _client_session, _connections

# --- what is used of aiohttp


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (aiohttp.TCPConnector, "_release"),
        (aiohttp.client_proto.ResponseHandler, "should_close"),
        (aiohttp.StreamReader, "at_eof"),
        (_connections, "_new_parser"),
    ],
)
async def test_an_aiohttp_that_lacks_a_part_is_used_as_documented(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: Any, name: str
) -> None:
    """An aiohttp without something that the direct transport needs is used through `ClientSession`, and a warning names it."""
    with monkeypatch.context() as without:
        if owner is _connections:
            without.setattr(owner, name, lambda handler, loop: int("", limit=1))  # a TypeError, as of an unknown option
        else:
            without.setattr(_connections, "_USED", {**_connections._USED, owner.__name__: ("gone",)})
        pool = open_pool()
        pool._open()
    assert pool.transport_name == "ClientSessionTransport"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert ("HttpResponseParser" if owner is _connections else f"{owner.__name__}.gone") in caplog.text
    assert isinstance(await send(pool, "GET", "http://127.0.0.1:1/1/x"), TransportFailure)
    assert repr(pool) == "0/1 connections, ClientSessionTransport"
    pool.abandon()


async def test_the_parser_is_set_up_as_a_session_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of the direct transport is that of a session's own requests, but for the length of fields and the decoding."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        aiohttp.client_proto, "HttpResponseParser", lambda *args, **options: made.append(options | {"limit": args[2]})
    )
    async with aiohttp.ClientSession() as http:
        aiohttp.client_proto.ResponseHandler(asyncio.get_running_loop()).set_response_params(
            read_until_eof=True,
            auto_decompress=http.auto_decompress,
            read_bufsize=http._read_bufsize,
            max_line_size=http._max_line_size,
            max_field_size=http._max_field_size,
            max_headers=http._max_headers,
        )
    ours = _connections._new_parser.keywords
    assert {name for name, value in ours.items() if made[0][name] != value} == {
        "auto_decompress",
        "max_line_size",
        "max_field_size",
        "max_headers",
    }
    left_out = {name: value for name, value in made[0].items() if name not in ours}
    assert left_out == {"timer": None, "response_with_body": True}  # the parser's defaults


async def test_the_buffer_of_aiohttp_s_reader_holds_unread_chunks() -> None:
    """The reader of aiohttp has its unread chunks where the direct transport expects them, and counts them."""
    content = aiohttp.StreamReader(Mock(), 2**16, loop=asyncio.get_running_loop())
    for piece in (b"a", b"bc"):
        content.feed_data(piece)
    assert (b"".join(content._buffer), content.total_bytes, content.exception()) == (b"abc", 3, None)
    assert aiohttp.EMPTY_PAYLOAD.total_bytes == 0


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_a_response_that_came_whole_is_not_awaited(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, exchanges: list[str]
) -> None:
    """A body that is there with its head is taken without reading, one that is larger than that is read."""
    read: list[bytes] = []

    async def readany(self: Any, original: Any = aiohttp.StreamReader.readany) -> bytes:
        read.append(await original(self))
        return read[-1]

    async def handler(reader: Any, writer: Any) -> None:
        for body in (b"{}", b"x" * 70_000):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    monkeypatch.setattr(aiohttp.StreamReader, "readany", readany)
    async with raw_server.run(handler) as url:
        pool = open_pool()
        small, large = await send(pool, "GET", f"{url}/1/x"), await send(pool, "GET", f"{url}/1/x")
    assert exchanges == ["direct", "direct"]
    assert (small.body, large.body) == (b"{}", b"x" * 70_000)
    assert b"".join(read) == large.body


def test_what_wraps_aiohttps_request_is_seen() -> None:
    """A function with the name of aiohttp's request is distinguished from it, and a mock from a wrapper."""
    assert not _client_session.is_wrapped()
    with AioResponses():
        assert _client_session.is_wrapped()
        assert _client_session.is_mocked()
        assert not _client_session._is_of_aiohttp(aiohttp.ClientSession._request)
    assert not _client_session.is_mocked()
    assert not _client_session._is_of_aiohttp(print)
    claiming = Mock(__code__=aiohttp.ClientSession._request.__code__)  # as a wrapper of wrapt's does
    assert not _client_session._is_of_aiohttp(claiming)


# --- which transport_kind is taken


async def test_chosen_automatically(open_pool: Any, raw_server: Any, exchanges: list[str], transport_kind: str) -> None:
    """A pool of our own uses the direct transport, and the other one if it is switched off."""

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        assert await send(pool, "GET", f"{url}/1/x") == await send(pool, "POST", f"{url}/1/x", b"{}")
    assert exchanges == [transport_kind, transport_kind]
    assert raw_server.served == 1


def _with_middleware(http: Any) -> None:
    http._middlewares = (lambda request, handler: handler(request),)


def _with_a_proxy(http: Any) -> None:
    http._default_proxy = "http://proxy.example"


def _with_headers(http: Any) -> None:
    http.headers["X-Trace"] = "1"


def _with_a_request_class(http: Any) -> None:
    http._request_class = type("Other", (aiohttp.ClientRequest,), {})


def _with_auth(http: Any) -> None:
    http._default_auth = object()


@pytest.mark.parametrize("change", [_with_middleware, _with_a_proxy, _with_headers, _with_a_request_class, _with_auth])
async def test_a_session_that_was_changed_is_not_served(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    """What an instrumentation adds to every new session turns the direct transport off."""

    def init(self: Any, *args: Any, init: Any = aiohttp.ClientSession.__init__, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        change(self)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", init)
    pool = open_pool()
    pool._open()
    assert pool._usual.direct is None


@pytest.mark.parametrize("name", ["upgrade", "TE", "Trailer", "Cookie", "CONNECTION"])
async def test_headers_that_frame_a_message_are_not_served(open_pool: Any, name: str) -> None:
    """An application's own headers that change how a request is framed are left to aiohttp."""
    pool = open_pool(headers={name: "x"})
    pool._open()
    assert pool._usual.direct is None


@pytest.mark.parametrize("settings", [{"trust_env": True}, {"proxy": "http://proxy.example"}])
async def test_proxies_are_not_served(open_pool: Any, settings: dict[str, Any]) -> None:
    """A proxy, also one that the environment may name, turns the direct transport off."""
    pool = open_pool(**settings)
    pool._open()
    assert pool._usual.direct is None


async def test_a_lent_session_is_not_served(open_pool: Any) -> None:
    """An application's own session is used through its public interface alone."""
    async with aiohttp.ClientSession() as http:
        pool = open_pool(http)
        pool._open()
        assert pool._usual.direct is None


@pytest.mark.parametrize("name", ["request", "_request"])
async def test_a_replaced_request_is_respected(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, name: str, raw_server: Any
) -> None:
    """What a test puts in the place of aiohttp's request is called, also once the pool is open."""

    async def handler(reader: Any, writer: Any) -> None:
        await read_request(reader)
        writer.write(OK)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError

    async with raw_server.run(handler) as url:
        pool = open_pool()
        assert isinstance(await send(pool, "GET", f"{url}/1/x"), RawResponse)
        monkeypatch.setattr(aiohttp.ClientSession, name, replaced)
        outcome = await send(pool, "GET", f"{url}/1/x")
    assert outcome == TransportFailure("receive", Effect.UNKNOWN, "the exchange failed (RuntimeError)")
    assert raw_server.served == 1


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("HEAD", "http://127.0.0.1/1/x"),
        ("CONNECT", "http://127.0.0.1/1/x"),
        ("get", "http://127.0.0.1/1/x"),
        ("GET / HTTP/1.1\r\nX: y\r\n\r\nGET", "http://127.0.0.1/1/x"),
        ("GET", "http://127.0.0.1"),
        ("GET", "http:/"),
        ("GET", "ftp://127.0.0.1/1/x"),
        ("GET", "http://127.0.0.1/1/x?"),
        ("GET", "http://127.0.0.1/1/x#part"),
        ("GET", "http://127.0.0.1/1/a b"),
        ("GET", "http://127.0.0.1/1/a\r\nX: y"),
        ("GET", "http://127.0.0.1/1/a\n"),
        ("GET", "http://127.0.0.1/1/\x7f"),
        ("GET", "http://127.0.0.1/1/é"),
        ("GET", "http://user:pass@127.0.0.1/1/x"),
        ("GET", "http://h\r\nX: y/1/x"),
        ("GET", "http://bücher.example/1/x"),
        ("GET", "http://[::1/1/x"),
        ("GET", "http://h:port/1/x"),
        ("GET", "http:///1/x"),
    ],
)
async def test_unusual_requests_are_left_to_aiohttp(open_pool: Any, method: str, url: str) -> None:
    """A request that aiohttp would change, refuse or frame otherwise is left to it."""
    pool = open_pool()
    pool._open()
    assert pool._usual.direct is not None
    assert pool._usual.direct.plan(method, url, None, "application/json") is None
    assert not pool._usual.direct._prototypes


async def test_a_large_body_is_out_of_the_ordinary(open_pool: Any) -> None:
    """A body of more than 1 MiB is left to aiohttp, which sends it in pieces no faster than they are taken."""
    pool = open_pool()
    pool._open()
    for size, is_planned in ((2**20, True), (2**20 + 1, False)):
        plan = pool._usual.direct.plan("POST", "http://127.0.0.1/1/x", bytes(size), "application/json")
        assert (plan is not None) is is_planned


async def test_prepared_requests_are_bounded(open_pool: Any) -> None:
    """Requests to many origins do not pile up what is prepared for each."""
    pool = open_pool()
    pool._open()
    for port in range(1, 200):
        assert pool._usual.direct.plan("GET", f"http://[::1]:{port}/1/x", None, "") is not None
    assert 0 < len(pool._usual.direct._prototypes) <= 64


async def test_heads_are_kept_without_credentials(open_pool: Any) -> None:
    """What a request begins with is made once for a URL without a query, and never kept where a query may hold credentials."""
    pool = open_pool()
    pool._open()
    direct = pool._usual.direct
    for number in range(200):
        assert direct.plan("POST", f"http://127.0.0.1/1/cards/{number}", b"{}", "application/json") is not None
        assert direct.plan("GET", f"http://127.0.0.1/1/cards/{number}?token=t", None, "") is not None
    assert 0 < len(direct._heads) <= 64
    assert "token" not in repr(direct._heads)
    first = direct.plan("POST", "http://127.0.0.1/1/cards/199", b"{}", "application/json")
    again = direct.plan("POST", "http://127.0.0.1/1/cards/199", b"[1]", "application/json")
    assert again == (first[0], first[1].replace(b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 3\r\n\r\n[1]"))
