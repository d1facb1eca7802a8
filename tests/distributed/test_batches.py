"""Batches: rows that an engine delivers with a key, and one card by its reference. Each card is made once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from batch_world import World, counts
from batch_world import world as world
from waiting import SECONDS, until

from boardclient import (
    BadRequestError,
    BoardList,
    BulkReport,
    CardDraft,
    JournalError,
    Pace,
    RateLimitError,
)
from boardclient.distributed import _leases as part_ledgers
from boardclient.distributed import (
    accept_suggestions,
    drain,
    import_batch,
    import_part,
    plan,
    plan_many,
    reconcile,
    report,
    resolve,
    results,
    resume,
    status,
    unknown_rows,
)
from boardclient.errors import BoardClientError, Effect
from boardclient.store._database import Database
from boardclient.store._ledger import StoredLedger
from boardclient.testing import faults
from boardclient.testing.faults import Stage

T = TypeVar("T")


# --- batches


async def test_a_batch_that_is_delivered_again_creates_nothing(world: World) -> None:
    """Neither later, nor at once, nor by another job object."""
    job, rows = await world.open(), world.drafts(10)
    assert await world.open() == job
    found = await asyncio.gather(*(world.deliver(job, "a", rows) for _ in range(3)))
    assert sorted(map(counts, found)) == [(0, 10, 0, 0), (0, 10, 0, 0), (10, 0, 0, 0)]
    assert counts(await world.deliver(await world.open(), "a", iter(rows))) == (0, 10, 0, 0)
    assert counts(await world.deliver(job, "b", world.drafts(5, "other"))) == (5, 0, 0, 0)
    assert counts(await world.deliver(job, "none", [])) == (0, 0, 0, 0)
    assert sum((await world.names()).values()) == world.sent == 15
    assert {part.key: part.done for part in await status(job)} == {"a": 10, "b": 5}


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_an_event_loop_that_has_ended_leaves_nothing(world: World, is_cancelled: bool) -> None:
    """Whether its tasks were cancelled, as `asyncio.run` does, or it was only closed."""
    job, rows, loops = await world.open(), world.drafts(2), list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def deliver() -> BulkReport:
        async with world.service.session() as session:
            return await import_batch(job, "a", rows, session=session)

    def run() -> BulkReport:
        loop = asyncio.new_event_loop()
        loops.append(weakref.ref(loop))
        try:
            if not is_cancelled:
                return loop.run_until_complete(deliver())
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                return runner.run(deliver())
        finally:
            loop.close()

    with warnings.catch_warnings(action="ignore"):  # of connections to a server that only a loop can close
        found = [await asyncio.to_thread(run) for _ in range(3)]
        assert [*map(counts, found)] == [(2, 0, 0, 0), (0, 2, 0, 0), (0, 2, 0, 0)]
        assert counts(await world.deliver(job, "b", rows)) == (0, 2, 0, 0)
        gc.collect()
    assert [loop() for loop in loops] == [None, None, None]


async def test_rows_are_equal_whatever_form_their_positions_have(world: World) -> None:
    """As Python compares numbers: an engine may pass them through another type."""
    job, (row,) = await world.open(), world.drafts(1)
    found = [await world.deliver(job, "a", [attrs.evolve(row, pos=pos)]) for pos in (0, 0.0, -0.0)]
    assert [*map(counts, found)] == [(1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0)]


async def test_other_content_of_rows_that_exist_is_refused_with_each_of_them(world: World) -> None:
    """Whatever key brings them. Nothing is stored or sent then, and the message names each reference and its field."""
    job, rows = await world.open(), world.drafts(5)
    await world.deliver(job, "a", rows)
    others = [*rows[:2], attrs.evolve(rows[2], desc="new"), rows[3], attrs.evolve(rows[4], pos="top"), *world.drafts(1, "new")]
    for key in ("a", "b", None):
        with pytest.raises(JournalError, match=r"'card 2' has another desc, the reference 'card 4' has another pos") as caught:
            await world.deliver(job, key, others)
        assert "card 1" not in str(caught.value)
    assert world.sent == 5
    assert [(part.key, part.rows) for part in await status(job)] == [("a", 5)]


async def test_rows_without_references_are_known_by_key_and_place(world: World) -> None:
    """Another number of rows under the key is refused, and so is other content of one that exists."""
    job, rows = await world.open(), [CardDraft(f"card {n}", world.list_id) for n in range(3)]
    await world.deliver(job, "a", rows)
    with pytest.raises(JournalError, match="has other rows for 'a': 3 of them, and not these 2"):
        await world.deliver(job, "a", rows[:2])
    with pytest.raises(JournalError, match="row 1 has another name"):
        await world.deliver(job, "a", [rows[0], attrs.evolve(rows[1], name="other"), rows[2]])
    assert counts(await world.deliver(job, "b", rows)) == (3, 0, 0, 0)
    with pytest.raises(ValueError, match="without a key each row needs a reference"):
        await world.deliver(job, None, rows)


async def test_a_reference_is_single_whatever_batch_brings_it(world: World) -> None:
    """In other batches, other partitions, without a key, and by a call for a single card."""
    job, rows = await world.open(), world.drafts(12)
    assert counts(await world.deliver(job, "0", rows[:6])) == (6, 0, 0, 0)
    assert counts(await world.deliver(job, "1", rows[4:10])) == (4, 2, 0, 0)
    assert counts(await world.deliver(job, "0", rows[8:])) == (2, 2, 0, 0)
    assert counts(await world.deliver(job, None, rows)) == (0, 12, 0, 0)
    assert (await world.create("card 3", "card 3")).name == "card 3"
    assert (await world.create("single", "ticket")).name == "single"
    single = CardDraft("single", world.list_id, reference="ticket")
    assert counts(await world.deliver(job, "last", [single, *rows[:1]])) == (0, 2, 0, 0)
    assert (await world.names(), world.sent) == (Counter([*(row.name for row in rows), "single"]), 13)
    with pytest.raises(ValueError, match="the reference 'card 0' comes twice"):
        await world.deliver(job, "twice", [rows[0], rows[0]])


async def test_partitions_that_are_cut_otherwise_send_no_row_twice(world: World) -> None:
    """At once, each in a call of its own, and by workers that end in between."""
    job, rows = await world.open(), world.drafts(60)
    await world.interrupt(job, "0 of 2", rows[:30], sent=10)
    cut = [world.deliver(job, f"{n} of {parts}", rows[n::parts]) for parts in (2, 3, 4) for n in range(parts)]
    for found in await asyncio.gather(*cut):
        assert (found.failed, found.unknown) == (0, 0), found.problems
    assert await world.names() == Counter(row.name for row in rows)


async def test_what_was_never_created_may_be_corrected(world: World) -> None:
    """Under its reference, whatever key brings it: the last content is sent, and once it exists it stays."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(400), "cards.create", call=2)
    assert counts(await world.deliver(job, "a", rows, concurrency=1)) == (2, 0, 1, 0)
    mended = attrs.evolve(rows[1], name="mended")
    assert counts(await world.deliver(job, "b", [mended])) == (1, 0, 0, 0)
    assert counts(await world.deliver(job, "a", [rows[0], mended, rows[2]])) == (0, 3, 0, 0)
    with pytest.raises(JournalError, match="'card 1' has another name"):
        await world.deliver(job, "a", rows)
    assert await world.names() == Counter(["card 0", "mended", "card 2"])


async def test_failed_rows_are_sent_again_by_a_later_delivery(world: World) -> None:
    """The report of each names them."""
    job, rows = await world.open(), world.drafts(5)
    world.service.faults.add(faults.status(400), "cards.create", call=[2, 6])
    first = await world.deliver(job, "a", rows, concurrency=1)
    assert counts(first) == (4, 0, 1, 0)
    with pytest.raises(ExceptionGroup, match="1 failed of 5 rows"):
        first.raise_for_problems()
    assert counts(await world.deliver(job, "a", rows)) == (0, 4, 1, 0)
    assert counts(await world.deliver(job, "a", rows)) == (1, 4, 0, 0)


async def test_a_batch_whose_worker_was_cancelled_is_resumed(world: World) -> None:
    """Rows that were sent are not sent again, and reconciling settles them."""
    job, rows = await world.open(), world.drafts(100)
    world.service.faults.add(faults.hang(), "cards.create", call=range(20, 24))
    running = asyncio.ensure_future(world.deliver(job, "a", rows, concurrency=4))
    await until(lambda: world.sent >= 23, running)
    running.cancel()
    await asyncio.wait({running})
    again = await world.deliver(job, "a", rows)
    assert again.created + again.already + again.unknown == 100
    assert again.unknown >= 4  # a response that came at the same moment was not noted
    without = await reconcile(job, session=world.session, probe=False)
    assert without.unknown == 4  # a card alone can't be proven absent
    settled = await reconcile(job, session=world.session, probe=True)
    assert (settled.created, settled.unknown) == (100, 0)
    assert await world.names() == Counter(f"card {n}" for n in range(100))


_KILLED = """
import asyncio, sys
from boardclient import AsyncSession, CardDraft
from boardclient.distributed import import_batch, open_job

async def main(board_id, ledger, list_id):
    async with AsyncSession.from_env() as session:
        job = await open_job(board_id, ledger, settle=0.2)
        await import_batch(job, "first", [CardDraft("card", list_id)], session=session, lease=1.0)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_batch_whose_worker_was_killed_is_in_doubt_until_its_card_is_found(world: World) -> None:
    """The service has created the card, and not responded yet. It is "already" to a job opened since, and its request counts."""
    world.service.faults.add(faults.hang(commit=True), "cards.create", times=1)
    arguments = [world.board_id, world.ledger, world.list_id]
    worker = subprocess.Popen([sys.executable, "-c", _KILLED, *arguments], env={**os.environ, **world.service.environment})
    await world.service.received("cards.create")
    worker.kill()
    worker.wait()
    job = await world.open()
    assert counts(await world.deliver(job, "first", [CardDraft("card", world.list_id)], lease=1.0)) == (0, 0, 0, 1)
    found = await reconcile(job, session=world.session)
    assert (counts(found), found.audit is not None and found.audit.recovered) == ((0, 1, 0, 0), 1)
    assert found.requests == (await report(world.ledger)).requests == world.sent == 1
    assert await world.names() == Counter({"card": 1})


async def test_reconciling_completes_what_a_worker_has_left(world: World) -> None:
    """Also rows that it had not sent, and any number of times."""
    job, rows = await world.open(), world.drafts(30)
    await world.interrupt(job, "a", rows, sent=9)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=12)
    for _ in range(2):
        found = await reconcile(job, session=world.session)
        assert counts(found) == (30, 0, 0, 0)
        assert found.audit is not None
        assert found.audit.is_sound
        assert found.audit.confirmed == 30
    assert counts(await world.deliver(job, "a", rows)) == (0, 30, 0, 0)


async def test_reconciling_completes_what_a_worker_has_left_while_another_one_reconciles(world: World) -> None:
    """It waits for the other to look for rows that were refused."""
    job = await world.open()
    await world.deliver(job, "a", world.drafts(1, "other"))
    first, go_on = await in_reading(world, reconcile(job, session=world.session))
    world.service.faults.add(faults.status(400), "cards.create", call=2)
    await world.interrupt(job, "b", world.drafts(3), sent=1)
    (left,) = [part.owner for part in await status(job) if part.key == "b"]
    second = asyncio.ensure_future(reconcile(job, session=world.session))

    async def is_taken() -> bool:
        return [part.owner for part in await status(job) if part.key == "b"] != [left]

    await until(is_taken, second)
    go_on.set()
    assert counts(await second) == (4, 0, 0, 0)
    await first


async def test_what_stays_unknown_is_in_the_report_of_reconciling(world: World) -> None:
    """With its row, and it is sent once it was proven absent."""
    job = await world.open()
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    first = await world.deliver(job, "a", world.drafts(3), concurrency=1)
    assert counts(first) == (2, 0, 0, 1)
    found = await reconcile(job, session=world.session, probe=False)
    assert counts(found) == (2, 0, 0, 1)
    assert [(one.draft.name, one.state) for one in found.problems] == [("card 1", "unknown")]
    assert counts(await reconcile(job, session=world.session, probe=True)) == (3, 0, 0, 0)
    assert counts(await world.deliver(job, "a", world.drafts(3))) == (0, 3, 0, 0)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_reconciling_looks_for_the_cards_of_rows_that_have_failed(world: World, is_lost: bool) -> None:
    """A service may have done what it refused. What it has not done stays failed, and is not sent again."""
    job = await world.open()
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=2)
    world.service.faults.add(faults.status(400), "cards.create", call=3)
    if is_lost:
        world.service.faults.add(faults.drop(commit=True), "cards.create", call=4)
    first = await world.deliver(job, "a", world.drafts(5), concurrency=1)
    assert counts(first) == (3 - is_lost, 0, 2, is_lost)
    found = await reconcile(job, session=world.session)
    assert counts(found) == (4, 0, 1, 0)
    assert [(one.draft.name, one.state) for one in found.problems] == [("card 2", "failed")]
    assert found.audit is not None
    assert found.audit.is_sound
    assert world.sent == 5
    assert counts(await world.deliver(job, "a", world.drafts(5))) == (1, 4, 0, 0)
    assert await world.names() == Counter(f"card {n}" for n in range(5))


async def test_the_report_of_a_job_names_the_temporary_cards_that_stay(world: World) -> None:
    """So does that of reconciling, until one of its later calls has deleted them."""
    job = await world.open()
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    await world.deliver(job, "a", world.drafts(3), concurrency=1)
    world.service.faults.add(faults.status(403), "cards.delete", times=1)
    found = await reconcile(job, session=world.session, probe=True)
    (probe,) = found.probes
    assert probe.id in {card.id for card in await world.session.boards.cards(world.board_id)}
    assert [card.id for card in (await report(job)).probes] == [probe.id]
    assert (await reconcile(job, session=world.session)).probes == ()
    assert await world.names() == Counter(f"card {n}" for n in range(3))


async def test_a_drained_job_takes_no_batch(world: World) -> None:
    """Only `resume` lets it, and no other call that opens it."""
    job = await world.open()
    await world.deliver(job, "a", world.drafts(2))
    await drain(job)
    assert counts(await world.deliver(await world.open(), "a", world.drafts(2))) == (0, 2, 0, 0)
    for use in (
        lambda: world.deliver(job, "b", world.drafts(2, "other")),
        lambda: world.create("single", "ticket"),
        lambda: reconcile(job, session=world.session),
    ):
        with pytest.raises(JournalError, match="is drained: `boardclient ledger resume`"):
            await use()
    await resume(job)
    await world.deliver(job, "b", world.drafts(2, "other"))
    assert world.sent == 4


async def test_a_batch_that_was_interrupted_waits_while_its_job_is_drained(world: World) -> None:
    """It is resumed when the job is open again."""
    job, rows = await world.open(), world.drafts(6)
    await world.interrupt(job, "a", rows, sent=2)
    await drain(job)
    with pytest.raises(JournalError, match="is drained: `boardclient ledger resume`"):
        await world.deliver(job, "a", rows)
    assert (await world.names()).total() == 2
    await resume(job)
    assert counts(await world.deliver(job, "a", rows)) == (4, 2, 0, 0)


async def test_a_batch_that_is_drained_while_it_is_sent_has_no_report(world: World) -> None:
    """Its call raises, since an engine would take it as done. It is resumed when the job is open again."""
    job, rows = await world.open(), world.drafts(100)
    world.service.latency = 0.1
    running = asyncio.ensure_future(world.deliver(job, "a", rows, lease=4.0, concurrency=1))
    await until(lambda: world.sent >= 2, running)
    await drain(job)
    with pytest.raises(JournalError, match="is drained: `boardclient ledger resume`"):
        await running
    world.service.latency = 0.0
    await resume(world.ledger)
    found = await world.deliver(job, "a", rows)
    assert (found.created + found.already, found.failed, found.unknown, world.sent) == (100, 0, 0, 100)


@pytest.mark.parametrize("operation", ["boards.cards", "boards.lists"])
async def test_failed_rows_are_not_sent_if_the_job_is_drained_while_they_are_looked_for(world: World, operation: str) -> None:
    """A service may have done what it refused: the next call looks for them."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=1)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    world.service.faults.add(faults.hang(), operation)
    running = asyncio.ensure_future(world.deliver(job, "a", rows, lease=4.0))
    reads = len(world.service.calls_of(operation))
    await until(lambda: len(world.service.calls_of(operation)) > reads, running)
    await drain(job)
    assert counts(await running) == (0, 2, 1, 0)
    world.service.faults.clear()
    await resume(job)
    assert counts(await world.deliver(job, "a", rows)) == (0, 3, 0, 0)
    assert world.sent == 3


async def test_reconciling_leaves_the_rows_that_another_worker_is_sending(world: World) -> None:
    """They stay in doubt, and those of batches that have ended are settled."""
    job = await world.open()
    world.service.faults.add(faults.hang(), "cards.create", call=1)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    running = asyncio.ensure_future(world.deliver(job, "a", world.drafts(2), concurrency=1, lease=300.0))
    await until(lambda: world.sent, running)
    assert counts(await world.deliver(job, "b", world.drafts(1, "other"))) == (0, 0, 0, 1)
    found = await reconcile(job, session=world.session)
    assert (counts(found), [one.draft.name for one in found.problems]) == ((1, 0, 0, 2), ["card 0", "card 1"])
    assert world.sent == 2
    running.cancel()
    await asyncio.wait({running})


class _UndoneError(Exception):
    """Undoes a transaction."""


@pytest.mark.parametrize("holds", [False, True])
async def test_a_transaction_whose_end_was_lost_is_looked_up(world: World, monkeypatch: pytest.MonkeyPatch, holds: bool) -> None:
    """Here each is asked for twice. No card is made twice, and none is in doubt that was not sent."""
    change = Database.change

    async def lost_at_its_end(self: Database, work: Any, *, is_repeatable: bool = True, **options: Any) -> Any:
        def asked(connection: Any) -> None:
            work(connection)
            if not holds:
                raise _UndoneError

        if is_repeatable:
            with contextlib.suppress(_UndoneError):
                await change(self, asked)
        return await change(self, work, is_repeatable=is_repeatable, **options)

    monkeypatch.setattr(Database, "change", lost_at_its_end)
    job, rows = await world.open(), world.drafts(100)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=50)
    assert counts(await world.deliver(job, "a", rows)) == (99, 0, 0, 1)
    assert counts(await reconcile(job, session=world.session)) == (100, 0, 0, 0)
    planned = await plan(world.drafts(80, "other"), world.board_id, world.ledger, name="planned", parts=2)
    for part in planned.parts:
        await import_part(planned, part, session=world.session)
        assert sum(one.in_doubt for one in await status(planned)) == 0
    assert max((await world.names()).values()) == 1
    assert world.sent == len(await world.names()) == 180


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_batch_that_is_cancelled_during_a_transaction_is_free_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Rows that were sent are done, but for the one under way. Rows that were not sent are not in doubt."""
    change, left = Database.change, number

    async def cancelled_meanwhile(self: Database, work: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.timeout(60):
                    await asyncio.Event().wait()  # until this task is cancelled in turn
            (asyncio.current_task() or running).cancel()
        return await change(self, work, **options)

    job, rows = await world.open(), world.drafts(100)
    session = world.session.with_options(limiter=Pace())
    await import_batch(job, "first", world.drafts(1, "first"), session=session)
    monkeypatch.setattr(Database, "change", cancelled_meanwhile)
    monkeypatch.setattr(StoredLedger, "note_seconds", 600.0)  # no transaction comes in between on a slow machine
    running = asyncio.create_task(import_batch(job, "a", rows, session=session, concurrency=1, lease=600.0))
    with pytest.raises(asyncio.CancelledError):
        await running
    (part,) = [one for one in await status(job) if one.key == "a"]
    assert part.state == ("open" if number < 3 else "done")
    assert (part.done + part.in_doubt, part.in_doubt <= 1) == (world.sent - 1, True)
    found = await world.deliver(job, "a", rows)
    assert (found.created, found.already, found.unknown) == (100 - part.done - part.in_doubt, part.done, part.in_doubt)
    assert counts(await reconcile(job, session=session, probe=True)) == (101, 0, 0, 0)
    assert (len(await world.names()), max((await world.names()).values())) == (101, 1)


async def test_batches_and_references_meet_in_a_planned_job(world: World) -> None:
    """There is one default job for a board and an account."""
    planned = await plan(world.drafts(4), world.board_id, world.ledger, parts=2, settle=0.2)
    assert (await world.open()).name == planned.name
    assert counts(await world.deliver(planned, "a", world.drafts(2))) == (2, 0, 0, 0)
    assert (await world.create("card 2", "card 2")).name == "card 2"
    for part in planned.parts:
        await import_part(planned, part, session=world.session)
    assert (counts(await report(planned)), world.sent) == ((4, 0, 0, 0), 4)
    with pytest.raises(JournalError, match="with another marker"):
        await world.open(marker=False)
    with pytest.raises(JournalError, match="has no job 'y'"):
        await world.deliver(attrs.evolve(planned, name="y"), "a", world.drafts(2))


@pytest.mark.parametrize("text", ["k" * 2601, "\u20ac" * 900, "a\0b", "\ud800", ""])
async def test_a_text_that_no_index_takes_is_refused_before_anything_is_stored(world: World, text: str) -> None:
    """As a key, a reference or the name of a job, in a file as on a server."""
    job = await world.open()
    calls = [
        lambda: world.deliver(job, text, world.drafts(1)),
        lambda: world.deliver(job, "a", [CardDraft("card", world.list_id, reference=text)]),
        lambda: world.create("card", text),
        lambda: world.open(name=text),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must not be empty|has more than 2,600 bytes|can't be sent"):
            await call()
    assert (await status(job), world.sent) == ([], 0)


@pytest.mark.parametrize(("key", "rows", "error"), [("", [], ValueError), (3, [], TypeError), ("a", ["row"], TypeError)])
async def test_a_batch_that_can_not_be_stored_is_refused(world: World, key: Any, rows: Any, error: type[Exception]) -> None:
    """Before anything is."""
    job = await world.open()
    with pytest.raises(error, match=r"key must|row 0 must"):
        await world.deliver(job, key, rows)


@pytest.mark.parametrize("patience", [-1, float("nan"), "long"])
async def test_a_patience_that_is_no_number_of_seconds_is_refused(world: World, patience: Any) -> None:
    """Before anything is sent."""
    with pytest.raises((TypeError, ValueError), match="patience must"):
        await world.deliver(await world.open(), "a", world.drafts(1), patience=patience)


@pytest.mark.parametrize("given", [None, "job", {"name": "job"}, 5])
async def test_what_is_no_job_is_refused(world: World, given: Any) -> None:
    """The error says what is wanted."""
    calls = [import_batch(given, "a", []), import_part(given, 0), reconcile(given, session=world.session)]
    if not isinstance(given, str):  # the place of a ledger
        calls += [status(given), report(given), drain(given), resolve(given, 0, absent=True), unknown_rows(given)]
    for call in calls:
        with pytest.raises(TypeError, match="job must be a Job"):
            await call
    with pytest.raises(TypeError, match="job must be a Job"):
        await anext(results(given))


async def test_what_is_no_session_and_no_part_is_refused(world: World) -> None:
    """Before a row is stored."""
    job: Any = await world.open()
    with pytest.raises(TypeError, match="session must be an AsyncSession"):
        await import_batch(job, "a", world.drafts(1), session="session")  # type: ignore[arg-type] -- the wrong type is the point
    with pytest.raises(TypeError, match="part must be a number"):
        await import_part(job, "0", session=world.session)  # type: ignore[arg-type] -- the wrong type is the point
    with pytest.raises(JournalError):
        await import_part(job, 10**30, session=world.session)
    assert [part.key for part in await status(job)] == []


async def test_seconds_that_no_clock_can_hold_are_refused(world: World) -> None:
    """As an infinite number of them is."""
    job = await world.open()
    for name in ("lease", "patience"):
        with pytest.raises(ValueError, match=f"{name} must be"):
            await world.deliver(job, "a", world.drafts(1), **{name: 10**400})
    with pytest.raises(ValueError, match="settle must be"):
        await world.open(settle=10**400)


async def test_a_job_that_can_not_be_worked_is_refused(world: World) -> None:
    """In the words of its argument, before anything is stored or sent."""
    row = world.drafts(1)[0]
    with pytest.raises(TypeError, match="marker must be True or False, not str"):
        await world.open(marker="yes")
    with pytest.raises(TypeError, match="probe must be True or False, not str"):
        await import_part(await world.open(), 0, session=world.session, probe="yes")  # type: ignore[arg-type] -- the wrong type is the point
    with pytest.raises(ValueError, match="the reference 'card 0' comes twice"):
        await plan([row, row], world.board_id, world.ledger)
    with pytest.raises(ValueError, match=r"rows of several accounts on the board .* need a marker"):
        await plan_many([(world.board_id, account, row) for account in ("ann", "ben")], world.ledger, marker=False)
    with pytest.raises(ValueError, match="no job was given"):
        await status([])
    assert world.sent == 0


async def test_a_job_that_its_ledger_does_not_have_is_named(world: World) -> None:
    """By whatever reads it."""
    job = attrs.evolve(await world.open(name="one"), name="another")
    with pytest.raises(JournalError, match="has no job 'another', but 'one'"):
        await status(job)
    with pytest.raises(JournalError, match="has no job 'another', but 'one'"):
        await anext(results(job))


async def test_the_settle_of_a_job_may_be_changed(world: World) -> None:
    """By opening it again. Its marker may not."""
    job = await world.open(settle=0.2)
    assert await world.open(settle=0.4) == job
    with pytest.raises(JournalError, match="another marker"):
        await world.open(marker=False)


async def test_a_row_that_a_worker_has_is_not_resolved(world: World) -> None:
    """It is resolved once the job is not drained any more."""
    job = await plan(world.drafts(1), world.board_id, world.ledger, settle=0.2)
    world.service.faults.add(faults.drop(), "cards.create", call=1)
    await import_part(job, 0, session=world.session, probe=False)
    assert counts(await report(job)) == (0, 0, 0, 1)
    await drain(job)
    with pytest.raises(JournalError, match="a worker has the row 'card 0', or its job is drained: try again later"):
        await resolve(job, "card 0", absent=True)
    await resume(job)
    assert await resolve(job, "card 0", absent=True)
    await import_part(job, 0, session=world.session)
    assert counts(await report(job)) == (1, 0, 0, 0)


async def test_a_lease_that_is_too_short_for_the_machine_ends_the_call(world: World) -> None:
    """Nothing is sent, and a longer one creates the cards."""
    job, rows = await world.open(), world.drafts(3)
    with pytest.raises(JournalError, match="the lease has ended"):
        await world.deliver(job, "a", rows, lease=1e-9)
    assert world.sent == 0
    assert counts(await world.deliver(job, "a", rows)) == (3, 0, 0, 0)


@pytest.mark.parametrize("key", ["-1", "0", "\u2028", "key" * 866])
async def test_any_text_is_a_key(world: World, key: str) -> None:
    """Also one that looks like the number of a part."""
    job, rows = await world.open(name="x"), world.drafts(2)
    assert counts(await world.deliver(job, key, rows)) == (2, 0, 0, 0)
    assert counts(await world.deliver(job, key, rows)) == (0, 2, 0, 0)
    assert [part.key for part in await status(job)] == [key]
    card = await world.create("one", key)
    assert (await world.create("one", key)).id == card.id


async def test_a_listener_that_can_not_be_called_is_refused(world: World) -> None:
    """Before anything is stored, so that no row is in doubt."""
    job, rows = await world.open(), world.drafts(3)
    with pytest.raises(TypeError, match="on_progress must be callable"):
        await world.deliver(job, "a", rows, on_progress=5)
    assert counts(await world.deliver(job, "a", rows)) == (3, 0, 0, 0)


async def test_a_part_costs_two_transactions_and_one_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes it and logs its first 64 rows, one ends it, and the read shows that others are open. The last call costs more."""
    monkeypatch.setattr(StoredLedger, "note_seconds", 60.0)  # outcomes are written with the next rows
    said: Counter[str] = Counter()

    def counted(name: str) -> Any:
        used = getattr(Database, name)

        async def use(self: Database, *arguments: Any, **options: Any) -> Any:
            said[name] += 1
            return await used(self, *arguments, **options)

        return use

    job = await plan(world.drafts(128), world.board_id, world.ledger, parts=3, settle=0.2)
    session = world.session.with_options(limiter=Pace())  # the shared pace has a connection of its own
    await import_part(job, 0, session=session)
    for name in ("change", "read"):
        monkeypatch.setattr(Database, name, counted(name))
    await import_part(job, 1, session=session)
    assert said == {"change": 2, "read": 1}
    said.clear()
    await import_part(job, 2, session=session)
    assert said == {"change": 5, "read": 4}
    assert counts(await report(job)) == (128, 0, 0, 0)


# --- by hand


async def test_rows_in_doubt_are_settled_by_hand(world: World) -> None:
    """By their reference or their position: one has a card, the other none, and is sent when the batch is delivered again."""
    job, rows = await world.open(), world.drafts(4)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    world.service.faults.add(faults.drop(), "cards.create", call=3)
    assert (await world.deliver(job, "a", rows, concurrency=1)).unknown == 2
    cards = {card.name: card.id for card in await world.session.boards.cards(world.board_id)}
    assert [found.row.key for found in await unknown_rows(world.ledger)] == ["card 1", "card 2"]
    with pytest.raises(JournalError, match=r"the row 'card 0' is done, not in doubt"):
        await resolve(job, "card 0", absent=True)
    with pytest.raises(JournalError, match="is that of another row"):
        await resolve(job, "card 1", card_id=cards["card 0"])
    with pytest.raises(ValueError, match="give either"):
        await resolve(job, "card 1")
    assert [await resolve(job, "card 1", card_id=cards["card 1"]) for _ in range(2)] == [True, False]
    assert await resolve(world.ledger, 2, absent=True)
    assert counts(await world.deliver(job, "a", rows)) == (1, 3, 0, 0)
    assert await world.names() == Counter(f"card {n}" for n in range(4))


async def test_rows_can_not_be_settled_by_hand_where_it_is_not_clear_which(world: World) -> None:
    """With several jobs one has to be named."""
    await world.open()
    await world.open(name="other")
    with pytest.raises(JournalError, match="the ledger has 2 jobs: name one of"):
        await resolve(world.ledger, "card 1", absent=True)
    for row in ("card 1", 0):
        with pytest.raises(JournalError, match=f"has no row {row!r} that was sent"):
            await resolve(world.ledger, row, absent=True, name="other")


@pytest.mark.parametrize("row", [None, True, 1.0, b"r1"])
async def test_what_names_no_row_settles_none(world: World, row: Any) -> None:
    """None is the reference of rows that have none, and True is 1."""
    job, rows = await world.open(), [CardDraft(f"card {n}", world.list_id) for n in range(2)]
    world.service.faults.add(faults.drop(commit=True), "cards.create")
    assert (await world.deliver(job, "a", rows)).unknown == 2
    with pytest.raises(TypeError, match="row must be a reference"):
        await resolve(job, row, absent=True)
    assert len(await unknown_rows(job)) == 2


async def test_the_marker_of_a_row_in_doubt_is_that_of_its_card(world: World) -> None:
    """A person can look for it on the board."""
    job, rows = await world.open(), world.drafts(2)
    world.service.faults.add(faults.drop(commit=True), "cards.create")
    assert (await world.deliver(job, "a", rows)).unknown == 2
    shown = {card.name: card.desc or "" for card in await world.session.boards.cards(world.board_id)}
    markers = {found.row.marker: shown[found.row.content.name] for found in await unknown_rows(job)}
    assert len(markers) == 2
    assert all(marker in desc for marker, desc in markers.items())


async def test_the_card_of_a_reference_is_settled_by_that_reference(world: World) -> None:
    """It is the key of a batch of one row."""
    world.service.faults.add(faults.drop(), "cards.create", call=1)
    with pytest.raises(BoardClientError):
        await world.create("Fix the login", "ticket-4711", probe=False)
    (unknown,) = await unknown_rows(world.ledger)
    assert unknown.row.key == "ticket-4711"
    assert await resolve(world.ledger, "ticket-4711", absent=True)
    card = await world.create("Fix the login", "ticket-4711")
    assert not await resolve(world.ledger, "ticket-4711", card_id=card.id)
    assert (await world.names(), world.sent) == (Counter({"Fix the login": 1}), 2)


async def test_the_command_line_settles_rows_of_a_ledger(world: World) -> None:
    """It shows those that are unknown, and takes their reference or their position."""
    job = await world.open()
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    world.service.faults.add(faults.drop(), "cards.create", call=(2, 3))
    rows = [CardDraft("card 0", world.list_id, reference="r0"), CardDraft("card 1", world.list_id)]
    assert (await world.deliver(job, "a", rows, concurrency=1)).unknown == 2
    assert (await world.deliver(job, "b", [CardDraft("card 2", world.list_id, reference="ticket-2")])).unknown == 1
    (card,) = await world.session.boards.cards(world.board_id)

    async def said(*words: str) -> str:
        line = [sys.executable, "-m", "boardclient", "ledger", "resolve", "--ledger", world.ledger, *words]
        ended = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=False, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    shown = json.loads(await said("--json"))
    assert [(row["row"], row["name"]) for row in shown] == [
        ("r0", "card 0"),
        ("--position 1", "card 1"),
        ("ticket-2", "card 2"),
    ]
    assert f"is settled with the card {card.id}" in await said("r0", "--card", card.id)
    assert f"was settled before with the card {card.id}" in await said("r0", "--card", card.id)
    for row in (["--position", "1"], ["ticket-2"]):
        assert "is settled as absent: the next import sends it" in await said(*row, "--absent")
    assert counts(await reconcile(job, session=world.session)) == (3, 0, 0, 0)
    assert world.sent == 5


# --- patience


def seconds_until(error: BaseException) -> float:
    assert isinstance(error, BoardClientError)
    assert error.retry_at is not None
    return (error.retry_at - datetime.now(UTC)).total_seconds()


async def test_a_pause_that_is_too_long_gives_the_batch_back(world: World) -> None:
    """The error says when to come again, and the next call needs not wait for a lease."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(429, headers={"Retry-After": "120"}), "cards.create", call=range(2, 20))
    with pytest.raises(BoardClientError, match="the part is given back") as caught:
        await world.deliver(job, "a", rows, concurrency=1, patience=1.0, lease=300.0)
    assert 60 < seconds_until(caught.value) <= 125
    assert {part.key: (part.state, part.done) for part in await status(job)}["a"] == ("open", 1)
    world.service.faults.clear()
    world.session = world.session.with_options(limiter=Pace())  # the shared one still waits
    assert counts(await world.deliver(job, "a", rows, lease=300.0)) == (2, 1, 0, 0)


async def test_a_batch_that_nothing_holds_needs_no_patience(world: World) -> None:
    """What is not a hold, such as reading the board before the first row, is not waited for."""
    job, rows = await world.open(), world.drafts(30)
    assert counts(await world.deliver(job, "a", rows, patience=0.0)) == (30, 0, 0, 0)


async def test_an_outage_that_is_too_long_gives_the_batch_back(world: World) -> None:
    """When it ends is not known, and rows in doubt are the ledger's."""
    job, rows = await world.open(), world.drafts(30)
    world.service.faults.add(faults.status(500), "cards.create", call=range(5, 1000))
    with pytest.raises(BoardClientError, match="the part is given back") as caught:
        await world.deliver(job, "a", rows, concurrency=2, patience=0.3, lease=300.0)
    assert caught.value.retry_at is None
    world.service.faults.clear()
    again = await world.deliver(job, "a", rows, lease=300.0)
    assert again.unknown > 0
    assert (await reconcile(job, session=world.session, probe=True)).created == 30
    assert await world.names() == Counter(f"card {n}" for n in range(30))


async def test_a_batch_that_another_worker_has_for_too_long(world: World) -> None:
    """The error says when its lease ends."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.hang(), "cards.create", call=1)
    running = asyncio.ensure_future(world.deliver(job, "a", rows, concurrency=1, lease=300.0))
    await until(lambda: world.sent > 0, running)
    with pytest.raises(JournalError, match="another worker has rows of") as caught:
        await world.deliver(job, "a", rows, patience=0.0)
    assert 200 < seconds_until(caught.value) <= 300
    running.cancel()
    await asyncio.wait({running})


# --- one card


async def test_a_reference_has_one_card(world: World) -> None:
    """From four calls at once, and later."""
    found = await asyncio.gather(*(world.create("Fix the login", "t1") for _ in range(4)))
    again = await world.create("Fix the login", "t1")
    assert len({card.id for card in [*found, again]}) == world.sent == 1
    assert (again.name, again.list_id) == ("Fix the login", world.list_id)
    with pytest.raises(JournalError, match="the reference 't1' has another desc"):
        await world.create("Fix the login", "t1", desc="now")
    assert world.sent == 1


@pytest.mark.parametrize(
    "fault", [faults.status(403), faults.status(503), faults.status(200, body=b'{"id": "x", "name": "of others"}')]
)
async def test_a_reference_has_its_card_whatever_the_service_responds_to_its_read(world: World, fault: faults.Fault) -> None:
    """The error of the read would say that nothing was created, so that another reference would be right."""
    created = await world.create("Fix the login", "t1")
    world.service.faults.add(fault, "cards.get")
    again = await world.create("Fix the login", "t1")
    assert (again.id, again.name, world.sent) == (created.id, None, 1)


@pytest.mark.parametrize("reference", ["", "a\0b", "\ud800", 5])
async def test_what_can_not_be_a_reference_is_refused_by_its_name(world: World, reference: Any) -> None:
    """Before anything is stored or sent."""
    with pytest.raises((TypeError, ValueError), match="reference must"):
        await world.create("one", reference)
    assert world.sent == 0


async def test_a_card_whose_response_was_lost_is_found_by_its_marker(world: World) -> None:
    """It is returned, though others have created an equal card."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    await world.create("Other", "t0")
    await world.session.boards.lists(world.board_id)
    found = await world.create("Fix the login", "t1")
    assert (await world.create("Fix the login", "t1")).id == found.id
    assert (await world.names())["Fix the login"] == 1


async def test_a_card_that_can_not_be_proven_absent_is_not_sent_again(world: World) -> None:
    """Without a probe the error says that its effect is unknown. With one the next call sends it."""
    world.service.faults.add(faults.drop(), "cards.create", call=1)
    for _ in range(2):
        with pytest.raises(BoardClientError) as caught:
            await world.create("Fix the login", "t1", probe=False)
        assert caught.value.effect is Effect.UNKNOWN
    assert world.sent == 1
    card = await world.create("Fix the login", "t1")
    assert (await world.create("Fix the login", "t1")).id == card.id
    assert (await world.names()) == Counter({"Fix the login": 1})


async def test_a_card_that_can_not_be_looked_for_says_when_to_come_again(world: World) -> None:
    """As the service does. So does the report of the job, with its rows."""
    world.service.faults.add(faults.drop(), "cards.create", call=1)
    with pytest.raises(BoardClientError):
        await world.create("Fix the login", "t1", probe=False)
    world.service.faults.add(faults.status(503, {"Retry-After": "3600"}), "boards.cards")
    with pytest.raises(BoardClientError) as caught:
        await world.create("Fix the login", "t1")
    session = world.session.with_options(limiter=Pace())  # the shared one still waits
    found = await reconcile(await world.open(), session=session)
    assert found.audit_error is not None
    assert found.problems[0].error is not None
    for error in (caught.value, found.audit_error, found.problems[0].error):
        assert 3500 < seconds_until(error) <= 3600
    assert world.sent == 1


async def test_the_error_of_a_card_that_may_exist_names_the_candidates(world: World) -> None:
    """A person has removed the description with the marker before the board is read."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    creating = asyncio.create_task(world.create("Fix the login", "t1"))
    await world.service.received("cards.create")
    (card,) = world.service.rules.cards.values()
    card.desc = "please today"
    with pytest.raises(BoardClientError) as caught:
        await creating
    assert (caught.value.effect, caught.value.candidates) == (Effect.UNKNOWN, (card.id,))


async def test_a_card_that_is_refused_is_sent_by_the_next_call(world: World) -> None:
    """Its error is the service's."""
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    with pytest.raises(BoardClientError) as caught:
        await world.create("Fix the login", "t1")
    assert caught.value.effect is Effect.REJECTED
    assert (await world.create("Fix the login", "t1")).name == "Fix the login"


@pytest.mark.parametrize("marker", [True, False])
async def test_a_row_that_was_refused_and_created_is_not_sent_again(world: World, marker: bool) -> None:
    """A later call looks for its card before it sends rows that have failed."""
    job, rows = await world.open(marker=marker), world.drafts(3)
    for call, commit in ((1, True), (2, False)):
        world.service.faults.add(faults.status(400, commit=commit), "cards.create", call=call)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 2
    again = await world.deliver(job, "a", rows)
    assert (again.created, again.already, again.failed) == (1, 2, 0)
    assert set((await world.names()).values()) == {1}


async def test_a_call_that_waits_for_a_batch_gets_its_result(world: World) -> None:
    """A row that the service refused meanwhile is its own: it looks for the card, and sends nothing unread."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=1)
    world.service.latency = 0.05
    found = await asyncio.gather(*(world.deliver(job, "a", rows, concurrency=1) for _ in range(3)))
    assert sorted(map(counts, found)) == [(0, 3, 0, 0), (0, 3, 0, 0), (2, 0, 1, 0)]
    assert world.sent == 3
    assert set((await world.names()).values()) == {1}


async def test_calls_for_one_batch_at_once_count_each_row_once(world: World) -> None:
    """Some look for the rows that were refused, while others send them, and reconcile looks for those in doubt."""
    job, rows = await world.open(), world.drafts(6)
    world.service.latency = 0.005
    for call, fault in {1: faults.status(400, commit=True), 3: faults.status(400), 5: faults.drop(commit=True)}.items():
        world.service.faults.add(fault, "cards.create", call=[call, call + 6])
    for _ in range(3):
        deliveries = [world.deliver(job, "a", rows, concurrency=1) for _ in range(2)]
        await asyncio.gather(*deliveries, reconcile(job, session=world.session))
        (part,) = [part for part in await status(job) if part.key == "a"]
        assert part.done + part.failed + part.in_doubt == 6
        assert min(part.done, part.failed, part.in_doubt) >= 0
    assert counts(await reconcile(job, session=world.session)) == (6, 0, 0, 0)
    assert set((await world.names()).values()) == {1}


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("is_delivered", [True, False])
async def test_a_refused_row_of_an_interrupted_batch_is_looked_for(world: World, is_delivered: bool, is_read: bool) -> None:
    """Its card is found, and the row that was sent then is in doubt."""
    job, rows = await world.open(), world.drafts(2)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=1)
    world.service.faults.add(faults.hang(), "cards.create", call=2)
    running = asyncio.ensure_future(world.deliver(job, "a", rows, concurrency=1))
    await until(lambda: world.sent == 2, running)
    running.cancel()
    await asyncio.wait({running})
    if not is_read:  # then it is not sent
        world.service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "boards.cards")
        with contextlib.suppress(BoardClientError):
            await (world.deliver(job, "a", rows) if is_delivered else reconcile(job, session=world.session, probe=False))
        world.service.faults.clear()
        world.session = world.session.with_options(limiter=Pace())  # the shared one still waits
    if is_delivered:
        assert counts(await world.deliver(job, "a", rows)) == (0, 1, 0, 1)
    else:
        assert (await reconcile(job, session=world.session, probe=False)).failed == 0
    assert world.sent == 2
    assert set((await world.names()).values()) == {1}


async def test_a_row_that_was_refused_is_not_sent_again_while_the_board_can_not_be_read(world: World) -> None:
    """The call raises why not. Once the board can be read, the next one looks for its card."""
    job, rows = await world.open(), world.drafts(2)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=1)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    world.service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "boards.cards")
    with pytest.raises(RateLimitError, match="it asks to wait 3600 s"):
        await world.deliver(job, "a", rows)
    assert world.sent == 2
    world.service.faults.clear()
    world.session = world.session.with_options(limiter=Pace())  # the shared one still waits
    assert counts(await world.deliver(job, "a", rows)) == (0, 2, 0, 0)
    assert world.sent == 2


async def test_a_job_that_is_drained_before_refused_rows_are_looked_for(world: World) -> None:
    """The call returns what it knows of the batch, and sends nothing."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(400), "cards.create", call=2)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    reads = len(world.service.calls_of("boards.cards"))
    world.service.faults.add(faults.hang(), "boards.cards")
    reconciling = asyncio.ensure_future(reconcile(job, session=world.session))
    await until(lambda: len(world.service.calls_of("boards.cards")) > reads, reconciling)
    again = asyncio.ensure_future(world.deliver(job, "a", rows))
    assert [part.state for part in await status(job) if part.key == "a"] == ["done"]  # its rows have outcomes
    await drain(job)
    reconciling.cancel()
    assert counts(await again) == (0, 2, 1, 0)
    assert world.sent == 3
    await asyncio.wait({reconciling})


@attrs.frozen
class Gate:
    """A fault: calls wait until it is open."""

    is_open: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def play(self, stage: Stage) -> None:
        await self.is_open.wait()
        await stage.reply_answer()


async def in_reading(world: World, work: Coroutine[Any, Any, T]) -> tuple[asyncio.Future[T], asyncio.Event]:
    """Begin some work. Return it once it reads the cards, with what lets it continue."""
    gate, reads = Gate(), len(world.service.calls_of("boards.cards"))
    world.service.faults.add(gate, "boards.cards", times=1)
    working = asyncio.ensure_future(work)
    await until(lambda: len(world.service.calls_of("boards.cards")) > reads, working)
    return working, gate.is_open


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_the_card_that_another_worker_creates_is_no_refused_row_s(world: World, is_recorded: bool) -> None:
    """Equal rows come in two batches, and one of them was refused. Without markers nothing else tells them apart."""
    job, rows = await world.open(marker=False), [CardDraft(f"card {n}", world.list_id) for n in range(2)]
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    again, go_on = await in_reading(world, world.deliver(job, "a", rows))
    if not is_recorded:
        world.service.faults.add(faults.hang(commit=True), "cards.create", call=3)
    other = asyncio.ensure_future(world.deliver(job, "b", rows, concurrency=1))
    await until(lambda: other.done() if is_recorded else world.sent == 3, other)
    go_on.set()
    assert counts(await again) == ((1, 1, 0, 0) if is_recorded else (0, 1, 0, 1))
    other.cancel()
    await asyncio.wait({other})
    assert counts(await reconcile(job, session=world.session, probe=True)) == (4, 0, 0, 0)
    assert await world.names() == {"card 0": 2, "card 1": 2}


async def test_a_worker_that_was_suspended_while_it_looks_for_rows_leaves_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has taken them, and sends them: each row counts once."""
    job, rows = await world.open(), world.drafts(2)
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    suspended, go_on = await in_reading(world, world.deliver(job, "a", rows, lease=600.0, patience=0.0))
    now = part_ledgers.now
    monkeypatch.setattr(part_ledgers, "now", lambda: now() + 1000.0)
    async with contextlib.aclosing(Database(world.ledger)) as database:
        await database.change(lambda connection: connection.run("UPDATE boardclient_parts SET lease_until = 0"))
    lists, before = Gate(), len(world.service.calls_of("boards.lists"))
    world.service.faults.add(lists, "boards.lists", call=before + 2)
    other = asyncio.ensure_future(world.deliver(job, "a", rows, lease=600.0))
    await until(lambda: len(world.service.calls_of("boards.lists")) == before + 2, other)
    go_on.set()
    await asyncio.wait({suspended})
    lists.is_open.set()
    assert counts(await other) == (1, 1, 0, 0)
    assert [(part.done, part.failed, part.in_doubt) for part in await status(job) if part.key == "a"] == [(2, 0, 0)]
    with pytest.raises(JournalError, match="another worker has rows of"):
        suspended.result()


@pytest.mark.parametrize("marker", [True, False])
async def test_the_audit_leaves_out_what_other_workers_create(world: World, marker: bool) -> None:
    """Whether the ledger has their cards by now or not, they are neither second cards nor those of others."""
    job = await world.open(marker=marker)
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    assert (await world.deliver(job, "a", world.drafts(2), concurrency=1)).failed == 1
    reconciling, go_on = await in_reading(world, reconcile(job, session=world.session))
    await world.deliver(job, "b", world.drafts(2, "recorded"))
    world.service.faults.add(faults.hang(commit=True), "cards.create", call=5)
    other = asyncio.ensure_future(world.deliver(job, "c", world.drafts(2, "sent"), concurrency=1))
    await until(lambda: world.sent == 5, other)
    go_on.set()
    audit = (await reconciling).audit
    assert audit is not None
    assert (audit.duplicated, audit.unexpected, audit.is_wrong) == ((), (), False)
    other.cancel()
    await asyncio.wait({other})


async def test_a_refused_row_of_a_part_is_looked_for_before_it_is_sent_again(world: World) -> None:
    """Also where the board could not be read at the end: the next run reads it, and sends what has no card."""

    async def run() -> tuple[int, int, int]:
        session = world.session.with_options(limiter=Pace())
        job = await plan(world.drafts(20), world.board_id, world.ledger, settle=0.1)
        for part in job.parts:
            await import_part(job, part, session=session)
        found = await report(job)
        return found.created + found.already, found.failed, world.sent

    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=3)
    world.service.faults.add(faults.status(400), "cards.create", call=5)
    world.service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "boards.cards", call=range(2, 100))
    assert await run() == (18, 2, 20)
    world.service.faults.clear()
    assert await run() == (20, 0, 21)
    assert set((await world.names()).values()) == {1}


async def test_a_refused_row_of_an_interrupted_part_is_looked_for_before_it_is_sent_again(world: World) -> None:
    """Its card is found, and the row that was sent then is settled at the end of the job."""
    job = await plan(world.drafts(20), world.board_id, world.ledger, parts=1, settle=0.1)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=1)
    world.service.faults.add(faults.hang(commit=True), "cards.create", call=2)
    running = asyncio.ensure_future(import_part(job, 0, session=world.session, concurrency=1))
    await until(lambda: world.sent == 2, running)
    running.cancel()
    await asyncio.wait({running})
    for part in job.parts:
        await import_part(job, part, session=world.session)
    assert counts(await report(job))[2:] == (0, 0)
    assert await world.names() == Counter(f"card {n}" for n in range(20))


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (faults.status(503), None),
        (faults.status(503, headers={"Retry-After": "60"}), 60),
        (faults.status(429, headers={"Retry-After": "60"}), 60),
    ],
)
@pytest.mark.parametrize("operation", ["boards.cards", "boards.lists"])
async def test_a_board_that_can_not_be_read_for_too_long_gives_the_part_back(
    world: World, fault: faults.Fault, seconds: int | None, operation: str
) -> None:
    """Patience counts for reads as well. Failed rows are not sent before the board was read."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.status(400), "cards.create", call=2)
    assert (await world.deliver(job, "a", rows, concurrency=1)).failed == 1
    world.service.faults.add(fault, operation)
    with pytest.raises(BoardClientError, match="the part is given back") as caught:
        await world.deliver(job, "a", rows, patience=0.1, lease=300.0)
    assert seconds is None or seconds - 20 < seconds_until(caught.value) <= seconds
    assert world.sent == 3
    world.service.faults.clear()
    world.session = world.session.with_options(limiter=Pace())  # the shared one still waits
    assert counts(await world.deliver(job, "a", rows)) == (1, 2, 0, 0)


@pytest.mark.parametrize("options", [{"ledger": None}, {"board_id": None}, {"unknown": "report"}, {"reference": None}])
async def test_a_reference_needs_a_ledger_and_a_board(world: World, options: dict[str, Any]) -> None:
    """Nothing is sent without."""
    given: dict[str, Any] = {"list_id": world.list_id, "board_id": world.board_id, "reference": "t", "ledger": world.ledger}
    with pytest.raises(ValueError, match="reference, ledger and board_id go together"):
        await world.session.cards.create("Card", **{**given, **options})
    assert world.sent == 0


async def test_the_report_of_a_job_with_batches_counts_all(world: World) -> None:
    """It has the audit of the last reconciling."""
    job = await world.open()
    for key in "abc":
        await world.deliver(job, key, world.drafts(4, key))
    await reconcile(job, session=world.session)
    found = await report(job)
    assert (found.created, found.unknown, found.requests) == (12, 0, 12)
    assert found.audit is not None
    assert found.audit.confirmed == 12


# --- a list


async def new_list(world: World, name: str, settle: float = 0.0) -> BoardList:
    return await world.session.lists.create(name, board_id=world.board_id, unknown="reconcile", settle=settle)


async def lists(world: World) -> list[str | None]:
    return sorted(found.name or "" for found in await world.session.boards.lists(world.board_id))


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_list_whose_response_was_lost_is_found(world: World) -> None:
    """It is new and has the name. One that was there before does not count."""
    world.service.faults.add(faults.drop(commit=True), "lists.create", call=2)
    first, second = await new_list(world, "Later"), await new_list(world, "Later")
    assert first.id != second.id
    assert await lists(world) == ["Later", "Later", "To Do"]


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_list_is_looked_for_once_it_can_not_be_created_any_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may carry out what it was sent until `settle` seconds have passed."""
    world.service.faults.add(faults.drop(), "lists.create", call=1)
    waited: list[float] = []
    sleep = asyncio.sleep

    async def create_meanwhile(seconds: float, *args: Any) -> None:
        if seconds >= 20.0:
            waited.append(seconds)
            await world.session.lists.create("Later", board_id=world.board_id)
        else:
            await sleep(seconds, *args)

    monkeypatch.setattr(asyncio, "sleep", create_meanwhile)
    found = await new_list(world, "Later", settle=20.0)
    assert waited == [20.0]
    assert (found.name, await lists(world)) == ("Later", ["Later", "To Do"])
    with pytest.raises(ValueError, match="settle"):
        await new_list(world, "Later", settle=-1.0)


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_list_is_not_sent_if_the_board_refuses_to_be_read(world: World, status: int) -> None:
    """The effect is that nothing was sent."""
    world.service.faults.add(faults.status(status), "boards.lists")
    with pytest.raises(BoardClientError, match="the list was not sent") as caught:
        await new_list(world, "Later")
    assert caught.value.effect is Effect.NOT_SENT
    assert not world.service.calls_of("lists.create")


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_list_that_is_not_found_is_not_sent_again(world: World) -> None:
    """The error names what is new on the board, or why it could not be read. Other errors are raised as they are."""
    world.service.faults.add(faults.drop(), "lists.create", call=[1, 2])
    with pytest.raises(BoardClientError, match="one of those that are new on the board: none") as caught:
        await new_list(world, "Later")
    assert caught.value.effect is Effect.UNKNOWN
    world.service.faults.add(faults.status(404), "boards.lists", call=4)
    with pytest.raises(BoardClientError, match="the lists could not be read"):
        await new_list(world, "Later")
    world.service.faults.add(faults.status(400), "lists.create", call=3)
    with pytest.raises(BadRequestError):
        await new_list(world, "Later")
    options: dict[str, Any] = {"unknown": "resend"}
    for wrong in (options, {"settle": 1.0}):
        with pytest.raises(ValueError, match="unknown must be"):
            await world.session.lists.create("Later", board_id=world.board_id, **wrong)
    assert await lists(world) == ["To Do"]
    assert len(world.service.calls_of("lists.create")) == 3


# --- campaigns


@attrs.define
class Campaign:
    """An engine whose workers deliver all batches, each in an order of its own, and are killed."""

    world: World
    keys: int
    rows: int
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    @property
    def total(self) -> int:
        return self.keys * self.rows

    def start(self) -> None:
        world = self.world
        line = [sys.executable, str(Path(__file__).with_name("batch_worker.py")), world.board_id, world.list_id, world.ledger]
        line += [str(self.keys), str(self.rows), str(len(self.workers))]
        self.workers.append(subprocess.Popen(line, env={**os.environ, **world.service.environment}))

    async def run(self, count: int, kills: int) -> None:
        """Keep a number of workers until one has delivered all batches, and kill some at even distances of progress.

        If none is killed, each of them delivers all.
        """
        marks, enough = [self.total * (n + 1) // (kills + 2) for n in range(kills)], 1 if kills else count
        try:
            async with asyncio.timeout(SECONDS):
                while (ended := sum(worker.poll() == 0 for worker in self.workers)) < enough:
                    alive = [worker for worker in self.workers if worker.poll() is None]
                    if marks and self.world.sent >= marks[0]:
                        alive.pop(marks.pop(0) % len(alive)).kill()
                    for _ in range(count - len(alive) - ended):
                        self.start()
                    await asyncio.sleep(0.05)
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()


async def test_batches_that_are_delivered_by_workers_which_are_killed(world: World) -> None:
    """Responses are lost before and after the card was made: no row is lost and none has two cards, and the ledger knows all."""
    engine, job = Campaign(world, keys=12, rows=8), await world.open(settle=0.5)
    world.service.latency = 0.01
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=[17, 60])
    world.service.faults.add(faults.drop(), "cards.create", call=[30, 75])
    await engine.run(3, kills=3)
    first = await reconcile(job, session=world.session)
    names = await world.names()
    assert [name for name, count in names.items() if count > 1] == []
    assert first.audit is not None
    # A worker that died soon after the job was opened may have logged its rows before.
    assert (first.created, first.failed, first.unknown) == (len(names), 0, engine.total - len(names))
    assert (first.audit.unexpected, first.audit.duplicated, first.audit.lost) == ((), (), 0)
    settled = await reconcile(job, session=world.session, probe=True)
    assert counts(settled) == (engine.total, 0, 0, 0)
    assert await world.names() == Counter(f"card {key}-{n}" for key in range(12) for n in range(8))
    assert sum(part.done for part in await status(job)) == engine.total


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)
async def test_batches_whose_database_restarts_while_they_are_delivered_and_settled(
    world: World, postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost and none has two cards. Workers without a ledger make more cards than rows."""
    monkeypatch.setattr("boardclient.store._database._PATIENCE_SECONDS", SECONDS)  # a restart on a busy machine may take long
    engine, job = Campaign(world, keys=12, rows=8), await world.open(settle=0.5)
    world.service.latency = 0.01
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=[17, 60])
    world.service.faults.add(faults.drop(), "cards.create", call=[30, 75])

    async def restart() -> None:
        await until(lambda: world.sent >= engine.total // 2, running)
        await asyncio.to_thread(postgresql.restart)

    running = asyncio.ensure_future(engine.run(4, kills=2))
    await asyncio.gather(restart(), running)
    settled, _ = await asyncio.gather(reconcile(job, session=world.session, probe=True), asyncio.to_thread(postgresql.restart))
    assert counts(settled) == (engine.total, 0, 0, 0)
    assert await world.names() == Counter(f"card {key}-{n}" for key in range(12) for n in range(8))
    naive = Campaign(attrs.evolve(world, ledger=""), keys=12, rows=8)
    await naive.run(4, kills=0)
    assert (await world.names()).total() > 2 * engine.total


# --- what people resolve


async def test_what_a_person_has_resolved_can_be_resolved_otherwise(world: World) -> None:
    """A mistyped card is corrected by the same call. A row that was created is not."""
    job, rows = await world.open(), world.drafts(2)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    assert (await world.deliver(job, "a", rows, concurrency=1)).unknown == 1
    (right,) = [card.id for card in await world.session.boards.cards(world.board_id) if card.name == "card 0"]
    assert await resolve(job, "card 0", card_id="mistyped")
    assert await resolve(job, "card 0", card_id=right)
    with pytest.raises(JournalError, match="is done, not in doubt"):
        await resolve(job, "card 1", absent=True)
    assert counts(await world.deliver(job, "a", rows)) == (0, 2, 0, 0)


async def test_suggestions_for_rows_in_doubt_are_accepted(world: World) -> None:
    """A person has changed the description, so that no marker proves the card. Rows without a suggestion stay."""
    job, rows = await world.open(), [*world.drafts(2, "Prepare the report of the quarter for the board"), *world.drafts(1, "Tea")]
    for fault, call in ((faults.drop(commit=True), 1), (faults.status(400), 2), (faults.drop(), 3)):
        world.service.faults.add(fault, "cards.create", call=call)
    report = await world.deliver(job, "a", rows, concurrency=1)
    assert (report.unknown, report.failed) == (2, 1)
    (card,) = world.service.rules.cards.values()
    card.desc = "today"
    assert (await reconcile(job, session=world.session, probe=False)).unknown == 2
    unknown = await unknown_rows(job)
    assert [row.suggestion and row.suggestion.card_id for row in unknown] == [card.id, None]
    assert await accept_suggestions(job) == unknown[1:]
    assert (await world.deliver(job, "a", rows[:1])).already == 1


async def test_a_row_that_another_call_has_is_not_corrected_meanwhile(world: World) -> None:
    """The call waits for it, as long as it may. Once the row is free its new content is sent."""
    job, rows = await world.open(), world.drafts(70)
    world.service.faults.add(faults.hang(), "cards.create", call=1)
    running = asyncio.ensure_future(world.deliver(job, "a", rows, concurrency=1, lease=300.0))
    await until(lambda: world.sent, running)
    mended = [attrs.evolve(rows[69], name="mended")]
    with pytest.raises(JournalError, match="another worker sends rows whose content is to be replaced"):
        await world.deliver(job, "b", mended, patience=0.0)
    running.cancel()
    await asyncio.wait({running})
    assert counts(await world.deliver(job, "b", mended)) == (1, 0, 0, 0)
    assert (await world.names())["mended"] == 1


@pytest.mark.parametrize("table", ["jobs", "rows"])
async def test_a_ledger_that_is_emptied_while_it_is_in_use_is_an_error_in_words(world: World, table: str) -> None:
    """No card is sent, and none is signed with a secret that is gone."""
    job, rows = await world.open(), [CardDraft(f"card {n}", world.list_id) for n in range(2)]
    assert counts(await world.deliver(job, "a", rows)) == (2, 0, 0, 0)
    async with contextlib.aclosing(Database(world.ledger)) as database:
        await database.change(lambda connection: connection.run(f"DELETE FROM boardclient_{table}"))
    with pytest.raises(JournalError, match=r"was emptied or replaced while it was in use|rows of the ledger are gone"):
        await world.deliver(job, "a", rows)
    assert world.sent == 2
