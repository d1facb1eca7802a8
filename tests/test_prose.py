"""The prose of the package: docstrings begin with a short sentence, and words are those that the field uses."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from code_base import package

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
