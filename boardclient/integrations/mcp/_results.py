"""The results of tools: one form of object, also for what failed, with what an agent is to do next."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs
from mcp.types import CallToolResult, TextContent

from boardclient import Effect, errors

Result: TypeAlias = dict[str, Any]

_RESULT: Final = {
    "effect": {
        "type": "string",
        "enum": [effect.value for effect in Effect],
        "description": "What the call has done. unknown: it may have been done.",
    },
    "error": {"type": "string", "description": "Why the call failed. Absent if it did not."},
    "candidates": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Identifiers of cards that may be the one that was to be created.",
    },
    "retry_at": {"type": ["string", "null"], "description": "From when on the same call makes sense again, if that is known."},
    "next_step": {"type": "string", "description": "What to do now. Empty if there is nothing to do."},
}

TAKE_LIST: Final = "Take list_id from board_lists: a name is not an identifier."
CORRECT: Final = "Correct the arguments that the error names, then make the call."
TELL: Final = "Tell the user what the error says"
_MOST_TRIES: Final = 3
"""After so many calls that failed alike, `next_step` no longer says that the call should be repeated."""
_FOR_PROGRAMS: Final = re.compile(r" \(docs/[^)]*\)|, with limiter=Pace\(\)")
"""What an error names and an agent can't use: a page, and a parameter of a program."""
_REDIRECT: Final = 3
"""The first digit of the statuses that name another address."""


@attrs.frozen(kw_only=True)
class Advice:
    """What is particular to a tool in the next step after a failure.

    Args:
        not_found: What to do if an identifier is unknown.
        still_not_found: What to do if it is unknown again.
        can_repeat: Whether a second call does no harm if the first may have been done.
        is_reading: Whether it changes nothing.
        unknown: What to do if it may have been done, and a second call may do harm.
    """

    not_found: str
    still_not_found: str = f"These identifiers are unknown to the service, or this token may not see them. {TELL}."
    can_repeat: bool = True
    is_reading: bool = False
    unknown: str = ""


def output_schema(**values: Any) -> dict[str, Any]:
    """Return the JSON Schema of a tool's results: those that all have, and these of a success."""
    return {"type": "object", "properties": {**_RESULT, **values}, "required": ["effect", "next_step"]}


def done(next_step: str = "", **values: Any) -> Result:
    """Return the result of a success."""
    return {"effect": Effect.DONE.value, **values, "next_step": next_step}


def failed(effect: Effect, error: str, next_step: str, candidates: tuple[str, ...] = (), retry_at: str | None = None) -> Result:
    """Return the result of a failure."""
    return {
        "effect": effect.value,
        "error": error,
        "candidates": [*candidates],
        "retry_at": retry_at,
        "next_step": next_step,
    }


def refused(error: object) -> Result:
    """Return the result of a call whose arguments can't be used. Nothing was sent."""
    return failed(Effect.NOT_SENT, str(error), CORRECT)


def late(seconds: float, what: str, advice: Advice, tries: int, ends_at: datetime | None) -> Result:
    """Return the result of a call that has none in the time that a host waits. `ends_at` is when what it waits for is over."""
    error, moment = f"the call has no result after {seconds:.0f} seconds: {what}", _text_of(ends_at)
    if not advice.can_repeat:
        return failed(Effect.UNKNOWN, error, advice.unknown)
    return failed(Effect.UNKNOWN, error, _again(tries, moment), retry_at=moment)


def of_error(error: errors.BoardClientError, advice: Advice, tries: int) -> Result:
    """Return the result of a call that raised. `tries` says how often the same call has failed, this time included."""
    moment = _text_of(error.retry_at)
    return failed(
        error.effect, _FOR_PROGRAMS.sub("", str(error)), _next_step(error, advice, tries, moment), error.candidates, moment
    )


def shown(result: Result) -> CallToolResult:
    """Return the result for the protocol. Its text is the same object, for hosts that show texts alone."""
    text = json.dumps(result, ensure_ascii=False)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=result, is_error="error" in result)


def _next_step(error: errors.BoardClientError, advice: Advice, tries: int, moment: str | None) -> str:
    # Who is to act, in this order: the user, whose credentials or ledger are at fault; the agent, whose arguments are; nobody,
    # since it was done; and the agent again, by the same call, as long as that may help.
    if (found := _for_user(error)) or (found := _for_arguments(error, advice, tries)):
        return found
    if error.effect is Effect.DONE:
        return (
            f"The response can't be used, and will hardly be better the next time. {TELL}."
            if advice.is_reading
            else "It was done, only the response can't be used. Do not make the call again: read the card or the board."
        )
    if error.effect is Effect.UNKNOWN and not advice.can_repeat:
        return advice.unknown
    if error.effect is Effect.UNKNOWN and error.candidates:
        return (
            "A person has to look whether one of the candidates is the card, and to resolve it by the command that the error "
            f"names. {TELL}, and do not make the call again before."
        )
    if error.effect in {Effect.UNKNOWN, Effect.NOT_SENT} or moment is not None or isinstance(error, errors.RateLimitError):
        return _again(tries, moment)
    return (
        f"The service refuses these arguments, and has done nothing: change them, if the error says how. If not: {TELL.lower()}."
    )


def _for_user(error: errors.BoardClientError) -> str:
    """Return what to do if nothing that an agent can call helps, or ""."""
    if isinstance(error, errors.AuthenticationError | errors.CredentialError):
        return (
            "Ask the user to sign in with `boardclient login`, or, if BOARDCLIENT_TOKEN is set for this server, to replace it "
            "and start the server again. Then make the call again with the same arguments."
        )
    if isinstance(error, errors.PermissionDeniedError):
        return f"The token lacks a permission. {TELL}."
    if isinstance(error, errors.SessionClosedError):
        return f"This server is ending. {TELL}."
    if isinstance(error, errors.ApiError) and error.status // 100 == _REDIRECT:
        return f"The address of the service is another one, or wrong. {TELL}."
    return ""


def _for_arguments(error: errors.BoardClientError, advice: Advice, tries: int) -> str:
    """Return what to do if other arguments help, or ""."""
    if isinstance(error, errors.NotFoundError) and error.effect is Effect.DONE:
        return f"The card of this reference was created and is gone. {TELL}. A new card needs a new reference."
    if isinstance(error, errors.JournalError) and error.retry_at is None:  # otherwise another call has the reference
        return (
            "A reference stands for one card: for a new card take a new reference, for the same card the arguments of the first "
            f"call. If the error is about the ledger itself: {TELL.lower()}."
        )
    found = ""
    if isinstance(error, errors.NotFoundError) and error.effect is Effect.REJECTED:
        found = advice.not_found
    elif type(error) is errors.BoardClientError and error.effect is Effect.NOT_SENT:  # a list of another board
        found = f"{TAKE_LIST} The list must be on the board of board_id."
    return advice.still_not_found if found and tries > 1 else found


def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _again(tries: int, moment: str | None) -> str:
    if tries >= _MOST_TRIES:
        return f"The call has failed {tries} times alike. {TELL}; it may be made again later, with the same arguments."
    return f"Repeat the call with the same arguments{f' after {moment}' if moment else ''}."
