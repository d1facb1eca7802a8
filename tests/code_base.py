"""What the tests of the code base and `size.py` read from the source: modules, their imports, lines of code."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_INVISIBLE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def package() -> Path:
    """Return the folder of the package that is installed."""
    spec = importlib.util.find_spec("boardclient")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def modules() -> dict[str, Path]:
    """Return the path of each module by its name."""
    root = package()
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def part_of(module: str) -> str:
    """Return the part of the package that a module belongs to: its name below the top."""
    return module.split(".")[1] if "." in module else ""


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the absolute name of each imported module or of a name in it, and whether only type checkers import it."""
    yield from _imports(ast.parse(source), module if is_package else module.rpartition(".")[0], types_only=False)


def _imports(tree: ast.AST, folder: str, *, types_only: bool) -> Iterator[tuple[str, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, types_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = folder.split(".")[: len(folder.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", types_only) for alias in node.names)
        else:
            is_guard = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            yield from _imports(node, folder, types_only=types_only or is_guard)


@functools.cache
def imported_modules() -> dict[str, set[str]]:
    """Return the modules that each module imports, also late and for type checkers; the top itself only lists names."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        graph[module] = set()
        for name, _ in imports(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"):
            while name and name not in known:
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    graph["boardclient"] = set()
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or by others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        ahead = [*graph[start]]
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead += graph.get(module, ())
        reached[start] = seen
    found: list[set[str]] = []
    for module, seen in reached.items():
        if module in seen and not any(module in circle for circle in found):
            found.append({other for other in seen if module in reached.get(other, ())})
    return found


def floors(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return how many modules and folders stand side by side in each folder, without the module that is the folder itself."""
    shown = [path.parent if path.stem == "__init__" else path for path in paths]
    beside = Counter((path.parent, path.suffix == "") for path in shown)
    return {folder: (beside[folder, False], beside[folder, True]) for folder in {path.parent for path in paths}}


def code_lines(paths: Iterable[Path]) -> int:
    """Count the lines of code: without blank lines, comments and docstrings."""
    total = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        lines = {
            line
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type not in _INVISIBLE
            for line in range(token.start[0], token.end[0] + 1)
        }
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        total += len(lines)
    return total
