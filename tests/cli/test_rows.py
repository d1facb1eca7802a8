"""The file of an import: what is read, what is refused, and how a wrong place is named."""

import string
import tempfile
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import BoardList, CardDraft, Position
from boardclient.cli import _export
from boardclient.cli._errors import UsageError
from boardclient.cli._names import of_lists
from boardclient.cli._rows import Board, FileRow, Layout, Problem, named_boards, parse_due, problem_lines, read, recognise

LISTS = of_lists(
    [
        BoardList("l1", "To Do"),
        BoardList("l2", "Doing", closed=False),
        BoardList("l3", "Twin"),
        BoardList("l4", "Twin"),
        BoardList("l5", "Old", closed=True),
        BoardList("l6", None),
        BoardList("l7", None, closed=True),
        BoardList("l8", "l1"),
        BoardList("l9", "l9"),
        BoardList("l10", "Reused", closed=True),
        BoardList("l11", "Reused"),
    ]
)


def rows_of(text: str | bytes, form: str = "csv", default: str | None = "l2") -> list[FileRow | Problem]:
    with tempfile.TemporaryFile() as file:
        file.write(text if isinstance(text, bytes) else text.encode())
        file.flush()
        return list(read(file, {None: Board("b", LISTS)}, recognise(file, Layout(form=form, zone=UTC, default_list=default))))


def said(text: str | bytes, form: str = "csv", default: str | None = "l2") -> list[str]:
    return [
        shown(item) if isinstance(item, Problem) else f"{item.number}={item.draft.name}" for item in rows_of(text, form, default)
    ]


def shown(problem: Problem) -> str:
    (line,) = problem_lines([problem])
    return line


@pytest.mark.parametrize(
    ("value", "list_id"),
    [("l2", "l2"), ("To Do", "l1"), ("l5", "l5"), ("l6", "l6"), ("l9", "l9"), ("Reused", "l11"), ("l1", "l1")],
)
def test_a_list_is_found_by_identifier_or_name(value: str, list_id: str) -> None:
    assert LISTS.find(value) == list_id


@pytest.mark.parametrize("mark", [";", ",", "\t", "|"])
def test_a_line_that_names_the_separator_for_excel_is_no_header(mark: str) -> None:
    rows = rows_of(f"sep={mark}\nname{mark}desc\nA{mark}B\n")
    assert [(row.number, row.draft.name, row.draft.desc) for row in rows if isinstance(row, FileRow)] == [(3, "A", "B")]


def test_many_lists_are_not_named() -> None:
    few, many = (of_lists(BoardList(f"l{number}", f"List {number}") for number in range(count)) for count in (8, 9))
    with pytest.raises(UsageError, match=r"'List 7'$"):
        few.find("xyz")
    with pytest.raises(UsageError, match=r"of a list of the board$"):
        many.find("xyz")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("xyz", "'xyz' is neither the identifier nor the name of a list of the board; there are 'To Do', 'Doing',"),
        ("to do", "did you mean 'To Do'?"),
        ("Old", "an archived list is given by its identifier"),
        ("Twin", "'Twin' is the name of 2 lists; give an identifier: l3, l4"),
        ("x" * 100, f"'{'x' * 60}…' is neither"),
    ],
)
def test_an_unknown_or_ambiguous_list_is_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        LISTS.find(value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tomorrow", "is not an ISO 8601 date"),
        ("2027-13-01T00:00:00Z", "is not an ISO 8601"),
        ("0001-01-01T00:00:00+23:00", "outside of the years"),
    ],
)
def test_an_invalid_due_date_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_due(text)
    assert message in str(caught.value)


def test_a_csv_row_becomes_a_draft_whatever_the_order_of_the_columns() -> None:
    text = 'list,pos,reference,due,desc,name\r\nTo Do,top,r-1,2027-01-02T03:04:05Z,"a, b\nc",Ship it\r\n,,,,,Plain\r\n'
    assert rows_of(text) == [
        FileRow(
            2, CardDraft("Ship it", "l1", "a, b\nc", datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC), Position.TOP, "r-1"), ("b", None)
        ),
        FileRow(3, CardDraft("Plain", "l2"), ("b", None)),
    ]


def test_a_json_row_becomes_a_draft_and_null_is_not_sent() -> None:
    lines = [
        '{"name": "A", "desc": "", "due": null, "pos": "bottom", "list": "Doing", "reference": "7"}',
        "",
        '{"name": "B", "due": "", "pos": "", "list": "", "reference": "", "desc": null}',
    ]
    assert rows_of("\n".join(lines), "jsonl") == [
        FileRow(1, CardDraft("A", "l2", "", pos=Position.BOTTOM, reference="7"), ("b", None)),
        FileRow(3, CardDraft("B", "l2"), ("b", None)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", ["row 1: the file is empty; the first row must name the columns"], id="empty"),
        pytest.param("name\n", [], id="header-only"),
        pytest.param("\r\n;\nname;desc\nA;b\n", ["4=A"], id="empty-cells-before-the-header"),
        pytest.param("\r\n\nname;desc\nA;b\n", ["4=A"], id="blank-lines-before-the-header"),
        pytest.param("\ufeffname\nA\n", ["2=A"], id="bom"),
        pytest.param("name\n\ufeffA\n", ["2=\ufeffA"], id="no-bom-but-a-character"),
        pytest.param("name , desc\nA\n", ["2=A"], id="padded-header-short-row"),
        pytest.param('name,desc\nA,"x\ny"\n\nB,\n', ["2=A", "4=B"], id="rows-are-counted-not-lines"),
        pytest.param(
            "name,colour,Owner\nA,red,x\n",
            ["row 1: unknown: 'colour', 'Owner'; the columns are name, desc, due, pos, list, reference"],
        ),
        pytest.param("name,name\nA,B\n", ["row 1, column name: is named more than once"], id="double-column"),
        pytest.param("desc\nA\n", ["row 1: there is no column name; --map name=NAME"], id="no-name-column"),
        pytest.param(b"name,\x81\nA,B\n", ["row 1: is neither UTF-8 nor Windows-1252"], id="header-bytes"),
        pytest.param(
            "name,desc\nA,b,c\n", ["row 2: has cells without a column; the header names 2 columns"], id="too-many-cells"
        ),
        pytest.param(
            "name,desc\n,b\n \t,c\n", ["row 2, column name: is missing", "row 3, column name: is missing"], id="no-name"
        ),
        pytest.param("name,due\nA,soon\nB,2027-01-01\n", ["row 2, column due", "3=B"], id="due"),
        pytest.param("name,pos\nA,3\n", ['row 2, column pos: \'3\': is neither "top" nor "bottom"'], id="pos"),
        pytest.param(
            "name,list\nA,Twin\nB,x\nC,Old\n", ["row 2, column list", "row 3, column list", "row 4, column list"], id="list"
        ),
        pytest.param(
            b"name,list,desc\nA,\xff,\xfe\n\xff,To Do,\nB,To Do,\xc3\xa9\n",
            [
                "row 2, column list: is neither UTF-8 nor Windows-1252",
                "row 2, column desc: is neither UTF-8 nor Windows-1252",
                "row 3, column name: is neither UTF-8 nor Windows-1252",
                "4=B",
            ],
            id="cell-bytes",
        ),
        pytest.param('name\nA\n"B"x\nC\n', ["2=A", "row 3: is malformed CSV: ',' expected after '\"'"], id="quote-in-cell"),
        pytest.param('name\n"A\n', ["row 2: is malformed CSV: unexpected end of data"], id="open-quote"),
        pytest.param("name\rA\r", ["2=A"], id="carriage-returns"),
        pytest.param("name;;\nA;;\n;;\nB;;\n", ["2=A", "4=B"], id="empty-rows-and-columns"),
        pytest.param("name,\nA,x\n", ["row 2: has cells without a column; the header names 1 columns"], id="no-column"),
        pytest.param(b"\xff\xfen\x00a\x00m\x00e\x00\n\x00A", ["row 2: is cut off, or not UTF-16"], id="half-a-character"),
        pytest.param(",due,pos,list\n".replace(",", "name,", 1) + ",x,y,z\n", ["name", "due", "pos", "list"], id="all-of-a-row"),
    ],
)
def test_a_csv_file_is_read_or_its_invalid_places_are_named(text: str | bytes, expected: list[str]) -> None:
    found = said(text)
    assert len(found) == len(expected)
    assert all(part in item for part, item in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="empty"),
        pytest.param('\ufeff{"name": "A"}', ["1=A"], id="bom"),
        pytest.param('{"name": "A"\n{"name": "B"}\n', ["row 1: is not JSON: ", "2=B"], id="broken-line"),
        pytest.param('["A"]\n"A"\n', ["row 1: is not a JSON object", "row 2: is not a JSON object"], id="no-object"),
        pytest.param(
            b'{"name": "\xff"}\n{"name": "\xc3\xa9"}',
            ["row 1, column name: is neither UTF-8 nor Windows-1252", "2=é"],
            id="bytes",
        ),
        pytest.param('{"name": "\\ud800"}', ["row 1, column name: is neither UTF-8 nor Windows-1252"], id="surrogate"),
        pytest.param("[" * 200_000, ["row 1: is not JSON: "], id="nesting"),
        pytest.param('{"name": ' + "1" * 5000 + "}", ["row 1: is not JSON: "], id="number"),
        pytest.param('{"name": "A", "due": 5}', ["row 1, column due: must be a string or null"], id="type"),
        pytest.param('{"name": {"a": 1}}', ["row 1, column name: must be a string or null"], id="object-type"),
        pytest.param('{"name": "A", "Name": "B"}', ["row 1, column Name: is named more than once"], id="double"),
        pytest.param('{"name": "A", "colo\\u001br": "B"}', ["row 1: unknown: 'colo\\x1br'"], id="unknown"),
        pytest.param('{"name": null}\n{}\n', ["row 1, column name: is missing", "row 2, column name: is missing"], id="no-name"),
    ],
)
def test_a_json_lines_file_is_read_or_its_invalid_places_are_named(text: str | bytes, expected: list[str]) -> None:
    found = said(text, "jsonl")
    assert len(found) == len(expected)
    assert all(part in item for part, item in zip(expected, found, strict=True)), found


def test_rows_may_name_a_board_and_an_account_where_an_engine_runs_them() -> None:
    text = "name,list,board,Account\nA,To Do,,\nB,Only,Other,ada\nC,To Do,,ada\n"
    engine = "needs --engine dask: there is a job for each board and account"
    assert said(text) == [
        "2=A",
        *(f"row 3, column {column}: '{value}': {engine}" for column, value in (("board", "Other"), ("Account", "ada"))),
        f"row 4, column Account: 'ada': {engine}",
    ]
    with tempfile.TemporaryFile() as file:
        file.write(text.encode() + b"D,Only,\x81,\n")
        file.flush()
        layout = recognise(file, Layout(has_places=True))
        assert list(named_boards(file, layout)) == ["Other"]
        found = list(read(file, {"Other": Board("o", of_lists([BoardList("l", "Only")]))}, layout))
    assert [row.place for row in found if isinstance(row, FileRow)] == [("o", "ada")]
    problems = [shown(row) for row in found if isinstance(row, Problem)]
    assert problems[0] == "row 2, column board: is missing, and no --board is given"


def test_without_a_default_every_row_needs_a_list() -> None:
    assert said("name\nA\n", default=None) == ["row 1: there is no column list; give --list for all rows"]
    assert said("name,list\nA,To Do\nB,\n", default=None) == ["2=A", "row 3, column list: is missing, and no --list is given"]
    assert said(b"name,list\nA,\x81\n", default=None)[0].startswith("row 2, column list: is neither UTF-8 nor")
    assert said('{"name": "A"}', "jsonl", default=None) == ["row 1, column list: is missing, and no --list is given"]


@pytest.mark.parametrize("raw", [b"\xff\xfen", b"\xff\xfe", b"\xfe\xff\x00"])
def test_a_header_that_is_cut_off_is_named(raw: bytes) -> None:
    assert said(raw)[0].startswith("row 1: ")


def test_a_large_cell_is_read() -> None:
    (row,) = rows_of(f'name,desc\nA,"{"x" * 200_000}"\n')
    assert isinstance(row, FileRow)
    assert row.draft.desc == "x" * 200_000


texts = st.text(st.characters(exclude_categories=["Cs"]))
names = texts.filter(lambda text: bool(text.strip()))
dues = st.datetimes(
    min_value=datetime(1000, 1, 2),
    max_value=datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))]),
)
drafts = st.builds(
    CardDraft,
    name=names,
    list_id=st.sampled_from(["l2", "l5"]),
    desc=st.none() | texts.filter(bool),
    due=st.none() | dues,
    pos=st.none() | st.sampled_from(Position),
    reference=st.none() | texts.filter(bool),
)


def as_cells(draft: CardDraft) -> dict[str, str | None]:
    due = None if draft.due is None else draft.due.isoformat()
    pos = None if draft.pos is None else str(draft.pos)
    return {"name": draft.name, "desc": draft.desc, "due": due, "pos": pos, "list": draft.list_id, "reference": draft.reference}


@given(st.lists(drafts, max_size=5), st.sampled_from(",;\t|"))
def test_what_an_export_writes_is_read_back(written: list[CardDraft], delimiter: str) -> None:
    cells = list(map(as_cells, written))
    text = _export._csv(cells, delimiter)
    rows = rows_of(text)
    assert [row.draft for row in rows if isinstance(row, FileRow)] == written
    assert len(rows) == len(written)


@given(st.binary(max_size=200) | st.text(string.printable, max_size=200).map(str.encode), st.sampled_from(["csv", "jsonl"]))
def test_no_bytes_make_it_fail(raw: bytes, form: str) -> None:
    """Any bytes are read as rows or as named problems, never as an unexpected error."""
    try:
        rows = rows_of(b"name,list\n" + raw if form == "csv" else raw, form)
    except UsageError as error:
        assert "is a workbook" in str(error)  # noqa: PT017 -- whether it is one is drawn
    else:
        assert all(isinstance(item, FileRow | Problem) for item in rows)
