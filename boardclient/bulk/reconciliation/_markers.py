"""Markers: short codes in descriptions by which a run recognises its cards. No I/O."""

from __future__ import annotations

import base64
import hmac
import html
import re
from typing import Final

_TOKEN: Final = re.compile(r"[^\s\[\]]+")
_SECRET: Final = re.compile(r"bc[a-z2-7]{16}")


def secret_marker(secret: bytes, seq: int) -> str:
    """Return the marker of a row, 18 letters and digits.

    It can't be guessed without the secret, and is the same in each run with one journal. It has no punctuation, which services
    escape, trim and reformat.
    """
    code = hmac.digest(secret, str(seq).encode(), "sha256")
    return "bc" + base64.b32encode(code[:10]).decode().lower()


def check_marker(text: object) -> str:
    """Return a marker that the caller's function made, if it is usable.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, or has a space or a square bracket.
    """
    if not isinstance(text, str):
        raise TypeError(f"marker must return a string, not {type(text).__name__}")
    if not _TOKEN.fullmatch(text):
        raise ValueError("marker must return a non-empty text without spaces and brackets")
    return text


def normal(marker: str) -> str:
    """Return the form in which markers are compared: without case."""
    return marker.casefold()


def markers(desc: str | None) -> set[str]:
    """Return the words of a description that may be markers, as `normal` has them."""
    if not desc:
        return set()
    text = html.unescape(desc).casefold()
    return {*_TOKEN.findall(text), *_SECRET.findall(text)}


def with_marker(desc: str | None, marker: str) -> str:
    """Return a description between two copies of its marker, each on its own line.

    The first copy survives if a service cuts off the end of long descriptions, the second if it cuts off the beginning.
    """
    return f"[{marker}]\n\n{desc}\n\n[{marker}]" if desc else f"[{marker}]"
