"""The second phase of a run: the rows in doubt are settled, or sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from boardclient.bulk._backlog import Backlog
from boardclient.bulk._doubts import MOST_SENDS, Doubts
from boardclient.bulk._input import Input
from boardclient.bulk._reconciler import Reconciler, RowFinding
from boardclient.bulk._recorder import ResultRecorder
from boardclient.bulk._rows import Row
from boardclient.errors import BoardClientError, Effect

_NOT_GROWN: Final = (
    "it is not listed, but no later, longer listing has proven that listing complete: with a journal, the next run knows"
    " once any other card is on the board"
)


class Settling:
    """Settles the rows in doubt by what the board shows. Owned by the run."""

    def __init__(self, source: Input, backlog: Backlog, doubts: Doubts, reconciler: Reconciler, recorder: ResultRecorder) -> None:
        self.is_under_way = False
        """Whether the board is being read, or will be once all cards that were sent must be listed."""
        self._source = source
        self._backlog = backlog
        self._doubts = doubts
        self._reconciler = reconciler
        self._recorder = recorder

    async def run(self) -> None:
        """Read the board once every card that was sent must be listed. Settle the rows in doubt, or send them again."""
        rows = list(self._doubts.rows)
        self.is_under_way = True
        self._recorder.announce()
        try:
            await asyncio.sleep(self._doubts.settle_seconds)
            findings = await self._reconciler.settle(rows)
        finally:
            self.is_under_way = False
        self._doubts.rows.clear()
        absent = self._settle(findings)
        self._doubts.open = len(self._doubts.rows)
        await self._send_next(absent)
        self._recorder.announce()

    def _settle(self, findings: Sequence[RowFinding]) -> list[Row]:
        """Settle rows, or keep them in doubt. Return those that are absent and may be sent again."""
        absent: list[Row] = []
        for row, card, error, is_open in findings:
            if is_open:
                self._doubts.rows.append(row)
            elif card is not None:
                self._recorder.settle(row, "already" if row.is_earlier else "created", card)
            elif error is not None:
                self._recorder.settle(row, "unknown", error=error)
            elif row.sends >= MOST_SENDS:
                why = f"sent {row.sends} times, and not on the board: {row.error}"
                self._recorder.settle(row, "failed", error=BoardClientError(why, Effect.REJECTED))
            else:
                row.is_earlier, row.error = False, None
                absent.append(row)
        return absent

    async def _send_next(self, absent: list[Row]) -> None:
        """Send the rows that are absent, or another one.

        The card of the latter shows whether those in doubt are absent.
        """
        is_over = self._backlog.is_exhausted or self._source.was_interrupted
        if not self._doubts.rows:
            absent += self._backlog.take_kept()
            if self._backlog.is_exhausted and len(absent) > 1:
                self._backlog.keep(absent.pop())  # others may be lost again
        elif is_over and not absent:
            absent = self._backlog.take_kept() or self._give_up()
        self._backlog.send(absent)

    def _give_up(self) -> list[Row]:
        """Record that the rows in doubt are unknown, since no card can prove more."""
        for row, _, error, _ in self._reconciler.give_up(self._doubts.rows, _NOT_GROWN):
            self._recorder.settle(row, "unknown", error=error)
        self._doubts.rows.clear()
        return []
