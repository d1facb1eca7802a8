"""The layout of the service's HTML pages, which load nothing from elsewhere."""

from __future__ import annotations

import functools
from html import escape
from importlib.resources import files


@functools.cache
def _style() -> str:
    return files("boardclient.testing").joinpath("data", "page.css").read_text(encoding="utf-8")


def page(title: str, body: str, script: str = "") -> str:
    """Return a whole page. The title is escaped; `body` and `script` must be safe."""
    script = f"<script>{script}</script>" if script else ""
    head = (
        '<meta charset=utf-8><meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"<title>{escape(title)}</title><style>{_style()}</style>"
    )
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}{script}</body></html>"
