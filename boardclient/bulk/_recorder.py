"""Passes each result to the ledger, the tally, the queue and the listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from boardclient.bulk._halt import Halt
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._queue import ResultQueue
from boardclient.bulk._results import ResultState
from boardclient.bulk._rows import Row
from boardclient.bulk._tally import Tally
from boardclient.errors import BoardClientError
from boardclient.events import BulkProgress
from boardclient.models import Card

Listener: TypeAlias = Callable[[BulkProgress], object]


class ResultRecorder:
    """Records the results of rows. Owned by a run."""

    def __init__(self, ledger: Ledger, queue: ResultQueue, tally: Tally, listeners: Sequence[Listener], halt: Halt) -> None:
        self._ledger = ledger
        self._queue = queue
        self._tally = tally
        self._listeners = listeners
        self._halt = halt
        self._announced = tally.waiting_for

    def settle(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, put it into the queue, and notify the listeners."""
        self._ledger.settle(row, state, card, error)
        self._queue.put((row.index, row.draft, card, error, state))
        self._tally.add_result(state)
        if self._listeners:
            self._notify()

    def announce(self) -> None:
        """Notify the listeners if the reason for which the run waits has changed."""
        if self._listeners and self._tally.waiting_for != self._announced:
            self._notify()

    def _notify(self) -> None:
        progress = self._tally.progress
        self._announced = progress.waiting_for
        try:
            for listener in self._listeners:
                listener(progress)
        except asyncio.CancelledError:  # a plain function can't be cancelled, so the function itself raised this
            self._halt.set(RuntimeError("on_progress raised CancelledError"))
        except BaseException as error:  # a faulty listener ends the run and is raised to its owner
            self._halt.set(error)
