"""The audit at the end of a run, and the ledgers that it reads."""

import json
from pathlib import Path

import attrs
import pytest
from reconcile_helpers import Board, begun, card, confirm, leave_in_flight, marker_of, note, row, settled, verdicts

from boardclient import (
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    Effect,
    JournalError,
    ServerError,
    TransportError,
)
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger, MemoryLedger
from boardclient.bulk._options import BulkOptions
from boardclient.bulk.journal import read_rows
from boardclient.bulk.reconciliation._listing import IdSet
from boardclient.bulk.reconciliation._markers import markers
from boardclient.models import BoardList

# --- the audit


async def test_the_audit_counts(ledger: Ledger) -> None:
    """The audit has confirmed, recovered, lost and hidden cards, second cards of rows, and cards of others."""
    rows = [row(0, "a"), row(1, "b")]
    board = Board(card("before", "z"))
    reconciler = await begun(ledger, board, rows)
    lost = row(2, "lost")
    await ledger.admit([lost])
    note(ledger, lost, card("gone"))
    reconciler.note_created(lost, "gone")
    board.cards.append(card("1", "a"))
    for finding in await reconciler.settle(rows):
        if finding.card is not None:
            note(ledger, finding.row, finding.card)
    reconciler.give_up(rows[1:], "nothing was created")
    board.cards += [card("2", "a"), card("3", "b"), card("4", "foreign")]
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.recovered, audit.lost, audit.hidden) == (2, 1, 1, 0)
    assert [one.id for one in audit.duplicated] == ["2"]
    assert [one.id for one in audit.unexpected] == ["3", "4"]
    assert [one.id for one in audit.resembling] == ["3"]


async def test_the_audit_counts_rows_that_share_a_card(ledger: Ledger) -> None:
    """A response may name the card of another row, or one that existed before: the row has no card of its own."""
    rows = [row(index, "a") for index in range(4)]
    board = Board(card("before", "a"))
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("1", "a"))
    for confirmed, card_id in zip(rows, ["1", "1", "before", "1"], strict=True):
        note(ledger, confirmed, card(card_id))
        reconciler.note_created(confirmed, card_id)
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.reused, audit.is_sound) == (3, 3, False)


async def test_a_card_that_was_found_and_then_deleted_is_lost(ledger: Ledger) -> None:
    """The audit looks for a card that was found without a response as for any other."""
    rows = [row(0)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    board.cards.append(card("1"))
    (finding,) = await reconciler.settle(rows)
    assert finding.card is not None
    note(ledger, rows[0], finding.card)
    assert board.cards.pop().id == "1"
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.lost, audit.hidden) == (1, 1, 0)


async def test_without_a_baseline_no_card_is_a_second_one(ledger: Ledger) -> None:
    """A card that looks like a row's may have been there before the run."""
    board = Board()
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=False)
    await confirm(ledger, board, reconciler)
    board.cards.append(attrs.evolve(board.cards[0], id="before", extra={}))
    audit = await reconciler.audit()
    assert (audit.duplicated, audit.unexpected, audit.is_sound) == ((), (), True)


async def test_second_cards_of_rows_of_earlier_runs_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A marker shows the second card of any row, also of one that is no sample and whose card people have changed."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._samples.SAMPLES", 1)
    board, rows = Board(), [row(index, f"n{index}") for index in range(3)]
    for number in range(2):
        ledger = await JournalLedger.open(tmp_path / "journal", {"board": "b1"}, 8)
        reconciler = board.reconciler(ledger, True)
        await reconciler.prepare(reads_cards=True)
        await ledger.admit(rows)
        for index, one in enumerate(rows):
            if number == 0:
                board.cards.append(card(f"c{index}", one.draft.name, reconciler.description(one) or ""))
                note(ledger, one, board.cards[-1])
            reconciler.note_known(one, f"c{index}")
        if number == 0:
            board.cards.append(attrs.evolve(board.cards[1], id="second", name="renamed", extra={}))
            rows = [row(index, f"n{index}") for index in range(3)]
        assert [one.id for one in (await reconciler.audit()).duplicated] == ["second"]
        await ledger.aclose()


async def test_the_audit_by_marker(ledger: Ledger) -> None:
    """A second card with a row's marker is a duplicate; one with an unknown marker is unexpected."""
    rows = [row(0)]
    board = Board(card("before"))
    reconciler = await begun(ledger, board, rows, True)
    marked = f"[{marker_of(reconciler, rows[0])}]"
    board.cards.append(card("1", "a", marked))
    (finding,) = await reconciler.settle(rows)
    assert finding.card is not None
    note(ledger, rows[0], finding.card)
    board.cards += [card("2", "a", f"text {marked}"), card("3", "a", "[another]")]
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.recovered, audit.lost) == (2, 1, 0)
    assert [one.id for one in audit.duplicated] == ["2"]
    assert [one.id for one in audit.unexpected] == ["3"]


async def test_the_audit_names_at_most_a_thousand(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a flood of cards the first are named."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._auditor._NAMED", 3)
    rows = [row(0)]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}
    board.cards += [card(f"d{index}") for index in range(5)] + [card(f"u{index}", "u") for index in range(5)]
    audit = await reconciler.audit()
    assert [one.id for one in audit.duplicated] == ["d0", "d1", "d2"]
    assert [one.id for one in audit.unexpected] == ["u0", "u1", "u2"]


async def test_the_audit_names_cards_of_rows_that_were_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may create a card and refuse it all the same. So many rows are kept as cards are named."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._auditor._NAMED", 2)
    board = Board()
    reconciler = await begun(ledger, board, [])
    for index, name in enumerate("abc"):
        reconciler.note_refused(row(index, name))
    board.cards += [card("2", "b"), card("3", "c")]
    audit = await reconciler.audit()
    assert [one.id for one in audit.unexpected] == ["2", "3"]
    assert [one.id for one in audit.resembling] == ["2"]
    assert not audit.is_sound


async def test_an_audit_without_a_board(ledger: Ledger) -> None:
    """Without a board, nothing is read."""
    board = Board()
    reconciler = board.reconciler(ledger, board_id=None)
    await reconciler.prepare(reads_cards=True)
    assert (await reconciler.audit()).confirmed == 0
    assert board.asked == []


# --- confirmed cards that are not listed


async def test_deleted_cards_are_no_obstacle(ledger: Ledger) -> None:
    """A confirmed card that the service no longer has is lost, one that it has and does not list is hidden."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    await confirm(ledger, board, reconciler)
    del board.cards[0]
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.lost, audit.hidden) == (2, 1, 0)
    assert not audit.is_sound
    assert board.asked.count("cards.get") == 1  # it is not read again
    board.hidden.append(board.cards.pop())
    audit = await reconciler.audit()
    assert (audit.confirmed, audit.lost, audit.hidden) == (1, 1, 1)
    assert not audit.is_sound


async def test_a_card_that_cannot_be_read_counts_as_hidden(ledger: Ledger) -> None:
    """A refusal does not show that a card is deleted."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    del board.cards[0]
    board.card_error = ServerError("500", 500)
    (finding,) = await reconciler.settle(rows)
    assert "lacks 1 of 1 cards that were confirmed" in str(finding.error)
    board.card_error = error = AuthenticationError("401", 401)
    with pytest.raises(AuthenticationError) as caught:
        await reconciler.audit()
    assert caught.value is error


async def test_a_hundred_missing_cards_are_read_at_most(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next time others are read."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._missing._MOST_ASKED", 2)
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    for _ in range(4):
        await confirm(ledger, board, reconciler)
    del board.cards[:4]
    for read in (2, 4, 4):
        audit = await reconciler.audit()
        assert (audit.confirmed, audit.lost, audit.hidden) == (1, 4, 0)
        assert board.asked.count("cards.get") == read


async def test_missing_cards_whose_rows_are_not_in_the_input(ledger: Ledger) -> None:
    """A journal has their identifiers, so that it shows whether they are deleted. Without one they count as hidden."""
    rows = [row(0, "n0")]
    board = Board()
    reconciler = await begun(ledger, board, rows)
    earlier = row(1, "earlier")
    await ledger.admit([earlier])
    note(ledger, earlier, card("gone"))
    is_journal = isinstance(ledger, JournalLedger)
    assert verdicts(await reconciler.settle(rows)) == {0: "open" if is_journal else "unknown"}
    audit = await reconciler.audit()
    assert (audit.lost, audit.hidden, board.asked.count("cards.get")) == ((1, 0, 1) if is_journal else (0, 1, 0))


async def test_a_few_missing_cards_are_taken_from_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If those that are read are deleted, so are the others."""
    monkeypatch.setattr("boardclient.bulk.reconciliation._missing._MOST_ASKED", 1)
    ledger = await JournalLedger.open(tmp_path / "journal", {"board": "b1"}, 8)
    board, rows = Board(), [row(number, f"n{number}") for number in range(3)]
    reconciler = await begun(ledger, board, [])
    await ledger.admit(rows)
    for one in rows:
        note(ledger, one, card(f"gone {one.index}"))
    audit = await reconciler.audit()
    assert (audit.lost, audit.hidden, board.asked.count("cards.get")) == (3, 0, 1)
    await ledger.aclose()


async def test_cards_that_were_moved_to_another_board_leave_the_listing_complete(ledger: Ledger) -> None:
    """Cards in lists that the board does not have, or that are archived, prove nothing. The audit counts them as hidden."""
    rows = [row(0, "n0")]
    board = Board()
    board.lists.append(BoardList("archived", closed=True))
    reconciler = await begun(ledger, board, rows)
    for list_id in ("elsewhere", "archived"):
        await confirm(ledger, board, reconciler)
        board.hidden.append(attrs.evolve(board.cards.pop(), list_id=list_id))
    assert verdicts(await settled(ledger, board, reconciler, rows)) == {0: "absent"}
    audit = await reconciler.audit()
    assert (audit.lost, audit.hidden, board.asked.count("cards.get")) == (0, 2, 2)
    board.hidden.append(attrs.evolve(board.cards.pop(), list_id=None))
    assert not (await reconciler.audit()).is_sound


async def test_a_row_whose_list_was_archived_is_unknown(ledger: Ledger) -> None:
    """The card of a row may exist in an archived list, and no listing would show it, however many cards it has."""
    rows = [row(0, "n0", "archived"), row(1, "n1", "removed"), row(2, "n2")]
    board = Board()
    board.lists.append(BoardList("archived", closed=True))
    reconciler = await begun(ledger, board, rows)
    findings = await settled(ledger, board, reconciler, rows)
    assert verdicts(findings) == {0: "unknown", 1: "unknown", 2: "absent"}
    assert "the list archived was archived or removed" in str(findings[0].error)


# --- the ledgers


async def test_what_a_journal_keeps_of_results(tmp_path: Path) -> None:
    """Done with its card; refused for good; to be sent again where the reason may pass; unknown."""
    path = tmp_path / "journal"
    ledger = await JournalLedger.open(path, {}, 8)
    assert ledger.is_new
    assert (ledger.batch, len(ledger.secret)) == (8, 32)
    errors: dict[str, BoardClientError | None] = {
        "done": None,
        "400": BadRequestError("400", 400),
        "503": ServerError("503", 503),
        "unsent": TransportError("no", effect=Effect.NOT_SENT),
        **{str(status): BadRequestError("passing", status) for status in (401, 403, 408, 425, 429)},
        "409": BadRequestError("conflict", 409),
    }
    rows = [row(index, reference=name) for index, name in enumerate(errors)]
    await ledger.admit(rows)
    assert {one.action for one in rows} == {"send"}
    assert not ledger.is_new
    for one, error in zip(rows, errors.values(), strict=True):
        made = card("c1") if error is None else None
        ledger.settle(one, "failed" if error else "created", made, error)
    doubtful, withdrawn = row(90, reference="doubtful"), row(91, reference="withdrawn")
    await ledger.admit([doubtful, withdrawn])
    ledger.settle(doubtful, "unknown", error=TransportError("lost"))
    ledger.withdraw([withdrawn])
    assert "c1" in await ledger.confirmed()
    assert len(await ledger.confirmed()) == 1
    await ledger.aclose()
    kept = {one.key: (one.state, one.detail) for one in read_rows(path)}
    passing = dict.fromkeys(("401", "403", "408", "425", "429"), ("waiting", "passing"))
    assert kept == {
        "done": ("done", "c1"),
        "400": ("failed", "400"),
        "503": ("waiting", "503"),
        "unsent": ("waiting", "no"),
        **passing,
        "409": ("failed", "conflict"),
        "doubtful": ("unknown", "lost"),
        "withdrawn": ("waiting", "not sent"),
    }
    ledger = await JournalLedger.open(path, {}, 8)
    again = [row(index, reference=name) for index, name in enumerate(kept)]
    await ledger.admit(again)
    actions = {one.key: (one.action, one.is_earlier) for one in again}
    assert actions["done"] == ("done", False)
    assert actions["doubtful"] == ("doubtful", True)
    assert {actions[name] for name in ("400", "409", "503", "unsent", "withdrawn", *passing)} == {("send", False)}
    await ledger.aclose()


async def test_what_memory_keeps(tmp_path: Path) -> None:
    """A ledger in memory has the cards of the run and the baseline; it is always new, and has its own secret."""
    ledger = MemoryLedger()
    assert (ledger.is_new, ledger.batch) == (True, 0)
    assert ledger.secret != MemoryLedger().secret
    one = row(0)
    await ledger.admit([one])
    assert one.action == "send"
    ledger.settle(one, "unknown", error=TransportError("lost"))
    ledger.withdraw([one])
    assert len(await ledger.confirmed()) == 0
    note(ledger, one, card("c"))
    assert "c" in await ledger.confirmed()
    assert await ledger.baseline() is None
    await ledger.set_baseline(["b"])
    assert isinstance(await ledger.baseline(), IdSet)
    await ledger.aclose()


async def test_an_identifier_that_two_responses_name_is_noticed(ledger: Ledger) -> None:
    """With a journal and without one."""
    rows = [row(index) for index in range(3)]
    await ledger.admit(rows)
    for one, card_id in zip(rows, "aba", strict=True):
        note(ledger, one, card(card_id))
    assert (await ledger.confirmed()).repeated == 1


async def test_no_more_confirmed_cards_are_found_than_asked_for(tmp_path: Path) -> None:
    """A search of the confirmed cards ends once it has as many as it asks for."""
    ledger = await JournalLedger.open(tmp_path / "journal", {}, 8)
    rows = [row(index) for index in range(4)]
    await ledger.admit(rows)
    for one in rows:
        note(ledger, one, card(f"c{one.index}"))
    assert await ledger.find_confirmed(lambda card_id: card_id != "c0", 2) == {"c1", "c2"}
    await ledger.aclose()


async def test_a_row_that_stays_in_doubt_has_the_latest_reason(tmp_path: Path) -> None:
    """A row that an earlier run left without a response, and that stays unknown, is kept as unknown with the reason."""
    path = tmp_path / "journal"
    await leave_in_flight(path, row(0))
    for why in ("not read", "not complete"):
        ledger = await JournalLedger.open(path, {}, 8)
        again = row(0)
        await ledger.admit([again])
        assert again.action == "doubtful"
        ledger.settle(again, "unknown", error=TransportError(why))
        await ledger.aclose()
        assert [(one.state, one.detail) for one in read_rows(path)] == [("unknown", why)]


@pytest.mark.parametrize(("workers", "rows"), [(1, 32), (20, 80), (1000, 256)])
def test_a_batch_of_the_journal_has_four_rows_for_each_worker(workers: int, rows: int) -> None:
    """A batch has 32 rows at least, since its price hardly depends on their number, and 256 at most."""
    options = BulkOptions(
        concurrency=None, journal=None, board_id=None, unknown="report", marker=None, settle_seconds=1.0, workers=workers
    )
    assert options.batch == rows


async def test_a_journal_refuses_another_content(tmp_path: Path) -> None:
    """The digest of all that is sent is compared, without the reference and what a marker adds."""
    await leave_in_flight(tmp_path / "journal", row(0))
    ledger = await JournalLedger.open(tmp_path / "journal", {}, 8)
    with pytest.raises(JournalError, match=r"row at position 0 .* was sent by an earlier run with other content"):
        await ledger.admit([row(0, "b")])
    await ledger.aclose()


def test_a_sent_description_holds_its_marker() -> None:
    """A description with its marker survives JSON."""
    text = json.loads(json.dumps({"desc": "ü\n\n[bc:abc]"}))["desc"]
    assert markers(text) == {"bc:abc", "ü"}
