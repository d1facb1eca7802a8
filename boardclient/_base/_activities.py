"""How observers, logs and OpenTelemetry follow calls. No I/O.

An activity is a call, an attempt of a call or to exchange a token, a renewal or a bulk run. Instruments are notified of its
beginning, its events and its end. It holds no credentials.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import attrs

from boardclient._base._guards import check_notified, guarded
from boardclient.errors import BoardClientError, Effect
from boardclient.logs import CALLS

if TYPE_CHECKING:
    from boardclient.events import Event, Observer

T = TypeVar("T")
Kind: TypeAlias = Literal["call", "attempt", "renewal", "run"]

_logger: Final = logging.getLogger("boardclient")
_REQUEST_ID_HEADERS: Final = ("X-Request-Id", "Request-Id", "X-Correlation-Id", "X-Amzn-RequestId", "X-Trace-Id", "CF-Ray")
"""The headers in which services and proxies identify a request. The interface names none. The first one is logged."""
# Numbers alone come again in each process, and one log has the records of many.
_prefix: Final = os.urandom(3).hex()
_numbers: Final = itertools.count(1)


def new_call_id() -> str:
    """Return an identifier of a call, unique in this process and unlikely in others."""
    return f"{_prefix}-{next(_numbers)}"


class Instrument:
    """What is notified of activities. Its exceptions are logged. It must not block."""

    def begin(self, activity: Activity) -> None:
        """Note that an activity begins. The instrument may add to the `headers` of an attempt."""

    def note(self, activity: Activity, event: Event | str) -> None:
        """Note an event, or a phase of a run."""

    def end(self, activity: Activity) -> None:
        """Note that an activity has ended. Its outcome is in the activity."""


INSTALLED: Final[list[Instrument]] = []
"""The instruments of all sessions of the process."""

PARENT: Final[ContextVar[Activity | None]] = ContextVar("boardclient_activity", default=None)
"""The renewal or bulk run that the running task works for, or the call for which it obtains credentials."""


@attrs.define(kw_only=True, eq=False, repr=False)
class Activity:
    """Something that the client does, from `begin` to `end`, as instruments see it.

    Args:
        kind: What it is.
        operation: Its name, such as "cards.create", "token exchange" or "cards.create_many".
        instruments: What is notified of it.
        call_id: The identifier of its call, "" if it belongs to none.
        account: The account of the credentials, None if they have none.
        parent: The activity that it is a part of, None for none.
        method: The HTTP method.
        path: The path, without the query.
        root: The URL before the path.
        template: The path with the names of its parameters, None if it is not known.
        number: The number of the attempt, from 1.
        headers: Headers of the request besides the session's own. Instruments may add to them.
        state: What each instrument keeps for the activity.
        http_version: The HTTP version of the response, such as (1, 1), None if it is not known.
        counts: The results of a run, such as "created", and their numbers.
    """

    kind: Kind
    operation: str
    instruments: tuple[Instrument, ...] = ()
    call_id: str = ""
    account: str | None = None
    parent: Activity | None = None
    method: str = ""
    path: str = ""
    root: str = ""
    template: str | None = None
    number: int = 1
    headers: dict[str, str] = attrs.field(init=False, factory=dict)
    state: dict[Instrument, Any] = attrs.field(init=False, factory=dict)
    error: BaseException | None = attrs.field(init=False, default=None)
    status: int | None = attrs.field(init=False, default=None)
    effect: Effect = attrs.field(init=False, default=Effect.NOT_SENT)
    why: str = attrs.field(init=False, default="")
    response_headers: Mapping[str, str] = attrs.field(init=False, factory=dict)
    http_version: tuple[int, int] | None = attrs.field(init=False, default=None)
    seconds: float = attrs.field(init=False, default=0.0)
    counts: Mapping[str, int] = attrs.field(init=False, factory=dict)
    is_over: bool = attrs.field(init=False, default=False)
    _began: float = attrs.field(init=False, factory=perf_counter)

    @property
    def url(self) -> str:
        return self.root + self.path

    def event(self, kind: Callable[..., T], **more: object) -> T:
        """Make an event of an attempt or a pause."""
        return kind(
            operation=self.operation, method=self.method, path=self.path, call_id=self.call_id, account=self.account, **more
        )

    def attempt(self, number: int) -> Activity:
        """Return an attempt of this call, without `attrs.evolve`, which takes twice as long."""
        return Activity(
            kind="attempt",
            operation=self.operation,
            instruments=self.instruments,
            call_id=self.call_id,
            account=self.account,
            parent=self,
            method=self.method,
            path=self.path,
            root=self.root,
            template=self.template,
            number=number,
        )

    def begin(self) -> Activity:
        for instrument in self.instruments:
            guarded("an instrument", instrument.begin, self)
        return self

    def note(self, event: Event | str) -> None:
        for instrument in self.instruments:
            guarded("an instrument", instrument.note, self, event)

    def end(self, error: BaseException | None = None) -> None:
        """Notify the instruments of the end, once, in reverse order."""
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        if not self.seconds:
            self.seconds = perf_counter() - self._began
        # In reverse, since each restores the context that was current when it began.
        for instrument in reversed(self.instruments):
            guarded("an instrument", instrument.end, self)
        self.state.clear()
        self.error = None  # its traceback refers to this activity, which would be a cycle


# --- the observers of a session


def observers_of(observers: object) -> Observers | None:
    """Return the observers of a session, None if there are none, or raise a TypeError if one is not a plain function."""
    if not (isinstance(observers, Iterable) and all(map(callable, given := tuple(observers)))):
        raise TypeError("observers must be an iterable of functions, such as [print]")
    for observer in given:
        check_notified(observer, "each observer")
    return Observers(given) if given else None


class Observers(Instrument):
    """The observers of a session or view: they receive the events of its calls."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        from boardclient import events  # sessions without observers need none, and each import costs as much as an event

        self._observers = tuple(observers)
        self._events = events

    def begin(self, activity: Activity) -> None:
        if activity.kind == "attempt":
            self.notify(activity.event(self._events.RequestSent, attempt=activity.number))

    def note(self, activity: Activity, event: Event | str) -> None:
        if not isinstance(event, str):
            self.notify(event)

    def end(self, activity: Activity) -> None:
        if activity.kind == "attempt":
            self.notify(
                activity.event(
                    self._events.ResponseReceived,
                    attempt=activity.number,
                    status=activity.status,
                    seconds=activity.seconds,
                    effect=activity.effect,
                    why=activity.why,
                    headers=activity.response_headers,
                )
            )

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            given = guarded("an observer", observer, event)
            if inspect.iscoroutine(given):
                # Else Python warns later that it was never awaited, at a place that has nothing to do with it.
                given.close()
                _logger.error("an observer returned a coroutine, which is not awaited: observers must be plain functions")


# --- logs


is_info_logged: Final = partial(CALLS.isEnabledFor, logging.INFO)


class LogInstrument(Instrument):
    """Log calls, retries, renewals and runs at INFO, attempts and cards at DEBUG."""

    def begin(self, activity: Activity) -> None:
        if activity.kind == "attempt":
            _log(logging.DEBUG, activity, "attempt %d: %s %s", activity.number, activity.method, activity.url)
        elif activity.kind != "call":
            _log(logging.INFO, activity, "begins")

    def note(self, activity: Activity, event: Event | str) -> None:
        from boardclient.events import CredentialsRenewed, RetryScheduled  # for calls that are followed

        if isinstance(event, RetryScheduled):
            _log(logging.INFO, activity, "pause of %.3f s after attempt %d: %s", event.pause_seconds, event.attempt, event.why)
        elif isinstance(event, CredentialsRenewed):
            _log(logging.INFO, activity, "credentials renewed")
        elif isinstance(event, str):
            _log(logging.INFO, activity, "%s", event)

    def end(self, activity: Activity) -> None:
        error = activity.error
        why = str(error) if isinstance(error, BoardClientError) else type(error).__name__ if error is not None else ""
        if activity.kind == "attempt":
            is_failure = activity.status is not None and activity.why != "success"
            words = "failed" if is_failure else activity.why or why or "ended"  # the line of the pause or call says why
            _log(logging.DEBUG, activity, "attempt %d: %s", activity.number, words)
        else:
            is_of_run = activity.kind == "call" and activity.parent is not None and activity.parent.kind == "run"
            level = logging.DEBUG if is_of_run else logging.INFO
            counts = "".join(f", {number} {name}" for name, number in activity.counts.items())
            _log(level, activity, "%s%s", f"failed: {why}" if why else "done", counts)


LOGS: Final = LogInstrument()


def _log(level: int, activity: Activity, message: str, *values: object) -> None:
    if not CALLS.isEnabledFor(level):
        return
    is_of_requests = activity.kind in {"call", "attempt"}
    extra: dict[str, Any] = {
        "call_id": activity.call_id,
        "operation": activity.operation,
        "account": activity.account,
        "attempt": activity.number,
        "status": activity.status,
        "seconds": round(activity.seconds, 6),
        "effect": activity.effect.value if is_of_requests else None,
        "request_id": request_id_of(activity.response_headers),
    }
    parts = ["%s", "(%s)"] if activity.call_id else ["%s"]
    ends = [f"{name} {extra[name]}" for name in ("status", "account", "request_id") if extra[name] is not None]
    if is_of_requests and activity.error is not None and activity.effect is not Effect.REJECTED:
        ends.append(f"effect {activity.effect.value}")
    if activity.seconds:
        ends.append(f"{activity.seconds:.3f} s")
    named = [activity.operation, activity.call_id] if activity.call_id else [activity.operation]
    text = " ".join([*parts, message, *(["[%s]"] if ends else [])])
    CALLS.log(level, text, *named, *values, *([", ".join(ends)] if ends else []), extra=extra)


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """Return the service's identifier of a request, from the headers of its response."""
    return next((headers[name] for name in _REQUEST_ID_HEADERS if name in headers), None)


def followers(observers: Instrument | None = None) -> tuple[Instrument, ...]:
    """Return what is notified of an activity that begins now."""
    logs = LOGS if is_info_logged() else None
    return tuple(one for one in (*INSTALLED, logs, observers) if one is not None)


# --- sessions, whose numbers instruments may read at any time


SOURCES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""What each session shares with its views (`SessionParts`). Each has a method `stats`."""
