"""Requests that wait for a connection: their order, and what happens if one of them is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest
from session_helpers import transport_settings
from transport_helpers import OK, read_request, send
from waiting import until

from boardclient._transport._choice import TransportChoice
from boardclient._transport._connection_pool import ConnectionQueue
from boardclient._transport._values import RawResponse


class Server:
    """A handler that responds to each request, and notes the bodies in the order in which they arrive."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.open: asyncio.Event | None = None
        """While it is set to an event, responses wait for it."""

    async def __call__(self, reader: Any, writer: Any) -> None:
        while True:
            self.bodies.append((await read_request(reader)).partition(b"\r\n\r\n")[2])
            if self.open is not None:
                await self.open.wait()
            writer.write(OK)


@pytest.mark.parametrize("limit", [1, 2])
async def test_callers_that_make_call_after_call_share_connections(open_pool: Any, raw_server: Any, limit: int) -> None:
    """None of them keeps a connection to itself while others wait."""
    server = Server()
    async with raw_server.run(server) as url:
        pool = open_pool(max_connections=limit)

        async def caller(name: bytes) -> None:
            for _ in range(10):
                assert isinstance(await send(pool, "POST", f"{url}/1/x", name), RawResponse)

        async with asyncio.timeout(60):
            await asyncio.gather(*map(caller, [b"0", b"1", b"2", b"3"]))
        for served in (8, 16, 24, 32):
            counts = Counter(server.bodies[:served])
            assert max(counts.values()) - min(counts.values()) <= 1
        assert len(counts) == 4
        assert pool.connections == (limit, limit, 0)


async def until_sent(server: Server, body: bytes) -> None:
    await until(lambda: server.bodies[-1] == body)


async def test_a_connection_that_can_not_be_opened_resumes_the_next_request(open_pool: Any, raw_server: Any) -> None:
    """A failed attempt does not use a connection up."""
    async with raw_server.run(Server()) as url:
        pool = open_pool()
        failing = [send(pool, "POST", "http://127.0.0.1:1/1/x", b"{}") for _ in range(3)]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*failing, send(pool, "POST", f"{url}/1/x", b"{}"))
        assert [isinstance(outcome, RawResponse) for outcome in outcomes] == [False, False, False, True]


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_trace_configs_are_notified_of_the_wait(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with aiohttp's own queue, a request that waits is announced, and its end too."""
    noted: list[str] = []
    config = aiohttp.TraceConfig()

    async def begins(*arguments: Any) -> None:
        noted.append("begins")

    async def ends(*arguments: Any) -> None:
        noted.append("ends")

    config.on_connection_queued_start.append(begins)
    config.on_connection_queued_end.append(ends)
    made = aiohttp.ClientSession.__init__

    def traced(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **{**options, "trace_configs": [config]})

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", traced)
    async with raw_server.run(Server()) as url, asyncio.timeout(60):
        pool = TransportChoice(transport_settings(max_connections=1))
        await asyncio.gather(*[send(pool, "POST", f"{url}/1/x", b"{}") for _ in range(2)])
        await pool.aclose()
    assert noted == ["begins", "ends"]


async def test_a_request_that_was_just_cancelled_is_passed_over() -> None:
    """A request in the queue that has not run since its cancellation leaves the free connection to the next one as it ends."""
    acquired, order = {"a connection"}, []
    queue = ConnectionQueue(acquired, 1)

    async def wait(name: str) -> None:
        await queue.wait()
        order.append(name)

    one, two = asyncio.create_task(wait("one")), asyncio.create_task(wait("two"))
    await asyncio.sleep(0)
    assert (len(queue), queue.limit) == (2, 0)
    one.cancel()
    acquired.clear()
    queue.resume()
    async with asyncio.timeout(60):
        await asyncio.wait({one, two})
    assert (one.cancelled(), order, len(queue), queue.limit) == (True, ["two"], 0, 1)


async def test_a_connection_that_becomes_free_while_traces_are_notified_is_taken() -> None:
    """A request that was about to wait does not, since nothing would resume it."""
    acquired, noted = {"a connection"}, list[str]()
    queue = ConnectionQueue(acquired, 1)

    class Trace:
        async def send_connection_queued_start(self) -> None:
            acquired.clear()
            queue.resume()

        async def send_connection_queued_end(self) -> None:
            noted.append(f"{queue.limit} for others")
            queue.resume()
            noted.append(f"{queue.limit} for others")

    trace: Any = Trace()
    async with asyncio.timeout(60):
        await queue.wait([trace])
    assert (noted[-1], len(queue), queue.limit) == ("0 for others", 0, 1)
