"""The README's code runs, and its shell lines are the ones that CI runs."""

import ast
import builtins
import inspect
import re
from pathlib import Path
from types import CodeType

import pytest

import boardclient
from boardclient.testing import BoardService, faults

_README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(language: str, text: str = _README) -> list[str]:
    return [code for found, code in _BLOCK.findall(text) if found == language]


def _section(title: str) -> str:
    return _README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def _headings() -> list[str]:
    """Return the heading above each Python block."""
    return [
        _README[: match.start()].rpartition("\n### ")[2].partition("\n")[0]
        for match in _BLOCK.finditer(_README)
        if match[1] == "python"
    ]


@pytest.fixture
def private_folder(tmp_path: Path) -> Path:
    """A folder that nobody else may enter."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize("source", _blocks("python"), ids=_headings())
async def test_python_block_runs(source: str, board_service: BoardService, private_folder: Path) -> None:
    """Each block runs as it stands, with the names that the README says are there."""
    async with board_service.session() as session:
        board = await session.boards.create("Launch")
        todo = await session.lists.create("To do", board_id=board.id)
        names: dict[str, object] = {"service": board_service, "session": session, "board": board, "todo": todo}
        names["folder"] = private_folder
        code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await _run(code, names)
        tests = [value for name, value in names.items() if name.startswith("test_") and inspect.iscoroutinefunction(value)]
        for test in tests:
            await test(board_service)


async def _run(code: CodeType, names: dict[str, object]) -> None:
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome


async def test_lost_answer_is_looked_for(board_service: BoardService, capsys: pytest.CaptureFixture[str]) -> None:
    """The block about errors finds the card whose answer was lost, instead of making another."""
    source = next(block for block in _blocks("python") if "Effect.UNKNOWN" in block)
    async with board_service.session() as session:
        board = await session.boards.create("Launch")
        todo = await session.lists.create("To do", board_id=board.id)
        board_service.faults.add(faults.drop(commit=True), "cards.create")
        code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await _run(code, {"session": session, "board": board, "todo": todo})
        assert len(await session.boards.cards(board.id)) == 1
    assert capsys.readouterr().out.startswith("found: [Card(")


def test_the_five_things_are_there() -> None:
    """Each of the things that users do has its heading and its block."""
    section = _section("The five things users do")
    assert section.count("\n### ") == 5
    assert len(_blocks("python", section)) == 5


@pytest.mark.parametrize("title", ["Try it", "Test it"])
def test_shell_line_is_one_line(title: str) -> None:
    """What a newcomer copies is a single line that makes its own environment."""
    line = _blocks("sh", _section(title))[0]
    assert line.count("\n") == 1
    assert line.startswith("python3 -m venv .venv && ")


@pytest.mark.parametrize("name", re.findall(r"`([A-Z]\w+)`", _section("What you may rely on")))
def test_name_in_the_guarantees_exists(name: str) -> None:
    """The table of guarantees speaks of names that are there."""
    assert hasattr(boardclient, name) or hasattr(builtins, name) or name in {"GET", "PUT", "DELETE", "POST"}
