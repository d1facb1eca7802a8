"""An export is what an import reads back, whatever the texts; what could not be read back is named and left out."""

import csv
import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest
from import_helpers import SETTLE

from boardclient.cli import main
from boardclient.testing import BoardService

NASTY = [
    ("plain", None, None),
    (' leading, "quoted" and trailing ', "line one\nline two\r\nline three\rlast", "2027-01-02T03:04:05.678901Z"),
    ("=1+1;\t@x", '"', "2027-01-02T03:04:05.5+05:30"),
    ("日本語 👩‍🚀 \u202e \u2028 é", ",", "0001-01-02T00:00:00Z"),
    ('"', "", "9999-12-30T23:59:59.000001Z"),
    ("\ufeffname", "\n", None),
    ("null", " \t ", None),
    ("a\\nb\x01\x1b[2J", "'; --", None),
]


def content(service: BoardService, board_id: str) -> list[tuple[str, str, str | None, str]]:
    """List the cards of a board, comparable between boards."""
    homes = {item.id: item.name for item in service.rules.lists.values()}
    return sorted((card.name, card.desc, card.due or "", homes[card.list_id]) for card in service.rules.cards_of(board_id))


def test_what_is_exported_is_imported_as_it_was(cli, board_service: BoardService, board, tmp_path: Path) -> None:
    path = tmp_path / "cards.csv"
    rows = [
        {"name": text, "desc": desc, "due": due, "list": home}
        for (text, desc, due), home in zip(NASTY, ("To Do", "Done") * 4, strict=True)
    ]
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows))
    assert cli("import", str(source), "--board", board.board, *SETTLE).code == 0

    assert cli("export", board.board, "--output", str(path)) == (0, "", "")
    cli("board", "create", "Other", "--default-lists")
    other = list(board_service.rules.boards)[-1]
    assert cli("import", str(path), "--board", other, *SETTLE).code == 0
    assert content(board_service, other) == content(board_service, board.board)
    assert len(content(board_service, other)) == len(NASTY)

    again = tmp_path / "again.csv"
    assert cli("export", other, "--output", str(again)).code == 0
    ids = {record.id for record in board_service.rules.cards.values()}
    assert all(row["id"] in ids for row in read(again))
    without = [[{k: v for k, v in row.items() if k != "id"} for row in read(found)] for found in (path, again)]
    assert sorted(map(str, without[0])) == sorted(map(str, without[1]))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_standard_output_is_csv_with_a_header_by_default(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "a, b", "--list", board.todo, "--due", "2027-01-02T03:04:05.25Z")
    (card_id,) = board_service.rules.cards
    expected = f'name,desc,due,pos,list,id\r\n"a, b",,2027-01-02T03:04:05.250000+00:00,,To Do,{card_id}\r\n'
    assert cli("export", board.board) == (0, expected, "")


@pytest.fixture
def exported(cli, board, tmp_path: Path):
    """Export the board, and give the rows."""

    def export() -> list[dict[str, str]]:
        assert cli("export", board.board, "--output", str(tmp_path / "all.csv")).code == 0
        return read(tmp_path / "all.csv")

    return export


def test_utf_8_is_written_whatever_the_encoding_of_the_terminal(cli, board_service: BoardService, board, monkeypatch) -> None:
    cli("card", "create", "Zürich", "--list", board.todo)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with pytest.raises(SystemExit) as caught:
        main(["export", board.board])
    assert caught.value.code == 0
    assert "Zürich,".encode() in raw.getvalue()


def test_cards_of_archived_lists_are_left_out_and_counted(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "kept", "--list", board.todo)
    cli("card", "create", "old", "--list", board.done)
    cli("list", "archive", board.done, "--yes")
    code, out, err = cli("export", board.board)
    assert (code, err) == (0, "cards of archived lists that are left out: 1\n")
    assert [row["name"] for row in csv.DictReader(out.splitlines())] == ["kept"]


def test_cards_that_could_not_be_read_back_are_named_and_left_out(cli, board_service: BoardService, board) -> None:
    cards = [
        {"id": "c1", "name": "A", "idList": board.todo},
        {"id": "c2", "name": "homeless\x1b"},
        {"id": "c3", "name": "elsewhere", "idList": "nowhere"},
        {"id": "c4", "idList": board.todo},
        {"id": "c5", "name": "B", "idList": board.todo, "due": "2027-01-01T00:00:00"},
        {"id": "c6", "name": "C", "idList": board.todo, "desc": 5},
        {"id": "c7", "name": "D\0", "idList": board.todo},
    ]
    board_service.faults.add(board_service.faults.foreign_body(json.dumps(cards).encode()), "boards.cards")
    code, out, err = cli("export", board.board)
    assert code == 1
    assert [line.partition(",")[0] for line in out.splitlines()] == ["name", "A"]
    lines = err.splitlines()
    hidden = "left out: the service does not show which of the board's lists it is in"
    assert lines[0] == f"card 'homeless\\x1b' (c2): {hidden}"
    assert lines[1] == f"card 'elsewhere' (c3): {hidden}"
    assert lines[2] == "card None (c4): left out: its name is missing"
    assert lines[3] == "card 'B' (c5): left out: its due has a type that can't be written"
    assert lines[4] == "card 'C' (c6): left out: its desc has a type that can't be written"
    assert lines[5].startswith("card 'D\\x00' (c7): left out: its name holds a NUL character")
    assert lines[6] == "boardclient: error: 6 cards could not be written as import reads them"


def test_an_output_that_cannot_be_written_is_one_line(cli, board, tmp_path: Path) -> None:
    code, out, err = cli("export", board.board, "--output", str(tmp_path / "no" / "cards.csv"))
    assert (code, out) == (2, "")
    assert err.endswith("cards.csv: No such file or directory\n")


def test_a_list_is_written_by_name_if_the_name_is_unique(cli, board_service: BoardService, board, exported) -> None:
    for name in ("Twin", "Twin", board.todo, " padded ", "To be nameless"):
        cli("list", "create", name, "--board", board.board)
    next(item for item in board_service.rules.lists.values() if item.name == "To be nameless").name = ""
    ids = [item for item in board_service.rules.lists if board_service.rules.lists[item].board_id == board.board]
    for list_id in ids:
        cli("card", "create", list_id, "--list", list_id)
    rows = exported()
    twins = ids[3:5]
    by_name = {board.todo: "To Do", board.doing: "Doing", board.done: "Done", ids[6]: " padded "}
    assert {row["name"]: row["list"] for row in rows} == {
        **by_name,
        **{twin: twin for twin in twins},
        ids[5]: ids[5],
        ids[7]: ids[7],
    }


@pytest.mark.parametrize(("pos", "written"), [('"top"', "top"), ('"bottom"', "bottom"), ("16384.0", ""), ('"16384"', "")])
def test_a_position_is_written_where_it_can_be_set(board_service: BoardService, board, exported, pos: str, written) -> None:
    body = f'[{{"id": "c", "name": "A", "idList": "{board.todo}", "pos": {pos}}}]'
    board_service.faults.add(board_service.faults.foreign_body(body.encode()), "boards.cards")
    assert exported()[0]["pos"] == written


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_file(cli, board_service: BoardService, board, tmp_path: Path, monkeypatch) -> None:
    cli("card", "create", "A", "--list", board.todo)
    path = tmp_path / "cards.csv"
    path.write_text("the backup of yesterday")
    monkeypatch.setattr(os, "fsync", _full)
    code, out, err = cli("export", board.board, "--output", str(path))
    assert (code, out) == (2, "")
    assert err == f"boardclient: error: can't write {path}: No space left on device: make room on the disk\n"
    assert path.read_text() == "the backup of yesterday"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_keeps_its_mode_and_a_link_remains_a_link(cli, board, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "cards.csv"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert cli("export", board.board, "--output", str(link)).code == 0
    assert link.is_symlink()
    assert real.read_text().startswith("name,desc")
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_pipe_or_device_is_written_to_directly(cli, board) -> None:
    assert cli("export", board.board, "--output", os.devnull).code == 0
    assert Path(os.devnull).is_char_device()


def test_an_export_on_a_terminal_steers_it_no_more_than_other_commands(cli, board_service, board, monkeypatch) -> None:
    """A name may hold what writes the clipboard. Into a pipe or a file it is written as it is."""
    name = "\x1b]52;c;aGk=\x07\x1b[2J\u202e\r\nnext"
    cli("card", "create", "A", "--list", board.todo)
    next(iter(board_service.rules.cards.values())).name = name
    assert name in cli("export", board.board).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = cli("export", board.board)
    assert code == 0
    assert out.startswith("name,desc,due,pos,list,id\n")
    assert "\\x1b]52;c;aGk=\\x07\\x1b[2J\\u202e" in out
    assert out.replace("\n", "").isprintable()


def test_dates_are_written_in_the_form_that_is_asked_for_and_read_again(cli, board_service, board, tmp_path: Path) -> None:
    """As a spreadsheet of that country reads them. What the form leaves out is counted."""
    for due in ("2027-01-31T16:00:00Z", "2027-07-01T22:30:15Z"):
        cli("card", "create", due, "--list", board.todo, "--due", due)
    options = ["--date-format", "%d.%m.%Y %H:%M", "--timezone", "Europe/Berlin"]
    path = tmp_path / "cards.csv"
    code, out, err = cli("export", board.board, "--output", str(path), *options)
    assert (code, out, err) == (0, "", "due dates of which %d.%m.%Y %H:%M leaves a part out: 1\n")
    assert [row["due"] for row in read(path)] == ["31.01.2027 17:00", "02.07.2027 00:30"]
    cli("board", "create", "Other", "--default-lists")
    other = list(board_service.rules.boards)[-1]
    assert cli("import", str(path), "--board", other, *options, *SETTLE).code == 0
    assert [due for *_, due, _ in content(board_service, other)] == ["2027-01-31T16:00:00Z", "2027-07-01T22:30:00Z"]


def test_a_form_of_dates_by_which_an_import_would_read_another_date_is_refused(cli, board_service, board) -> None:
    """What an export writes by it could not be read back. A date whose year two digits don't tell is named."""
    cli("card", "create", "A", "--list", board.todo, "--due", "2027-01-31T16:00:00Z")
    cli("card", "create", "B", "--list", board.todo, "--due", "2077-01-31T16:00:00Z")
    cli("export", board.board, "--date-format", "%d.%m").fails(2, "--date-format '%d.%m': it has no year")
    code, out, err = cli("export", board.board, "--date-format", "%d.%m.%y %H:%M")
    assert (code, ",31.01.27 16:00," in out, "B" in out) == (1, True, False)
    assert "card 'B'" in err
    assert "left out: its due is of a year that %d.%m.%y %H:%M does not tell" in err


def test_an_export_tells_programs_what_it_has_written(cli, board_service: BoardService, board, tmp_path) -> None:
    """Into a file: standard output is the rows' own otherwise."""
    assert cli("card", "create", "A", "--list", board.todo).code == 0
    code, out, _ = cli("export", board.board, "--output", str(tmp_path / "cards.csv"), "--json")
    assert (code, json.loads(out)) == (
        0,
        {"path": str(tmp_path / "cards.csv"), "cards": 1, "left_out": 0, "archived": 0, "shortened": 0},
    )
    assert json.loads(cli("export", board.board, "--output", str(tmp_path / "x"), "--json=cards").out) == {"cards": 1}
    cli("export", board.board, "--json").fails(2, "give --output, or use: boardclient board show BOARD --json")


def test_a_position_is_written_beside_dates_of_another_form_as_well(cli, board_service: BoardService, board) -> None:
    body = f'[{{"id": "c", "name": "A", "idList": "{board.todo}", "pos": "top", "due": "2027-01-31T16:00:00Z"}}]'
    board_service.faults.add(board_service.faults.foreign_body(body.encode()), "boards.cards")
    assert cli("export", board.board, "--date-format", "%d.%m.%Y %H:%M").out.endswith("A,,31.01.2027 16:00,top,To Do,c\r\n")
