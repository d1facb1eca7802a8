"""The same command line resumes an import that was ended; its journal is read before anything is sent."""

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fault_helpers import Meanwhile
from import_helpers import Held, counts, into, names, summary

from boardclient.bulk._journal._file import JournalFile
from boardclient.bulk.journal import read_journal, rehearsed
from boardclient.cli._commands._import_options import RESULT
from boardclient.testing import BoardService

NINE = "name,reference\n" + "".join(f"card {n},r-{n}\n" for n in range(1, 10))
ALL_NINE = [f"card {n}" for n in range(1, 10)]


def journal_of(path: str) -> Path:
    return Path(f"{path}.journal")


def test_the_same_command_sends_nothing_once_all_rows_are_done(cli, board_service: BoardService, board, csv_file) -> None:
    line = ("import", csv_file(NINE), *into(board))
    assert cli(*line).code == 0
    code, out, err = cli(*line)
    assert (code, err) == (0, "")
    assert out.startswith("created 0, already 9, failed 0, unknown 0 in ")
    assert names(board_service) == ALL_NINE


def test_the_journal_is_written_where_the_option_says(cli, board, csv_file, tmp_path: Path) -> None:
    path = csv_file(NINE)
    assert cli("import", path, *into(board), "--journal", str(tmp_path / "other")).code == 0
    assert read_journal(tmp_path / "other").counts["done"] == 9
    assert not journal_of(path).exists()


def test_rows_that_have_moved_are_not_left_out_before_a_run_has_come_to_them(
    cli, board_service: BoardService, board, csv_file
) -> None:
    """The first row failed, and became equal to the second and to a card that a person has made since."""
    board_service.faults.add(board_service.faults.status(400), "cards.create", call=1)
    path = csv_file("name\nfails\ncard\n")
    assert cli("import", path, *into(board), "--concurrency", "1").code == 1
    cli("card", "create", "card", "--list", board.done)
    csv_file("name\ncard\ncard\n")
    cli("import", path, *into(board), "--existing", "skip").fails(
        2, "rows have moved since the last run: run it once without leaving any out"
    )
    assert names(board_service) == ["card"] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_after_a_signal_requests_finish_and_the_same_command_does_the_rest(
    cli, board_service: BoardService, board, csv_file, signals_on, stop_requested, number: signal.Signals, code: int
) -> None:
    board_service.faults.add(Held(stop_requested), "cards.create", call=range(3, 100))
    signals_on("cards.create", 4, number)
    line = ("import", csv_file(NINE), *into(board), "--concurrency", "2", "--json")
    result = cli(*line)
    assert result.code == code
    assert result.err == f"boardclient: ended by {number.name}; the same command line resumes it\n"
    found = summary(result.out)
    assert counts(found) == {"created": 4, "already": 0, "failed": 0, "unknown": 0}
    assert (found["not_reached"], found["rows"]) == (5, [])
    assert names(board_service) == ALL_NINE[:4]

    board_service.faults.clear()
    code, out, err = cli(*line)
    assert (code, err) == (0, "")
    assert counts(summary(out)) == {"created": 5, "already": 4, "failed": 0, "unknown": 0}
    assert names(board_service) == ALL_NINE


def test_a_second_signal_stops_at_once_and_the_same_command_finds_what_was_done(
    cli, board_service: BoardService, board, csv_file, signals_on
) -> None:
    faults = board_service.faults
    faults.add(faults.hang(commit=True), "cards.create", call=[3])
    faults.add(faults.hang(), "cards.create", call=range(4, 100))
    signals_on("cards.create", 4, signal.SIGINT, signal.SIGINT)
    line = ("import", csv_file(NINE), *into(board), "--concurrency", "2", "--json")
    result = cli(*line)
    assert result.code == 130
    found = summary(result.out)
    assert counts(found) == {"created": 2, "already": 0, "failed": 0, "unknown": 2}
    assert found["not_reached"] == 5
    *lines, last = result.err.splitlines()
    assert len([line for line in lines if ": unknown: POST /1/cards: the run ended before the response came" in line]) == 2
    assert last == "boardclient: ended by SIGINT; the same command line resumes it"

    faults.clear()
    code, out, _ = cli(*line)
    assert code == 0
    assert counts(summary(out)) == {"created": 6, "already": 3, "failed": 0, "unknown": 0}
    assert names(board_service) == ALL_NINE


def test_rows_that_were_logged_and_not_reached_are_not_unknown(cli, board_service, board, csv_file, signals_on) -> None:
    board_service.faults.add(board_service.faults.hang(), "cards.create")
    signals_on("cards.create", 1, signal.SIGTERM, signal.SIGINT)
    code, out, err = cli("import", csv_file(NINE), *into(board), "--concurrency", "1")
    assert code == 143
    assert out.startswith("created 0, failed 0, unknown 1, not reached 8 in ")
    named, ended = err.splitlines()
    assert named.startswith("row 2 (reference 'r-1'): unknown: POST /1/cards: the run ended before the response came; ")
    assert ended == "boardclient: ended by SIGTERM; the same command line resumes it"


def test_without_a_journal_rows_in_flight_are_named_too(cli, board_service, board, signals_on, monkeypatch) -> None:
    board_service.faults.add(board_service.faults.hang(), "cards.create")
    signals_on("cards.create", 2, signal.SIGINT, signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NINE.encode())))
    code, out, err = cli("import", "-", *into(board), "--concurrency", "2")
    assert code == 130
    assert out.startswith("created 0, failed 0, unknown 2, not reached 7 in ")
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "row 2 (reference 'r-1')",
        "row 3 (reference 'r-2')",
        "boardclient",
    ]
    assert err.endswith("ended by SIGINT; without a journal it can't be resumed\n")


def test_a_signal_before_anything_is_sent_ends_it_at_once(cli, board_service: BoardService, board, csv_file, signals_on) -> None:
    """The cards that are on the board before are read first."""
    board_service.faults.add(board_service.faults.hang(), "boards.cards", call=[2])
    signals_on("boards.cards", 2, signal.SIGTERM)
    line = ("import", csv_file(NINE), *into(board))
    code, out, err = cli(*line)
    assert code == 143
    assert out.startswith("created 0, failed 0, unknown 0, not reached 9 in ")
    assert err == "boardclient: ended by SIGTERM; the same command line resumes it\n"
    board_service.faults.clear()
    assert cli(*line).code == 0
    assert names(board_service) == ALL_NINE


def started(service: BoardService, argv: tuple[str, ...]) -> subprocess.Popen[str]:
    """Call the command line in a process of its own."""
    environment = {
        **os.environ,
        "BOARDCLIENT_BASE_URL": service.base_url,
        "BOARDCLIENT_KEY": service.key,
        "BOARDCLIENT_TOKEN": service.token,
    }
    program = [sys.executable, "-c", "import sys; from boardclient.cli import main; sys.exit(main())", *argv]
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_a_journal_that_can_be_resumed(cli, board_service: BoardService, board, csv_file) -> None:
    board_service.faults.add(board_service.faults.hang(commit=True), "cards.create", call=range(3, 100))
    line = ("import", csv_file(NINE), *into(board), "--concurrency", "2", "--json")
    with started(board_service, line) as process:
        asyncio.run(board_service.received("cards.create", 4))
        process.kill()
    board_service.faults.clear()
    code, out, _ = cli(*line)
    assert code == 0
    found = counts(summary(out))
    assert (found["created"] + found["already"], found["failed"], found["unknown"]) == (9, 0, 0)
    assert names(board_service) == ALL_NINE


# --- what the journal says before anything is sent


def test_an_import_whose_journal_is_gone_says_so(cli, board_service: BoardService, board, csv_file) -> None:
    """A person who cleaned up the folder may not have meant that."""
    path = csv_file("name,list\nA,To Do\n")
    assert cli("import", path, *into(board)).err == ""
    journal_of(path).unlink()
    cli("import", path, *into(board)).fails(2, "equal cards that are on the board already")
    cli("import", path, *into(board), "--existing", "skip").fails(2, f"{journal_of(path)} is gone, though a run has used it")
    assert names(board_service) == ["A"]


def test_a_dry_run_sends_nothing_and_makes_no_journal(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file(NINE)
    out = "preview\ttrue\nwould_create\t9\nalready\t0\nfailed\t0\nunknown\t0\n"
    out += "".join(f"{number}\tcard {number - 1}\tDone\t\t\n" for number in range(2, 7))  # the first rows as they would be sent
    assert cli("import", path, *into(board), "--preview") == (0, out, "")
    assert {call.operation for call in board_service.calls} == {"boards.lists", "boards.cards"}
    assert [item.name for item in Path(path).parent.iterdir()] == ["cards.csv"]
    cli("import", csv_file("name,due\nA,soon\n"), *into(board), "--preview").fails(2, "row 2, column due")


def test_a_dry_run_shows_the_first_rows_on_a_terminal(on_a_terminal, board, csv_file) -> None:
    """A wrong encoding, list or order of day and month is seen before anything is sent."""
    rows = "".join(f"Käse {n};0{n}.02.2027;text {n}\n" for n in range(1, 8))
    path = csv_file("")
    Path(path).write_bytes(f"name;due;desc\n{rows}".encode("cp1252"))
    reading = ("--date-format", "%m.%d.%Y", "--timezone", "UTC", "--encoding", "cp1252")
    head, *sample = on_a_terminal("import", path, *into(board), "--preview", *reading).splitlines()[6:]
    assert head.split() == ["row", "name", "list", "due", "desc"]
    assert [line.split("  ")[:1] for line in sample] == [[str(number)] for number in range(2, 7)]
    assert sample[0].split() == ["2", "Käse", "1", "Done", "2027-01-02T00:00:00+00:00", "'text", "1'"]


def test_a_dry_run_prints_what_the_journal_holds_and_leaves_it_alone(cli, board_service: BoardService, board, csv_file) -> None:
    faults = board_service.faults
    faults.add(faults.status(400), "cards.create", call=range(1, 3))
    faults.add(faults.drop(), "cards.create", call=[6])
    faults.add(faults.status(403), "cards.create", call=[4])
    path = csv_file("name,reference\n" + "".join(f"card {n},r-{n}\n" for n in range(1, 7)))
    assert cli("import", path, *into(board), "--concurrency", "1", "--no-probe").code == 1
    csv_file(NINE.replace("card 2,", "card 2 mended,"))  # what was refused for good is sent again with other content
    journal = journal_of(path)
    before, calls = journal.read_bytes(), len(board_service.calls_of("cards.create"))
    assert summary(cli("import", path, *into(board), "--preview", "--json=would_create").out) == {"would_create": 6}
    found = summary(cli("import", path, *into(board), "--preview", "--json").out)
    assert found == {"preview": True, "would_create": 6, "already": 2, "failed": 3, "unknown": 1}
    assert journal.read_bytes() == before
    assert len(board_service.calls_of("cards.create")) == calls


@pytest.mark.parametrize("extra", [(), ("--preview",)])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("content", "row 3: was sent by an earlier run with another name: "),
        ("board", "belongs to another import: board {board!r} (now {other!r})"),
        ("in use", "is in use by another run"),
        ("file", "cards.csv.journal is not a journal of boardclient"),
    ],
)
def test_a_journal_that_can_t_be_used_is_refused_on_one_line(
    cli, board_service: BoardService, board, csv_file, wrong: str, words: str, extra: tuple[str, ...]
) -> None:
    path = csv_file("name\nA\nB\n")
    assert cli("import", path, *into(board)).code == 0
    cli("board", "create", "Other", "--default-lists")
    other = list(board_service.rules.boards)[-1]
    if wrong == "content":
        csv_file("name\nA\nB mended\nC\n")
    if wrong == "file":
        journal_of(path).write_bytes(b"nonsense " * 1000)
    use = rehearsed(journal_of(path), read_journal(journal_of(path)).identity) if wrong == "in use" else contextlib.nullcontext()
    target = ("--board", other, "--list", "Done") if wrong == "board" else into(board)
    with use:
        code, out, err = cli("import", path, *target, "--existing", "create", *extra)
    assert (code, out, err.count("\n")) == (2, "", 1 + (wrong == "content"))
    assert words.format(board=board.board, other=other) in err
    assert names(board_service) == ["A", "B"]


def test_of_two_imports_that_begin_at_once_one_is_told_of_the_other(cli, board_service: BoardService, board, csv_file) -> None:
    """The journal of the other appears while this one reads the board. It blames no disk."""
    path, other = csv_file("name\nA\n"), contextlib.ExitStack()

    def begin() -> None:
        other.enter_context(contextlib.closing(JournalFile.open(journal_of(path), {"service": "the other"})))

    board_service.faults.add(Meanwhile(begin), "boards.cards", call=1)
    with other:
        code, _, err = cli("import", path, *into(board))
    assert (code, names(board_service)) == (2, [])
    assert "is in use by another run: wait for its end" in err


def test_a_journal_that_can_t_be_made_is_refused(cli, board_service: BoardService, board, csv_file, tmp_path: Path) -> None:
    code, _, err = cli("import", csv_file(NINE), *into(board), "--journal", str(tmp_path / "no" / "journal"))
    assert (code, names(board_service)) == (2, [])
    assert "create it, or check the path" in err


def test_a_journal_that_fails_during_the_run_ends_it(cli, board_service: BoardService, board, csv_file) -> None:
    many = [f"card {n}" for n in range(1, 201)]  # more than are logged together
    path = csv_file("name\n" + "".join(f"{name}\n" for name in many))
    away = Path(f"{path}.away")
    board_service.faults.add(Meanwhile(lambda: journal_of(path).rename(away)), "cards.create", call=2)
    line = ("import", path, *into(board), "--concurrency", "1", "--json")
    code, out, err = cli(*line)
    assert code == 1
    assert "was moved, removed or replaced while a run was using it" in err
    found = summary(out)
    assert (found["failed"], found["unknown"], found["created"] + found["not_reached"]) == (0, 0, len(many))
    assert found["not_reached"] > 0
    away.rename(journal_of(path))
    assert cli(*line).code == 0
    assert names(board_service) == sorted(many)


# --- every night


def test_another_file_of_the_same_name_gets_a_journal_of_its_own(cli, board_service: BoardService, board, csv_file) -> None:
    """Where nothing of the one before is left to do. The same command line finds it again."""
    line = ("import", path := csv_file("name\nA1\nA2\n"), *into(board), "--json")
    assert cli(*line).code == 0
    csv_file("name\nB1\nB2\nB3\n")
    code, out, err = cli(*line)
    assert (code, counts(summary(out))["created"]) == (0, 3)
    own = re.fullmatch(
        rf"{re.escape(path)}.journal is of another file: the journal of this one is ({re.escape(path)}.\w+.journal)\n", err
    )
    assert own is not None, err
    assert Path(own[1]).exists()
    assert counts(summary(cli(*line).out)) == {"created": 0, "already": 3, "failed": 0, "unknown": 0}
    csv_file("name\nA1\nA2\n")
    assert counts(summary(cli(*line).out)) == {"created": 0, "already": 2, "failed": 0, "unknown": 0}
    assert names(board_service) == ["A1", "A2", "B1", "B2", "B3"]


def test_another_file_waits_until_the_one_before_is_done(cli, board_service: BoardService, board, csv_file) -> None:
    """Otherwise its journal would be forgotten. With `--journal` it is the user who decides."""
    of_another = "this journal is of another file: give each run a journal of its own (--journal)"
    path = csv_file("name\nA1\nA2\n")
    board_service.faults.add(board_service.faults.status(400), "cards.create", call=2)
    assert cli("import", path, *into(board), "--concurrency", "1").code == 1
    csv_file("name\nB1\nB2\n")
    cli("import", path, *into(board)).fails(2, f"{path}.journal: {of_another}; 1 row of that one must be resolved first")
    cli("import", path, *into(board), "--journal", f"{path}.journal").fails(2, f"{path}.journal: {of_another}; nothing was sent")
    assert cli("import", path, *into(board), "--journal", f"{path}.b").code == 0
    csv_file("name\nA1\nA2 mended\n")
    assert cli("import", path, *into(board)).code == 0
    assert names(board_service) == ["A1", "A2 mended", "B1", "B2"]


def test_a_file_of_which_rows_are_the_same_is_no_other_file(cli, board_service: BoardService, board, csv_file) -> None:
    """A row was changed, which is refused, or the file begins as another one."""
    path = csv_file("name\nA1\nA2\n")
    assert cli("import", path, *into(board)).code == 0
    csv_file("name\nA1\nB2\n")
    words = (
        "nothing was sent (if it is another file than before: this journal is of another file: give each run a journal of its own"
    )
    cli("import", path, *into(board)).fails(2, "row 3: was sent by an earlier run with another name", words)
    assert names(board_service) == ["A1", "A2"]


def test_an_import_waits_no_longer_than_its_patience(cli, board_service: BoardService, board, csv_file) -> None:
    """In an outage it ends, and the same command line resumes it."""
    path = csv_file("name\n" + "".join(f"card {n}\n" for n in range(9)))
    board_service.faults.add(board_service.faults.status(503), "cards.create", call=range(2, 100))
    line = ("import", path, *into(board), "--concurrency", "1", "--json")
    code, out, err = cli(*line, "--patience", "0")
    assert (code, summary(out)["created"]) == (1, 1)
    assert err.endswith("for longer than --patience; the same command line resumes it\n")
    board_service.faults.clear()
    assert cli(*line).code == 0
    assert len(names(board_service)) == 9


def test_patience_is_not_for_rows_that_settle(cli, board_service: BoardService, board, csv_file) -> None:
    """The import waits as long as `--settle` says for the board to show a card whose response was lost."""
    board_service.faults.add(board_service.faults.drop(commit=True), "cards.create", call=2)
    line = ("import", csv_file("name\nA\nB\n"), *into(board), "--concurrency", "1", "--settle", "0.1")
    assert cli(*line, "--patience", "0").code == 0
    assert names(board_service) == ["A", "B"]


def test_an_import_whose_row_numbers_can_t_be_kept_says_so(cli, board_service, board, csv_file, tmp_path: Path) -> None:
    path = csv_file("name\nA\n")
    (tmp_path / "cards.csv.journal-rows").mkdir()
    code, _, err = cli("import", path, *into(board))
    assert (code, "the numbers of rows can't be kept beside the journal" in err) == (0, True)


def test_fields_of_the_result_are_those_of_the_page(cli, board, csv_file) -> None:
    """Each can be asked for, and each that a result has is on the page."""
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    fields = [name for name, _ in rows if name in RESULT]
    assert [row for row in rows if row[0] in RESULT] == list(RESULT.items())
    path = csv_file("name\nA\n")
    assert set(summary(cli("import", path, *into(board), "--json").out)) <= set(fields)
    for name in fields:
        assert list(summary(cli("import", path, *into(board), f"--json={name}").out)) == [name]
