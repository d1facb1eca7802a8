"""The import: all rows are checked before one is sent, each is sent once, and its result is reported."""

import contextlib
import errno
import io
import json
import logging
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY

import pytest
from fault_helpers import Meanwhile
from import_helpers import SETTLE, STATES, Renamed, counts, into, names, summary

from boardclient import ConsentRequired, JournalError
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
    audit = found.pop("audit")
    assert (audit["confirmed"], audit["lost"], audit["duplicated"]) == (2, 0, [])
    assert found == {
        "created": 2,
        "already": 0,
        "failed": 0,
        "unknown": 0,
        "not_reached": 0,
        "requests": 2,
        "rejected": 0,
        "rows": [],
    }
    assert names(board_service) == ["A", "B"]
    assert cli("import", path, "--board", board.board, "--list", board.todo, "--json=created,already").out == (
        '{"created": 0, "already": 2}\n'
    )


def test_standard_input_is_read_and_leaves_no_journal(cli, board_service: BoardService, board, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("name,due\nA,\n", '{"name": "B"}\n'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert cli("import", "-", *into(board)).code == 0
    assert names(board_service) == ["A", "B"]
    assert list(tmp_path.glob("*journal*")) == []


def test_a_file_that_changes_during_the_import_is_imported_as_it_was(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name\nA\nB\n")
    board_service.faults.add(Meanwhile(lambda: Path(path).write_text("name\nC\n")), "boards.cards", call=1)
    assert cli("import", path, *into(board)).code == 0
    assert names(board_service) == ["A", "B"]


def test_a_named_pipe_is_read(cli, board_service: BoardService, board, tmp_path: Path) -> None:
    path = tmp_path / "cards.csv"
    os.mkfifo(path)
    threading.Thread(target=path.write_text, args=("name\nA\n",), daemon=True).start()
    assert cli("import", str(path), *into(board)).code == 0
    assert names(board_service) == ["A"]


def test_cards_of_colleagues_are_no_fault(cli, board_service: BoardService, board, csv_file) -> None:
    """What others add while an import runs is neither a failure nor worth a line."""

    def add_another() -> None:
        board_service.rules.answer("POST", "/1/cards", {}, {**board_service.calls[-1].body, "name": "a colleague's"})

    board_service.faults.add(Meanwhile(add_another), "cards.create", call=2)
    code, _, err = cli("import", csv_file(THREE), *into(board), "--concurrency", "1")
    assert (code, err) == (0, "")


def test_a_file_without_rows_is_imported(cli, board, csv_file) -> None:
    """A file with a header only is an import of no cards."""
    code, out, _ = cli("import", csv_file("name,list\n"), "--board", board.board)
    assert code == 0
    assert out.startswith("created 0")


def test_a_bar_is_drawn_on_a_terminal(cli, board_service: BoardService, board, csv_file, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    board_service.faults.add(board_service.faults.status(400), "cards.create", call=1)
    code, _, err = cli("import", csv_file(THREE), "--board", board.board, "--list", "Done", "--concurrency", "1")
    assert (code, "3/3" in err, "row 2: failed: " in err) == (1, True, True)


def test_wrong_rows_are_named_before_anything_is_sent(cli, board_service: BoardService, board, csv_file) -> None:
    """Columns are named as the file names them."""
    path = csv_file("Title,due,LIST\nA,,To Do\n,soon,To Do\nC,,\x1bNowhere\n")
    code, out, err = cli("import", path, "--board", board.board, "--map", "name=Title")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == "boardclient: row 3, column Title: is missing"
    assert lines[1].startswith("boardclient: row 3, column due: 'soon': is not")
    assert lines[2].startswith("boardclient: row 4, column LIST: '\\x1bNowhere' is neither")
    assert lines[3] == "boardclient: error: the file has 3 mistakes; nothing was sent"
    assert not board_service.calls_of("cards.create")


@pytest.mark.parametrize(
    ("code", "text", "given"),
    [
        (2, "name,name\nA,B\n", ()),
        (2, "name\n\0\n", ()),
        (2, "name\nold\n", ()),
        (2, "name\nA\n", ("--list", "Nowhere")),
        (2, "name\nA\n", ("--concurrency", "0")),
        (2, "name\nA\n", ("--engine", "none")),
        (2, "name\nA\n", ("--workers", "2")),
        (2, None, ()),
        (1, "name\nA\n", ("--board", "unknown")),
        (4, "name\nA\n", ("--board", "refused")),
    ],
)
def test_an_import_that_does_not_begin_prints_its_counts_as_well(
    cli, board_service: BoardService, board, csv_file, code: int, text: str | None, given: tuple[str, ...]
) -> None:
    """With `--json` the last line is its result however it ends, but for a preview, which has none."""
    cli("card", "create", "old", "--list", board.done)
    board_service.calls.clear()
    if "refused" in given:
        board_service.faults.add(board_service.faults.status(401))
    path = "missing.csv" if text is None else csv_file(text)
    ended = cli("import", path, *into(board), *given, "--json")
    assert (ended.code, counts(summary(ended.out))) == (code, dict.fromkeys(STATES, 0))
    assert (ended.out.count("\n"), "error: " in ended.err) == (1, True)
    assert json.loads(cli("import", path, *into(board), *given, "--json", "created,failed").out)["failed"] == 0
    cli("import", path, *into(board), *given, "--json", "--preview").fails(code)
    cli("import", path, *into(board), *given).fails(code)
    assert not board_service.calls_of("cards.create")


def test_equal_mistakes_are_one_line(cli, board, csv_file) -> None:
    path = csv_file("name,due,pos\n" + "x,31.12.2026,top\n" * 1000 + "y,,middle\n")
    code, _, err = cli("import", path, "--board", board.board, "--list", "Done")
    assert code == 2
    due, pos, last = err.splitlines()
    assert due.startswith("boardclient: rows 2, 3, 4, 5, 6 and 995 more, column due: '31.12.2026' and others: is not an ISO 8601")
    assert pos == 'boardclient: row 1002, column pos: \'middle\': is neither "top" nor "bottom"'
    assert last.endswith("the file has 1,001 mistakes; nothing was sent")


def test_only_20_kinds_of_mistakes_are_named(cli, board, csv_file) -> None:
    path = csv_file("name,list\n" + "".join(f"x,nowhere {n}\n" for n in range(30)))
    err = cli("import", path, "--board", board.board).err
    assert len(err.splitlines()) == 22
    assert "and 10 more kinds of mistakes" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.csv", "does not exist"),
        ("folder.csv", "is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(cli, board_service, board, tmp_path: Path, name, words) -> None:
    (tmp_path / "folder.csv").mkdir()
    cli("import", str(tmp_path / name), "--board", board.board).fails(2, name, words)
    assert not board_service.calls


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
    assert (found["audit"]["confirmed"], found["audit"]["recovered"]) == (2, 1)
    lines = [line for line in err.splitlines() if not line.startswith("waiting")]
    assert lines[0].startswith("row 2: failed: ")
    assert lines[1:] == ["boardclient: error: 1 row failed; the same command line sends failed rows again"]
    assert "\x1b" not in err


def test_what_a_command_says_is_not_logged_as_well(cli, board_service: BoardService, board, csv_file, caplog) -> None:
    """A failed row is named once. Logging is afterwards as it was before."""
    before = [*logging.getLogger("boardclient").filters]
    board_service.faults.add(board_service.faults.status(400), "cards.create", call=1)
    assert cli("import", csv_file(THREE), *into(board)).code == 1
    assert caplog.records == []
    assert logging.getLogger("boardclient").filters == before
    assert len(board_service.calls_of("cards.create")) == 3


def test_rows_that_are_not_proven_are_named_with_exit_code_3(cli, board_service: BoardService, board, csv_file) -> None:
    faults = board_service.faults
    faults.add(faults.drop(), "cards.create", call=3)
    code, out, err = cli("import", csv_file(THREE), *into(board), "--concurrency", "1", "--no-probe", "--json")
    assert code == 3
    found = summary(out)
    assert counts(found) == {"created": 2, "already": 0, "failed": 0, "unknown": 1}
    assert [(row["row"], row["state"]) for row in found["rows"]] == [(4, "unknown")]
    assert "\nrow 4: unknown: " in err
    assert "boardclient journal resolve" in err


def test_with_a_probe_the_last_row_is_proven_absent_and_sent_again(cli, board_service: BoardService, board, csv_file) -> None:
    """The same command line settles what it left unknown without it. The temporary card is deleted."""
    board_service.faults.add(board_service.faults.drop(), "cards.create", call=3)
    line = ("import", csv_file(THREE), *into(board), "--concurrency", "1", "--json")
    assert cli(*line, "--no-probe")[0] == 3
    code, out, err = cli(*line)
    assert (code, "unknown" in err) == (0, False)
    assert counts(summary(out)) == {"created": 1, "already": 2, "failed": 0, "unknown": 0}
    assert (len(names(board_service)), "probes" in summary(out)) == (3, False)


def test_a_probe_that_can_t_be_deleted_is_named(cli, board_service: BoardService, board, csv_file) -> None:
    """It is no fault of the rows. The next import with the journal deletes it."""
    faults = board_service.faults
    faults.add(faults.drop(), "cards.create", call=1)
    faults.add(faults.status(403), "cards.delete")
    line = ("import", csv_file("name\nA\n"), *into(board), "--json")
    code, out, err = cli(*line)
    (left,) = [card for card in board_service.rules.cards.values() if card.name != "A"]
    assert (code, summary(out)["probes"]) == (0, [{"id": left.id, "name": left.name}])
    assert f"probe: the temporary card {left.name!r} ({left.id}) is still on the board: delete it by hand" in err
    faults.clear()
    code, out, _ = cli(*line)
    assert (code, names(board_service), "probes" in summary(out)) == (0, ["A"], False)


def test_a_token_that_is_refused_during_an_import_ends_it(cli, board_service: BoardService, board, csv_file) -> None:
    board_service.faults.add(board_service.faults.status(401), "cards.create", call=2)
    path = csv_file(THREE)
    code, out, err = cli("import", path, "--board", board.board, "--list", "Done", "--concurrency", "1", "--json")
    assert code == 4
    found = summary(out)
    assert (found["created"], found["not_reached"] + found["failed"]) == (1, 2)
    assert "obtain a new token" in err


@pytest.mark.full
def test_an_account_that_has_to_sign_in_again_ends_an_import_with_4(cli, board, csv_file, monkeypatch) -> None:
    """The workers of a cluster ask for it. It is not the user of the command, so there is no advice to sign in here."""

    async def enter(run: object) -> None:
        raise ConsentRequired("the account 'bob' has to sign in", account="bob")

    monkeypatch.setattr("boardclient.integrations.dask.DaskRun.__aenter__", enter)
    path = csv_file("name\nA\n")
    code, _, err = cli("import", path, *into(board), "--engine", "dask")
    assert code == 4
    assert err.endswith("error: the account 'bob' has to sign in; then the same command line resumes it\n")


@pytest.mark.parametrize("is_known", [True, False])
def test_rows_of_standard_input_that_may_exist_are_left_to_the_user(
    cli, board_service: BoardService, board, csv_file, monkeypatch, is_known: bool
) -> None:
    """Without a journal the same command line does not know them. With one it looks again."""
    board_service.faults.add(board_service.faults.drop(commit=True), "cards.create")
    board_service.rules.shape = lambda operation, body: [] if operation == "boards.cards" else body
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name\nA\n")))
    line = (csv_file("name\nA\n"), *into(board)) if is_known else ("-", *into(board))
    code, _, err = cli("import", *line, "--settle", "0", "--no-probe")
    assert code == 3
    again = "the same command line looks again, without --no-probe it proves more, boardclient journal resolve"
    assert (
        err.splitlines()[-1].partition("may exist or not; ")[2].startswith(again if is_known else "look at the board, since no")
    )


def test_repeated_references_are_found_before_anything_is_sent(cli, board_service, board, csv_file) -> None:
    path = csv_file("name,reference\nA,r-1\nB,\nC,r-2\nD,r-1\nE,\nF,r-1\n")
    code, _, err = cli("import", path, *into(board))
    assert code == 2
    twice = "the row with the reference 'r-1' comes twice in the input: give each row a reference of its own"
    assert err.startswith(f"boardclient: rows 5, 7: {twice}\n")
    assert not board_service.calls_of("cards.create")
    assert not Path(path + ".journal").exists()


# --- the disk


DISK = """
import resource, sys
from boardclient.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
main(sys.argv[2:])
"""


@pytest.mark.full
@pytest.mark.parametrize("has_journal", [False, True])
@pytest.mark.parametrize(("size", "rows"), [(0, 5), (4096, 5), (4096, 600), (20_000, 5)])
def test_a_full_disk_is_named_before_anything_is_sent(
    cli, board_service: BoardService, board, csv_file, monkeypatch, size: int, rows: int, has_journal: bool
) -> None:
    """The message names a path and says what to do, and the counts are printed."""
    path = csv_file("name\nA\n")
    if has_journal:
        assert cli("import", path, *into(board)).code == 0
    csv_file("name\nA\n" + "".join(f"card {number}\n" for number in range(rows)))
    sent = len(board_service.calls_of("cards.create"))
    line = [sys.executable, "-c", DISK, str(size), "import", path, *into(board), "--json"]
    ended = subprocess.run(line, env={**os.environ, **board_service.environment}, capture_output=True, text=True, check=False)
    assert ended.returncode == (1 if has_journal and size == 20_000 else 2), ended.stderr  # then the run has begun
    assert counts(summary(ended.stdout)) == {"created": 0, "already": 0, "failed": 0, "unknown": 0}
    assert len(board_service.calls_of("cards.create")) == sent
    assert re.search(r"/\S+ (can't|\()|written in /|No usable temporary directory found in \['/", ended.stderr), ended.stderr
    assert re.search(r"free some disk space|check the disk|check its permissions", ended.stderr), ended.stderr
    code, out, _ = cli("import", path, *into(board), "--json")
    assert (code, summary(out)["created"] + summary(out)["already"]) == (0, rows + 1)


@pytest.mark.parametrize("has_journal", [False, True])
@pytest.mark.parametrize("what", ["copy", "folder", "rehearsal", "decision"])
def test_what_can_t_be_written_before_the_import_is_named(
    cli, board, csv_file, monkeypatch, what: str, has_journal: bool
) -> None:
    """The journal, or the folder of temporary files. A preview prints no counts."""
    path = csv_file("name\nA\n")
    if has_journal:
        assert cli("import", path, *into(board)).code == 0
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: object, **__: object) -> None:
        raise full

    @contextlib.contextmanager
    def rehearsed(journal, _):
        if what == "rehearsal":
            raise JournalError(f"{journal} can't grow (full)") from sqlite3.OperationalError("full")
        yield fail

    if what in {"copy", "folder"}:
        monkeypatch.setattr("tempfile.TemporaryFile" if what == "copy" else "tempfile.TemporaryDirectory", fail)
    else:
        monkeypatch.setattr("boardclient.bulk.plan.rehearsed", rehearsed)
    if what == "folder" and has_journal:
        return  # none is needed
    for line in (("--json",), ("--json", "--preview")):
        code, out, err = cli("import", path, *into(board), *line)
        assert (code, bool(out)) == (2, len(line) == 1)
        of_journal = what == "rehearsal" and has_journal
        assert ("journal can't grow (full)" if of_journal else "temporary files can't be written in /") in err
        assert of_journal or "(No space left on device" in err or "(full)" in err


def test_an_error_of_the_system_names_its_file(bare_cli, monkeypatch) -> None:
    """Whatever command meets it."""
    monkeypatch.setattr(
        "boardclient.cli._app.app.main", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "I/O error", "/a/file"))
    )
    assert bare_cli("whoami") == (1, "", "boardclient: error: /a/file: I/O error\n")


def test_a_file_that_can_t_be_read_is_named(cli, board, tmp_path, monkeypatch) -> None:
    """Also if that shows only once it is read."""
    cli("import", "/proc/self/mem", *into(board), "--journal", str(tmp_path / "journal")).fails(
        2, "/proc/self/mem can't be read ("
    )


# --- cards that were there before


def existing(cli, board) -> None:
    for name in ("A", "A", "B"):
        cli("card", "create", name, "--list", board.done)


def test_rows_that_equal_cards_which_were_there_before_are_refused(cli, board_service, board, csv_file) -> None:
    existing(cli, board)
    path = csv_file("name\nA\nA\nA\nB \nC\n")
    code, out, err = cli("import", path, *into(board))
    assert (code, out) == (2, "")
    assert "error: 4 rows of 6" not in err
    assert "error: 3 rows of 5 equal cards that are on the board already; nothing was sent" in err
    assert err.startswith("boardclient: row 2: equals the card 'A' (")
    assert names(board_service) == ["A", "A", "B"]
    assert not Path(path + ".journal").exists()


def test_a_card_stands_for_one_row_whatever_the_rows_say(cli, board, csv_file) -> None:
    """The card equals both rows: one says nothing of the description."""
    cli("card", "create", "A", "--list", board.done, "--desc", "text")
    err = cli("import", csv_file("name,desc\nA,text\nA,\n"), *into(board)).err
    assert "1 row of 2 equal cards" in err


def test_a_row_with_a_date_is_not_left_out_for_a_card_without_one(cli, board_service, board, csv_file) -> None:
    """No card of the board shows a date: the board may leave it out, or the card may be another's."""
    existing(cli, board)
    path = csv_file("name,due\nA,2030-01-01\nC,\n")
    cli("import", path, *into(board), "--existing", "skip").fails(
        2, "1 row equal cards but for a description or a date, which no card on the board shows"
    )
    assert names(board_service) == ["A", "A", "B"]
    cli("card", "create", "D", "--list", board.done, "--due", "2031-01-01")
    assert cli("import", path, *into(board), "--existing", "skip").code == 0
    assert names(board_service) == ["A", "A", "A", "B", "C", "D"]


def test_rows_that_equal_cards_are_left_out_if_asked_for(cli, board_service, board, csv_file) -> None:
    """Each card stands for one row. A later run knows it, and takes rows that were added."""
    existing(cli, board)
    text = "name\nA\nA\nA\nB \nC\n"
    line = ("import", csv_file(text), *into(board), "--existing", "skip", "--json")
    assert json.loads(cli(*line, "--preview").out) == {
        "preview": True,
        "would_create": 2,
        "already": 3,
        "failed": 0,
        "unknown": 0,
    }
    code, out, err = cli(*line)
    assert code == 0, err
    assert counts(summary(out)) == {"created": 2, "already": 3, "failed": 0, "unknown": 0}
    assert names(board_service) == ["A", "A", "A", "B", "C"]
    csv_file(text + "D\nB\n")
    code, out, _ = cli(*line)
    assert counts(summary(out)) == {"created": 2, "already": 5, "failed": 0, "unknown": 0}
    assert code == 0


def test_a_lost_response_is_found_beside_rows_that_are_left_out(cli, board_service, board, csv_file) -> None:
    """The cards that were there before are known, those of the rows that are left out included."""
    existing(cli, board)
    board_service.faults.add(board_service.faults.drop(commit=True), "cards.create", call=5)
    path = csv_file("name\nA\nC\nD\n")
    code, out, _ = cli("import", path, *into(board), "--existing", "skip", "--concurrency", "1", "--json")
    assert (code, counts(summary(out))) == (0, {"created": 2, "already": 1, "failed": 0, "unknown": 0})
    assert names(board_service) == ["A", "A", "B", "C", "D"]


@pytest.mark.parametrize("first", ["refuse", "skip"])
def test_a_journal_none_of_whose_rows_was_sent_is_new(cli, board_service: BoardService, board, csv_file, first: str) -> None:
    """A first run has ended before its first row. Rows that it has left out are its own."""
    path = csv_file("name\nA\nB\nC\n")
    if first == "skip":
        cli("card", "create", "A", "--list", board.done)
    read_before = len(board_service.calls_of("boards.cards"))
    board_service.faults.add(board_service.faults.status(401), "boards.cards", call=read_before + 2)
    assert cli("import", path, *into(board), "--existing", first).code == 4
    assert Path(path + ".journal").exists()
    cli("card", "create", "B", "--list", board.done)
    code, _, err = cli("import", path, *into(board))
    assert (code, "1 row of 3 equal cards that are on the board already" in err) == (2, True)
    code, out, _ = cli("import", path, *into(board), "--existing", "skip", "--json")
    left_out = 2 if first == "skip" else 1
    assert (code, counts(summary(out))) == (0, {"created": 3 - left_out, "already": left_out, "failed": 0, "unknown": 0})
    assert names(board_service) == ["A", "B", "C"]
    assert cli("import", path, *into(board)).code == 0


def test_leaving_rows_out_needs_a_journal(cli, board, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name\nA\n")))
    cli("import", "-", *into(board), "--existing", "skip").fails(2, "give --journal")


def test_rows_in_doubt_come_before_those_that_are_left_out(cli, board_service: BoardService, board, csv_file) -> None:
    """A card that equals a new row may be the lost one of another row."""
    board_service.faults.add(Renamed(board_service), "cards.create", call=2)
    assert cli("import", csv_file("name\nA\nB\n"), *into(board), "--concurrency", "1").code == 3
    path = csv_file("name\nA\nB\nB!\n")
    cli("import", path, *into(board), "--existing", "skip").fails(
        2, f"resolve them first: boardclient journal resolve {path}.journal"
    )
    assert cli("journal", "resolve", f"{path}.journal", "--accept").code == 0
    assert cli("import", path, *into(board)).code == 0
    assert names(board_service) == ["A", "B!", "B!"]


# --- options of the run


def test_a_marker_is_in_each_description(cli, board_service: BoardService, board, csv_file) -> None:
    assert cli("import", csv_file("name,desc\nA,text\n"), *into(board), "--marker").code == 0
    (card,) = board_service.rules.cards.values()
    assert "text" in card.desc
    assert card.desc != "text"


def test_a_rate_is_kept(cli, board_service: BoardService, board, csv_file) -> None:
    """Twenty requests at 100 per second take a fifth of a second at least."""
    found = summary(cli("import", csv_file("name\n" + "x\n" * 20), *into(board), "--rate", "100", "--json").out)
    assert found["created"] == 20
    assert found["seconds"] >= 0.19


# --- what spreadsheets write


def cards(service: BoardService) -> list[tuple[str, str, str | None]]:
    return [(card.name, card.desc, card.due) for card in service.rules.cards.values()]


EXCEL = "Titel;Notiz;Frist;\r\nZürich 5 €;a\nb;31.12.2026;\r\n;;;\r\n"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (EXCEL.encode("utf-8-sig"), "cells separated by semicolons"),
        (EXCEL.replace(";", "\t").encode("utf-16"), "UTF-16, cells separated by tabs"),
        (EXCEL.replace(";", "|").encode(), "cells separated by bars"),
        (EXCEL.replace("\r\n", "\r").replace("a\nb", '"a\nb"').encode(), "cells separated by semicolons"),
    ],
)
def test_what_excel_writes_is_recognised_and_said_in_one_line(
    cli, board_service, board, tmp_path, raw: bytes, words: str
) -> None:
    path = tmp_path / "cards.csv"
    path.write_bytes(raw.replace(b"a\nb", b'"a\nb"') if b'"' not in raw and b"a\nb" in raw else raw)
    if b"a\x00\n" in raw:
        path.write_bytes(raw.replace("a\nb".encode("utf-16-le"), '"a\nb"'.encode("utf-16-le")))
    options = ["--map", "name=Titel", "--map", "desc=Notiz", "--map", "due=Frist", "--date-format", "%d.%m.%Y"]
    code, _, err = cli("import", str(path), *into(board), *options, "--timezone", "Europe/Berlin")
    assert (code, err) == (0, f"the file is read as {words}\n")
    assert cards(board_service) == [("Zürich 5 €", "a\nb", "2026-12-30T23:00:00Z")]


def test_all_columns_that_are_no_use_can_be_ignored_at_once(cli, board_service: BoardService, board, csv_file) -> None:
    text = "Titel,desc,Notiz,Notiz,,board,Due\nA,x,y,z,-,Other,2027-01-01\n"
    options = ["--map", "name=Titel", "--map", "desc=Notiz 2", "--skip", "*", "--timezone", "UTC"]
    path = csv_file(text.replace("Notiz,Notiz", "Notiz,Notiz 2"))
    assert cli("import", path, *into(board), *options).code == 0
    assert cards(board_service) == [("A", "z", "2027-01-01T00:00:00Z")]


def test_one_line_says_how_to_read_a_file_without_a_column_name(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("Mein Titel;Notiz;Frist\nA;b;c\n")
    code, _, err = cli("import", path, *into(board))
    assert code == 2
    _, line, _ = err.splitlines()
    assert line.endswith(
        "row 1: there is no column name, only 'Mein Titel', 'Notiz', 'Frist'; give for example --map 'name=Mein Titel' --skip '*'"
    )
    assert cli("import", path, *into(board), *shlex.split(line.partition("example ")[2])).code == 0
    assert cards(board_service) == [("A", "", None)]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_match_in_any_unicode_form(cli, board_service: BoardService, csv_file, form: str) -> None:
    """MacOS writes an accent as a character of its own, other systems do not."""
    name, other = unicodedata.normalize(form, "Größe"), unicodedata.normalize("NFD" if form == "NFC" else "NFC", "Größe")
    cli("board", "create", name)
    (board_id,) = board_service.rules.boards
    cli("list", "create", name, "--board", other)
    path = csv_file(f"{name},list\nA,{other}\n")
    assert cli("import", path, "--board", other, "--map", f"name={other}", *SETTLE) == (0, ANY, "")
    assert cli("card", "create", "B", "--board", other, "--list", other).code == 0
    assert [card.name for card in board_service.rules.cards_of(board_id)] == ["A", "B"]
    assert "did you mean" in cli("card", "create", "C", "--board", other, "--list", other.upper()).err
    cli("list", "create", other, "--board", name)
    assert "is the name of 2 lists" in cli("card", "create", "C", "--board", name, "--list", name).err


@pytest.mark.parametrize("option", ["--skip=Notiz", "--map=desc=Notiz"])
@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [("c.csv", "name;Notizen\nA;x\n", "1"), ("c.jsonl", '{"name": "A"}\n{"name": "B", "Notizen": "x"}\n', "1")],
)
def test_a_column_that_the_file_lacks_is_refused(cli, board_service, board, csv_file, option: str, name, text, rows) -> None:
    code, _, err = cli("import", csv_file(text, name), *into(board), "--skip", "Notizen", option)
    assert code == 2
    has = "'name', 'Notizen'; did you mean 'Notizen'?" if name == "c.csv" else "'name'"
    assert f"row {rows}: the file has no column 'Notiz' to map or skip, only {has}" in err
    assert not board_service.calls_of("cards.create")


def test_a_date_of_another_form_is_named(cli, board, csv_file) -> None:
    """So is a date that no calendar has."""
    for text in ("2027-01-01", "31.02.2027"):
        cli("import", csv_file(f"name,due\nA,{text}\n"), *into(board), "--date-format", "%d.%m.%Y").fails(
            2, f"column due: '{text}': is not a date of the form %d.%m.%Y"
        )


def test_fields_of_json_lines_can_be_renamed_as_well(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file('{"title": "Ask", "notes": "x", "due": "2027-07-01T09:00"}\n', "cards.jsonl")
    options = ["--map", "name=title", "--skip", "notes", "--timezone", "America/New_York"]
    assert cli("import", path, *into(board), *options).code == 0
    assert cards(board_service) == [("Ask", "", "2027-07-01T13:00:00Z")]


def test_the_offset_of_a_date_wins_over_the_zone(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name,due\nA,2027-07-01T09:00+01:00\nB,2027-07-01T09:00\n")
    assert cli("import", path, *into(board), "--timezone", "Asia/Tokyo", "--concurrency", "1").code == 0
    assert [due for _, _, due in cards(board_service)] == ["2027-07-01T08:00:00Z", "2027-07-01T00:00:00Z"]


@pytest.mark.parametrize(
    "options",
    [
        ["--timezone", "Atlantis/Capital"],
        ["--timezone", "../etc"],
        ["--timezone", "Europe"],
        ["--map", "title=Title"],
        ["--map", "name"],
        ["--map", "name="],
        ["--concurrency", "0"],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--rate", "inf"],
        ["--settle", "nan"],
        ["--settle", "inf"],
        ["--workers", "2"],
        ["--rate", "5", "--engine", "dask"],
        ["--board", ""],
    ],
)
def test_options_that_can_t_be_understood_are_bad_usage(cli, board_service: BoardService, board, csv_file, options) -> None:
    cli("import", csv_file("name\nA\n"), *into(board), *options).fails(2, options[0])
    assert not board_service.calls


class Misleading:
    """A fault of `cards.create`: a service or a colleague that does something else than the response says."""

    def __init__(self, service: BoardService, kind: str) -> None:
        self.service, self.kind, self.first = service, kind, ""

    async def play(self, stage) -> None:
        rules, body = self.service.rules, self.service.calls[-1].body
        answer = stage.commit()
        if self.kind == "lost" and len(rules.cards) == 3:
            del rules.cards[next(iter(rules.cards))]
        if self.kind == "hidden" and len(rules.cards) == 3:
            self.service.faults.add(self.service.faults.foreign_body(b"[]"), "boards.cards")
        if self.kind == "resembling" and len(rules.cards) == 2:
            rules.cards[list(rules.cards)[-1]].name = f"{body['name']}!"
            return stage.abort()
        if self.kind == "unread" and len(rules.cards) == 3:
            self.service.faults.add(self.service.faults.status(401), "boards.cards")  # waiting would not help
        content, headers = stage.encode(answer)
        return await stage.reply(answer.status, content, headers)


@pytest.mark.parametrize(
    ("kind", "code", "line", "message"),
    [
        ("lost", 1, " of row 2 was deleted\n", "some rows have no card any more, or more than one"),
        ("hidden", 3, "hidden: 3 of the confirmed cards are not listed", "the board does not list every card"),
        ("resembling", 3, "resembling: 'B!' (", "1 row may exist or not"),
        ("unread", 3, "the board could not be read at the end: ", "the board could not be read at the end"),
    ],
)
def test_what_the_board_shows_at_the_end_is_said_and_decides(
    cli, board_service: BoardService, board, csv_file, kind: str, code: int, line: str, message: str
) -> None:
    board_service.faults.add(Misleading(board_service, kind), "cards.create")
    result = cli("import", csv_file("name\nA\nB\nC\n"), *into(board), "--concurrency", "1", "--json")
    assert result.code == code, result.err
    assert line in result.err
    assert message in result.err.splitlines()[-1]
    assert ("audit_error" in summary(result.out)) is (kind == "unread")


@pytest.mark.parametrize(
    ("operation", "status"), [("boards.lists", 503), ("cards.create", 429), ("cards.create", 503), (None, 0)]
)
def test_the_result_says_when_the_service_accepts_requests_again(
    cli, board_service: BoardService, board, csv_file, operation: str | None, status: int
) -> None:
    """However the import ended, and also for rows that may exist."""
    if operation is not None:
        board_service.faults.add(board_service.faults.status(status, {"Retry-After": "3600"}), operation)
    result = cli("--timeout", "2", "import", csv_file("name\nA\n"), *into(board), "--settle", "0", "--json")
    retry_at = summary(result.out).get("retry_at")
    assert (result.code == 0) is (retry_at is None) is (operation is None)
    if retry_at is not None:
        assert 3500 < (datetime.fromisoformat(retry_at) - datetime.now(UTC)).total_seconds() <= 3600


def test_a_card_that_people_have_deleted_is_named_until_its_row_is_taken_out(cli, board_service, board, csv_file) -> None:
    assert cli("import", csv_file("name,reference\nA,a\nB,b\n"), *into(board)).code == 0
    gone = next(iter(board_service.rules.cards))
    del board_service.rules.cards[gone]
    code, _, err = cli("import", csv_file("name,reference\nA,a\nB,b\nC,c\n"), *into(board))
    assert code == 1
    assert err.startswith(f"lost: the card {gone} of reference 'a' was deleted\n")
    assert cli("import", csv_file("name,reference\nB,b\nC,c\n"), *into(board))[::2] == (0, "")


def test_lists_of_cards_are_cut_at_20(cli, board_service: BoardService, board, csv_file) -> None:
    def repeat() -> None:
        board_service.rules.answer("POST", "/1/cards", {}, board_service.calls[-1].body)

    board_service.faults.add(Meanwhile(repeat), "cards.create")
    code, _, err = cli("import", csv_file("name\n" + "".join(f"card {n}\n" for n in range(25))), *into(board))
    assert code == 1
    assert err.count("duplicated: ") == 21
    assert "duplicated: and 5 more\n" in err


def test_errors_of_rows_are_in_the_words_of_the_command_line(cli, board_service: BoardService, board, csv_file) -> None:
    """They name its options, and not the parameters of functions."""
    board_service.faults.add(board_service.faults.status(500), "cards.create")
    code, out, err = cli("import", csv_file("name\nA\n"), *into(board), "--json")
    assert code == 3
    for text in (summary(out)["rows"][0]["error"], err):
        assert "the service failed; whether the card exists is not known: the board does not list it" in text
