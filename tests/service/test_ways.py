"""The two ways of an exchange: the same bytes leave, the same outcomes come back, and each request takes the right one."""

from __future__ import annotations

import asyncio
import gzip
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aioresponses import aioresponses as AioResponses

from boardclient import Effect
from boardclient._transport import Progress, RawResponse, Settings, TransportFailure, _direct, _instruments, _probe
from boardclient._transport._client_session import ClientSessionTransport
from boardclient._transport._connections import Connector
from boardclient._transport._pool import Pool

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def send(pool: Pool, method: str, url: str, body: bytes | None = None) -> RawResponse | TransportFailure:
    return await pool.send(method, url, body, Progress())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request whole, by its Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


@pytest.fixture
async def open_pool() -> AsyncIterator[Callable[..., Pool]]:
    """Make pools, which are closed in the end and leave no connection behind."""
    pools: list[Pool] = []

    def opened(lent: aiohttp.ClientSession | None = None, **settings: Any) -> Pool:
        pools.append(Pool(Settings(**{"max_connections": 1, **settings}), lent))
        return pools[-1]

    yield opened
    for pool in pools:
        connector = pool._connector
        assert connector is None or not connector._acquired
        await pool.aclose()


@pytest.fixture
async def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the transports that requests took, as they leave."""
    assert _probe.fault() == ""  # which sends requests, too
    taken: list[str] = []
    for name, kind in (("direct", _direct.DirectTransport), ("public", ClientSessionTransport)):

        def noted(self: Any, *args: Any, name: str = name, round_trip: Any = kind.round_trip) -> Any:
            taken.append(name)
            return round_trip(self, *args)

        monkeypatch.setattr(kind, "round_trip", noted)
    return taken


# --- what is used of aiohttp


async def test_this_aiohttp_passes_the_probe() -> None:
    """The aiohttp installed does what the direct transport needs, the first time and from memory."""
    assert _probe.fault() == _probe.fault() == _probe._fault() == ""


def _without_exceptions(self: Any, *args: Any) -> None:
    """A protocol whose parser reports nothing."""


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (aiohttp.TCPConnector, "connect", None),
        (aiohttp.client_proto.ResponseHandler, "set_response_params", lambda self: None),
        (aiohttp.client_proto.ResponseHandler, "set_exception", _without_exceptions),
        (aiohttp.client_proto.ResponseHandler, "data_received", lambda self, data: None),
        (aiohttp.client_proto.ResponseHandler, "should_close", True),
        (aiohttp.StreamReader, "is_eof", lambda self: False),
        (_probe, "_REQUEST", b"PUT"),
        (_probe, "Connector", None),
        (_direct.DirectTransport, "plan", lambda *args: None),
        (_probe, "is_given_up", lambda protocol: True),
        (_probe.Protocol, "_has_input", lambda self: False),
        (_probe.Protocol, "_end_body", lambda self: None),
    ],
)
async def test_an_aiohttp_that_differs_fails_the_probe(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
) -> None:
    """Whatever is missing or behaves otherwise, the probe says so instead of raising or waiting, and the session works."""
    monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(_probe, "_verdicts", [])
    assert _probe.fault() != ""
    pool = open_pool()
    pool._open()
    assert pool._usual.direct is None
    assert repr(pool) == "0/1 connections, ClientSessionTransport"


async def test_the_parser_is_set_up_as_a_session_does() -> None:
    """The limits that a response over the direct transport leaves at their defaults are those of a session's own requests."""
    from aiohttp.client_proto import ResponseHandler

    defaults = {name: one.default for name, one in inspect.signature(ResponseHandler.set_response_params).parameters.items()}
    async with aiohttp.ClientSession() as http:
        for name in ("read_bufsize", "max_headers", "auto_decompress"):
            assert defaults[name] == getattr(http, f"_{name}")
    assert (defaults["timer"], defaults["skip_payload"], defaults["read_timeout"]) == (None, False, None)


async def test_what_was_fed_lies_in_the_buffer() -> None:
    """The reader of aiohttp has its unread chunks where the direct transport expects them, and counts them."""
    content = aiohttp.StreamReader(Mock(), 2**16, loop=asyncio.get_running_loop())
    for piece in (b"a", b"bc"):
        content.feed_data(piece)
    assert (b"".join(content._buffer), content.total_bytes, content.exception()) == (b"abc", 3, None)
    assert aiohttp.EMPTY_PAYLOAD.total_bytes == 0


@pytest.mark.parametrize("way", ["direct"], indirect=True)
async def test_an_answer_that_came_whole_is_not_asked_for(
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
    assert not _instruments.is_wrapped()
    with AioResponses():
        assert _instruments.is_wrapped()
        assert _instruments.is_mocked()
        assert not _instruments._is_of_aiohttp(aiohttp.ClientSession._request)
    assert not _instruments.is_mocked()
    assert not _instruments._is_of_aiohttp(print)
    claiming = Mock(__code__=aiohttp.ClientSession._request.__code__)  # as a wrapper of wrapt's does
    assert not _instruments._is_of_aiohttp(claiming)


# --- which way is taken


async def test_chosen_automatically(open_pool: Any, raw_server: Any, exchanges: list[str], way: str) -> None:
    """A pool of our own uses the direct transport, and the other one if it is switched off."""

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        assert await send(pool, "GET", f"{url}/1/x") == await send(pool, "POST", f"{url}/1/x", b"{}")
    assert exchanges == [way, way]
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
async def test_a_session_that_was_changed_is_not_served(change: Callable[[Any], None]) -> None:
    """What an instrumentation adds to every new session turns the direct way off."""
    async with aiohttp.ClientSession(request_class=_direct.SignedRequest, response_class=_direct.ShownResponse) as http:
        assert _direct.serves(http, {})
        change(http)
        assert not _direct.serves(http, {})


@pytest.mark.parametrize("name", ["Expect", "transfer-encoding", "Content-Length", "Cookie", "CONNECTION"])
async def test_headers_that_frame_a_message_are_not_served(open_pool: Any, name: str) -> None:
    """An application's own headers that change how a request is framed are left to aiohttp."""
    pool = open_pool(headers={name: "x"})
    pool._open()
    assert pool._usual.direct is None


@pytest.mark.parametrize("settings", [{"trust_env": True}, {"proxy": "http://proxy.example"}])
async def test_proxies_are_not_served(open_pool: Any, settings: dict[str, Any]) -> None:
    """A proxy, also one that the environment may name, turns the direct way off."""
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
async def test_what_is_out_of_the_ordinary(open_pool: Any, method: str, url: str) -> None:
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


async def test_what_is_prepared_is_bounded(open_pool: Any) -> None:
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


# --- the same bytes leave


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "boards.example:80", "Accept": "text/plain", "accept-encoding": "identity"},
        {"X-Own": "ü ok", "user-agent": "mine", "Authorization": "Bearer t", "Content-Type": "text/x"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "body", [None, b"", b'{"name": "x"}', b"y" * 3000, b"z" * (2**20 + 1)], ids=lambda body: str(len(body or ""))
)
async def test_the_same_bytes_leave(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, headers: Any, method: str, body: bytes | None, way: str
) -> None:
    """Whatever the method, body and headers, the server sees no difference."""
    seen: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async with raw_server.run(handler) as url:
        for target in ("/1/cards", "//base/../1/a%20b?x=[]{}|^`\"<>'&y=%E2%82%AC"):
            monkeypatch.setattr(Pool, "_may_be_direct", way == "direct")
            pool = open_pool(headers=headers)
            assert isinstance(await send(pool, method, url + target, body), RawResponse)
            monkeypatch.setattr(Pool, "_may_be_direct", False)
            assert isinstance(await send(pool, method, url + target, body), RawResponse)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert raw_server.served == 2


# --- the same outcomes come back

JSON = b'{"id": "c"}'
PACKED = gzip.compress(JSON * 9)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ANSWERS: dict[str, tuple[bytes, object, bool]] = {
    # name: the bytes of the answer, what becomes of it, whether the connection serves on
    "plain": (OK, (200, b"{}"), True),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, b""), True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", (304, b""), True),
    "chunked": (CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", (200, b"{}"), True),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", (200, b"{}"), True),
    "after 100 and 103": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, (200, b"{}"), True),
    "packed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(PACKED), PACKED),
        (200, JSON * 9),
        True,
    ),
    "closing": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}"), False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}"), False),
    "upgraded": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc", (101, b""), False),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n{}", (200, b"{}"), False),
    "error": (b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad", (500, b"bad"), True),
    "redirect": (b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", (307, b""), True),
    "nothing": (b"", "the connection was closed before the response", False),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection was closed before the response", False),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "the response broke off or could not be unpacked", False),
    "half a chunk": (CHUNKED + b"5\r\n{}", "the response broke off or could not be unpacked", False),
    "a bad chunk": (CHUNKED + b"x\r\n{}", None, False),
    "badly packed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        "the response broke off or could not be unpacked",
        False,
    ),
    "not HTTP": (b"220 mail.example ready\r\n\r\n", "the response is not HTTP", False),
    "a long header": (b"HTTP/1.1 200 OK\r\nX: %s\r\n\r\n" % (b"x" * 70_000), "the response is not HTTP", False),
    "many headers": (b"HTTP/1.1 200 OK\r\n%s\r\n" % (b"X: y\r\n" * 200), "the response is not HTTP", False),
    "a bad length": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "the response is not HTTP", False),
    "too large": (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, "the response is larger than 100 bytes", True),
    "far too large": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + b"x" * 101,
        "the response is larger than 100 bytes",
        False,
    ),
    "a large error": (b"HTTP/1.1 400 No\r\nContent-Length: 999\r\n\r\n" + b"x" * 101, (400, b"x" * 100), False),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("torn", [False, True])
async def test_the_same_outcomes_come_back(open_pool: Any, raw_server: Any, name: str, torn: bool) -> None:
    """Whatever the server answers, in one piece or byte by byte, both ways make the same of it and of the connection."""
    answer, expected, stays = ANSWERS[name]
    size = max(1, len(answer) // 1000) if torn else len(answer) + 1

    async def handler(reader: Any, writer: Any) -> None:
        while await read_request(reader):
            for piece in [answer[at : at + size] for at in range(0, len(answer), size)]:
                writer.write(piece)
                await asyncio.sleep(0)
            await writer.drain()
            if not stays and not name.startswith(("far", "a large")):
                return

    async with raw_server.run(handler) as url:
        pool = open_pool(max_answer_bytes=100)
        outcome = await send(pool, "GET", f"{url}/1/x")
        if isinstance(outcome, RawResponse):
            assert (outcome.status, outcome.body) == expected
        else:
            assert expected in {None, outcome.why}
            assert (outcome.phase, outcome.effect) == ("receive", Effect.DONE if "larger" in outcome.why else Effect.UNKNOWN)
        await send(pool, "GET", f"{url}/1/x")
        if torn and name == "too large":
            return  # where it was refused depends on the pieces
        assert raw_server.served == (1 if stays else 2)


# --- connections


async def test_an_answer_that_nobody_asked_for(open_pool: Any, raw_server: Any) -> None:
    """A response on an idle connection is not used for the next request, which is not sent on that connection."""
    release = asyncio.Event()
    there = asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)
            if raw_server.served == 1:
                await release.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
                await writer.drain()
                there.set()

    async with raw_server.run(handler) as url:
        pool = open_pool()
        assert isinstance(await send(pool, "GET", f"{url}/1/x"), RawResponse)
        release.set()
        await there.wait()
        connector: Any = pool._connector
        ((protocol, _),) = next(iter(connector._conns.values()))
        while not len(protocol):
            await asyncio.sleep(0)
        outcome = await send(pool, "GET", f"{url}/1/x")
    assert isinstance(outcome, RawResponse)
    assert outcome.body == b"{}"
    assert raw_server.served == 2


async def test_a_connection_that_is_gone_before_it_is_used(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A connection that closes as it is handed over is never written to."""

    async def handler(reader: Any, writer: Any) -> None:
        await reader.read()

    connect = aiohttp.TCPConnector.connect

    async def closing(self: Any, *args: Any) -> Any:
        connection = await connect(self, *args)
        assert connection.transport is not None
        connection.transport.close()
        return connection

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", closing)
    async with raw_server.run(handler) as url:
        pool = open_pool()
        outcome = await send(pool, "GET", f"{url}/1/x")
    assert isinstance(outcome, TransportFailure)
    assert outcome.effect is (Effect.NOT_SENT if way == "direct" else Effect.UNKNOWN)


async def test_an_answer_before_the_body_was_read(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, exchanges: list[str], way: str
) -> None:
    """A response that comes while the body is still on its way is taken, and the connection is not used again."""

    async def handler(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.transport.pause_reading()
        await asyncio.Event().wait()

    monkeypatch.setattr(_direct, "LARGE_BODY_BYTES", 16 * 2**20)  # the system alone takes more than what is large otherwise
    async with raw_server.run(handler) as url:
        pool = open_pool()
        for _ in range(2):
            outcome = await send(pool, "POST", f"{url}/1/x", b"x" * 15 * 2**20)
            assert isinstance(outcome, RawResponse)
            assert (outcome.status, outcome.body) == (413, b"no")
    assert exchanges == [way] * 2
    assert raw_server.served == 2


@pytest.mark.parametrize("size", [0, 2**20])
async def test_cancelled_anywhere(open_pool: Any, raw_server: Any, size: int) -> None:
    """A request that is cancelled at any step gives its connection back, and nothing of it reaches the next one."""

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            request = await read_request(reader)
            target = request.split(b" ")[1]
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(target))
            await asyncio.sleep(0)
            writer.write(target)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        steps = 0
        outcome: object = None
        while not isinstance(outcome, RawResponse):
            task = asyncio.ensure_future(send(pool, "POST", f"{url}/cancelled", b"x" * size))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            following = await send(pool, "POST", f"{url}/following", b"y")
            assert isinstance(following, RawResponse)
            assert following.body == b"/following"
            steps += 1
    assert steps > 5


async def test_the_stages_of_a_request(open_pool: Any, raw_server: Any) -> None:
    """The progress says how far it is: waiting for a connection, sent, receiving, and idle in the end."""
    heads, bodies = asyncio.Event(), asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            await heads.wait()
            writer.write(OK[:-1])
            await bodies.wait()
            writer.write(OK[-1:])

    async def until(stage: str, one: Progress) -> None:
        while one.stage != stage:
            await asyncio.sleep(0)

    async with raw_server.run(handler) as url, asyncio.timeout(60):
        pool = open_pool()
        first, second = Progress(), Progress()
        running = [asyncio.ensure_future(pool.send("GET", f"{url}/1/x", None, one)) for one in (first, second)]
        await until("send", first)
        assert second.stage == "connect"
        heads.set()
        await until("receive", first)
        bodies.set()
        await asyncio.gather(*running)
        assert (first.stage, second.stage) == ("idle", "idle")


async def test_both_ways_share_connections(open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is out of the ordinary uses the connection of the others."""

    async def handler(reader: Any, writer: Any) -> None:
        while await read_request(reader):
            writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        for target in ("/1/x", "/1/x?", "/1/x", "/1/x#y"):
            assert isinstance(await send(pool, "GET", url + target), RawResponse)
        assert isinstance(pool._connector, Connector)
    assert raw_server.served == 1


# --- header fields of a single request


@pytest.mark.parametrize("extra", [{"traceparent": "00-1-2-01", "tracestate": "a=b c"}, {"Accept": "text/x"}, {"X": "é"}])
async def test_headers_of_a_single_request(open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, extra: Any) -> None:
    """Fields that are given with one request are sent with that request only, in place of those of the same name."""
    seen: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        await pool.send("POST", f"{url}/1/x", b"{}", Progress(), headers=extra)
        await send(pool, "POST", f"{url}/1/x", b"{}")
    for name, value in extra.items():
        assert seen[0].count(f"\r\n{name}: {value}\r\n".encode()) == 1
        assert seen[0].lower().count(f"\r\n{name}:".lower().encode()) == 1
        assert f"\r\n{name}: {value}\r\n".encode() not in seen[1]


@pytest.mark.parametrize("extra", [{"X": "a\r\nY: b"}, {"X: y": "z"}, {"X": ""}, {"Content-Length": "7"}, {"X": " a"}])
async def test_a_malformed_field_is_left_to_aiohttp(open_pool: Any, extra: Any) -> None:
    """A field that could change how the request is framed is never written by us."""
    pool = open_pool()
    pool._open()
    assert pool._usual.direct.plan("GET", "http://127.0.0.1/1/x", None, "", {"X": "y"}) is not None
    assert pool._usual.direct.plan("GET", "http://127.0.0.1/1/x", None, "", extra) is None


async def test_what_an_instrument_writes_stays_with_its_request(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that an instrument adds to one request is not sent with the next one, which may be another user's."""
    seen: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async def writing(self: Any, *args: Any, headers: Any, original: Any = aiohttp.ClientSession._request, **kwargs: Any) -> Any:
        headers["baggage"] = f"user.id={len(headers.getall('baggage', []))}"  # as ddtrace and elastic-apm do
        return await original(self, *args, headers=headers, **kwargs)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", writing)
    async with raw_server.run(handler) as url:
        pool = open_pool()
        for body in (None, None, b"{}", b"{}"):
            assert isinstance(await send(pool, "POST", f"{url}/1/x", body), RawResponse)
    assert [request.count(b"baggage: user.id=0\r\n") for request in seen] == [1] * 4
