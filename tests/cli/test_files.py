"""What a file is, as other programs write it: read as it was meant, or refused with words that say what to do."""

import bz2
import gzip
import io
import json
import lzma
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from import_helpers import into, names

from boardclient.testing import BoardService


def cards(service: BoardService) -> list[tuple[str, str]]:
    return [(card.name, card.desc) for card in service.rules.cards.values()]


@pytest.fixture
def imported(cli, board_service: BoardService, board, csv_file):
    """Import a text into the list Done, and give the names and descriptions of the cards."""

    def imported(text: str, *options: str) -> list[tuple[str, str]]:
        ended = cli("import", csv_file(text), *into(board), "--concurrency", "1", *options)
        assert ended.code == 0, ended.err
        return cards(board_service)

    return imported


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_carriage_return_alone_belongs_to_its_cell(imported, end: str) -> None:
    """As pandas, polars and SheetJS write them, without quotes or with."""
    text = f'name,desc{end}Book the hall\rfor Friday,ask\rAda{end}"Invite\rall","a\r\nb"{end}'
    assert imported(text) == [("Book the hall\rfor Friday", "ask\rAda"), ("Invite\rall", "a\r\nb")]


def test_carriage_returns_before_the_end_of_a_line_belong_to_it(imported) -> None:
    # A text file of Windows to which a program writes CRLF.
    text = 'name,desc\r\r\nBook the hall,x\r\r\nInvite,"a\r\r\nb"\r\r\n\r\r\nBuy,"c\r"\r\r\nBake,d\re'
    assert imported(text) == [("Book the hall", "x"), ("Invite", "a\r\r\nb"), ("Buy", "c\r"), ("Bake", "d\re")]


def test_lines_that_end_with_a_carriage_return_are_lines(imported) -> None:
    """As old Macs write them, with a line feed within a cell."""
    assert imported('name,desc\rA,"x\ny"\rB,c') == [("A", "x\ny"), ("B", "c")]


@pytest.mark.parametrize(
    "text",
    [
        "name;Cost (EUR, net, per hour)\nA, b;x;\n",
        '"name";"desc, or notes";"due, if any"\nA, b;x;\n',
        "name;Place, room, seat;x\nA, b;;y\n",
        "name\tdesc, more\nA, b\tx\n",
        'name,"a;b;c;d"\n"A, b",x\n',
        '"sep=;"\nname;a,b,c\nA, b;x\n',
        "sep=;\nname;a,b,c\nA, b;x\n",
        "Title;Place, room, seat\nA, b;x;\n",
        "x,y;Title\n1;A, b\n",
    ],
)
def test_the_separator_is_found_by_the_first_lines(imported, text: str) -> None:
    """The commas in a column's name or in a text don't decide."""
    options = ("--map", "name=Title") * ("Title" in text)
    assert imported(text, "--skip", "*", *options) == [("A, b", "")]


@pytest.mark.parametrize(("mark", "given"), [(":", ":"), ("\t", "\\t"), ("\t", "tab"), (";", ";"), ("~", "~")])
def test_a_separator_can_be_named(imported, mark: str, given: str) -> None:
    assert imported(f"name{mark}desc\nA,b{mark}c,d\n", "--delimiter", given) == [("A,b", "c,d")]


def test_the_separator_that_is_named_comes_before_the_one_in_the_file(imported) -> None:
    assert imported('"sep=;"\nname,desc\nA,b\n', "--delimiter", ",") == [("A", "b")]


@pytest.mark.parametrize("given", ["", "::", '"', "\n"])
def test_a_separator_that_can_t_be_one_is_refused(cli, board_service, board, csv_file, given: str) -> None:
    cli("import", csv_file("name\nA\n"), *into(board), "--delimiter", given).fails(2, "must be one character, such as ;")
    assert not board_service.calls


def test_without_a_header_columns_have_numbers(cli, imported, board, csv_file) -> None:
    """The first row is a card. Rows that are wider are refused, as are numbers that no column has."""
    text = "Book the hall;ask Ada;1\nInvite;all;2\n\n1;2;3\n"
    found = imported(text, "--no-header", "--map", "name=1", "--map", "desc=2", "--skip", "3")
    assert found == [("Book the hall", "ask Ada"), ("Invite", "all"), ("1", "2")]
    line = (*into(board), "--no-header", "--map", "name=1", "--skip", "*", "--existing", "create")
    cli("import", csv_file("A,b\nB,c,d\n", "wide.csv"), *line).fails(
        2, "row 2: has cells without a column; the first row has 2 cells"
    )
    cli("import", csv_file("A,b\n", "few.csv"), *line, "--map", "desc=5").fails(2, "no column '5' to map or skip, only '1', '2'")
    cli("import", csv_file('{"name": "A"}\n', "a.jsonl"), *line).fails(2, "--no-header are for CSV: the file is JSON Lines")
    assert cli("import", csv_file("{x},b\n[],d\n", "braces.csv"), *line).code == 0


def test_lines_above_the_header_are_skipped(cli, imported, board, csv_file) -> None:
    """They count, so that a row has the number that a spreadsheet shows."""
    assert imported('Export, of today\n"\nname;desc\nA;b\n', "--skip-lines", "2") == [("A", "b")]
    line = (*into(board), "--skip-lines", "2", "--existing", "create")
    cli("import", csv_file("x\ny\nname,due\nA,soon\n", "b.csv"), *line).fails(2, "row 4, column due: 'soon'")
    cli("import", csv_file("x\ny\nz\n", "c.csv"), *line).fails(2, "row 3: there is no column name")
    cli("import", csv_file("x\n", "d.csv"), *line).fails(2, "row 3: the file is empty")
    cli("import", csv_file('x\ny\n{"name": 5}\n', "e.jsonl"), *line).fails(2, "row 3, column name: must be a string")


def _zip(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_zip("[Content_Types].xml", "xl/workbook.xml"), "a workbook: save it as CSV"),
        (_zip("mimetype", "content.xml"), "a workbook: save it as CSV"),
        (_zip("Index/Tables/x.iwa"), "a workbook: save it as CSV"),
        (_zip("cards.csv"), "a zip archive (with 'cards.csv'): unpack it"),
        (_zip(), "a zip archive that can't be read"),
        (b"PK\x03\x04 and more", "a zip archive that can't be read, as damaged workbooks are: save it as CSV"),
        (b"\xd0\xcf\x11\xe0 and more", "a workbook: save it as CSV"),
        (gzip.compress(b"name\nA\n", mtime=0), "compressed by gzip: gunzip -c FILE | boardclient import - …"),
        (bz2.compress(b"name\nA\n"), "compressed by bzip2"),
        (lzma.compress(b"name\nA\n"), "compressed by xz"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a page of HTML or XML, not CSV"),
    ],
)
def test_a_file_that_is_no_table_is_named_as_what_it_is(cli, board_service, board, tmp_path: Path, data: bytes, words) -> None:
    path = tmp_path / "cards.csv"
    path.write_bytes(data)
    cli("import", str(path), *into(board)).fails(2, f"error: the file is {words}", "; nothing was sent")
    assert not board_service.calls


CARDS = [{"name": "A"}, {"name": "B"}]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (CARDS, ".[]"),
        ({"name": "Board", "lists": [], "Cards": CARDS}, ".Cards[]"),
        ({"data": {"issues": CARDS}}, ".data.issues[]"),
        ({"lists": [{"name": "To Do", "cards": CARDS}]}, ".lists[].cards[]"),
        ({"cards": []}, ".cards[]"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_json_export_of_another_tool_is_refused_in_words(cli, board_service, board, csv_file, value, path, indent) -> None:
    """It is one object around the rows, or one array. It is not read as one row, or as a file without rows."""
    text = json.dumps(value, indent=indent)
    option = shlex.quote(path)
    for options in ((), ("--skip", "*")):
        given = csv_file(text, "export.json")
        cli("import", given, *into(board), *options).fails(
            2, f"each line must be one object (jq -c {option} FILE makes such lines"
        )
    assert not board_service.calls_of("cards.create")


def test_the_texts_of_a_file_without_a_header_are_shown_in_likely_encodings(cli, board, tmp_path: Path) -> None:
    path = tmp_path / "cards.csv"
    path.write_bytes("Käse;x\nBrot;y\n".encode("cp1252"))
    line = ("--no-header", "--map", "name=1", "--skip", "*")
    cli("import", str(path), *into(board), *line).fails(2, "row 1, column 1: byte 0xe4", "--encoding windows-1252 reads 'Käse'")


def test_objects_on_several_lines_are_refused_in_words(cli, board, csv_file, monkeypatch) -> None:
    path = csv_file('{\n"name": "A"\n}\n{\n"name": "B"\n}\n', "cards.json")
    cli("import", path, *into(board)).fails(
        2, "row 1: ends within a value; each line must be one object (jq -c . FILE makes such"
    )
    monkeypatch.setattr("boardclient.cli._files._jsonl._LARGEST", 1)
    cli("import", path, *into(board)).fails(2, "each line must be one object (jq -c '.[]' FILE")


def test_rows_that_hold_more_than_a_card_are_read(imported) -> None:
    """What other tools keep beside a card, such as its labels, is left out as any other column is."""
    row = {"name": "A", "labels": [{"name": "urgent"}], "board": {"name": "x"}, "lists": [], "items": ["x"]}
    assert imported(json.dumps(row) + "\n", "--skip", "*") == [("A", "")]


@pytest.mark.parametrize("options", [(), ("--no-header", "--map", "name=1")])
def test_a_file_without_rows_says_so(cli, board_service, board, csv_file, options: tuple[str, ...]) -> None:
    code, out, err = cli("import", csv_file("" if options else "name,desc\n"), *into(board), *options)
    assert (code, out.partition(",")[0], err) == (0, "created 0", "the file has no rows\n")


@pytest.mark.parametrize("name", ["\u200b", "\u200e\u200f", "\u2060\ufeff", "\u3164", "\u00ad \u200d"])
def test_a_name_of_invisible_characters_is_refused_like_an_empty_one(cli, board_service, board, csv_file, name: str) -> None:
    cli("import", csv_file(f"name,desc\nA,\n{name},x\n"), *into(board)).fails(2, "row 3, column name: has no visible character")
    cli("card", "create", name, "--list", board.done).fails(2, "it has no visible character")
    cli("card", "create", " ", "--list", board.done).fails(2, "it is empty")
    assert not board_service.calls_of("cards.create")


def test_the_identifier_of_an_export_names_its_row(cli, board_service: BoardService, board, csv_file) -> None:
    """The rows of an export may be sorted, and added to, between two runs of the same import."""
    line = ("import", csv_file("name,ID\nA,1\nB,2\n"), *into(board))
    assert cli(*line).code == 0
    csv_file("name,ID\nC,3\nB,2\nA,1\n")
    assert cli(*line).code == 0
    assert names(board_service) == ["A", "B", "C"]
    both = csv_file("name,id,reference\nD,1,x\n")
    assert cli("import", both, *into(board), "--skip", "id", "--journal", f"{both}.d").code == 0
    cli("import", both, *into(board), "--journal", f"{both}.e").fails(2, "is named more than once")


# --- advice that is followed


def advised(err: str) -> list[str]:
    """Return the options that a message gives, as a shell reads them."""
    options = re.findall(r"--map (?:'[^']*'|[^\s,;)]+)|--skip '\*'|--no-header", err)
    assert options, err
    return [word for one in options for word in shlex.split(one)]


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("Issue key,Summary,Assignee\nA-1,Do it,Ada\n", (), ["Do it"]),
        ("ID,Task Name,Due Date\n1,Do it,\n", (), ["Do it"]),
        ("Id,Owner,Subject\n1,Ada,Do it\n", (), ["Do it"]),
        ("Mein Titel;Notiz\nDo it;b\n", (), ["Do it"]),
        ("Title,Name\nDo it,b\n", ("--map", "desc=Name"), ["Do it"]),
        ("Title,Headline\nb,Do it\n", ("--map", "desc=Title"), ["Do it"]),
        ("Key,Thing,desc\n1,Do it,b\n", (), ["Do it"]),
        ("desc\nDo it\n", (), ["Do it"]),
        ("Book the hall,ask Ada\nDo it,all\n", ("--no-header",), ["Book the hall", "Do it"]),
        ('{"id": "1", "title": "Do it"}\n', (), ["Do it"]),
    ],
)
def test_following_the_advice_on_names_imports_all_rows(
    cli, board_service: BoardService, board, csv_file, text: str, given: tuple[str, ...], expected: list[str]
) -> None:
    """A column that looks like a title comes before one of identifiers, and never one that is mapped already."""
    line = ("import", csv_file(text), *into(board), *given)
    refused = cli(*line)
    assert (refused.code, "there is no column name" in refused.err) == (2, True)
    assert cli(*line, *advised(refused.err)).code == 0
    assert names(board_service) == sorted(expected)


@pytest.mark.parametrize("text", ["Book the hall,ask Ada\nInvite,all\n", "Book the hall,task\nInvite,task\n"])
def test_a_first_row_that_may_be_a_card_is_not_lost_by_the_advice(cli, board_service, board, csv_file, text: str) -> None:
    line = ("import", csv_file(text), *into(board))
    assert "--no-header" in (err := cli(*line).err)
    assert "if this row is a card" in err
    assert cli(*line, "--no-header", "--map", "name=1", "--skip", "*").code == 0
    assert names(board_service) == ["Book the hall", "Invite"]


def test_where_all_columns_are_mapped_no_one_of_them_is_suggested(cli, board, csv_file) -> None:
    line = ("import", csv_file("Title\nA\n"), *into(board), "--map", "desc=Title")
    cli(*line).fails(2, "only 'Title'; give --map name=COLUMN for one that is not mapped or skipped")


@pytest.mark.parametrize(
    ("text", "advice", "card"),
    [
        ("name,Status\nA,Doing\n", "--map list=Status", ("A", "", None, "Doing")),
        ("name,list,Deadline\nA,Done,2027-01-31\n", "--map due=Deadline", ("A", "", "2027-01-31T00:00:00Z", "Done")),
        ("name,list,Status,Notes\nA,Done,x,b\n", "--map desc=Notes", ("A", "b", None, "Done")),
        ("name,list,Task ID\nA,Done,7\n", "--map 'reference=Task ID'", ("A", "", None, "Done")),
        ("name,list,desc,Notes\nA,Done,b,c\n", "--skip '*'", ("A", "b", None, "Done")),
    ],
)
def test_following_the_advice_on_other_columns_reads_them(
    cli, board_service: BoardService, board, csv_file, text: str, advice: str, card: tuple[str, str, str | None, str]
) -> None:
    line = ("import", csv_file(text), "--board", board.board)
    err = cli(*line).err
    assert advice in err.partition(" (")[2] + err.partition("give --list for all rows")[2]
    given = [word for word in shlex.split(advice) if word]
    others = ("--skip", "Status") if "Status,Notes" in text else ()
    assert cli(*line, *given, *others).code == 0
    (made,) = board_service.rules.cards.values()
    assert (made.name, made.desc, made.due, board_service.rules.lists[made.list_id].name) == card
