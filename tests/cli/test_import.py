"""The import: all rows are checked before one is sent, each is sent once, and its result is reported."""

import asyncio
import io
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from import_helpers import counts, into, names, summary

from boardclient import BulkReport, Card, CardDraft, TransportError
from boardclient.bulk._results import BulkAudit
from boardclient.cli import _import, _import_view, _rows
from boardclient.cli._import_journal import Earlier
from boardclient.cli._references import References, repeated_references
from boardclient.cli._signals import GracefulStop
from boardclient.testing import BoardService

THREE = "name,list\nA,To Do\nB,Doing\nC,\n"


def test_every_row_becomes_a_card(cli, board_service: BoardService, board, csv_file) -> None:
    code, out, err = cli("import", csv_file(THREE), "--board", board.board, "--list", "Done")
    assert (code, err) == (0, "")
    assert out.startswith("created 3, failed 0, unknown 0 in ")
    homes = {card.name: card.list_id for card in board_service.rules.cards.values()}
    assert homes == {"A": board.todo, "B": board.doing, "C": board.done}
    assert Path(csv_file(THREE) + ".journal").exists()


def test_json_lines_and_a_json_result(cli, board_service: BoardService, board, csv_file) -> None:
    """An import reads JSON Lines, and with `--json` prints its result as JSON."""
    path = csv_file('{"name": "A", "due": "2027-01-01T00:00:00Z"}\n{"name": "B", "pos": "top"}\n', "cards.ndjson")
    code, out, err = cli("import", path, "--board", board.board, "--list", board.todo, "--concurrency", "1", "--json")
    assert (code, err) == (0, "")
    found = summary(out)
    assert found.pop("seconds") > 0
    assert found.pop("rate") > 0
    assert found == {
        "created": 2,
        "already": 0,
        "failed": 0,
        "unknown": 0,
        "not_sent": 0,
        "requests": 2,
        "rejected": 0,
        "rows": [],
        "audit": {
            "confirmed": 2,
            "recovered": 0,
            "lost": 0,
            "hidden": 0,
            "reused": 0,
            "duplicated": [],
            "unexpected": [],
            "resembling": [],
            "unproven": [],
            "hint": None,
        },
    }
    assert names(board_service) == ["A", "B"]


def test_a_card_that_a_proxy_created_twice_is_reported(cli, board_service: BoardService, board, csv_file) -> None:
    """A proxy that repeats a POST answers as if nothing had happened: the board is read in the end, and says so."""

    class Repeated:
        async def play(self, stage) -> None:
            body = board_service.calls[-1].body
            board_service.rules.answer("POST", "/1/cards", {}, body)
            await stage.reply_answer()

    board_service.faults.add(Repeated(), "cards.create", call=2)
    code, out, err = cli("import", csv_file(THREE), *into(board), "--concurrency", "1", "--json")
    assert code == 1
    found = summary(out)
    assert counts(found) == {"created": 3, "already": 0, "failed": 0, "unknown": 0}
    assert len(found["audit"]["duplicated"]) == 1
    assert "looks like a second card of a row" in err


def test_a_file_without_rows_is_imported(cli, board, csv_file) -> None:
    """A file with a header only is an import of no cards."""
    code, out, _ = cli("import", csv_file("name,list\n"), "--board", board.board)
    assert code == 0
    assert out.startswith("created 0")


def test_a_bar_is_drawn_on_a_terminal(cli, board, csv_file, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = cli("import", csv_file(THREE), "--board", board.board, "--list", "Done")
    assert code == 0
    assert "Importing" in err


def test_invalid_rows_are_named_before_anything_is_sent(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name,due,list\nA,,To Do\n,soon,To Do\nC,,\x1bNowhere\n")
    code, out, err = cli("import", path, "--board", board.board, "--json")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == "boardclient: row 3, column name: is missing"
    assert lines[1].startswith("boardclient: row 3, column due: 'soon' is not")
    assert lines[2].startswith("boardclient: row 4, column list: '\\x1bNowhere' is neither")
    assert lines[3] == "boardclient: error: the file has 3 problems; nothing was sent"
    assert not board_service.calls_of("cards.create")


def test_one_invalid_row_is_counted_in_the_singular(cli, board, csv_file) -> None:
    err = cli("import", csv_file("name\n\t\n"), "--board", board.board, "--list", "To Do").err
    assert err.endswith("the file has 1 problem; nothing was sent\n")


def test_no_more_than_20_problems_are_named(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name,list\n" + "x,nowhere\n" * 1000)
    code, _, err = cli("import", path, "--board", board.board)
    assert code == 2
    assert len(err.splitlines()) == 21
    assert "at least 20 problems" in err
    assert not board_service.calls_of("cards.create")


@pytest.mark.parametrize("name", ["cards.txt", "missing.csv", "folder.csv"])
def test_a_file_that_cannot_be_read_is_an_error_of_one_line(
    cli, board_service: BoardService, board, tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "cards.txt").write_text(THREE)
    code, out, err = cli("import", str(tmp_path / name), "--board", board.board)
    assert (code, out) == (2, "")
    assert name in err
    assert err.count("\n") == 1
    assert not board_service.calls


def test_a_default_list_that_the_board_has_not_is_bad_usage(cli, board_service: BoardService, board, csv_file) -> None:
    code, _, err = cli("import", csv_file(THREE), "--board", board.board, "--list", "Nowhere")
    assert code == 2
    assert "--list: 'Nowhere' is neither" in err
    assert not board_service.calls_of("cards.create")


def test_an_unknown_board_fails(cli, csv_file) -> None:
    code, out, err = cli("import", csv_file(THREE), "--board", "nowhere")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1


def test_rows_that_fail_are_named_and_lost_responses_are_searched_for(cli, board_service: BoardService, board, csv_file) -> None:
    faults = board_service.faults
    faults.add(faults.status(400, body=b"bad \x1b[31m"), "cards.create", call=1)
    faults.add(faults.drop(commit=True), "cards.create", call=3)
    code, out, err = cli("import", csv_file(THREE), *into(board), "--concurrency", "1", "--json")
    assert code == 1
    found = summary(out)
    assert counts(found) == {"created": 2, "already": 0, "failed": 1, "unknown": 0}
    assert [(row["row"], row["state"]) for row in found["rows"]] == [(2, "failed")]
    assert all(row["error"] for row in found["rows"])
    assert found["audit"] == {
        "confirmed": 2,
        "recovered": 1,
        "lost": 0,
        "hidden": 0,
        "reused": 0,
        "duplicated": [],
        "unexpected": [],
        "resembling": [],
        "unproven": [],
        "hint": None,
    }
    lines = err.splitlines()
    assert lines[0].startswith("row 2: failed: ")
    assert lines[1:] == ["boardclient: error: not every row exists as a card exactly once"]
    assert "\x1b" not in err
    assert len(board_service.calls_of("cards.create")) == 3


def test_rows_that_cannot_be_searched_for_are_unknown(cli, board_service: BoardService, board, csv_file) -> None:
    faults = board_service.faults
    faults.add(faults.drop(commit=True), "cards.create", call=3)
    faults.add(faults.status(404), "boards.cards", call=2)
    code, out, err = cli("import", csv_file(THREE), *into(board), "--concurrency", "1", "--json")
    assert code == 1
    found = summary(out)
    assert counts(found) == {"created": 2, "already": 0, "failed": 0, "unknown": 1}
    assert [(row["row"], row["state"]) for row in found["rows"]] == [(4, "unknown")]
    assert err.startswith("row 4: unknown: ")


def test_failed_rows_are_named_without_json_too(cli, board_service: BoardService, board, csv_file) -> None:
    board_service.faults.add(board_service.faults.status(400), "cards.create")
    code, out, err = cli("import", csv_file(THREE), "--board", board.board, "--list", "Done")
    assert code == 1
    assert out.startswith("created 0, failed 3, unknown 0 in ")
    assert sum(line.startswith("row ") for line in err.splitlines()) == 3


def test_a_token_that_is_refused_during_an_import_ends_it(cli, board_service: BoardService, board, csv_file) -> None:
    board_service.faults.add(board_service.faults.status(401), "cards.create", call=2)
    path = csv_file(THREE)
    code, out, err = cli("import", path, "--board", board.board, "--list", "Done", "--concurrency", "1", "--json")
    assert code == 1
    found = summary(out)
    assert (found["created"], found["failed"], found["unknown"], found["not_sent"]) == (1, 1, 0, 1)
    assert "obtain a new token" in err


@pytest.mark.parametrize(
    ("later", "message", "sent"),
    [
        ("name\nA\n\t\nC\n", "row 3, column name: is missing", ["A"]),
        ("name\nA\nB\nC\nD\n", "row 5 was not there before", ["A", "B", "C"]),
        ("name\nA\n", "it has 1 rows now and had 3", ["A"]),
    ],
)
def test_a_file_that_changes_during_the_import_stops_it(
    cli, board_service: BoardService, board, csv_file, monkeypatch, later: str, message: str, sent: list[str]
) -> None:
    path = csv_file("name\nA\nB\nC\n")
    real = _import.check

    async def check_then_change(source: _import.Source, earlier: Earlier) -> Counter[str]:
        rows = await real(source, earlier)
        Path(path).write_text(later, newline="")
        return rows

    monkeypatch.setattr(_import_view._import, "check", check_then_change)
    code, out, err = cli("import", path, "--board", board.board, "--list", "Done", "--concurrency", "1")
    assert code == 1
    assert out.startswith(f"created {len(sent)}, ")
    assert message in err
    assert names(board_service) == sent


async def test_a_file_that_becomes_unreadable_stops_the_import(board_service: BoardService) -> None:
    class Failing(io.BytesIO):
        readings = 0

        def seek(self, *position: int) -> int:
            self.readings += 1
            if self.readings == 2:
                raise OSError(5, "Input/output error")
            return super().seek(*position)

    async with board_service.session() as session:
        board = await session.boards.create("B", default_lists=True)
        source = await _import.prepare(session, Failing(b"name\nA\n"), _rows.Format.CSV, board.id, "Done")
        outcome = _import.ImportOutcome(lambda row: None)
        rows = (await _import.check(source, Earlier())).total()
        options = _import.SendOptions(rows=rows, board_id=board.id)
        await _import.send(session, source, outcome, options, graceful_stop=GracefulStop())
    assert outcome.stopped_by == "the file can no longer be read: Input/output error"
    assert not outcome.is_complete


class Run:
    """A run without results, except those that are left when its block ends."""

    report = BulkReport()

    def stop(self):
        raise AssertionError

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.Event().wait()

    def take_ready(self):
        return [Created(0), Created(1)]


class Created(NamedTuple):
    index: int
    state: str = "created"
    error: None = None


@pytest.mark.parametrize("has_journal", [False, True])
async def test_what_is_ready_when_it_is_cancelled_counts_and_the_rest_is_unknown(tmp_path: Path, has_journal: bool) -> None:
    """Without a readable journal, it is not known which of the rows in flight were sent."""
    (tmp_path / "journal").write_text("no journal")
    journal = tmp_path / "journal" if has_journal else None
    told: list[_import.FailedRow] = []
    outcome = _import.ImportOutcome(told.append)
    cards = SimpleNamespace(create_many=lambda drafts, **options: Run())
    for index in range(3):
        outcome.begin(index, _rows.FileRow(index + 2, CardDraft("x", "l")))
    options = _import.SendOptions(rows=5, board_id="b", journal=journal)
    task = asyncio.create_task(_import.send(SimpleNamespace(cards=cards), None, outcome, options, graceful_stop=GracefulStop()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert outcome.counts == {"created": 2, "unknown": 1}
    assert [(row.row, row.state) for row in told] == [(4, "unknown")]
    assert outcome.not_sent == 2


@pytest.mark.parametrize(
    ("audit", "lines", "is_complete"),
    [
        (BulkAudit(confirmed=3, recovered=1), [], True),
        (
            BulkAudit(reused=2),
            ["reused: 2 rows were given the card of another row or an older one, and may have none of their own"],
            False,
        ),
        (BulkAudit(lost=2), ["lost: 2 of the confirmed cards are not on the board"], False),
        (BulkAudit(hidden=3), ["hidden: 3 of the confirmed cards are not listed, so the listing is incomplete"], False),
        (
            BulkAudit(unproven=(CardDraft("x", "list"),)),
            ["unproven: 'x' was sent again without proof, and may exist more than once"],
            False,
        ),
        (BulkAudit(hint="all names look the same"), ["hint: all names look the same"], True),
        (BulkAudit(duplicated=(Card("c1", "A\x1b"),)), ["duplicated: 'A\\x1b' (c1) looks like a second card of a row"], False),
        (BulkAudit(unexpected=(Card("c2", "B"),)), ["unexpected: 'B' (c2) belongs to no row, and was not there before"], True),
    ],
)
def test_the_findings_of_the_audit_are_printed(capsys, audit: BulkAudit, lines: list[str], is_complete: bool) -> None:
    outcome = _import.ImportOutcome(lambda row: None)
    outcome.report = BulkReport(audit=audit)
    _import_view._show_end(outcome, [], as_json=True)
    out, err = capsys.readouterr()
    assert err.splitlines() == lines
    named = [[card.id for card in cards] for cards in (audit.duplicated, audit.unexpected)]
    assert [[card["id"] for card in summary(out)["audit"][kind]] for kind in ("duplicated", "unexpected")] == named
    assert outcome.is_complete is is_complete


def test_repeated_references_are_found_before_anything_is_sent(cli, board_service, board, csv_file) -> None:
    path = csv_file("name,reference\nA,r-1\nB,\nC,r-2\nD,r-1\nE,\nF,r-1\n")
    code, _, err = cli("import", path, *into(board))
    assert code == 2
    assert err.splitlines()[:2] == [
        "boardclient: row 5, column reference: is also that of row 2; each row needs its own",
        "boardclient: row 7, column reference: is also that of row 2; each row needs its own",
    ]
    assert not board_service.calls_of("cards.create")
    assert not Path(path + ".journal").exists()


def test_two_references_with_one_hash_are_not_taken_for_the_same() -> None:
    class Text(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 7

    rows = [_rows.FileRow(number, CardDraft("x", "l", reference=Text(f"r-{number}"))) for number in (1, 2)]
    references = References()
    for row in rows:
        references.add(Text(row.draft.reference))
    assert references.suspects() == {7}
    assert list(repeated_references(rows, frozenset(map(hash, ("r-1", "r-2"))))) == [None, None]


def test_an_import_whose_board_cannot_be_read_at_the_end_is_incomplete(capsys) -> None:
    """If the board can't be read at the end, the import is reported as incomplete."""
    outcome = _import.ImportOutcome(lambda row: None)
    outcome.report = BulkReport(audit_error=TransportError("reset"))

    _import_view._show_end(outcome, [], as_json=True)

    out, err = capsys.readouterr()
    assert not outcome.is_complete
    assert "the board could not be read at the end, so duplicates are not ruled out: reset" in err
    assert summary(out)["audit_error"] == "reset"
