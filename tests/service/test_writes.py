"""Requests of one iteration of the event loop are written together, and what is given up before is not written."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any
from unittest.mock import Mock

import pytest
from session_helpers import transport_settings
from transport_helpers import read_request

from boardclient._transport._choice import TransportChoice
from boardclient._transport._connection_pool import Protocol
from boardclient._transport._direct import Writes
from boardclient._transport._values import Progress, RawResponse, TransportFailure
from boardclient.errors import Effect


class Service:
    """A service that keeps the bodies it was sent, and answers when it is let."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                self.bodies.append((await read_request(reader)).partition(b"\r\n\r\n")[2])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def open_connections(pool: TransportChoice, url: str, number: int) -> None:
    """Leave so many idle connections in the pool."""
    await asyncio.gather(*(pool.send("POST", f"{url}/1/x", b"%d" % one, Progress()) for one in range(number)))


async def begun(*calls: asyncio.Task[Any]) -> None:
    """Wait until the tasks have reached their first wait: nothing that they scheduled has run."""
    assert calls
    await asyncio.sleep(0)


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_ends_before_it_is_written_was_not_sent(raw_server: Any, is_lost: bool) -> None:
    """A call that is cancelled, or whose connection ends, in the iteration in which it would be written is not sent."""
    service, pool, progress = Service(), TransportChoice(transport_settings()), Progress()
    async with raw_server.run(service.handle) as url:
        await open_connections(pool, url, 3)
        service.bodies.clear()
        others = [asyncio.create_task(pool.send("POST", f"{url}/1/x", body, Progress())) for body in (b"[1]", b"[2]")]
        call = asyncio.create_task(pool.send("POST", f"{url}/1/x", b"[3]", progress))
        await begun(*others, call)
        assert progress.effect_under_way is Effect.NOT_SENT
        if is_lost:
            assert pool._connector is not None
            for protocol in list(pool._connector._acquired):
                protocol.close()
        else:
            call.cancel()
        outcomes = await asyncio.gather(*others, call, return_exceptions=True)
        await pool.aclose()
    if is_lost:
        assert b"[2]" not in service.bodies
        assert b"[3]" not in service.bodies
        for outcome in outcomes[1:]:  # the first was alone when it began, and written at once
            assert isinstance(outcome, TransportFailure)
            assert (outcome.phase, outcome.effect) == ("connect", Effect.NOT_SENT)
    else:
        assert sorted(service.bodies) == [b"[1]", b"[2]"]
        assert [type(outcome) for outcome in outcomes] == [RawResponse, RawResponse, asyncio.CancelledError]
        assert progress.effect_under_way is Effect.NOT_SENT


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_a_request_that_was_written_may_have_been_done(raw_server: Any) -> None:
    """A call that is cancelled after the iteration in which it was written is of unknown effect."""
    arrived, progress = asyncio.Event(), Progress()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        await asyncio.Event().wait()

    async with raw_server.run(handle) as url:
        pool = TransportChoice(transport_settings())
        calls = [asyncio.create_task(pool.send("POST", f"{url}/1/x", b"{}", progress)) for progress in (progress, Progress())]
        await arrived.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await pool.aclose()
    assert progress.effect_under_way is Effect.UNKNOWN


async def test_all_requests_of_a_loop_iteration_are_written_together() -> None:
    """Nothing is written before the iteration of the event loop ends; then all are, in order, also where one transport raises."""
    written: list[bytes] = []
    writes, progress = Writes(), [Progress() for _ in range(3)]
    protocols = [Mock() for _ in range(3)]
    for protocol in protocols:
        protocol.reader.progress.done.return_value = protocol.has_unread_records.return_value = False
        protocol.reader.write.side_effect = written.append
    protocols[1].reader.write.side_effect = RuntimeError
    for number in range(3):
        writes.add(protocols[number], b"%d" % number, progress[number])
    assert (written, {one.stage for one in progress}) == ([], {"write"})
    await asyncio.sleep(0)
    assert (written, {one.stage for one in progress}) == ([b"0", b"2"], {"send"})
    assert [protocol.abort.called for protocol in protocols] == [False, True, False]
    protocols[0].reader.progress.done.return_value = True  # its connection was lost
    writes.add(protocols[0], b"3", progress[0])
    await asyncio.sleep(0)
    assert written == [b"0", b"2"]
    protocols[2].can_be_written.return_value = False  # since the connection was taken from the pool
    writes.add(protocols[2], b"4", later := Progress())
    await asyncio.sleep(0)
    assert (written, later.stage, protocols[2].abort.called) == ([b"0", b"2"], "write", True)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"HTTP/1.1 2", None])
async def test_a_connection_that_has_input_before_the_request_gets_none(
    raw_server: Any, contexts: Any, sent: bytes | None
) -> None:
    """What the peer sends, or its end, between the look at a connection and the write: nothing is written, over TLS too."""
    service, pool, progress = Service(), TransportChoice(transport_settings(**contexts[1])), [Progress() for _ in range(3)]
    async with raw_server.run(service.handle, contexts[0]) as url:
        await open_connections(pool, url, 3)
        service.bodies.clear()
        calls = [asyncio.create_task(pool.send("POST", f"{url}/1/x", b"[%d]" % index, one)) for index, one in enumerate(progress)]
        await begun(*calls)  # all have connections; on Python 3.12 and newer aiohttp has written already
        unwritten = [call for call, one in zip(calls, progress, strict=True) if one.effect_under_way is Effect.NOT_SENT]
        for writer in service.writers:
            if sent is None:
                writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
            else:
                writer.write(sent)
        outcomes = await asyncio.gather(*unwritten)
        await asyncio.gather(*calls, return_exceptions=True)
        await pool.aclose()
    for outcome in outcomes:
        assert isinstance(outcome, TransportFailure)
        assert (outcome.phase, outcome.effect) == ("connect", Effect.NOT_SENT)
    assert len(service.bodies) <= len(calls) - len(unwritten)


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_a_connection_without_a_socket_is_used() -> None:
    """A transport that has no socket to ask for input is taken as it is."""
    protocol = Protocol(asyncio.get_running_loop())
    protocol.connection_made(Mock(get_extra_info={}.get, is_closing=lambda: False))
    assert protocol.is_connected()
