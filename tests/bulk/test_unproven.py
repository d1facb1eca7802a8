"""Rows that are sent again without proof: which, how often, and what later runs know of them."""

import math
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from reconcile_helpers import DUE, Board, begun, card, confirm, note, row, verdicts

from boardclient import CardDraft, JournalError
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row


async def test_one_row_is_sent_without_proof(ledger: Ledger) -> None:
    """A listing of the oldest cards may just have become full: one is sent, the others wait until its card is listed.

    It is one that was sent before the last listed card, since such a listing would show it.
    """
    rows = [row(index, f"n{index}") for index in range(4)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    for one in rows[1:]:
        one.doubted_at = math.inf
    assert verdicts(await reconciler.settle(rows)) == dict.fromkeys(range(4), "open")
    assert reconciler.choose(rows[::-1]) is rows[0]
    await reconciler.note_unproven(rows[0])
    assert verdicts(await reconciler.settle(rows[1:])) == dict.fromkeys([1, 2, 3], "open")
    assert reconciler.choose(rows[1:]) == "the listing shows no more cards than before another one was created"
    board.cards.append(card("n0", "n0"))
    note(ledger, rows[0], board.cards[-1])
    assert verdicts(await reconciler.settle(rows[1:])) == dict.fromkeys([1, 2, 3], "absent")
    audit = await reconciler.audit()
    assert audit.unproven == ()
    assert audit.is_sound


async def test_a_row_is_sent_without_proof_twice(ledger: Ledger) -> None:
    """As long as the listing does not grow it is the same one, and no other row may be created twice."""
    rows = [row(index, f"n{index}") for index in range(3)]
    board = Board(card("before", "before"))
    reconciler = await begun(ledger, board, rows)
    await reconciler.settle(rows)
    for _ in range(2):
        assert reconciler.choose(rows) is rows[0]
        await reconciler.note_unproven(rows[0])
        rows[0].doubted_at = math.inf  # its effect is unknown again
        assert verdicts(await reconciler.settle(rows)) == dict.fromkeys(range(3), "open")
        assert (await reconciler.audit()).unproven == (rows[0].draft,)  # once
    assert "create any card in its list by hand" in str(reconciler.choose(rows))
    assert reconciler.choose(rows[1:]) == "the listing shows no more cards than before another one was created"
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "absent", 1: "absent", 2: "absent"}
    assert (await reconciler.audit()).unproven == ()


async def test_a_row_without_proof_may_exist_twice(ledger: Ledger) -> None:
    """If the listing has not grown by its card, the audit names it, and no other row is sent."""
    rows = [row(0, "n0"), row(1, "n1")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    await reconciler.settle(rows)
    await reconciler.note_unproven(rows[0])
    board.hidden.append(card("n0", "n0"))
    note(ledger, rows[0], board.hidden[-1])
    reconciler.note_created(rows[0], "n0")
    (finding,) = await reconciler.settle(rows[1:])
    assert "lacks 1 of 2 cards that were confirmed" in str(finding.error)
    audit = await reconciler.audit()
    assert (audit.unproven, audit.hidden, audit.lost) == ((rows[0].draft,), 1, 0)
    assert not audit.is_sound


async def test_a_listing_of_a_round_number_of_cards_may_be_cut(ledger: Ledger) -> None:
    """Rows that were sent before or after all that is listed are not sent without proof; those in between may be."""
    rows = [row(0, "first"), row(1, "between"), row(2, "last")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards += [card(f"o{index}", "of others") for index in range(49)]
    reconciler._first_seq = rows[0].seq
    rows[2].doubted_at = reconciler._board.created_at
    assert verdicts(await reconciler.settle(rows)) == dict.fromkeys(range(3), "open")
    assert reconciler.choose(rows) is rows[1]
    outside = [rows[0], rows[2]]
    why = reconciler.choose(outside)
    assert why == "the listing shows exactly 50 cards, which may be all that it ever shows"
    findings = reconciler.give_up(outside, why)
    assert verdicts(findings) == {0: "unknown", 2: "unknown"}
    assert "exactly 50 cards" in str(findings[-1].error)
    await reconciler.note_unproven(rows[1])
    assert verdicts(await reconciler.settle(rows)) == dict.fromkeys(range(3), "open")
    rows[1].doubted_at = math.inf  # it was sent again, after all that is listed
    assert reconciler.choose(rows) == why
    board.cards.append(card("o50", "of others"))
    assert verdicts(await reconciler.settle(rows)) == dict.fromkeys(range(3), "absent")


@pytest.mark.parametrize(("known", "before"), [(True, False), (False, True)])
async def test_a_row_whose_neighbours_are_listed_is_not_cut_off(ledger: Ledger, known: bool, before: bool) -> None:
    """A listing cut off at its length would lack an earlier card, of the run or of those before it, as well as a later one."""
    board = Board(*([card("before", "before")] if before else []))
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    first, doubted = row(0, "first"), row(1, "between")
    await ledger.admit([first, doubted])
    if known:
        board.cards.append(card("first", "first"))
        note(ledger, first, board.cards[-1])
        reconciler.note_created(first, "first")
    await confirm(ledger, board, reconciler)
    board.cards += [card(f"o{index}", "of others") for index in range(48)]
    assert verdicts(await reconciler.settle([doubted])) == {1: "open"}
    assert reconciler.choose([doubted]) is doubted


async def test_growth_before_a_row_was_sent_again_proves_nothing_of_that(ledger: Ledger) -> None:
    """Once a row was sent without proof, a listing has to lack it anew before another that has grown proves it absent."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    await reconciler.note_unproven(rows[0])
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}


@pytest.mark.parametrize("due", [DUE, None])
async def test_later_runs_know_the_rows_sent_without_proof(tmp_path: Path, due: datetime | None) -> None:
    """The audit names them, and none is sent more than twice in all, until a listing shows more cards."""
    board, path = Board(card("before", "before")), tmp_path / "journal"
    sent = row(0, "n0", desc="text", due=due, pos="top")
    ledger = await JournalLedger.open(path, {"board": "b1"}, 8)
    reconciler = await begun(ledger, board, [sent])
    ledger.release(sent)
    sent.doubted_at = math.inf
    await reconciler.settle([sent])
    await reconciler.note_unproven(sent)
    await ledger.aclose()  # it may have been killed as well: it was on the disk before the row was sent
    for number, expected in enumerate(((sent.draft,), (sent.draft,), ())):
        ledger = await JournalLedger.open(path, {"board": "b1"}, 8)
        reconciler = board.reconciler(ledger)
        await reconciler.prepare(reads_cards=True)
        again = row(0, "n0", desc="text", due=due, pos="top")
        await ledger.admit([again])
        assert again.action == "doubtful"
        await reconciler.settle([again])
        if number == 0:
            assert reconciler.choose([again]) is again
            await reconciler.note_unproven(again)
        elif number == 1:
            assert "create any card in its list by hand" in str(reconciler.choose([again]))
        audit = await reconciler.audit()
        assert (audit.unproven, audit.is_sound) == (expected, not expected)
        await ledger.aclose()
        if number == 1:
            board.cards.append(card("by hand", "a card of others"))


async def test_drafts_of_an_application_class_are_known_later(ledger: Ledger) -> None:
    """A draft may have fields of its own, and a date that is written in another form."""

    @attrs.frozen
    class Imported(CardDraft):
        source: object = attrs.field(factory=object, eq=False)

    class Written(datetime):
        def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
            return "the second of January"

    board, sent = Board(card("before", "before")), Row(0, Imported("n0", "l1", due=Written(2027, 1, 2, 3, 4, 5, 678, tzinfo=UTC)))
    reconciler = await begun(ledger, board, [sent])
    await reconciler.settle([sent])
    await reconciler.note_unproven(sent)
    (known,) = (await board.reconciler(ledger).audit()).unproven
    assert known == CardDraft("n0", "l1", due=DUE)


async def test_rows_sent_without_proof_that_cannot_be_read_are_damage(ledger: Ledger) -> None:
    """The run does not begin, since it could send them again."""
    for text in ("{", "[1]", '[{"seq": 1}]', "null"):
        await ledger.set_fact("rows sent again without proof", text)
        with pytest.raises(JournalError, match="is damaged"):
            Board().reconciler(ledger)
