"""The rows in doubt: they were sent, and it is unknown whether their cards exist."""

from __future__ import annotations

import asyncio
from typing import Final

from boardclient.bulk._backlog import Backlog
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._recorder import ResultRecorder
from boardclient.bulk._rows import Row
from boardclient.errors import BoardClientError

MOST_SENDS: Final = 5
"""How often a row is sent at most if the effect is unknown each time."""
_MOST_ROWS: Final = 1000
"""The number of rows in doubt at which the board is read before more rows are sent."""
_RESEND_SECONDS: Final = 0.25
"""The pause before a row in doubt is sent a second time with `unknown="resend"`. It doubles each time."""


class Doubts:
    """Treats rows in doubt as the option `unknown` says. Owned by the run."""

    def __init__(self, options: BulkOptions, backlog: Backlog, recorder: ResultRecorder, rows: list[Row]) -> None:
        self.rows = rows
        """The rows that are kept until the board is read."""
        self.open = 0
        """How many of them are still in doubt after it was read."""
        self._added = asyncio.Event()
        self._options = options
        self._backlog = backlog
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()  # requests of earlier runs were sent before now

    @property
    def is_full(self) -> bool:
        """Whether the board must be read before more rows are sent."""
        return len(self.rows) - self.open >= _MOST_ROWS

    @property
    def settle_seconds(self) -> float:
        """The seconds left until every card that was sent must be listed."""
        return max(0.0, self._sent_at + self._options.settle_seconds - self._loop.time())

    async def wait(self) -> None:
        """Wait until rows are in doubt."""
        while not self.rows:
            self._added.clear()
            await self._added.wait()

    def add(self, row: Row, error: BoardClientError) -> None:
        """Report a row as unknown, send it again, or keep it until the board is read."""
        row.error = error
        if self._options.unknown == "resend" and row.sends < MOST_SENDS:
            self._backlog.begin()
            self._backlog.put_later(row, _RESEND_SECONDS * 2**row.sends)
        elif self._options.unknown == "reconcile":
            self.rows.append(row)
            self._added.set()
            if row.sends:
                self._sent_at = row.doubted_at = self._loop.time()
        else:
            self._recorder.settle(row, "unknown", error=error)
