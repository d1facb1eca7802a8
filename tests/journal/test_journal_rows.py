"""What a journal remembers of each row, and rows that contradict themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from journal_helpers import ALL, crash, entries, entry, opened, states

from boardclient import JournalError
from boardclient.bulk.journal import _file, _format
from boardclient.bulk.journal._format import RowDecision, RowKey, RowOutcome

# What is remembered


def test_new_rows_are_logged_on_the_disk_before_they_may_be_sent(path: Path) -> None:
    """New rows are to be sent, numbered in the order of logging, and are in doubt after a crash."""
    with opened(path) as journal:
        assert journal.admit(entries("a", 0)) == [RowDecision(1, "send"), RowDecision(2, "send")]
        assert journal.admit(entries("b")) == [RowDecision(3, "send")]
        assert states(crash(path)) == {"a": ("logged", None), 0: ("logged", None), "b": ("logged", None)}


def test_committed_rows_outlive_a_power_failure(path: Path) -> None:
    """SQLite is set to wait for the disk at every commit, which no test can observe otherwise."""
    with opened(path) as journal:
        settings = [journal._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
        assert settings == [2, "truncate"]


def test_a_batch_of_a_first_run_takes_seven_statements(path: Path) -> None:
    """Rows and the outcomes of earlier ones share a commit. The cost of a commit, and of each statement, is spread over them."""
    statements: list[str] = []
    with opened(path) as journal:
        journal.admit(entries(*range(256)))
        journal._connection.set_trace_callback(statements.append)
        journal.admit(entries(*range(256, 512)), [(seq, "done", "c") for seq in range(1, 257)])
        journal._connection.set_trace_callback(None)
    begun = ["BEGIN IMMEDIATE", "UPDATE meta SET value"]
    logged = ["INSERT OR REPLACE INTO outcomes", "INSERT OR REPLACE INTO outcomes", "INSERT INTO rows", "INSERT INTO rows"]
    assert [statement.split(" (")[0].split(" =")[0] for statement in statements] == [*begun, *logged, "COMMIT"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ((2, "done", "card9"), RowDecision(2, "done", "card9")),
        ((2, "failed", "status 400"), RowDecision(2, "failed", "status 400")),
        ((2, "unknown", "status 503"), RowDecision(2, "doubtful", "status 503")),
        ((2, "waiting", "status 429"), RowDecision(2, "send")),
        (None, RowDecision(2, "doubtful")),
    ],
)
@pytest.mark.parametrize("order", [("x", "row", "y"), ("y", "row", "x"), ("row",)])
def test_a_later_run_knows_what_became_of_a_row(
    path: Path, outcome: RowOutcome | None, expected: RowDecision, order: tuple[str, ...]
) -> None:
    """A later run skips what is done or refused for good, repeats what was refused in passing and settles the rest."""
    with opened(path) as journal:
        journal.admit(entries("x", "row", "y"))
        journal.record([outcome] if outcome else [])
    with opened(path) as journal:
        assert dict(zip(order, journal.admit(entries(*order)), strict=True))["row"] == expected


def test_a_position_and_a_reference_are_different_rows(path: Path) -> None:
    """A row known by the text "5" is not the one at position 5."""
    with opened(path) as journal:
        journal.admit(entries(5, "5"), ())
        journal.record([(1, "done", "card of position 5")])
    assert states(path) == {5: ("done", "card of position 5"), "5": ("logged", None)}


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_a_row_of_which_nothing_was_done_may_change(path: Path, state: Any) -> None:
    """What the service refused is sent again with other content, and is then in doubt with that content, logged by this run."""
    with opened(path) as journal:
        journal.admit(entries("a"), ())
        journal.record([(1, state, "status 400")])
    with opened(path) as journal:
        assert journal.admit([entry("a", "mended")]) == [RowDecision(1, "send")]
        (row,) = journal.rows(ALL)
        assert (row.state, row.detail, row.run, row.digest) == ("logged", None, 2, entry("a", "mended")[1])
        assert states(crash(path)) == {"a": ("logged", None)}


def test_the_last_outcome_of_a_row_holds(path: Path) -> None:
    """A row that was in doubt and then found is done."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.record([(1, "unknown", "status 503"), (1, "done", "c1")])
        assert states(path) == {"a": ("done", "c1")}
        journal.record([(1, "unknown", None)])
        assert states(path) == {"a": ("unknown", None)}


def test_outcomes_are_written_with_the_next_admission(path: Path) -> None:
    """Logging and recording are one commit, and a row of this batch is not affected by it."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.admit(entries("b"), [(1, "done", "c1")])
        assert states(crash(path)) == {"a": ("done", "c1"), "b": ("logged", None)}


def test_rows_are_paged_in_the_order_of_logging(path: Path) -> None:
    """Rows come by state, after a number, so many at a time."""
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([(seq, "done", "c") for seq in (2, 4)])
        assert [row.key for row in journal.rows(("logged",), limit=2)] == ["a", "c"]
        assert [row.key for row in journal.rows(("logged",), after=3)] == ["e", "f"]
        assert [row.key for row in journal.rows(("done", "logged"))] == list("abcdef")


def test_batches_of_any_size_are_written_whole(path: Path) -> None:
    """Every row of a batch is there, also where it is cut into statements of several lengths."""
    with opened(path) as journal:
        numbers = [len(journal.admit(entries(*(f"{size}-{n}" for n in range(size))))) for size in (0, 1, 9, 127, 300)]
        assert numbers == [0, 1, 9, 127, 300]
        assert [row.seq for row in journal.rows(ALL)] == list(range(1, 438))
    with opened(path) as journal:
        decisions = journal.admit(entries(*(f"300-{n}" for n in range(300))))
        assert [decision.seq for decision in decisions] == list(range(138, 438))


def test_the_secret_stays_and_is_the_journals_own(path: Path, tmp_path: Path) -> None:
    """Every run of a journal has the same 32 random bytes, another journal has others, and no repr shows them."""
    with opened(path) as journal, opened(tmp_path / "other") as other:
        first = journal.secret
        assert len(first) == 32
        assert other.secret != first
    with opened(path) as journal:
        assert (journal.secret, journal._run) == (first, 2)
        assert repr(first) not in repr(_format.read_meta(journal._connection, path))


def test_the_baseline_is_kept_for_every_run(path: Path) -> None:
    """The cards that stood there before are known by id, also an empty set of them, and differ from not having looked."""
    with opened(path) as journal:
        assert journal.baseline is None
        journal.set_baseline(f"card{n}" for n in [*range(300), 7])
        assert journal.baseline == 300
    with opened(path) as journal:
        assert journal.baseline == 300
        assert sorted(journal.baseline_ids()) == sorted(f"card{n}" for n in range(300))


def test_an_empty_board_has_a_baseline(path: Path) -> None:
    """The baseline of an empty board counts as known."""
    with opened(path) as journal:
        journal.set_baseline([])
    with opened(path) as journal:
        assert journal.baseline == 0


@pytest.mark.parametrize("is_armed", [False, True])
def test_the_baseline_is_set_once_and_before_the_first_row(path: Path, is_armed: bool) -> None:
    """Later the rows' own cards could not be told apart from those that existed before."""
    with opened(path) as journal:
        if is_armed:
            journal.admit(entries("a"))
        else:
            journal.set_baseline(["c"])
        with pytest.raises(RuntimeError, match="before the first row"):
            journal.set_baseline(["d"])
        assert journal.baseline_ids() == ([] if is_armed else ["c"])


# What contradicts itself


@pytest.mark.parametrize(("recent", "indexed_per_entry"), [(1, 4), (3, 4), (5, 1), (1000, 4)])
@pytest.mark.parametrize("key", ["ref-0", "ref-5", "ref-11", 0, 11])
def test_a_key_that_comes_twice_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, indexed_per_entry: int, key: RowKey
) -> None:
    """A key of any earlier batch of this run is known, wherever the file keeps it by now, and nothing of the batch is logged."""
    monkeypatch.setattr(_file, "_RECENT", recent)
    monkeypatch.setattr(_file, "_INDEXED_PER_ENTRY", indexed_per_entry)
    with opened(path) as journal:
        for n in range(12):
            journal.admit(entries(f"ref-{n}", n))
            journal.admit([])
        with pytest.raises(JournalError, match=rf"{key}.* comes twice"):
            journal.admit(entries("new", key))
        assert len(journal.rows(ALL)) == 24
        assert journal.admit(entries("new")) == [RowDecision(25, "send")]


@pytest.mark.parametrize("batches", range(1, 13))
@pytest.mark.parametrize(("recent", "indexed_per_entry"), [(1, 4), (5, 1), (1000, 4)])
def test_every_row_is_found_again_wherever_the_run_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, indexed_per_entry: int, batches: int
) -> None:
    """A row that did not come into the index before the end, or the crash, of its run is in it for the next one."""
    monkeypatch.setattr(_file, "_RECENT", recent)
    monkeypatch.setattr(_file, "_INDEXED_PER_ENTRY", indexed_per_entry)
    with opened(path) as journal:
        for n in range(batches):
            journal.admit(entries(f"ref-{n}", n))
        left = crash(path)
    for ended in (path, left):
        with opened(ended) as journal:
            again = journal.admit(entries(*range(batches), *(f"ref-{n}" for n in range(batches))))
            assert {decision.action for decision in again} == {"doubtful"}


@pytest.mark.parametrize("state", ["done", "failed", "waiting", "unknown", None])
def test_a_row_of_an_earlier_run_that_comes_twice_is_refused(path: Path, state: Any) -> None:
    """Whatever its state in earlier runs, a row can come only once in this run's input."""
    with opened(path) as journal:
        journal.admit(entries(*range(20)))
        journal.record([(13, state, "x")] if state else [])
    with opened(path) as journal:
        journal.admit(entries(12))
        journal.admit(entries(*range(12), *range(13, 20)))
        with pytest.raises(JournalError, match=r"position 12 \(from 0\) comes twice in the input: give each row a reference"):
            journal.admit(entries(12))


def test_a_key_that_comes_twice_in_one_batch_is_refused(path: Path) -> None:
    """Nothing of the batch is logged, and what was to be recorded with it is recorded."""
    with opened(path) as journal:
        journal.admit(entries("z"))
        with pytest.raises(JournalError, match="the reference 'a' comes twice"):
            journal.admit(entries("a", "b", "a"), [(1, "done", "c1")])
        assert states(crash(path)) == {"z": ("done", "c1")}


@pytest.mark.parametrize("state", ["done", "unknown", None])
def test_changed_content_under_a_reference_is_refused(path: Path, state: Any) -> None:
    """A row that may have been sent can't be sent with other content. Its batch is not logged, and the journal stays usable."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.record([(1, state, "x")] if state else [])
    with opened(path) as journal:
        with pytest.raises(JournalError, match="'a' was sent by an earlier run with other content"):
            journal.admit([entry("b"), entry("a", "changed")])
        assert [decision.action for decision in journal.admit(entries("b", "a"))] == [
            "send",
            "doubtful" if state != "done" else "done",
        ]
