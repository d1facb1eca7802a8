"""BulkRun, the context manager and result stream that `create_many` returns."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Mapping, Sequence, Sized
from types import TracebackType
from typing import Any, Final, Literal, Self, cast, get_args

from boardclient._base._activities import PARENT, Activity, followers
from boardclient._base._guards import check_notified, wait_to_end
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._engine._engine import Engine
from boardclient.bulk._engine._places import BulkOptions
from boardclient.bulk._engine._source import open_source
from boardclient.bulk._journal._journal_ledger import JournalLedger
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import Row, Unknown
from boardclient.bulk._proof._recognition import Marking
from boardclient.bulk._results import BulkReport, CardResult, Listener, Snapshot, Tally
from boardclient.events import BulkProgress
from boardclient.models import DraftLike, check_identifier, check_seconds, check_yields_rows

_SHORTEST_SETTLE_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 60.0
"""The default of `settle` if calls have no deadline, so that a request may take any time."""
_logger: Final = logging.getLogger("boardclient")
_waits: Final = logging.getLogger("boardclient.runs")
_QUIET_SECONDS: Final = 5.0
"""How long a run waits before the log says so, if no program shows its progress."""


class _QuietWaits:
    """Logs a warning for each wait that lasts. Owned by a run whose progress no listener gets."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._progress: BulkProgress | None = None

    def on_progress(self, progress: BulkProgress) -> None:
        """Note that the run waits, or that it does not."""
        self._progress = progress
        if progress.waiting_for is None and progress.phase != "waiting":
            self.end()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._warn)

    def _warn(self) -> None:
        assert self._progress is not None  # noqa: S101 -- the timer was set with it
        _waits.warning("%s: %s", self._call, self._progress.status)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BulkRun:
    """A bulk creation of cards: a context manager and an iterator of results.

    `create_many` makes it, and its caller owns it (interface 4.3). Use it once, within `async with`, or await `wait()`. Each
    `CardResult` is yielded as soon as its card is done, in the order of completion.

    ```python
    async with session.cards.create_many(drafts, board_id=board.id) as run:
        async for result in run:
            print(result.draft.name, result.state)
    print(run.report.created, "created")
    ```

    Leaving the block cancels the calls in flight, whose rows are unknown then, and closes the input if it is a generator. It also
    closes the journal, so that another run can resume it at once, even if the block was left by a cancellation.

    Refused credentials, a closed session, a journal that can't be written, an input that raises, and an outage that lasts too
    long end the run early. No further card is sent then, those in flight are completed, and the iteration raises the error after
    the last result. While the service accepts nothing, or the user of the account has to sign in, the run waits, and
    `progress.waiting_for` says why.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        drafts: Iterable[DraftLike] | AsyncIterable[DraftLike],
        options: BulkOptions,
        listeners: Sequence[Listener],
    ) -> None:
        if not isinstance(drafts, Iterable | AsyncIterable):
            raise TypeError("drafts must be an iterable or asynchronous iterable of drafts")
        check_yields_rows(drafts, "drafts")
        for listener in listeners:
            check_notified(listener, "on_progress")
        if pipeline.observers is not None:
            listeners = (*listeners, pipeline.observers.notify)
        self._pipeline = pipeline
        self._drafts = drafts
        self._options = options
        self._tally = Tally(len(drafts) if isinstance(drafts, Sized) else None, tuple(listeners))
        self._quiet_waits = _QuietWaits(options.call)
        # With `on_progress` the caller watches already, and a warning would be said twice.
        if not listeners:
            self._tally.watch = self._quiet_waits.on_progress
        self._stage: Literal["new", "open", "left"] = "new"
        self._is_stopped = False
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        """Open the journal, read the board if that is necessary, and start sending.

        Raises:
            JournalError: the journal can't be used. Nothing was sent.
            BoardClientError: the board could not be read. Nothing was sent.
            RuntimeError: the run was entered before.
        """
        if self._stage != "new":
            raise RuntimeError("a BulkRun can be used only once: call create_many again")
        self._stage = "open"
        activity = Activity(kind="run", operation="cards.create_many", instruments=followers(), parent=PARENT.get())
        # One context for all tasks of the run: a context variable can be reset only in the context in which it was set.
        context = contextvars.copy_context()
        self._tally.note = activity.note
        context.run(lambda: PARENT.set(activity.begin()))
        try:
            ledger = await self._open_ledger()
            try:
                source = open_source(self._drafts, Row)
                engine = self._engine = Engine(self._pipeline, source, self._options, ledger=ledger, tally=self._tally)
                # `stop` may be called before the block is entered: then nothing may be sent at all.
                if self._is_stopped:
                    engine.halt()
                conductor = await engine.open(context)
            except BaseException:
                # Also if this task is cancelled: a journal that stays open could not be resumed by this process.
                await wait_to_end(asyncio.create_task(ledger.aclose()))
                raise
        except BaseException as error:
            self._quiet_waits.end()
            context.run(activity.end, error)
            raise
        # Not in the task, which may be cancelled before it begins.
        conductor.add_done_callback(lambda task: self._end(activity), context=context)
        return self

    async def _open_ledger(self) -> Ledger:
        options = self._options
        if options.ledger is not None:
            return options.ledger
        if options.journal is None:
            return Ledger()
        identity = journal_identity(self._pipeline.identity, options.board_id, options.marker)
        total = len(self._drafts) if isinstance(self._drafts, Sized) else None
        return await JournalLedger.open(options.journal, identity, options.commit_size, total)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        engine, self._stage = self._open_engine(), "left"
        await engine.aclose()

    def _end(self, activity: Activity) -> None:
        self._quiet_waits.end()
        activity.counts = self._tally.counts
        activity.end(self._tally.error)
        if self._tally.problems and not self._options.is_of_one:
            _logger.warning("%s: %s", self._options.call, self.report.problem_summary)

    def stop(self) -> None:
        """Stop sending. Requests in flight are completed, then the iteration ends. A journal can be resumed.

        Cards that wait for the limiter, for the end of a pause or for a connection are not sent. Call it at any time, from the
        thread of the run's event loop.
        """
        self._is_stopped = True
        if self._engine is not None:
            self._engine.halt()

    def __aiter__(self) -> AsyncIterator[CardResult]:
        return self

    async def __anext__(self) -> CardResult:
        # Without another call where a result is there: this runs for each row.
        engine = self._engine
        if engine is None or self._stage != "open":
            engine = self._open_engine()
        results = engine.results
        if results.untaken or await self._wait_for_result():
            return results.take()
        raise StopAsyncIteration

    async def wait(self) -> BulkReport:
        """Run to the end, discard the results, and return the report.

        Without an `async with` block, it opens the run and closes it afterwards. `report.problems` has the results that failed or
        are unknown.

        Raises:
            BoardClientError: the run could not begin, or ended early.
            Exception: any error that the input, a marker, a limiter or `on_progress` raises.
            RuntimeError: the block was left.
        """
        if self._stage == "new":
            async with self:
                return await self.wait()
        while await self._wait_for_result():
            self._open_engine().results.discard_all()
        return self.report

    def __await__(self) -> Generator[Any, None, BulkReport]:
        """Run to the end, and return the report, as `wait` does."""
        return self.wait().__await__()

    def __del__(self) -> None:
        # The attribute is missing where `__init__` has refused its arguments.
        if getattr(self, "_stage", "") == "new" and not self._is_stopped:
            warnings.warn(
                "a BulkRun was never started, so no card was sent: use `async with`, or await it",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def take_ready(self) -> list[CardResult]:
        """Return the results that are ready, without waiting. It can also be called after the block."""
        return [] if self._engine is None else self._engine.results.take_all()

    async def _wait_for_result(self) -> bool:
        """Wait for a result and return True, or at the end return False or raise the error that ended the run early."""
        if await self._open_engine().results.wait():
            return True
        self._open_engine()  # it raises if the block was left meanwhile
        if self._tally.error is not None:
            raise self._tally.error
        return False

    def _open_engine(self) -> Engine:
        if self._engine is None or self._stage != "open":
            raise RuntimeError("use a BulkRun within its `async with` block, or await its wait() without one")
        return self._engine

    @property
    def report(self) -> BulkReport:
        """A summary of the results so far."""
        return self._tally.report

    @property
    def progress(self) -> BulkProgress:
        """How far the run is, and why it waits, if it does."""
        return self._tally.progress(Snapshot() if self._engine is None else self._engine.snapshot)

    @property
    def ended_waiting(self) -> BulkProgress | None:
        """What the run waited for when `patience` ended it. None if that has not ended it."""
        return self._tally.ended_waiting

    def __repr__(self) -> str:
        progress = self.progress
        state = progress.status if self._stage == "open" else self._stage
        of = "" if progress.total is None else f" of {progress.total}"
        problems = "".join(
            f", {number} {name}" for name, number in (("failed", progress.failed), ("unknown", progress.unknown)) if number
        )
        return f"<BulkRun {state}, {progress.done}{of} done{problems}>"


# --- options


def make_options(
    pipeline: Pipeline,
    *,
    concurrency: int | None,
    journal: str | os.PathLike[str] | None,
    board_id: str | None,
    unknown: str | None,
    marker: Marking,
    settle: float | None,
    probe: bool = True,
    ordered: bool = False,
    patience: float | None = None,
    waits_for_consent: bool = True,
) -> BulkOptions:
    """Check the arguments of `create_many`, and fill in the defaults.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a value that is not allowed.
    """
    check_count(concurrency, "concurrency")
    if board_id is not None:
        check_identifier(board_id, "board_id")
    if journal is not None and not isinstance(journal, str | os.PathLike):
        raise TypeError(f"journal must be a path, not {type(journal).__name__}")
    if marker not in (None, True, False):
        if not callable(marker):
            raise TypeError("marker must be True, None or a function of a draft")
        check_notified(marker, "marker")
    settle_seconds = settle_seconds_of(pipeline, settle)
    if not isinstance(probe, bool):
        raise TypeError(f"probe must be True or False, not {type(probe).__name__}")
    if not isinstance(ordered, bool):
        raise TypeError(f"ordered must be True or False, not {type(ordered).__name__}")
    check_patience(patience)
    decided = _unknown(unknown, board_id)
    return BulkOptions(
        concurrency=concurrency,
        journal=journal,
        board_id=board_id,
        unknown=decided,
        marker=_marking(marker),
        settle_seconds=settle_seconds,
        probe=probe,
        ordered=ordered,
        patience=patience,
        workers=min(concurrency or pipeline.max_connections, pipeline.max_connections),  # no more can be sent at a time
        waits_for_consent=waits_for_consent,
    )


def check_count(count: int | None, name: str) -> None:
    """Check a number of calls, workers or parts. Errors call it `name`.

    Raises:
        ValueError: it is not a whole number of at least 1, or None.
    """
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise ValueError(f"{name} must be a whole number of at least 1, or None")


def check_patience(patience: float | None) -> None:
    """Check how long a run may wait.

    Raises:
        ValueError: it is not a number of seconds, at least 0, or None.
    """
    if patience is not None and not 0 <= check_seconds(patience, "patience") < math.inf:
        raise ValueError("patience must be a number of seconds, at least 0, or None")


def settle_seconds_of(pipeline: Pipeline, settle: float | None) -> float:
    """Check `settle`, and return it or its default."""
    check_settle(settle)
    if settle is None:
        settle = pipeline.parts.settle_seconds
    if settle is not None:
        return settle
    return _SETTLE_SECONDS if pipeline.timeout is None else max(_SHORTEST_SETTLE_SECONDS, 2 * pipeline.timeout)


def check_settle(settle: float | None) -> None:
    """Check how long a service may take to commit a request.

    Raises:
        ValueError: it is not a number of seconds, at least 0, or None.
    """
    if settle is not None and not (isinstance(settle, int | float) and 0 <= check_seconds(settle, "settle") < math.inf):
        raise ValueError("settle must be a number of seconds, at least 0, or None")


def _marking(marker: Marking) -> Marking:
    """Wrap a callable, so that `if marker` holds even if its bool() is False."""
    return (lambda draft: marker(draft)) if callable(marker) else marker


def _unknown(unknown: str | None, board_id: str | None) -> Unknown:
    if unknown is None:
        return "report" if board_id is None else "reconcile"
    if unknown == "reconcile" and board_id is None:
        raise ValueError('unknown="reconcile" needs board_id: the board is read to see which cards exist')
    if unknown not in get_args(Unknown):
        raise ValueError('unknown must be "reconcile", "report", "resend" or None')
    return cast("Unknown", unknown)


def journal_identity(account: Mapping[str, str], board_id: str | None, marker: Marking) -> dict[str, str]:
    """Return what a journal is bound to, as names and texts.

    It is the service and the account, which `account` names, the board, and the way in which cards are recognised. A journal that
    was made for another identity is refused.
    """
    board = {} if board_id is None else {"board": board_id}
    return {**account, **board, "cards known by": "their marker" if marker else "what they say"}
