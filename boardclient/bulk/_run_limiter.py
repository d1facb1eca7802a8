"""The limiter of a run's attempts.

It combines the hold, the run's pace, the session's limiter and the number of connections.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from boardclient._pace import Limiter, Pace
from boardclient._pipeline._calls import ConnectionSlots, FifoSemaphore
from boardclient._pipeline._guards import GuardedLimiter
from boardclient.bulk._hold import Hold

if TYPE_CHECKING:
    from boardclient.bulk._concurrency import FixedConcurrency

_QUEUED_SECONDS: Final = 0.02
"""Attempts that a shared pace will start within this time wait in its queue, the others in the run's own."""


class RunLimiter:
    """The limiter of a run's requests, in place of the session's. Owned by the run.

    `own` is the limiter of this run, `shared` that of the session. Other calls use the shared one as well, so no more of the
    run's workers wait in its queue than it is about to serve.
    """

    is_reporting = True

    def __init__(self, own: Pace | FixedConcurrency | None, shared: Limiter | None, hold: Hold, slots: ConnectionSlots) -> None:
        self._own = own
        self._shared = None if shared is None else GuardedLimiter(shared)
        self._limiters = (own, shared)
        self._hold = hold
        self._slots = slots
        self._queue = FifoSemaphore(self._most_queued)

    def _most_queued(self) -> int:
        _, shared = self._limiters
        if not isinstance(shared, Pace):
            return 1
        rate = shared.rate
        return shared.workers if rate is None else 1 + int(rate * _QUEUED_SECONDS)

    def must_be_entered(self) -> bool:
        """Return True if an attempt may have to wait here, and must report successes too."""
        if self._shared is not None or self._hold.reason is not None:
            return True
        if self._own is not None and self._own.needs_every_result:
            return True
        return self._slots.wanted > self._slots.number

    @property
    def is_held(self) -> bool:
        """Whether a pace starts no request because the service asked for a pause."""
        return any(getattr(limiter, "held_until", None) is not None for limiter in self._limiters)

    async def __aenter__(self) -> None:
        await self._enter()
        while not self._hold.may_send():  # it began while this attempt waited: release the permit, and wait for the hold first
            await self._leave(None, None, None)
            await self._hold.acquire()
            await self._enter()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(exc_type, exc, traceback)

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to both limiters."""
        if self._own is not None:
            self._own.report(status, retry_after, seconds)
        if self._shared is not None:
            self._shared.report(status, retry_after, seconds)

    async def _enter(self) -> None:
        if self._own is not None:
            await self._own.__aenter__()
        try:
            if self._shared is not None:
                await self._queue.enter()
                try:
                    await self._shared.__aenter__()
                finally:
                    self._queue.leave()
            await self._take_slot()
        except BaseException:
            await self._leave_own(None, None, None)
            raise

    async def _take_slot(self) -> None:
        try:
            await self._slots.enter()
        except BaseException:
            await self._leave_shared(None, None, None)
            raise

    async def _leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slots.leave()
        try:
            await self._leave_shared(exc_type, exc, traceback)
        finally:
            await self._leave_own(exc_type, exc, traceback)

    async def _leave_shared(self, *reason: Any) -> None:
        if self._shared is not None:
            await self._shared.__aexit__(*reason)

    async def _leave_own(self, *reason: Any) -> None:
        if self._own is not None:
            await self._own.__aexit__(*reason)
