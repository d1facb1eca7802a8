"""What a run would do with rows: which are sent, and which equal cards that were there before."""

from __future__ import annotations

from pathlib import Path

import pytest

from boardclient import Card, CardDraft, JournalError
from boardclient.bulk.journal import read_rows
from boardclient.bulk.plan import planned_run
from boardclient.testing import BoardService

ACCOUNT = {"service": "https://boards.example"}


def card(number: int, name: str, **shown: str) -> Card:
    return Card(id=f"c{number}", name=name, list_id="l1", **shown)


def test_each_card_stands_for_one_row() -> None:
    """The second row of the same content would be sent."""
    with planned_run(None, ACCOUNT, [card(1, "A"), card(2, "B")]) as plan:
        rows = [plan.add(CardDraft(name, "l1")) for name in "AAC"]
    assert [(row.action, row.card and row.card.id) for row in rows] == [("send", "c1"), ("send", None), ("send", None)]
    assert (plan.actions["send"], plan.existing, plan.unclear) == (3, 1, 0)


def test_a_row_whose_description_no_card_shows_is_unclear() -> None:
    with planned_run(None, ACCOUNT, [card(1, "A")]) as plan:
        assert plan.add(CardDraft("A", "l1", desc="Text")).card is not None
    assert plan.unclear == 1


def test_a_row_that_a_run_would_refuse_is_refused() -> None:
    """It counts as a row, so that those after it keep their positions."""
    with planned_run(None, ACCOUNT) as plan:
        plan.add(CardDraft("A", "l1", reference="r"))
        with pytest.raises(JournalError, match="reference 'r' comes twice"):
            plan.add(CardDraft("B", "l1", reference="r"))
        assert plan.add(CardDraft("C", "l1")).action == "send"
    assert plan.actions.total() == 2


async def test_rows_get_the_cards_that_were_there_and_a_run_creates_the_others(tmp_path: Path) -> None:
    journal, names = tmp_path / "cards.journal", ("A", "B", "C")
    async with BoardService() as service, service.session() as session:
        board = service.seed({"To Do": ["A", "C"]})
        drafts = [CardDraft(name, board.lists["To Do"]) for name in names]
        before = await session.boards.cards(board.id)
        with planned_run(journal, session.identity, before, board_id=board.id) as plan:
            cards = [plan.add(draft).card for draft in drafts]
        assert [None if one is None else one.name for one in cards] == ["A", None, "C"]
        plan.adopt()
        report = await session.cards.create_many(drafts, journal=journal, board_id=board.id).wait()
        assert (report.created, report.already) == (1, 2)
        with planned_run(journal, session.identity, await session.boards.cards(board.id), board_id=board.id) as plan:
            assert [plan.add(draft).action for draft in drafts] == ["done"] * 3
        assert plan.cards == []  # they are those of the run
    assert [row.run for row in read_rows(journal)] == [0, 0, 2]


def test_a_plan_without_a_journal_can_t_note_cards() -> None:
    with planned_run(None, ACCOUNT, [card(1, "A")]) as plan:
        plan.add(CardDraft("A", "l1"))
    with pytest.raises(ValueError, match="give one to planned_run"):
        plan.adopt()
