"""Encodings of files: which one a file has, and whether its texts are of it.

An encoding is proven by the file or named by the user, and never guessed.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import locale
import os
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import click

from boardclient.cli._names import did_you_mean
from boardclient.cli._output import UsageError, quoted

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
    raise click.BadParameter(f"{quoted(value)} is not an encoding of text files{examples}")


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


def encoding_of(file: BinaryIO, given: str | None) -> str:
    """Return the encoding in which a file is to be read: the given one, or UTF-8 or UTF-16.

    Raises:
        UsageError: the file's mark contradicts the given one, or is needed and not there.
    """
    mark = _mark(file)
    if given is None:
        return mark if mark is not None and mark.startswith("utf-16") else "utf-8"
    if mark is not None and not mark.startswith(given):
        raise UsageError(f"the file begins with the mark of {label_of(mark)}, so it is not {label_of(given)}; nothing was sent")
    if mark is None and given in ("utf-16", "utf-32"):
        raise UsageError(
            f"the file has no mark that tells the order of its bytes; nothing was sent (--encoding {given}-le or {given}-be)"
        )
    return mark or given


def label_of(encoding: str) -> str:
    """Return an encoding as it is called."""
    return encoding.upper().removesuffix("-LE").removesuffix("-BE") if encoding.startswith("utf") else encoding


@contextlib.contextmanager
def opened(file: BinaryIO, encoding: str, newline: str = "") -> Iterator[io.TextIOWrapper]:
    """Open a file as text from its beginning. Each byte that is not of the encoding becomes a surrogate."""
    with open(os.dup(file.fileno()), encoding=encoding, errors="boardclient.bytes", newline=newline) as text:
        text.seek(0)
        yield text


def is_encoded(file: BinaryIO, encoding: str) -> bool:
    """Return True if all of a file is text in an encoding. Bytes that this leaves undefined refuse it."""
    with opened(file, encoding) as text, contextlib.suppress(UnicodeError):  # those of ISO 2022 raise it besides
        return not any(damage_of(chunk, encoding) for chunk in iter(lambda: text.read(1 << 16), ""))
    return False


def likely(file: BinaryIO) -> Iterator[str]:
    """Yield names of encodings that could be those of a file, of which its user knows one."""
    mark = _mark(file)
    names = [locale.getencoding(), *_TRIED] if mark is None else [label_of(mark).lower()]
    one_of_each = {codecs.lookup(name).name: name for name in names}.values()
    return itertools.islice((name for name in one_of_each if is_encoded(file, encoding_of(file, name))), _SHOWN)


def flaw(text: str) -> tuple[str, str] | None:
    """Return why a text can't be sent, and its first character that says so, or None."""
    if text.isascii() and "\0" not in text and "\x1b" not in text:  # as most are: a pattern takes ten times as long
        return None
    found = _SUSPECT.search(text) and _FLAW.search(text)
    return (_FLAWS.get(found[0][0], "holds a lone surrogate, which can't be sent"), found[0][0]) if found else None


def damage_of(text: str, encoding: str) -> tuple[str, str | None] | None:
    """Return why a text of a file is not of its encoding, and which byte or character says so, or None."""
    if found := flaw(text):
        message, character = found
        return (
            (message, None) if character in _FLAWS else (f"is not {label_of(encoding)}", f"byte 0x{ord(character) - _BYTES:02x}")
        )
    control = None if encoding.startswith("utf") else _CONTROL.search(text)
    return control and (f"is a control character in {encoding}: the file has another encoding", f"U+{ord(control[0]):04X}")
