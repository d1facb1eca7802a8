"""The reads of a run. They take turns as its cards do, and wait as patiently."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, TypeVar

from boardclient._messages import Request
from boardclient._pipeline._options import CallOptions, CallRunner
from boardclient.bulk._hold import PATIENCE_SECONDS, Hold
from boardclient.bulk._run_limiter import RunLimiter
from boardclient.errors import BoardClientError, RateLimitError

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 10.0


class Reader(Protocol):
    """What a run reads the board with."""

    async def call(self, request: Request[T]) -> T:
        """Make the call, and return the value of its response."""
        ...


class PatientReader:
    """Makes calls that may be repeated without harm. Owned by a run.

    A 429 is waited out as long as for a card, an outage or missing consent as long as the run is held for it.
    """

    def __init__(self, caller: CallRunner, limiter: RunLimiter, hold: Hold) -> None:
        self._caller = caller
        self._limiter = limiter
        self._hold = hold
        self._loop = asyncio.get_running_loop()

    async def call(self, request: Request[T]) -> T:
        """Make the call, and return the value of its response.

        Raises:
            BoardClientError: it failed for a reason that waiting does not mend, or for too long.
        """
        began, pause = self._loop.time(), _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._try(request)
            except RateLimitError as error:
                wait = pause if error.retry_after is None else error.retry_after
                if self._loop.time() + wait - began >= PATIENCE_SECONDS:
                    raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _try(self, request: Request[T]) -> T:
        """Make the call once the run is not held, again and again while it is."""
        while True:
            await self._hold.turn()
            try:
                value = await self._caller.call(request, CallOptions(self._limiter, leaves_throttling=True, waits_count=False))
            except BoardClientError as error:
                if not self._hold.note_failure(error, failures=1):
                    raise
            else:
                self._hold.note_success()
                return value
            finally:
                self._hold.end_turn()
