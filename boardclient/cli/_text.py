"""Prints plain lines, without rich. Texts of the service or a file pass `escape`."""

import json
import os
import sys
import unicodedata
from collections.abc import Mapping

import click

# Marks, embeddings, overrides and isolates, which change the order in which text is shown
# (https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters).
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def escape(text: str) -> str:
    r"""Return a text with control characters escaped, so that it is one line.

    This keeps a text from controlling the terminal. C0 (including tab and newline), DEL, C1, line and paragraph separators,
    bidirectional controls and lone surrogates become escapes such as `\x1b` or `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character in _BIDI or unicodedata.category(character) in _CONTROL_CATEGORIES:
        return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    return character


def has_color() -> bool | None:
    """Return False if `NO_COLOR` is set (https://no-color.org), otherwise None.

    None leaves it to click, which colours on terminals only.
    """
    return False if os.environ.get("NO_COLOR") else None


def out(text: str, *, bold: bool = False) -> None:
    """Print a line on standard output, escaped.

    Raises:
        OSError: the output is full or closed.
    """
    click.secho(escape(text), file=sys.stdout, color=has_color(), bold=bold)


def note(text: str, *, fg: str | None = None) -> None:
    """Print a line on standard error, escaped. Errors in writing it are ignored."""
    try:
        click.secho(escape(text), file=sys.stderr, color=has_color(), fg=fg)
    except OSError:
        return


def out_json(value: object) -> None:
    """Print a value as one line of JSON on standard output."""
    out(json.dumps(value, ensure_ascii=False))


def details(title: str, fields: Mapping[str, object]) -> None:
    """Print a title, and below it one line for each field that is not None."""
    out(title, bold=True)
    names = {name: escape(name) for name in fields}
    width = max(map(len, names.values()), default=0)
    for name, value in fields.items():
        if value is not None:
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else str(value)
            click.echo(click.style(f"  {names[name]:<{width}}  ", dim=True) + escape(shown), file=sys.stdout, color=has_color())
