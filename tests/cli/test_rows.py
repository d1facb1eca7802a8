"""The file of an import: what is read, what is refused, and how a wrong place is named."""

import re
import string
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import BoardList, Card, CardDraft, Position
from boardclient.cli._files._export import CardFile
from boardclient.cli._files._layout import Layout, Problem, problem_lines
from boardclient.cli._files._recognise import recognise
from boardclient.cli._files._rows import FileRow, ImportBoard, named_boards, read
from boardclient.cli._names import of_lists
from boardclient.cli._output import UsageError
from boardclient.models import is_visible

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
        return list(
            read(file, {None: ImportBoard("b", LISTS)}, recognise(file, Layout(form=form, zone=UTC, default_list=default)))
        )


def said(text: str | bytes, form: str = "csv", default: str | None = "l2") -> list[str]:
    return [
        shown(item) if isinstance(item, Problem) else f"{item.number}={item.draft.name}" for item in rows_of(text, form, default)
    ]


def refused(text: str | bytes, **layout: Any) -> list[str]:
    """Give the lines of the error, and its message at the end."""
    with tempfile.TemporaryFile() as file, pytest.raises(UsageError) as caught:
        file.write(text if isinstance(text, bytes) else text.encode())
        file.flush()
        recognise(file, Layout(**layout))
    return [*caught.value.lines, str(caught.value)]


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
        pytest.param("   \n , \n", ["row 1: the file is empty; the first row must name the columns"], id="blank"),
        pytest.param("name\n", [], id="header-only"),
        pytest.param("\r\n;\nname;desc\nA;b\n", ["4=A"], id="empty-cells-before-the-header"),
        pytest.param("\r\n\nname;desc\nA;b\n", ["4=A"], id="blank-lines-before-the-header"),
        pytest.param("\ufeffname\nA\n", ["2=A"], id="bom"),
        pytest.param("name\nA\ufeff\ufeffB\n", ["2=A\ufeff\ufeffB"], id="no-bom-but-a-character"),
        pytest.param("name\n'\ufeffA\n", ["2=\ufeffA"], id="a-character-as-exports-write-it"),
        pytest.param("name\nA\n\ufeffB\n", ["2=A", "row 3: begins with the mark of a file, so several"], id="bom-in-the-middle"),
        pytest.param(
            'name,desc\nA,b\n\ufeff"name","desc"\nC,d\n', ["2=A", "row 3: begins with the mark", "4=C"], id="joined-with-bom"
        ),
        pytest.param("name,desc\nA,b\n\nname, desc\nC,d\n", ["2=A", "row 4: is a header again", "5=C"], id="header-again"),
        pytest.param("name,desc\nDesc,Name\nA,b\n", ["row 2: is a header again", "3=A"], id="header-in-another-order"),
        pytest.param("name,desc\nname,due\n", ["row 2: is a header again"], id="header-with-another-column"),
        pytest.param("name\nA\nname\n", ["2=A", "row 3: is a header again"], id="header-of-one-column"),
        pytest.param("name,desc\nName,\nDue,soon\n", ["2=Name", "3=Due"], id="cards-called-like-columns"),
        pytest.param("desc,name\nb\n", ["row 2, column name: is missing"], id="row-that-ends-before-the-name"),
        pytest.param("name,desc\nA,b\n\x1a\n", ["2=A", "row 3, column name: is missing"], id="end-of-file-character-of-dos"),
        pytest.param("name , desc\nA\n", ["2=A"], id="padded-header-short-row"),
        pytest.param('name,desc\nA,"x\ny"\n\nB,\n', ["2=A", "4=B"], id="rows-are-counted-not-lines"),
        pytest.param(
            "name,colour,Owner\nA,red,x\n",
            ["row 1: unknown: 'colour', 'Owner'; the columns are name, desc, due, pos, list, reference"],
        ),
        pytest.param("name,name\nA,B\n", ["row 1, column name: is named more than once"], id="double-column"),
        pytest.param("desc\nA\n", ["row 1: there is no column name, only 'desc'; give for example --map name=desc"]),
        pytest.param(
            "Mein Titel;Notiz\nA;b\n",
            ["row 1: there is no column name, only 'Mein Titel', 'Notiz'; give for example --map 'name=Mein Titel' --skip '*'"],
            id="no-column-that-is-known",
        ),
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
        pytest.param('name\nA\n"B"x\nC\n', ["2=A", "row 3: is malformed CSV: ',' expected after '\"'"], id="quote-in-cell"),
        pytest.param('name\n"A\n', ["row 2: is malformed CSV: unexpected end of data"], id="open-quote"),
        pytest.param("name\rA\r", ["2=A"], id="carriage-returns"),
        pytest.param("name;;\nA;;\n;;\nB;;\n", ["2=A", "4=B"], id="empty-rows-and-columns"),
        pytest.param("name,\nA,x\n", ["row 2: has cells without a column; the header names 1 column"], id="no-column"),
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
        pytest.param('{"name": A}\n{"name": "B"}\n', ["row 1: is not JSON: ", "2=B"], id="broken-line"),
        pytest.param('{"name": "B"}\n{"name": "A', ["1=B", "row 2: is not JSON: Unterminated"], id="cut-text"),
        pytest.param('{"name": "B"}\n{"name": \n{}', ["1=B", "row 2: ends within a value", "row 3, column"], id="cut-line"),
        pytest.param(
            '{\n  "name": "A",\n  "desc": "b"\n}\n', ["row 1: ends within a value; each line must be one object"], id="one-object"
        ),
        pytest.param('[\n{"name": "A"},\n{"name": "B"}\n]\n', ["row 1: ends within a value; each line must be"], id="array"),
        pytest.param('[{"name": "A"}]', ["row 1: is not a JSON object; each line must be one object"], id="array-on-one-line"),
        pytest.param('["A"]\n"A"\n', ["row 1: is not a JSON object", "row 2: is not a JSON object"], id="no-object"),
        pytest.param(
            '{"name": "A"}\n\ufeff{"name": "B"}',
            ["1=A", "row 2: begins with the mark of a file, so several files were joined"],
            id="joined",
        ),
        pytest.param('{"name": "A"}{"name": "B"}', ["row 1: is not JSON: Extra data"], id="joined-without-an-end-of-line"),
        pytest.param('{"name": "A", "name": "B"}\n', ["row 1: has the key 'name' more than once"], id="key-twice"),
        pytest.param('{"name": "A", "x": 1, "x": 2}\n', ["row 1: has the key 'x' more than once"], id="unknown-key-twice"),
        pytest.param('{"name": {"a": 1, "a": 2}}\n', ["row 1, column name: must be a string or null"], id="inner-key-twice"),
        pytest.param('{"name": "\\ud800"}', ["row 1, column name: holds a lone surrogate"], id="surrogate"),
        pytest.param('{"name": "A", "desc": "\\udc41\\u0000"}', ["row 1, column desc: holds a lone surrogate"], id="other"),
        pytest.param('{"name": "A\\u0000"}', ["row 1, column name: holds a NUL character"], id="nul"),
        pytest.param('{"name": "\\ud83d\\ude00"}', ["1=😀"], id="a-pair-of-surrogates"),
        pytest.param("[" * 200_000, ["row 1: is not JSON: "], id="nesting"),
        pytest.param('{"name": ' + "1" * 5000 + "}", ["row 1: is not JSON: "], id="number"),
        pytest.param('{"name": "A", "due": 5}', ["row 1, column due: must be a string or null"], id="type"),
        pytest.param('{"name": {"a": 1}}', ["row 1, column name: must be a string or null"], id="object-type"),
        pytest.param('{"name": "A", "Name": "B"}', ["row 1, column Name: is named more than once"], id="double"),
        pytest.param('{"titel": "A", "notiz": "B"}', ["row 1: there is no column name, only 'titel', 'notiz'"], id="no-name-key"),
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
        file.write(text.encode())
        file.flush()
        layout = recognise(file, Layout(has_places=True))
        assert list(named_boards(file, layout)) == ["Other"]
        found = list(read(file, {"Other": ImportBoard("o", of_lists([BoardList("l", "Only")]))}, layout))
    assert [row.place for row in found if isinstance(row, FileRow)] == [("o", "ada")]
    problems = [shown(row) for row in found if isinstance(row, Problem)]
    assert problems[0] == "row 2, column board: is missing, and no --board is given"


def test_without_a_default_every_row_needs_a_list() -> None:
    assert said("name\nA\n", default=None) == ["row 1: there is no column list; give --list for all rows"]
    assert said("name,list\nA,To Do\nB,\n", default=None) == ["2=A", "row 3, column list: is missing, and no --list is given"]
    assert said('{"name": "A"}', "jsonl", default=None) == ["row 1, column list: is missing, and no --list is given"]


def test_an_empty_file_that_has_a_mark_is_empty() -> None:
    assert said(b"\xff\xfe")[0].startswith("row 1: the file is empty")


def test_a_large_cell_is_read() -> None:
    (row,) = rows_of(f'name,desc\nA,"{"x" * 200_000}"\n')
    assert isinstance(row, FileRow)
    assert row.draft.desc == "x" * 200_000


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x1b"))
names = texts.filter(is_visible)
dues = st.datetimes(
    min_value=datetime(1000, 1, 2),
    max_value=datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))]),
)
cards = st.builds(
    Card,
    id=texts.filter(bool),
    name=names,
    desc=st.none() | texts.filter(bool),
    list_id=st.sampled_from(["l2", "l3", "l6", "l8"]),
    due=st.none() | dues,
    pos=st.none() | st.sampled_from(Position),
)


@given(st.lists(cards, max_size=5), st.sampled_from(",;\t|"))
def test_what_an_export_writes_is_read_back(written: list[Card], delimiter: str) -> None:
    file = CardFile(LISTS, Layout(), delimiter)
    assert not any(map(file.add, written))
    rows = rows_of(file.text)
    drafts = [CardDraft(card.name or "", card.list_id or "", card.desc, card.due, card.pos, card.id) for card in written]
    assert [row.draft for row in rows if isinstance(row, FileRow)] == drafts
    assert len(rows) == file.number == len(written)


@given(st.binary(max_size=200) | st.text(string.printable, max_size=200).map(str.encode), st.sampled_from(["csv", "jsonl"]))
def test_no_bytes_make_it_fail(raw: bytes, form: str) -> None:
    """Any bytes are read as rows or as named problems, never as an unexpected error."""
    try:
        rows = rows_of(b"name,list\n" + raw if form == "csv" else raw, form)
    except UsageError as error:
        assert re.match("the file (is|begins with the mark of) ", str(error))  # noqa: PT017 -- whether it is one is drawn
    else:
        assert all(isinstance(item, FileRow | Problem) for item in rows)


def test_a_line_names_each_row_once() -> None:
    """However many of its cells have the same mistake."""
    problems = [Problem(number, None, "is wrong") for number in (2, 2, 3, 3)]
    assert problem_lines(problems) == ["rows 2, 3: is wrong"]
    assert problem_lines(problems[:2]) == ["row 2: is wrong"]


def test_as_many_dates_as_rows_are_read() -> None:
    days = [datetime(2027, 1, 1, tzinfo=UTC) + timedelta(hours=hours) for hours in range(1200)]
    rows = rows_of("name,due\n" + "".join(f"A,{day.isoformat()}\n" for day in days))
    assert [row.draft.due for row in rows if isinstance(row, FileRow)] == days
