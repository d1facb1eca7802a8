"""The pictures of the terminal in the README and on the site are what the commands print: `docs/terminal.py` draws them."""

import asyncio
import html
import re
import runpy
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.full
@pytest.mark.parametrize("name", ["terminal.svg", "resume.svg"])
def test_the_picture_is_what_the_commands_print(name: str) -> None:
    drawn = asyncio.run(runpy.run_path(str(_DOCS / "terminal.py"))["draw"](name))
    kept = (_DOCS / name).read_text(encoding="utf-8")
    assert _texts(drawn) == _texts(kept), "draw it again: python docs/terminal.py"
    assert len(kept) < 40_000
    assert not re.search(r"url\((?!#)", kept), "a browser loads nothing from elsewhere"
    width = re.search(r'viewBox="0 0 ([\d.]+)', kept)
    assert width
    assert 20 * 328 / float(width[1]) > 10, "letters of 20 units have 10 pixels in the column of a telephone"


def _texts(svg: str) -> list[str]:
    """Return the words that a picture shows, without times and speeds, in any order: cards are created side by side."""
    texts = (html.unescape(text).replace("\xa0", " ") for text in re.findall(r">([^<]+)</text>", svg))
    shown = " ".join(" ".join(texts).split())  # a line may end between a number and its unit
    shown = re.sub(r"\d+:\d+:\d+|[\d.]+(?=/s| s| cards/s)", "0", shown)
    return sorted(shown.split())
