"""Passes what happens in calls to a session's observers, as events. Imported for sessions that have observers."""

from __future__ import annotations

from collections.abc import Iterable

from boardclient._activities import Activity, Instrument
from boardclient._pipeline._guards import notify_all
from boardclient.events import Event, Observer, RequestSent, ResponseReceived


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
