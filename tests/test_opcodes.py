"""How much Python an ordinary call runs, counted in opcodes: a measure that does not depend on the machine."""

import asyncio
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

from boardclient import AsyncSession, CardDraft, StaticCredentials
from boardclient._transport import Progress, RawResponse, Settings
from boardclient._transport._connections import Connector
from boardclient._transport._direct import DirectTransport
from boardclient._transport._headers import RequestHeaders

_CREATED = RawResponse(200, {}, b'{"id": "c1", "name": "n", "desc": "d", "url": "u"}')

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of Python has opcodes of its own")


class Pool:
    """A transport that answers in the next iteration of the event loop, or at once."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    async def send(self, *arguments: Any, **options: Any) -> RawResponse:
        if self._waits:
            await asyncio.sleep(0)
        return _CREATED

    async def aclose(self) -> None: ...


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def is_decoding(frame: FrameType | None) -> bool:
    """Return True if a frame decodes a response, or is called by one that does."""
    while frame is not None:
        if module_of(frame) == "boardclient._convert":
            return True
        frame = frame.f_back
    return False


async def opcodes(work: Awaitable[object]) -> int:
    """Return how many opcodes of the package run, without decoding."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        if not module_of(frame).startswith("boardclient.") or is_decoding(frame):
            return None
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return count

    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        await work
    finally:
        sys.settrace(tracer)
    return counted


def session_on(pool: Pool) -> AsyncSession:
    """Return a session with static credentials and no observers."""
    session = AsyncSession(StaticCredentials("token", "key"), "https://board.example")
    session._core.pool = pool  # type: ignore[assignment]  # -- all that a call asks of it
    return session


async def test_an_ordinary_call_runs_few_opcodes() -> None:
    """Creating a card with static credentials and no observers stays within a bound, without transport and decoding."""
    async with session_on(Pool(waits=False)) as session:
        await session.cards.create("n", list_id="l")
        counted = await opcodes(session.cards.create("n", list_id="l"))
    assert 0 < counted <= 450


async def test_a_card_of_a_bulk_run_runs_few_opcodes() -> None:
    """A card of a run without a journal stays within a bound, its draft and result included."""
    async with session_on(Pool(waits=True)) as session:

        async def run(cards: int) -> None:
            await session.cards.create_many((CardDraft("n", "l") for _ in range(cards)), concurrency=16).wait()

        await run(1)
        few, many = [await opcodes(asyncio.create_task(run(cards))) for cards in (100, 200)]
    assert 0 < (many - few) / 100 <= 843


async def test_a_card_of_a_run_with_a_journal_runs_few_opcodes_more(tmp_path: Path) -> None:
    """The thread that writes the journal is left out: what it runs for each row is in C."""
    async with session_on(Pool(waits=True)) as session:

        async def run(cards: int) -> None:
            drafts = (CardDraft("n", "l") for _ in range(cards))
            await session.cards.create_many(drafts, concurrency=16, journal=tmp_path / str(cards)).wait()

        await run(1)
        few, many = [await opcodes(asyncio.create_task(run(cards))) for cards in (128, 256)]
    assert 0 < (many - few) / 128 <= 1060


class CannedTransport(asyncio.Transport):
    """A transport whose peer responds to a request as soon as it is written."""

    def __init__(self, protocol: Any, end: socket.socket) -> None:
        super().__init__({"socket": end})
        self._protocol = protocol

    def write(self, data: object) -> None:
        self._protocol.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize(("in_flight", "bound"), [(1, 353), (2, 460)])
async def test_an_exchange_runs_few_opcodes(in_flight: int, bound: int) -> None:
    """A request over an idle connection stays within a bound, also if others in flight put off its writing."""
    connector = Connector(in_flight, True)
    direct = DirectTransport(connector, RequestHeaders(Settings()), 2**20)
    protocol: Any = connector._factory()

    def plan() -> tuple[Any, bytes]:
        planned = direct.plan("POST", "http://127.0.0.1/1/cards", b"{}", "application/json")
        assert planned is not None
        return planned

    async def exchange() -> None:
        assert isinstance(await direct.round_trip(*plan(), Progress()), RawResponse)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        protocol.connection_made(CannedTransport(protocol, ours))
        connector._acquired.update([Mock() for _ in range(1, in_flight)])
        connector.give_back(plan()[0].connection_key, protocol)
        await exchange()
        counted = await opcodes(exchange())
    connector.abandon()
    assert 0 < counted <= bound
