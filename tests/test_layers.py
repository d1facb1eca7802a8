"""What each part of the package may import and know, read from the source.

A part is a module or folder at the top of the package. Rules name parts, so that files within a part may be merged and split, and
the names of parts that are gone do no harm.
"""

from __future__ import annotations

import ast
import functools

import pytest
from code_base import circles, floors, imported_modules, imports, modules, part_of

_LEVELS = [
    set[str](),  # every part that is not named below
    {"_transport"},  # stands on the errors alone: it knows nothing of calls and operations
    {"_interface"},
    {"retry", "credentials", "_pipeline", "resources", "bulk", "store", "distributed"},
    {"session"},
    {"web"},
    {"integrations", "cli"},
]
_LEVEL = {part: level for level, parts in enumerate(_LEVELS) for part in parts}
_WIRE = {"_interface", "_transport"}
"""What `testing` shares nothing with, so that a wrong name in it fails a test."""
_OF_THE_MACHINE = ("_base._environment", "credentials._profiles")
"""What the command line shares with the package below it: what it keeps on the machine, and finds there."""
_OUTSIDE = {"testing", "_pytest_plugin", "integrations", "cli", "distributed", "__main__"}
"""Parts that may use the package as an application does, through its public names."""
_OWNERS = {
    "aiohttp": {"_transport", "testing", "integrations", "cli"},
    "cattrs": {"_pipeline", "_interface"},
    "click": {"cli"},
    "cryptography": {"credentials"},
    "httptools": {"_transport"},
    "itsdangerous": {"web"},
    "msgspec": {"_transport", "_interface"},
    "multidict": {"_base", "_transport", "_interface", "credentials", "integrations", "testing"},
    "psycopg": {"store"},
    "pytest": {"_pytest_plugin"},
    "rich": {"cli"},
    "sqlite3": {"bulk", "credentials", "distributed", "store"},
    "tenacity": {"retry"},
    "fastapi": {"integrations"},
    "mcp": {"integrations"},
    "litestar": {"integrations"},
    "quart": {"integrations"},
    "starlette": {"integrations"},
}


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return what a module's source does that its part of the package may not.

    Annotations may name a library anywhere, by an import that never runs. The order of the parts holds there as well.
    """
    part = part_of(module)
    found = []
    for imported, types_only in imports(source, module, is_package=is_package):
        top, _, rest = imported.partition(".")
        if not types_only and part not in _OWNERS.get(top, {part}):
            found.append(f"{module} imports {top}")
        target = rest.partition(".")[0]
        if top != "boardclient" or not part or target == part:
            continue
        if (
            part == "cli"
            and not rest.startswith(_OF_THE_MACHINE)
            and any(name.startswith("_") and not name.startswith("__") for name in rest.split("."))
        ):
            found.append(f"{module} imports the private {imported}")
        elif f"boardclient.{target}" not in _MODULES and not target.startswith("__"):
            if part not in _OUTSIDE:
                found.append(f"{module} imports {imported} from the top")
        elif part == "testing" and target in _WIRE:
            found.append(f"{module} imports the wire code {target}")
        elif target == "testing" and part not in {"cli", "_pytest_plugin"}:
            found.append(f"{module} imports testing")
        elif part not in {"testing", "__main__"} and _LEVEL.get(target, 0) > _LEVEL.get(part, 0):
            found.append(f"{module} imports {target}, which stands above it")
    if part != "cli":
        found += [
            f"{module} prints"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    return found


_MODULES = modules()
_SOURCES = {module: path.read_text(encoding="utf-8") for module, path in _MODULES.items()}


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module: parsing them all takes longer than all that is asked of them."""
    return {module: ast.parse(source) for module, source in _SOURCES.items()}


def test_a_module_imports_only_what_its_part_may() -> None:
    """Each module imports only what its part of the package may."""
    found = [
        violation
        for module, source in _SOURCES.items()
        for violation in violations(module, source, is_package=_MODULES[module].name == "__init__.py")
    ]
    assert found == []


def test_modules_import_each_other_in_one_direction() -> None:
    """No module imports one that imports it, directly or by others, not even late or for type checkers."""
    assert [sorted(circle) for circle in circles(imported_modules())] == []


_ROOMS = {
    "boardclient.bulk._journal": {"boardclient.bulk._proof", "boardclient.bulk._engine"},
    "boardclient.bulk._proof": {"boardclient.bulk._journal", "boardclient.bulk._engine"},
    "boardclient.bulk._engine": {"boardclient.bulk._journal"},
    "boardclient.bulk.journal": {"boardclient.bulk._proof", "boardclient.bulk._engine"},
}
"""What each folder of `bulk`, and the reading of a journal, does not import. Nor do the modules beside them that it imports."""


@pytest.mark.parametrize("room", _ROOMS)
def test_proof_and_journal_know_neither_each_other_nor_the_engine(room: str) -> None:
    """No module of a folder of `bulk` reaches the folders of which it is to know nothing, whatever it imports."""
    graph = imported_modules()
    ahead = [module for module in graph if f"{module}.".startswith(f"{room}.")]
    reached = set(ahead)
    while ahead:
        new = {module for module in graph[ahead.pop()] if module.startswith("boardclient.bulk.")} - reached
        reached |= new
        ahead += new
    assert reached
    assert {module for module in reached if module.rpartition(".")[0] in _ROOMS[room]} == set()


def test_few_modules_and_folders_stand_side_by_side() -> None:
    """A folder of the package has at most twelve modules, besides the one that it is itself, and at most twelve folders."""
    crowded = {folder: counts for folder, counts in floors(_MODULES.values()).items() if max(counts) > 12}
    assert crowded == {}


def test_planted_circle_is_caught() -> None:
    """The check sees a circle of three, and nothing in what merely leads into it."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}, "e": set()}) == [{"b", "c", "d"}]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("boardclient.errors", "from boardclient._interface._fields import to_card"),
        ("boardclient.models", "from . import session"),
        ("boardclient._transport._choice", "from boardclient._pipeline._calls import CallContext"),
        ("boardclient._interface._operations", "from boardclient import Card"),
        ("boardclient.bulk.workers", "from ..session import AsyncSession"),
        ("boardclient.bulk.workers", "def late():\n    from boardclient.session import AsyncSession"),
        ("boardclient.session", "import boardclient.testing"),
        ("boardclient.testing.service", "from boardclient._interface import _operations"),
        ("boardclient.testing._service", "from boardclient._transport._choice import TransportChoice"),
        ("boardclient.models", "import cattrs"),
        ("boardclient._pipeline._pipeline", "from multidict import CIMultiDict"),
        ("boardclient.session", "from tenacity.asyncio import AsyncRetrying"),
        ("boardclient", "import aiohttp"),
        ("boardclient.cli._commands._import_command", "from boardclient.bulk._results import BulkAudit"),
        ("boardclient.models", "if TYPE_CHECKING:\n    from .session import AsyncSession"),
        ("boardclient.session", "if TYPE_CHECKING:\n    import typing\nimport aiohttp"),
        ("boardclient.retry", "print('pause')"),
    ],
)
def test_planted_violation_is_caught(module: str, source: str) -> None:
    """The check sees each kind of wrong import, also a relative and a late one."""
    assert len(violations(module, source)) == 1


_OTHER_NUMBERS = {
    "credentials": {400, 438, 448, 502}, "cli": {400, 443, 448, 500, 503},
    "integrations": {401, 403, 404, 405, 443, 503}, "retry": {500},
    "web": {400},
}  # fmt: skip
"""What 400 means to a token exchange is said by RFC 6749 (section 5.2). The others are sizes, modes and ports."""


def test_statuses_are_known_in_one_file() -> None:
    """Only `_interface` says what a 4xx or 5xx means to a call. Errors have the status that an application may respond with."""
    numbers = [
        (part_of(module), node.value)
        for module, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is int and 400 <= node.value < 600
    ]
    elsewhere = {(part, number) for part, number in numbers if part not in {"_interface", "errors", "testing"}}
    assert {(part, number) for part, number in elsewhere if number not in _OTHER_NUMBERS.get(part, ())} == set()
    assert ("_interface", 429) in numbers


# --- how hard a function is to read

_MOST_COMPLEX = 15
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


def complexity(function: ast.AST) -> int:
    """Return one more than the branches of a function, those of functions within it and operands of `and` and `or` included."""
    found = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            found += 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
    return found


def test_no_function_is_hard_to_read() -> None:
    """No function branches more often than a reader can follow."""
    found = [
        f"{module}.{node.name}: {count}"
        for module, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (count := complexity(node)) > _MOST_COMPLEX
    ]
    assert found == []


def test_complexity_counts_each_way_through() -> None:
    """Nested functions, comprehensions, operands, handlers and cases count."""
    source = """
def outer(a):
    def inner(b):
        return a if b else None
    for c in [d for d in a if d]:
        if c and a or inner(c):
            pass
    try:
        pass
    except ValueError:
        pass
    match a:
        case 1:
            pass
"""
    assert complexity(ast.parse(source).body[0]) == 10
