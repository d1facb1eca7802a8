"""FileTokenStore: files that are no store, damaged or locked ones, full disks, and steps that are interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from token_store_helpers import SECRET, carries_token, database, refusal, token_in
from waiting import SECONDS

from boardclient import CredentialError, FileTokenStore, Token
from boardclient.testing import assert_no_secrets

APPLICATION = int.from_bytes(b"bdKt")
"""What makes a SQLite file a token store."""


@pytest.mark.parametrize("content", [b"hello\n", b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_file_that_is_no_database_is_left_alone(path: Path, file_store: FileTokenStore, content: bytes) -> None:
    """What SQLite can't read is refused, of whatever size, and stays as it is."""
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    path.write_bytes(content)
    error = await refusal(file_store, "choose another path, or move it away")
    assert isinstance(error.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE TABLE accounts (account TEXT)"], "is not a token store but another SQLite file"),
        (
            [f"PRAGMA application_id = {APPLICATION}", "PRAGMA user_version = 3"],
            "is of another version of boardclient: choose another path",
        ),
        (["PRAGMA application_id = 5", "PRAGMA user_version = 1"], "but another SQLite file"),
    ],
)
async def test_foreign_and_newer_databases_are_left_alone(
    path: Path, file_store: FileTokenStore, statements: list[str], words: str
) -> None:
    """Another application's file, and one of a later version, are refused and stay as they are."""
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    with database(path) as connection:
        for statement in statements:
            connection.execute(statement)
    content = path.read_bytes()
    await refusal(file_store, words)
    assert path.read_bytes() == content


async def test_empty_file_is_taken(path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file, be it of a process that was killed as it began, becomes a store; even to read it takes the lock at once.

    A reader that becomes a writer is refused without a wait where another does the same.
    """
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", traced)
        assert await file_store.read("a") is None
    assert statements[0] == "BEGIN IMMEDIATE"
    with database(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


async def test_corrupt_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """A database with broken pages says what to do."""
    await file_store.publish("a", Token(SECRET), 0)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    error = await refusal(file_store, "it is damaged; move it away, and a new one is made")
    assert isinstance(error.__cause__, sqlite3.DatabaseError)


@pytest.mark.parametrize(
    "damage",
    [
        f"token = CAST(x'ff' || CAST('{SECRET}' AS BLOB) AS TEXT)",  # no UTF-8: SQLite's own error would show it
        "token = NULL",
        "generation = 'many'",
        "expires_at = '2031-01-02T00:00:00'",
        "since = 'x'",
        "generation = -1",
        "expires_at = '9999-12-31T23:59:59-23:59:99'",
        "token = NULL, generation = 0, expires_at = 'deleted'",
    ],
)
async def test_damaged_entry_is_refused(path: Path, file_store: FileTokenStore, damage: str) -> None:
    """An entry that can't be a record of the store is refused without being shown."""
    await file_store.publish("a", Token(SECRET), 0)
    await file_store.publish("b", Token("other"), 0)
    with database(path) as connection:
        connection.execute(f"UPDATE tokens SET {damage} WHERE account = 'a'")
    await refusal(file_store, "is damaged: move it away, and a new one is made")
    assert await token_in(file_store, "b") == Token("other")


async def test_locked_file_is_an_error_after_a_while(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of another process is waited for up to a limit, then reported; after its release the store works."""
    before = await file_store.publish("a", Token("before"), 0)
    assert before is not None
    waits: list[float] = []
    connect = sqlite3.connect

    def impatient(*arguments: Any, timeout: float, **options: Any) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*arguments, timeout=0.0, **options)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", impatient)
            error = await refusal(file_store, "another process has kept it locked for 5 seconds; try again, or end that process")
    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert waits == [5.0] * 4
    assert await file_store.publish("a", Token(SECRET), before.generation)


async def test_reading_does_not_wait_for_a_writer(path: Path, file_store: FileTokenStore) -> None:
    """A token is read while another process is within a step that it has not finished."""
    await file_store.publish("a", Token("before"), 0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await token_in(file_store, "a") == Token("before")


async def test_full_disk_is_an_error_and_changes_nothing(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that can't be written is not done at all."""
    await file_store.publish("a", Token("before"), 0)
    connect = sqlite3.connect

    def small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")  # it is as large already, and may not grow
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(CredentialError, match="the disk is full; make room on it") as caught:
            await file_store.publish("a", Token(SECRET * 10_000), await file_store.generation("a"))
    assert_no_secrets(caught.value, secrets=[SECRET])
    assert await token_in(file_store, "a") == Token("before")


async def test_cancelled_step_carries_no_token(path: Path) -> None:
    """A cancellation carries no token, and the step that has begun is done as a whole."""
    inside, go = threading.Event(), threading.Event()

    def slow() -> float:
        inside.set()
        assert go.wait(SECONDS)
        return 1.0

    store = FileTokenStore(path, clock=slow)
    task = asyncio.ensure_future(store.publish("a", Token(SECRET), 0))
    assert await asyncio.to_thread(inside.wait, SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    go.set()
    assert not carries_token(caught.value)
    assert await token_in(store, "a") == Token(SECRET)
