"""Which transport is taken: what is used of aiohttp is looked for, and what is out of the ordinary goes by `ClientSession`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from transport_helpers import OK, read_request, send

from boardclient import Effect
from boardclient._transport import _connection_pool
from boardclient._transport._values import RawResponse, TransportFailure

NOWHERE = "http://127.0.0.1:1"


async def serve(reader: Any, writer: Any) -> None:
    """Respond with an empty object to each request."""
    while True:
        await read_request(reader)
        writer.write(OK)


@pytest.mark.parametrize("name", ["TCPConnector", "ResponseHandler"])
async def test_an_aiohttp_that_lacks_a_part_is_used_as_documented(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """An aiohttp without something that the direct transport needs is used through `ClientSession`, and a warning names it."""
    with monkeypatch.context() as without:
        without.setattr(_connection_pool, "_USED", {**_connection_pool._USED, name: ("gone",)})
        pool = open_pool()
        assert isinstance(await send(pool, "GET", f"{NOWHERE}/1/x"), TransportFailure)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{name}.gone" in caplog.text
    assert repr(pool) == "0/1 connections, ClientSessionTransport"
    async with raw_server.run(serve) as url:
        assert isinstance(await send(pool, "POST", f"{url}/1/x", b"{}"), RawResponse)


async def test_chosen_automatically(open_pool: Any, raw_server: Any, exchanges: list[str], transport_kind: str) -> None:
    """A pool of our own uses the direct transport, and the other one if it is switched off."""
    async with raw_server.run(serve) as url:
        pool = open_pool()
        assert await send(pool, "GET", f"{url}/1/x") == await send(pool, "POST", f"{url}/1/x", b"{}")
    assert exchanges == [transport_kind, transport_kind]
    assert raw_server.served == 1


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda http: setattr(http, "_middlewares", (lambda request, handler: handler(request),)),
        lambda http: setattr(http, "_default_proxy", "http://proxy.example"),
        lambda http: http.headers.update({"X-Trace": "1"}),
        lambda http: setattr(http, "_request_class", type("Other", (aiohttp.ClientRequest,), {})),
        lambda http: setattr(http, "_default_auth", object()),
    ],
    ids=["middleware", "proxy", "headers", "request class", "auth"],
)
async def test_a_session_that_was_changed_is_not_served(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], exchanges: list[str]
) -> None:
    """What an instrumentation adds to every new session turns the direct transport off."""

    def init(self: Any, *args: Any, init: Any = aiohttp.ClientSession.__init__, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        change(self)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", init)
    await send(open_pool(), "GET", "http://127.0.0.1:port/1/x")
    assert exchanges == ["public"]


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [
        *({"headers": {name: "x"}} for name in ("upgrade", "TE", "Trailer", "Cookie", "CONNECTION")),
        {"trust_env": True},
        {"proxy": NOWHERE},
        {"lent": True},
    ],
    ids=str,
)
async def test_settings_that_only_aiohttp_serves(open_pool: Any, exchanges: list[str], settings: dict[str, Any]) -> None:
    """Headers that frame a message, proxies, also those of the environment, and lent sessions are left to aiohttp."""
    async with aiohttp.ClientSession() as http:
        pool = open_pool(http) if settings.pop("lent", False) else open_pool(**settings)
        await send(pool, "GET", f"{NOWHERE}/1/x")
    assert exchanges == ["public"]


@pytest.mark.parametrize("name", ["request", "_request"])
async def test_a_replaced_request_is_respected(
    open_pool: Any, monkeypatch: pytest.MonkeyPatch, name: str, raw_server: Any
) -> None:
    """What a test puts in the place of aiohttp's request is called, also once the pool is open."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError

    async with raw_server.run(serve) as url:
        pool = open_pool()
        assert isinstance(await send(pool, "GET", f"{url}/1/x"), RawResponse)
        monkeypatch.setattr(aiohttp.ClientSession, name, replaced)
        outcome = await send(pool, "GET", f"{url}/1/x")
    assert outcome == TransportFailure("receive", Effect.UNKNOWN, "the exchange failed (RuntimeError)")
    assert raw_server.served == 1


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("HEAD", f"{NOWHERE}/1/x", None),
        ("CONNECT", f"{NOWHERE}/1/x", None),
        ("get", f"{NOWHERE}/1/x", None),
        ("GET / HTTP/1.1\r\nX: y\r\n\r\nGET", f"{NOWHERE}/1/x", None),
        *(
            ("GET", url, None)
            for url in (
                *(NOWHERE, "http:/", "ftp://127.0.0.1/1/x", f"{NOWHERE}/1/x?", f"{NOWHERE}/1/x#part", f"{NOWHERE}/1/a b"),
                *(f"{NOWHERE}/1/a\r\nX: y", f"{NOWHERE}/1/a\n", f"{NOWHERE}/1/\x7f", f"{NOWHERE}/1/é"),
                *("http://user:pass@127.0.0.1:1/1/x", "http://h\r\nX: y/1/x", "http://h\xfc:1:1/1/x"),
                *("http://[::1/1/x", "http://h:port/1/x", "http:///1/x"),
            )
        ),
        ("POST", f"{NOWHERE}/1/x", bytes(2**20 + 1)),
    ],
    ids=repr,
)
async def test_unusual_requests_are_left_to_aiohttp(
    open_pool: Any, exchanges: list[str], method: str, url: str, body: bytes | None
) -> None:
    """A request that aiohttp would change, refuse, frame otherwise or send in pieces is left to it."""
    pool = open_pool()
    await send(pool, "POST", f"{NOWHERE}/1/x", bytes(2**10))
    await send(pool, method, url, body)
    assert exchanges == ["direct", "public"]


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_what_is_prepared_is_bounded_and_holds_no_credentials(open_pool: Any) -> None:
    """The prepared heads do not pile up with ever new origins and paths, and none has a query."""
    pool = open_pool()
    for number in range(1, 200):
        await send(pool, "GET", f"http://127.0.0.1:{number % 9}/1/cards/{number}?token=t")
        await send(pool, "POST", f"http://127.0.0.1:{number % 9}/1/cards/{number}", b"{}")
        await send(pool, "GET", f"http://[::1]:{number}/1/x")
    assert 0 < len(pool._direct._heads) <= 64
    assert 0 < len(pool._direct._prototypes) <= 64
    assert "token" not in repr(pool._direct._heads)
