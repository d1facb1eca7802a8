"""What a run tells: its results, its report and its progress."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias, get_args

from boardclient._statuses import status_of
from boardclient.bulk._results import BulkAudit, BulkReport, CardResult, ResultState, ResultValues, make_result
from boardclient.errors import Attempt, BoardClientError, Effect
from boardclient.events import BulkPhase, BulkProgress, WaitReason

Listener: TypeAlias = Callable[[BulkProgress], object]

_MOST_PROBLEMS: Final = 1000


class Results:
    """Results in the order of completion. Any number of tasks may take them.

    Owned by a run, which closes the queue after the last result. `taken` is called when results were taken.
    """

    def __init__(self, taken: Callable[[], object]) -> None:
        self.untaken: deque[ResultValues] = deque()
        self._taken = taken
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, result: ResultValues) -> None:
        """Add a result."""
        if not self.untaken:
            self._changed.set()
        self.untaken.append(result)

    def close(self) -> None:
        """Close the queue: after the last result `wait` returns False."""
        self._is_closed = True
        self._changed.set()

    async def wait(self) -> bool:
        """Wait for a result and return True, or return False if no more will come."""
        while not self.untaken:
            if self._is_closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def take(self) -> CardResult:
        """Remove and return the oldest result. The queue must not be empty."""
        values = self.untaken.popleft()
        self._taken()
        return make_result(*values)

    def take_all(self) -> list[CardResult]:
        """Remove and return all results."""
        results = [make_result(*values) for values in self.untaken]
        self.discard_all()
        return results

    def discard_all(self) -> None:
        """Remove all results."""
        self.untaken.clear()
        self._taken()


class SeenIds:
    """Identifiers that were seen, for millions of them: it keeps hashes in an open table, 12 to 24 bytes each."""

    def __init__(self) -> None:
        self._table = array("q", bytes(8 * 64))
        self._number = 0

    def add(self, identifier: str) -> bool:
        """Add an identifier. Return False if it was seen before."""
        table = self._table
        if not _place(table, hash(identifier) or 1):
            return False
        self._number += 1
        if 3 * self._number > 2 * len(table):
            self._table = array("q", bytes(2 * table.itemsize * len(table)))
            for seen in table:
                if seen:
                    _place(self._table, seen)
        return True


def _place(table: array[int], value: int) -> bool:
    """Put a number other than 0 into an open table. Return False if it is there already."""
    mask = len(table) - 1
    place = value & mask
    while (found := table[place]) != value:
        if not found:
            table[place] = value
            return True
        place = (place + 1) & mask
    return False


class Engine(Protocol):
    """What the progress of a run asks of its engine."""

    in_flight: int
    phase: BulkPhase
    wait_ends_at: datetime | None

    @property
    def in_doubt(self) -> int:
        """The number of rows in doubt."""
        ...

    @property
    def waiting_for(self) -> WaitReason | None:
        """What the run waits for, or None."""
        ...


class Tally:
    """The counts of a run, which owns them, from which its report and its progress are made."""

    def __init__(self, total: int | None) -> None:
        self.requests = 0
        """How many requests to create cards were sent."""
        self.audit: BulkAudit | None = None
        self.audit_error: BoardClientError | None = None
        """Why the board could not be read at the end."""
        self.problems: list[CardResult] = []
        """The first results that are failed or unknown."""
        self._rejected = 0
        self._total = total
        self._states: dict[ResultState, int] = dict.fromkeys(get_args(ResultState), 0)
        self.begin()

    def begin(self) -> None:
        """Start measuring the time of the run."""
        self._started = self._ended = time.monotonic()

    def add_result(self, values: ResultValues) -> None:
        """Count a result."""
        state = values[4]
        self._states[state] += 1
        self._ended = time.monotonic()
        if values[3] is not None and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(make_result(*values))

    def add_attempts(self, attempts: Iterable[Attempt]) -> None:
        """Count the attempts that were sent."""
        for attempt in attempts:
            self.requests += attempt.effect is not Effect.NOT_SENT
            self._rejected += attempt.status is not None and status_of(attempt.status).is_throttling

    @property
    def counts(self) -> dict[str, int]:
        """The number of results for each state."""
        return {str(state): number for state, number in self._states.items() if number}

    @property
    def report(self) -> BulkReport:
        """A summary of the results so far."""
        seconds = self._ended - self._started
        return BulkReport(
            **self._states,
            seconds=seconds,
            rate=self._states["created"] / seconds if seconds else 0.0,
            requests=self.requests,
            rejected=self._rejected,
            problems=tuple(self.problems),
            audit=self.audit,
            audit_error=self.audit_error,
        )

    def progress(self, engine: Engine | None) -> BulkProgress:
        """How far the run is. `engine` is None before it is opened."""
        seconds, states, in_flight = self._ended - self._started, self._states, 0 if engine is None else engine.in_flight
        return BulkProgress(
            done=sum(states.values()),
            created=states["created"],
            already=states["already"],
            failed=states["failed"],
            unknown=states["unknown"],
            rate=states["created"] / seconds if seconds else 0.0,
            seconds=seconds,
            total=self._total,
            requests=self.requests + in_flight,
            in_flight=in_flight,
            in_doubt=0 if engine is None else engine.in_doubt,
            phase="creating" if engine is None else engine.phase,
            waiting_for=None if engine is None else engine.waiting_for,
            wait_ends_at=None if engine is None else engine.wait_ends_at,
        )


def moment_in(seconds: float) -> datetime:
    """Return the date-time in so many seconds."""
    return datetime.fromtimestamp(time.time() + seconds, UTC)
