"""Files as spreadsheets of other countries write them: separators, names of columns, dates without an offset."""

import pytest
from import_helpers import into

from boardclient.testing import BoardService


def cards(service: BoardService) -> list[tuple[str, str | None]]:
    return [(card.name, card.due) for card in service.rules.cards.values()]


def test_a_file_of_another_layout_is_read_as_the_options_say(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("Title;Notes;Due date;\nAsk;x;2027-07-01;\n")
    options = ["--delimiter", ";", "--map", "name=Title", "--map", "due=Due date", "--skip", "Notes", "--skip", ""]
    assert cli("import", path, *into(board), *options, "--timezone", "Europe/Berlin").code == 0
    assert cards(board_service) == [("Ask", "2027-06-30T22:00:00Z")]


def test_fields_of_json_lines_can_be_renamed_as_well(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file('{"title": "Ask", "notes": "x", "due": "2027-07-01T09:00"}\n', "cards.jsonl")
    options = ["--map", "name=title", "--skip", "notes", "--timezone", "America/New_York"]
    assert cli("import", path, *into(board), *options).code == 0
    assert cards(board_service) == [("Ask", "2027-07-01T13:00:00Z")]


def test_the_offset_of_a_date_wins_over_the_zone(cli, board_service: BoardService, board) -> None:
    due = ("--due", "2027-07-01T09:00+01:00", "--timezone", "Asia/Tokyo")
    assert cli("card", "create", "A", "--list", board.todo, *due).code == 0
    assert cli("card", "create", "B", "--list", board.todo, "--due", "2027-07-01T09:00", *due[2:]).code == 0
    assert cards(board_service) == [("A", "2027-07-01T08:00:00Z"), ("B", "2027-07-01T00:00:00Z")]


@pytest.mark.parametrize(("mark", "hint"), [(";", '--delimiter ";"'), ("\t", "--delimiter $'"), ("|", '--delimiter "|"')])
def test_another_separator_is_refused_with_the_option_that_helps(
    cli, board_service: BoardService, board, csv_file, mark: str, hint: str
) -> None:
    """A file with another separator is refused before anything is sent, with a hint."""
    code, _, err = cli("import", csv_file(f"name{mark}due\nA{mark}\n"), *into(board))
    assert code == 2
    assert hint in err
    assert not board_service.calls_of("cards.create")


def test_a_date_without_an_offset_is_refused_with_the_option_that_helps(cli, board, csv_file) -> None:
    code, _, err = cli("import", csv_file("name,due\nA,2027-07-01\n"), *into(board))
    assert code == 2
    assert "--timezone" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--timezone", "Atlantis/Capital"],
        ["--timezone", "../etc"],
        ["--timezone", "Europe"],
        ["--timezone", ""],
        ["--map", "title=Title"],
        ["--map", "name"],
        ["--map", "name="],
        ["--delimiter", ";;"],
        ["--delimiter", '"'],
    ],
)
def test_options_that_can_t_be_understood_are_bad_usage(cli, board_service: BoardService, board, csv_file, options) -> None:
    code, out, err = cli("import", csv_file("name\nA\n"), *into(board), *options)
    assert (code, out) == (2, "")
    assert options[0] in err
    assert not board_service.calls
