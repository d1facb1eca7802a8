"""Records what a call does, and reports it to limiter, instruments, observers.

A first attempt that succeeds is recorded only if something asks for it (`CallContext.is_tracked`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time
from typing import Any

from boardclient import retry as _retry
from boardclient._activities import PARENT, Activity, Instrument, ShownHeaders, new_call_id
from boardclient._curl import ShownRequest
from boardclient._operations import Request
from boardclient._pipeline._guards import AttemptLimiter
from boardclient._pipeline._in_flight import CallContext
from boardclient._statuses import is_throttling, status_of
from boardclient._transport import RawResponse, TransportResult
from boardclient.credentials import Credentials, CredentialsIn
from boardclient.errors import ApiError, Attempt, BoardClientError, Effect, SessionClosedError
from boardclient.logs import followers


def begin_call(request: Request[Any], root: str, account: str | None, observers: Instrument | None) -> Activity:
    """Begin the activity of a call, and return it."""
    definition = request.definition
    return Activity(
        kind="call",
        operation=definition.name,
        instruments=_instruments(observers),
        call_id=new_call_id(),
        account=account,
        parent=PARENT.get(),
        method=definition.method,
        path=request.path,
        root=root,
        template=None if definition.name == "request" else definition.path,
    ).begin()


def begin_attempt(context: CallContext, call: Activity) -> Mapping[str, str] | None:
    """Notify the observers of an attempt. Return the headers that they add to it."""
    context.attempt_activity = attempt = Activity(
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
        number=len(context.attempts) + 1,
    ).begin()
    return attempt.headers


def note_attempt(context: CallContext, response: TransportResult, outcome: object, limiter: AttemptLimiter | None) -> None:
    """Record an attempt in the history, and report it to limiter and observers."""
    effect = response.effect if response.status is None else status_of(response.status).effect
    attempt = context.record(context.started, outcome, response.status, effect)
    if context.attempt_activity is not None:
        if isinstance(response, RawResponse):
            _note_response(context, context.attempt_activity, response)
        _end_attempt(context, attempt, context.last_error)
    if limiter is not None and (response.status is not None or effect is not Effect.NOT_SENT):  # else it was not sent
        asked = outcome.retry_after if isinstance(outcome, ApiError) and is_throttling(outcome) else None
        limiter.report(response.status, asked, attempt.seconds)


def end_success(context: CallContext, attempt: Activity, response: RawResponse) -> None:
    """Notify instruments of a first attempt that succeeded."""
    context.attempt_activity = None
    attempt.why, attempt.seconds = "success", max(0.0, time() - context.started)
    _note_response(context, attempt, response)
    _end(attempt, response.status, Effect.DONE, None)


def note_closed(context: CallContext) -> SessionClosedError:
    """Record that an attempt was not made because the session was closed. Return the error."""
    closed = SessionClosedError(f"{context.line}: the session was closed during the call")
    context.record(time(), closed, None, Effect.NOT_SENT)
    return closed


def note_renewal(context: CallContext) -> None:
    """Notify the observers of renewed credentials."""
    if (call := context.activity) is not None:
        from boardclient.events import CredentialsRenewed  # for calls that are followed

        call.note(CredentialsRenewed(operation=call.operation, call_id=call.call_id, account=call.account))


def note_pause(context: CallContext, pause: float) -> None:
    """Note a pause before it begins, or raise the last error if it may not begin."""
    last, error = context.attempts[-1], context.last_error
    if error is not None and context.options.leaves_throttling and is_throttling(error):
        raise error
    remaining = context.remaining_seconds
    if not _retry.is_pause_possible(pause, remaining):
        raise _beyond_deadline(context, pause, remaining or 0.0)
    context.note_pause(pause)
    context.waits_for = _waiting_for_pause
    if (call := context.activity) is not None:
        from boardclient.events import RetryScheduled  # as above

        call.note(
            RetryScheduled(
                operation=call.operation,
                method=call.method,
                path=call.path,
                attempt=last.number,
                pause_seconds=pause,
                why=last.why,
                call_id=call.call_id,
                account=call.account,
            )
        )


def _waiting_for_pause() -> str:
    return "the pause before the next attempt"


def _beyond_deadline(context: CallContext, pause: float, remaining: float) -> BoardClientError:
    """Return the error to raise if the next pause would exceed the deadline."""
    error = context.last_error
    if error is None:
        return BoardClientError(f"{context.line}: the next pause would pass the deadline", Effect.DONE)
    asked = error.retry_after if isinstance(error, ApiError) else None
    what = f"a pause of {pause:.2g} s" if asked is None else f"it asked for {asked:g} s, which"
    _add(error, f"{what} is beyond the {max(0.0, remaining):.2g} s that are left of the timeout of {context.seconds:g} s")
    return error


def _add(error: BoardClientError, words: str) -> None:
    error.message += f"; {words}"
    error.args = (error.message, *error.args[1:])


def end_early(context: CallContext, host: str) -> BoardClientError | None:
    """Return the error of a call that the session ended, or None for any other.

    The current attempt, if any, ends here for observers.
    """
    known = len(context.attempts)
    error = context.interruption_error(host)
    if error is None and context.stage != "idle":
        cancelled = BoardClientError("the call was cancelled")
        context.record(context.started, cancelled, None, context.effect_under_way)
    for attempt in context.attempts[known:]:
        _end_attempt(context, attempt, error or asyncio.CancelledError())
    return error


def _end_attempt(context: CallContext, attempt: Attempt, error: BaseException | None) -> None:
    if context.attempt_activity is not None:
        context.attempt_activity.why, context.attempt_activity.seconds = attempt.why, attempt.seconds
        _end(context.attempt_activity, attempt.status, attempt.effect, error)
        context.attempt_activity = None


def _end(activity: Activity, status: int | None, effect: Effect, error: BaseException | None) -> None:
    """End the activity of an attempt. Its call takes over status, headers and the worst effect."""
    call = activity.parent
    assert call is not None  # noqa: S101 -- an attempt is a part of its call
    activity.status, activity.effect = status, effect
    call.number, call.status, call.response_headers = activity.number, status, activity.response_headers
    call.effect = effect if effect is Effect.DONE else Effect.worst([call.effect, effect])
    activity.end(error)


def complete(error: BoardClientError, request: Request[Any], context: CallContext, root: str, place: CredentialsIn) -> None:
    """Add the history and the request of its call to an error."""
    error.effect = Effect.worst([error.effect, *(attempt.effect for attempt in context.attempts)])
    error.attempts = context.attempts
    error.repeatable = request.repeatable
    if error.effect is Effect.UNKNOWN and not request.repeatable:
        _add(error, "it may have been done, check before you repeat it")
    if context.credentials is None:  # nothing was signed, so there are no credentials to redact
        error.shown_request = ShownRequest(method=request.method, url=root + request.path)
    else:
        error.shown_request = context.credentials.show(request, root, place, *_rejected(context))
    if context.activity is not None:
        error.call_id = context.activity.call_id


def without_secrets(context: CallContext, response: RawResponse) -> RawResponse:
    """Return a response with any credentials that it repeats redacted."""
    signed_with = context.credentials
    assert signed_with is not None  # noqa: S101 -- only signed requests have responses
    return signed_with.redact(response, *_rejected(context))


def _note_response(context: CallContext, attempt: Activity, response: RawResponse) -> None:
    """Note version and headers of a response. The headers are redacted when they are first read."""
    signed_with, others = context.credentials, _rejected(context)
    assert signed_with is not None  # noqa: S101 -- only signed requests have responses
    attempt.http_version = context.http_version
    attempt.response_headers = ShownHeaders(lambda: signed_with.redact_headers(response.headers, *others))


def _rejected(context: CallContext) -> list[Credentials]:
    return [] if context.rejected is None else [context.rejected]


# --- forms of credential providers, which belong to no attempt of a call


def begin_form(url: str, observers: Instrument | None) -> Activity:
    """Begin the activity of a form that a credential provider sends, and return it.

    If no call caused it, the session's observers are notified.
    """
    parent = PARENT.get()
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return Activity(
        kind="attempt",
        operation="token exchange",
        instruments=_instruments(observers) if parent is None else parent.instruments,
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


# --- who is notified


def _instruments(observers: Instrument | None) -> tuple[Instrument, ...]:
    """Return the instruments that observe an activity which begins now."""
    return followers() if observers is None else (*followers(), observers)
