"""An export is what an import reads back, whatever the texts; what could not be read back is named and left out."""

import errno
import io
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import SETTLE

from boardclient import BoardList, Card, Position
from boardclient.cli import _export, _rows, main
from boardclient.cli._names import of_lists
from boardclient.cli._rows import Format, Layout
from boardclient.testing import BoardService

NASTY = [
    ("plain", None, None),
    (' leading, "quoted" and trailing ', "line one\nline two\r\nline three\rlast", "2027-01-02T03:04:05.678901Z"),
    ("=1+1;\t@x", '"', "2027-01-02T03:04:05.5+05:30"),
    ("日本語 👩‍🚀 \u202e \u2028 é", ",", "0001-01-02T00:00:00Z"),
    ('"', "", "9999-12-30T23:59:59.000001Z"),
    ("\ufeffname,desc", "\n", None),
    ("null", " \t ", None),
    ("a\\nb\x00\x1b[2J", "'; --", None),
]


def content(service: BoardService, board_id: str) -> list[tuple[str, str, str | None, str]]:
    """List the cards of a board, comparable between boards."""
    homes = {item.id: item.name for item in service.rules.lists.values()}
    return sorted((card.name, card.desc, card.due or "", homes[card.list_id]) for card in service.rules.cards_of(board_id))


@pytest.mark.parametrize("name", ["cards.csv", "cards.jsonl"])
def test_what_is_exported_is_imported_as_it_was(cli, board_service: BoardService, board, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
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

    again = tmp_path / f"again-{name}"
    assert cli("export", other, "--output", str(again)).code == 0
    ids = {record.id for record in board_service.rules.cards.values()}
    assert all(row["reference"] in ids for row in read(again))
    without = [[{k: v for k, v in row.items() if k != "reference"} for row in read(found)] for found in (path, again)]
    assert sorted(map(str, without[0])) == sorted(map(str, without[1]))


def read(path: Path) -> list[dict[str, str | None]]:
    with path.open("rb") as file:
        lists = of_lists([BoardList("To Do"), BoardList("Doing"), BoardList("Done")])
        found = list(_rows.read(file, lists, None, Layout(form=_rows.format_of(path))))
    assert all(isinstance(row, _rows.FileRow) for row in found)
    return [
        {"name": row.draft.name, "desc": row.draft.desc, "due": str(row.draft.due), "reference": row.draft.reference}
        for row in found
    ]


def test_standard_output_is_csv_with_a_header_by_default(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "a, b", "--list", board.todo, "--due", "2027-01-02T03:04:05.25Z")
    (card_id,) = board_service.rules.cards
    expected = f'name,desc,due,pos,list,reference\r\n"a, b",,2027-01-02T03:04:05.250000+00:00,,To Do,{card_id}\r\n'
    assert cli("export", board.board) == (0, expected, "")


def test_json_lines_leave_out_what_a_card_has_not(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "Zürich", "--list", board.todo, "--pos", "top")
    (card_id,) = board_service.rules.cards
    code, out, err = cli("export", board.board, "--format", "jsonl")
    assert (code, err) == (0, "")
    assert out == json.dumps({"name": "Zürich", "desc": "", "list": "To Do", "reference": card_id}, ensure_ascii=False) + "\n"


def test_utf_8_is_written_whatever_the_encoding_of_the_terminal(cli, board_service: BoardService, board, monkeypatch) -> None:
    cli("card", "create", "Zürich", "--list", board.todo)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with pytest.raises(SystemExit) as caught:
        main(["export", board.board])
    assert caught.value.code == 0
    assert "Zürich,".encode() in raw.getvalue()


def test_any_stream_is_written_to(cli, board, monkeypatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(SystemExit):
        main(["export", board.board])
    assert out.getvalue() == "name,desc,due,pos,list,reference\r\n"


def test_cards_of_archived_lists_are_left_out_and_counted(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "kept", "--list", board.todo)
    cli("card", "create", "old", "--list", board.done)
    cli("list", "archive", board.done, "--yes")
    code, out, err = cli("export", board.board, "--format", "jsonl")
    assert (code, err) == (0, "cards of archived lists that are left out: 1 (--archived writes them)\n")
    assert [json.loads(line)["list"] for line in out.splitlines()] == ["To Do"]
    code, out, err = cli("export", board.board, "--format", "jsonl", "--archived")
    assert (code, err) == (0, "")
    assert [json.loads(line)["list"] for line in out.splitlines()] == ["To Do", board.done]


def test_cards_that_could_not_be_read_back_are_named_and_left_out(cli, board_service: BoardService, board) -> None:
    cards = [
        {"id": "c1", "name": "A", "idList": board.todo},
        {"id": "c2", "name": "homeless\x1b"},
        {"id": "c3", "name": "elsewhere", "idList": "nowhere"},
        {"id": "c4", "idList": board.todo},
        {"id": "c5", "name": "B", "idList": board.todo, "due": "2027-01-01T00:00:00"},
        {"id": "c6", "name": "C", "idList": board.todo, "desc": 5},
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
    assert lines[5] == "boardclient: error: 5 cards could not be written as import reads them"


def test_one_card_is_counted_in_the_singular(cli, board_service: BoardService, board) -> None:
    board_service.faults.add(board_service.faults.foreign_body(b'[{"id": "c1"}]'), "boards.cards")
    assert cli("export", board.board).err.endswith("error: 1 card could not be written as import reads them\n")


def test_an_unknown_board_leaves_the_file_as_it_is(cli, tmp_path: Path) -> None:
    path = tmp_path / "cards.csv"
    path.write_text("kept")
    code, out, err = cli("export", "nowhere", "--output", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert path.read_text() == "kept"


def test_an_output_that_cannot_be_written_is_one_line(cli, board, tmp_path: Path) -> None:
    code, out, err = cli("export", board.board, "--output", str(tmp_path / "no" / "cards.csv"))
    assert (code, out) == (2, "")
    assert err.endswith("cards.csv: No such file or directory\n")


@pytest.mark.parametrize(
    ("said", "output", "form"),
    [
        (None, None, Format.CSV),
        (Format.JSON_LINES, None, Format.JSON_LINES),
        (None, "a.ndjson", Format.JSON_LINES),
        (Format.CSV, "a.csv", Format.CSV),
        (Format.JSON_LINES, "a.data", Format.JSON_LINES),
    ],
)
def test_the_format_is_the_option_or_else_the_extension(said: Format | None, output: str | None, form: Format) -> None:
    assert _export.choose_format(said, output and Path(output)) is form


@pytest.mark.parametrize(("options", "message"), [(["--format", "csv"], "--format is different"), ([], "must be one of")])
def test_a_format_that_contradicts_the_extension_is_bad_usage(
    cli, board_service: BoardService, board, options: list[str], message: str
) -> None:
    output = "cards.jsonl" if options else "cards.data"
    board_service.calls.clear()
    code, _, err = cli("export", board.board, "--output", output, *options)
    assert code == 2
    assert message in err
    assert not board_service.calls


LISTS = [
    BoardList("l1", "To Do"),
    BoardList("l2", "Twin"),
    BoardList("l3", "Twin"),
    BoardList("l4", "Old", closed=True),
    BoardList("l5", None),
    BoardList("l6", ""),
    BoardList("l7", "l1x"),
    BoardList("l1x", " padded "),
]


@pytest.mark.parametrize(
    ("list_id", "written"), [("l1", "To Do"), ("l2", "l2"), ("l4", "l4"), ("l5", "l5"), ("l6", "l6"), ("l7", "l7")]
)
def test_a_list_is_written_by_name_if_the_name_is_unique(list_id: str, written: str) -> None:
    (cells,) = _export.rows_of([Card("c", "A", list_id=list_id)], LISTS, with_archived=True)
    assert cells["list"] == written
    assert of_lists(LISTS).find(written) == list_id


@pytest.mark.parametrize(("pos", "written"), [("top", "top"), (Position.BOTTOM, "bottom"), (16384.0, None), ("16384", None)])
def test_a_position_is_written_where_it_can_be_set(pos: str | float, written: str | None) -> None:
    (cells,) = _export.rows_of([Card("c", "A", list_id="l1", pos=pos)], LISTS, with_archived=False)
    assert cells["pos"] == written


texts = st.text(st.characters(exclude_categories=["Cs"]))
cards = st.builds(
    Card,
    id=texts.filter(bool),
    name=texts.filter(lambda text: bool(text.strip())),
    desc=texts,
    list_id=st.sampled_from(["l1", "l2", "l4", "l7"]),
    due=st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
)


@given(st.lists(cards, max_size=5), st.sampled_from(Format))
def test_an_import_reads_back_what_was_written(written: list[Card], form: Format) -> None:
    out = io.StringIO(newline="")
    left_out: list[_export.LeftOut] = []
    _export.write(_export.rows_of(written, LISTS, with_archived=True), left_out.append, form, out)
    found = list(_rows.read(io.BytesIO(out.getvalue().encode()), of_lists(LISTS), None, Layout(form=form)))
    assert not left_out
    assert [(r.draft.name, r.draft.desc or "", r.draft.due, r.draft.list_id, r.draft.reference) for r in found] == [
        (card.name, card.desc, card.due, card.list_id, card.id) for card in written
    ]


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_file(cli, board_service: BoardService, board, tmp_path: Path, monkeypatch) -> None:
    cli("card", "create", "A", "--list", board.todo)
    path = tmp_path / "cards.csv"
    path.write_text("the backup of yesterday")
    monkeypatch.setattr(os, "fsync", _full)
    code, out, err = cli("export", board.board, "--output", str(path))
    assert (code, out) == (1, "")
    assert err == f"boardclient: error: {path}: No space left on device\n"
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
    assert cli("export", board.board, "--output", os.devnull, "--format", "csv").code == 0
    assert Path(os.devnull).is_char_device()
