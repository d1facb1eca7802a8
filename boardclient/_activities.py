"""The one interface that observers, logs and OpenTelemetry follow calls by. No I/O.

An activity has a beginning, events and an end: a call, one of its attempts, a renewal, a token exchange, a bulk run. Instruments
are told of each. Nothing in an activity is a credential.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeAlias

import attrs

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
"""The renewal or bulk run that the running task belongs to."""


@attrs.define(eq=False, kw_only=True)
class Activity:
    """Something that the client does, from `begin` to `end`, as instruments see it.

    Args:
        kind: what it is.
        operation: its name, such as "cards.create", "token exchange", "bulk run".
        instruments: what is told.
        call_id: which call it belongs to.
        account: whose credentials, None where they have no account.
        parent: the activity that it is a part of.
        method: the HTTP method.
        url: the URL without query.
        template: the path with the names of its parameters, None where it is not known.
        number: which attempt it is, from 1.
        headers: what is sent with the request beside the session's own; instruments may add to it.
    """

    kind: Kind
    operation: str
    instruments: tuple[Instrument, ...] = ()
    call_id: str = ""
    account: str | None = None
    parent: Activity | None = None
    method: str = ""
    path: str = ""
    url: str = ""
    template: str | None = None
    number: int = 1
    headers: dict[str, str] = attrs.field(factory=dict)

    # what came of it
    error: BaseException | None = None
    status: int | None = None
    effect: Effect = Effect.NOT_SENT
    why: str = ""
    response_headers: Mapping[str, str] = attrs.field(factory=dict)
    seconds: float = 0.0
    counts: Mapping[str, int] = attrs.field(factory=dict)
    """How many rows of a run came to which end."""

    state: dict[Instrument, Any] = attrs.field(factory=dict)
    """What an instrument keeps for itself."""
    is_over: bool = False
    _began: float = attrs.field(init=False, factory=time.perf_counter)

    def begin(self) -> Activity:
        """Tell the instruments of the beginning."""
        for instrument in self.instruments:
            _guarded(instrument.begin, self)
        return self

    def note(self, event: Event | str) -> None:
        """Tell the instruments of an event, or of a phase of a run."""
        for instrument in self.instruments:
            _guarded(instrument.note, self, event)

    def end(self, error: BaseException | None = None) -> None:
        """Tell the instruments of the end, once, in the reverse order."""
        if self.is_over:
            return
        self.is_over = True
        self.error = self.error or error
        self.seconds = self.seconds or time.perf_counter() - self._began
        for instrument in reversed(self.instruments):
            _guarded(instrument.end, self)
        self.state.clear()
        self.error = None  # its traceback holds this activity


def _guarded(function: Callable[..., None], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        _logger.exception("an instrument failed")


# --- health, which instruments may measure at any time


SOURCES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The cores of the open sessions: each has `stats()`."""
