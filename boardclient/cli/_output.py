"""Prints lines, tables, records, JSON, and the errors that end a command.

Texts of the service or a file pass `escape`, and can't control the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from io import RawIOBase, TextIOWrapper
from typing import Any, cast

import click

# Marks, embeddings, overrides and isolates, which change the order in which text is shown
# (https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters).
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_SHOWN_LENGTH = 60
_WIDEST = 10_000
"""The columns of a table: no identifier is broken or cut, however narrow the terminal is."""
LINES = 20
"""How many lines of one kind are printed."""


class _WholeWriter(RawIOBase):
    """Writes all it is given, or raises an OSError.

    A raw file may write less than it is given, as on a disk that fills up, and a pipe that does not wait may write nothing. Only
    what `write` returns says so, which `TextIOWrapper` does not look at if Python is unbuffered.
    """

    def __init__(self, raw: RawIOBase, stream: TextIOWrapper) -> None:
        self._raw = raw
        self._stream = stream  # which would close the file if it were collected

    def write(self, data: Any) -> int:
        # Bytes, or the count that `write` returns would be one of items.
        left = memoryview(data).cast("B")
        while left:
            try:
                count = self._raw.write(left)
            except OSError as error:
                raise OSError(error.errno, f"can't write the output: {error.strerror}") from None
            if count is None:
                # A pipe that does not wait is full: nothing was written, and trying at once would use the processor.
                select.select([], [self._raw], [])
            left = left[count or 0 :]
        return memoryview(data).nbytes

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._raw.isatty()

    def fileno(self) -> int:
        return self._raw.fileno()


def whole(stream: TextIOWrapper) -> TextIOWrapper:
    """Return a text stream in place of one of the process, which writes all or raises an OSError, and at once."""
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, RawIOBase):  # one in memory, of an application
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    return TextIOWrapper(cast("Any", _WholeWriter(raw, stream)), stream.encoding, "backslashreplace", write_through=True)


def escape(text: str) -> str:
    r"""Return a text with control characters escaped, so that it is one line.

    C0 (including tab and newline), DEL, C1, line and paragraph separators, bidirectional controls and lone surrogates become
    escapes such as `\x1b` or `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character in _BIDI or unicodedata.category(character) in _CONTROL_CATEGORIES:
        return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    return character


def quoted(value: str) -> str:
    """Return a value in quotes, cut after 60 characters."""
    return repr(value if len(value) <= _SHOWN_LENGTH else f"{value[:_SHOWN_LENGTH]}…")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 card" and "2 cards"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_lines(kind: str, texts: Sequence[str]) -> list[str]:
    """Return a line for each of the first texts of a kind, and another one if there are more."""
    more = [f"{kind}: and {len(texts) - LINES:,} more"] if len(texts) > LINES else []
    return [*(f"{kind}: {text}" for text in texts[:LINES]), *more]


def _has_color() -> bool | None:
    """Return False if colours are not wanted, otherwise None, with which click colours on terminals only.

    They are not wanted if `NO_COLOR` is set (https://no-color.org), and can't be shown if `TERM` is "dumb".
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _print(text: str, file: Any, **styles: Any) -> None:
    """Print a line, escaped. One without a style has no escape sequences: click ends each line with one by default."""
    click.secho(escape(text), file=file, color=_has_color(), **(styles or {"reset": False}))


def out(text: str, *, bold: bool = False) -> None:
    """Print a line on standard output, escaped.

    Raises:
        OSError: the output is full or closed.
    """
    _print(text, sys.stdout, **({"bold": True} if bold else {}))


def out_columns(*cells: str) -> None:
    """Print cells as one line, separated by tabs. Tabs and line ends inside a cell are escaped."""
    click.echo("\t".join(map(escape, cells)), file=sys.stdout)


def out_table(rows: Sequence[Sequence[str]], *header: str) -> None:
    """Print rows of cells: below their header on a terminal, which says if there are none, separated by tabs into a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            out_columns(*row)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    if header := header if rows else ("nothing to show",):
        table.add_row(*(Text().append(name, "bold") for name in header))  # the blanks behind a name are not bold
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    console = Console(width=_WIDEST)
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        click.echo(line.rstrip(), file=sys.stdout, color=_has_color())


def note(text: str, *, fg: str | None = None) -> None:
    """Print a line on standard error, escaped. Errors in writing it are ignored."""
    with contextlib.suppress(OSError):
        _print(text, sys.stderr, **({"fg": fg} if fg else {}))


def out_json(value: object) -> None:
    """Print a value as one line of JSON on standard output. A number that JSON can't hold, such as 1e400, becomes null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    text = json.dumps(finite, ensure_ascii=not (sys.stdout.encoding or "utf").lower().startswith("utf"))
    escaped = (f"\\u{ord(mark):04x}" if escape(mark) != mark else mark for mark in text)  # JSON has no escape such as \x7f
    click.echo(text if text.isprintable() else "".join(escaped), file=sys.stdout)


def local(moment: datetime, zone: tzinfo | None = None) -> datetime:
    """Return a date in a zone, by default that of this machine. In the years 1 and 9999 it may have to stay in UTC."""
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError):
        return moment.astimezone(UTC)


def show(title: str, record: Mapping[str, object], fields: Sequence[str] | None = None) -> None:
    """Print a record: as JSON if `fields` is given, for a person on a terminal, or with tabs into a pipe.

    Args:
        title: What it is. A terminal shows it above the record.
        record: The values by name. What is None is shown only in JSON.
        fields: The fields to print as JSON; an empty one stands for all.
    """
    if fields is not None:
        out_json({name: record.get(name) for name in fields or record})
        return
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        out(title, bold=True)
    out_table([(f"{'  ' * is_terminal}{name}", _text(value)) for name, value in record.items() if value is not None])


def show_all(records: Sequence[Mapping[str, object]], names: Sequence[str], fields: Sequence[str] | None = None) -> None:
    """Print the values of records: as a list of JSON if `fields` is given, otherwise as a table with a column for each name."""
    if fields is not None:
        out_json([{name: record.get(name) for name in fields or names} for record in records])
    else:
        out_table([["" if (value := record.get(name)) is None else _text(value) for name in names] for record in records], *names)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else str(value)


# --- the errors that end a command, with their exit codes

_WORDS = {
    "allow_insecure=True": "--allow-insecure (before the command)",
    "base_url": "the service's address (BOARDCLIENT_BASE_URL, --base-url)",
    "auth_url": "the address of the token exchange (BOARDCLIENT_AUTH_URL, --auth-url)",
    "give ssl= a context with one": "which the command line can't give: ssl= of a session can",
    ", with limiter=Pace()": "",
    "check proxy= or the proxy of the environment": "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    "give them in proxy=": "give them in its variable, such as HTTPS_PROXY=http://user:password@proxy.example:3128",
    "proxy must be": "the proxy of the environment (HTTPS_PROXY, HTTP_PROXY) must be",
}
"""What the package's messages call its parameters, in the words of the command line."""


def in_words(error: Exception) -> str:
    """Return an error's message in the words of the command line."""
    text = str(error) or type(error).__name__
    for name, words in {**_WORDS, "give ssl= a context that trusts its issuer": _where_issuers_are()}.items():
        text = text.replace(name, words)
    # In upper and lower case, as proxies are looked for.
    has_all = any(name.upper() == "ALL_PROXY" and value for name, value in os.environ.items())  # few set it, and it counts last
    return text.replace("HTTPS_PROXY, HTTP_PROXY", "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY") if has_all else text


def _where_issuers_are() -> str:
    """Return what makes a certificate trusted. A file that OpenSSL can't open is one without certificates, and no error."""
    words, path = "set SSL_CERT_FILE to a file with the certificate of its issuer", os.environ.get("SSL_CERT_FILE")
    if not path:
        return words
    return f"{words} (now it names {path}{'' if os.path.isfile(path) else ', which is no file'})"


class CommandError(click.ClickException):
    """A command ends with `exit_code`. `lines` are printed before the message, one for each detail."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def show(self, file: object = None) -> None:
        """Print the lines and the message on standard error."""
        for text in [*self.lines, f"error: {self}"]:
            note(f"boardclient: {text}")


def show_error(error: click.ClickException) -> None:
    """Print an error, those that click has found in the form of the others. A group without a command shows its help."""
    if not isinstance(error, click.UsageError) or isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = error.format_message().removesuffix(".").replace(". Did you mean", "; did you mean")
    if error.ctx is not None:
        note(f"boardclient: {' '.join(error.ctx.get_usage().split()).replace('Usage:', 'usage:')}; --help says more")
    note(f"boardclient: error: {text[:1].lower() if text[1:2].islower() else text[:1]}{text[1:]}")  # "ROW" is a name


class UsageError(CommandError):
    """The usage, the configuration or a file is wrong, or the command refuses. Nothing was changed."""

    exit_code = 2


class NotProvenError(CommandError):
    """Nothing failed, but some rows are not proven to exist."""

    exit_code = 3


class NoCredentialsError(CommandError):
    """There are no credentials."""

    exit_code = 4
