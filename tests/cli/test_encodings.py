"""The encoding of an import's file is proven or named: nobody's letters are guessed, and nothing is sent before it is sure."""

import csv
import io
import locale
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import into, names

from boardclient import BoardList
from boardclient.cli._files._encodings import encoding_named
from boardclient.cli._files._layout import Layout, Problem
from boardclient.cli._files._recognise import recognise
from boardclient.cli._files._rows import FileRow, ImportBoard, read
from boardclient.cli._names import of_lists
from boardclient.cli._output import UsageError
from boardclient.testing import BoardService

RUSSIAN, POLISH, JAPANESE, CHINESE, GREEK, GERMAN = (
    "Купить билеты",
    "Zażółć gęślą jaźń",
    "切符を買う",
    "給安娜打電話",
    "Αγορά εισιτηρίων",
    "Zürich 5 Käse",
)
FILES = [
    *((RUSSIAN, name) for name in ("cp1251", "koi8-r", "cp866", "iso8859-5", "mac-cyrillic", "utf-32", "utf-16-le", "utf-16-be")),
    *((POLISH, name) for name in ("cp1250", "iso8859-2", "mac-latin2")),
    *((JAPANESE, name) for name in ("cp932", "shift_jis", "euc-jp", "iso2022-jp")),
    *((CHINESE, name) for name in ("big5", "gbk", "gb18030")),
    *((GREEK, name) for name in ("iso8859-7", "cp1253")),
    *((GERMAN, name) for name in ("windows-1252", "mac-roman", "cp850", "latin-1")),
]


@pytest.fixture
def written(tmp_path: Path):
    """Write a file, and give its path."""

    def write(raw: bytes, name: str = "cards.csv") -> str:
        path = tmp_path / name
        path.write_bytes(raw)
        return str(path)

    return write


@pytest.mark.parametrize(("text", "encoding"), FILES, ids=[encoding for _, encoding in FILES])
def test_another_encoding_is_read_once_it_is_named(cli, board_service, board, written, text: str, encoding: str) -> None:
    path = written(f"name;desc\r\n{text};x\r\nplain;{text}\r\n".encode(encoding))
    cli("import", path, *into(board)).fails(2, "nothing was sent. Give its encoding (--encoding NAME), or mend it")
    assert not board_service.calls
    assert cli("import", path, *into(board), "--encoding", encoding).code == 0
    assert {(card.name, card.desc) for card in board_service.rules.cards.values()} == {(text, "x"), ("plain", text)}


def test_the_first_names_are_shown_as_likely_encodings_would_read_them(cli, board_service, board, written, monkeypatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "KOI8-R")
    rows = "".join(f"{name};на поезд\r\n" for name in ("plain", RUSSIAN, "Позвонить", "Ждать", "Прийти"))
    code, _, err = cli("import", written(f"Name;desc\r\n{rows}".encode("cp1251")), *into(board))
    assert code == 2
    assert not board_service.calls
    descs, rows, *lines = err.splitlines()
    assert rows == "boardclient: rows 3, 4, 5, 6, column Name: byte 0xca and others: is not UTF-8"
    assert descs == "boardclient: rows 2, 3, 4, 5, 6, column desc: byte 0xed and others: is not UTF-8"
    assert [line.partition(", ")[0] for line in lines[:-1]] == [
        "boardclient: --encoding KOI8-R reads 'йСОХРЭ АХКЕРШ'",
        "boardclient: --encoding windows-1252 reads 'Êóïèòü áèëåòû'",
        "boardclient: --encoding windows-1251 reads 'Купить билеты'",
    ]
    assert lines[2].endswith("'Купить билеты', 'Позвонить', 'Ждать'")


@pytest.mark.parametrize(
    ("raw", "reading"),
    [
        ("Titel;Notiz\nPlain;Käse\n".encode("cp1252"), "--encoding windows-1252 reads 'Käse'"),
        ("name;Notiz\nPlain;Käse\n".encode("cp1252"), "--encoding windows-1252 reads 'Käse'"),
        ('{"name": "Käse"}\n'.encode("cp1252"), """--encoding windows-1252 reads '{"name": "Käse"}'"""),
        ("name\nPlain\n".encode("utf-16-le"), "--encoding utf-16-le reads 'Plain'"),
        ("name\nPlain\n".encode("utf-32"), "--encoding utf-32 reads 'Plain'"),
        ("name,desc\n日本,x\n".encode("iso2022-jp"), "--encoding iso2022-jp reads '日本'"),
    ],
)
def test_texts_are_shown_where_no_name_tells_more(cli, board_service, board, written, raw: bytes, reading: str) -> None:
    cli("import", written(raw), *into(board)).fails(2, f"boardclient: {reading}\n")
    assert not board_service.calls


def test_no_encoding_is_shown_that_leaves_bytes_undefined_or_reads_controls(cli, board, written) -> None:
    for raw in (b"name\n\x81\x98\x88\xff\x80\x83\n\xa0\xa1\x84\x1b$", b"\xa0\xa0"):  # the last are blanks
        code, _, err = cli("import", written(raw), *into(board))
        assert code == 2
        assert not re.search("windows.* reads|iso.* reads", err)


DAMAGED = {
    "cut in a character": (f"name\n{RUSSIAN}".encode()[:-1], ["row 2, column name: byte 0xd1: is not UTF-8"]),
    "one broken byte": (
        f"name,desc\n{RUSSIAN},\n{POLISH},x\xfc\n".encode().replace("ü".encode(), b"\xfc"),
        ["row 3, column desc: byte 0xfc: is not UTF-8", "(2 other texts of it can be read, so it may be damaged)"],
    ),
    "in the header": (b"name,\xfc\nA,\xfc\n", ["rows 1, 2: byte 0xfc and others: is not UTF-8"]),
    "after its mark": (b"\xef\xbb\xbfname\nA\xff\n", ["row 2, column name: byte 0xff: is not UTF-8"]),
    "half of UTF-16": (f"name\n{RUSSIAN}".encode("utf-16")[:-1], ["row 2, column name: byte 0x4b: is not UTF-16"]),
    "a lone surrogate": (b"\xff\xfen\0a\0m\0e\0\n\0\x00\xd8A\0", ["row 2, column name: byte 0x00: is not UTF-16"]),
    "its last block": (b"name,desc\nBook the hall,x\n" + bytes(512), ["row 3, column name: holds a NUL character"]),
    "a block between": (b"name,desc\nA,x" + bytes(512) + b"\nB,y\n", ["row 2, column desc: holds a NUL character"]),
    "a block of the header": (bytes(4) + b"name\nA\n", ["row 1: holds a NUL character"]),
    "a block of JSON": (b'{"name": "A"}\n{"na' + bytes(99) + b'e": "B"}\n', ["row 2: holds a NUL character"]),
    "behind a quote that is not closed": (b'name,desc\nA,"b\nC,\xff\n', ["row 2, column desc: byte 0xff: is not UTF-8"]),
    "joined of two encodings": (f"name\n{POLISH}\n".encode() + f"{POLISH}\n".encode("cp1250"), ["row 3, column name: byte"]),
    "joined with UTF-16": (f"name\n{POLISH}\n".encode() + "name\n".encode("utf-16"), ["row 3, column name: byte 0xff"]),
}


@pytest.mark.parametrize(("raw", "words"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("source", ["file", "stdin", "dask"])
def test_a_damaged_file_sends_nothing_and_names_the_place(
    cli, board_service, board, written, monkeypatch, raw: bytes, words: list[str], source: str
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw), isatty=lambda: False))
    engine = ("--engine", "dask", "--ledger", written(b"", "ledger")) if source == "dask" else ()
    code, out, err = cli("import", "-" if source == "stdin" else written(raw), *into(board), *engine)
    assert (code, out) == (2, "")
    assert not [word for word in [*words, "nothing was sent"] if word not in err], err
    assert not board_service.calls


@pytest.mark.parametrize(
    ("raw", "encoding", "words"),
    [
        (b"name\nA\n\x81\n", "cp1252", "row 3, column name: byte 0x81: is not cp1252"),
        (b"name\nA\n\x98\n", "windows-1251", "row 3, column name: byte 0x98: is not cp1251"),
        (b"name\n\x90\xd8\x95\n", "cp932", "row 2, column name: byte 0x95: is not cp932"),
        (b"name\nZ\xfcrich 5 \x80\n", "latin-1", "row 2, column name: U+0080: is a control character in iso8859-1"),
        (b"name\nZ\xfcrich\n", "utf-8", "row 2, column name: byte 0xfc: is not UTF-8"),
        (b"name\nZ\xfcrich\n", "ascii", "row 2, column name: byte 0xfc: is not ascii"),
        (b"name\nA\n", "utf-16", "the file has no mark that tells the order of its bytes"),
        (b"name\nA\n", "utf-16-le", "is not UTF-16"),
        (b"\xff\xfeA\0", "utf-16-be", "the file begins with the mark of UTF-16, so it is not UTF-16"),
        (b"\xff\xfeA\0", "cp1252", "the file begins with the mark of UTF-16, so it is not cp1252"),
        (b"\xef\xbb\xbfname\nA\n", "cp1252", "the file begins with the mark of UTF-8, so it is not cp1252"),
        (
            b"name\n)$\n}\x0f\x0fB\xe6\x97\xa50\x0f0\xe6\x97\xa5{-\x0fA\nJ\xc3\xa9\x1b)+\xc3\xa9\x0f0(}\xe6\x97\xa50+",
            "iso2022_jp_ext",
            "is not text in iso2022",
        ),
    ],
)
def test_a_named_encoding_is_refused_by_bytes_that_it_leaves_undefined(
    cli, board_service, board, written, raw: bytes, encoding: str, words: str
) -> None:
    code, out, err = cli("import", written(raw), *into(board), "--encoding", encoding)
    assert (code, out) == (2, "")
    assert words in err
    assert "nothing was sent" in err
    assert "reads" not in err, "others are not suggested"
    assert not board_service.calls


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        ("\ufeffname\nZürich\n".encode(), "utf-8"),
        ("\ufeffname\nZürich\n".encode(), "utf-8-sig"),
        ("name\nZürich\n".encode(), "UTF8"),
        ("name\nZürich\n".encode("utf-16"), "utf-16"),
        ("\ufeffname\nZürich\n".encode("utf-16-be"), "utf-16"),
        ("\ufeffname\nZürich\n".encode("utf-16-be"), "utf-16-be"),
        ("\ufeffname\nZürich\n".encode("gb18030"), "gb18030"),
        ("\ufeffname\nZürich\n".encode("utf-16-be"), None),
        ("\ufeffname\nZürich\n".encode(), None),
    ],
)
def test_the_mark_of_a_file_is_no_text(cli, board_service: BoardService, board, written, raw: bytes, encoding) -> None:
    assert cli("import", written(raw), *into(board), *(("--encoding", encoding) if encoding else ())).code == 0
    assert names(board_service) == ["Zürich"]


@pytest.mark.parametrize(
    "name",
    ["nope", "", "rot13", "base64", "hex", "zlib", "utf-7", "idna", "punycode", "unicode_escape", "undefined", "a\0b", "a\udcff"],
)
def test_a_name_of_no_encoding_of_files_is_bad_usage(cli, board_service: BoardService, board, written, name: str) -> None:
    code, out, err = cli("import", written(b"name\nA\n"), *into(board), "--encoding", name)
    assert (code, out) == (2, "")
    assert re.search(r"--encoding.* is not an encoding of text files; (names are like windows-1251|did you mean)", err)
    assert not board_service.calls


def test_a_name_that_is_misspelled_brings_similar_ones(cli, board, written) -> None:
    assert "did you mean 'cp1252' or" in cli("import", written(b"name\n"), *into(board), "--encoding", "cp1521").err


def test_a_preview_shows_into_a_pipe_what_an_encoding_makes_of_the_texts(cli, board_service, board, written) -> None:
    path = written(f"name,desc\n{RUSSIAN},на поезд\n".encode("cp1251"))
    code, out, err = cli("import", path, *into(board), "--encoding", "cp1251", "--preview")
    assert (code, err) == (0, "the file is read as cp1251\n")
    assert out.splitlines()[-1] == f"2\t{RUSSIAN}\tDone\t\t'на поезд'"
    assert not board_service.calls_of("cards.create")


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1251", "cp1252", "cp932", "gbk", "mac-roman", "iso2022-jp")
texts = st.lists(st.sampled_from([RUSSIAN, POLISH, JAPANESE, GERMAN, "A,\t;|\n\r", "'=", "\ufeff", "\0\x1b$\x80"])).map("".join)


@given(st.lists(st.tuples(texts, texts), max_size=4), st.sampled_from(ENCODINGS), st.booleans())
def test_any_file_is_read_as_it_was_written_or_refused(written: list[tuple[str, str]], encoding: str, is_named: bool) -> None:
    rows = io.StringIO(newline="")
    csv.writer(rows, quoting=csv.QUOTE_ALL).writerows([("name", "desc"), *written])
    with tempfile.TemporaryFile() as file:
        file.write(rows.getvalue().encode(encoding, "ignore"))
        file.flush()
        try:
            layout = recognise(file, Layout(encoding=encoding_named(encoding) if is_named else None, default_list="l"))
        except UsageError as error:
            assert "nothing was sent" in str(error)  # noqa: PT017 -- whether it is refused is drawn
            return
        found = list(read(file, {None: ImportBoard("b", of_lists([BoardList("l", "To Do")]))}, layout))
    if not any(isinstance(row, Problem) for row in found):
        kept = [tuple(text.encode(encoding, "ignore").decode(encoding) for text in row) for row in written]
        read_back = [(row.draft.name, row.draft.desc or "") for row in found if isinstance(row, FileRow)]
        plain = [tuple(text[1:] if re.match("'+[=+@\t\r\ufeff-]", text) else text for text in row) for row in kept if any(row)]
        assert read_back == plain
