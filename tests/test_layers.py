"""What each part of the package may import and know, read from the source."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

_FLOOR = {
    "_activities",
    "_curl",
    "_stats",
    "logs",
    "_environment",
    "_optional_imports",
    "errors",
    "_statuses",
    "events",
    "models",
    "_urls",
    "_pace",
    "_redaction",
}
_TRANSPORT = {"_transport"}
"""Stands on the errors alone: it knows nothing of calls, operations or credentials."""
_MIDDLE = {"retry", "credentials", "_pipeline", "resources", "bulk"}
_WIRE = {"_json", "_fields", "_convert", "_responses", "_operations", "_transport"}
_UPPER = [{"session"}, {"_sign_in"}, {"web"}, {"integrations", "cli"}]
_LEVELS = [_FLOOR, _TRANSPORT, {"_json", "_fields"}, {"_convert"}, {"_responses"}, {"_operations"}, _MIDDLE, *_UPPER]
_LEVEL = {part: level for level, parts in enumerate(_LEVELS) for part in parts}
_OUTSIDE = {"testing", "integrations", "cli"}
"""Parts that may use the package as an application does, through its public names."""
_OWNERS = {
    "aiohttp": {"_transport", "testing", "integrations"},
    "cattrs": {"_convert"},
    "click": {"cli"},
    "cryptography": {"credentials"},
    "itsdangerous": {"_sign_in"},
    "msgspec": {"_json", "_convert"},
    "multidict": {"_activities", "_transport", "_responses", "credentials", "integrations", "testing"},
    "pytest": {"testing"},
    "rich": {"cli"},
    "sqlite3": {"bulk", "credentials"},
    "tenacity": {"retry"},
    "fastapi": {"integrations"},
    "litestar": {"integrations"},
    "quart": {"integrations"},
    "starlette": {"integrations"},
}


def _package() -> Path:
    spec = importlib.util.find_spec("boardclient")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported(tree: ast.AST, package: str, *, types_only: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the absolute name of each imported module or of a name in it, and whether only type checkers import it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, types_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", types_only) for alias in node.names)
        else:
            yield from _imported(node, package, types_only=types_only or _is_type_checking(node))


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return what a module's source does that its part of the package may not.

    Annotations may name a library anywhere, by an import that never runs. The order of the parts holds there as well.
    """
    tree = ast.parse(source)
    names = module.split(".")
    part = names[1] if len(names) > 1 else ""
    found = []
    for imported, types_only in _imported(tree, module if is_package else module.rpartition(".")[0]):
        top, _, rest = imported.partition(".")
        if not types_only and part not in _OWNERS.get(top, {part}):
            found.append(f"{module} imports {top}")
        target = rest.partition(".")[0]
        if top != "boardclient" or not part or target == part:
            continue
        if part == "cli" and any(name.startswith("_") and not name.startswith("__") for name in rest.split(".")):
            found.append(f"{module} imports the private {imported}")
            continue
        if target not in _LEVEL and target != "testing" and not target.startswith("__"):
            if part not in _OUTSIDE:
                found.append(f"{module} imports {imported} from the top")
        elif part == "testing" and target in _WIRE:
            found.append(f"{module} imports the wire code {target}")
        elif target == "testing" and part != "cli":
            found.append(f"{module} imports testing")
        elif target in _LEVEL and part in _LEVEL and _LEVEL[target] > _LEVEL[part]:
            found.append(f"{module} imports {target}, which stands above it")
    if part != "cli":
        found += [
            f"{module} prints"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    return found


def _modules() -> list[tuple[str, Path]]:
    root = _package()
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        modules.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return modules


@pytest.mark.parametrize(("module", "path"), _modules(), ids=[module for module, _ in _modules()])
def test_a_module_imports_only_what_its_part_may(module: str, path: Path) -> None:
    """Each module imports only what its part of the package may."""
    assert violations(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py") == []


def test_every_module_belongs_to_a_known_part() -> None:
    """Each module is in a part that a rule names."""
    parts = {module.split(".")[1] for module, _ in _modules() if "." in module}
    assert parts <= set(_LEVEL) | {"testing", "__main__"}
    assert parts >= _FLOOR | _WIRE | {"session", "resources", "retry", "testing"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("boardclient.errors", "from boardclient._convert import to_card"),
        ("boardclient.models", "from . import session"),
        ("boardclient.models", "from .session import AsyncSession"),
        ("boardclient._convert", "import boardclient._operations"),
        ("boardclient._transport._pool", "from boardclient._pipeline._in_flight import CallContext"),
        ("boardclient._transport._pool", "from boardclient._responses import Request"),
        ("boardclient._transport._pool", "from boardclient.credentials import Credentials"),
        ("boardclient._operations", "from boardclient import Card"),
        ("boardclient.bulk.workers", "from ..session import AsyncSession"),
        ("boardclient.bulk.workers", "def late():\n    from boardclient.session import AsyncSession"),
        ("boardclient.session", "from boardclient.cli import main"),
        ("boardclient.session", "import boardclient.testing"),
        ("boardclient.testing.service", "from boardclient import _operations"),
        ("boardclient.testing.service", "from .._convert import to_card"),
        ("boardclient.testing.service", "from boardclient._transport import send"),
        ("boardclient.models", "import cattrs"),
        ("boardclient._operations", "from cattrs.preconf.msgspec import make_converter"),
        ("boardclient._operations", "import msgspec"),
        ("boardclient._pipeline._pipeline", "from multidict import CIMultiDict"),
        ("boardclient.session", "import sqlite3"),
        ("boardclient.session", "import tenacity"),
        ("boardclient.session", "from tenacity.asyncio import AsyncRetrying"),
        ("boardclient.session", "import aiohttp.web"),
        ("boardclient.resources", "from aiohttp import ClientSession"),
        ("boardclient", "import aiohttp"),
        ("boardclient.session", "import click"),
        ("boardclient.cli._import", "from boardclient.bulk._results import BulkAudit"),
        ("boardclient.cli._import", "from boardclient.testing._server import BoardService"),
        ("boardclient.models", "if TYPE_CHECKING:\n    from .session import AsyncSession"),
        ("boardclient.session", "if TYPE_CHECKING:\n    import typing\nimport aiohttp"),
        ("boardclient.retry", "print('pause')"),
    ],
)
def test_planted_violation_is_caught(module: str, source: str) -> None:
    """The check sees each kind of wrong import, also a relative and a late one."""
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        ("boardclient", "from .session import AsyncSession", True),
        ("boardclient.testing.service", "from boardclient import AsyncSession, __version__", False),
        ("boardclient.credentials", "from .static import StaticCredentials\nfrom ..errors import CredentialError", True),
        ("boardclient.bulk.workers", "from .report import BulkReport\nfrom ..retry import default", False),
        ("boardclient.session", "from boardclient import retry, _transport\nfrom .models import Card", False),
        ("boardclient.session", "if TYPE_CHECKING:\n    import aiohttp", False),
        ("boardclient.retry", "import tenacity\nfrom boardclient.errors import Effect", False),
        ("boardclient.testing.service", "from aiohttp import web\nfrom ..session import AsyncSession", False),
        ("boardclient.cli.main", "from ..testing import BoardService\nprint('done')", False),
    ],
)
def test_allowed_import_is_not_reported(module: str, source: str, is_package: bool) -> None:
    """The check does not cry wolf."""
    assert violations(module, source, is_package=is_package) == []


_KNOWS_STATUSES = {"_statuses", "testing"}
_ERRORS = range(400, 600)


def _is_status(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in _ERRORS


def _tells_of_status(node: ast.AST | None) -> bool:
    """Return True if a name, an attribute or a call has "status" in its name."""
    names = (getattr(part, "id", None) or getattr(part, "attr", "") for part in ast.walk(node)) if node else ()
    return any("status" in name.lower() for name in names)


def known_statuses(source: str) -> list[str]:
    """Return the places that give a meaning to a 4xx or 5xx.

    They compare a status with one, name one, or collect several. `suggested_status` is what an application may answer with: it
    stands with each error.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        told: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            told = [side for side in sides if _is_status(side)] if any(map(_tells_of_status, sides)) else []
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_suggested = any(isinstance(target, ast.Name) and target.id == "suggested_status" for target in targets)
            told = [node.value] if node.value and any(map(_tells_of_status, targets)) and not is_suggested else []
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            told = node.elts if len(node.elts) > 1 and all(map(_is_status, node.elts)) else []
        elif isinstance(node, ast.Dict):
            told = [key for key in node.keys if key is not None and _is_status(key)]
        elif isinstance(node, ast.Call) and _tells_of_status(node.func):
            told = node.args
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "HTTPStatus"
            and not node.attr.startswith("_")
        ):
            found.append(f"line {node.lineno}: HTTPStatus.{node.attr}")
        elif isinstance(node, ast.MatchValue):
            told = [node.value]
        found += [f"line {one.lineno}: {ast.unparse(one)}" for one in told if _is_status(one)]
    return found


_PROTOCOLS = {"boardclient.credentials._code_exchange", "boardclient._transport._instruments", "boardclient.cli._serve"}
"""RFC 6749 (section 5.2) says what 400 means to a token exchange; tracers see aiohttp's `ok`; `serve` chooses what the embedded
service responds with."""


@pytest.mark.parametrize(("module", "path"), _modules(), ids=[module for module, _ in _modules()])
def test_statuses_are_known_in_one_file(module: str, path: Path) -> None:
    """Only `_statuses` says what a 4xx or 5xx means to a call."""
    if module not in _PROTOCOLS and not _KNOWS_STATUSES & set(module.split(".")):
        assert known_statuses(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "response.status == 404",
        "if 500 <= status: pass",
        "error.status in (429, 503)",
        "_PASSING: frozenset[int] = frozenset({401, 403})",
        "_FIRST_ERROR_STATUS = 400",
        "_WORDS = {404: 'missing'}",
        "when_status(409)",
        "match status:\n    case 429: pass",
        "HTTPStatus.NOT_FOUND",
    ],
)
def test_planted_status_is_caught(source: str) -> None:
    """The check sees each form in which code knows a status."""
    assert known_statuses(source)


@pytest.mark.parametrize("source", ["_ROWS = 500", "sizes = (50, 500)", "suggested_status = 404", "status < 300", "'status 404'"])
def test_other_numbers_are_not_reported(source: str) -> None:
    """Sizes, and what an application may answer with, are no knowledge of the service's statuses."""
    assert known_statuses(source) == []
