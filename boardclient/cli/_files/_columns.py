"""What is wrong with the names of a file's columns, and what to give for them.

An example names a column that looks right by its name. It is advice for a person: nothing is read by it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from boardclient.cli._files._layout import IMPORTED, Layout, Problem
from boardclient.cli._names import did_you_mean
from boardclient.cli._output import quoted

_LOOKS = {
    "name": (
        "title",
        "task name",
        "card name",
        "card title",
        "issue title",
        "item name",
        "name",
        "subject",
        "summary",
        "task",
        "item",
        "headline",
        "topic",
        "titel",
        "betreff",
        "aufgabe",
        "bezeichnung",
        "titre",
        "sujet",
        "nom",
        "título",
        "asunto",
        "nombre",
        "titolo",
        "oggetto",
        "nome",
        "onderwerp",
        "naam",
        "nazwa",
        "название",
        "заголовок",
        "タイトル",
        "件名",
        "名前",
        "标题",
        "名称",
    ),
    "list": (
        "list",
        "list name",
        "column",
        "board column",
        "status",
        "state",
        "stage",
        "bucket",
        "section",
        "lane",
        "phase",
        "liste",
    ),
    "due": (
        "due date",
        "due",
        "due at",
        "deadline",
        "due on",
        "fällig",
        "fällig am",
        "fälligkeit",
        "échéance",
        "vencimiento",
        "scadenza",
    ),
    "desc": ("description", "desc", "details", "notes", "note", "body", "text", "content", "beschreibung", "notiz", "notizen"),
    "reference": ("id", "key", "issue key", "issue id", "task id", "card id", "external id", "uuid", "number", "nr", "#"),
}
"""How columns are called elsewhere that fit ours, the best first."""
_SURE = frozenset({"title", "task name", "card name", "name", "subject", "summary", "titel", "titre", "título", "titolo"})
"""Those that are hardly the text of a card or the value of a cell."""
_ENDS = ("title", "titel", "summary", "subject", "betreff")
"""How two words end that name a title, such as "Mein Titel"."""


def _word(name: str) -> str:
    # A name of signs alone, such as "#", stays: the table has it.
    return re.sub(r"[\W_]+", " ", name).strip().casefold() or name.strip()


def _alike(column: str, names: Sequence[str]) -> str | None:
    """Return the name that looks most like one of our columns, or None."""
    # Reversed, so that of two columns with the same words the first one is suggested.
    words = {_word(name): name for name in reversed(names)}
    found = next((words[look] for look in _LOOKS[column] if look in words), None)
    if found is None and column == "name":
        found = next((name for word, name in words.items() if word.count(" ") == 1 and word.endswith(_ENDS)), None)
    return found


def _own_names(there: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """Return the names that are ours, or look like one of them."""
    return [name for name in there if name not in unknown or any(_alike(column, [name]) for column in _LOOKS)]


def _mapped(column: str, name: str) -> str:
    return f"--map {shlex.quote(f'{column}={name}')}"


def column_problems(number: int, named: Sequence[tuple[str, str]], layout: Layout, there: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with columns, each beside its name in the file. `there` are all names."""
    unknown = [name for column, name in named if column not in IMPORTED]
    columns = Counter(column for column, _ in named)
    # One message for the worst: without names no row can be read, whatever else is unknown.
    if "name" not in columns and "name" not in layout.columns.values() and (unknown or layout.form == "csv"):
        names = ", ".join(map(quoted, there))
        yield Problem(number, None, f"there is no column name, only {names}; {_advice_on_name(layout, unknown, there)}")
    elif unknown:
        names = ", ".join(map(quoted, unknown))
        also = f"the columns are {', '.join(IMPORTED)}"
        fitting = _fitting(unknown, {*columns, *layout.columns.values()}, layout)
        yield Problem(number, None, f"unknown: {names}; {also} ({fitting}--skip '*' ignores all)")
    for column, count in columns.items():
        if count > 1:
            yield Problem(number, dict(named)[column], "is named more than once")


def _advice_on_name(layout: Layout, unknown: Sequence[str], there: Sequence[str]) -> str:
    """Return what to give where no column is called name. What is mapped or skipped already is none that could be."""
    free = [name for name in there if name not in layout.columns]
    if not free:
        return "give --map name=COLUMN for one that is not mapped or skipped"
    # Names can't be told from cards there, so the advice names a number.
    if not layout.has_header:
        return f"columns have numbers: give for example {_mapped('name', free[0])} --skip '*'"
    title = _alike("name", free)
    known = _own_names(there, unknown)
    # With fewer known names the row may be a card, which would be lost as a header: then the advice has both cases.
    is_header = layout.form == "jsonl" or 2 * len(known) > len(there) or (title is not None and _word(title) in _SURE)
    if not (is_header or title):
        return "if this row is a card, give --no-header --map name=1 --skip '*', and if it names columns, --map name=COLUMN"
    example = title or next((name for name in free if name not in known), free[0])
    caution = "" if is_header else "--no-header if this row is a card, otherwise "
    return f"give {caution}for example {_mapped('name', example)} --skip '*'"


def _fitting(unknown: Sequence[str], taken: Iterable[str | None], layout: Layout) -> str:
    """Return the option that reads one of the unknown columns as one of ours that the file lacks, or ""."""
    # The list comes first where no --list was given: without it no row can be sent.
    wanted = ("due", "desc", "reference")
    for column in ("list", *wanted) if layout.default_list is None else (*wanted, "list"):
        if column not in taken and (name := _alike(column, unknown)):
            return f"{_mapped(column, name)} reads one of them so, "
    return ""


def list_problem(number: int, layout: Layout, there: Sequence[str]) -> Problem:
    """Return that no row names a list, with what to give."""
    name = _alike("list", [name for name in there if name not in layout.columns]) if layout.has_header else None
    also = "" if name is None else f", or {_mapped('list', name)} if it holds lists of the board"
    return Problem(number, None, f"there is no column list; give --list for all rows{also}")


def lacking(number: int, wanted: Iterable[str], there: Sequence[str]) -> Iterator[Problem]:
    """Yield the names of `--map` and `--skip` that the file does not have."""
    for name in wanted:
        if name not in there and name != "*":
            columns = f"the file has no column {quoted(name)} to map or skip, only {', '.join(map(quoted, there))}"
            yield Problem(number, None, columns + did_you_mean(name, there))
