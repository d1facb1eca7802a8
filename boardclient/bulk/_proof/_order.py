"""Which responses are proven to be those to their rows, for each connection. No I/O.

Nothing but their order says which request a response of HTTP/1.1 belongs to. After one response too many, each later one is read
for the next row, until the connection is closed: it is out of step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from boardclient._transport._values import UsedConnection
from boardclient.bulk._content import normal
from boardclient.bulk._life import Row
from boardclient.bulk._proof._recognition import RowMarkers
from boardclient.models import Card

Verdict: TypeAlias = Literal["proven", "open", "foreign"]
"""What the response to a row is: its own; perhaps another's; or another's, so that its connection is out of step."""

_MOST_OPEN: Final = 8
"""How many rows of a connection wait for a proof. With more, it is asked for one. They are in doubt after a kill."""
_MOST_CONNECTIONS: Final = 256
"""How many connections are kept, unless more are open."""


class Unproven(NamedTuple):
    """A response that is not proven: which of its connection's it is, its row, and the card that it names, if it does.

    `matters` is not set if its row is sent again whatever request it belongs to. Then it only tells later responses apart.
    """

    number: int
    row: Row
    card: Card | None
    matters: bool = True


@attrs.define(eq=False)
class _Kept:
    """What came over a connection since its last response that is proven."""

    responses: list[Unproven] = attrs.field(factory=list)
    is_out_of_step: bool = False


class ResponseOrder:
    """Tells responses that are read for the wrong row. Owned by a run.

    A response proves that it is its row's if it shows something that of the connection's rows since the last proof only this one
    sent: its secret marker, its name or its description. It is another's if it shows what only another of them sent, the secret
    marker of any other row, or the name of a row whose request is under way. What a row sent that has been proven says nothing,
    since its card is known.
    """

    def __init__(self, markers: RowMarkers) -> None:
        self.sending: set[Row] = set()
        """The rows whose requests are under way."""
        self.card_ids: set[str] = set()
        """The cards that responses name which are not proven."""
        self.has_proof = False
        """Whether the service has shown the name of a row as it got it."""
        self._markers = markers
        self._kept: dict[UsedConnection, _Kept] = {}

    def judge(self, row: Row, card: Card, connection: UsedConnection) -> Verdict:
        """Return what the response to a row is, by what it shows of its card."""
        kept = self._kept.get(connection)
        if kept is None and card.name == row.draft.name and not connection.has_surplus:  # as nearly always
            self.has_proof = True
            return "proven"
        if connection.has_surplus or (kept is not None and kept.is_out_of_step):
            return "foreign"
        if self._markers.are_secret and self._markers.is_shown(row, card):
            return "proven"
        others = [] if kept is None else [response.row for response in kept.responses if response.row is not row]
        name, desc = normal(card.name or ""), normal(card.desc or "")
        names, descs = {normal(other.draft.name) for other in others}, {self._desc(other) for other in others}
        is_own_name, is_own_desc = name == normal(row.draft.name), desc == self._desc(row) != ""
        self.has_proof = self.has_proof or is_own_name
        if (is_own_name and name not in names) or (is_own_desc and desc not in descs):
            return "proven"
        if (not is_own_name and name in names) or (not is_own_desc and desc != "" and desc in descs):
            return "foreign"
        if self._markers.are_secret and self._markers.cards_of_rows([card]):
            return "foreign"
        return "foreign" if not is_own_name and self._is_sending(name) else "open"

    def _is_sending(self, name: str) -> bool:
        """Return True if a row with a name is being sent, where the service has shown names as it got them."""
        return self.has_proof and any(normal(other.draft.name) == name for other in self.sending)

    def _desc(self, row: Row) -> str:
        return normal(self._markers.description(row) or "")

    def add(self, response: Unproven, connection: UsedConnection) -> None:
        """Keep a response that is not proven."""
        self._kept.setdefault(connection, _Kept()).responses.append(response)
        if response.card is not None:
            self.card_ids.add(response.card.id)

    def needs_proof(self, connection: UsedConnection) -> bool:
        """Return True each time so many responses of a connection are kept that it is asked for a proof."""
        kept = self._kept.get(connection)
        return kept is not None and len(kept.responses) % _MOST_OPEN == 0

    def has_at_stake(self, connection: UsedConnection) -> bool:
        """Return True if a row has a card or failed if the responses of a connection are believed."""
        kept = self._kept.get(connection)
        return kept is not None and any(response.card is not None or response.row.is_unproven for response in kept.responses)

    def is_out_of_step(self, connection: UsedConnection) -> bool:
        """Return True if a connection is distrusted."""
        kept = self._kept.get(connection)
        return kept is not None and kept.is_out_of_step

    def ended(self, connection: UsedConnection) -> list[UsedConnection]:
        """Return a connection if it gets no more requests, and all such connections if responses of too many are kept."""
        some = self._kept if len(self._kept) > _MOST_CONNECTIONS else [connection]
        return [one for one in some if one.is_closed or one.has_surplus or self.is_out_of_step(one)]

    def prove(self, connection: UsedConnection, number: int) -> Iterator[Unproven]:
        """Yield the responses that came before one that is proven. They are believed."""
        if (kept := self._kept.get(connection)) is not None:
            before = [response for response in kept.responses if response.number < number]
            kept.responses = [response for response in kept.responses if response.number >= number]
            if not (kept.responses or kept.is_out_of_step):
                del self._kept[connection]
            yield from map(self._released, before)

    def distrust(self, connection: UsedConnection) -> Iterator[Unproven]:
        """Yield the responses since the last one that is proven. No later one of the connection is believed."""
        kept = self._kept.setdefault(connection, _Kept())
        responses, kept.responses, kept.is_out_of_step = kept.responses, [], True
        yield from map(self._released, responses)

    @property
    def connections(self) -> list[UsedConnection]:
        """The connections of responses that wait for a proof."""
        return [connection for connection, kept in self._kept.items() if any(response.matters for response in kept.responses)]

    def _released(self, response: Unproven) -> Unproven:
        if response.card is not None:
            self.card_ids.discard(response.card.id)
        return response
