"""The counts of a run, from which its report and its progress are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import get_args

from boardclient._statuses import status_of
from boardclient.bulk._results import BulkAudit, BulkReport, ResultState
from boardclient.errors import Attempt, BoardClientError, Effect
from boardclient.events import BulkProgress, WaitReason


class Tally:
    """The counts of a run, which owns them."""

    def __init__(self, total: int | None) -> None:
        self.requests = 0
        """How many requests to create cards were sent."""
        self.audit: BulkAudit | None = None
        self.audit_error: BoardClientError | None = None
        """Why the board could not be read at the end."""
        self.reason: Callable[[], WaitReason | None] | None = None
        """Returns why the run waits. Set while the run is open."""
        self._rejected = 0
        self._total = total
        self._states: dict[ResultState, int] = dict.fromkeys(get_args(ResultState), 0)
        self.begin()

    def begin(self) -> None:
        """Start measuring the time of the run."""
        self._started = self._ended = time.monotonic()

    def add_result(self, state: ResultState) -> None:
        """Count a result."""
        self._states[state] += 1
        self._ended = time.monotonic()

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
    def waiting_for(self) -> WaitReason | None:
        """Why the run waits, or None if it does not."""
        return None if self.reason is None else self.reason()

    @property
    def report(self) -> BulkReport:
        """A summary of the results so far."""
        seconds = self._ended - self._started
        return BulkReport(
            created=self._states["created"],
            already=self._states["already"],
            failed=self._states["failed"],
            unknown=self._states["unknown"],
            seconds=seconds,
            rate=self._states["created"] / seconds if seconds else 0.0,
            requests=self.requests,
            rejected=self._rejected,
            audit=self.audit,
            audit_error=self.audit_error,
        )

    @property
    def progress(self) -> BulkProgress:
        """How far the run is."""
        report = self.report
        return BulkProgress(
            done=sum(self._states.values()),
            created=report.created,
            already=report.already,
            failed=report.failed,
            unknown=report.unknown,
            rate=report.rate,
            seconds=report.seconds,
            total=self._total,
            waiting_for=self.waiting_for,
        )
