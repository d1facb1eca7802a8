"""What happens around the database of a ledger: slow readers, poolers, restarts, damage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from batch_world import open_board
from waiting import SECONDS

from boardclient import AsyncSession, BulkProgress, CardDraft, JournalError, Pace
from boardclient.distributed import (
    Job,
    SqlTokenStore,
    drain,
    import_batch,
    import_part,
    open_job,
    plan,
    report,
    resolve,
    results,
    status,
    unknown_rows,
)
from boardclient.store import _sqlite
from boardclient.store._database import Database
from boardclient.testing import BoardService

Pooler = Callable[[str], AbstractContextManager[str]]


@attrs.define
class World:
    """A service with a board, and a session."""

    service: BoardService
    session: AsyncSession
    board_id: str
    list_id: str

    def drafts(self, count: int, word: str = "card") -> list[CardDraft]:
        return [CardDraft(f"{word} {n}", self.list_id) for n in range(count)]

    async def run(self, job: Job) -> None:
        async with asyncio.timeout(SECONDS):
            for part in job.parts:
                await import_part(job, part, session=self.session)

    async def names(self) -> Counter[str | None]:
        return Counter(card.name for card in await self.session.boards.cards(self.board_id))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_board() as place:
        yield World(*place)


async def test_a_result_that_is_looked_at_for_long_keeps_no_worker_waiting(world: World, ledger: str) -> None:
    """Another job is completed meanwhile, and no connection rests in a transaction."""
    first = await plan(world.drafts(12), world.board_id, ledger, name="first", parts=2, settle=0.3)
    await world.run(first)
    second = await plan(world.drafts(12, "other"), world.board_id, ledger, name="second", parts=2, settle=0.3)
    async with contextlib.aclosing(results(first)) as found:
        await anext(found)
        await world.run(second)
        if ledger.startswith("postgresql"):
            database = Database(ledger)
            resting = "state LIKE 'idle in transaction%' AND datname = current_database()"
            wanted = f"SELECT count(*) AS number FROM pg_stat_activity WHERE {resting}"
            assert [row.number for row in await database.read(wanted)] == [0]
            await database.aclose()
        assert len([result async for result in found]) == 11
    assert (await report(second)).created == 12


async def test_rows_that_come_slowly_keep_no_worker_waiting(world: World, tmp_path: Path) -> None:
    """The file can be written while the input makes its next row."""
    path = tmp_path / "cards.ledger"

    def slow() -> Iterator[CardDraft]:
        for draft in world.drafts(30):
            with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
            yield draft

    job = await plan(slow(), world.board_id, path, settle=0.3)
    await world.run(job)
    assert (await report(job)).created == 30


async def test_a_plan_whose_input_fails_is_run_by_nobody_and_is_completed_later(world: World, tmp_path: Path) -> None:
    """The parts that were stored by then wait for the same call with all rows."""
    path, rows = tmp_path / "cards.ledger", world.drafts(30)

    def failing() -> Iterator[CardDraft]:
        yield from rows
        raise RuntimeError("the source has ended")

    class Rows(list[CardDraft]):
        def __iter__(self) -> Iterator[CardDraft]:
            return failing()

    with pytest.raises(RuntimeError, match="the source has ended"):
        await plan(Rows(rows), world.board_id, path, parts=3, settle=0.3)
    unfinished = Job(ledger=str(path), name=f"board {world.board_id}", board_id=world.board_id, parts=(0, 1))
    with pytest.raises(JournalError, match="has no part 0 yet: plan it to its end"):
        await import_part(unfinished, 0, session=world.session)
    assert await world.names() == Counter()
    job = await plan(rows, world.board_id, path, parts=3, settle=0.3)
    await world.run(job)
    assert (await report(job)).created == 30


async def test_observers_of_a_session_see_the_progress_of_its_parts(world: World, tmp_path: Path) -> None:
    """They see it as in any bulk run."""
    seen: list[object] = []
    job = await plan(world.drafts(12), world.board_id, tmp_path / "cards.ledger", settle=0.3)
    await import_part(job, 0, session=world.session.with_options(observers=[seen.append]))
    assert max(event.created for event in seen if isinstance(event, BulkProgress)) == 12
    assert sum(isinstance(event, BulkProgress) for event in seen) > 10


async def test_rows_without_a_length_can_not_be_split_into_so_many_parts(world: World, tmp_path: Path) -> None:
    """One part in place of twenty would be a surprise."""
    with pytest.raises(TypeError, match="parts needs rows that have a length"):
        await plan(iter(world.drafts(5)), world.board_id, tmp_path / "ledger", parts=2)


@pytest.mark.parametrize("option", ["name", "account"])
@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", 7])
async def test_names_that_a_database_can_not_store_are_refused(option: str, text: Any, tmp_path: Path) -> None:
    """The error says so before anything is opened."""
    with pytest.raises((TypeError, ValueError), match=f"{option} must"):
        await plan([], "b1", tmp_path / "ledger", **{option: text})
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    "url",
    [
        "://",
        "oracle://h/d",
        "postgresql://h:tiger/d",
        "postgresql://[::1",
        "postgresql://h/d?ssl=require",
        "postgresql://h/d?x=1",
    ],
)
async def test_a_url_that_names_no_ledger_is_refused_in_words(url: str) -> None:
    """They hold nothing of it that may be a password."""
    with pytest.raises(ValueError, match="a ledger") as found:
        await open_job("b1", url)
    assert "tiger" not in str(found.value)


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:99999/d", "postgresql://127.0.0.1:1/d"])
async def test_a_port_where_no_database_is_ends_with_words(url: str) -> None:
    """Also one that no machine has."""
    with pytest.raises(JournalError, match="can't be used"):
        await status(url)


async def test_a_file_that_can_not_be_created_ends_with_words(world: World, tmp_path: Path) -> None:
    """Whatever would have created it."""
    place = tmp_path / ("long" * 100)
    with pytest.raises(JournalError, match=r"can't be created \(File name too long\)"):
        await open_job(world.board_id, place)
    with pytest.raises(JournalError, match=r"can't be created \(File name too long\)"):
        await world.session.cards.create("card", list_id=world.list_id, board_id=world.board_id, reference="r", ledger=place)


# --- PgBouncer


@pytest.mark.parametrize(
    ("mode", "query"), [("session", ""), ("session", "?pooler=session"), ("transaction", "?pooler=transaction")]
)
async def test_a_ledger_behind_a_pooler(world: World, pooler: Pooler, mode: str, query: str) -> None:
    """Parts, pace and tokens work in session mode as it is, and in transaction mode if the URL says so."""
    with pooler(mode) as url:
        ledger = url + query
        job = await plan(world.drafts(60), world.board_id, ledger, parts=3, settle=0.3)
        pace = Pace(shared=ledger)
        session = world.session.with_options(limiter=pace)
        async with pace:
            pace.report(429, 0.0, 0.1)
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(import_part(job, part, session=session) for part in job.parts))
        assert [result.state async for result in results(job)] == ["created"] * 60
        assert (await report(job)).created == 60
        assert await SqlTokenStore(ledger).read("ada") is None
    assert await world.names() == Counter(f"card {n}" for n in range(60))


async def test_a_mode_of_a_pooler_that_there_is_not_is_refused() -> None:
    """The error says which there are."""
    with pytest.raises(ValueError, match="pooler must be"):
        await plan([], "b1", "postgresql://postgres@127.0.0.1/x?pooler=statement")


async def test_a_database_that_does_not_exist_is_named_at_once(postgresql: Any) -> None:
    """Only one that was there before is waited for."""
    missing = f"{postgresql.new_database()}_missing"
    with pytest.raises(JournalError, match=r"can't be used \(database .* does not exist\)"):
        await status(missing)


@pytest.mark.parametrize("is_empty", [True, False])
async def test_the_file_of_another_program_stays_as_it_is(tmp_path: Path, is_empty: bool) -> None:
    """What looks at a ledger, or settles a row of it, changes no file that is none, and makes none beside it."""
    path = tmp_path / "notes.db"
    path.touch()
    if not is_empty:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    for look in (status, report, unknown_rows, drain, partial(resolve, row="r", absent=True)):
        with pytest.raises(JournalError, match="it is not a ledger"):
            await look(path)
    assert ([*tmp_path.iterdir()], path.read_bytes()) == ([path], before)


async def test_a_ledger_that_can_only_be_read_is_shown_and_not_changed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running again would not help: the error says what to check."""
    job = await plan(world.drafts(1), world.board_id, tmp_path / "ledger")

    connect = _sqlite.connect

    def connect_to_read(path: Path, **options: Any) -> _sqlite.FileConnection:  # root may write to any file
        connection = connect(path, **options)
        connection.raw.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(_sqlite, "connect", connect_to_read)
    assert len(await status(job)) == 1
    with pytest.raises(JournalError, match=r"readonly database\): check the path and its permissions"):
        await drain(job)


async def test_a_database_of_something_else_is_called_no_ledger(world: World, tmp_path: Path) -> None:
    """Running again would not help."""
    job = await plan(world.drafts(1), world.board_id, tmp_path / "ledger")
    other = tmp_path / "other"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE rows (id)")
    with pytest.raises(JournalError, match=r"other can't be used \(no such table: .*\): it is not a ledger"):
        await report(attrs.evolve(job, ledger=str(other)))


async def test_a_ledger_whose_file_is_missing_is_not_created(world: World, tmp_path: Path) -> None:
    """An empty one in its place would hide why nothing of the job is known."""
    job = await open_job(world.board_id, tmp_path / "ledger")
    missing = attrs.evolve(job, ledger=str(tmp_path / "other"))
    for call in (import_batch(missing, "a", world.drafts(1), session=world.session), report(missing), anext(results(missing))):
        with pytest.raises(JournalError, match=r"there is no ledger|can't be used .*: check the path"):
            await call
    assert not (tmp_path / "other").exists()


async def test_a_file_with_damaged_tables_is_named_with_the_remedy(world: World, tmp_path: Path) -> None:
    """SQLite's message quotes what is damaged, which may be no text."""
    job = await plan(world.drafts(1), world.board_id, tmp_path / "ledger")
    path = Path(job.ledger)
    path.write_bytes(path.read_bytes().replace(b"NOT NULL", b"NOT NUL\x82", 1))
    with pytest.raises(JournalError, match=r"can't decode .*: put back a copy of it"):
        await report(job)


async def test_a_file_that_is_cut_off_is_named_with_the_remedy(world: World, tmp_path: Path) -> None:
    """It is not taken for a file that another process is about to write."""
    job = await plan(world.drafts(1), world.board_id, tmp_path / "ledger")
    cut = tmp_path / "cut"
    cut.write_bytes(Path(job.ledger).read_bytes()[:8192])
    with pytest.raises(JournalError, match=r"malformed.*: put back a copy of it"):
        await open_job(world.board_id, cut)


# --- forks

_PARENT_AND_CHILD = """
import os, pickle, sys
from boardclient.distributed import import_batch_now
job, rows = pickle.load(sys.stdin.buffer)
import_batch_now(job, "parent", rows)
delivered, ended = os.pipe(), os.pipe()
if os.fork():
    os.read(delivered[0], 1)
    sys.exit()  # which closes the ledger
import_batch_now(job, "first", rows)
os.write(delivered[1], b".")
os.close(ended[1])
os.read(ended[0], 1)
import_batch_now(job, "second", rows)
print("delivered")
"""


async def test_what_a_forked_process_delivers_is_kept_when_its_parent_closes_the_ledger(world: World, ledger: str) -> None:
    """A later delivery makes no second card."""
    job, rows = await open_job(world.board_id, ledger), world.drafts(3)
    line = [sys.executable, "-c", _PARENT_AND_CHILD]
    environment, given = {**os.environ, **world.service.environment}, pickle.dumps((job, rows))
    ended = await asyncio.to_thread(subprocess.run, line, env=environment, input=given, capture_output=True, check=False)
    assert ended.stdout == b"delivered\n", ended.stderr
    again = [await import_batch(job, key, rows, session=world.session) for key in ("parent", "first", "second")]
    assert [(one.created, one.already) for one in again] == [(0, 3)] * 3
