"""What is written as a test is run, read from the source of the tests: what is collected, fixtures, headings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_TEST = re.compile(r"^(?: *(?:async )?def test_| *class Test)", re.MULTILINE)
_NESTED = re.compile(r"^ +(?:async )?def test_|^ *class Test", re.MULTILINE)
_FIXTURE = re.compile(r"^ *@pytest\.fixture(?P<options>\(.*\))?\n(?: *@.*\n)* *(?:async )?def (?P<name>\w+)", re.MULTILINE)
_OTHER_NAME = re.compile(r"\bname=\"(\w+)\"")
_SIGNATURE = re.compile(r"\bdef \w+(\((?:[^()]|\([^()]*\))*\))")
_PROGRAM = re.compile(r'"""(?:[^"]|"(?!""))*"""')
"""A text that may hold tests of another run, such as those of the plugin."""
_BY_NAME = re.compile(r"(?:usefixtures|getfixturevalue)\(([^)]*)\)")
_HEADING = re.compile(r"^ *# --- .*", re.MULTILINE)
_BLANKS = re.compile(r"(?:\s|#.*)*")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def uncollected(path: str, source: str) -> list[str]:
    """Return the tests of a module that pytest does not collect, for their file, their class, or a function around them."""
    is_of_tests = path.rpartition("/")[2].startswith("test_")
    if not (_NESTED if is_of_tests else _TEST).search(source):  # parsing all takes seconds
        return []
    tree = ast.parse(source)
    suites = {
        base.id for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases if isinstance(base, ast.Name)
    }
    return [f"{path}: {name}" for name in _uncollected(tree, suites, is_seen=is_of_tests)]


def _uncollected(node: ast.AST, suites: set[str], *, is_seen: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        is_seen_inside = is_seen and not isinstance(child, _Function)
        if isinstance(child, ast.ClassDef):
            has_init = any(isinstance(one, _Function) and one.name == "__init__" for one in child.body)
            is_seen_inside = is_seen and not has_init and (child.name.startswith("Test") or child.name in suites)
            if child.name.startswith("Test") and not is_seen_inside:
                yield child.name
        elif isinstance(child, _Function) and child.name.startswith("test_") and not is_seen:
            yield child.name
        yield from _uncollected(child, suites, is_seen=is_seen_inside)


def unused_fixtures(sources: Mapping[str, str]) -> list[str]:
    """Return the fixtures that nothing asks for where they are seen. Those of helpers are seen wherever they are imported."""
    asked = {path: _asked_for(source) for path, source in sources.items()}
    found = []
    for path, source in sources.items():
        folder, slash, name = path.rpartition("/")
        below = folder + slash if name == "conftest.py" else path if name.startswith("test_") else ""
        for fixture in _FIXTURE.finditer(_PROGRAM.sub("", source)):
            options = fixture["options"] or ""
            other = _OTHER_NAME.search(options)
            wanted = fixture["name"] if other is None else other[1]
            if "autouse=True" not in options and not any(wanted in asked[user] for user in sources if user.startswith(below)):
                found.append(f"{path}: {wanted}")
    return found


def _asked_for(source: str) -> set[str]:
    return {word for text in _SIGNATURE.findall(source) + _BY_NAME.findall(source) for word in re.findall(r"\w+", text)}


def empty_headings(path: str, source: str) -> list[str]:
    """Return the headings of a module with nothing below them before the next one."""
    headings = [*_HEADING.finditer(source)]
    ends = [*(heading.start() for heading in headings[1:]), len(source)]
    return [
        f"{path}: {heading[0].strip()}"
        for heading, end in zip(headings, ends[: len(headings)], strict=True)
        if _BLANKS.fullmatch(source, heading.end(), end)
    ]


_SOURCES = {path.relative_to(_TESTS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(_TESTS.rglob("*.py"))}


def test_each_test_stands_where_it_is_collected() -> None:
    """No test stands in a module, class or function that pytest does not look into."""
    assert [name for path, source in _SOURCES.items() for name in uncollected(path, source)] == []


def test_each_fixture_has_a_user() -> None:
    """Something asks for each fixture where it can be seen."""
    assert unused_fixtures(_SOURCES) == []


def test_each_heading_has_something_below_it() -> None:
    """No heading is left over from tests that are gone."""
    assert [name for path, source in _SOURCES.items() for name in empty_headings(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source", "name"),
    [
        ("store_helpers.py", "class TestStore:\n    def test_read(self): ...", "TestStore"),
        ("store_helpers.py", "async def test_read(): ...", "test_read"),
        ("store/test_store.py", "class StoreTests:\n    def test_read(self): ...", "test_read"),
        ("store/test_store.py", "def outer():\n    def test_read(): ...", "test_read"),
        ("store/test_store.py", "class TestStore:\n    def __init__(self): ...", "TestStore"),
    ],
)
def test_planted_uncollected_test_is_found(path: str, source: str, name: str) -> None:
    """The check sees each place where nothing collects a test, and none in a suite that a collected class derives from."""
    assert f"{path}: {name}" in uncollected(path, source)
    suite = "class Suite:\n    def test_read(self): ...\nclass TestStore(Suite):\n    async def test_write(self): ..."
    assert uncollected("test_store.py", suite) == []


def test_planted_unused_fixture_is_found() -> None:
    """The check sees a fixture that only tests elsewhere ask for, and none that is asked for in a signature or by name."""
    fixture = "@pytest.fixture(scope='module')\nasync def store() -> None: ...\n"
    sources = {"a/conftest.py": fixture, "b/test_b.py": "def test_b(store: object) -> None: ..."}
    assert unused_fixtures(sources) == ["a/conftest.py: store"]
    assert unused_fixtures(sources | {"a/test_a.py": "def test_a(other: int, store: object) -> None: ..."}) == []
    assert unused_fixtures(sources | {"a/test_a.py": 'pytestmark = pytest.mark.usefixtures("store")'}) == []
    assert unused_fixtures({"helpers.py": fixture, "b/test_b.py": sources["b/test_b.py"]}) == []


def test_planted_empty_heading_is_found() -> None:
    """The check sees a heading before another one and before the end."""
    assert empty_headings("test_a.py", "# --- one\n\n# why\n# --- two\nX = 1\n# --- three\n") == [
        "test_a.py: # --- one",
        "test_a.py: # --- three",
    ]
