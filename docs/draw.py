"""Draw the Mermaid blocks of the pages as SVG for the site: `python docs/draw.py MERMAID.JS`.

GitHub draws the blocks itself. The site shows `docs/drawings/HASH.svg`, which is named by the text of the block: a browser loads
nothing from elsewhere. This needs the group `full` (playwright), Chromium, and `dist/mermaid.min.js` of `npm install mermaid`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from conf import DRAWINGS, MERMAID, drawing_of

_SETTINGS = {
    "startOnLoad": False,
    "fontFamily": "sans-serif",
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False, "wrappingWidth": 300},
}


def main() -> None:
    """Draw what has no drawing yet, and remove drawings of blocks that are gone."""
    pages = Path(__file__).parent.rglob("*.md")
    blocks = {drawing_of(block): block for page in pages for block in MERMAID.findall(page.read_text(encoding="utf-8"))}
    DRAWINGS.mkdir(exist_ok=True)
    for path in {*DRAWINGS.glob("*.svg")} - {*blocks}:
        path.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<body></body>")
        page.add_script_tag(path=sys.argv[1])
        page.evaluate("settings => mermaid.initialize(settings)", _SETTINGS)
        for path, block in blocks.items():
            if not path.exists():
                svg = page.evaluate("async block => (await mermaid.render('drawing', block)).svg", block)
                svg = re.sub(r"(\.\d)\d+", r"\1", svg)
                path.write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
