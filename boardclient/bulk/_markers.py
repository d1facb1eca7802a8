"""Markers, short references in descriptions by which a run recognises its cards. No I/O."""

from __future__ import annotations

import base64
import hmac
import html
import re
from typing import Final

_TOKEN: Final = re.compile(r"[^\s\[\]]+")
_SECRET: Final = re.compile(r"bc[a-z2-7]{16}")


def secret_marker(secret: bytes, seq: int) -> str:
    """Make the marker of a row: 18 letters and digits that nobody can guess.

    It is the same in each run of a journal. Services escape, trim and reformat punctuation, so it has none.
    """
    code = hmac.digest(secret, str(seq).encode(), "sha256")
    return "bc" + base64.b32encode(code[:10]).decode().lower()


def check_marker(text: object) -> str:
    """Return a caller's marker if it can be found again.

    Raises:
        TypeError, ValueError: it is no text, empty, or holds a space or a bracket.
    """
    if not isinstance(text, str):
        raise TypeError(f"marker must return a string, not {type(text).__name__}")
    if not _TOKEN.fullmatch(text):
        raise ValueError("marker must return a text without spaces and brackets, and not an empty one")
    return text


def normal(marker: str) -> str:
    """Return a marker as it is compared: without case."""
    return marker.casefold()


def markers(desc: str | None) -> set[str]:
    """Return what may be markers in a description, as they are compared."""
    if not desc:
        return set()
    text = html.unescape(desc).casefold()
    return {*_TOKEN.findall(text), *_SECRET.findall(text)}


def with_marker(desc: str | None, marker: str) -> str:
    """Return the description between two copies of the marker, each on its own line.

    A service that cuts long descriptions keeps the first copy, one that shows their ends keeps the second.
    """
    return f"[{marker}]\n\n{desc}\n\n[{marker}]" if desc else f"[{marker}]"
