"""Bodies below HTTP: leave to send one, one that is too long, and what `due` and `pos` may be."""

from __future__ import annotations

import asyncio
import json

import pytest

from boardclient.testing import BoardService, playground


def head(service: BoardService, length: int | None, *more: str) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ["POST /1/boards HTTP/1.1", "Host: x", "Content-Type: application/json", size, *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def body(service: BoardService) -> bytes:
    return json.dumps({"name": "B", "key": service.key, "token": service.token}).encode()


async def test_a_client_that_waits_for_leave_gets_it(service) -> None:
    """A client that sends `Expect: 100-continue` gets an interim response before its body (RFC 9110, 10.1.1)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head(service, len(body(service)), "Expect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body(service))
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_leave_is_refused_for_a_body_that_is_too_long(service) -> None:
    """With `Expect: 100-continue` a body that is too long is refused with 413 before it is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head(service, 2**20 + 1, "Expect: 100-continue"))
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    assert [(call.operation, call.status, call.body) for call in service.calls] == [("boards.create", 413, None)]


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_early_refusal_can_be_read_by_a_client_that_sends_first(service, chunked: bool) -> None:
    """The rest of the body is read and dropped: no reset takes the response away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    size = 8 * 2**20
    writer.write(head(service, None if chunked else size))
    for _ in range(size // 2**16):
        part = b"x" * 2**16
        writer.write(b"10000\r\n" + part + b"\r\n" if chunked else part)
        await writer.drain()
    writer.write(b"0\r\n\r\n" if chunked else b"")
    await writer.drain()
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_body_as_long_as_allowed_is_read() -> None:
    async with BoardService(max_body_bytes=200) as service:
        for length, status in ((200, b"200"), (201, b"413")):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            whole = body(service).ljust(length)
            writer.write(head(service, len(whole)) + whole)
            assert (await reader.readline()).split()[1] == status
            writer.close()


@pytest.mark.parametrize(
    ("due", "status"),
    [
        (None, 200),
        ("2027-01-02", 200),
        ("20270102", 200),
        ("2027-W01-3", 200),
        ("2027-01-02T03:04:05Z", 200),
        ("20270102T030405Z", 200),
        ("2027-01-02T03:04:05.123456+01:00", 200),
        ("2027-01-02T03:04:05,5-01:30", 200),
        ("2027-01-02T03:04", 200),
        ("", 400),
        ("soon", 400),
        ("2027-13-01", 400),
        ("2027-02-29", 400),
        ("0000-01-01", 400),
        ("2027-01-02 03:04:05", 400),
        ("2027-01-02T25:00", 400),
        ("2027-01-02T03:04:61", 400),
        ("2027-01-02T03:04:05+24:00", 400),
        ("2027-01-02T03:04:05Zulu", 400),
        ("٢٠٢٧-01-02", 400),
        (5, 400),
    ],
)
async def test_a_due_date_is_an_iso_8601_date_time(client, service, due, status: int) -> None:
    """Calendar and week dates are accepted, with or without separators, time, fraction and offset, and nothing else."""
    home = await client.home()
    assert (await client.ask("POST", "/1/cards", {"name": "C", "idList": home, "due": due})).status == status


@pytest.mark.parametrize(
    ("pos", "status"), [(None, 200), ("top", 200), (1.5, 200), ("3", 200), (True, 400), (10**400, 400), ({}, 400)]
)
async def test_a_null_position_counts_as_not_sent(client, service, pos, status: int) -> None:
    """A position may be null, a number or a word; other types and infinite numbers are refused."""
    home = await client.home()
    assert (await client.ask("POST", "/1/cards", {"name": "C", "idList": home, "pos": pos})).status == status


async def test_a_playground_is_a_service_and_an_open_session() -> None:
    async with playground() as (service, session):
        board = service.seed({"To Do": ["Book the hall"]})
        assert [card.name for card in await session.boards.cards(board.id)] == ["Book the hall"]
        assert (await session.lists.create("Done", board_id=board.id)).board_id == board.id
    async with playground(BoardService(members=["Ada"])) as play:
        assert (await play.session.members.me()).id == play.service.members[0].id


async def test_on_call_receives_each_call_once_it_has_its_response() -> None:
    told = []
    async with playground(BoardService(on_call=told.append)) as (service, session):
        await session.members.me()
        assert [(call.operation, call.status) for call in told] == [("members.me", 200)]
        assert told == service.calls
