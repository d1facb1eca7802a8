"""How the file of an import is to be read: its encoding, format, separator, columns and dates, and what is wrong in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo

import attrs

from boardclient.cli._files._encodings import label_of
from boardclient.cli._output import LINES

COLUMNS: tuple[str, ...] = ("name", "desc", "due", "pos", "list", "reference")
"""The columns of files that are imported. Those of exports have `id` in place of the last."""
EXPORTED_ID = "id"
"""The column of an export with the identifiers of cards. An import takes them for the references of its rows."""
IMPORTED: tuple[str, ...] = (*COLUMNS, "board", "account")
"""The columns of files that are imported. The last two need an engine."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ROWS_NAMED = 5


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
        # By kind: a wrong date format is wrong in each of 50,000 rows, and one line says it.
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

    `encoding` is that which the user has named. `delimiter` separates cells; None: it is still to be found. `newline` is the end
    of a line as for `open`: "" for any. `columns` maps names in the file to our columns, or to None to ignore them; "*" stands
    for all other names that are no columns themselves. Without a header, the names are "1", "2" and so on. `default_list` is the
    list of rows that name none. `has_places` says that rows may name a board and an account.
    """

    form: str = "csv"
    encoding: str | None = None
    delimiter: str | None = None
    newline: str = ""
    has_header: bool = True
    skipped_lines: int = 0
    columns: Mapping[str, str | None] = attrs.field(factory=dict, converter=_plain_keys)
    zone: tzinfo | None = None
    date_formats: Sequence[str] = ()
    default_list: str | None = None
    has_places: bool = False

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it. The case of our own names does not matter."""
        name = plain(name)
        if name in self.columns:
            return self.columns[name]
        folded = name.casefold()
        # `--skip '*'` leaves our own columns, unless another one was mapped to the same: then it is the file's that is left out.
        if "*" in self.columns and (folded in self.columns.values() or folded not in (IMPORTED if self.has_places else COLUMNS)):
            return None
        if folded == EXPORTED_ID and "reference" not in self.columns.values():
            return "reference"  # an identifier that `export` wrote names its row
        return folded if folded in IMPORTED else name

    @property
    def difference(self) -> str:
        """What is read otherwise than as plain UTF-8 with commas, in words. "" if nothing is."""
        words = [] if self.encoding in (None, "utf-8") else [label_of(self.encoding)]
        if self.form == "csv" and self.delimiter not in (None, ","):
            words.append(f"cells separated by {SEPARATORS.get(self.delimiter, repr(self.delimiter))}")
        return ", ".join(words)
