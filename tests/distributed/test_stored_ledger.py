"""The ledger of a run in a database, and what a call does right before a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

import aiohttp
import pytest
from waiting import until

from boardclient import BulkReport, Card, CardDraft, JournalError
from boardclient._interface._operations import ADD_CARD
from boardclient._pipeline._calls import CallOptions
from boardclient.bulk import BulkAudit
from boardclient.bulk._content import IdSet
from boardclient.bulk._life import Row
from boardclient.distributed import plan, report
from boardclient.distributed._leases import Lease, LeaseLostError, lease_parts
from boardclient.errors import BoardClientError, Effect
from boardclient.integrations.dask import DaskRun
from boardclient.store._database import Database
from boardclient.store._ledger import StoredJob, StoredLedger
from boardclient.store._rows import StoredRow, rows_of
from boardclient.store._tables import dump_audit
from boardclient.testing import BoardService

DRAFTS = [CardDraft(f"card {n}", "l1") for n in range(20)]


@pytest.fixture
async def database(ledger: str) -> AsyncIterator[Database]:
    await plan(DRAFTS, "b1", ledger, name="job", parts=1)
    database = Database(ledger)
    yield database
    await database.aclose()


async def held(database: Database, owner: str = "me", seconds: float = 30.0) -> Lease:
    lease = await database.change(lambda connection: lease_parts(connection, 1, [1], owner, seconds))
    assert lease is not None
    return lease


async def stored(database: Database) -> list[StoredRow]:
    return await database.query(lambda connection: rows_of(connection, 1))


async def opened(database: Database, lease: Lease) -> StoredLedger:
    job = StoredJob(job=1, secret=b"secret", marker=True, identity="", baseline=IdSet(), listed_before=0)
    return StoredLedger(database, lease, job, await stored(database))


def rows(count: int) -> list[Row]:
    return [Row(n, DRAFTS[n]) for n in range(count)]


async def test_records_are_there_for_the_next_holder(database: Database) -> None:
    """Outcomes stay, and rows that were given back can be taken at once."""
    lease = await held(database)
    first = await opened(database, lease)
    given = rows(4)
    await first.admit(given)
    for row in given:
        first.release(row)
    first.add_outcome(given[0], "created", Card("c0"))
    await first.record_resembling({given[1].seq: [Card("c1", name="like it")]})
    first.add_outcome(given[1], "unknown", error=BoardClientError("lost"))
    first.withdraw([given[2]])
    assert await first.find_confirmed(lambda card_id: True, 5) == {"c0"}
    assert "c0" in await first.confirmed()
    doubts, cards = await first.others()
    assert (doubts, "c0" in cards, first.is_new) == ([], True, False)
    await first.aclose()
    await lease.give_back(database)

    second = await opened(database, await held(database))
    again = rows(4)
    await second.admit(again)
    assert [None if row.outcome is None else row.outcome.state for row in again] == ["done", "unknown", None, "logged"]
    assert json.loads((await stored(database))[1].resembling or "[]")[0][:2] == ["c1", "like it"]
    second.add_outcome(again[0], "already", Card("c0"))
    await second.aclose()


@pytest.mark.parametrize("state", ["failed", "unknown"])
async def test_a_text_that_no_database_takes_is_no_obstacle(database: Database, state: Literal["failed", "unknown"]) -> None:
    """A service may send half of a pair of surrogates, or a NUL, in a reason or a card."""
    ledger, given = await opened(database, await held(database)), rows(1)
    await ledger.admit(given)
    await ledger.record_resembling({given[0].seq: [Card("c\ud800", name="half \ud800")]})
    ledger.add_outcome(given[0], state, error=BoardClientError("half \ud800 and \0 end"))
    await ledger.aclose()
    (row, *_) = await stored(database)
    assert (row.state, row.detail) == (state, "half \\ud800 and \\x00 end")


async def test_outcomes_are_written_soon(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed later leaves them."""
    monkeypatch.setattr(StoredLedger, "note_seconds", 0.0)
    ledger = await opened(database, await held(database))
    (row,) = given = rows(1)
    await ledger.admit(given)
    ledger.add_outcome(row, "created", Card("c0"))

    async def is_written() -> bool:
        return (await stored(database))[0].state == "done"

    await until(is_written)
    await ledger.aclose()


async def test_a_card_whose_outcome_is_being_written_is_confirmed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit at that moment would call it a second card of its row."""
    monkeypatch.setattr(StoredLedger, "note_seconds", 0.0)
    ledger = await opened(database, await held(database))
    (row,) = given = rows(1)
    await ledger.admit(given)
    change, read, is_begun, may_end = Database.change, Database.read, asyncio.Event(), asyncio.Event()

    async def slow_change(self: Database, *arguments: Any, **options: Any) -> Any:
        is_begun.set()
        await may_end.wait()
        return await change(self, *arguments, **options)

    async def read_after_it(self: Database, *arguments: Any) -> Any:
        return await read(self, *arguments) if may_end.is_set() else []

    monkeypatch.setattr(Database, "change", slow_change)
    monkeypatch.setattr(Database, "read", read_after_it)
    ledger.add_outcome(row, "created", Card("c0"))
    await is_begun.wait()
    confirming = asyncio.ensure_future(ledger.confirmed())
    for _ in range(3):
        await asyncio.sleep(0)
    may_end.set()
    assert "c0" in await confirming
    await ledger.aclose()


async def test_rows_that_were_taken_over_can_not_be_written(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write holds neither outcomes nor rows: their owner is another, and the run meets it at its next write."""
    monkeypatch.setattr(StoredLedger, "note_seconds", 0.0)
    lease = await held(database, owner="other", seconds=0.0)
    taker = await held(database)
    lease.seconds = 30.0
    ledger = await opened(database, lease)
    (row,) = rows(1)
    row.seq = (await stored(database))[0].seq
    ledger.add_outcome(row, "created", Card("c0"))
    await until(lambda: ledger._failure)
    for use in (ledger.admit, lambda _: ledger.aclose()):
        with pytest.raises(LeaseLostError):
            await use(rows(1))
    with pytest.raises(LeaseLostError):
        ledger.release(row)
    assert taker.parts[1].epoch == lease.parts[1].epoch + 1
    assert (await stored(database))[0].state == "waiting"
    assert await database.change(lambda connection: lease_parts(connection, 1, [1], "third", 1.0)) is None


async def test_nothing_that_comes_after_the_end_of_a_lease_takes_the_rows_again(database: Database) -> None:
    """Neither a write that waited for the last one, nor a renewal that waited for a connection."""
    lease = await held(database)
    ledger = await opened(database, lease)
    (row,) = rows(1)
    await ledger.admit([row])
    ledger.add_outcome(row, "created", Card("c0"))
    await asyncio.gather(ledger.finish(), ledger.aclose(), ledger._try_to_write())
    with pytest.raises(LeaseLostError):
        await database.change(lease._renew_and_look)
    assert (await held(database, owner="next")).parts[1].owner == "next"
    assert (await stored(database))[0].state == "done"


@pytest.mark.parametrize(
    "made",
    [
        BulkReport(audit_error=BoardClientError("the board could not be read")),
        BulkReport(
            audit=BulkAudit(
                confirmed=3,
                lost=1,
                unexpected=(Card("c", name="n", due=datetime(2027, 1, 2, tzinfo=UTC)),),
                unproven=(CardDraft("d", "l1"),),
            )
        ),
        BulkReport(),
    ],
)
async def test_the_audit_of_a_job_is_stored(database: Database, made: BulkReport) -> None:
    """Its numbers, cards and drafts are in the report, or why there is none."""
    ledger = await opened(database, await held(database))
    await ledger.finish(audit=dump_audit(made))
    await ledger.aclose()
    found = await report(database.where)
    assert found.audit == made.audit
    assert str(found.audit_error) == str(made.audit_error)


async def test_tasks_do_not_travel_to_other_hosts_in_clear_text() -> None:
    """Dask's tasks are code that each reader of the connection could replace."""
    for address in ("tcp://far.example:8786", "far.example:8786"):
        with pytest.raises(ValueError, match="use tls://"):
            DaskRun([], scheduler=address)
    options: dict[str, Any] = {"scheduler": "tls://far.example:8786"}
    DaskRun([], **options)


async def test_a_database_that_can_not_be_used_is_named() -> None:
    """The message has no password, which the URL can't hold."""
    with pytest.raises(JournalError, match=r"the ledger postgresql://nobody@127.0.0.1:1/x can't be used"):
        await plan(DRAFTS, "b1", "postgresql://nobody@127.0.0.1:1/x")


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_request_on_its_way_is_not_written_once_the_lease_has_ended(count: int, is_lent: bool) -> None:
    """It may have waited for a connection. The service sees nothing of it, and the others are written."""
    async with BoardService() as service, aiohttp.ClientSession() as http:
        to_do = service.seed({"To Do": []}).lists["To Do"]
        async with service.session(http=http) if is_lent else service.session() as session:
            request = ADD_CARD.request(name="Card", list_id=to_do, desc=None, due=None, pos=None)
            options = [CallOptions(is_of_run=True, may_send=lambda: False) for _ in range(count)] + [CallOptions(is_of_run=True)]
            calls = (session.cards._pipeline.call(request, option) for option in options)
            *refused, card = await asyncio.gather(*calls, return_exceptions=True)
            assert [getattr(error, "effect", None) for error in refused] == [Effect.NOT_SENT] * count
            assert isinstance(card, Card)
            assert len(service.calls_of("cards.create")) == 1
