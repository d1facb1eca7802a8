"""Which responses are proven to be those to their rows, for each connection. No I/O.

Nothing but their order says which request a response of HTTP/1.1 belongs to. After one response too many, each later one is read
for the next row, until the connection is closed: it is out of step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from boardclient._transport._values import UsedConnection
from boardclient.bulk._content import normal
from boardclient.bulk._life import Row
from boardclient.models import Card

Verdict: TypeAlias = Literal["proven", "open", "foreign"]
"""What the response to a row is: its own; perhaps another's; or another's, so that its connection is out of step."""

_MOST_OPEN: Final = 64
"""How many rows of a connection wait for a proof. With more, the oldest response is believed."""
_MOST_OPEN_AT_FIRST: Final = 8
"""The same while no response has proven anything: the service may show other names than it gets."""
_MOST_CONNECTIONS: Final = 256
"""How many connections are kept, of which some may be closed. With more, the responses of the oldest are believed."""


class Response(NamedTuple):
    """A response that is not proven: which of its connection's it is, its row, and the card that it names, if it does."""

    number: int
    row: Row
    card: Card | None


@attrs.define(eq=False)
class _Since:
    """What came over a connection since its last response that is proven."""

    responses: list[Response] = attrs.field(factory=list)
    is_out_of_step: bool = False


class ResponseOrder:
    """Tells responses that are read for the wrong row. Owned by a run.

    A response proves that it is its row's if it shows the row's name, and no other row of the connection since the last proof has
    the same name. It is another's if it shows the name of one of these, or of a row whose request is under way. The name of a row
    that has been proven says nothing, since the card of that row is known.

    `description` returns what was sent as the description of a row.
    """

    def __init__(self, description: Callable[[Row], str | None]) -> None:
        self.sending: set[Row] = set()
        """The rows whose requests are under way."""
        self.card_ids: set[str] = set()
        """The cards that responses name which are not proven."""
        self._description = description
        self.has_proof = False
        """Whether the service has shown the name of a row as it got it."""
        self._since: dict[UsedConnection, _Since] = {}

    def judge(self, row: Row, card: Card, connection: UsedConnection) -> Verdict:
        """Return what the response to a row is, by what it shows of its card."""
        since = self._since.get(connection)
        if since is None and card.name == row.draft.name:  # as nearly always
            self.has_proof = True
            return "proven"
        if since is not None and since.is_out_of_step:
            return "foreign"
        responses = [] if since is None else since.responses
        shown = normal(card.name or "")
        others = [response.row for response in responses if response.row is not row]
        alike = [other for other in others if normal(other.draft.name) == shown]
        if shown != normal(row.draft.name):
            is_other = alike or (self.has_proof and any(normal(other.draft.name) == shown for other in self.sending))
            return "foreign" if is_other else "open"
        if alike:
            desc, descs = normal(card.desc or ""), {normal(self._description(other) or "") for other in alike}
            if desc in descs:
                return "open" if desc == normal(self._description(row) or "") else "foreign"
        self.has_proof = True
        return "proven"

    def add(self, response: Response, connection: UsedConnection) -> Iterator[Response]:
        """Keep a response that is not proven. Yield those that are believed, since too many wait."""
        since = self._since.setdefault(connection, _Since())
        since.responses.append(response)
        if response.card is not None:
            self.card_ids.add(response.card.id)
        if len(since.responses) > (_MOST_OPEN if self.has_proof else _MOST_OPEN_AT_FIRST):
            yield self._released(since.responses.pop(0))
        if len(self._since) > _MOST_CONNECTIONS:
            yield from map(self._released, self._since.pop(next(iter(self._since))).responses)

    def prove(self, connection: UsedConnection, number: int) -> Iterator[Response]:
        """Yield the responses that came before one that is proven. They are believed."""
        if (since := self._since.get(connection)) is not None:
            before = [response for response in since.responses if response.number < number]
            since.responses = [response for response in since.responses if response.number >= number]
            if not since.responses:
                del self._since[connection]
            yield from map(self._released, before)

    def distrust(self, connection: UsedConnection) -> Iterator[Response]:
        """Yield the responses since the last one that is proven. No later one of the connection is believed."""
        since = self._since.setdefault(connection, _Since())
        responses, since.responses, since.is_out_of_step = since.responses, [], True
        yield from map(self._released, responses)

    def connections_of(self, card_ids: set[str]) -> list[UsedConnection]:
        """Return the connections of the responses that are kept and name one of these cards."""
        return [
            connection
            for connection, since in self._since.items()
            if any(response.card is not None and response.card.id in card_ids for response in since.responses)
        ]

    def release(self) -> Iterator[Response]:
        """Yield all responses that are kept, since no more will come soon. They are believed."""
        for since in self._since.values():
            responses, since.responses = since.responses, []
            yield from map(self._released, responses)
        self._since = {connection: since for connection, since in self._since.items() if since.is_out_of_step}

    @property
    def is_empty(self) -> bool:
        """Whether no response is kept."""
        return not any(since.responses for since in self._since.values())

    def _released(self, response: Response) -> Response:
        if response.card is not None:
            self.card_ids.discard(response.card.id)
        return response
