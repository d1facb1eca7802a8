"""Rows in doubt of a run with markers, where the listing does not show every marker."""

from reconcile_helpers import Board, card, marker_of, note, row, verdicts

from boardclient.bulk._ledger import MemoryLedger


async def test_a_card_that_was_found_by_its_marker_is_no_other_row_s() -> None:
    """Of two equal rows one exists, and shows its marker: it is found, and the other row is not."""
    ledger, board, rows = MemoryLedger(), Board(), [row(0), row(1)]
    reconciler = board.reconciler(ledger, marking=True)
    await reconciler.prepare(reads_cards=True)
    board.cards.append(card("c0", desc=f"[{marker_of(reconciler, rows[0])}]"))
    assert verdicts(await reconciler.settle(rows)) == {0: "c0", 1: "open"}


async def test_a_card_without_a_marker_that_looks_like_a_row_s_is_doubtful() -> None:
    """Where people have removed some markers, a card that is like the row but for its marker may be the row's or another's."""
    ledger, board, lost = MemoryLedger(), Board(), row(50, "lost")
    reconciler = board.reconciler(ledger, marking=True)
    await reconciler.prepare(reads_cards=True)
    for index in range(5):
        known = row(index, f"known {index}", desc="as it was sent")
        marker = marker_of(reconciler, known)
        shown = card(f"k{index}", known.draft.name, "edited" if index == 4 else f"rewritten {'xyz' * index} [{marker}]")
        board.cards.append(shown)
        note(ledger, known, shown)
        reconciler.note_created(known, shown.id)
    board.cards.append(card("c", "lost", "of others"))
    assert verdicts(await reconciler.settle([lost])) == {50: "unknown"}


async def test_rows_that_share_a_marker_are_found_if_all_exist() -> None:
    """As many cards show the marker as rows have it, so each of the rows exists."""
    ledger, board, rows = MemoryLedger(), Board(), [row(0, "one"), row(1, "two")]
    reconciler = board.reconciler(ledger, marking=lambda draft: "same")
    await reconciler.prepare(reads_cards=True)
    board.cards += [card("c0", "one", "[same]"), card("c1", "two", "[same]")]
    assert verdicts(await reconciler.settle(rows)) == {0: "c0", 1: "c1"}


async def test_cards_that_show_each_other_s_markers_are_one_row_s_each() -> None:
    """Descriptions may refer to other rows by their markers: each row has one card all the same."""
    ledger, board = MemoryLedger(), Board()
    rows = [row(0, "m0", desc="see also [m1]"), row(1, "m1", desc="see also [m0]")]
    reconciler = board.reconciler(ledger, marking=lambda draft: draft.name)
    await reconciler.prepare(reads_cards=True)
    board.cards += [card(f"c{one.index}", "renamed", reconciler.description(one) or "") for one in rows]
    assert verdicts(await reconciler.settle(rows)) == {0: "c0", 1: "c1"}
