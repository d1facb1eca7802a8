"""The reads of a run. They use the run's limiter, and wait out refusals and outages as its cards do."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, TypeVar

from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions, CallRunner
from boardclient.bulk._hold import PATIENCE_SECONDS, Hold
from boardclient.bulk._run_limiter import RunLimiter
from boardclient.errors import BoardClientError, DecodeError, RateLimitError

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 10.0
_MOST_UNREADABLE: Final = 2


class Reader(Protocol):
    """Reads the board for a run."""

    async def call(self, request: Request[T]) -> T:
        """Make the call and return its value."""
        ...


class PatientReader:
    """Makes calls that are safe to repeat. Owned by a run.

    A call that is refused with 429 is repeated for as long as a card is. During a hold, calls wait as cards do. After the
    first read, one whose response is not as documented, such as the page of a proxy, is repeated twice.
    """

    def __init__(self, caller: CallRunner, limiter: RunLimiter, hold: Hold) -> None:
        self._caller = caller
        self._limiter = limiter
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._has_read = False

    async def call(self, request: Request[T]) -> T:
        """Make the call and return its value.

        Raises:
            BoardClientError: the call failed for a reason that waiting does not cure, or for too long.
        """
        began, pause, unreadable = self._loop.time(), _FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                return await self._try(request)
            except RateLimitError as error:
                wait = pause if error.retry_after is None else error.retry_after
                if self._loop.time() + wait - began >= PATIENCE_SECONDS:
                    raise
            except DecodeError:
                wait, unreadable = pause, unreadable + 1
                if unreadable > _MOST_UNREADABLE or not self._has_read:
                    raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _try(self, request: Request[T]) -> T:
        """Make the call, and repeat it as long as the run is held for it."""
        while True:
            await self._hold.acquire()
            try:
                value = await self._caller.call(request, CallOptions(self._limiter, leaves_throttling=True, waits_count=False))
            except BoardClientError as error:
                if not self._hold.note_failure(error, failures=1):
                    raise
            else:
                self._hold.note_success()
                self._has_read = True
                return value
            finally:
                self._hold.release()
