"""A call of a tool under way: its task, and what it waits for."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import datetime

import attrs

from boardclient.events import BulkProgress, Event
from boardclient.integrations.mcp._results import Result

_CALL: ContextVar[Call | None] = ContextVar("boardclient call of a tool", default=None)


@attrs.define(eq=False)
class Call:
    """A call of a tool. Owned by the server until its task is done.

    Attributes:
        task: Makes the result.
    """

    task: asyncio.Task[Result] = attrs.field(init=False)
    _progress: BulkProgress | None = None

    def follow(self) -> None:
        """Note what the current task, and those that it starts, do."""
        _CALL.set(self)

    @property
    def words(self) -> str:
        """What the call does."""
        return "waiting for the service" if self._progress is None else self._progress.status

    @property
    def ends_at(self) -> datetime | None:
        """When what it waits for is over, None if that is not known."""
        return None if self._progress is None else self._progress.wait_ends_at


def note_event(event: Event) -> None:
    """Note an event of a session for the call that has caused it."""
    call = _CALL.get()
    if call is not None and isinstance(event, BulkProgress):
        call._progress = event
