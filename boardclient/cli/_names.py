"""Finds boards, lists and cards by identifier or name. An identifier comes first, and nothing is guessed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import attrs

from boardclient import BoardList, Card, NotFoundError
from boardclient.cli._errors import IncompleteError, UsageError
from boardclient.cli._output import note, quoted
from boardclient.cli._running import Client

_MOST_NAMES = 8
"""How many names a message lists."""


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """Return a question that names what is similar to a value, or "" if nothing is."""
    folded = {name.casefold(): name for name in names}
    alike = difflib.get_close_matches(value.casefold(), folded, n=3)
    return f"; did you mean {' or '.join(quoted(folded[name]) for name in alike)}?" if alike else ""


@attrs.frozen
class Names:
    """Finds the identifier for an identifier or name among some things of one kind, such as "list".

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
                found.setdefault(name, []).append(identifier)
        return found

    def find(self, value: str) -> str:
        """Return the identifier for an identifier or name.

        Raises:
            UsageError: nothing matches, or several names do.
        """
        if value in self.names or value in self.ids_only:
            return value
        named = self._by_name.get(value, [])
        if len(named) > 1:
            raise UsageError(f"{quoted(value)} is the name of {len(named)} {self.kind}s; give an identifier: {', '.join(named)}")
        if not named:
            raise UsageError(
                f"{quoted(value)} is neither the identifier nor the name of a {self.kind} of the board{self._hint(value)}"
            )
        return named[0]

    def _hint(self, value: str) -> str:
        if value in self.ids_only.values():
            return " (an archived list is given by its identifier)"
        names = ", ".join(map(quoted, self._by_name))
        return did_you_mean(value, self._by_name) or (f"; there are {names}" if 0 < len(self._by_name) <= _MOST_NAMES else "")

    def name_of(self, identifier: str) -> str:
        """Return a name if it alone identifies its thing, otherwise the identifier.

        A name is preferred because it can be used on another board as well.
        """
        name = self.names.get(identifier)
        is_enough = name and name not in self.names and name not in self.ids_only and self._by_name[name] == [identifier]
        return name if name and is_enough else identifier


def of_lists(lists: Iterable[BoardList]) -> Names:
    """Return the names of a board's lists. Those that are archived are found by their identifiers alone."""
    given = list(lists)
    return Names(
        "list", {item.id: item.name for item in given if not item.closed}, {item.id: item.name for item in given if item.closed}
    )


@attrs.define
class Finder:
    """Finds what the arguments of a command name. A board is read once, if at all."""

    client: Client
    board: str = ""

    def board_id(self) -> str:
        """Return the identifier of the board. What this machine does not know by name is taken for an identifier.

        Raises:
            UsageError: its name is that of several boards.
        """
        known = self.client.settings.profile.boards
        return Names("board", known).find(self.board) if self.board in known.values() else self.board

    async def list_id(self, value: str) -> str:
        """Return the identifier of a list. Without a board the value must be one.

        Raises:
            UsageError: the board has no such list, or several.
        """
        return of_lists(await self.client.session.boards.lists(self.board_id())).find(value) if self.board else value

    async def card_id(self, value: str) -> str:
        """Return the identifier of a card. Without a board the value must be one.

        Raises:
            UsageError: the board has no such card, or several.
        """
        if not self.board:
            return value
        cards: list[Card] = await self.client.session.boards.cards(self.board_id())
        return Names("card", {card.id: card.name for card in cards}).find(value)

    @contextmanager
    def advising(self) -> Iterator[None]:
        """Say what may help if the service does not know an identifier.

        Raises:
            IncompleteError: the service does not know it.
        """
        try:
            yield
        except NotFoundError as error:
            raise IncompleteError(f"{error}{self._advice()}") from None

    def _advice(self) -> str:
        if not self.board:
            return "; give --board to name a list or card in place of its identifier"
        alike = did_you_mean(self.board, self.client.settings.profile.boards.values())
        return f"{alike}; a board's name is known if this machine has created it, or by: boardclient board name BOARD_ID NAME"


def learn(client: Client, board_id: str, name: str) -> None:
    """Keep the name of a board for later commands."""
    client.settings.profile.boards[board_id] = name
    try:
        client.settings.profiles.write()
    except UsageError as error:  # the board exists, whether this machine can keep its name or not
        note(f"boardclient: {error}")
