"""The headings of docs/errors.md: each is the beginning of a message, with `…` for what differs."""

from __future__ import annotations

import functools
import re
from pathlib import Path


def without_beginning(text: str) -> str:
    """Return a text without what varies at its beginning."""
    return re.sub(r"^(?:…[:;,]? )+", "", re.sub("…+", "…", text)).strip()


_PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
_MESSAGES = _PAGE.read_text(encoding="utf-8").partition("\n## Messages\n")[2]
HEADINGS = [without_beginning(text) for _, text in re.findall(r"^#### (`+) ?(.+?) ?\1$", _MESSAGES, re.MULTILINE)]


@functools.cache
def _patterns() -> list[re.Pattern[str]]:
    return [re.compile(re.escape(heading).replace("…", ".*?") + r"(?!\w)") for heading in HEADINGS]


def begins_a_text(text: str) -> bool:
    """Return whether a text begins as a heading does, to the end of a word."""
    return any(pattern.match(text) for pattern in _patterns())


def is_in_text(text: str) -> bool:
    """Return whether a message holds a heading of three words or more."""
    return any(pattern.search(text) for pattern in _patterns() if len(pattern.pattern.split("\\ ")) > 2)
