"""What the responses to rows mean: whose card it is, whose fault a refusal is, and when a row is sent again.

Nothing but their order says which request a response of HTTP/1.1 belongs to. After one response too many, each later one is read
for the next row, until the connection is closed: it is out of step. `ResponseOrder` tells this, by what responses show.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from boardclient._interface._responses import add_words, is_throttling, moment_in
from boardclient._pipeline._calls import CallOptions, CallWithdrawn
from boardclient._transport._values import UsedConnection
from boardclient.bulk._concurrency import PATIENCE_SECONDS, Hold, retry_after_of
from boardclient.bulk._content import Content, normal
from boardclient.bulk._engine._places import Lives, Shared
from boardclient.bulk._life import MOST_SENDS, Event, Row
from boardclient.bulk._proof._recognition import RowMarkers
from boardclient.errors import BoardClientError, ConsentRequired, DecodeError, Effect, InvalidIdentifierError
from boardclient.models import Card, check_identifier

_RESEND_SECONDS: Final = 0.5
"""The pause before a row of unknown effect is sent a second time with `unknown="resend"`. It doubles each time."""
_FIRST_PUT_OFF_SECONDS: Final = 0.05
"""The pause before a row that could not be sent is tried again. It doubles each time, up to 128 times its length."""
_MOST_PUT_OFF: Final = 20
"""How often a row may be put off while others are accepted, before the time since it was first put off counts."""
MOST_REFUSALS: Final = 3
"""How often a row is sent at most that is refused during outages."""
_MOST_QUESTIONS: Final = 4
"""For how many cards a connection is asked, until one response shows whether it is in step."""
CREATE: Final = "POST /1/cards"
TOO_LONG: Final = "nothing was accepted for too long"
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
        self.in_doubt: Callable[[], Iterable[Content]] = tuple
        """Returns what was sent for the rows whose cards may exist: a response that comes late may be theirs."""
        self._markers = markers
        self.kept: dict[UsedConnection, _Kept] = {}
        """The responses that are not proven, for each connection. There are none, nearly always."""

    def judge(self, row: Row, card: Card, connection: UsedConnection) -> Verdict:
        """Return what the response to a row is, by what it shows of its card."""
        kept = self.kept.get(connection)
        if kept is None and card.name == row.draft.name and not connection.has_surplus:  # as nearly always
            self.has_proof = True
            return "proven"
        # More bytes came than were asked for, so that each response since then may be that of the request before.
        if connection.has_surplus or (kept is not None and kept.is_out_of_step):
            return "foreign"
        # Nobody else can make this marker, so it proves more than any text.
        if self._markers.are_secret and self._markers.is_shown(row, card):
            return "proven"
        return self._judge_texts(row, card, [] if kept is None else [one.row for one in kept.responses if one.row is not row])

    def _judge_texts(self, row: Row, card: Card, others: Sequence[Row]) -> Verdict:
        """Return what a response is by the texts that it shows. `others` are the connection's rows since the last proof."""
        name, desc = normal(card.name or ""), normal(card.desc or "")
        of_name = _sender_of(name, normal(row.draft.name), [normal(other.draft.name) for other in others])
        # Most cards have no description, so that an empty one tells none of them apart.
        of_desc = _sender_of(desc, self._desc(row), map(self._desc, others)) if desc else "none"
        is_own_name = of_name in {"row", "row and others"}
        # Before any proof: a late response to a row in doubt may show the description that this row has sent as well.
        if not is_own_name and self._is_in_doubt(name, desc if of_desc in {"others", "none"} else ""):
            return "foreign"
        self.has_proof = self.has_proof or is_own_name
        if "row" in (of_name, of_desc):
            return "proven"
        if "others" in (of_name, of_desc) or self._markers.shows_another(row, card):
            return "foreign"
        return "foreign" if not is_own_name and self._is_sending(name) else "open"

    def _is_sending(self, name: str) -> bool:
        """Return True if a row with a name is being sent, where the service has shown names as it got them."""
        return self.has_proof and any(normal(other.draft.name) == name for other in self.sending)

    def _is_in_doubt(self, name: str, desc: str) -> bool:
        """Return True if a row has a name, or a description that is not empty, whose card may exist."""
        return any(other.name == name or (desc and other.desc == desc) for other in self.in_doubt())

    def _desc(self, row: Row) -> str:
        return normal(self._markers.description(row) or "")

    def add(self, response: Unproven, connection: UsedConnection) -> None:
        """Keep a response that is not proven."""
        self.kept.setdefault(connection, _Kept()).responses.append(response)
        if response.card is not None:
            self.card_ids.add(response.card.id)

    def needs_proof(self, connection: UsedConnection) -> bool:
        """Return True each time so many responses of a connection are kept that it is asked for a proof."""
        kept = self.kept.get(connection)
        return kept is not None and len(kept.responses) % _MOST_OPEN == 0

    def has_at_stake(self, connection: UsedConnection) -> bool:
        """Return True if a row has a card or failed if the responses of a connection are believed."""
        kept = self.kept.get(connection)
        return kept is not None and any(response.card is not None or response.row.is_unproven for response in kept.responses)

    def is_out_of_step(self, connection: UsedConnection) -> bool:
        """Return True if a connection is distrusted."""
        kept = self.kept.get(connection)
        return kept is not None and kept.is_out_of_step

    def ended(self, connection: UsedConnection) -> list[UsedConnection]:
        """Return a connection if it gets no more requests, and all such connections if responses of too many are kept."""
        # All are looked at only when there are many: this runs for each response that is not proven.
        some = self.kept if len(self.kept) > _MOST_CONNECTIONS else [connection]
        return [one for one in some if one.is_closed or one.has_surplus or self.is_out_of_step(one)]

    def prove(self, connection: UsedConnection, number: int) -> Iterator[Unproven]:
        """Yield the responses that came before one that is proven. They are believed."""
        if (kept := self.kept.get(connection)) is not None:
            before = [response for response in kept.responses if response.number < number]
            kept.responses = [response for response in kept.responses if response.number >= number]
            if not (kept.responses or kept.is_out_of_step):
                del self.kept[connection]
            yield from map(self._released, before)

    def distrust(self, connection: UsedConnection) -> Iterator[Unproven]:
        """Yield the responses since the last one that is proven. No later one of the connection is believed."""
        kept = self.kept.setdefault(connection, _Kept())
        # It stays noted as out of step: responses to requests that are in flight on it still come.
        responses, kept.responses, kept.is_out_of_step = kept.responses, [], True
        yield from map(self._released, responses)

    @property
    def connections(self) -> list[UsedConnection]:
        """The connections of responses that wait for a proof."""
        return [connection for connection, kept in self.kept.items() if any(response.matters for response in kept.responses)]

    def _released(self, response: Unproven) -> Unproven:
        if response.card is not None:
            self.card_ids.discard(response.card.id)
        return response


def _sender_of(text: str, own: str, others: Iterable[str]) -> Literal["row", "others", "row and others", "none"]:
    """Return who sent a text that a response shows: its row alone, other rows of its connection, both, or none of them."""
    if text == own:
        return "row and others" if text in others else "row"
    return "others" if text in others else "none"


class Responses:
    """Says what a response means for its row. Owned by its engine."""

    def __init__(self, shared: Shared, lives: Lives) -> None:
        self.order: Final = ResponseOrder(shared.reconciler.markers)
        self.to_prove: Final[list[UsedConnection]] = []
        """The connections of which too many responses wait for a proof."""
        self._owner, self._options, self._ledger, self._tally = shared.owner, shared.options, shared.ledger, shared.tally
        self._board, self._reconciler, self._turns, self._hold = shared.board, shared.reconciler, shared.turns, shared.turns.hold
        self._lives, self._refused, self._tried = lives, lives.places.refused, lives.tried
        self._reads_board = shared.options.unknown == "reconcile"
        self._loop = asyncio.get_running_loop()
        self.earlier: Sequence[Content] = ()
        """What was sent for the rows that earlier runs and other workers have left in doubt."""
        self.order.in_doubt = self._in_doubt
        self._accepted = 0
        """The number of the last request that was accepted after a failure."""
        self._latest = ""
        """The last card that was created."""

    def record_created(self, row: Row, card: Card, options: CallOptions) -> None:
        """Record the response to a row's request, and the attempts before, if there were any."""
        attempts, connection = options.history, options.connection
        if attempts:
            self._tally.add_attempts(attempts)
            # The list belongs to the options of the worker's next call as well.
            attempts.clear()
        else:
            self._tally.requests += 1
        verdict: Verdict = "proven" if connection is None else self.order.judge(row, card, connection)
        why = None
        if not (card.id.encode().isalnum() or _is_usable(card.id)):
            why = "a later call can't send the identifier"  # not shown, since it may repeat a credential
        elif self._is_another_s(row, card.id, is_proven=verdict == "proven"):
            row.named, why = card.id, "the response names a card which is another row's or an older one"
        elif verdict == "foreign":
            why = "the response names the card of another row"
        if why is not None:
            self._disbelieve(row, card, options, verdict, why)
        elif connection is None:
            self._confirm(row, card)
        elif verdict == "open":
            if self._hold.is_disturbed:
                self._record_acceptance(row)  # whichever request was accepted
            self._keep(Unproven(options.response_number, row, card), connection)
        else:
            if self.order.kept:
                self._believe(self.order.prove(connection, options.response_number))
            self._confirm(row, card)

    def _disbelieve(self, row: Row, card: Card, options: CallOptions, verdict: Verdict, why: str) -> None:
        """Let a row be in doubt whose response can't be believed, and the other rows of its connection if that is out of step."""
        error, connection = DecodeError(f"{CREATE}: {why}", "id", CREATE), options.connection
        if connection is not None and (verdict == "foreign" or (verdict == "open" and self._was_named(card.id))):
            self._distrust(connection, error)
        self.record_failure(row, error, options)

    def _is_another_s(self, row: Row, card_id: str, *, is_proven: bool) -> bool:
        """Return True if a card that a response names is another row's or an older one. Take it if the response is proven."""
        # A listing has shown it before this response came, as nobody's card.
        if card_id in self._reconciler.unaccounted:
            return True
        if is_proven and not row.is_probe:
            return not self._ledger.take_card(card_id)
        return card_id in self.order.card_ids or self._ledger.knows(card_id)

    def _in_doubt(self) -> Iterable[Content]:
        places = self._lives.places
        rows = chain(places.doubted, places.open, places.refused, self._lives.unknown)
        return chain(map(self._reconciler.markers.content, rows), self.earlier)

    def _was_named(self, card_id: str) -> bool:
        """Return True if a response to another row has named a card."""
        return card_id in self.order.card_ids or card_id in self._ledger.seen

    def _keep(self, response: Unproven, connection: UsedConnection) -> None:
        """Keep a response until it is known whether its connection was in step."""
        self.order.add(response, connection)
        if self.order.needs_proof(connection):
            self.to_prove.append(connection)
        for ended in self.order.ended(connection):
            self._end_connection(ended, is_in_step=not (ended.has_surplus or self.order.is_out_of_step(ended)))

    def _end_connection(self, connection: UsedConnection, *, is_in_step: bool) -> None:
        """Believe the responses of a connection, or distrust them."""
        if is_in_step:
            self._believe(self.order.prove(connection, connection.responses + 1))
        else:
            self._distrust(connection, DecodeError(f"{CREATE}: nothing proves that the response is that to its row", "", CREATE))

    async def prove(self, connections: list[UsedConnection], *, is_end: bool = True) -> None:
        """Find out whether connections are in step. At the end one of which nothing shows that it is not counts as in step."""
        while connections:
            connection = connections.pop()
            # The latest card first: nothing else is as certain to exist, so that its own response can be told from any other.
            ids = islice(dict.fromkeys([*filter(None, [self._latest]), *sorted(self.order.card_ids)]), _MOST_QUESTIONS)
            is_in_step: bool | None = True
            if self.order.has_at_stake(connection):
                is_in_step = await self._board.ask_connection(connection, [*ids])
            elif is_end:  # all its rows are in doubt: what is read now comes over another
                connection.distrust()
            if is_in_step is not None or is_end:
                self._end_connection(connection, is_in_step=is_in_step is not False)

    def _believe(self, responses: Iterable[Unproven]) -> None:
        for _, row, card, _ in responses:
            row.is_unproven = False
            if card is None:
                continue
            if self._is_another_s(row, card.id, is_proven=True):
                row.named = card.id
                why = f"{CREATE}: the response names a card which is another row's or an older one"
                self.record_failure(row, DecodeError(why, "id", CREATE))
            else:
                self._confirm(row, card)

    def _distrust(self, connection: UsedConnection, error: BoardClientError) -> None:
        """Close a connection that is out of step. Its rows since the last one that is proven are in doubt."""
        for _, row, card, _ in self.order.distrust(connection):
            row.is_unproven = False
            if card is not None or self._lives.places.take_back(row):
                self._doubt(row, error)
        # A `ClientSession` that the application has lent shows no connections: any later request may get this one.
        if not connection.distrust():
            self._owner.halt(ended_by(error, "its connection can't be told from others and closed"))

    def _doubt(self, row: Row, error: BoardClientError) -> None:
        """Note that the response to a row was perhaps another's."""
        # Its request counts as lost: the card may exist, under a response that another row has got.
        row.error, row.sends, row.is_refused = error, row.sends + 1, False
        self._lives.lost_at = row.doubted_at = self._loop.time()
        self._lives.happen(row, "lost", pause=_RESEND_SECONDS * 2 ** (row.sends - 1))

    def _confirm(self, row: Row, card: Card) -> None:
        # Both are False nearly always, and this runs for each card.
        if self._hold.is_disturbed or self._tried:
            self._record_acceptance(row)
        if self._reads_board:
            self._reconciler.record_created(row, card.id)
        self._latest = card.id
        self._lives.happen(row, "created", card)

    def _record_acceptance(self, row: Row) -> None:
        """Record that a request was accepted, and whose fault the refusals before it were."""
        was_outage = self._hold.reason is not None
        if was_outage and not self._hold.lets_through():
            return  # it was sent before the outage, and says nothing about its end
        if was_outage:
            self.excuse()
        self._hold.record_success()
        self._accepted = max(self._accepted, row.sent_as)
        # In the order of sending: a refusal stands if a later request was accepted, since the service worked by then.
        tried = self._tried
        while tried and (was_outage or (tried[0].sent_as < row.sent_as and not tried[0].is_unproven)):
            self._lives.happen(tried.popleft(), "absent" if was_outage else "refusal stands")

    def excuse(self) -> None:
        """Note that the rows were refused in an outage which were refused since a request was accepted."""
        for row in self._refused:
            if row.sent_as > self._accepted and row.refusals < MOST_REFUSALS:
                row.is_excused = True

    def record_failure(self, row: Row, failure: BoardClientError, options: CallOptions | None = None) -> None:
        self._tally.add_attempts(failure.attempts)
        event = event_of(failure, row.sends + 1, row.refusals + 1)
        if failure.effect is Effect.DONE and self._reads_board:
            self._record_acceptance(row)  # what the service has made is on the board
        elif event != "given back" and not self._hold.record_failure(failure):
            self._owner.halt(failure if self._hold.reason is None else ended_by(failure, TOO_LONG))
        pause: float | None = 0.0
        if event == "put off":
            pause = self._pause_of(row, failure)
            event = "waited too long" if pause is None else event
        elif event in {"lost", "lost too often"}:
            row.sends += 1
            # Only this option repeats the request at once, and so has to wait for as long as the service asks.
            asked = self._asked_pause(failure) if self._options.unknown == "resend" else 0.0
            pause = max(_RESEND_SECONDS * 2.0 ** (row.sends - 1), asked)
            self._lives.lost_at = self._loop.time()
        elif event in {"refused", "refused too often"}:
            row.refusals += 1
        row.is_refused = event.startswith("refused")
        # The time of the response, not of the request: a reading before it may have come too early to show the card.
        row.doubted_at = self._loop.time()
        if event not in {"given back", "put off"}:
            self._note_error(row, failure, event)
        self._lives.happen(row, event, pause=pause or 0.0)
        if options is not None and options.connection is not None:  # a later response may show that it was to another request
            row.is_unproven = event.startswith("refused")
            response = Unproven(options.response_number, row, None, matters=event != "put off")
            self._keep(response, options.connection)
        self._owner.on_change()

    def _pause_of(self, row: Row, failure: BoardClientError) -> float | None:
        """Return the pause before a row is sent again that is put off, None if it has waited too long."""
        if is_throttling(failure):
            self._turns.record_refusal(self._tally.requests, failure, self.order.sending)
            self._asked_pause(failure)
        # It is not sent any more, so its pause must not end the run with another error.
        if self._owner.is_halted:
            return 0.0
        return _pause_before(row, failure, self._hold)

    def _note_error(self, row: Row, failure: BoardClientError, event: Event) -> None:
        """Keep the error of a row. A refusal of a later request does not replace it: the card of the first one may exist."""
        if row.state == "resent" and row.error is not None and not event.startswith("lost"):
            row.error.add_note(f"sent again: {failure}")
        else:
            row.error = failure

    def _asked_pause(self, failure: BoardClientError) -> float:
        """Return the seconds for which `Retry-After` asks. A long pause ends the run."""
        asked = retry_after_of(failure) or 0.0
        if asked > PATIENCE_SECONDS:
            until = moment_in(asked).astimezone().isoformat(" ", "seconds")
            self._owner.halt(ended_by(failure, f"the service accepts requests again at {until}"))
        return asked

    def end(self) -> None:
        """Believe the responses that nothing has proven, unless more came over their connections."""
        for connection in self.order.connections:
            self._end_connection(connection, is_in_step=not connection.has_surplus)


def event_of(error: BoardClientError, sends: int, refusals: int) -> Event:
    """Return what the failure of a row's request means, after so many requests and refusals of the row."""
    if error.effect in {Effect.UNKNOWN, Effect.DONE}:
        return "lost" if sends < MOST_SENDS else "lost too often"
    if isinstance(error, CallWithdrawn):
        return "given back"
    if error.effect is Effect.NOT_SENT or is_throttling(error) or isinstance(error, ConsentRequired):
        return "put off"
    return "refused" if refusals < MOST_REFUSALS else "refused too often"


def _pause_before(row: Row, failure: BoardClientError, hold: Hold) -> float | None:
    """Return the seconds until a row is sent again that was refused with 429 or not sent. None if that took too long."""
    now = asyncio.get_running_loop().time()
    row.put_off_at = min(row.put_off_at, now)
    row.put_off += 1
    if hold.reason == "consent":
        return 0.0
    if hold.reason == "outage":  # its end is the run's affair
        return _FIRST_PUT_OFF_SECONDS * 2.0 ** min(row.put_off - 1, 7)
    pause = retry_after_of(failure) or 0.0
    # At a slow service any row may be refused for long. It is the row itself only if it is refused again and again.
    is_unlucky = row.put_off < _MOST_PUT_OFF
    since = max(row.put_off_at, hold.accepted_at) if is_unlucky else row.put_off_at
    return pause if now + pause - since < PATIENCE_SECONDS else None


def _is_usable(card_id: str) -> bool:
    """Return True if later calls can name a card by an identifier."""
    try:
        return bool(check_identifier(card_id, "id").strip())
    except InvalidIdentifierError:
        return False


def ended_by(error: BoardClientError, why: str) -> BoardClientError:
    """Return the error of a run that would have to wait for too long."""
    ended = copy.copy(error)
    add_words(ended, f"{why}, so the run ended, and the rows that were not sent are left to the next")
    return ended
