"""BulkRun: a bulk creation as its owner sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Sized
from types import TracebackType
from typing import Literal, Self

from boardclient._pipeline._options import CallRunner
from boardclient.bulk._halt import Halt
from boardclient.bulk._input import Drafts
from boardclient.bulk._open_run import OpenRun
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._recorder import Listener
from boardclient.bulk._results import BulkReport, CardResult
from boardclient.bulk._tally import Tally
from boardclient.events import BulkProgress


class BulkRun:
    """A bulk creation, as a context manager and a stream of results. Each `CardResult` comes when its card is done.

    Leaving the block cancels what is in flight and closes the input, where that is a generator. A journal stays resumable, and
    can be used by another run as soon as the block is left, also by a cancellation. Refused credentials, a closed session, a
    journal that can't be written and a faulty input end the run: no further card is sent, those in flight come to their end,
    and the error is raised from the iteration after the last result. While the service can't be reached, or the account's user
    has to sign in, the run waits; `progress.waiting_for` says so.

    Owned by the caller of `create_many` (contract of interface 4.3).
    """

    def __init__(self, caller: CallRunner, drafts: Drafts, options: BulkOptions, listeners: Sequence[Listener]) -> None:
        if not all(map(callable, listeners)):
            raise TypeError("on_progress must be callable")
        self._caller = caller
        self._drafts = drafts
        self._options = options
        self._listeners = tuple(listeners)
        self._tally = Tally(len(drafts) if isinstance(drafts, Sized) else None)
        self._halt = Halt()
        self._life: Literal["new", "open", "left"] = "new"
        self._open: OpenRun | None = None

    async def __aenter__(self) -> Self:
        """Open the journal, read what stands on the board, and begin.

        Raises:
            JournalError: the journal can't be used.
            BoardClientError: the board could not be read.
            RuntimeError: the run was entered before.
        """
        if self._life != "new":
            raise RuntimeError("a BulkRun runs once")
        self._life = "open"
        self._open = await OpenRun.open(
            self._caller, self._drafts, self._options, self._listeners, tally=self._tally, halt=self._halt
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run, self._life = self._running(), "left"
        await run.aclose()

    def stop(self) -> None:
        """Send no further card. Those in flight end, then the iteration does. A journal stays resumable.

        What waits for its turn, for the end of a pause or for a connection is not sent. Callable at any time, from the run's
        event loop.
        """
        self._halt.set()

    def __aiter__(self) -> AsyncIterator[CardResult]:
        return self

    async def __anext__(self) -> CardResult:
        results = self._running().results
        if results.untaken or await self._more():
            return results.take()
        raise StopAsyncIteration

    async def wait(self) -> BulkReport:
        """Run to the end without looking at the results, and return the report.

        Outside an `async with` block it opens the run and closes it afterwards.

        Raises:
            BoardClientError: the run could not begin, or ended early.
        """
        if self._life == "new":
            async with self:
                return await self.wait()
        while await self._more():
            self._running().results.take_all()
        return self.report

    def take_ready(self) -> list[CardResult]:
        """Return the results that wait to be taken, without waiting. Also after the block."""
        return [] if self._open is None else self._open.results.take_all()

    async def _more(self) -> bool:
        """Wait for a result and return True. At the end return False, or raise what ended the run early."""
        if await self._running().results.wait():
            return True
        self._running()
        if self._halt.error is not None:
            raise self._halt.error
        return False

    def _running(self) -> OpenRun:
        if self._open is None or self._life != "open":
            raise RuntimeError("a BulkRun is used within its `async with` block")
        return self._open

    @property
    def report(self) -> BulkReport:
        """The sum of the results so far."""
        return self._tally.report

    @property
    def progress(self) -> BulkProgress:
        """How far the run is, and what it waits for."""
        return self._tally.progress
