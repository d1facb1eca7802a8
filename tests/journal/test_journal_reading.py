"""Reading a journal, also during a run, changes nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from journal_helpers import IDENTITY, entries, filled, opened

from boardclient import JournalError
from boardclient.bulk.journal import _parts, _view
from boardclient.bulk.journal._view import read_journal, read_rows

# Reading


def test_a_summary_counts_what_a_journal_holds(path: Path) -> None:
    """A summary has the rows by state, including logged ones, and the identity, age and runs."""
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([(1, "done", "c"), (2, "failed", None), (3, "waiting", None), (4, "unknown", None)])
        while_open = read_journal(path)
        assert while_open.counts == {"logged": 2, "done": 1, "failed": 1, "waiting": 1, "unknown": 1}
        assert while_open.rows == 6
    opened(path).__enter__().close()
    summary = read_journal(path)
    assert (summary.counts, summary.identity, summary.runs, summary.path) == (while_open.counts, IDENTITY, 2, path)
    assert summary.created_at.utcoffset() is not None


def test_rows_are_listed_by_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the given states, or all, are read in the order of logging, page after page."""
    monkeypatch.setattr(_view, "_PAGE", 2)
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([(seq, "done", "c") for seq in (1, 2, 4)])
        assert [row.key for row in read_rows(path, "done")] == ["a", "b", "d"]
        assert [row.key for row in read_rows(path, "logged", "failed")] == ["c", "e", "f"]
        assert [row.key for row in read_rows(path)] == list("abcdef")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_reading_changes_nothing(path: Path) -> None:
    """A reader leaves the file as it is, byte for byte, and the count of runs too; and it leaves no file behind."""
    filled(path, 100)
    path.with_name(f"{path.name}-lock").unlink()
    before = contents(path.parent)
    assert set(before) == {path.name}
    read_journal(path)
    assert len(list(read_rows(path))) == 100
    with closing(read_rows(path)) as rows:
        next(rows)
        assert contents(path.parent) == before
    assert contents(path.parent) == before


def test_reading_during_a_run_changes_nothing(path: Path) -> None:
    """The content of the log is read too, and the log is not changed."""
    filled(path, 100)
    with opened(path) as journal:
        journal.admit(entries("a"), [(1, "done", "c")])
        before = contents(path.parent)
        assert read_journal(path).counts == {"logged": 100, "done": 1, "failed": 0, "waiting": 0, "unknown": 0}
        assert len(list(read_rows(path))) == 101
        assert contents(path.parent) == before


def test_a_run_that_begins_while_one_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is shown as it is when it comes up, and none is left out."""
    monkeypatch.setattr(_view, "_PAGE", 10)
    filled(path, 2000)
    with closing(read_rows(path)) as rows:
        read = [next(rows)]
        with opened(path) as journal:
            journal.record([(seq, "done", "c" * 200) for seq in range(1, 2001)])
            for start in range(0, 2000, 100):
                journal.admit(entries(*range(start, start + 100)))
        read += rows
    assert [row.seq for row in read] == list(range(1, 4001))
    assert Counter(row.state for row in read[10:]) == {"done": 1990, "logged": 2000}


def test_a_run_that_begins_just_before_the_journal_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that saw no rollback journal looks again: a run may have begun since, and the journal is not incomplete."""
    filled(path, 100)
    with opened(path) as journal:
        looks = iter([False])
        exists = _parts.has_rollback
        monkeypatch.setattr(_parts, "has_rollback", lambda target: next(looks, exists(target)))
        assert read_journal(path).rows == journal.last == 100


@pytest.mark.parametrize("read", [read_journal, lambda path: next(read_rows(path))])
def test_a_journal_that_is_not_there_cannot_be_read(path: Path, read: Any) -> None:
    """Neither function that reads a journal creates a file."""
    with pytest.raises(JournalError, match="there is no journal"):
        read(path)
    assert list(path.parent.iterdir()) == []
    path.write_text("something else")
    with pytest.raises(JournalError, match="no journal of boardclient"):
        read(path)
