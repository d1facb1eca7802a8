"""The frame and style of the service's pages. They are plain HTML, fit a phone and load nothing."""

from __future__ import annotations

import functools
from html import escape
from importlib.resources import files


@functools.cache
def _style() -> str:
    return files("boardclient.testing").joinpath("data", "page.css").read_text(encoding="utf-8")


def page(title: str, body: str, script: str = "") -> str:
    """Return a whole page; `body` and `script` are trusted, the title is not."""
    script = f"<script>{script}</script>" if script else ""
    head = (
        '<meta charset=utf-8><meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"<title>{escape(title)}</title><style>{_style()}</style>"
    )
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}{script}</body></html>"
