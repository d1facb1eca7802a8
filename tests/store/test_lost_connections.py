"""What becomes of work at a database when connections are lost, hang or are busy, and when processes and loops end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from ledger_places import Server
from waiting import SECONDS, until

from boardclient import JournalError
from boardclient.store import _database, _postgres, _sqlite
from boardclient.store._connection import Connection
from boardclient.store._database import Database, Tables
from boardclient.store._postgres import ServerConnection
from boardclient.store._sqlite import FileConnection

WORDS = Tables(("CREATE TABLE IF NOT EXISTS boardclient_words (word TEXT)",))
Pooler = Callable[[str], AbstractContextManager[str]]


def add(connection: Connection) -> None:
    connection.run("INSERT INTO boardclient_words VALUES (?)", "a")


async def count(database: Database) -> int:
    return int((await database.read("SELECT count(*) AS number FROM boardclient_words"))[0].number)


@pytest.fixture
async def database(ledger: str) -> AsyncIterator[Database]:
    async with contextlib.aclosing(Database(ledger)) as database:
        await database.create(WORDS)
        yield database


@pytest.fixture
async def server(postgresql: Server) -> AsyncIterator[Database]:
    async with contextlib.aclosing(Database(postgresql.new_database())) as database:
        await database.create(WORDS)
        yield database


async def test_connections_that_the_server_has_ended_are_made_again(server: Database) -> None:
    """All of them, also within a change, which is done again as a whole."""
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND datname = current_database()"
    async with contextlib.aclosing(Database(server.where)) as other:
        await asyncio.gather(*(server.read("SELECT pg_sleep(0.05)") for _ in range(3)))
        await other.read(end)
        await asyncio.gather(*(server.change(add) for _ in range(3)))
        own = threading.Event()

        def lose_once(connection: Connection) -> None:
            add(connection)
            if not own.is_set():
                own.set()
                connection.fetch("SELECT pg_terminate_backend(pg_backend_pid())")

        await server.change(lose_once)
    assert await count(server) == 4


async def test_a_transaction_whose_end_was_lost_is_done_again_only_if_it_may_be(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it holds."""
    commit, losses = ServerConnection.commit, [True, True]

    def lose(self: ServerConnection) -> None:
        commit(self)
        if losses:
            losses.pop()
            self.raw.close()
            commit(self)

    monkeypatch.setattr(ServerConnection, "commit", lose)
    with pytest.raises(JournalError, match=r"can't be used .*: run again, which resumes it"):
        await server.change(add, is_repeatable=False)
    await server.change(add)
    assert await count(server) == 1 + 2


async def test_a_server_that_does_not_answer_is_given_up(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute, as one that is away."""
    monkeypatch.setattr(_database, "_PATIENCE_SECONDS", 0.2)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(JournalError, match="can't be used"):
            await server.read("SELECT pg_sleep(10000)")
    monkeypatch.undo()
    assert await count(server) == 0


async def test_a_worker_that_is_suspended_in_a_transaction_keeps_nobody_waiting_for_long(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its transaction. When it wakes up, it does its work again."""
    monkeypatch.setattr(_postgres, "_IDLE_SECONDS", 1)
    is_begun, may_go_on = threading.Event(), threading.Event()

    def stand_still(connection: Connection) -> None:
        connection.run("UPDATE boardclient_words SET word = word || 'b'")
        is_begun.set()
        assert may_go_on.wait(SECONDS)

    await server.change(add)
    async with contextlib.aclosing(Database(server.where)) as suspended:
        await count(suspended)
        task = asyncio.create_task(suspended.change(stand_still))
        await until(is_begun.is_set, pause=0.01)
        await server.change(lambda connection: connection.run("UPDATE boardclient_words SET word = word || 'c'"))
        may_go_on.set()
        await task
    assert [row.word for row in await server.read("SELECT word FROM boardclient_words")] == ["acb"]


async def test_a_server_whose_connection_takes_long_is_waited_for(server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has a limit of its own for that."""
    connect, may_end = server._connect, threading.Event()

    def connect_slowly() -> Connection:
        assert may_end.wait(SECONDS)
        return connect()

    server.close_idle()
    monkeypatch.setattr(server, "_connect", connect_slowly)
    monkeypatch.setattr(_database, "_PATIENCE_SECONDS", 0.0)
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    assert await count(server) == 0


async def test_a_file_that_is_kept_busy_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the first step, and not for ever."""
    begin, begun = FileConnection.begin, list[bool]()

    def count_beginnings(self: FileConnection, *, is_read: bool) -> None:
        begun.append(is_read)
        begin(self, is_read=is_read)

    monkeypatch.setattr(_sqlite, "_WAIT_SECONDS", 0.0)
    async with contextlib.aclosing(Database(tmp_path / "ledger")) as first:
        await first.create(WORDS)
    database = Database(tmp_path / "ledger")
    monkeypatch.setattr(FileConnection, "begin", count_beginnings)
    with contextlib.closing(sqlite3.connect(database.where, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        changing = asyncio.create_task(database.change(add))
        await until(lambda: begun, pause=0.01)
        other.execute("COMMIT")
        await changing
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(_database, "_PATIENCE_SECONDS", 0.1)
        with pytest.raises(JournalError, match=r"can't be used \(database is locked\): run again"):
            await database.change(add)
    assert await count(database) == 1
    await database.aclose()


async def test_a_change_that_is_cancelled_is_completed_first(database: Database) -> None:
    """What waits for its result gets it in any case."""
    is_begun, may_end, results = threading.Event(), threading.Event(), list[str]()

    def work(connection: Connection) -> str:
        add(connection)
        is_begun.set()
        assert may_end.wait(SECONDS)
        return "done"

    task = asyncio.create_task(database.change(work, on_commit=results.append))
    await until(is_begun.is_set, pause=0.01)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (results, await count(database)) == (["done"], 1)


@pytest.mark.parametrize("value", [2**70, "a\0b"])
async def test_values_that_can_not_be_stored_end_with_words(server: Database, tmp_path: Path, value: object) -> None:
    """They are not tried for a minute, and the connection works afterwards."""
    async with contextlib.aclosing(Database(tmp_path / "ledger")) as file:
        await file.create(WORDS)
        for database in (file, server):
            text = (
                "UPDATE boardclient_words SET word = 'b' WHERE 1 = ?"
                if isinstance(value, int)
                else "SELECT CAST(? AS TEXT) AS it"
            )
            if database is server or isinstance(value, int):
                with pytest.raises(JournalError, match="can't be used"):
                    await database.read(text, value)
            assert await count(database) == 0


def test_a_database_outlives_event_loops(ledger: str, tmp_path: Path) -> None:
    """It works in the next one, and can be closed when its own is gone. What is done after it was closed still works."""
    database = Database(ledger)
    asyncio.run(database.create(WORDS))
    asyncio.run(database.change(add))
    asyncio.run(database.aclose())
    assert asyncio.run(count(database)) == 1
    database.abandon()
    other = Database(tmp_path / "other")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(other.create(WORDS))
    loop.close()
    asyncio.run(other.aclose())


_FORKED = """
import asyncio, os, sys
from boardclient.store._database import Database, Tables
words = Tables(("CREATE TABLE IF NOT EXISTS boardclient_words (word TEXT)",))
database = Database(sys.argv[1])

async def use():
    await database.create(words)
    await database.change(lambda connection: connection.run("INSERT INTO boardclient_words VALUES (?)", "a"))
    return (await database.read("SELECT count(*) AS number FROM boardclient_words"))[0].number

async def close():
    await database.aclose()

asyncio.run(use())
if child := os.fork():
    _, status = os.waitpid(child, 0)
    assert asyncio.run(use()) == 4, "the connection of the parent"
    asyncio.run(close())
    sys.exit(status)
asyncio.run(use())
if child := os.fork():
    _, status = os.waitpid(child, 0)
    asyncio.run(close())
    sys.exit(status)
database.abandon()
assert asyncio.run(use()) == 3
"""


def test_forks_have_connections_of_their_own(ledger: str) -> None:
    """Those of the parent work on when the child ends, and those of the child when the parent closes its own."""
    ended = subprocess.run([sys.executable, "-c", _FORKED, ledger], timeout=SECONDS, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_a_process_that_was_forked_leaves_threads_and_connections_to_its_parent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes none of them, and has its own."""
    await database.change(add)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert await count(database) == 1
        child.setattr(os, "getpid", lambda: -2)
        database.abandon()
        assert await count(database) == 1
    while _database._of_parents:
        _database._of_parents.pop().close()


async def test_a_connection_that_can_not_undo_its_transaction_is_left(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went wrong first is raised, and the next step has another one."""
    for kind in (FileConnection, ServerConnection):
        monkeypatch.setattr(kind, "rollback", lambda _: 1 / 0)
    with pytest.raises(KeyError):
        await database.change(lambda connection: [add(connection), {}["key"]])
    monkeypatch.undo()
    assert await count(database) == 0


async def test_a_pooler_in_transaction_mode_has_to_be_named(pooler: Pooler) -> None:
    """Then several processes work behind it; otherwise the error says what to add, and no wrong statement is run."""

    async def use(place: str, times: int) -> None:
        async with contextlib.aclosing(Database(place)) as database:
            await database.create(WORDS)
            for n in range(times):
                text = f"SELECT CAST(? AS TEXT) AS word, {n % 7} AS number FROM boardclient_words LIMIT 1"
                found = await asyncio.gather(
                    *(database.query(lambda connection, text=text: connection.one(text, "b")) for _ in range(4))
                )
                assert {(one.word, one.number) for one in found} == {("b", n % 7)}

    with pooler("transaction") as url:
        async with contextlib.aclosing(Database(f"{url}?pooler=transaction", is_durable=False)) as database:
            await database.create(WORDS)
            await database.change(add)
        await asyncio.gather(*(use(f"{url}?pooler=transaction", 20) for _ in range(5)))
        with pytest.raises(JournalError, match=r"needs \?pooler=transaction"):
            async with asyncio.timeout(SECONDS):
                while True:
                    for failure in await asyncio.gather(*(use(url, 20) for _ in range(5)), return_exceptions=True):
                        if failure is not None:
                            raise failure


def test_without_psycopg_a_server_can_not_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install. A file needs nothing."""
    monkeypatch.delitem(sys.modules, "boardclient.store._postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"a ledger on PostgreSQL needs psycopg: pip install .*'boardclient\[postgres\]'"
    ):
        Database("postgresql://u@h/d")
    Database(tmp_path / "ledger").abandon()
