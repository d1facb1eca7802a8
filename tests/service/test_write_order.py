"""Requests that are written in an order of theirs, whichever gets a connection first."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from session_helpers import transport_settings
from transport_helpers import OK, read_request

from boardclient import CardDraft
from boardclient._transport._choice import TransportChoice
from boardclient._transport._direct import Writes
from boardclient._transport._order import WriteOrder
from boardclient._transport._values import Progress, RawResponse, TransportFailure
from boardclient.errors import Effect
from boardclient.testing import BoardService


async def test_the_cards_of_a_list_are_created_in_the_order_of_the_drafts(board_service: BoardService) -> None:
    """Also the first of them, whose connections open at the same time. Lists do not wait for each other."""
    async with board_service.session() as session:
        board = await session.boards.create("B", default_lists=True)
        lists = [item.id for item in await session.boards.lists(board.id)][:2]
        drafts = [CardDraft(f"card {number}", lists[number % 2]) for number in range(240)]
        report = await session.cards.create_many(drafts, ordered=True)
    assert report.created == 240
    for list_id in lists:
        made = [call.body["name"] for call in board_service.calls_of("cards.create") if call.body["idList"] == list_id]
        assert made == [draft.name for draft in drafts if draft.list_id == list_id]


async def test_what_is_no_answer_to_whether_there_is_an_order_is_refused(board_service: BoardService) -> None:
    async with board_service.session() as session:
        with pytest.raises(TypeError, match="ordered must be True or False, not str"):
            session.cards.create_many([], ordered="yes")  # type: ignore[arg-type]  # -- it is refused


async def test_after_a_request_that_ends_unwritten_the_next_may_be_written() -> None:
    """Whether it ends while it may be written itself, before that, or while it waits."""
    order = WriteOrder()
    places = [order.enter() for _ in range(5)]
    waits = [asyncio.create_task(place.wait(is_fresh=True)) for place in places[1:]]
    await asyncio.sleep(0)
    places[2].end()
    waits[0].cancel()
    await asyncio.sleep(0)
    places[1].end()
    assert not waits[2].done()
    places[0].end()
    await waits[2]
    assert places[3].is_due(is_fresh=True)
    waits[1].cancel()
    waits[3].cancel()
    places[3].end()  # the next one was cancelled, and has not run since
    places[3].end()
    assert places[4].is_due(is_fresh=False)


async def test_what_is_written_to_new_connections_is_answered_before_others_are_used() -> None:
    """A service may accept a new connection after it has read from the others."""
    order = WriteOrder()
    places = [order.enter() for _ in range(4)]
    for place in places[:2]:
        assert place.is_due(is_fresh=True)
        place.note_written(is_fresh=True)
    assert (places[2].is_due(is_fresh=True), places[2].is_due(is_fresh=False)) == (True, False)
    wait = asyncio.create_task(places[2].wait(is_fresh=False))
    await asyncio.sleep(0)
    places[1].end()
    await asyncio.sleep(0)
    assert not wait.done()
    places[0].end()
    await wait
    places[2].note_written(is_fresh=False)
    assert places[3].is_due(is_fresh=False)


async def test_no_request_overtakes_one_that_is_held() -> None:
    """Before TLS records are read, which may be a response to nothing, a request is not written. Others need not wait for it."""
    written: list[bytes] = []
    writes, order = Writes(), WriteOrder()
    protocols = [Mock() for _ in range(4)]
    for protocol in protocols:
        protocol.reader.progress.done.return_value = protocol.has_unread_records.return_value = False
        protocol.reader.write.side_effect = written.append
    protocols[1].has_unread_records.side_effect = [True, False]
    for number, protocol in enumerate(protocols):
        writes.add(protocol, b"%d" % number, Progress(order=None if number == 3 else order))
    await asyncio.sleep(0)
    assert written == [b"0", b"3"]
    await asyncio.sleep(0)
    assert written == [b"0", b"3", b"1", b"2"]


async def test_a_connection_that_is_lost_while_others_are_written_gets_no_request(raw_server: Any) -> None:
    pool, order, progress = TransportChoice(transport_settings()), WriteOrder(), Progress()
    bodies, accepted, progress.order = list[bytes](), asyncio.Event(), order

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        if not bodies:
            bodies.append(b"")
            writer.close()
            return
        bodies.append((await read_request(reader)).partition(b"\r\n\r\n")[2])
        writer.write(OK)

    async with raw_server.run(handle) as url:
        first = order.enter()
        call = asyncio.create_task(pool.send("POST", f"{url}/1/x", b"[1]", progress))
        await accepted.wait()
        assert pool._connector is not None
        while all(protocol.can_be_written() for protocol in pool._connector._acquired):
            await asyncio.sleep(0)
        first.end()
        outcome = await call
        assert isinstance(outcome, TransportFailure)
        assert (outcome.phase, outcome.effect) == ("connect", Effect.NOT_SENT)
        assert isinstance(await pool.send("POST", f"{url}/1/x", b"[2]", progress), RawResponse)
        assert bodies == [b"", b"[2]"]
        await pool.aclose()
