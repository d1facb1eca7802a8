"""The prose of the package: docstrings begin with a short sentence, and words are those that the field uses."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
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

_WORDS_OF_TESTS = {
    "answer of": "response",
    "an answer": "a response",
    "the answer": "the response",
    "lost answers": "lost responses",
    "turn": "entry, permit, or iteration of the event loop",
    "told": "reported, or called",
    "tells": "shows, or reports",
    "nobody": "say who",
    "that is none": "invalid",
    "that are none": "invalid",
    "harms": "say what happens",
    "direct way": "direct transport",
    "both ways": "both transports",
    "under way": "running, in flight, or unfinished",
    "answered": "got",
}
"""What names of tests and of their files may not say either."""

_WORDS_OF_TEST_PROSE = {
    word: plain for word, plain in _WORDS_OF_TESTS.items() if word not in {"turn", "told", "tells", "both ways"}
}
"""What docstrings and comments of tests may not say either. There, the other words have a plain sense too."""

_VERBS = (
    "answers applies are asks becomes can causes changes chooses compares counts creates deletes did do does draws ends"
    " exist expires fails finds gets gives had has have hold holds is keeps lacks leads leave leaves lets logs makes may"
    " must names needs order prints proves reads redirects runs says sends share show shows starts stay stays stops takes"
    " talks waits was were wins"
)
"""Verbs of the names that say the sentence of a test alone. Add one, or write a docstring."""


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


def odd_words(text: str, words: Mapping[str, str] = _WORDS) -> list[str]:
    """Return the words of a text that have a plainer name."""
    flat = " ".join(text.lower().split())
    return [f"{word!r}: {plain}" for word, plain in words.items() if re.search(rf"\b{word}\b", flat)]


def sentence_problem(name: str, docstring: str | None) -> str | None:
    """Return why neither the docstring of a test nor its name says in a sentence what it shows."""
    words = name.removeprefix("test_").split("_")
    says_it = len(words) >= 4 and bool(set(_VERBS.split()) & set(words))
    if docstring is None:
        return None if says_it else "no docstring, and the name is no sentence"
    if not docstring.rstrip().endswith(".") or len(docstring.split()) < 4:
        return "the docstring is no sentence"
    if not says_it and re.match(r"(So|And|But|Also|Such|It|Its|They|Their)\b", docstring):
        return "the docstring needs another text to be understood"
    return None


def named_tests(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the docstring of each test."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node)


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
    of_tests = {**_WORDS, **_WORDS_OF_TEST_PROSE}
    given = [(path, _WORDS) for path in _PACKAGE] + [(path, of_tests) for path in _TESTS]
    found = [(path.name, line, odd_words(text, words)) for path, words in given for line, text in prose(_read(path))]
    assert [one for one in found if one[2]] == []


def test_pages_have_no_odd_words() -> None:
    """Pages for users and developers use plain words, but for examples in code."""
    texts = [(path.name, re.sub(r"```.*?```|`[^`]*`", "", _read(path), flags=re.DOTALL)) for path in _PAGES]
    assert [(page, odd_words(text)) for page, text in texts if odd_words(text)] == []


def test_each_test_says_its_sentence() -> None:
    """The name or the docstring of each test is a sentence that can be read alone."""
    tests = [(path.name, *test) for path in _TESTS if path.name.startswith("test_") for test in named_tests(_read(path))]
    assert [(page, name) for page, name, docstring in tests if sentence_problem(name, docstring)] == []


def test_names_of_tests_have_no_odd_words() -> None:
    """Names of tests and of their files use plain words, and no name of the past."""
    paths = [path for path in _TESTS if path.name.startswith("test_")]
    names = [path.stem for path in paths] + [name for path in paths for name, _ in named_tests(_read(path))]
    found = [(name, odd_words(name.replace("_", " "), {**_WORDS, **_WORDS_OF_TESTS})) for name in names]
    assert [one for one in found if one[1]] == []


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
    assert odd_words("test a lost turn", _WORDS_OF_TESTS) == ["'turn': entry, permit, or iteration of the event loop"]
    planted = 'x = 1  # armed\n"""It is armed."""\n'
    assert [(line, odd_words(text)) for line, text in prose(planted)] == [(2, ["'armed': logged"]), (1, ["'armed': logged"])]


def test_planted_names_and_docstrings_are_caught() -> None:
    """The check of sentences sees a name without a verb, and a docstring that is short, open or refers to another."""
    assert sentence_problem("test_status", None) is not None
    assert sentence_problem("test_long_and_archived_lists", None) is not None
    assert sentence_problem("test_a_full_disk_leaves_the_old_file", None) is None
    assert sentence_problem("test_status", "A status is sent as it is.") is None
    for wrong in ("No full stop at the end of it", "Too short.", "It is what the name says.", "Also what the last test says."):
        assert sentence_problem("test_a_full_disk", wrong) is not None
    assert list(named_tests('def test_a():\n    """A."""\nclass B:\n    def test_b(self): ...')) == [
        ("test_a", "A."),
        ("test_b", None),
    ]
