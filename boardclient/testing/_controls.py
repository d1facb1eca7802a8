"""The methods of the service that tests call: codes, boards, time, checks."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from boardclient.testing._clock import ServiceClock
from boardclient.testing._endpoint import ServiceEndpoint
from boardclient.testing._records import Json, Member, SeededBoard
from boardclient.testing._rules import BoardRules
from boardclient.testing.faults import Fault

_CREDENTIALS = ("key", "token", "client_id", "client_secret", "code")


@attrs.frozen(kw_only=True)
class Call:
    """One request that the service received.

    Attributes:
        operation: The operation, such as "cards.create", or "unknown".
        number: The number of the call among those of its operation, from 1.
        method: The HTTP method.
        path: The percent-encoded path.
        connection: The client's port, which is the same for calls on one connection.
        fault: The fault that was applied, or None.
        status: The status of the response, or None until one was sent.
        query: The decoded query parameters.
        headers: The headers, case-insensitive.
        body: The decoded JSON, the fields of a form, or the bytes if they are neither. None without a body.
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


class ServiceControls(ServiceEndpoint, Protocol):
    """The methods of `BoardService` that need no socket."""

    rules: BoardRules
    calls: list[Call]
    _time: ServiceClock
    _lock: threading.RLock

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, each with `id` and `name`. `token` belongs to the first one."""
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
            scopes: The scopes of the token. By default all scopes of the service.
            member: The name or identifier of the member who gives consent. By default the first member.

        Raises:
            LookupError: there is no such member.
        """
        return self.rules.new_code(scopes=scopes, member=member)

    def seed(self, lists: Mapping[str, Iterable[str]], name: str = "Board") -> SeededBoard:
        """Create a board with lists and cards, without a request.

        Args:
            lists: The names of the cards in each list, by the name of the list: `{"To Do": ["Book the hall"]}`.
            name: The name of the board. "Board" by default.
        """
        with self._lock:
            return self.rules.seed(lists, name)

    def advance(self, seconds: float) -> None:
        """Move the service's time forward.

        Tokens expire, rate limits refill, and delays of the service end accordingly. The client's timeouts and pauses are not
        affected.

        Args:
            seconds: The number of seconds, at least 0.

        Raises:
            ValueError: `seconds` is negative.
        """
        self._time.advance(seconds)

    def assert_no_duplicates(self) -> None:
        """Check that no two cards have the same list, name, description and due date.

        After requests that the client gave up, `await service.settled()` first: they may still create cards.

        Raises:
            AssertionError: there are such cards. The message names them.
        """
        with self._lock:  # the service's own thread may be handling requests
            cards = [*self.rules.cards.values()]
        counts = collections.Counter((card.list_id, card.name, card.desc, card.due) for card in cards)
        twice = [f"{number} x {name!r} in list {card_list}" for (card_list, name, _, _), number in counts.items() if number > 1]
        if twice:
            raise AssertionError(f"cards exist more than once: {'; '.join(twice)}")

    def assert_no_credential_in_url_with_body(self) -> None:
        """Check that no request with a body had a credential in its URL.

        Raises:
            AssertionError: some requests had. The message names the calls, not the values.
        """
        leaks = [call for call in [*self.calls] if call.body is not None and any(name in call.query for name in _CREDENTIALS)]
        if leaks:
            raise AssertionError(f"credentials in the address of {', '.join(f'{c.operation} {c.number}' for c in leaks)}")
