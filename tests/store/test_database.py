"""A database takes the same statements in a file and on a server, and its clock holds leases."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from waiting import SECONDS

from boardclient import CardDraft, CredentialError, JournalError
from boardclient.bulk.journal import read_rows
from boardclient.distributed import SqlTokenStore, open_job
from boardclient.store import _clock
from boardclient.store._connection import Connection
from boardclient.store._database import Database, Tables
from boardclient.store._kinds import LEDGER, application_of
from boardclient.store._location import checked_location
from boardclient.testing import BoardService

THINGS = Tables(
    (
        (
            "CREATE TABLE IF NOT EXISTS boardclient_things (seq {int} PRIMARY KEY, ref {text}, content {bytes}, at {float},"
            " lease_until {float}, lease {float}) {fill}"
        ),
        "CREATE TABLE IF NOT EXISTS boardclient_numbers (number {id}, word {text})",
    ),
    format=7,
)
COLUMNS = [("seq", int), ("ref", str), ("content", bytes), ("at", "{clock}")]


@pytest.fixture
async def database(ledger: str) -> AsyncIterator[Database]:
    async with contextlib.aclosing(Database(ledger)) as database:
        await database.create(THINGS)
        yield database


async def lease(database: Database, seq: int, seconds: float, length: float = 10.0) -> None:
    """Let a row be leased for some seconds."""
    text = (
        "INSERT INTO boardclient_things (seq, lease_until, lease) VALUES (?, {clock} + ?, ?) ON CONFLICT (seq)"
        " DO UPDATE SET lease_until = excluded.lease_until, lease = excluded.lease"
    )
    await database.change(lambda connection: connection.run(text, seq, seconds, length))


async def held(database: Database) -> list[int]:
    return [row.seq for row in await database.read("SELECT seq FROM boardclient_things AS t WHERE {held t} ORDER BY seq")]


# --- statements


async def test_statements_are_written_once_for_both(database: Database) -> None:
    """Rows go in by thousands and come back with what was stored, whatever is below."""

    def fill(connection: Connection) -> list[int]:
        rows = [(n, f"r{n}", b"\0%" if n % 2 else None) for n in range(1000)]
        return [row.seq for row in connection.insert("INSERT INTO boardclient_things", COLUMNS, rows, _NEW)]

    _NEW = "ON CONFLICT DO NOTHING RETURNING seq"
    assert await database.change(fill) == [*range(1000)]
    assert await database.change(fill) == []

    def look(connection: Connection) -> None:
        some = connection.fetch("SELECT * FROM boardclient_things WHERE seq {in ?} ORDER BY seq", [1, 2, 5000])
        assert [(row.seq, row.ref, row.content) for row in some] == [(1, "r1", b"\0%"), (2, "r2", None)]
        assert abs(some[0].at - connection.now()) < SECONDS
        found = connection.one("SELECT count(*) AS number, sum(seq) AS total, avg(seq) AS mean FROM boardclient_things")
        assert (found.number, found.total, found.mean) == (1000, 499_500, 499.5)
        of_two = "SELECT 1 + ? AS more, 4 - ? AS rest FROM boardclient_things WHERE ref LIKE 'r99%' LIMIT 1"
        assert tuple(connection.one(of_two, 1, 3)) == (2, 1)
        assert connection.one("SELECT seq FROM boardclient_things WHERE ref = ?", "none") is None
        assert connection.value("SELECT seq FROM boardclient_things WHERE ref = ?", "none") is None

    await database.query(look)

    def change(connection: Connection) -> None:
        assert connection.insert("INSERT INTO boardclient_things", COLUMNS, []) == []
        assert connection.insert("INSERT INTO boardclient_numbers", [("word", str)], [("a",), ("b",)]) == []
        assert connection.run("UPDATE boardclient_things SET ref = NULL WHERE seq < ?", 3) == 3
        assert connection.value("SELECT seq FROM boardclient_things WHERE seq = ? {for update skip locked}", 5) == 5
        assert connection.value("SELECT max(number) FROM boardclient_numbers") == 2

    await database.change(change)


async def test_reads_see_one_moment_and_keep_nobody_waiting(database: Database, ledger: str) -> None:
    """Another process may write between two of them."""
    writer, count = threading.Event(), "SELECT count(*) FROM boardclient_things"

    async def write() -> None:
        async with contextlib.aclosing(Database(ledger)) as other:
            await other.create(THINGS)
            await lease(other, 1, 0.0)
        writer.set()

    def look(connection: Connection) -> list[int]:
        before = connection.value(count)
        assert writer.wait(SECONDS)
        return [before, connection.value(count)]

    seen, _ = await asyncio.gather(database.query(look), write())
    assert (seen, (await database.read(count))[0][0]) == ([0, 0], 1)


async def test_work_that_fails_leaves_nothing(database: Database) -> None:
    """What it raises is raised, and the next change works on the same connection."""

    def fail(connection: Connection) -> None:
        connection.run("INSERT INTO boardclient_numbers (word) VALUES (?)", "a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.change(fail)
    with pytest.raises(JournalError, match=r"can't be used \(.*boardclient_nothing.*\): it is not a ledger"):
        await database.change(lambda connection: connection.fetch("SELECT * FROM boardclient_nothing"))
    assert await database.read("SELECT * FROM boardclient_numbers") == []


# --- clocks


async def test_a_lease_ends_when_it_ends(database: Database) -> None:
    """And not before. One that is more than twice its length away is over: the clock was set back since."""
    for seq, seconds in enumerate((-0.001, 10.0, 20.0, 21.0, 3600.0)):
        await lease(database, seq, seconds)
    assert await held(database) == [1, 2]


async def test_a_lease_of_another_boot_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that started again has nobody left who holds one, however short it was up before. Its time only grows."""
    uptime, since = {"first": 5.0, "second": 1.0, "third": 1e6}, []
    for name, seconds in uptime.items():
        monkeypatch.setattr(_clock, "boot", lambda name=name: name)
        monkeypatch.setattr(_clock, "seconds_of", lambda _, seconds=seconds: seconds)
        async with contextlib.aclosing(Database(tmp_path / "ledger")) as database:
            await database.create(THINGS)
            assert await held(database) == []
            await lease(database, 1, 10.0)
            assert await held(database) == [1]
            since.append(await database.query(Connection.now))
    assert since == sorted(since)


async def test_the_time_of_day_moves_no_lease_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward ends no lease, and one that is set back lengthens none."""
    async with contextlib.aclosing(Database(tmp_path / "ledger")) as database:
        await database.create(THINGS)
        await lease(database, 1, 10.0)
        await lease(database, 2, -1.0)
        now = time.time()
        for moved in (now + 3600, now - 7200):
            monkeypatch.setattr(time, "time", lambda moved=moved: moved)
            async with contextlib.aclosing(Database(tmp_path / "ledger")) as other:
                assert await held(database) == await held(other) == [1]


async def test_a_machine_without_a_boot_has_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases work there as well."""
    monkeypatch.setattr(_clock, "_BOOT", tmp_path / "none")
    assert _clock.boot() == "-"
    async with contextlib.aclosing(Database(tmp_path / "ledger")) as database:
        await database.create(THINGS)
        await lease(database, 1, 10.0)
        assert await held(database) == [1]
        assert abs(await database.query(Connection.now) - time.time()) < SECONDS


# --- kinds of file


async def test_a_journal_is_no_ledger_and_a_ledger_no_journal(tmp_path: Path) -> None:
    """Each refuses the other by name, and neither changes it nor makes anything beside it, also while a run has it."""
    async with BoardService() as service, service.session() as session:
        board = service.seed({"To Do": []})
        rows = [CardDraft(f"card {n}", board.lists["To Do"]) for n in range(3)]
        journal, ledger = tmp_path / "journal", tmp_path / "ledger"

        async def refuse() -> None:
            with pytest.raises(JournalError, match="is a journal, not a ledger"):
                async with contextlib.aclosing(Database(journal)) as database:
                    await database.create(THINGS)
            with pytest.raises(JournalError, match="is a journal, not a ledger"):
                async with contextlib.aclosing(Database(journal)) as database:
                    await database.check(THINGS)
            with pytest.raises(JournalError, match="is a journal, not a ledger"):
                await open_job(board.id, journal)
            with pytest.raises(CredentialError, match="is a journal, not a ledger"):
                await SqlTokenStore(journal).read("ada")

        async with session.cards.create_many(rows, concurrency=1, board_id=board.id, journal=journal) as run:
            async for _ in run:
                await refuse()
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert {path.name for path in before} == {"journal", "journal-lock"}
        await refuse()
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        async with session.cards.create_many(rows, concurrency=1, board_id=board.id, journal=journal) as run:
            assert [result.state async for result in run] == ["already"] * 3
        async with contextlib.aclosing(Database(ledger)) as database:
            await database.create(THINGS)
        assert application_of(ledger) == LEDGER
        with contextlib.closing(sqlite3.connect(tmp_path / "old ledger")) as other:
            other.executescript("CREATE TABLE boardclient_format (format INTEGER PRIMARY KEY); PRAGMA journal_mode = WAL")
        with contextlib.closing(sqlite3.connect(tmp_path / "notes")) as other:
            other.execute("CREATE TABLE notes (text)")
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        for place, words in ((ledger, "is a ledger, not a"), ("old ledger", "is a ledger, not a"), ("notes", "is not a")):
            with pytest.raises(JournalError, match=f"{words} journal"):
                await session.cards.create_many(rows, board_id=board.id, journal=tmp_path / place)
            with pytest.raises(JournalError, match=f"{words} journal"):
                [*read_rows(tmp_path / place)]
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("application", [0, 0x62644B74])
async def test_the_file_of_another_program_is_left_alone(tmp_path: Path, application: int) -> None:
    """No tables are added to it, and nothing is made beside it."""
    path = tmp_path / "notes.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE notes (text); PRAGMA application_id = {application}")
    before = path.read_bytes()
    async with contextlib.aclosing(Database(path)) as database:
        with pytest.raises(JournalError, match="belongs to another program, and is not a ledger"):
            await database.create(THINGS)
        with pytest.raises(JournalError, match="is not a ledger"):
            await database.check(THINGS)
    assert ([*tmp_path.iterdir()], path.read_bytes()) == ([path], before)


async def test_an_old_sqlite_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is created."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(JournalError, match=r"needs SQLite 3\.35 or later"):
        Database(tmp_path / "ledger")
    assert not [*tmp_path.iterdir()]


# --- formats


async def test_tables_of_an_earlier_format_are_converted_and_others_refused(ledger: str) -> None:
    """A connection that is made later finds the format out again, and writes nothing in one that it does not know."""

    def convert(connection: Connection, found: int) -> None:
        assert found == 7
        connection.run("ALTER TABLE boardclient_numbers RENAME TO boardclient_old_numbers")

    later = Tables((), 8, convert)
    async with contextlib.aclosing(Database(ledger)) as old, contextlib.aclosing(Database(ledger)) as new:
        with pytest.raises(JournalError):
            await old.check(THINGS)
        await old.create(Tables(()))
        with pytest.raises(JournalError, match="has no jobs: it is not a ledger"):
            await old.check(THINGS)
        await old.create(THINGS)
        await new.check(later)
        await new.check(later)
        new.close_idle()
        assert [row.format for row in await new.read("SELECT format FROM boardclient_format")] == [8]
        with pytest.raises(JournalError, match="boardclient_numbers"):
            await old.read("SELECT * FROM boardclient_numbers")
        old.close_idle()
        with pytest.raises(JournalError, match="has format 8, not 7: use the boardclient that made it"):
            await old.read("SELECT * FROM boardclient_things")
    for use in (Database.create, Database.check):
        async with contextlib.aclosing(Database(ledger)) as old:
            with pytest.raises(JournalError, match="has format 8, not 7"):
                await use(old, THINGS)


async def test_a_ledger_of_an_earlier_version_gets_its_mark(tmp_path: Path) -> None:
    """It is known by its tables until then."""
    path = tmp_path / "ledger"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE boardclient_format (format INTEGER PRIMARY KEY); CREATE TABLE boardclient_jobs (job)")
    async with contextlib.aclosing(Database(path)) as database:
        await database.create(THINGS)
    assert application_of(path) == LEDGER


# --- URLs


@pytest.mark.parametrize(
    ("option", "name"),
    [("ssl=require", "sslmode"), ("database=x", "dbname"), ("direct_tls=1", "sslnegotiation"), ("timeout=3", "connect_timeout")],
)
def test_an_option_of_another_driver_is_refused_with_its_name_in_libpq(option: str, name: str) -> None:
    """The options of libpq are taken by their names."""
    with pytest.raises(ValueError, match=f"libpq's name is {name}"):
        checked_location(f"postgresql://u@h/d?{option}")
    for url in (
        "postgresql://u@h/d?sslmode=require&passfile=/x",
        "postgres://u@h1:1,h2/d?pooler=session",
        "postgresql:///d?host=/s",
    ):
        assert checked_location(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "://",
        "oracle://h/d",
        "postgresql://h:tiger/d",
        "postgresql://[::1",
        "postgresql://h/d?x=1",
        "postgresql://h/d?pooler=statement",
        "postgresql://u:tiger@h/d",
        "postgresql://h/d?sslPassword=tiger",
        "postgresql://h/d?pass%77ord=tiger",
        "postgresql://h/d?oauth_client_secret=tiger",
    ],
)
def test_a_url_that_names_no_database_is_refused_in_words(url: str) -> None:
    """They hold nothing of it that may be a password."""
    with pytest.raises(ValueError, match=r"a ledger|pooler must be") as found:
        checked_location(url)
    assert "tiger" not in str(found.value)


async def test_a_file_that_can_not_be_created_or_read_ends_with_words(tmp_path: Path) -> None:
    """They say what helps."""
    async with contextlib.aclosing(Database(tmp_path / ("long" * 100))) as database:
        with pytest.raises(JournalError, match=r"can't be created \(File name too long\): choose another place"):
            await database.create(THINGS)
    async with contextlib.aclosing(Database(tmp_path / "missing")) as database:
        with pytest.raises(JournalError, match="check the path and its permissions"):
            await database.check(THINGS)
    (tmp_path / "notes").write_bytes(b"no database " * 500)
    async with contextlib.aclosing(Database(tmp_path / "notes")) as database:
        with pytest.raises(JournalError, match="put back a copy of it"):
            await database.create(THINGS)


_PLAIN = """
import asyncio, sys
sys.modules.update(psycopg=None, sqlalchemy=None, asyncpg=None)
from boardclient import Pace
from boardclient.distributed import SqlTokenStore
from boardclient.testing import BoardService

async def main(ledger):
    async with BoardService() as service, service.session(limiter=Pace(shared=ledger)) as session:
        board = service.seed({"To Do": []})
        where = dict(list_id=board.lists["To Do"], board_id=board.id, reference="r", ledger=ledger)
        cards = [await session.cards.create("card", **where) for _ in "12"]
        assert cards[0].id == cards[1].id and len(service.rules.cards) == 1

asyncio.run(main(sys.argv[1]))
"""


def test_a_ledger_in_a_file_needs_no_extra(tmp_path: Path) -> None:
    """References, shared paces and token stores work after a plain install."""
    line = [sys.executable, "-c", _PLAIN, str(tmp_path / "ledger")]
    ended = subprocess.run(line, timeout=SECONDS, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
