"""Each text that an error may have is a heading of docs/errors.md, with its cause and what to do below it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from code_base import package
from error_headings import HEADINGS, begins_a_text, without_beginning

from boardclient._interface._responses import _CLASSES, _TABLE
from boardclient._transport._reader import _WHY

_VARIES = "…"
"""What stands in a heading for the values of a text."""
_NO_ERRORS = {
    "AssertionError",  # of what tests assert
    "CallWithdrawn",  # caught by the run that raises it
    "Misfit",  # becomes a DecodeError that names the field
    "NotImplementedError",
    "Refused",  # a response of the embedded service
}
_ERROR = re.compile(r"\w*(?:Error|Required|BadParameter)$|_damage$|_no_token$")


def _texts(node: ast.expr | None, known: dict[str, list[str]]) -> list[str]:
    """Return the texts that an expression may be, with `…` for what varies, or none if it passes on the text of another."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            found = [""]
            for part in parts:
                more = [str(part.value)] if isinstance(part, ast.Constant) else [_VARIES]
                found = [text + one for text in found for one in more]
            return found
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body, known) + _texts(orelse, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = _texts(right, known) or [_VARIES]
            return [text + end for text in _texts(left, known) or [_VARIES] for end in ends]
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return [re.sub(r"\{\w*\}", _VARIES, text) for text in _texts(value, known)]
        case ast.Name(id=name):
            return known.get(name, [])
    return []


def _assigned(body: ast.AST, known: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the texts of the names that a module or function assigns."""
    found: dict[str, list[str]] = dict(known)
    for node in ast.walk(body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and (texts := _texts(node.value, known)):
                found[target.id] = [*found.get(target.id, []), *texts]
    return found


def texts_of_errors(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each error that a module makes."""
    known = _assigned(module, {})
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if _ERROR.match(name) and name not in _NO_ERRORS and node.args:
                for text in _texts(node.args[-1] if name == "_damage" else node.args[0], known):
                    if re.search(r"\w\w", plain := without_beginning(text)):
                        yield node.lineno, plain


@functools.cache
def _modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package().rglob("*.py"))}


def test_each_error_is_a_heading() -> None:
    """What a user reads in a message leads to its cause and its remedy."""
    found = [(path.name, line, text) for path, module in _modules().items() for line, text in texts_of_errors(module)]
    assert len(found) > 300
    assert [one for one in found if not begins_a_text(one[2])] == []


def test_each_status_and_each_broken_connection_is_a_heading() -> None:
    """The words for a status, and for why there was no response, are in a heading too."""
    words = [meaning.words for meaning in (*_TABLE.values(), *_CLASSES.values()) if meaning.words]
    words += [why.split(", ")[0] for _, why in _WHY]
    assert [one for one in words if not any(heading.endswith(one) for heading in HEADINGS)] == []


def test_each_heading_is_a_text_of_the_package() -> None:
    """A text that is no more leaves the page."""
    texts = "\n".join(
        node.value
        for module in _modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    parts = [part for heading in HEADINGS for part in re.sub(r"^(status \S+ from|no connection to) …: ", "", heading).split("…")]
    assert [part for part in parts if part.strip() and part.strip() not in texts] == []
    assert [heading for heading in HEADINGS if HEADINGS.count(heading) > 1] == []


def test_a_planted_error_is_caught() -> None:
    """A text that no heading begins is found, however the error is made."""
    planted = """
_WHY = "no card flies"
def fly(x):
    words = f"{x} must not fly" if x else "nothing flies"
    raise ValueError(words)
def other(x):
    return JournalError(_WHY)
def third(error):
    raise ValueError(str(error))
"""
    found = [text for _, text in texts_of_errors(ast.parse(planted))]
    assert found == ["must not fly", "nothing flies", "no card flies"]
    assert not any(map(begins_a_text, found))
    assert begins_a_text("the session is closed")
