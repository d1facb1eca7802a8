"""What tests call on the service: sessions, codes, boards, time travel, checks."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from boardclient.testing._client_face import ClientFace
from boardclient.testing._clock import ServiceClock
from boardclient.testing._records import Json, Member, SeededBoard
from boardclient.testing._rules import BoardRules
from boardclient.testing.faults import Fault

_CREDENTIALS = ("key", "token", "client_id", "client_secret", "code")


@attrs.frozen(kw_only=True)
class Call:
    """One request as the service saw it. `status` is None as long as, or since, it was not answered.

    `number` counts the calls of its operation from 1; `connection` is the client's port, alike for calls on one connection;
    `body` is the decoded JSON, the fields of a form, or the bytes where they are neither.
    """

    operation: str
    number: int
    method: str
    path: str
    connection: int
    fault: Fault | None
    status: int | None = None
    query: Mapping[str, str] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: Json | bytes = attrs.field(repr=False)


class ServiceFace(ClientFace, Protocol):
    """The part of `BoardService` that needs no socket."""

    rules: BoardRules
    calls: list[Call]
    _time: ServiceClock
    _lock: threading.RLock

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, each with `id` and `name`; the default token is the first one's."""
        return self.rules.members

    @property
    def key(self) -> str:
        """The API key."""
        return self.rules.key

    @property
    def token(self) -> str:
        """An access token that the service accepts."""
        return self.rules.token

    @property
    def client_id(self) -> str:
        """The client identifier for the token exchange."""
        return self.rules.client_id

    @property
    def client_secret(self) -> str:
        """The client secret for the token exchange."""
        return self.rules.client_secret

    @property
    def redirect_uri(self) -> str:
        """The redirect URI for the token exchange."""
        return self.rules.redirect_uri

    @property
    def requests(self) -> int:
        """How many requests were received."""
        return len(self.calls)

    def new_code(self, *, scopes: Iterable[str] | None = None, member: str | None = None) -> str:
        """Return an authorization code for one token exchange.

        Args:
            scopes: what the token may do; all of the service's by default.
            member: the name or identifier of its member; the first by default.
        """
        return self.rules.new_code(scopes=scopes, member=member)

    def seed(self, lists: Mapping[str, Iterable[str]], name: str = "Board") -> SeededBoard:
        """Create a board with lists and cards, without a request.

        Args:
            lists: the names of the cards in each list, by the list's name: `{"To Do": ["Book the hall"]}`.
            name: the board's name.
        """
        with self._lock:
            return self.rules.seed(lists, name)

    def advance(self, seconds: float) -> None:
        """Move the service's time forward.

        Tokens expire, limits refill, and delayed commits and responses are due at once. The client's timeouts and pauses run on
        the client's own time.

        Raises:
            ValueError: `seconds` is negative.
        """
        self._time.advance(seconds)

    def assert_no_duplicates(self) -> None:
        """Check that no two cards are alike in list, name, description and due date.

        What is under way may still make one: `await service.settled()` first, after requests that were given up.

        Raises:
            AssertionError: some are; the message names them.
        """
        with self._lock:  # requests may be under way, in the service's own thread
            cards = [*self.rules.cards.values()]
        counts = collections.Counter((card.list_id, card.name, card.desc, card.due) for card in cards)
        twice = [f"{number} x {name!r} in list {home}" for (home, name, _, _), number in counts.items() if number > 1]
        if twice:
            raise AssertionError(f"cards exist more than once: {'; '.join(twice)}")

    def assert_no_credential_in_url_with_body(self) -> None:
        """Check that no request with a body had a credential in its address.

        Raises:
            AssertionError: some had; the message names the calls, not the values.
        """
        leaks = [call for call in [*self.calls] if call.body is not None and any(name in call.query for name in _CREDENTIALS)]
        if leaks:
            raise AssertionError(f"credentials in the address of {', '.join(f'{c.operation} {c.number}' for c in leaks)}")
