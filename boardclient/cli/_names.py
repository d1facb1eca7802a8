"""Finds boards, lists and cards by identifier or name. An identifier comes first, and nothing is guessed."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from boardclient import BoardList
from boardclient.cli._output import UsageError, quoted

_MOST_NAMES = 8
"""How many names a message lists."""


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """Return a question that names what is similar to a value, or "" if nothing is."""
    folded = {name.casefold(): name for name in names}
    alike = difflib.get_close_matches(value.casefold(), folded, n=3)
    return f"; did you mean {' or '.join(quoted(folded[name]) for name in alike)}?" if alike else ""


@attrs.frozen
class Names:
    """Finds the identifier for an identifier or name among some things of one kind, such as "list".

    Names match in any Unicode form, since macOS writes accents as characters of their own, but not in another case.

    `names` has the name of each by its identifier, None if it has none. `ids_only` may be given by identifier alone.
    """

    kind: str
    names: Mapping[str, str | None]
    ids_only: Mapping[str, str | None] = attrs.field(factory=dict)

    @cached_property
    def _by_name(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for identifier, name in self.names.items():
            if name is not None:
                found.setdefault(_composed(name), []).append(identifier)
        return found

    def has_name(self, value: str) -> bool:
        """Return True if something has this name."""
        return _composed(value) in self._by_name

    def find(self, value: str) -> str:
        """Return the identifier for an identifier or name.

        Raises:
            UsageError: nothing matches, or several names do.
        """
        # Identifiers come first: a list may have the identifier of another one for its name.
        if value in self.names or value in self.ids_only:
            return value
        named = self._by_name.get(_composed(value), [])
        if len(named) == 1:
            return named[0]
        if named:
            raise UsageError(f"{quoted(value)} is the name of {len(named)} {self.kind}s; give an identifier: {', '.join(named)}")
        hint = self._hint(value)
        raise UsageError(f"{quoted(value)} is neither the identifier nor the name of a {self.kind} of the board{hint}")

    def _hint(self, value: str) -> str:
        if _composed(value) in (_composed(name) for name in self.ids_only.values() if name is not None):
            return " (an archived list is given by its identifier)"
        names = ", ".join(map(quoted, self._by_name))
        return did_you_mean(value, self._by_name) or (f"; there are {names}" if 0 < len(self._by_name) <= _MOST_NAMES else "")

    def name_of(self, identifier: str) -> str:
        """Return a name if it alone identifies its thing, otherwise the identifier.

        A name is preferred because it can be used on another board as well.
        """
        name = self.names.get(identifier)
        if not name or name in self.names or name in self.ids_only or self._by_name[_composed(name)] != [identifier]:
            return identifier
        return name


def of_lists(lists: Iterable[BoardList]) -> Names:
    """Return the names of a board's lists. Those that are archived are found by their identifiers alone."""
    given = list(lists)
    return Names(
        "list", {item.id: item.name for item in given if not item.closed}, {item.id: item.name for item in given if item.closed}
    )
