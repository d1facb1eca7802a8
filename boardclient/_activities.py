"""The one interface that observers, logs and OpenTelemetry follow calls by. No I/O.

An activity has a beginning, events and an end: a call, one of its attempts, a renewal, a token exchange, a bulk run. Instruments
are told of each. Nothing in an activity is a credential.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from multidict import CIMultiDict

from boardclient.errors import Effect
from boardclient.events import Event

Kind: TypeAlias = Literal["call", "attempt", "renewal", "run"]

_logger: Final = logging.getLogger("boardclient")
_prefix: Final = secrets.token_hex(3)
_numbers: Final = itertools.count(1)

REQUEST_ID_HEADERS: Final = ("X-Request-Id", "Request-Id", "X-Correlation-Id", "X-Amzn-RequestId", "X-Trace-Id", "CF-Ray")
"""Where services and proxies write the identifier of a request; the interface names none."""


def new_call_id() -> str:
    """Return an identifier for a call. It is unique in this process, and most likely among others."""
    return f"{_prefix}-{next(_numbers)}"


class ShownHeaders(Mapping[str, str]):
    """Headers that are redacted when they are first read. Few are: for most calls that is never.

    Args:
        redact: Returns the redacted headers. Until then they are within this function, where no repr or pickle shows them.
    """

    __slots__ = ("_redact", "_shown")

    def __init__(self, redact: Callable[[], Mapping[str, str]]) -> None:
        self._redact: Callable[[], Mapping[str, str]] | None = redact

    @property
    def shown(self) -> Mapping[str, str]:
        """The redacted headers."""
        if self._redact is not None:
            self._shown, self._redact = self._redact(), None
        return self._shown

    def __getitem__(self, name: str) -> str:
        return self.shown[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shown)

    def __len__(self) -> int:
        return len(self.shown)

    def __repr__(self) -> str:
        return repr(self.shown)

    def __reduce__(self) -> tuple[Any, ...]:
        return CIMultiDict, (list(self.shown.items()),)


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """Return the service's identifier of a request, from its response's headers."""
    return next((headers[name] for name in REQUEST_ID_HEADERS if name in headers), None)


class Instrument:
    """What follows activities. It may raise, which is logged; it must not block."""

    def begin(self, activity: Activity) -> None:
        """Note a beginning. The instrument may add to the `headers` of an attempt."""

    def note(self, activity: Activity, event: Event | str) -> None:
        """Take note of an event, or of a phase of a run."""

    def end(self, activity: Activity) -> None:
        """Take note of an end; what came of it stands in the activity."""


INSTALLED: Final[list[Instrument]] = []
"""Instruments of the whole process."""

PARENT: Final[ContextVar[Activity | None]] = ContextVar("boardclient_activity", default=None)
"""The call, renewal or bulk run that the running task works for. A call is one while it waits for credentials."""


class Activity:
    """Something that the client does, from `begin` to `end`, as instruments see it.

    Two are made for each call that is followed: what only the end knows is a class-level default until then.

    Args:
        kind: what it is.
        operation: its name, such as "cards.create", "token exchange", "cards.create_many".
        instruments: what follows it.
        call_id: which call it belongs to.
        account: whose credentials, None where they have no account.
        parent: the activity that it is a part of.
        method: the HTTP method.
        path: the path of the request.
        root: what the URL has before the path.
        template: the path with the names of its parameters, None where it is not known.
        number: which attempt it is, from 1.
    """

    error: BaseException | None = None
    status: int | None = None
    effect = Effect.NOT_SENT
    why = ""
    response_headers: Mapping[str, str] = MappingProxyType({})
    seconds = 0.0
    counts: Mapping[str, int] = MappingProxyType({})
    """How many rows of a run came to which end."""
    is_over = False

    def __init__(
        self,
        *,
        kind: Kind,
        operation: str,
        instruments: tuple[Instrument, ...] = (),
        call_id: str = "",
        account: str | None = None,
        parent: Activity | None = None,
        method: str = "",
        path: str = "",
        root: str = "",
        template: str | None = None,
        number: int = 1,
    ) -> None:
        self.kind = kind
        self.operation = operation
        self.instruments = instruments
        self.call_id = call_id
        self.account = account
        self.parent = parent
        self.method = method
        self.path = path
        self.root = root
        self.template = template
        self.number = number
        self.headers: dict[str, str] = {}
        """What is sent with the request beside the session's own; instruments may add to it."""
        self.state: dict[Instrument, Any] = {}
        """What an instrument keeps for itself."""
        self._began = perf_counter()

    @property
    def url(self) -> str:
        """The URL without query."""
        return self.root + self.path

    def begin(self) -> Activity:
        """Tell the instruments of the beginning."""
        for instrument in self.instruments:
            try:
                instrument.begin(self)
            except Exception:
                _logger.exception("an instrument failed")
        return self

    def note(self, event: Event | str) -> None:
        """Tell the instruments of an event, or of a phase of a run."""
        for instrument in self.instruments:
            try:
                instrument.note(self, event)
            except Exception:
                _logger.exception("an instrument failed")

    def end(self, error: BaseException | None = None) -> None:
        """Tell the instruments of the end, once, in the reverse order."""
        if self.is_over:
            return
        self.is_over = True
        if self.error is None:
            self.error = error
        if not self.seconds:
            self.seconds = perf_counter() - self._began
        for instrument in reversed(self.instruments):
            try:
                instrument.end(self)
            except Exception:
                _logger.exception("an instrument failed")
        self.state.clear()
        self.error = None  # its traceback holds this activity


# --- health, which instruments may measure at any time


SOURCES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The cores of the open sessions: each has `stats()`."""
