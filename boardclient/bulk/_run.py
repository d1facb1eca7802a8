"""BulkRun, the context manager and result stream that `create_many` returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Sized
from types import TracebackType
from typing import Literal, Self

from boardclient._pipeline._calls import CallRunner
from boardclient.bulk._halt import Halt
from boardclient.bulk._input import Drafts
from boardclient.bulk._open_run import OpenRun
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._recorder import Listener
from boardclient.bulk._results import BulkReport, CardResult
from boardclient.bulk._tally import Tally
from boardclient.events import BulkProgress


class BulkRun:
    """A bulk creation of cards: a context manager and an iterator of results.

    `create_many` makes it, and its caller owns it (interface 4.3). Use it once, within `async with`, or await `wait()`. Each
    `CardResult` is yielded as soon as its card is done, in the order of completion.

    Leaving the block cancels the calls in flight and closes the input if it is a generator. It also closes the journal, so that
    another run can resume it at once, even if the block was left by a cancellation.

    Refused credentials, a closed session, a journal that can't be written and an input that raises end the run early. No further
    card is sent then, those in flight are completed, and the iteration raises the error after the last result. While the service
    can't be reached, or the user of the account has to sign in, the run waits, and `progress.waiting_for` says why.
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
        """Open the journal, read the board if that is necessary, and start sending.

        Raises:
            JournalError: the journal can't be used. Nothing was sent.
            BoardClientError: the board could not be read. Nothing was sent.
            RuntimeError: the run was entered before.
        """
        if self._life != "new":
            raise RuntimeError("a BulkRun can be used only once: call create_many again")
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
        """Stop sending. Requests in flight are completed, then the iteration ends. A journal can be resumed.

        Cards that wait for the limiter, for the end of a pause or for a connection are not sent. Call it at any time, from the
        thread of the run's event loop.
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
        """Run to the end, discard the results, and return the report.

        Without an `async with` block, it opens the run and closes it afterwards.

        Raises:
            BoardClientError: the run could not begin, or ended early.
            Exception: any error that the input, a marker, a limiter or `on_progress` raises.
            RuntimeError: the block was left.
        """
        if self._life == "new":
            async with self:
                return await self.wait()
        while await self._more():
            self._running().results.discard_all()
        return self.report

    def take_ready(self) -> list[CardResult]:
        """Return the results that are ready, without waiting. It can also be called after the block."""
        return [] if self._open is None else self._open.results.take_all()

    async def _more(self) -> bool:
        """Wait for a result and return True. At the end, return False or raise the error that ended the run early."""
        if await self._running().results.wait():
            return True
        self._running()
        if self._halt.error is not None:
            raise self._halt.error
        return False

    def _running(self) -> OpenRun:
        if self._open is None or self._life != "open":
            raise RuntimeError("use a BulkRun within its `async with` block, or await its wait() without one")
        return self._open

    @property
    def report(self) -> BulkReport:
        """A summary of the results so far."""
        return self._tally.report

    @property
    def progress(self) -> BulkProgress:
        """How far the run is, and why it waits, if it does."""
        return self._tally.progress
