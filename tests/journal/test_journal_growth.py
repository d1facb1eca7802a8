"""What is done by hand with a journal takes no longer for each row, however many rows there are."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from earlier_journals import make_earlier

from boardclient import CardDraft
from boardclient.bulk._journal import _file
from boardclient.bulk.journal import accept_suggestions, adopt, note_undone, read_rows, read_unknown, resolve
from boardclient.testing import BoardService

IDENTITY = {"service": "https://boards.example", "board": "b1"}
STEPS = 100
"""How many steps of SQLite's machine are counted as one."""


class Work:
    """What SQLite has done."""

    def __init__(self) -> None:
        self.steps = 0
        self.statements: list[str] = []

    def count(self) -> int:
        self.steps += 1
        return 0


@contextmanager
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count what SQLite does for journals."""
    done, connect = Work(), _file.connect

    def counted(path: Path) -> _file.JournalConnection:
        connection = connect(path)
        connection.raw.set_progress_handler(done.count, STEPS)
        connection.raw.set_trace_callback(done.statements.append)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(_file, "connect", counted)
        patch.setattr("boardclient.bulk.journal.connect", counted)
        yield done


def unknown_rows(path: Path, number: int, candidates: int, text: str = "") -> None:
    """Write a journal whose rows are unknown, each with one card that is alike and others."""
    adopt(path, IDENTITY, [(index, CardDraft(f"card {index:06} {text}", "l1"), f"old {index}") for index in range(number)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE boardclient_outcomes SET state = 'unknown', detail = 'lost', at = 1")
        cards = [[f"c{index}", f"Card {index:06} {text}", "l1", None, None] for index in range(max(number, candidates))]
        for index in range(number):
            first = max(0, min(index, len(cards) - candidates))
            found = json.dumps(cards[first : first + candidates])
            connection.execute("UPDATE boardclient_outcomes SET resembling = ? WHERE seq = ?", (found, index + 1))


async def undone(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Undo a run of so many cards."""
    async with BoardService() as service, service.session() as session:
        board = service.seed({"To Do": [f"card {index}" for index in range(number)]})
        cards = await session.boards.cards(board.id)
        rows = [(index, CardDraft(card.name or "", card.list_id or ""), card.id) for index, card in enumerate(cards)]
        adopt(path, {"service": service.base_url, "board": board.id}, rows)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE boardclient_outcomes SET at = 1")
        undo = await session.cards.plan_undo(path)
        with work(monkeypatch) as done:
            await undo.run()
        assert len(undo.deleted) == number
    assert [row.state for row in read_rows(path)] == ["undone"] * number
    return done


@pytest.mark.full
def test_an_undo_of_four_times_the_cards_does_four_times_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of deletions is noted by the numbers of its rows, and the journal is opened once."""
    few, many = (asyncio.run(undone(tmp_path / str(number), number, monkeypatch)) for number in (200, 800))
    assert many.steps < 6 * few.steps
    assert [sum("quick_check" in statement for statement in one.statements) for one in (few, many)] == [1, 1]


def test_all_suggestions_are_taken_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opening checks the whole file."""
    found = []
    for number in (50, 200):
        path = tmp_path / str(number)
        unknown_rows(path, number, 1)
        with work(monkeypatch) as done:
            assert accept_suggestions(path) == []
        found.append(done)
        assert [row.detail for row in read_rows(path)] == [f"c{index}" for index in range(number)]
    few, many = found
    assert many.steps < 6 * few.steps
    assert [sum("quick_check" in statement for statement in one.statements) for one in found] == [1, 1]


@pytest.mark.parametrize("what", ["resolve", "note_undone"])
def test_one_row_is_settled_with_one_look_at_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """However many cards are noted at a time."""
    path = tmp_path / "journal"
    unknown_rows(path, 300, 1)
    for index in range(300):
        resolve(path, index, card_id=f"c{index}") if index % 100 == 0 else None
    with work(monkeypatch) as done:
        if what == "resolve":
            assert resolve(path, 1, card_id="c1") is True
        else:
            note_undone(path, [f"c{index}" for index in range(300)])
    assert sum("FROM boardclient_rows" in one or "FROM boardclient_outcomes" in one for one in done.statements) <= 5


def calls(path: Path) -> int:
    """Return how many functions are called while unknown rows are read."""
    number = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal number
        number += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        read_unknown(path)
    finally:
        sys.setprofile(None)
    return number


def test_the_cards_of_unknown_rows_are_compared_in_a_few_calls_each(tmp_path: Path) -> None:
    """Two texts are compared in the same number of calls, however long they are."""
    unknown_rows(tmp_path / "journal", 40, 100, text="and a text " * 30)
    assert calls(tmp_path / "journal") < 60 * 40 * 100


def test_the_likeness_of_a_card_is_not_compared_with_that_of_each_row(tmp_path: Path) -> None:
    """With one candidate for all rows, four times the rows take four times the calls."""
    found = []
    for number in (50, 200):
        unknown_rows(tmp_path / str(number), number, 1)
        with closing(sqlite3.connect(tmp_path / str(number))) as connection, connection:
            connection.execute("UPDATE boardclient_outcomes SET resembling = (SELECT min(resembling) FROM boardclient_outcomes)")
        found.append(calls(tmp_path / str(number)))
    assert found[1] < 5 * found[0]


def test_each_page_of_an_earlier_journal_takes_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see its tables as those of today, and go through none of them anew for each thousand rows."""
    found = []
    for number in (1500, 6000):
        path = tmp_path / str(number)
        adopt(path, IDENTITY, [(0, CardDraft("a", "l1"), "card 1")])
        numbers = f"WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {number})"
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in (
                'boardclient_rows (seq, job, ref, content) SELECT i, 1, i - 1, \'["a","l1",null,null]\' FROM n',
                "boardclient_outcomes (seq, job, state, detail, at) SELECT i, 1, 'done', 'card ' || i, 1 FROM n",
            ):
                connection.execute(f"{numbers} INSERT INTO {statement}")
        make_earlier(path, 5)
        with work(monkeypatch) as done:
            assert sum(row.detail == f"card {row.seq}" for row in read_rows(path)) == number
        found.append(done.steps)
    assert found[1] < 6 * found[0]
