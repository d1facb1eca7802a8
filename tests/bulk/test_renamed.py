"""Cards that people have renamed: rows that were sent again may exist twice, and the audit says so."""

import json
from typing import Any

import pytest
from reconcile_helpers import DUE, Board, begun, card, confirm, marker_of, note, row, settled, verdicts

from boardclient import Card, JournalError
from boardclient.bulk._ledger import Ledger, MemoryLedger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._renamed import FACT

LATER = DUE.replace(year=2028)


def made(identifier: str, draft_row: Row, **changes: Any) -> Card:
    """Give the card of a row, as a service shows it that changes nothing."""
    draft = draft_row.draft
    values = {"name": draft.name, "desc": draft.desc or "", "list_id": draft.list_id, "due": draft.due, **changes}
    return Card(identifier, **values)


async def with_samples(ledger: Ledger, board: Board, rows: list[Row], marking: Any = None) -> Any:
    """Give a reconciler with rows in doubt, and confirmed cards with and without a description and a date."""
    reconciler = await begun(ledger, board, rows, marking)
    for number, fields in enumerate([{}, {"desc": "a text that is long enough"}, {"due": DUE}] * 4, 200):
        known = row(number, f"known {number}", **fields)
        await ledger.admit([known])
        board.cards.append(made(f"k{number}", known, desc=reconciler.description(known)))
        note(ledger, known, board.cards[-1])
        reconciler.note_created(known, f"k{number}")
    return reconciler


@pytest.mark.parametrize("fields", [{}, {"due": DUE}, {"list_id": "l2"}])
async def test_the_audit_names_a_card_that_equals_a_row_sent_again_but_for_its_name(
    ledger: Ledger, fields: dict[str, Any]
) -> None:
    """The row's first card may have been renamed before the board was read. Other dates and lists show that it was not."""
    one = row(0, "first", **fields)
    board = Board()
    reconciler = await with_samples(ledger, board, [one])
    board.cards += [
        made("renamed", one, name="renamed by a person"),
        made("elsewhere", one, name="of others", list_id="l3"),
        made("later", one, name="of others", due=LATER),
        made("described", one, name="of others", desc="something else"),
    ]
    assert verdicts(await settled(ledger, board, reconciler, [one])) == {0: "absent"}
    note(ledger, one, made("second", one))
    board.cards += [made("second", one), made("too late", one, name="of others")]
    audit = await reconciler.audit()
    assert {item.id for item in audit.unexpected} == {"renamed", "elsewhere", "later", "described", "too late"}
    assert [item.id for item in audit.resembling] == ["renamed"]  # the last one was created after the row was absent
    assert not audit.is_sound


async def test_without_rows_sent_again_cards_of_others_are_no_suspects(ledger: Ledger) -> None:
    """A row that was found is in no doubt, whatever others create in its list."""
    one = row(0, "first")
    board = Board()
    reconciler = await with_samples(ledger, board, [one])
    board.cards += [made("own", one), made("other", one, name="of others")]
    assert verdicts(await settled(ledger, board, reconciler, [one])) == {0: "own"}
    audit = await reconciler.audit()
    assert [item.id for item in audit.unexpected] == ["other"]
    assert audit.is_sound


async def test_a_row_is_not_sent_again_while_a_card_has_its_short_description(ledger: Ledger) -> None:
    """Others hardly give a card the same description, list and date: it may be the row's, and was renamed."""
    rows = [row(0, "first", desc="todo"), row(1, "second", desc="todo", due=DUE), row(2, "third", desc="other")]
    board = Board()
    reconciler = await with_samples(ledger, board, rows)
    board.cards.append(made("renamed", rows[0], name="renamed by a person"))
    findings = await settled(ledger, board, reconciler, rows)
    assert verdicts(findings) == {0: "unknown", 1: "absent", 2: "absent"}
    assert "the card renamed may be the row's" in str(findings[0].error)


async def test_a_description_of_a_kind_never_seen_may_be_shown_in_any_form(ledger: Ledger) -> None:
    """If a description has unseen characters, any new card in the list may be the row's, once a person has renamed it."""
    one = row(0, "first", desc="🎉")
    board = Board()
    reconciler = await with_samples(ledger, board, [one])
    board.cards.append(made("renamed", one, name="renamed by a person", desc=":tada:"))
    assert verdicts(await settled(ledger, board, reconciler, [one])) == {0: "absent"}
    assert [item.id for item in (await reconciler.audit()).resembling] == ["renamed"]


async def test_a_later_run_names_renamed_cards(ledger: Ledger) -> None:
    """A run that sends a row again may end before its audit."""
    one = row(0, "first")
    board = Board()
    reconciler = await with_samples(ledger, board, [one])
    board.cards.append(made("renamed", one, name="renamed by a person"))
    assert verdicts(await settled(ledger, board, reconciler, [one])) == {0: "absent"}
    note(ledger, one, made("second", one))
    board.cards.append(made("second", one))
    assert json.loads(ledger.facts[FACT]) == ["renamed"]
    later = board.reconciler(ledger)
    await later.prepare(reads_cards=True)
    audit = await later.audit()
    assert [item.id for item in audit.resembling] == ["renamed"]
    assert not audit.is_sound


async def test_a_thousand_renamed_cards_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many cards some are kept, which suffices for an audit that is not sound."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._renamed._MOST", 3)
    ledger, one, board = MemoryLedger(), row(0, "first"), Board()
    reconciler = await with_samples(ledger, board, [one])
    for number in range(3):
        board.cards += [made(f"r{number}{index}", one, name=f"of others {number}") for index in range(2)]
        await reconciler.settle([one])
    assert json.loads(ledger.facts[FACT]) == ["r00", "r01", "r10"]


@pytest.mark.parametrize("text", ["{", "5"])
async def test_damaged_identifiers_of_renamed_cards_are_refused(text: str) -> None:
    """What can't be read is not taken for nothing."""
    ledger = MemoryLedger()
    await ledger.set_fact(FACT, text)
    with pytest.raises(JournalError, match="renamed"):
        Board().reconciler(ledger)


@pytest.mark.parametrize("is_earlier", [False, True])
async def test_a_second_card_with_the_marker_of_a_row_is_a_duplicate(ledger: Ledger, is_earlier: bool) -> None:
    """A proxy repeated the request, the row was never in doubt, and a person renamed a card: its marker is still there."""
    one = row(0, "first")
    board = Board()
    reconciler = await begun(ledger, board, [one], True)
    marked = f"[{marker_of(reconciler, one)}]"
    note(ledger, one, card("own", "first", marked))
    if is_earlier:
        reconciler = board.reconciler(ledger, True)
        await reconciler.prepare(reads_cards=True)
        one.marker = None
    reconciler.note_known(one, "own")
    board.cards += [
        card("own", "first", marked),
        card("again", "renamed", marked),
        card("other", "of others", "[bcaaaaaaaaaaaaaaaa]"),
    ]
    await confirm(ledger, board, reconciler)
    audit = await reconciler.audit()
    assert [item.id for item in audit.duplicated] == ["again"]
    assert [item.id for item in audit.unexpected] == ["other"]
    assert not audit.is_sound


async def test_a_renamed_card_with_the_marker_of_an_unknown_row_resembles_it(ledger: Ledger) -> None:
    """A card with the marker of an unknown row is the row's only one, whether or not most descriptions show their markers."""
    one = row(0, "first")
    board = Board()
    reconciler = await begun(ledger, board, [one], True)
    reconciler.give_up([one], "nothing was created")
    board.cards[0] = card(board.cards[0].id, "confirmed")
    board.cards.append(card("own", "renamed", f"[{marker_of(reconciler, one)}]"))
    audit = await reconciler.audit()
    assert [item.id for item in audit.resembling] == ["own"]
    assert audit.duplicated == ()
