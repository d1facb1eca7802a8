"""What agents read: the programs of `docs/llms.txt` run, what it names exists, and its pages are on the site as Markdown."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import boardclient

_DOCS = Path(__file__).parent.parent / "docs"
_TEXT = (_DOCS / "llms.txt").read_text(encoding="utf-8")
_PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.full
@pytest.mark.parametrize(("source", "output"), _PROGRAMS, ids=range(len(_PROGRAMS)))
def test_each_program_for_agents_runs_as_it_stands(
    source: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent that copies a program needs no other page. Below it stands what it prints."""
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "block.py", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out == output


def test_each_program_for_agents_has_its_output() -> None:
    """None is left out of the test above."""
    assert len(_PROGRAMS) == _TEXT.count("```python") == 2


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w+)`", _TEXT))))
def test_each_name_for_agents_exists(name: str) -> None:
    """A class that the text names can be imported, or is a value of Python."""
    assert hasattr(boardclient, name) or name in {"None", "False", "BOARDCLIENT_BASE_URL", "BOARDCLIENT_TOKEN", "BOARDCLIENT_KEY"}


async def test_each_constructor_for_agents_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that make a session of one's own can be run."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://board.example")
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "t")
    found = re.findall(r"`(?:async with )?(AsyncSession[.(][^`]*?\))(?: as session)?`", _TEXT)
    assert len(found) == 3
    for line in found:
        await eval(line, {name: getattr(boardclient, name) for name in boardclient.__all__}).aclose()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", _TEXT))
def test_each_page_for_agents_is_there(target: str) -> None:
    """A link leads to the source of a page, which the site has beside the page."""
    assert (_DOCS / target.replace(".html", ".md")).exists()


def test_pages_are_written_as_markdown_beside_the_html(tmp_path: Path) -> None:
    """The site has the source of each page for agents but the reference's, which is made from docstrings."""
    configuration = ast.parse((_DOCS / "conf.py").read_text(encoding="utf-8"))  # importing it needs Sphinx
    (writer,) = [node for node in configuration.body if getattr(node, "name", "") == "_markdown_beside_html"]
    names: dict[str, Any] = {"Path": Path, "Any": Any}
    exec(compile(ast.Module([writer], []), "conf.py", "exec"), names)
    write = names["_markdown_beside_html"]
    pages = ["bulk", "tutorials/bulk-import", "reference/models"]
    app = SimpleNamespace(outdir=str(tmp_path), srcdir=str(_DOCS), env=SimpleNamespace(found_docs=pages))
    write(app, None)
    written = {str(path.relative_to(tmp_path)): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.md")}
    assert written == {f"{page}.md": (_DOCS / f"{page}.md").read_text(encoding="utf-8") for page in pages[:2]}
    write(app, OSError("the build has failed"))
