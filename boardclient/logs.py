"""The log records of `boardclient`, which hold no credentials.

Calls, retries, renewals and bulk runs are logged at INFO, attempts at DEBUG. Importing the package configures no handler unless
the environment variable `BOARDCLIENT_LOG` is set: "info" or "debug" writes to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from boardclient._activities import INSTALLED, Activity, Instrument
from boardclient._redaction import in_one_line
from boardclient.errors import BoardClientError, Effect

if TYPE_CHECKING:
    from boardclient.events import Event

__all__ = ["log_to_stderr"]

_root: Final = logging.getLogger("boardclient")
_root.addHandler(logging.NullHandler())
_calls: Final = logging.getLogger("boardclient.calls")
_REQUEST_ID_HEADERS: Final = ("X-Request-Id", "Request-Id", "X-Correlation-Id", "X-Amzn-RequestId", "X-Trace-Id", "CF-Ray")
"""The headers in which services and proxies identify a request. The interface names none. The first one is logged."""


def _keep_in_one_line(record: logging.LogRecord) -> bool:
    """Escape line breaks of what comes from outside: they would forge records."""
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = in_one_line(message), None
    for name in ("account", "request_id"):
        value = getattr(record, name, None)
        if isinstance(value, str):
            setattr(record, name, in_one_line(value))
    return True


for _name in ("boardclient", "boardclient.calls", "boardclient.transport", "boardclient.web"):
    logging.getLogger(_name).addFilter(_keep_in_one_line)  # those of a logger are not those of its children

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO}

is_info_logged: Final = partial(_calls.isEnabledFor, logging.INFO)


class LogInstrument(Instrument):
    """Log calls, retries, renewals and runs at INFO, attempts and cards at DEBUG."""

    def begin(self, activity: Activity) -> None:
        """Log the beginning of an attempt or a run."""
        if activity.kind == "attempt":
            _log(logging.DEBUG, activity, "attempt %d: %s %s", activity.number, activity.method, activity.url)
        elif activity.kind != "call":
            _log(logging.INFO, activity, "begins")

    def note(self, activity: Activity, event: Event | str) -> None:
        """Log a retry, a renewal or a phase."""
        from boardclient.events import CredentialsRenewed, RetryScheduled  # for calls that are followed

        if isinstance(event, RetryScheduled):
            _log(logging.INFO, activity, "pause of %.3f s after attempt %d: %s", event.pause_seconds, event.attempt, event.why)
        elif isinstance(event, CredentialsRenewed):
            _log(logging.INFO, activity, "credentials renewed")
        elif isinstance(event, str):
            _log(logging.INFO, activity, "%s", event)

    def end(self, activity: Activity) -> None:
        """Log the outcome."""
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


def followers(observers: Instrument | None = None) -> tuple[Instrument, ...]:
    """Return what is notified of an activity that begins now."""
    logs = LOGS if is_info_logged() else None
    return tuple(one for one in (*INSTALLED, logs, observers) if one is not None)


def log_to_stderr(level: Literal["debug", "info"] = "info") -> None:
    """Write the records of `boardclient` to standard error. A second call changes the level.

    Args:
        level: "info" (default) for calls, retries, renewals and runs, "debug" for attempts too.

    Raises:
        ValueError: there is no such level.
    """
    if level not in _LEVELS:
        raise ValueError('the log level must be "debug" or "info"')
    _root.setLevel(_LEVELS[level])
    if not any(isinstance(handler, _StderrHandler) for handler in _root.handlers):
        _root.addHandler(_StderrHandler())


class _StderrHandler(logging.StreamHandler[TextIO]):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless the root logger writes it to the console."""
        if not (_root.propagate and any(map(_is_console, logging.getLogger().handlers))):
            super().emit(record)


def _is_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in {sys.stderr, sys.stdout}


def _log(level: int, activity: Activity, message: str, *values: object) -> None:
    if not _calls.isEnabledFor(level):
        return
    extra: dict[str, Any] = {
        "call_id": activity.call_id,
        "operation": activity.operation,
        "account": activity.account,
        "attempt": activity.number,
        "status": activity.status,
        "seconds": round(activity.seconds, 6),
        "effect": activity.effect.value,
        "request_id": _request_id_of(activity.response_headers),
    }
    parts = ["%s", "(%s)"] if activity.call_id else ["%s"]
    ends = [f"{name} {extra[name]}" for name in ("status", "account", "request_id") if extra[name] is not None]
    if activity.kind in {"call", "attempt"} and activity.error is not None and activity.effect is not Effect.REJECTED:
        ends.append(f"effect {activity.effect.value}")
    if activity.seconds:
        ends.append(f"{activity.seconds:.3f} s")
    named = [activity.operation, activity.call_id] if activity.call_id else [activity.operation]
    text = " ".join([*parts, message, *(["[%s]"] if ends else [])])
    _calls.log(level, text, *named, *values, *([", ".join(ends)] if ends else []), extra=extra)


def _request_id_of(headers: Mapping[str, str]) -> str | None:
    """Return the service's identifier of a request, from the headers of its response."""
    return next((headers[name] for name in _REQUEST_ID_HEADERS if name in headers), None)


def _configure() -> None:
    """Write to standard error if the environment asks for it."""
    wanted = os.environ.get("BOARDCLIENT_LOG", "").strip().lower()
    if wanted:
        log_to_stderr("debug" if wanted == "debug" else "info")
    if wanted and wanted not in _LEVELS:
        _root.warning("BOARDCLIENT_LOG must be debug or info: info is used")


_configure()
