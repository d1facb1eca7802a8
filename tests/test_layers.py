"""The direction of the imports between the rooms of the package, read from the source."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

_FLOOR = {"_curl", "errors", "_statuses", "events", "models", "_urls", "_pace"}
_TRANSPORT = {"_transport"}
"""Stands on the errors alone: it knows nothing of calls, operations or credentials."""
_MIDDLE = {"retry", "credentials", "_pipeline", "resources", "bulk"}
_WIRE = {"_json", "_convert", "_messages", "_operations", "_transport"}
_UPPER = [{"session"}, {"_sign_in"}, {"web"}, {"integrations", "cli"}]
_LEVELS = [_FLOOR, _TRANSPORT, {"_json"}, {"_convert"}, {"_messages"}, {"_operations"}, _MIDDLE, *_UPPER]
_LEVEL = {room: level for level, rooms in enumerate(_LEVELS) for room in rooms}
_OUTSIDE = {"testing", "integrations", "cli"}
"""Rooms that may use the package as an application does, through its public names."""
_OWNERS = {
    "cattrs": {"_convert"},
    "tenacity": {"retry"},
    "aiohttp": {"_transport", "testing"},
    "click": {"cli"},
    "rich": {"cli"},
    "pytest": {"testing"},
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
    """Say what a module's source does that its room may not.

    A library may be named in annotations outside its room, by an import that never runs; the order of the rooms holds there too.
    """
    tree = ast.parse(source)
    parts = module.split(".")
    room = parts[1] if len(parts) > 1 else ""
    found = []
    for name, types_only in _imported(tree, module if is_package else module.rpartition(".")[0]):
        top, _, rest = name.partition(".")
        if not types_only and room not in _OWNERS.get(top, {room}):
            found.append(f"{module} imports {top}")
        target = rest.partition(".")[0]
        if top != "boardclient" or not room or target == room:
            continue
        if room == "cli" and any(part.startswith("_") and not part.startswith("__") for part in rest.split(".")):
            found.append(f"{module} imports the private {name}")
            continue
        if target not in _LEVEL and target != "testing" and not target.startswith("__"):
            if room not in _OUTSIDE:
                found.append(f"{module} imports {name} from the top")
        elif room == "testing" and target in _WIRE:
            found.append(f"{module} imports the wire code {target}")
        elif target == "testing" and room != "cli":
            found.append(f"{module} imports testing")
        elif target in _LEVEL and room in _LEVEL and _LEVEL[target] > _LEVEL[room]:
            found.append(f"{module} imports {target}, which stands above it")
    if room != "cli":
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
def test_module_keeps_to_its_room(module: str, path: Path) -> None:
    """Each module imports only what its room may."""
    assert violations(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py") == []


def test_every_module_stands_in_a_known_room() -> None:
    """A module that no rule speaks of would escape them all."""
    rooms = {module.split(".")[1] for module, _ in _modules() if "." in module}
    assert rooms <= set(_LEVEL) | {"testing", "__main__"}
    assert rooms >= _FLOOR | _WIRE | {"session", "resources", "retry", "testing"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("boardclient.errors", "from boardclient._convert import to_card"),
        ("boardclient.models", "from . import session"),
        ("boardclient.models", "from .session import AsyncSession"),
        ("boardclient._convert", "import boardclient._operations"),
        ("boardclient._transport._pool", "from boardclient._pipeline._in_flight import CallContext"),
        ("boardclient._transport._pool", "from boardclient._messages import Request"),
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
