"""The picture of the terminal in the README and on the site: `docs/terminal.py` draws it, and it is what the commands print."""

import asyncio
import html
import re
import runpy
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.full
def test_the_picture_is_what_the_commands_print() -> None:
    drawn = asyncio.run(runpy.run_path(str(_DOCS / "terminal.py"))["draw"]())
    kept = (_DOCS / "terminal.svg").read_text(encoding="utf-8")
    assert _texts(drawn) == _texts(kept), "draw it again: python docs/terminal.py"
    assert len(kept) < 40_000
    assert not re.search(r"url\((?!#)", kept), "a browser loads nothing from elsewhere"


def _texts(svg: str) -> list[str]:
    """Return the words that a picture shows, without times and speeds, in any order: cards are created side by side."""
    texts = (html.unescape(text).replace("\xa0", " ") for text in re.findall(r">([^<]+)</text>", svg))
    shown = " ".join(re.sub(r"\d+:\d+:\d+|[\d.]+(?=/s| s| cards/s)", "0", text) for text in texts)
    return sorted(shown.split())
