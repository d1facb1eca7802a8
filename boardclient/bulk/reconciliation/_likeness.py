"""How a service shows what it was sent, learned from cards whose row is known.

No I/O.
The rules are in docs/design/reconciliation.md.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias

import attrs

from boardclient.bulk.reconciliation._affixes import Affixes, learn_affixes

_MISFITS: Final = 4
"""One card in this many may differ from what was sent without following a rule, because people edit cards."""
_SHORTEST_CUT: Final = 8
"""The least number of letters and digits at which a common beginning suggests that a text was cut."""
_ELLIPSIS: Final = re.compile(r"\s*(?:&#?\w{0,8})?(?:…|\.{2,3}|\[…\]|\[\.\.\.\])?\s*\Z")
"""What may end a text that was cut: part of an HTML escape, and an ellipsis."""
_NUMBER: Final = re.compile(r"\s*(?:\(\d{1,4}\)|\[\d{1,4}\]|[-_#]\s?\d{1,4})\s*\Z")
_TAG: Final = re.compile(r"</?[^\W\d_][^<>]*>")
"""An HTML tag, which services add and remove."""
_ADDRESS: Final = re.compile(r"\S*(?:://|@)\S*")
_LINE_ENDS: Final = frozenset("\n\r\v\f\x85\u2028\u2029")
_WIDE_SPACE: Final = re.compile(r"\s{2,}|[^\S ]")

Kinds: TypeAlias = frozenset[Hashable]
Form: TypeAlias = Callable[[str], str]


def _exact(text: str) -> str:
    return text


@lru_cache(512)
def tidy(text: str) -> str:
    """Return a text without what services often change.

    That is runs of spaces, case, HTML escapes, compatibility forms (NFKC) and invisible characters.
    """
    if "&" in text:
        for _ in range(3):  # some services escape what was escaped already
            text = html.unescape(text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if not text.isprintable():
        text = "".join(" " if char.isspace() else char for char in text if char.isspace() or _is_shown(char))
    return " ".join(text.casefold().split())


def _is_shown(char: str) -> bool:
    return unicodedata.category(char) not in {"Cc", "Cf", "Co", "Cs"}


@lru_cache(512)
def bare(text: str) -> str:
    """Return the letters and digits of a text, without case and accents."""
    text = tidy(text)
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
    return "".join(filter(str.isalnum, text))


def untagged(text: str) -> str:
    """Return the letters and digits of a text, without those of HTML tags."""
    return bare(_TAG.sub("", tidy(text)) if "<" in text or "&" in text else text)


_FORMS: Final[tuple[Form, ...]] = (_exact, tidy, bare, untagged)
"""Forms in which texts are compared, from the strictest to the loosest."""
_ANY: Final = len(_FORMS)
"""The level of a field whose shown texts have nothing in common with those sent."""
LEVELS: Final = _ANY + 1
"""How many levels there are."""


@lru_cache(512)
def kinds(text: str) -> Kinds:
    """Return the kinds of characters in a text. A service that shows some kinds unchanged may change others."""
    found = {kind_of(char) for char in set(text)}
    if text:
        found.add(("first", kind_of(text[0])))
    if text != text.strip():
        found.add("spaces at an end")
    if _WIDE_SPACE.search(text):
        found.add("wide spaces")
    if "://" in text:
        found.add("address")
    return frozenset(found)


def kind_of(char: str) -> Hashable:
    """Return the kind of a character. Services are expected to treat the characters of one kind alike."""
    if char.isascii():
        return "a" if char.islower() else "A" if char.isupper() else "0" if char.isdigit() else char
    is_composed = unicodedata.normalize("NFKC", char) == char
    return unicodedata.category(char), ord(char) >> 8, is_composed, unicodedata.normalize("NFD", char) == char


def is_special(char: str) -> bool:
    """Return True for a character that services may replace with something else."""
    return not char.isspace() and not (char.isascii() and char.isalnum())


def _special_kinds(texts: Iterable[str]) -> Kinds:
    return frozenset(kind_of(char) for text in texts for char in text if is_special(char))


def is_beginning(sent: str, shown: str) -> bool:
    """Return True if `shown` is a sufficiently long beginning of `sent`."""
    return _SHORTEST_CUT <= len(shown) < len(sent) and sent.startswith(shown)


def without_number(text: str) -> str:
    """Return a text without a number that a service adds, such as ` (2)`."""
    return _NUMBER.sub("", text)


def without_ellipsis(text: str) -> str:
    """Return a text without an ellipsis at its end."""
    return _ELLIPSIS.sub("", text)


@attrs.frozen(kw_only=True)
class TextRule:
    """How a service shows one text field.

    Attributes:
        level: The index in `_FORMS` of the strictest form in which shown and sent texts agree.
        cut: The length at which that form is cut off, or None.
        affixes: What the service puts around texts, or None if it adds nothing.
        seen: The kinds of characters in the texts that were sent.
        longest: The length of the longest text that was shown whole.
    """

    level: int = _ANY
    cut: int | None = None
    affixes: Affixes | None = None
    seen: Kinds = frozenset()
    longest: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether shown texts agree with those sent in any form."""
        return self.level < _ANY

    def plain(self, shown: str | None) -> str | None:
        """Return a text that was shown, without what the service puts around it. None means that it is not known."""
        return shown if self.affixes is None or not shown else self.affixes.strip(tidy(shown))

    def form(self, text: str) -> str:
        """Return the form of a text that is equal for a text as sent and as shown."""
        form = _FORMS[self.level](text if self.cut is None else without_ellipsis(text))
        return form if self.cut is None else form[: self.cut]

    def predicts(self, text: str) -> bool:
        """Return True if it is known how a text of this kind and length is shown."""
        return self.is_usable and kinds(text) <= self.seen and (self.cut is not None or len(text) <= self.longest)

    def may_cut(self, text: str) -> bool:
        """Return True if the service may show no more than the beginning of a text."""
        return self.cut is not None or len(text) > self.longest

    def pieces(self, text: str) -> list[str] | None:
        """Return the parts of a text that must be shown, or None for the whole.

        The whole is shown if all its kinds of characters were seen.
        Services drop characters of unseen kinds, or replace them with a question mark or a name. ASCII letters and digits stay.
        """
        unknown = self._unknown(text)
        if "<" in unknown:
            text = _TAG.sub("\0", text)  # services that take tags away take their names too
        if "@" in unknown or ("://" in text and "address" not in self.seen):
            text, unknown = _ADDRESS.sub("\0", text), unknown | {"\0"}  # some shorten addresses, or hide them
        if not unknown:
            return None
        return [bare(piece) for piece in "".join("\0" if char in unknown else char for char in text).split("\0")]

    def beginnings(self, text: str) -> set[str]:
        """Return what may be shown of a text that is cut off.

        It ends before a character of an unseen kind.
        Services cut titles off at the end of a line, and databases at characters that they can't store, such as emoji in the
        three-byte utf8 of MySQL.
        """
        unknown = self._unknown(text)
        return {bare(text[:place]) for place, char in enumerate(text) if char in unknown}

    def _unknown(self, text: str) -> set[str]:
        """Return the characters of unseen kinds that services may change."""
        return {char for char in set(text) if (is_special(char) or char in _LINE_ENDS) and kind_of(char) not in self.seen}


def has_pieces(look: str, pieces: Sequence[str]) -> bool:
    """Return True if a text contains the pieces in their order."""
    place = 0
    for piece in pieces:
        place = look.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return True


def _changes_characters(sent: str, shown: str | None) -> bool:
    """Return True if only special characters were changed."""
    pieces, look = TextRule(level=0).pieces(sent), bare(shown or "")
    return pieces is not None and has_pieces(look, pieces) and look.startswith(pieces[0]) and look.endswith(pieces[-1])


def learn_text(pairs: Sequence[tuple[str, str | None]]) -> TextRule:
    """Learn how a field is shown from pairs of the texts sent and shown.

    A shown text is None if the field is missing. Empty texts say nothing if others were sent.
    """
    telling = [(sent, shown) for sent, shown in pairs if bare(sent)] or pairs
    if _learn(telling).is_usable:
        return _learn(pairs)
    texts = [(tidy(sent), tidy(shown or "")) for sent, shown in telling]
    affixes = learn_affixes(texts, len(texts) / _MISFITS)
    if affixes is None:
        return TextRule()
    rule = _learn([(sent, affixes.strip(shown)) for sent, shown in texts])
    return attrs.evolve(rule, level=max(rule.level, _FORMS.index(tidy)), affixes=affixes)


def _learn(pairs: Sequence[tuple[str, str | None]]) -> TextRule:
    fitting: list[tuple[int, bool, str, str]] = []
    changed: list[str] = []
    for sent, shown in pairs:
        for level, form in enumerate(_FORMS):
            if shown is not None and form(sent) == form(shown):
                fitting.append((level, False, sent, shown))
                break
        else:
            if shown is not None and is_beginning(bare(sent), bare(without_ellipsis(shown))):
                level = next(n for n, form in enumerate(_FORMS) if is_beginning(form(sent), form(without_ellipsis(shown))))
                fitting.append((level, True, sent, shown))
            elif _changes_characters(sent, shown):
                changed.append(sent)
    if (len(pairs) - len(fitting) - len(changed)) * _MISFITS > len(pairs) or (changed and not fitting):
        return TextRule()
    level = max((level for level, *_ in fitting), default=0)
    wholes = [len(_FORMS[level](shown)) for _, is_cut, _, shown in fitting if not is_cut]
    cuts = [len(_FORMS[level](without_ellipsis(shown))) for _, is_cut, _, shown in fitting if is_cut]
    if cuts and max(wholes, default=0) > max(cuts) + len("..."):
        return TextRule()  # longer texts are shown whole, so the shorter ones were not cut
    return TextRule(
        level=level,
        cut=min(cuts, default=None),
        seen=frozenset[Hashable]().union(*(kinds(sent) for _, _, sent, _ in fitting)) - _special_kinds(changed),
        longest=max((len(sent) for _, is_cut, sent, _ in fitting if not is_cut), default=0),
    )


# --- due dates

_UNITS: Final = tuple(timedelta(**{unit: 1}) for unit in ("microseconds", "milliseconds", "seconds", "minutes", "hours", "days"))
ROUNDINGS: Final = 2 * len(_UNITS)
"""How many roundings there are."""
_BEGINNING: Final = datetime(1970, 1, 1)


def _rounded(due: datetime, unit: timedelta, *, is_nearest: bool) -> datetime:
    beginning = _BEGINNING.replace(tzinfo=due.tzinfo)
    count = (due - beginning + (unit / 2 if is_nearest else timedelta())) // unit
    return beginning + count * unit


def _roundings(due: datetime) -> list[datetime]:
    """Return a date as services may show it: rounded down and to the nearest unit."""
    found = []
    for unit in _UNITS:
        for is_nearest in (False, True):
            try:
                found.append(_rounded(due, unit, is_nearest=is_nearest))
            except OverflowError:  # the end of the year 9999 can't be rounded up
                found.append(due)
    return found


@attrs.frozen
class DateRule:
    """How a service shows due dates.

    `roundings` are the indexes of the roundings that fit the samples. Without any, dates do not distinguish cards.
    """

    roundings: tuple[int, ...] = ()

    def shown(self, due: datetime | None) -> Hashable:
        """Return how a date is shown, or None if that is not known. No date is shown as "none"."""
        if not self.roundings:
            return None
        if due is None:
            return "none"
        possible = self.possible(due)
        return possible.pop() if len(possible) == 1 else None

    def possible(self, due: datetime | None) -> set[datetime | None]:
        """Return the dates that the service may show for a date that was sent."""
        if due is None:
            return {None}
        ways = _roundings(due)
        return {ways[number] for number in self.roundings}

    @property
    def is_usable(self) -> bool:
        """Whether dates distinguish cards."""
        return bool(self.roundings)


def learn_dates(pairs: Sequence[tuple[datetime | None, datetime | None]]) -> DateRule:
    """Learn how due dates are shown, from pairs of the date sent and the date shown.

    If no date was sent, every rounding remains possible.
    """
    every = tuple(range(ROUNDINGS))
    undated = [shown is None for sent, shown in pairs if sent is None]
    fits = [[way == shown for way in _roundings(sent)] for sent, shown in pairs if sent is not None]
    counts = [sum(column) for column in zip(*fits, strict=True)] or [0] * len(every)
    if max(undated.count(False), len(fits) - max(counts)) * _MISFITS > len(pairs):
        return DateRule()  # the service adds dates, omits them, or shows them in another time zone
    return DateRule(tuple(number for number in every if counts[number] == max(counts)))


def fit_often(pairs: Iterable[tuple[str | None, str | None]]) -> bool:
    """Return True if all but a few cards show what was sent. People may have changed the others."""
    return is_rule([sent == shown for sent, shown in pairs])


def is_rule(fits: Sequence[bool]) -> bool:
    """Return True if all but a few cards fit."""
    return fits.count(False) * _MISFITS <= len(fits)
