"""Calls as instruments and observers see them. Only calls that are observed use this module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from boardclient._activities import PARENT, Activity, Instrument, new_call_id
from boardclient._pipeline._guards import notify_all
from boardclient._statuses import status_of
from boardclient._transport import RawResponse, TransportResult
from boardclient.errors import Effect
from boardclient.events import Event, Observer, RequestSent, ResponseReceived
from boardclient.logs import followers

if TYPE_CHECKING:
    from boardclient._operations import Request


class ObserverInstrument(Instrument):
    """Passes the attempts and events of calls to a session's observers."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def begin(self, activity: Activity) -> None:
        """Notify the observers of a request."""
        if activity.kind == "attempt":
            event = RequestSent(
                operation=activity.operation,
                method=activity.method,
                path=activity.path,
                attempt=activity.number,
                call_id=activity.call_id,
                account=activity.account,
            )
            notify_all(self._observers, event)

    def note(self, activity: Activity, event: Event | str) -> None:
        """Notify the observers of an event."""
        if not isinstance(event, str):
            notify_all(self._observers, event)

    def end(self, activity: Activity) -> None:
        """Notify the observers of an attempt's end."""
        if activity.kind == "attempt":
            event = ResponseReceived(
                operation=activity.operation,
                method=activity.method,
                path=activity.path,
                attempt=activity.number,
                status=activity.status,
                seconds=activity.seconds,
                effect=activity.effect,
                why=activity.why,
                call_id=activity.call_id,
                account=activity.account,
                headers=activity.response_headers,
            )
            notify_all(self._observers, event)


def instruments_of(observers: ObserverInstrument | None) -> tuple[Instrument, ...]:
    """Return the instruments that observe an activity which begins now."""
    return followers() if observers is None else (*followers(), observers)


def call_of(request: Request[Any], root: str, account: str | None, observers: ObserverInstrument | None) -> Activity:
    """Begin the activity of a call, and return it."""
    definition = request.definition
    return Activity(
        kind="call",
        operation=definition.name,
        instruments=instruments_of(observers),
        call_id=new_call_id(),
        account=account,
        parent=PARENT.get(),
        method=definition.method,
        path=request.path,
        root=root,
        template=None if definition.name == "request" else definition.path,
    ).begin()


def attempt_of(call: Activity, number: int) -> Activity:
    """Begin the activity of one attempt of a call, and return it."""
    return Activity(
        kind="attempt",
        operation=call.operation,
        instruments=call.instruments,
        call_id=call.call_id,
        account=call.account,
        parent=call,
        method=call.method,
        path=call.path,
        root=call.root,
        template=call.template,
        number=number,
    ).begin()


def form_of(url: str, observers: ObserverInstrument | None) -> Activity:
    """Begin the activity of a form that a credential provider sends, and return it.

    If no call caused it, the session's observers are notified.
    """
    parent = PARENT.get()
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return Activity(
        kind="attempt",
        operation="token exchange",
        instruments=instruments_of(observers) if parent is None else parent.instruments,
        call_id="" if parent is None else parent.call_id,
        account=None if parent is None else parent.account,
        parent=parent,
        method="POST",
        path=slash + path,
        root=f"{scheme}://{host}",
        template=slash + path,
    ).begin()


def end_form(activity: Activity, outcome: TransportResult, http_version: tuple[int, int] | None) -> None:
    """End the activity of a form with the facts of its response.

    Its headers are not shown, since the service may repeat in them what was sent.
    """
    if isinstance(outcome, RawResponse):
        activity.status, activity.effect = outcome.status, status_of(outcome.status).effect
        activity.http_version = http_version
        activity.why = "success" if outcome.is_success else f"status {outcome.status}"
    else:
        activity.effect, activity.why = outcome.effect, outcome.why
    activity.end()


def end_attempt(activity: Activity, status: int | None, effect: Effect, error: BaseException | None) -> None:
    """End the activity of an attempt. Its call takes over status, headers and the worst effect."""
    call = activity.parent
    assert call is not None  # noqa: S101 -- an attempt is a part of its call
    activity.status, activity.effect = status, effect
    call.number, call.status, call.response_headers = activity.number, status, activity.response_headers
    call.effect = effect if effect is Effect.DONE else Effect.worst([call.effect, effect])
    activity.end(error)
