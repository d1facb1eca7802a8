"""How long a run may wait for others: its option `patience`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from boardclient.bulk._concurrency import Hold
from boardclient.bulk._results import Snapshot, Tally

_LOOK_SECONDS: Final = 0.5
"""How often it is looked what the run waits for, at least. Nothing tells that other runs have got a shared pace to pause."""
_SHORTEST_SECONDS: Final = 0.01


class Patience:
    """Ends a run that waits for longer than `seconds` in a row. Owned by the engine, and the only bound that a caller sets.

    A run waits for a service that accepts nothing, a pause that the service asks for, or a user. The wait ends once a request is
    accepted, not when one is tried. A run whose rows in doubt settle waits for nobody.
    """

    def __init__(
        self, seconds: float, hold: Hold, tally: Tally, snapshot: Callable[[], Snapshot], end: Callable[[], object]
    ) -> None:
        self._seconds, self._hold, self._tally, self._snapshot, self._end = seconds, hold, tally, snapshot, end
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        """Since when, on the loop's clock, the run has waited while nothing was accepted."""
        self._accepted: object = None
        """What changes when a request is accepted."""
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """End the run if it has waited for too long, or would have by the end of the pause. Otherwise look again soon."""
        self.stop()
        now, snapshot, phase = self._loop.time(), self._snapshot(), self._tally.phase
        is_waiting = snapshot.waiting_for not in {None, "settling"} and phase != "waiting"
        is_idle = snapshot.is_quiet and phase != "reading the board"  # there is nothing to send, nor to read
        accepted = self._hold.accepted_at, self._tally.counts.get("created")
        if accepted != self._accepted or phase == "waiting" or (is_idle and not is_waiting):
            self._accepted, self._since = accepted, None
        rest = self._seconds
        if is_waiting:
            self._since = now if self._since is None else self._since
            rest -= now - self._since
            pause = snapshot.held_seconds if snapshot.waiting_for in {"retry-after", "refusals"} else None
            if rest <= 0 or (pause or 0.0) > rest:
                self._end()
                return
        self._timer = self._loop.call_later(max(_SHORTEST_SECONDS, min(_LOOK_SECONDS, rest)), self.look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
