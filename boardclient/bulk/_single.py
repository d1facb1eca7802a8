"""One card or list whose creation has an unknown effect. The call ends in time, and a list is never sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import attrs

from boardclient._interface import _operations as operations
from boardclient._interface._operations import Request
from boardclient._interface._responses import add_words, moment_in
from boardclient._pipeline._calls import CallOptions
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._engine._places import BulkOptions
from boardclient.bulk._run import BulkRun, settle_seconds_of
from boardclient.errors import BoardClientError, DeadlineError, Effect
from boardclient.events import BulkProgress
from boardclient.models import BoardList, Card, CardDraft

_AGAIN_SECONDS: Final = 1.0
"""After which the same call continues, where nothing says when it makes sense."""

_NO_RECORD: Final = (
    "no record of the call is kept, so that the same call creates another card: look at the board before, or give a reference"
)


def bound_of(pipeline: Pipeline, settle_seconds: float, patience: float | None) -> float | None:
    """Return the seconds within which the call for a card ends, None for no bound: no deadline was asked for."""
    if patience is not None:
        return patience
    return None if pipeline.timeout is None else pipeline.timeout + settle_seconds


class End:
    """Stops a run some seconds after it began, whatever the service does, or `again` seconds after its row is in doubt."""

    def __init__(self, seconds: float | None, again: float | None = None) -> None:
        self.stop: Callable[[], object] = lambda: None
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else self._loop.call_later(max(0.0, seconds), lambda: self.stop())

    def on_progress(self, progress: BulkProgress) -> None:
        """Give the run time to settle its row, once the request has ended that is in doubt."""
        if self._again is not None and progress.in_doubt:
            self.cancel()
            self._timer, self._again = self._loop.call_later(self._again, lambda: self.stop()), None

    def cancel(self) -> None:
        """Stop nothing any more."""
        if self._timer is not None:
            self._timer.cancel()


def late(effect: Effect) -> DeadlineError:
    """Return the error of a call whose time has ended before its card was created."""
    error = DeadlineError("the time of the call has ended: the same call again continues", effect=effect)
    error.retry_at = moment_in(_AGAIN_SECONDS)
    return error


def say_when(error: BoardClientError, seconds: float) -> None:
    """Set when the same call makes sense again, unless that is known: once the service can't carry out the request any more."""
    if error.retry_at is None and error.effect is Effect.UNKNOWN:
        error.retry_at = moment_in(max(_AGAIN_SECONDS, seconds))


async def create_card(pipeline: Pipeline, draft: CardDraft, options: BulkOptions) -> Card:
    """Create a card by a run of one row.

    Raises:
        BoardClientError: the board could not be read, the card was refused, or it is not known whether it exists.
    """
    bound, began = bound_of(pipeline, options.settle_seconds, options.patience), asyncio.get_running_loop().time()
    end = End(bound, bound if options.patience is None else None)
    options = attrs.evolve(options, call="cards.create", is_of_one=True)
    run = BulkRun(pipeline, [draft], options, [end.on_progress])
    end.stop = run.stop
    async with AsyncExitStack() as stack:
        stack.callback(end.cancel)
        try:
            await stack.enter_async_context(run)
        except BoardClientError as error:  # its effect is that of the reading
            error.effect, error.repeatable = Effect.NOT_SENT, False
            add_words(error, "the card was not sent")
            raise
        # Without a result it raises why the card was not sent, or the time has ended before it was.
        result = await anext(run, None)
    if result is None:
        raise late(Effect.NOT_SENT)
    if result.card is None:
        assert result.error is not None  # noqa: S101 -- it has one of both
        say_when(result.error, began + options.settle_seconds - asyncio.get_running_loop().time())
        if result.error.effect is Effect.UNKNOWN:
            add_words(result.error, _NO_RECORD)
        raise result.error
    return result.card


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
