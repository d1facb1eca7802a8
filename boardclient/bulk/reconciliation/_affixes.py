"""What a service puts before and after a text, such as a number. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import attrs

Parts: TypeAlias = tuple[str, ...]
"""A text as words and what is between them: the words have the odd indexes."""
Shape: TypeAlias = tuple[Parts, Parts]
"""What is between the words before a text, and after it."""

_WORDS: Final = re.compile(r"(\w+)")
_WORD: Final = r"\w+"
_MOST_PLACES: Final = 8
"""The most places in a shown text at which the text that was sent is looked for."""
_LONGEST: Final = 80
"""The greatest length of an affix."""


@attrs.frozen
class Affixes:
    """What stands before and after each text, in parts. None is a word that varies or has digits."""

    before: tuple[str | None, ...]
    after: tuple[str | None, ...]

    def strip(self, text: str) -> str | None:
        """Return a text without its affixes, or None if it does not have them."""
        pattern = _compiled(self)
        for padded in (text, f"{text} ", f" {text}"):  # around an empty text, spaces at the ends are lost
            if (found := pattern.fullmatch(padded)) is not None:
                return found[1].strip()
        return None


@lru_cache(16)
def _compiled(affixes: Affixes) -> re.Pattern[str]:
    return re.compile(f"{_pattern(affixes.before)}(.*?){_pattern(affixes.after)}", re.DOTALL)


def learn_affixes(pairs: Sequence[tuple[str, str]], most_misfits: float) -> Affixes | None:
    """Learn the affixes from pairs of the texts sent and shown. None means that there are none.

    No more than `most_misfits` of the pairs may have others.
    """
    places: list[dict[Shape, tuple[Parts, Parts]]] = [
        {(before[::2], after[::2]): (before, after) for before, after in _around(sent, shown)} for sent, shown in pairs
    ]
    shapes = Counter(shape for found in places for shape in found)
    if not shapes:
        return None
    shape, count = max(shapes.items(), key=lambda item: (item[1], -sum(map(len, item[0]))))
    if len(pairs) - count > most_misfits or shape == (("",), ("",)):
        return None
    sides = [found[shape] for found in places if shape in found]
    affixes = Affixes(_common([before for before, _ in sides]), _common([after for _, after in sides]))
    # Where a word that varies adjoins the text, its end is not known.
    is_clear = affixes.before[-2:] != (None, "") and affixes.after[:2] != ("", None)
    return affixes if is_clear else None


def _around(sent: str, shown: str) -> Iterator[tuple[Parts, Parts]]:
    """Yield what is before and after each occurrence of a text, in parts."""
    place = shown.find(sent) if sent else -1
    for _ in range(_MOST_PLACES):
        if place < 0:
            return
        before, after = shown[:place], shown[place + len(sent) :]
        if max(len(before), len(after)) <= _LONGEST:
            yield tuple(_WORDS.split(before)), tuple(_WORDS.split(after))
        place = shown.find(sent, place + 1)


def _common(sides: Iterable[Parts]) -> tuple[str | None, ...]:
    """Return what affixes that differ only in words have in common."""
    columns = [set(column) for column in zip(*sides, strict=True)]
    return tuple(None if len(column) > 1 or _has_digit(column) else min(column) for column in columns)


def _has_digit(texts: Iterable[str]) -> bool:
    return any(char.isdigit() for text in texts for char in text)


def _pattern(parts: Iterable[str | None]) -> str:
    return "".join(_WORD if part is None else re.escape(part) for part in parts)
