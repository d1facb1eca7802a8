"""How the file of an import is to be read: its encoding, format, separator and columns. `_file_rows` reads the rows by it.

What spreadsheets write is recognised: the separator and UTF-16. An encoding is proven by the file or named by the user, and never
guessed.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import locale
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import BinaryIO, cast

import attrs
import click

from boardclient.cli._names import did_you_mean
from boardclient.cli._output import LINES, UsageError, plural, quoted

COLUMNS: tuple[str, ...] = ("name", "desc", "due", "pos", "list", "reference")
"""The columns of files that are imported and exported."""
IMPORTED: tuple[str, ...] = (*COLUMNS, "board", "account")
"""The columns of files that are imported. The last two need an engine."""

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and LibreOffice begin."""
_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ROWS_NAMED = 5
_NAMES_SHOWN = 3


@attrs.frozen
class Problem:
    """One error in a row. `column` is as the file names it, None if the whole row is wrong; `shown` is what is wrong in it."""

    number: int
    column: str | None
    message: str
    shown: str | None = None


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """Return a line for all rows with the same error, for the first of these."""
    kinds: dict[tuple[str | None, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.column, problem.message), []).append(problem)
    lines = []
    for (column, message), some in kinds.items():
        numbers = [*dict.fromkeys(str(problem.number) for problem in some)]
        more = f" and {len(numbers) - _ROWS_NAMED:,} more" if len(numbers) > _ROWS_NAMED else ""
        rows = f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:_ROWS_NAMED])}{more}"
        place = f"{rows}{'' if column is None else f', column {column}'}"
        shown = "" if some[0].shown is None else f"{some[0].shown}{' and others' if len(some) > 1 else ''}: "
        lines.append(f"{place}: {shown}{message}")
    return [*lines[:LINES], *([f"and {len(lines) - LINES:,} more kinds of mistakes"] if len(lines) > LINES else [])]


def plain(name: str) -> str:
    """Return the name of a column in the form in which names are compared. macOS writes accents as characters of their own."""
    return unicodedata.normalize("NFC", name.strip())


def _plain_keys(columns: Mapping[str, str | None]) -> dict[str, str | None]:
    return {plain(name): column for name, column in columns.items()}


@attrs.frozen(kw_only=True)
class Layout:
    """How to read a file: "csv" or "jsonl", encoding, separator, names of columns, dates.

    `encoding` is that which the user has named. `columns` maps names in the file to our columns, or to None to ignore them; "*"
    stands for all other names that are no columns themselves. `default_list` is the list of rows that name none. `has_places`
    says that rows may name a board and an account.
    """

    form: str = "csv"
    encoding: str | None = None
    delimiter: str = ","
    columns: Mapping[str, str | None] = attrs.field(factory=dict, converter=_plain_keys)
    zone: tzinfo | None = None
    date_format: str | None = None
    default_list: str | None = None
    has_places: bool = False

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it. The case of our own names does not matter."""
        name = plain(name)
        if name in self.columns:
            return self.columns[name]
        folded = name.casefold()
        if "*" in self.columns and (folded in self.columns.values() or folded not in (IMPORTED if self.has_places else COLUMNS)):
            return None
        return folded if folded in IMPORTED else name

    @property
    def difference(self) -> str:
        """What is read otherwise than as plain UTF-8 with commas, in words. "" if nothing is."""
        words = [] if self.encoding in (None, "utf-8") else [_label(self.encoding)]
        if self.delimiter != ",":
            words.append(f"cells separated by {_SEPARATORS.get(self.delimiter, repr(self.delimiter))}")
        return ", ".join(words)


def recognise(file: BinaryIO, layout: Layout) -> Layout:
    """Return the layout with the encoding and the format of the file, and the separator of its header.

    Raises:
        UsageError: it is a workbook, or not text in its encoding.
    """
    file.seek(0)
    if file.read(4) in _WORKBOOKS:
        raise UsageError("the file is a workbook: save it as CSV")
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    encoding = _encoding_of(file, layout.encoding)
    if not _is_encoded(file, encoding):
        raise _not_text(file, attrs.evolve(layout, encoding=encoding), is_named=layout.encoding is not None)
    return _formed(file, attrs.evolve(layout, encoding=encoding))


def _formed(file: BinaryIO, layout: Layout) -> Layout:
    first = next(filter(str.strip, lines(file, layout)), "")
    if first.lstrip().startswith(("{", "[")):
        return attrs.evolve(layout, form="jsonl")
    with contextlib.suppress(csv.Error):  # it is named when the rows are read
        delimiter = max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
        layout = attrs.evolve(layout, delimiter=delimiter)
    return layout


def lines(file: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the lines of a file with their ends, without its mark."""
    with _opened(file, layout.encoding or "utf-8") as text:
        yield text.readline().removeprefix("\ufeff")
        yield from text


def _not_text(file: BinaryIO, layout: Layout, *, is_named: bool) -> UsageError:
    """Return the error that names what is not of the encoding and, unless the user has named it, shows the names in others."""
    encoding = layout.encoding or ""
    problems, sound = [], 0
    for number, column, text in _texts(file, layout):
        if damage := _damage(text, encoding):
            problems.append(Problem(number, column, *damage))
        else:
            sound += not text.isascii()
    readings = [
        f"--encoding {name} reads {', '.join(map(quoted, names))}"
        for name in (() if is_named else _likely(file))
        if (names := _first_names(file, attrs.evolve(layout, encoding=name)))
    ]
    message = f"the file is not text in {_label(encoding)}; nothing was sent"
    if not is_named:
        hint = f" ({plural(sound, 'other text')} of it can be read, so it may be damaged)" if sound else ""
        message += f". Give its encoding (--encoding NAME), or mend it{hint}"
    return UsageError(message, [*problem_lines(problems), *readings])


def _texts(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, str | None, str]]:
    """Yield the texts of a file that may be damaged: each line of JSON, otherwise each cell, with its row and column."""
    header: list[str | None] = []
    with contextlib.suppress(csv.Error, UnicodeError):
        layout = _formed(file, layout)
        if layout.form == "jsonl":
            yield from ((number, None, line) for number, line in enumerate(lines(file, layout), 1))
            return
        for number, cells in enumerate(csv.reader(lines(file, layout), delimiter=layout.delimiter), 1):
            yield from zip(itertools.repeat(number), [*header, *[None] * len(cells)], cells, strict=False)
            header = header or ([None if flaw(cell) else cell.strip() for cell in cells] if any(cells) else [])


def _first_names(file: BinaryIO, layout: Layout) -> list[str]:
    """Return some texts in which encodings differ, names if there are any, otherwise some names."""
    for is_ascii, is_name in itertools.product((False, True), (True, False)):
        found = (
            text.strip()
            for _, column, text in _texts(file, layout)
            if text.strip() and (layout.column(column or "") == "name") >= is_name and text.isascii() <= is_ascii
        )
        if some := list(itertools.islice(found, _NAMES_SHOWN)):
            return some
    return []


# --- the encoding

# In this order: the mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NOT_OF_FILES = frozenset({"charmap", "idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
"""Codecs of protocols and of Python's own. They read ASCII as something else, or any bytes at all."""
_TRIED = ("windows-1252", "cp932", "gb18030", "windows-1251", "windows-1250", "mac-roman", "iso2022-jp", "utf-16-le", "utf-16-be")
"""What a refused file is shown in, besides the encoding of this machine. Those that can refuse most come first."""
_SHOWN = 3

_SUSPECT = re.compile("[\0\x1b\ud800-\udfff]")
"""Is faster than the next one, and true for all that it is true for."""
_FLAW = re.compile("[\0\ud800-\udfff]|\x1b[$(]")
_CONTROL = re.compile("[\x80-\x9f]")
"""What the ISO 8859 encodings make of bytes that are letters in Windows' own."""
_FLAWS = {
    "\0": "holds a NUL character, as do files whose end was lost, and UTF-16 without its mark",
    "\x1b": "holds escape sequences of ISO 2022, such as --encoding iso2022-jp reads",
}

_BYTES = 0xDC00
"""The character that stands for byte 0. Python's own `surrogateescape` can't do this for UTF-16 and UTF-32."""


def _as_surrogates(error: UnicodeDecodeError) -> tuple[str, int]:
    return "".join(chr(_BYTES + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error("boardclient.bytes", cast("Callable[[UnicodeError], tuple[str, int]]", _as_surrogates))


def encoding_named(value: str) -> str:
    """Return Python's name of an encoding that the user has named.

    Raises:
        click.BadParameter: it is none, or not one of text files.
    """
    if name := _found(value):
        return name
    import encodings.aliases

    alike = did_you_mean(value, filter(_found, {*encodings.aliases.aliases.values(), *_TRIED}))
    examples = alike or "; names are like windows-1251 and mac-roman"
    raise click.BadParameter(f"{quoted(value)} is no encoding of text files{examples}")


def _found(value: str) -> str | None:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=value)  # refuses codecs that are not of text, such as "hex"
        name = codecs.lookup(value).name.removesuffix("-sig")
    except (LookupError, ValueError):
        return None
    return None if name in _NOT_OF_FILES else name


def _mark(file: BinaryIO) -> str | None:
    file.seek(0)
    begin = file.read(4)
    return next((encoding for mark, encoding in _MARKS if begin.startswith(mark)), None)


def _encoding_of(file: BinaryIO, given: str | None) -> str:
    """Return the encoding in which a file is to be read: the given one, or UTF-8 or UTF-16.

    Raises:
        UsageError: the file's mark contradicts the given one, or is needed and not there.
    """
    mark = _mark(file)
    if given is None:
        return mark if mark is not None and mark.startswith("utf-16") else "utf-8"
    if mark is not None and not mark.startswith(given):
        raise UsageError(f"the file begins with the mark of {_label(mark)}, so it is not {_label(given)}; nothing was sent")
    if mark is None and given in ("utf-16", "utf-32"):
        raise UsageError(
            f"the file has no mark that tells the order of its bytes; nothing was sent (--encoding {given}-le or {given}-be)"
        )
    return mark or given


def _label(encoding: str) -> str:
    """Return an encoding as it is called."""
    return encoding.upper().removesuffix("-LE").removesuffix("-BE") if encoding.startswith("utf") else encoding


@contextlib.contextmanager
def _opened(file: BinaryIO, encoding: str) -> Iterator[io.TextIOWrapper]:
    """Open a file as text from its beginning. Each byte that is not of the encoding becomes a surrogate."""
    with open(os.dup(file.fileno()), encoding=encoding, errors="boardclient.bytes", newline="") as text:
        text.seek(0)
        yield text


def _is_encoded(file: BinaryIO, encoding: str) -> bool:
    """Return True if all of a file is text in an encoding. Bytes that this leaves undefined refuse it."""
    with _opened(file, encoding) as text, contextlib.suppress(UnicodeError):  # those of ISO 2022 raise it besides
        return not any(_damage(chunk, encoding) for chunk in iter(lambda: text.read(1 << 16), ""))
    return False


def _likely(file: BinaryIO) -> Iterator[str]:
    """Yield names of encodings that could be those of a file, of which its user knows one."""
    mark = _mark(file)
    names = [locale.getencoding(), *_TRIED] if mark is None else [_label(mark).lower()]
    one_of_each = {codecs.lookup(name).name: name for name in names}.values()
    return itertools.islice((name for name in one_of_each if _is_encoded(file, _encoding_of(file, name))), _SHOWN)


def flaw(text: str) -> tuple[str, str] | None:
    """Return why a text can't be sent, and its first character that says so, or None."""
    if text.isascii() and "\0" not in text and "\x1b" not in text:  # as most are: a pattern takes ten times as long
        return None
    found = _SUSPECT.search(text) and _FLAW.search(text)
    return (_FLAWS.get(found[0][0], "holds a lone surrogate, which can't be sent"), found[0][0]) if found else None


def _damage(text: str, encoding: str) -> tuple[str, str | None] | None:
    """Return why a text of a file is not of its encoding, and which byte or character says so, or None."""
    if found := flaw(text):
        message, character = found
        return (message, None) if character in _FLAWS else (f"is not {_label(encoding)}", f"byte 0x{ord(character) - _BYTES:02x}")
    control = None if encoding.startswith("utf") else _CONTROL.search(text)
    return control and (f"is a control character in {encoding}: the file has another encoding", f"U+{ord(control[0]):04X}")
