"""One list whose creation has an unknown effect: it is looked for, and never sent twice."""

from __future__ import annotations

import asyncio

from boardclient._interface import _operations as operations
from boardclient._interface._operations import Request
from boardclient._interface._responses import add_words
from boardclient._pipeline._calls import CallOptions
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._run import settle_seconds_of
from boardclient.errors import BoardClientError, Effect
from boardclient.models import BoardList


async def create_list(
    pipeline: Pipeline, request: Request[BoardList], name: str, board_id: str, settle: float | None
) -> BoardList:
    """Create a list. If its effect is unknown, wait until it can't be carried out any more, and return the one that is found.

    Raises:
        BoardClientError: the lists could not be read, the list was refused, or it was not found.
        TypeError, ValueError: `settle` can't be used.
    """
    settle_seconds = settle_seconds_of(pipeline, settle)
    reading = operations.BOARD_LISTS.request(board_id)
    try:
        before = {found.id for found in await pipeline.call(reading)}
    except BoardClientError as error:  # its effect is that of the reading
        error.effect, error.repeatable = Effect.NOT_SENT, False
        add_words(error, "the list was not sent")
        raise
    try:
        # No policy repeats it if its effect is unknown.
        return await pipeline.call(request, CallOptions(is_of_run=True))
    except BoardClientError as error:
        if error.effect not in {Effect.UNKNOWN, Effect.DONE}:
            raise
        failure = error
    await asyncio.sleep(settle_seconds)
    try:
        new = [found for found in await pipeline.call(reading) if found.id not in before]
    except BoardClientError as error:
        add_words(failure, f"the lists could not be read ({error.message})")
        raise failure from None
    named = [found for found in new if found.name == name]
    if len(named) == 1:
        return named[0]
    shown = ", ".join(f"{found.name!r} ({found.id})" for found in new) or "none"
    add_words(failure, f"the list may exist, and may be one of those that are new on the board: {shown}")
    raise failure
