"""Cards that may belong to other rows in doubt, and markers that are shown in part."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from bulk_helpers import World
from reconcile_helpers import DUE, Board, begun, card, confirm, marker_of, note, row, settled, verdicts

from boardclient import Card
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row
from boardclient.testing import faults


async def test_a_row_that_stayed_unknown_may_have_the_card_of_a_later_one(ledger: Ledger) -> None:
    """The board does not show what distinguishes them. Once there are enough cards, each row has one."""
    board = Board()
    rows = [row(number, due=DUE.replace(year=2030 + number)) for number in range(3)]
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("1"))
    assert verdicts(await settled(ledger, board, reconciler, rows[:2])) == {0: "unknown", 1: "unknown"}
    assert verdicts(await settled(ledger, board, reconciler, rows[2:])) == {2: "unknown"}
    board.cards += [card("2"), card("3")]
    assert verdicts(await settled(ledger, board, reconciler, rows[2:])) == {2: "1"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"desc": "one"}, {1: "unknown"}),
        ({"due": DUE}, {1: "unknown"}),
        ({}, {1: "1"}),
    ],
)
async def test_cards_may_belong_to_rows_that_only_earlier_runs_got(
    tmp_path: Path, fields: dict[str, Any], expected: dict[int, str]
) -> None:
    """A row is found only if the listing shows all that is sent, or no other row in doubt is missing in the input."""

    async def run(*given: Row, finds: dict[int, str] | None = None) -> None:
        ledger = await JournalLedger.open(tmp_path / "journal", {"board": "b1"}, 8)
        reconciler = board.reconciler(ledger)
        await reconciler.prepare(reads_cards=True)
        await ledger.admit(given)
        for one in given:
            if one.action == "send":
                ledger.release(one)
        if finds is not None:
            witness, made = row(9, "confirmed"), Card("w", "confirmed", None, None, "l1")
            await ledger.admit([witness])
            board.cards.append(made)
            note(ledger, witness, made)
            reconciler.note_created(witness, made.id)
            found = [one for one in await settled(ledger, board, reconciler, list(given)) if one.row in given]
            assert verdicts(found) == finds
        await ledger.aclose()

    board = Board()
    await run(row(0, desc="zero"), row(1, **fields))
    board.cards.append(Card("1", "a", None, None, "l1"))
    await run(row(1, **fields), finds=expected)
    board.cards.append(Card("2", "a", None, None, "l1"))
    if expected == {1: "unknown"}:
        await run(row(0, desc="zero"), row(1, **fields), finds={0: "1", 1: "2"})


@pytest.mark.parametrize("text", ["", "a long text of words, " * 50])
@pytest.mark.parametrize("marking", [True, lambda draft: f"no-{draft.name}"])
async def test_a_marker_that_is_shown_in_part_may_be_the_rows(ledger: Ledger, marking: Any, text: str) -> None:
    """A service masks numbers, or joins words. Another card without a marker belongs to others."""
    board = Board()
    rows = [row(0, "one"), row(1, "two"), row(2, "three")]
    reconciler = await begun(ledger, board, rows, marking)
    shown = [marker_of(reconciler, one) for one in rows]
    part = shown[0][4:13] if marking is True else f"{shown[0]}-and-text".replace("-", "_")
    board.cards += [card("1", "renamed", f"{text}[**{part}**"), card("2", "two", "text"), card("3", "three", f"[{shown[2]}]")]
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "unknown", 1: "absent", 2: "3"}


async def test_a_marker_that_some_known_cards_lack_proves_nothing(ledger: Ledger) -> None:
    """The service drops some descriptions, or people edit them: a card that looks like the row's may be its own."""
    board = Board()
    rows = [row(0, "one"), row(1, "two")]
    reconciler = await begun(ledger, board, rows, marking=True)
    for _ in range(6):
        await confirm(ledger, board, reconciler)
    edited = board.cards.pop()
    board.cards += [attrs.evolve(edited, desc="edited", extra={}), card("1", "one", "edited")]
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "unknown", 1: "absent"}


async def test_a_card_of_a_row_that_was_refused_is_reported(world: World) -> None:
    """The service refused it, and created it all the same: the audit names the card."""
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=2)
    states, report = await world.finish(world.drafts(0, 1))
    assert states["1"] == "failed"
    assert report.audit is not None
    assert [found.name for found in report.audit.resembling] == ["card 1"]
    assert not report.audit.is_sound
