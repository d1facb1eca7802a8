"""Undoing an import, and settling its unknown rows by hand."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from fault_helpers import Meanwhile
from import_helpers import Renamed, counts, into, names, summary
from waiting import wait_until

from boardclient.testing import BoardService

SIX = "name,desc,due,reference\n" + "".join(f"card {n},text {n},2027-01-0{n},r-{n}\n" for n in range(1, 7))


@pytest.fixture(params=[(), ("--marker",)], ids=["content", "markers"])
def imported(request, cli, board, csv_file) -> tuple[str, ...]:
    """Import six cards, and give the command line."""
    line = ("import", csv_file(SIX), *into(board), *request.param)
    assert cli(*line).code == 0
    return line


def journal_of(line: tuple[str, ...]) -> str:
    return f"{line[1]}.journal"


def undone(*, deleted: int = 0, kept: int = 0, gone: int = 0, failed: int = 0) -> str:
    return f"deleted\t{deleted}\nkept\t{kept}\ngone\t{gone}\nfailed\t{failed}\n"


def change(service: BoardService, board) -> None:
    """Do to cards what people do."""
    by_name = {card.name: card for card in service.rules.cards.values()}
    by_name["card 1"].name = "card 1, renamed"
    by_name["card 2"].list_id = board.todo
    by_name["card 3"].desc += " and more"
    by_name["card 4"].due = "2028-01-01T00:00:00Z"
    del service.rules.cards[by_name["card 5"].id]


def test_cards_that_changed_since_are_kept_and_named(cli, board_service: BoardService, board, imported) -> None:
    change(board_service, board)
    code, out, err = cli("undo", journal_of(imported), "--yes", "--json")
    assert code == 0
    found = json.loads(out)
    assert {name: found[name] for name in ("deleted", "kept", "gone", "failed")} == {
        "deleted": 1,
        "kept": 4,
        "gone": 1,
        "failed": 0,
    }
    assert [line.partition(") ")[2] for line in err.splitlines()] == [
        "was renamed",
        "was moved",
        "has another description",
        "has another due date",
    ]
    assert [card["why"] for card in found["cards"]] == [line.partition(") ")[2] for line in err.splitlines()]
    assert names(board_service) == ["card 1, renamed", "card 2", "card 3", "card 4"]
    assert cli("undo", journal_of(imported), "--yes").out == undone(kept=4)


DATED = {"one": "name,due\nA,2030-01-01\nB,\n", "two": "name,due\nC,2030-01-01\nD,2030-01-01\n"}


@pytest.mark.parametrize("name", DATED)
def test_cards_whose_dates_were_removed_are_kept_though_no_other_has_one(
    cli, board_service: BoardService, board, csv_file, name: str
) -> None:
    """The run has seen that the service shows dates."""
    line = ("import", csv_file(DATED[name]), *into(board))
    assert cli(*line).code == 0
    for card in board_service.rules.cards.values():
        card.due = None
    assert cli("undo", journal_of(line), "--yes").out == (undone(deleted=1, kept=1) if name == "one" else undone(kept=2))


@pytest.mark.parametrize("name", DATED)
def test_dates_that_the_service_has_never_shown_are_not_compared(cli, board_service, board, csv_file, name: str) -> None:
    """One card is no evidence about itself: it is kept."""
    board_service.rules.shape = lambda _, body: (
        [{**item, "due": None} for item in body] if isinstance(body, list) else {**body, "due": None}
    )
    line = ("import", csv_file(DATED[name]), *into(board))
    assert cli(*line).code == 0
    assert cli("undo", journal_of(line), "--yes").out == (undone(deleted=1, kept=1) if name == "one" else undone(deleted=2))


def test_cards_that_were_there_before_the_import_are_kept_and_named(cli, board_service: BoardService, board, csv_file) -> None:
    """Also the card of a row that an earlier run of the import could not create."""
    for name in ("precious", "late"):
        cli("card", "create", name, "--list", board.done)
    path = csv_file("name\nprecious\nnew\n")
    assert cli("import", path, *into(board), "--existing", "skip").code == 0
    board_service.faults.add(
        board_service.faults.status(400), "cards.create", call=len(board_service.calls_of("cards.create")) + 1
    )
    csv_file("name\nprecious\nnew\nlate!\n")
    assert cli("import", path, *into(board)).code == 1
    csv_file("name\nprecious\nnew\nlate\n")
    assert cli("import", path, *into(board), "--existing", "skip").code == 0
    code, out, err = cli("undo", f"{path}.journal", "--yes")
    assert (code, out) == (0, undone(deleted=1, kept=2))
    assert [line.partition(") ")[2] for line in err.splitlines()] == ["was there before"] * 2
    assert names(board_service) == ["late", "precious"]
    assert cli("undo", f"{path}.journal", "--yes").out == undone(kept=2)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_card_that_was_there_before_is_never_deleted(cli, board_service, board, csv_file, is_named: bool) -> None:
    """A response may name it, as that of a service that takes a row for a repetition, or a person may settle a row with it."""
    cli("card", "create", "A", "--list", board.done)
    (older,) = board_service.rules.cards
    body = json.dumps({"id": older, "name": "A"}).encode()
    faults = board_service.faults
    faults.add(faults.foreign_body(body) if is_named else faults.drop(), "cards.create", call=2)
    path = csv_file("name\nA\n")
    code = cli("import", path, *into(board), "--existing", "create", "--no-probe").code
    if not is_named:
        assert code == 3
        assert cli("journal", "resolve", f"{path}.journal", "2", "--card", older).code == 0
    code, out, err = cli("undo", f"{path}.journal", "--yes")
    assert (code, out) == (0, undone(deleted=1) if is_named else undone(kept=1))
    assert (f"({older}) was there before" in err) is not is_named
    assert list(board_service.rules.cards) == [older]


def test_a_description_in_brackets_is_no_marker(cli, board_service: BoardService, board, csv_file) -> None:
    """Only the row's own marker is taken from a card's description before it is compared."""
    path = csv_file("name,desc\nA,\nB,hello\nC,hello\nD,hello\n")
    assert cli("import", path, *into(board), "--marker").code == 0
    first, second, third, _ = board_service.rules.cards.values()
    first.desc, second.desc, third.desc = "[CANCELLED]", "[x] hello [KEEP]", third.desc.upper()
    assert cli("undo", f"{path}.journal", "--yes").out == undone(deleted=1, kept=3)
    assert names(board_service) == ["A", "B", "C"]


def test_what_was_undone_is_imported_again(cli, board_service: BoardService, imported) -> None:
    assert cli("undo", journal_of(imported), "--yes").out == undone(deleted=6)
    assert names(board_service) == []
    assert counts(summary(cli(*imported, "--json").out)) == {"created": 6, "already": 0, "failed": 0, "unknown": 0}
    assert len(names(board_service)) == 6


def test_a_card_that_gained_what_was_not_sent_is_kept(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name\nA\nB\nC\n")
    assert cli("import", path, *into(board)).code == 0
    first, second, _ = board_service.rules.cards.values()
    first.desc, second.due = "a note", "2028-01-01T00:00:00Z"
    assert cli("undo", f"{path}.journal", "--yes").out == undone(deleted=1, kept=2)


def test_a_card_is_compared_once_more_right_before_it_is_deleted(cli, board_service: BoardService, board, imported) -> None:
    """It may change, or be deleted, after the board was listed."""
    then = Meanwhile(lambda: change(board_service, board), is_after=True)
    board_service.faults.add(then, "boards.cards", call=len(board_service.calls_of("boards.cards")) + 1)
    code, out, err = cli("undo", journal_of(imported), "--yes")
    assert (code, out) == (0, undone(deleted=1, kept=4, gone=1))
    assert sorted(line.partition(") ")[2] for line in err.splitlines()) == [
        "has another description",
        "has another due date",
        "was moved",
        "was renamed",
    ]
    assert names(board_service) == ["card 1, renamed", "card 2", "card 3", "card 4"]


def test_an_undo_ends_at_refused_credentials(cli, board_service: BoardService, imported) -> None:
    board_service.faults.add(board_service.faults.status(401), "cards.delete")
    assert cli("undo", journal_of(imported), "--yes").code == 4
    board_service.faults.clear()
    assert cli("undo", journal_of(imported), "--yes").code == 0
    assert names(board_service) == []


@pytest.mark.parametrize("after", [1, 4])
def test_an_undo_that_loses_its_journal_says_what_it_has_deleted(cli, board_service: BoardService, imported, after: int) -> None:
    """Exit code 2 means that nothing was changed."""
    move = Meanwhile(lambda: os.rename(journal_of(imported), f"{journal_of(imported)}-moved"))
    board_service.faults.add(move, "cards.get" if after == 1 else "cards.delete", call=after)
    code, out, err = cli("undo", journal_of(imported), "--yes", "--json")
    deleted = json.loads(out)["deleted"]
    assert code == (2 if after == 1 else 1)
    assert len(board_service.rules.cards) <= (6 if after == 1 else 5)
    assert len(board_service.rules.cards) <= 6 - deleted
    assert "was moved, removed or replaced" in err


def test_an_undo_asks_first(cli, board_service: BoardService, imported, monkeypatch) -> None:
    cli("undo", journal_of(imported)).fails(2, "error: nobody can be asked here: give --yes (delete 6 cards for good?)\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: asked.append(prompt) or "n")
    board_service.rules.cards[next(iter(board_service.rules.cards))].name = "x"
    cli("undo", journal_of(imported)).fails(2, "nothing was changed")

    assert len(board_service.rules.cards) == 6


def test_cards_that_can_t_be_deleted_are_named_and_tried_again(cli, board_service: BoardService, imported) -> None:
    board_service.faults.add(board_service.faults.status(403), "cards.delete", call=2)
    board_service.faults.add(board_service.faults.status(404), "cards.delete", call=3)
    code, out, err = cli("undo", journal_of(imported), "--yes")
    assert (code, out) == (1, undone(deleted=4, failed=2))
    assert "2 cards could not be deleted; the same command line tries again" in err
    assert len(board_service.rules.cards) == 2
    assert cli("undo", journal_of(imported), "--yes").out == undone(deleted=2)


def test_a_preview_names_each_card_and_deletes_none(cli, on_a_terminal, board_service: BoardService, board, imported) -> None:
    """It says what an undo would do, into a pipe, on a terminal and as JSON, and needs no --yes."""
    change(board_service, board)
    code, out, err = cli("undo", journal_of(imported), "--preview")
    assert (code, sorted(line.split("\t")[::2] for line in out.splitlines())) == (
        0,
        [
            ["delete", "card 6"],
            ["keep: has another description", "card 3"],
            ["keep: has another due date", "card 4"],
            ["keep: was moved", "card 2"],
            ["keep: was renamed", "card 1, renamed"],
        ],
    )
    assert err == "to delete: 1, to keep: 4, gone already: 1; nothing was deleted\n"
    found = json.loads(cli("undo", journal_of(imported), "--preview", "--json").out)
    assert [found[name] for name in ("to_delete", "kept", "gone")] == [1, 4, 1]
    assert [card["name"] for card in found["cards"] if card["why"] is None] == ["card 6"]
    assert "keep: was moved" in on_a_terminal("undo", journal_of(imported), "--preview")
    assert len(names(board_service)) == 5
    assert cli("undo", journal_of(imported), "--yes").out == undone(deleted=1, kept=4, gone=1)


def test_an_undo_keeps_the_cards_of_an_archived_list(cli, board_service: BoardService, board, csv_file) -> None:
    """They are named with the reason."""
    path = csv_file("name,list\nseen,Doing\nhidden,Done\n")
    assert cli("import", path, "--board", board.board).code == 0
    assert cli("list", "archive", board.done, "--yes").code == 0
    code, out, err = cli("undo", f"{path}.journal", "--yes")
    assert (code, out, names(board_service)) == (0, undone(deleted=1, kept=1), ["hidden"])
    assert err.endswith("is in an archived list\n")


def test_the_journal_of_another_service_is_refused(cli, imported) -> None:
    cli("--base-url", "https://board.example", "undo", journal_of(imported), "--yes").fails(2, "not of this session's service")


@pytest.mark.full
def test_killed_at_any_moment_and_repeated_it_leaves_what_changed(cli, board_service: BoardService, board, csv_file) -> None:
    rows = "name,reference\n" + "".join(f"card {n},r-{n}\n" for n in range(300))
    path = csv_file(rows)
    assert cli("import", path, *into(board)).code == 0
    changed = list(board_service.rules.cards.values())[::50]
    for card in changed:
        card.name += ", renamed"
    board_service.latency = 0.002
    environment = {**os.environ, **board_service.environment}
    command = [sys.executable, "-m", "boardclient", "undo", f"{path}.journal", "--yes"]
    for kills in range(3):
        mark = len(board_service.calls_of("cards.delete")) + 20 + kills
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: process.poll() is not None or len(board_service.calls_of("cards.delete")) >= mark)  # noqa: B023 -- used at once
            process.send_signal(signal.SIGKILL)
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert names(board_service) == sorted(card.name for card in changed)


# --- rows that are unknown


@pytest.fixture
def unknown(cli, board_service: BoardService, board, csv_file) -> tuple[str, ...]:
    """Import six rows of which two are unknown, one with a card that its service shows in another form."""
    faults = board_service.faults
    faults.add(Renamed(board_service), "cards.create", call=2)
    faults.add(faults.drop(), "cards.create", call=4)
    line = ("import", csv_file(SIX), *into(board), "--concurrency", "1")
    assert cli(*line).code == 3
    return line


def test_an_import_names_unknown_rows_as_resolve_takes_them(
    cli, on_a_terminal, board_service: BoardService, board, csv_file
) -> None:
    """The rows of the file are others: it has a header and empty rows."""
    for call, fault in ((2, Renamed(board_service)), (3, board_service.faults.drop())):
        board_service.faults.add(fault, "cards.create", call=call)
    path = csv_file("name,reference\nA,\n,\nB,\nC,r-3\n")
    code, out, err = cli("import", path, *into(board), "--concurrency", "1", "--no-probe", "--json")
    assert code == 3
    assert "row 4: unknown: " in err
    assert "row 5 (reference 'r-3'): unknown: " in err
    named = [(row["row"], row["key"]) for row in summary(out)["rows"]]
    assert named == [(4, 4), (5, "r-3")]
    shown = on_a_terminal("journal", "resolve", f"{path}.journal")
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["4", "B"], ["r-3", "C"]]
    for _, key in named:
        assert cli("journal", "resolve", f"{path}.journal", str(key), "--absent").code == 0
    assert cli("journal", "resolve", f"{path}.journal").out == ""


def test_unknown_rows_are_listed_and_settled_one_by_one(cli, board_service: BoardService, unknown) -> None:
    journal = journal_of(unknown)
    card_id = next(card.id for card in board_service.rules.cards.values() if card.name == "card 2!")
    listed = json.loads(cli("journal", "resolve", journal, "--json", "row,name,card").out)
    assert listed[0] == {"row": "r-2", "name": "card 2", "card": card_id}
    assert {row["row"] for row in listed} == {"r-2", "r-4"}
    assert "may be this row's" in json.loads(cli("journal", "resolve", journal, "--json").out)[0]["reason"]
    first, second = (line.split("\t") for line in cli("journal", "resolve", journal).out.splitlines())
    assert (first[:4], second[:2]) == (["r-2", "card 2", card_id, "card 2!"], ["r-4", "card 4"])
    assert cli("journal", "resolve", journal, "r-2", "--card", card_id) == (
        0,
        f"reference 'r-2', 'card 2', is settled with the card {card_id}\n",
        "",
    )
    assert cli("journal", "resolve", journal, "r-4", "--absent").out == (
        "reference 'r-4', 'card 4', is settled as absent: the next import sends it\n"
    )
    assert cli("journal", "resolve", journal) == (0, "", "")
    assert counts(summary(cli(*unknown, "--json").out)) == {"created": 1, "already": 5, "failed": 0, "unknown": 0}
    assert names(board_service) == sorted([*(f"card {n}" for n in (1, 3, 4, 5, 6)), "card 2!"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["r-2"], "give either --card or --absent for ROW"),
        (["r-2", "--absent", "--card", "c"], "give either --card or --absent for ROW"),
        (["--absent"], "give ROW"),
        (["r-2", "--absent", "--accept"], "give either"),
        (["r-9", "--absent"], "it does not have the row with the reference 'r-9'"),
        (["9", "--absent"], "the file had no row 9: its rows were 2 to 7"),
        (["--position", "9", "--absent"], "it does not have the row at position 9"),
        (["r-1", "--absent"], "not in doubt"),
        (["--row", "1", "--absent"], "the file had no row 1: its rows were 2 to 7"),
        (["--row", "3", "--absent"], "it does not have the row at position 1"),
        (["--reference", "01", "--absent"], "it does not have the row with the reference '01'"),
        (["01", "--absent"], "it does not have the row with the reference '01'"),
        (["9" * 30, "--absent"], "the file had no row 9999"),
        (["r-2", "--row", "1", "--absent"], "name the row once"),
    ],
)
def test_what_can_t_be_settled_is_refused(cli, unknown, argv: list[str], words: str) -> None:
    cli("journal", "resolve", journal_of(unknown), *argv).fails(2, words)


def test_a_row_whose_name_is_that_of_two_is_asked_for(cli, board_service: BoardService, board, csv_file) -> None:
    """The same command line never settles another row. What is settled is said to be."""
    faults = board_service.faults
    faults.add(Renamed(board_service), "cards.create", call=[2, 3])
    path = csv_file("name,reference\nA,\nB,\nC,3\nD,0\nE,2\n")
    assert cli("import", path, *into(board), "--concurrency", "1").code == 3
    line = ("journal", "resolve", f"{path}.journal")
    for _ in range(2):
        cli(*line, "3", "--absent").fails(2, "3 is a reference, and may be the number of a row: give --reference 3 or --row 3")
    settled = "as absent: the next import sends it\n"
    assert cli(*line, "--reference", "3", "--absent").out == f"reference '3', 'C', is settled {settled}"
    assert cli(*line, "--reference", "3", "--absent").out == f"reference '3', 'C', was settled before {settled}"
    card_id = next(card.id for card in board_service.rules.cards.values() if card.name == "B!")
    assert cli(*line, "--row", "3", "--card", card_id).out == f"row 3, 'B', is settled with the card {card_id}\n"
    before = f"row 3, 'B', was settled before with the card {card_id}\n"
    assert cli(*line, "--position", "1", "--card", card_id).out == before
    assert "reference '2' is done" in cli(*line, "--reference", "2", "--absent").err.replace("the row with the ", "")
    assert "reference '0' is done" in cli(*line, "0", "--absent").err.replace("the row with the ", "")
    assert cli(*line).out == ""


def test_an_undo_says_that_unknown_rows_may_have_cards(cli, unknown) -> None:
    code, _, err = cli("undo", journal_of(unknown), "--yes")
    assert code == 0
    assert f"2 rows may have a card that is left: boardclient journal resolve {journal_of(unknown)}" in err


def test_a_journal_without_unknown_rows_says_so(cli, on_a_terminal, board, csv_file) -> None:
    path = csv_file(SIX)
    assert cli("import", path, *into(board)).code == 0
    assert on_a_terminal("journal", "resolve", f"{path}.journal") == "nothing to show\n"
    assert cli("journal", "resolve", f"{path}.journal").out == ""


def test_a_card_that_is_no_candidate_is_named(cli, unknown) -> None:
    """A person may know more than the journal, or have mistyped."""
    code, out, err = cli("journal", "resolve", journal_of(unknown), "r-4", "--card", "elsewhere")
    assert (code, out) == (0, "reference 'r-4', 'card 4', is settled with the card elsewhere\n")
    assert "elsewhere is none of the cards that may be the row's: look at the board" in err
    assert json.loads(cli("journal", "resolve", journal_of(unknown), "r-2", "--absent", "--json").out) == {
        "row": "r-2",
        "card": None,
    }


def test_suggestions_are_taken_at_the_user_s_word(cli, on_a_terminal, board_service: BoardService, unknown) -> None:
    """A card that resembles a row is suggested for it, and two rows can't have one card."""
    journal = journal_of(unknown)
    card_id = next(card.id for card in board_service.rules.cards.values() if card.name == "card 2!")
    assert f"{card_id}  card 2!    0.96      true" in on_a_terminal("journal", "resolve", journal)
    code, out, err = cli("journal", "resolve", journal, "--accept")
    assert code == 3
    assert [line.split("\t")[0] for line in out.splitlines()] == ["r-4"]
    assert "1 row remains unknown" in err


def test_rows_without_a_suggestion_stay_unknown(cli, unknown, monkeypatch) -> None:
    journal = journal_of(unknown)
    with contextlib.closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE boardclient_outcomes SET resembling = NULL")
    code, out, err = cli("journal", "resolve", journal, "--accept")
    assert code == 3
    assert out == "r-2\tcard 2\t\t\t\t\nr-4\tcard 4\t\t\t\t\n"
    assert "2 rows remain unknown" in err


def test_a_row_has_the_number_that_the_file_shows_whatever_is_between_the_rows(
    cli, board_service: BoardService, board, csv_file
) -> None:
    """A header, lines above it and empty rows count, as an import counts them."""
    board_service.faults.add(Renamed(board_service), "cards.create", call=range(1, 4))
    path = csv_file("Guests\nname\nA\n\n\nB\nC\n")
    code, _, err = cli("import", path, *into(board), "--concurrency", "1", "--no-probe", "--skip-lines", "1")
    assert (code, [f"row {number}: unknown: " in err for number in (3, 6, 7)]) == (3, [True] * 3)
    line = ("journal", "resolve", f"{path}.journal")
    cli(*line, "4", "--absent").fails(2, "the file had no row 4: its rows were 3 to 3, 6 to 7")
    cli(*line, "2", "--absent").fails(2, "the file had no row 2")
    assert cli(*line, "6", "--absent").out == "row 6, 'B', is settled as absent: the next import sends it\n"
    assert json.loads(cli(*line, "--row", "7", "--absent", "--json").out) == {"row": 7, "card": None}
    assert [row["row"] for row in json.loads(cli(*line, "--json=row,name").out)][:1] == [3]


def test_without_the_numbers_of_a_file_a_bare_number_is_refused(cli, board_service: BoardService, board, csv_file) -> None:
    """It may be a position or a row. So it is for the journal of a program, which knows no file."""
    board_service.faults.add(Renamed(board_service), "cards.create")
    path = csv_file("name\nA\nB\n")
    assert cli("import", path, *into(board), "--concurrency", "1", "--no-probe").code == 3
    Path(f"{path}.journal-rows").write_text('{"starts": 5}')
    line = ("journal", "resolve", f"{path}.journal")
    for argv in (["1"], ["--row", "1"]):
        cli(*line, *argv, "--absent").fails(2, "the numbers of the file's rows are not known here: give --position, from 0")
    assert json.loads(cli(*line, "--json=row").out)[0] == {"row": "--position 0"}
    assert cli(*line, "--position", "1", "--absent").out == "position 1, 'B', is settled as absent: the next import sends it\n"
