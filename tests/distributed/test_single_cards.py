"""Ends: each call for a card has one, and says what became of it. What never arrives is noticed."""

from __future__ import annotations

import asyncio
import copy
import pickle
import shlex
import sys
import types
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import pytest
from batch_world import World, counts
from batch_world import world as world
from waiting import SECONDS

from boardclient import ApiError, Card, CardDraft, JournalError, NotFoundError, PermissionDeniedError
from boardclient.distributed import (
    Job,
    _task,
    import_batch_now,
    import_part,
    import_part_now,
    open_job,
    plan,
    reconcile,
    report,
    resolve,
)
from boardclient.errors import BoardClientError, Effect
from boardclient.store._database import Database
from boardclient.testing import BoardService, faults
from boardclient.testing.faults import Stage


async def test_the_card_of_a_reference_is_given_up_in_time_and_goes_on_later(world: World) -> None:
    """Whatever the board's listing answers. What is left of `settle` is waited for once, and not in each call."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    world.service.faults.add(faults.status(500), "boards.cards", call=range(2, 1000))
    loop = asyncio.get_running_loop()
    await lose(world, "t1")
    world.session = world.session.with_options(timeout=0.3)
    for patience in (None, 0.2):
        began = loop.time()
        with pytest.raises(BoardClientError) as caught:
            await world.create("Fix the login", "t1", patience=patience)
        assert caught.value.effect is Effect.UNKNOWN
        assert caught.value.retry_at is not None
        assert "the connection was closed before the response" in str(caught.value)
        assert loop.time() - began < SECONDS / 3
    world.service.faults.clear()
    world.session = world.session.with_options(timeout=30.0)
    assert (await world.create("Fix the login", "t1")).name == "Fix the login"
    assert world.sent == 1


async def test_what_is_left_of_settle_is_waited_for_by_the_next_call(world: World) -> None:
    """It counts from the end of the request, however many calls have given up since, and `retry_at` is that moment."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    await lose(world, "t1")
    for seconds in (90.0, 40.0):
        for _ in range(2):
            with pytest.raises(BoardClientError) as caught:
                await world.create("Fix the login", "t1", settle=90.0, patience=0.1)
            assert caught.value.retry_at is not None
            left = (caught.value.retry_at - datetime.now(UTC)).total_seconds()
            assert seconds - 30.0 < left <= seconds
        await passed(world, 50.0)
    assert (await world.create("Fix the login", "t1", settle=90.0)).name == "Fix the login"
    assert world.sent == 1


async def lose(world: World, reference: str) -> None:
    """Send the card of a reference, however long that takes. Its response does not come."""
    row = CardDraft("Fix the login", world.list_id, reference=reference)
    found = await world.deliver(await open_job(world.board_id, world.ledger), None, [row])
    assert found.unknown == 1


async def passed(world: World, seconds: float) -> None:
    """Let time pass since the requests have ended, by the clock of the ledger."""
    database = Database(world.ledger)
    await database.change(lambda connection: connection.run("UPDATE boardclient_outcomes SET at = at - ?", seconds))
    await database.aclose()


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_single_card_is_given_up_in_time(world: World) -> None:
    """Before it was sent, while the board can't be read, and after that."""
    session = world.session.with_options(timeout=0.3)
    options: dict[str, Any] = {"list_id": world.list_id, "board_id": world.board_id, "settle": 0.1}
    world.service.faults.add(faults.hang(), "boards.cards", times=1)
    with pytest.raises(BoardClientError) as caught:
        await session.cards.create("Card", **options, patience=0.1)
    assert (caught.value.effect, caught.value.retry_at is not None, world.sent) == (Effect.NOT_SENT, True, 0)
    world.service.faults.clear()
    reads = len(world.service.calls_of("boards.cards"))
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    world.service.faults.add(faults.status(500), "boards.cards", call=range(reads + 2, 1000))
    with pytest.raises(BoardClientError) as caught:
        await session.cards.create("Card", **options)
    assert caught.value.effect is (Effect.UNKNOWN if world.sent else Effect.NOT_SENT)
    assert caught.value.retry_at is not None


async def test_the_log_says_nothing_of_a_card_whose_call_returns_it_or_raises(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What was unknown for a moment is a false alarm. A batch is named by its job."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=[1, 2])
    assert (await world.create("Fix the login", "t1", settle=0.1)).name == "Fix the login"
    await world.session.cards.create("Card", list_id=world.list_id, board_id=world.board_id, settle=0.1)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
    world.service.faults.add(faults.status(400), "cards.create", call=3)
    job = await open_job(world.board_id, world.ledger)
    await world.deliver(job, "a", world.drafts(1))
    assert [record.message.split(" of ")[0] for record in caplog.records] == [f"job {job.name}: 1 failed"]


async def test_the_card_of_a_reference_that_was_deleted_is_named(world: World) -> None:
    """The effect of the error is DONE, told from a card that can't be read now, which is returned by its identifier."""
    card = await world.create("Fix the login", "t1")
    world.service.faults.add(faults.status(403), "cards.get", times=1)
    assert await world.create("Fix the login", "t1") == Card(card.id)
    await world.session.cards.delete(card.id)
    with pytest.raises(NotFoundError, match=f"the card {card.id} of the reference 't1' was created, and is deleted") as caught:
        await world.create("Fix the login", "t1")
    assert caught.value.effect is Effect.DONE
    assert world.sent == 1


async def test_the_error_of_a_card_in_doubt_says_why_and_how_it_is_settled(world: World) -> None:
    """It has the status, and the command that settles the row, which may be pasted. Another call helps if the board is read."""
    world.service.faults.add(faults.status(503, commit=True), "cards.create", call=1)
    world.service.faults.add(faults.status(500), "boards.cards", call=range(2, 1000))
    await lose(world, "ticket 4711")
    session, world.session = world.session, world.session.with_options(timeout=0.6)
    for reference in ("ticket 4711", "ticket 4711"):
        with pytest.raises(BoardClientError, match=r"status 503 from .*; whether the card exists is not known") as caught:
            await world.create("Fix the login", reference)
        assert "check before" not in str(caught.value)
        assert "the same call looks for it again from " in str(caught.value)
        assert (caught.value.effect, caught.value.candidates) == (Effect.UNKNOWN, ())
    assert "the board could not be read: GET " in str(caught.value)
    world.service.faults.clear()
    assert "' 'ticket 4711' --card CARD_ID`, or `--absent` if there is none" in str(caught.value)
    assert await resolve(await open_job(world.board_id, world.ledger), "ticket 4711", absent=True)
    world.session = session
    card = await world.create("Fix the login", "ticket 4711")
    assert (world.sent, card.problem) == (2, None)


async def test_the_error_of_a_card_names_its_candidates(world: World) -> None:
    """A person has changed the card of a lost response. Another call can't tell whose it is, and the command can."""
    world.service.faults.add(LostAndChanged(world.service), "cards.create", call=1)
    for _ in range(2):
        with pytest.raises(BoardClientError, match="the same call can't tell while the board shows it") as caught:
            await world.create("Fix the login", "-1", probe=False)
        (card,) = world.service.rules.cards.values()
        assert caught.value.candidates == (card.id,)
    command = shlex.split(str(caught.value).split("`")[1])  # as a shell does
    assert await (await asyncio.create_subprocess_exec(sys.executable, "-m", *command)).wait() == 0
    assert (await world.create("Fix the login", "-1")).id == card.id
    assert world.sent == 1
    world.service.faults.add(LostAndChanged(world.service), "cards.create", call=2)
    with pytest.raises(BoardClientError, match="the same call creates another card") as caught:
        await world.session.cards.create("Other", list_id=world.list_id, board_id=world.board_id, settle=0.1, probe=False)
    assert len(caught.value.candidates) == 1


async def test_the_error_of_a_row_says_how_it_is_settled(world: World) -> None:
    """Of a row without a reference by its position in the job, by a batch as by `reconcile`."""
    job = await world.open()
    await world.deliver(job, "first", world.drafts(2))
    rows = [CardDraft("lost 0", world.list_id, reference="17"), CardDraft("lost 1", world.list_id)]
    world.service.faults.add(faults.status(503), "cards.create", call=[3, 4])
    found = await world.deliver(job, "lost", rows)
    settled = await reconcile(job, session=world.session, probe=False)
    for told in (found, settled):
        for result, named in zip(told.problems, ("--reference=17", "--position 3"), strict=True):
            assert "status 503 from " in str(result.error)
            assert "reconciling the job looks for it again; by hand, " in str(result.error)
            assert f"--job '{job.name}' {named} --card CARD_ID`, or `--absent`" in str(result.error)
    assert "a temporary card may prove it, and none was allowed" in str(settled.problems[0].error)
    for row in ("17", 3):
        assert await resolve(job, row, absent=True)
    assert counts(await world.deliver(job, "lost", rows)) == (2, 0, 0, 0)


async def test_a_card_in_doubt_stays_so_when_its_call_may_not_read_the_board(world: World) -> None:
    """The error is that of the reading, which says who has to act, and its effect is that of the card."""
    world.service.faults.add(faults.status(503), "cards.create", call=1)
    world.service.faults.add(faults.status(403), "boards.cards", call=range(2, 1000))
    for _ in range(2):
        with pytest.raises(PermissionDeniedError, match=r"^POST .* status 503 .* not known: GET .* status 403 ") as caught:
            await world.create("Fix the login", "t1")
        assert caught.value.effect is Effect.UNKNOWN


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_card_that_exists_and_can_not_be_read_now_says_why(world: World, status: int) -> None:
    """It has its identifier, and `problem`, which survives copies. A card that can be read has none."""
    world.session = world.session.with_options(retry=None)
    card = await world.create("Fix the login", "t1")
    assert (card.problem, Card("c1").problem) == (None, None)
    world.service.faults.add(faults.status(status), "cards.get", times=1)
    found = await world.create("Fix the login", "t1")
    for one in (found, copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert (one, one.to_dict()["extra"]) == (Card(card.id), {})
        assert isinstance(one.problem, ApiError)
        assert one.problem.status == status
    assert (await world.create("Fix the login", "t1")).problem is None


@attrs.frozen
class LostAndChanged:
    """A card is created whose response is lost, and a person changes it at once."""

    service: BoardService

    async def play(self, stage: Stage) -> None:
        stage.commit()
        for card in self.service.rules.cards.values():
            card.name, card.desc = f"{card.name} today", "now"
        stage.abort()


# --- what never arrives


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_rows_that_were_announced_and_never_came_are_noticed(world: World) -> None:
    """The number stays, in each later call that opens the job. Rows that came twice count once, those of earlier runs do not."""
    job, rows = await world.open(name="May", rows=8), world.drafts(8)
    assert job.rows == 8
    for arrived in (rows[:3], rows[:3]):
        await world.deliver(job, None, arrived)
    opened = await world.open(name="May")
    assert opened.rows == 8
    found = await reconcile(opened, session=world.session)
    assert (found.created, found.missing) == (3, 5)
    with pytest.raises(BoardClientError, match="5 of the rows that were announced never came to the ledger"):
        found.raise_for_problems()
    await world.deliver(job, None, rows)
    found = await reconcile(opened, session=world.session)
    assert (found.created, found.missing) == (8, 0)
    found.raise_for_problems()
    # A later run has other rows, and some of the earlier ones again, cut otherwise.
    more = world.drafts(4, "June")
    job = await world.open(name="May", rows=7)
    for key, arrived in (("x", [*more[:2], rows[0]]), ("y", rows[:3])):
        await world.deliver(job, key, arrived)
    found = await reconcile(await world.open(name="May"), session=world.session)
    assert (*counts(found), found.missing) == (2, 8, 0, 0, 2)
    await world.deliver(job, "z", more)
    assert (await reconcile(job, session=world.session)).missing == 0
    assert (await world.open(name="other")).rows == 0
    with pytest.raises(ValueError, match="rows must be"):
        await world.open(name="May", rows=0)


@pytest.mark.parametrize(
    ("package", "module", "asks"), [("gevent", "monkey", "is_module_patched"), ("eventlet", "patcher", "is_monkey_patched")]
)
def test_a_plain_call_says_where_it_can_not_work(package: str, module: str, asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threads are replaced, rows would be missing and nobody told. A package that replaces nothing is no harm."""
    patched = ["socket"]
    fake = types.SimpleNamespace(**{asks: lambda kind: kind in patched})
    monkeypatch.setitem(sys.modules, f"{package}.{module}", fake)
    job = Job(ledger="missing.ledger", name="n", board_id="b")
    with pytest.raises(JournalError):
        import_batch_now(job, "k", [])
    patched.append("thread")
    for call in (partial(import_batch_now, job, "k", []), partial(import_part_now, job, -1)):
        with pytest.raises(RuntimeError, match=f"_now needs threads, and {package} has replaced those of this process"):
            call()


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_the_report_of_a_job_that_is_resumed_counts_the_requests_since(world: World) -> None:
    """As it tells the cards that were created since from earlier ones. The report of a ledger counts all."""
    rows = world.drafts(6)
    world.service.faults.add(faults.status(400), "cards.create", call=2)
    for counted in ((5, 0, 1, 0, 6), (1, 5, 0, 0, 1)):
        job = await plan(rows, world.board_id, world.ledger, settle=0.1)
        await import_part(job, 0, session=world.session)
        found = await report(job)
        assert (*counts(found), found.requests) == counted
    assert (await report(world.ledger)).requests == world.sent == 7


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_the_first_calls_at_once_read_the_board_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cards and its lists. Calls that begin while the one that reads them fails read them themselves."""
    monkeypatch.setattr(_task, "_LISTS_SECONDS", SECONDS)
    gathered = await asyncio.gather(*(world.create(f"card {n}", f"r{n}") for n in range(20)))
    assert len({card.id for card in gathered}) == world.sent == 20
    assert [len(world.service.calls_of(name)) for name in ("boards.cards", "boards.lists")] == [1, 1]
    other = world.service.seed({"To Do": []})
    world.board_id, world.list_id = other.id, other.lists["To Do"]
    world.service.faults.add(faults.status(404), "boards.lists", call=2)
    failed = await asyncio.gather(*(world.create(f"card {n}", f"r{n}") for n in range(4)), return_exceptions=True)
    assert [type(one) for one in failed].count(NotFoundError) == 1
    assert world.sent == 23
