"""Rows in doubt and the board: what is read beforehand, rows known by their content or marker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from reconcile_helpers import DUE, Board, begun, card, confirm, leave_in_flight, marker_of, note, row, settled, verdicts

from boardclient import (
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    Card,
    CardDraft,
    CredentialError,
    Effect,
    JournalError,
    ServerError,
    SessionClosedError,
    TransportError,
)
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._reconciler import Reconciler

# --- what is read beforehand


async def test_without_a_board_nothing_is_read(ledger: Ledger) -> None:
    """Without a board, nothing is read, and every draft may be sent."""
    board = Board()
    reconciler = board.reconciler(ledger, board_id=None)
    await reconciler.prepare(reads_cards=True)
    assert board.asked == []
    assert reconciler.problem(Row(0, CardDraft("a", "anywhere"))) is None
    assert await ledger.baseline() is None


async def test_lists_are_read_once(ledger: Ledger) -> None:
    """A draft whose list is not on the board is a problem, proven to be unsent; asking costs no call."""
    board = Board(lists=["l1", "l2"])
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=False)
    stray = Row(2, CardDraft("a", "l3"))
    for _ in range(3):
        assert reconciler.problem(Row(0, CardDraft("a", "l1"))) is None
        assert reconciler.problem(Row(1, CardDraft("a", "l2"))) is None
        problem = reconciler.problem(stray)
        assert problem is not None
        assert problem.effect is Effect.NOT_SENT
        assert str(problem) == "the list l3 is not on the board b1: nothing was sent"
    assert board.asked == ["boards.lists"]
    assert await ledger.baseline() is None


@pytest.mark.parametrize("change", [{"sends": 1}, {"action": "doubtful"}])
async def test_a_row_that_was_sent_is_no_problem(change: dict[str, Any], ledger: Ledger) -> None:
    """A row that this run or an earlier one has sent is never reported as not sent."""
    reconciler = Board(lists=["l1"]).reconciler(ledger)
    await reconciler.prepare(reads_cards=False)
    row = Row(0, CardDraft("a", "l2"))
    for name, value in change.items():
        setattr(row, name, value)
    assert reconciler.problem(row) is None


async def test_the_baseline_is_what_is_there_before_the_first_row(ledger: Ledger) -> None:
    """The cards of the board are read once and kept."""
    board = Board(card("1"), card("2"), card("1"))
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    assert board.asked == ["boards.lists", "boards.cards"]
    baseline = await ledger.baseline()
    assert baseline is not None
    assert [identifier in baseline for identifier in ("1", "2", "3")] == [True, True, False]
    assert len(baseline) == 2


@pytest.mark.parametrize("marking", [True, lambda draft: "m"])
async def test_markers_have_a_baseline_too(ledger: Ledger, marking: Any) -> None:
    """A listing that has the baseline may not be complete: it may show only the oldest cards."""
    board = Board(card("1"))
    reconciler = board.reconciler(ledger, marking)
    await reconciler.prepare(reads_cards=True)
    assert board.asked == ["boards.lists", "boards.cards"]
    rows = [row(0)]
    await ledger.admit(rows)
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    why = reconciler.choose(rows)
    assert why == "no card was confirmed yet, so that nothing shows whether the listing is complete"
    assert verdicts(reconciler.give_up(rows, why)) == {0: "unknown"}
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}


@pytest.mark.parametrize("marking", [True, lambda draft: "m"])
async def test_markers_need_no_baseline(ledger: Ledger, marking: Any) -> None:
    """Without a baseline, a card with the marker is still the row's."""
    board = Board(card("1"))
    reconciler = board.reconciler(ledger, marking)
    await reconciler.prepare(reads_cards=False)
    assert board.asked == ["boards.lists"]
    rows = [row(0)]
    await ledger.admit(rows)
    await confirm(ledger, board, reconciler)
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}
    board.cards.append(card("2", "a", reconciler.description(rows[0]) or ""))
    assert verdicts(await reconciler.settle(rows)) == {0: "2"}
    assert (await reconciler.audit()).unexpected == ()


async def test_a_board_that_cannot_be_read_at_the_start_is_an_error(ledger: Ledger) -> None:
    """Without a readable board, the run does not begin."""
    board = Board()
    board.error = ServerError("500", 500)
    with pytest.raises(ServerError):
        await board.reconciler(ledger).prepare(reads_cards=True)
    assert await ledger.baseline() is None


async def test_the_baseline_of_a_journal_is_read_before_the_first_row_only(tmp_path: Path) -> None:
    """A resumed journal has its baseline or gets none: the cards that exist now may be the rows'."""
    path = tmp_path / "journal"
    board = Board(card("1"))

    async def run(*rows: Row, reads_cards: bool = True) -> tuple[list[str], int | None]:
        board.asked.clear()
        ledger = await JournalLedger.open(path, {"board": "b1"}, 8)
        await board.reconciler(ledger).prepare(reads_cards=reads_cards)
        await ledger.admit(rows)
        baseline = await ledger.baseline()
        await ledger.aclose()
        return board.asked, None if baseline is None else len(baseline)

    assert await run(reads_cards=False) == (["boards.lists"], None)
    assert await run() == (["boards.lists", "boards.cards"], 1)  # no row was on record
    board.cards.append(card("2"))
    assert await run(row(0)) == (["boards.lists"], 1)
    assert await run(row(0)) == (["boards.lists"], 1)


async def test_a_journal_begun_without_a_baseline_gets_none(tmp_path: Path) -> None:
    """Once rows are logged their cards can't be told apart from earlier ones by content, only by markers."""
    path = tmp_path / "journal"
    await leave_in_flight(path, row(0))
    board = Board(card("1"))
    ledger = await JournalLedger.open(path, {}, 8)
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    assert board.asked == ["boards.lists"]
    again = row(0)
    await ledger.admit([again])
    assert (again.action, again.is_earlier) == ("doubtful", True)
    (finding,) = await reconciler.settle([again])
    assert "the journal does not have the cards that existed before its first row: look for the card on the board" in str(
        finding.error
    )
    assert (await reconciler.audit()).unexpected == ()  # which were there before is not known
    await ledger.aclose()


# --- by content


async def test_rows_in_doubt_are_found_by_content(ledger: Ledger) -> None:
    """Existing rows are found, the others are absent; cards of the baseline belong to no row, and a moved card may."""
    rows = [row(0, "a"), row(1, "a"), row(2, "b"), row(3, "c", desc="text"), row(4, "old")]
    board = Board(card("0", "old"), card("00", "a"))
    reconciler = await begun(ledger, board, rows)
    board.cards += [card("1"), card("2", "b", list_id="l2"), card("3", "c", "text"), card("4", "c", "Text")]
    findings = await settled(ledger, board, reconciler, rows)
    assert verdicts(findings) == {0: "1", 1: "absent", 2: "unknown", 3: "3", 4: "absent"}
    assert board.asked == ["boards.lists", "boards.cards", "boards.cards", "boards.cards"]


async def test_a_listing_that_proves_nothing_leaves_rows_unknown(ledger: Ledger) -> None:
    """What is found is found; what is not there may be all the same, and the error says why."""
    rows = [row(0), row(1)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards, board.hidden = [card("1")], board.cards
    findings = await reconciler.settle(rows)
    assert verdicts(findings) == {0: "1", 1: "unknown"}
    assert "lacks 1 of 1 cards that were confirmed" in str(findings[-1].error)


async def test_a_large_board_lets_other_tasks_run(ledger: Ledger) -> None:
    """A large board is read through, card by card."""
    board = Board(*(card(f"before {index}", f"n{index}") for index in range(1200)))
    rows = [row(0, "n7")]
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("1", "n7"))
    assert verdicts(await reconciler.settle(rows)) == {0: "1"}


async def test_a_service_that_changes_texts_is_learned(ledger: Ledger) -> None:
    """Confirmed cards show how the service shows texts, which tells the cards of others apart from those of rows."""
    rows = [row(0, " a 0"), row(1, " a 1"), row(2, " a 2")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    known = row(50, " a 50")
    await ledger.admit([known])
    board.cards += [card("50", "A 50"), card("1", "A 1"), card("9", "of somebody else")]
    note(ledger, known, board.cards[-3])
    reconciler.note_created(known, "50")
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent", 1: "1", 2: "absent"}


async def test_the_first_and_the_last_known_cards_teach(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million cards a few hundred are kept, from both ends of the run."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._samples.SAMPLES", 2)
    reconciler = Board().reconciler(ledger)
    for index in range(7):
        reconciler.note_known(row(index), f"c{index}")
    assert [card_id for card_id, _ in reconciler._learning.samples] == ["c0", "c1", "c5", "c6"]


async def test_a_card_that_may_be_a_row_keeps_it_from_being_sent_again(ledger: Ledger) -> None:
    """A card that may have been renamed, moved or cut leaves the row unknown, and is named."""
    rows = [row(0, "a name that is long", desc="a text that is long"), row(1, "b"), row(2, "one that is cut somewhere")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards += [card("r", "renamed", "a text that is long"), card("m", "b", list_id="l2"), card("c", "one that is c…")]
    findings = await reconciler.settle(rows)
    assert verdicts(findings) == {0: "unknown", 1: "unknown", 2: "unknown"}
    assert sorted(str(finding.error).partition(": the card ")[2].split()[0] for finding in findings) == ["c", "m", "r"]
    audit = await reconciler.audit()
    assert [one.id for one in audit.resembling] == ["m", "c"]
    assert not audit.is_sound


async def test_one_listing_proves_nothing(ledger: Ledger) -> None:
    """However often it is read: a listing that has not grown may be cut off, and the row may exist."""
    rows = [row(0, "n0")]
    board = Board(card("before", "before"))
    reconciler = await begun(ledger, board, rows)
    for _ in range(3):
        assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}  # it was sent again: the earlier listings say nothing of that


async def test_a_listing_that_is_full_never_proves(ledger: Ledger) -> None:
    """A board may always show so many cards, whichever they are: what replaces one is no growth."""
    rows = [row(0, "n0")]
    board = Board(card("x", "before"))
    reconciler = await begun(ledger, board, rows)
    board.hidden.append(card("1", "n0"))
    for number in range(3):
        assert verdicts(await reconciler.settle(rows)) == {0: "open"}
        board.cards = [one for one in board.cards if not one.id.startswith("x")] + [card(f"x{number}", "of others")]
    board.cards.append(board.hidden.pop())
    assert verdicts(await reconciler.settle(rows)) == {0: "1"}


@pytest.mark.parametrize("shows_lists", [True, False])
async def test_a_listing_that_grew_by_cards_of_others_proves(ledger: Ledger, shows_lists: bool) -> None:
    """A listing that was cut off would not show more, whatever is created."""
    rows = [row(0, "n0")]
    board = Board(card("before", "before", list_id="l1" if shows_lists else None))
    reconciler = await begun(ledger, board, rows)
    board.cards = [attrs.evolve(one, list_id=one.list_id if shows_lists else None) for one in board.cards]
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    board.cards.append(card("foreign", "of others", list_id="l1" if shows_lists else None))
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}


async def test_a_listing_that_grew_in_another_list_proves_if_a_list_is_longer(ledger: Ledger) -> None:
    """A service may show so many cards of each list: that the row's list is not full is seen when another shows more."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("before", "before"))
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}  # l1 shows 2
    for expected in ("open", "open", "absent"):
        await confirm(ledger, board, reconciler, "l2")
        assert verdicts(await reconciler.settle(rows)) == {0: expected}


async def test_a_listing_that_has_shrunk_may_grow_again(ledger: Ledger) -> None:
    """People delete cards: any listing that lacks the row may be the first one."""
    rows = [row(0, "n0")]
    board = Board(*(card(f"b{index}", "before") for index in range(5)))
    reconciler = await begun(ledger, board, rows)
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    del board.cards[:3]
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    await confirm(ledger, board, reconciler)
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}


async def test_a_listing_that_did_not_prove_is_no_later_beginning(ledger: Ledger) -> None:
    """A listing that grew in another list proves nothing yet. A later one is compared with the first, not with that one."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("before", "before"))
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    await confirm(ledger, board, reconciler, "l2")
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    board.cards[-1] = attrs.evolve(board.cards[-1], list_id="l1", extra={})  # moved
    assert verdicts(await reconciler.settle(rows)) == {0: "absent"}


async def test_a_listing_that_lags_is_read_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that was created just now may not be listed yet: the board is read once more, when it must be."""
    waited: list[float] = []
    board = Board()
    reconciler = Reconciler(board, "b1", ledger, None, 60.0)
    await reconciler.prepare(reads_cards=True)
    rows = [row(0)]
    await ledger.admit(rows)
    await confirm(ledger, board, reconciler)
    hidden = board.cards.pop()

    async def sleep(seconds: float) -> None:
        if seconds:
            waited.append(seconds)
            board.cards.append(hidden)

    monkeypatch.setattr("boardclient.bulk.reconciliation._board.asyncio.sleep", sleep)
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}
    assert len(waited) == 1
    assert 59 < waited[0] <= 60
    assert (await reconciler.audit()).lost == 0
    assert len(waited) == 1


async def test_changed_texts_are_no_obstacle_to_markers(ledger: Ledger) -> None:
    """A card is recognised by its marker, however its text was changed."""
    rows = [row(0, " a ")]
    board = Board()
    reconciler = await begun(ledger, board, rows, True)
    reconciler.note_created(row(1, " b "), "2")
    board.cards.append(card("1", "a", f"[{marker_of(reconciler, rows[0])}]"))
    assert verdicts(await reconciler.settle(rows)) == {0: "1"}


@pytest.mark.parametrize("error", [TransportError("reset"), BadRequestError("400", 400), BoardClientError("any")])
async def test_a_board_that_cannot_be_read_leaves_rows_unknown(ledger: Ledger, error: BoardClientError) -> None:
    """The error has the reason, and nothing is sent again."""
    rows = [row(0), row(1)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.error = error
    findings = await reconciler.settle(rows)
    assert verdicts(findings) == {0: "unknown", 1: "unknown"}
    assert str(findings[0].error) == f"whether the card exists is not known: the board could not be read: {error.message}"
    board.error = None
    board.cards.append(card("1"))
    assert [one.id for one in (await reconciler.audit()).resembling] == ["1"]


@pytest.mark.parametrize(
    "error", [AuthenticationError("401", 401), CredentialError("expired"), SessionClosedError("closed"), JournalError("full")]
)
async def test_what_ends_a_run_is_raised_by_a_reading(ledger: Ledger, error: BoardClientError) -> None:
    """Errors that every further card would meet are not kept to oneself, and no row is settled."""
    rows = [row(0)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.error = error
    with pytest.raises(type(error)) as caught:
        await reconciler.settle(rows)
    assert caught.value is error
    board.error = None
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}


@pytest.mark.parametrize(
    ("there", "expected"), [(0, dict.fromkeys(range(3), "absent")), (2, {0: "unknown", 1: "unknown", 2: "unknown"}), (3, None)]
)
async def test_rows_that_the_board_shows_alike_are_settled_together(
    ledger: Ledger, there: int, expected: dict[int, str] | None
) -> None:
    """Rows that differ in what it never shows are known where all or none exist; others are settled as ever."""
    rows = [row(0, "a", due=DUE), row(1, "a"), row(2, "a", due=DUE), row(3, "b", due=DUE), row(4, "b", due=DUE)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards += [card(f"a{number}", "a") for number in range(there)] + [card("b", "b")]
    findings = await settled(ledger, board, reconciler, rows)
    said = verdicts(findings)
    assert (said.pop(3), said.pop(4)) == ("b", "absent")
    if expected is None:
        assert sorted(said.values()) == ["a0", "a1", "a2"]
    else:
        assert said == expected
    reported = {str(finding.error) for finding in findings if finding.error is not None}
    assert reported <= {
        "whether the card exists is not known: the board does not distinguish it from other rows, some of which exist"
    }
    audit = await reconciler.audit()
    assert audit.recovered == (4 if there == 3 else 1)


async def test_a_card_that_is_listed_twice_is_one(ledger: Ledger) -> None:
    """Overlapping pages behind a listing make no second row of a card, and no card too many of it."""
    rows = [row(0), row(1)]
    board = Board(card("before", "b"), card("before", "b"))
    reconciler = await begun(ledger, board, rows)
    board.cards += [card("1"), card("1"), *board.cards]
    (made,) = (finding.card for finding in await reconciler.settle(rows) if finding.card is not None)
    board.cards += [card("2", "foreign"), card("2", "foreign")]
    note(ledger, rows[0], made)
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.recovered, audit.lost, audit.duplicated) == (2, 1, 0, ())
    assert [one.id for one in audit.unexpected] == ["2"]


async def test_a_listing_that_breaks_off_leaves_rows_unknown(ledger: Ledger) -> None:
    """An element that is no card ends the reading: half a listing proves nothing."""
    rows = [row(0)]
    board = Board()
    reconciler = await begun(ledger, board, rows)

    def broken() -> Iterator[Card]:
        yield card("1")
        raise BoardClientError("not a card at [1]")

    board.cards = broken()
    assert verdicts(await reconciler.settle(rows)) == {0: "unknown"}


# --- by marker


async def test_markers_are_made_from_the_secret(ledger: Ledger) -> None:
    """True makes a marker for each row from its number in the ledger; it is at both ends of the description."""
    reconciler = Board().reconciler(ledger, True)
    one, two = row(1, desc="text", reference="r"), row(2, reference="r")
    assert marker_of(reconciler, one) == marker_of(reconciler, row(1, "other")) == one.marker
    assert marker_of(reconciler, one) != marker_of(reconciler, two)
    assert reconciler.description(one) == f"[{one.marker}]\n\ntext\n\n[{one.marker}]"
    assert reconciler.description(two) == f"[{two.marker}]"


async def test_markers_of_a_journal_outlive_their_run(tmp_path: Path) -> None:
    """The next run of a journal makes the same markers, in whatever order the rows come; another journal makes others."""
    made = []
    for name, references in (("one", "ab"), ("one", "cba"), ("two", "ab")):
        ledger = await JournalLedger.open(tmp_path / name, {}, 8)
        rows = [row(index, reference=reference) for index, reference in enumerate(references)]
        await ledger.admit(rows)
        reconciler = Board().reconciler(ledger, True)
        made.append({one.key: marker_of(reconciler, one) for one in rows})
        await ledger.aclose()
    assert made[0] == {key: made[1][key] for key in ("a", "b")}
    assert made[0]["a"] != made[2]["a"]
    assert len({*made[0].values(), *made[1].values()}) == 3


async def test_a_marker_function_is_called_once_for_a_row(ledger: Ledger) -> None:
    """The marker that was sent is searched, whatever the function would return now."""
    asked: list[str] = []

    def mark(draft: CardDraft) -> str:
        asked.append(draft.name)
        return f"m{len(asked)}"

    rows = [row(0, "a"), row(1, "b")]
    board = Board()
    reconciler = await begun(ledger, board, rows, mark)
    board.cards.append(card("1", "a", reconciler.description(rows[0]) or ""))
    assert reconciler.description(rows[0]) == "[m2]"
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "1", 1: "absent"}
    assert asked == ["confirmed", "a", "b", "confirmed"]


@pytest.mark.parametrize("marking", [None, False])
async def test_without_markers_descriptions_are_sent_as_they_are(ledger: Ledger, marking: Any) -> None:
    """None stays None, and empty stays empty."""
    reconciler = Board().reconciler(ledger, marking)
    assert [reconciler.description(row(0, desc=desc)) for desc in (None, "", "text")] == [None, "", "text"]


async def test_a_function_makes_markers(ledger: Ledger) -> None:
    """A function gets the draft, and what it returns is put in brackets as the marker."""
    reconciler = Board().reconciler(ledger, lambda draft: f"no-{draft.reference}")
    assert reconciler.description(row(0, reference="7", desc="text")) == "[no-7]\n\ntext\n\n[no-7]"


@pytest.mark.parametrize(("made", "error"), [(None, TypeError), (7, TypeError), ("", ValueError), ("a b", ValueError)])
async def test_a_function_that_makes_no_marker(ledger: Ledger, made: Any, error: type[Exception]) -> None:
    """What can't be found again is refused before anything is sent."""
    with pytest.raises(error, match="marker must return"):
        Board().reconciler(ledger, lambda draft: made).description(row(0))


async def test_rows_are_found_by_their_markers(ledger: Ledger) -> None:
    """Rows are found however the service changed text, name and list; cards of others with equal content are not taken."""
    rows = [row(0, "a", desc="x"), row(1, "a", desc="x"), row(2, "a", desc="x")]
    board = Board(card("old", "a", "x"))
    reconciler = await begun(ledger, board, rows, True)
    first, second, _ = (marker_of(reconciler, one) for one in rows)
    board.cards += [card("f", "a", "x"), card("2", "A", f"x [{second}] y", "l9"), card("1", "a", f"[other][{first}]")]
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "1", 1: "2", 2: "absent"}
    assert board.asked == ["boards.lists", "boards.cards", "boards.cards", "boards.cards"]
