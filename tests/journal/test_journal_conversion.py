"""A journal of an earlier version is read as it is, and converted when it is opened for writing: its rows are those they were."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from earlier_journals import make_earlier

from boardclient import CardDraft, JournalError
from boardclient.bulk import resolve
from boardclient.bulk._journal import _file
from boardclient.bulk._journal._file import RunLock
from boardclient.bulk._journal._journal_rows import JournalRows
from boardclient.bulk.journal import (
    accept_suggestions,
    adopt,
    is_new,
    note_undone,
    read_journal,
    read_row,
    read_rows,
    read_unknown,
    rehearsed,
)

IDENTITY = {"service": "https://boards.example", "board": "b1"}


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return int(version)


def tables_of(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def adopted(path: Path, names: Iterable[str], before: Iterable[str] = ()) -> None:
    adopt(path, IDENTITY, [(index, CardDraft(name, "l1"), f"card {name}") for index, name in enumerate(names)], before)


@pytest.mark.parametrize("version", [4, 5])
def test_an_earlier_journal_is_read_as_it_is_and_each_row_keeps_its_marker(path: Path, version: int) -> None:
    """Reading changes nothing, and the first use that writes converts the file. Each row keeps its number."""
    adopted(path, "abcdef", ["other", "card before"])
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        shown = '[["c1","Card d","l1",null,null],["c2","Card e","l1",null,null]]'
        states = [("unknown", "lost", 2, shown), ("waiting", "not sent", 1, None), ("failed", "refused", 2, None)]
        for seq, values in enumerate(states, 2):
            connection.execute(
                "UPDATE boardclient_outcomes SET state=?, detail=?, at=?, resembling=? WHERE seq=?", (*values, seq)
            )
        connection.execute("UPDATE boardclient_outcomes SET at = 1 WHERE seq = 5")
        connection.execute("DELETE FROM boardclient_outcomes WHERE seq = 6")
        connection.execute("UPDATE boardclient_jobs SET owner = '2'")
        if version == 5:
            connection.execute("UPDATE boardclient_rows SET marker = 17 WHERE seq = 3")
    note_undone(path, ["card e"])
    now, summary, one = [*read_rows(path)], read_journal(path), read_row(path, 1)
    make_earlier(path, version)
    earlier = path.read_bytes()
    assert ([*read_rows(path)], read_journal(path), read_row(path, 1)) == (now, summary, one)
    assert [row.key for row in read_rows(path, "failed", "undone")] == [3, 4]
    assert (path.read_bytes(), version_of(path)) == (earlier, version)
    assert [item.row.key for item in read_unknown(path)] == [1, 5]
    assert version_of(path) == 6
    assert tables_of(path) >= {"boardclient_jobs", "boardclient_parts", "boardclient_rows", "boardclient_outcomes"}
    assert not tables_of(path) & {"meta", "rows", "outcomes", "resembling", "baseline", "first_numbers", "probes"}
    assert ([*read_rows(path)], read_journal(path), read_row(path, 1)) == (now, summary, one)
    assert resolve(path, 1, card_id="card before") is True
    found = read_row(path, 1)
    assert found is not None
    assert (found.row.run, len(found.candidates)) == (0, 2)  # it was there before, so that an undo keeps it


def test_a_kill_at_any_step_of_the_conversion_leaves_one_whole_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill before each single statement leaves is read alike, and used by the next process."""
    adopted(path, "abc", ["other"])
    make_earlier(path, 5)
    rows, rollback, connect = [*read_rows(path)], path.with_name(f"{path.name}-journal"), _file.connect
    left: list[tuple[bytes, bytes]] = []

    def note(statement: str) -> None:
        left.append((path.read_bytes(), rollback.read_bytes() if rollback.exists() else b""))

    def traced(where: Path) -> _file.JournalConnection:
        connection = connect(where)
        connection.raw.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        connection.raw.set_trace_callback(note)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(_file, "connect", traced)
        patch.setattr(_file, "_make_durable", lambda connection: None)
        assert is_new(path)
    assert len({main for main, _ in left}) > 3
    assert len(left) > 30
    for main, undo in dict.fromkeys(left):
        with path.open("r+b") as file:  # the same file, as it was then
            file.write(main)
            file.truncate(len(main))
        rollback.write_bytes(undo)
        assert [*read_rows(path)] == rows
        with monkeypatch.context() as patch:
            patch.setattr(_file, "_make_durable", lambda connection: connection.run("PRAGMA synchronous = OFF"))
            assert is_new(path)
        assert ([*read_rows(path)], version_of(path)) == (rows, 6)


def test_a_process_of_an_earlier_version_writes_nothing_beside_a_converted_journal(path: Path) -> None:
    """While it holds the lock nothing is converted. Without its lock it does not find its tables any more."""
    adopted(path, "abc")
    make_earlier(path, 5)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        assert old.execute("SELECT value FROM meta WHERE name = 'runs'").fetchall() == [(1,)]
        with contextlib.closing(RunLock(path)), pytest.raises(JournalError, match="is in use by another run"):
            is_new(path)
        assert version_of(path) == 5
        path.with_name(f"{path.name}-lock").unlink()
        assert is_new(path)
        with pytest.raises(sqlite3.OperationalError, match="no such table: meta"):
            old.execute("SELECT value FROM meta WHERE name = 'runs'")


def test_a_copy_in_an_earlier_format_is_refused_as_any_other(path: Path) -> None:
    """It lies beside the converted journal, or is put back in its place."""
    adopted(path, "a")
    make_earlier(path, 5)
    earlier, copy = path.read_bytes(), path.with_name("copy")
    shutil.copy(path, copy)
    adopted(path, "ab")
    with pytest.raises(JournalError, match=r"copy is a copy of .*cards.journal"):
        adopted(copy, "ab")
    path.write_bytes(earlier)
    with pytest.raises(JournalError, match="is an older copy"):
        adopted(path, "ab")
    assert (version_of(path), version_of(copy)) == (5, 5)


def test_an_earlier_journal_is_settled_and_rehearsed(path: Path) -> None:
    """All that is done by hand converts it, and finds what it knows."""
    adopted(path, "ab")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        cards = '[["c1","a!","l1",null,null]]'
        connection.execute("UPDATE boardclient_outcomes SET state = 'unknown', resembling = ?, at = 1 WHERE seq = 1", (cards,))
    make_earlier(path, 4)
    with rehearsed(path, IDENTITY) as decide:
        assert [action for _, action, _ in decide([(0, CardDraft("a", "l1")), (1, CardDraft("b", "l1"))])] == ["in doubt", "done"]
    make_earlier(path, 5)
    assert accept_suggestions(path) == []
    assert [row.detail for row in read_rows(path)] == ["c1", "card b"]


def test_a_card_that_an_undo_has_noted_is_no_row_s_again(path: Path) -> None:
    """Its row was sent again since, and the listing may still show it. It is listed once, and counts once."""
    adopted(path, "ab")
    note_undone(path, ["card a"])
    adopt(path, IDENTITY, [(0, CardDraft("a", "l1"), "new card")])
    shown = [(1, "done", "card b"), (0, "done", "new card")]
    assert [(row.key, row.state, row.detail) for row in read_rows(path)] == shown
    assert (read_journal(path).rows, read_journal(path).counts["undone"]) == (2, 0)
    with contextlib.closing(JournalRows.open(path, IDENTITY).journal) as file:
        assert file.baseline() == ["card a"]
    make_earlier(path, 5)
    with contextlib.closing(JournalRows.open(path, IDENTITY).journal) as file:
        assert file.baseline() == ["card a"]
    assert [(row.key, row.state, row.detail) for row in read_rows(path)] == shown
