"""The documentation is true: its programs run as pasted, its links lead somewhere, its lines are those that CI runs."""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import importlib
import inspect
import io
import json
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import boardclient
from boardclient.credentials import Exchange
from boardclient.testing import BoardService, faults

_ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_PAGES = {
    str(path.relative_to(_ROOT)): path.read_text(encoding="utf-8") for path in [*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")]
}
_README = _PAGES["README.md"]


def _blocks(language: str, text: str) -> list[str]:
    return [code for found, code in _BLOCK.findall(text) if found == language]


def _section(title: str) -> str:
    return _README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


_PACKAGES = (
    "boardclient.distributed boardclient.integrations.django boardclient.integrations.mcp celery fastapi httpx litestar "
    "opentelemetry pandas quart starlette vcr"
)
_FULL = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, _PACKAGES.split()))})\b", re.MULTILINE)

_ENGINES = re.compile(r"^\s*(?:from|import) (?:airflow|dlt|pyspark|ray)\b", re.MULTILINE)  # tests/engines runs their programs


def _is_of_pytest(source: str) -> bool:
    return "\nasync def test_" in source


_PROGRAM = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""A program, and the block below it: what it prints."""
_VARYING = re.compile(
    r"(?<=127\.0\.0\.1:)\d+|\d[\d.e-]*(?= ?s\b)|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}|(?<=\()[0-9a-f]{6}-\d+(?=\))"
)
"""What differs each time: the port of a service, seconds, the time of a log record, and a call's `call_id`."""
_PROGRAMS = [
    pytest.param(
        page,
        found["code"],
        found["output"] or "",
        id=f"{page} {number}",
        marks=[pytest.mark.full] if _FULL.search(found["code"]) or _is_of_pytest(found["code"]) else [],
    )
    for page, text in _PAGES.items()
    for number, found in enumerate(_PROGRAM.finditer(text))
    if not _ENGINES.search(found["code"])
]


def _write_output(page: str, source: str, printed: str) -> None:
    """Put what a program prints below it, in the page."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    shown = f"\n```text\n{printed}```\n" if printed else ""
    replaced = _PROGRAM.sub(lambda found: f"```python\n{source}```\n{shown}" if found["code"] == source else found[0], text)
    (_ROOT / page).write_text(replaced, encoding="utf-8")


@pytest.mark.parametrize(("page", "source", "output"), _PROGRAMS)
def test_each_program_runs_as_pasted_and_prints_what_stands_below_it(
    page: str,
    source: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    board_service: BoardService,
    pytestconfig: pytest.Config,
) -> None:
    """A block is a whole program, or a test that pytest runs. The environment is that of a service."""
    monkeypatch.chdir(tmp_path)
    for name, value in board_service.environment.items():
        monkeypatch.setenv(name, value)
    if _is_of_pytest(source):
        (tmp_path / "test_block.py").write_text(source, encoding="utf-8")
        (tmp_path / "pyproject.toml").write_text(_blocks("toml", _PAGES["docs/testing.md"])[0], encoding="utf-8")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("PY_COLORS", "0")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_block.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout
        assert "PytestDeprecationWarning" not in done.stderr
        printed = done.stdout
    else:
        written = io.StringIO()
        with contextlib.ExitStack() as streams:
            streams.enter_context(contextlib.redirect_stdout(written))
            if "stderr" in source:  # a program about logs: without the handlers of earlier programs
                monkeypatch.setattr(logging.getLogger("boardclient"), "handlers", [])
                streams.enter_context(contextlib.redirect_stderr(written))
            exec(compile(source, "block.py", "exec", dont_inherit=True), {"__name__": "__main__"})
        printed = written.getvalue()
    if pytestconfig.option.write_output:
        _write_output(page, source, printed)
    else:
        assert _VARYING.sub("…", printed) == _VARYING.sub("…", output), "run this test with --write-output"


_EXAMPLES_OF = {"boardclient": 18, "boardclient.retry": 2, "boardclient.testing": 5, "boardclient.web": 1}
"""The modules whose classes and functions have examples, and at least how many. Without extras."""


def _examples(module: str) -> dict[str, str]:
    found = {}
    for name in importlib.import_module(module).__all__:
        text = inspect.getdoc(getattr(sys.modules[module], name)) or ""
        if example := re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            found[f"{module}.{name}"] = example[1]
    return found


_EXAMPLES = {name: example for module in _EXAMPLES_OF for name, example in _examples(module).items()}


@pytest.mark.parametrize("module", _EXAMPLES_OF)
def test_classes_whose_use_is_not_plain_have_an_example(module: str) -> None:
    """Their docstrings, which editors and the reference show, have it."""
    assert len(_examples(module)) >= _EXAMPLES_OF[module]


async def _run_example(source: str, running: BoardService, **more: object) -> None:
    async with running.session() as session:
        board = await session.boards.create("Launch", default_lists=True)
        todo = (await session.boards.lists(board.id))[0]
        known = {public: getattr(boardclient, public) for public in boardclient.__all__} | more
        known |= {"session": session, "board": board, "todo": todo, "drafts": [boardclient.CardDraft("A", todo.id)]}
        exec("async def example(session=session):\n" + textwrap.indent(source, "    "), known)
        await known["example"]()


@pytest.mark.parametrize("name", _EXAMPLES)
async def test_each_example_of_a_docstring_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: BoardService
) -> None:
    """An example stands in a coroutine that has an open session, a board, its first list, drafts, and its service."""
    monkeypatch.chdir(tmp_path)
    for variable, value in service.environment.items():
        monkeypatch.setenv(variable, value)
    if name == "boardclient.web.SignIn":
        monkeypatch.setenv("BOARDCLIENT_COOKIE_SECRET", "a secret for this test")
    module = sys.modules[name.rpartition(".")[0]]
    names = {"service": service, "faults": faults, "Exchange": Exchange}
    names |= {public: getattr(module, public) for public in module.__all__}
    await _run_example(_EXAMPLES[name], service, **names)


@pytest.mark.full
@pytest.mark.parametrize("name", ["open_job", "plan", "SqlTokenStore"])
async def test_each_example_of_several_workers_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These need the package's own extra `postgres`, and the embedded service."""
    monkeypatch.chdir(tmp_path)
    distributed = importlib.import_module("boardclient.distributed")
    names = {public: getattr(distributed, public) for public in distributed.__all__}
    async with BoardService() as service:
        await _run_example(_examples("boardclient.distributed")[f"boardclient.distributed.{name}"], service, **names)


@pytest.mark.parametrize("page", _PAGES)
def test_each_link_leads_to_a_file(page: str) -> None:
    """What a page links to in the repository is there."""
    targets = [target for target in _LINK.findall(_PAGES[page]) if "://" not in target]
    assert [target for target in targets if not (_ROOT / page).parent.joinpath(target).exists()] == []


def test_the_readme_is_short() -> None:
    """A newcomer reads it in minutes."""
    assert len(_README.splitlines()) <= 120
    assert len(_README.split()) <= 700


def test_the_readme_shows_what_the_client_is_for_and_where_to_go() -> None:
    """Its second link chooses a call, its first program loses a response, and the table below it leads on."""
    assert _LINK.findall(_README)[1] == "docs/which-call.md"
    first = _PROGRAM.search(_README)
    assert first
    assert "drop(commit=True)" in first["code"]
    assert first["output"].count("Book the hall") == 2
    assert "| I have … | I read … |" in _README[first.end() :]


_LOOKED_UP = {"docs/errors.md", "docs/performance-tables.md", "docs/service.md", "docs/changelog.md"}
"""Pages in which a reader looks one thing up, and leaves."""


def test_each_guide_is_read_in_minutes() -> None:
    """A page has at most 1,500 words, but for those in which one thing is looked up."""
    guides = {page for page in _PAGES if page.startswith("docs/") and not page.startswith("docs/reference/")}
    assert {page: len(_PAGES[page].split()) for page in guides - _LOOKED_UP if len(_PAGES[page].split()) > 1500} == {}


@pytest.mark.parametrize("title", ["Try it", "Test it"])
def test_shell_line_is_one_line(title: str) -> None:
    """What a newcomer copies is a single line that makes its own environment."""
    line = _blocks("sh", _section(title))[0]
    assert line.count("\n") == 1
    assert line.startswith("python3 -m venv .venv && ")


_GUARANTEES = _PAGES["docs/promises.md"]


@pytest.mark.parametrize("name", re.findall(r"`([A-Z]\w+)`", _GUARANTEES))
def test_name_in_the_guarantees_exists(name: str) -> None:
    """The names in the table of guarantees exist."""
    assert hasattr(boardclient, name) or hasattr(builtins, name) or name in {"GET", "PUT", "DELETE", "POST"}


_REFERENCE = "\n".join(text for page, text in _PAGES.items() if page.startswith("docs/reference/"))


@pytest.mark.parametrize(
    "name", ["boardclient", "boardclient.testing", pytest.param("boardclient.distributed", marks=pytest.mark.full)]
)
def test_each_public_name_is_in_the_reference(name: str) -> None:
    """The site documents each name that users import."""
    names = [f"{name}.{public}" for public in importlib.import_module(name).__all__ if public not in {"__version__", "Member"}]
    assert [name for name in names if not re.search(rf":: {re.escape(name)}$", _REFERENCE, re.MULTILINE)] == []


def test_each_public_name_says_since_which_version_it_is_there() -> None:
    """The reference shows the version of docs/since.json. A new name has `next` until a version is cut."""
    since = json.loads((_ROOT / "docs" / "since.json").read_text(encoding="utf-8"))
    versions = re.findall(r"^## \[([\d.]+)\]", _PAGES["CHANGELOG.md"], re.MULTILINE)
    assert [*since] == [*reversed(versions), "next"]
    dated = [name for names in since.values() for name in names]
    shown = set(re.findall(r"auto\w+:: (boardclient[\w.]+)$", _REFERENCE, re.MULTILINE))
    modules = set(re.findall(r"automodule:: (boardclient[\w.]+)$", _REFERENCE, re.MULTILINE))
    for module in ("boardclient.retry", "boardclient.web", "boardclient.logs", "boardclient.testing.faults"):
        shown |= {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert sorted(shown - modules - set(dated)) == []
    assert [name for name in dated if name not in shown and name.rpartition(".")[0] not in modules] == []
    assert len(dated) == len(set(dated))


@pytest.mark.parametrize("page", [page for page in _PAGES if page.startswith("docs/") and not page.startswith("docs/design/")])
def test_each_name_that_a_page_uses_is_in_the_reference(page: str) -> None:
    """What a page imports or names with its module can be looked up."""
    used = set(re.findall(r"`(boardclient\.(?:bulk|distributed|web|retry|events|logs|credentials|testing)\.\w+)", _PAGES[page]))
    for block in _blocks("python", _PAGES[page]):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("boardclient."):
                used |= {f"{node.module}.{name.name}" for name in node.names}
    known = set(re.findall(r":: ([\w.]+)$", _REFERENCE, re.MULTILINE))
    assert [name for name in sorted(used) if not {name, name.rpartition(".")[0]} & known] == []


def test_each_page_is_on_the_site() -> None:
    """A page that no list of contents names can't be found."""
    listed = {
        str((_ROOT / page).parent.joinpath(f"{name}.md").resolve().relative_to(_ROOT))
        for page, text in _PAGES.items()
        for block in re.findall(r"^```{toctree}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for name in block.split("\n")
        if name and not name.startswith(":")
    }
    site = {page for page in _PAGES if page.startswith("docs/") and not page.startswith("docs/examples/")}
    assert site - listed == {"docs/index.md"}


_TERMS = re.findall(r"^## ([a-z]+)$", _PAGES["docs/glossary.md"], re.MULTILINE)
_NO_PROSE = re.compile(r"^```.*?^```$|`[^`\n]+`|\[[^\]]*\]\([^)]*\)|^#[^\n]*$|<!--.*?-->|[\w./-]+\.\w+", re.MULTILINE | re.DOTALL)
_WITHOUT_TERMS = ("docs/design/", "docs/reference/", "docs/examples/", "docs/glossary.md", "docs/changelog.md")


@pytest.mark.parametrize("page", ["README.md", *(page for page in _PAGES if page.startswith("docs/"))])
def test_each_term_is_linked_from_its_first_use(page: str) -> None:
    """A reader who meets a term of the glossary is one click away from what it means."""
    text = "" if page.startswith(_WITHOUT_TERMS) else _PAGES[page].partition("\n## Messages\n")[0]
    prose = _NO_PROSE.sub(lambda found: "\0" * len(found[0]), text)
    unlinked = []
    for term in _TERMS:
        used = re.search(rf"\b{term}(?:s|es)?\b", prose, re.IGNORECASE)
        if used and not 0 <= text.find(f"glossary.md#{term})") < used.start():
            unlinked.append(term)
    assert unlinked == []


def test_the_glossary_has_a_dozen_terms() -> None:
    """Each is one word, which the pages use."""
    assert len(_TERMS) == 12
    used = "\n".join(text for page, text in _PAGES.items() if page.startswith("docs/") and not page.startswith(_WITHOUT_TERMS))
    assert [term for term in _TERMS if f"glossary.md#{term})" not in used] == []


_NAMED = re.compile(r"`((?:boardclient|tests|docs|benchmarks|\.ci)/[\w/.*-]*)`")


@pytest.mark.parametrize("page", [page for page, text in _PAGES.items() if _NAMED.search(text) and page != "CHANGELOG.md"])
def test_each_file_that_a_page_names_exists(page: str) -> None:
    """Modules are merged and renamed, and the pages follow."""
    roots = [_ROOT, Path(boardclient.__file__).parent.parent]
    assert [name for name in _NAMED.findall(_PAGES[page]) if not any(any(root.glob(name.rstrip("/"))) for root in roots)] == []


_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in _PAGES if page.startswith("docs/")])
def test_each_block_fits_the_column_of_the_site(page: str) -> None:
    """A longer line is cut at the right."""
    lines = [line for kind, block in _FENCED.findall(_PAGES[page]) if kind != "mermaid" for line in block.splitlines()]
    assert [line for line in lines if len(line) > 100] == []


def test_each_drawing_is_that_of_its_page() -> None:
    """Without one the site shows the source of the drawing: `python docs/draw.py MERMAID.JS` draws what has changed."""
    sources = {block for text in _PAGES.values() for kind, block in _FENCED.findall(text) if kind == "mermaid"}
    wanted = {f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg" for source in sources}
    assert {path.name for path in (_ROOT / "docs" / "drawings").glob("*.svg")} == wanted
