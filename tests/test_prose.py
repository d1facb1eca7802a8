"""The prose of the package: docstrings begin with a short sentence, words are those that the field uses, errors are explained."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from code_base import package
from error_headings import HEADINGS, begins_a_text, without_beginning

from boardclient._interface._responses import _CLASSES, _TABLE
from boardclient._transport._reader import _WHY

_LONGEST = 79
_WORDS = {
    "whoever": "say who",
    "somebody": "say who",
    "anybody": "say who",
    "everybody": "say who",
    "nobody is told": "say what happens",
    "nobody did": "say what happens",
    "is told": "receives, or is notified",
    "are told": "receive, or are notified",
    "hears": "receives",
    "hear of": "receive",
    "goes on": "continues",
    "go on": "continue",
    "gone on": "continued",
    "comes to its end": "ends",
    "come to their end": "end, or are completed",
    "handed out": "returned",
    "its turn": "say what it waits for",
    "where none": "if there is none",
    "of before": "earlier",
    "tell whether": "return True if",
    "armed": "logged",
    "arming": "logging",
    "the way of a": "the stages of",
    "a room of": "say where",
    "room for": "capacity for",
}
"""Riddles and private metaphors, and what to write in their place."""
_ANY_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b")

_PACKAGE = sorted(package().rglob("*.py"))
_HERE = Path(__file__).parent
_TESTS = sorted(path for path in _HERE.rglob("*.py") if path != Path(__file__))
_PAGES = sorted([*(_HERE.parent / "docs").rglob("*.md"), *_HERE.parent.glob("*.md")])


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each module, class and function that has one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, of modules, attributes and the rest, and of each comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring on one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(docstring.partition("\n\n")[0].split()))[0]


def odd_words(text: str) -> list[str]:
    """Return the words of a text that have a plainer name."""
    flat = " ".join(text.lower().split())
    return [f"{word!r}: {plain}" for word, plain in _WORDS.items() if re.search(rf"\b{word}\b", flat)]


def test_public_docstrings_begin_with_a_short_sentence() -> None:
    """The first sentence of a docstring that users read has at most 79 characters: editors show it on a line."""
    public = [
        path for path in _PACKAGE if not any(part.startswith("_") for part in path.relative_to(package()).with_suffix("").parts)
    ]
    public += [path for path in _PACKAGE if path.name == "__init__.py" and path not in public]
    firsts = [(path.name, name, first_sentence(text)) for path in public for name, text in docstrings(_read(path))]
    assert [first for first in firsts if len(first[2]) > _LONGEST and not first[1].startswith("_")] == []


def test_docstrings_and_comments_have_no_odd_words() -> None:
    """Docstrings and comments of the package and of the tests use plain words."""
    some = [path for path in [*_PACKAGE, *_TESTS] if _ANY_WORD.search(" ".join(_read(path).lower().split()))]
    found = [(path.name, line, odd_words(text)) for path in some for line, text in prose(_read(path))]
    assert [one for one in found if one[2]] == []


def test_pages_have_no_odd_words() -> None:
    """Pages for users and developers use plain words, but for examples in code."""
    texts = [(path.name, re.sub(r"```.*?```|`[^`]*`", "", _read(path), flags=re.DOTALL)) for path in _PAGES]
    assert [(page, odd_words(text)) for page, text in texts if odd_words(text)] == []


def test_each_test_says_its_sentence() -> None:
    """The docstring of each test is a sentence, or its name has four words."""
    tests = [node for path in _TESTS if path.name.startswith("test_") for node in ast.walk(ast.parse(_read(path)))]
    named = [(one.name, ast.get_docstring(one)) for one in tests if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    silent = [name for name, text in named if not (name.count("_") > 3 if text is None else re.search(r"\w \w.*\.$", text))]
    assert [name for name in silent if name.startswith("test_")] == []


def test_planted_prose_is_caught() -> None:
    """The checks see a long first sentence over two lines, and odd words in every kind of text."""
    long = f"Return {'a ' * 40}\n    thing. Another sentence."
    assert len(first_sentence(long)) > _LONGEST
    assert first_sentence("Return it.\n\nMore.") == "Return it."
    assert odd_words("Tell\n  whether whoever came is armed.") == [
        "'whoever': say who",
        "'tell whether': return True if",
        "'armed': logged",
    ]
    planted = 'x = 1  # armed\n"""It is armed."""\n'
    assert [(line, odd_words(text)) for line, text in prose(planted)] == [(2, ["'armed': logged"]), (1, ["'armed': logged"])]


# --- the texts of errors

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
    return {path: ast.parse(_read(path)) for path in _PACKAGE}


def test_each_error_is_a_heading() -> None:
    """What a user reads in a message leads to its cause and its remedy."""
    found = [(path.name, line, text) for path, module in _modules().items() for line, text in texts_of_errors(module)]
    assert len(found) > 300
    missing = [one for one in found if not begins_a_text(one[2])]
    assert missing == [], "give each text a heading on docs/errors.md, with its cause and what to do"


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
