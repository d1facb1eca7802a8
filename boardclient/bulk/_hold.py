"""Hold a run during an outage. One request is tried at a time, and the others wait.

The hold ends with a success, and with an error response that concerns the request itself, such as 404. A request that was not
sent is repeated, so an outage leaves no failed rows. After a time without any success, requests fail as they do without a hold.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from boardclient._statuses import is_throttling
from boardclient.errors import ApiError, BoardClientError, ConsentRequired, DecodeError, Effect, ServerError, TransportError

HoldReason: TypeAlias = Literal["outage", "consent"]

PATIENCE_SECONDS: Final = 300.0
"""How long a read or row may be refused with 429 or remain unsent. A row fails after it only if no other row was accepted."""
_FIRST_PATIENCE_SECONDS: Final = 15.0
"""The same before the first response of the service, whose address may be wrong."""
_UNKNOWN_PATIENCE_SECONDS: Final = 30.0
"""How long failures with an unknown effect hold the run. It is short because each try leaves a row in doubt."""
_UNKNOWN_FAILURES: Final = 5
"""How many consecutive failures with an unknown effect count as an outage."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_CONSENT_PAUSE_SECONDS: Final = 0.25
"""The pause between two attempts to obtain a token. It is short because they send no request."""


class Hold:
    """Decides whether the requests of a run wait, and for what reason. Owned by the run.

    `timeout` is the deadline of a call in seconds, or None. `changed` is called when the reason changes.
    """

    def __init__(self, timeout: float | None, changed: Callable[[], object]) -> None:
        self.reason: HoldReason | None = None
        """Why requests wait, or None if they do not."""
        self.is_disturbed = True
        """Whether `note_success` must be called after the next success."""
        self.accepted_at = -math.inf
        """When the service last accepted a request after it had refused or failed another, on the loop's clock."""
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._first_patience = min(_FIRST_PATIENCE_SECONDS, math.inf if timeout is None else timeout)
        self._has_contact = False
        self._failures = 0
        self._failing_since: float | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._tries: set[asyncio.Task[Any] | None] = set()
        self._is_due = False
        """Whether the next task that asks may try a request."""
        self._timer: asyncio.TimerHandle | None = None
        self._changed_event = asyncio.Event()

    def note_success(self) -> None:
        """Note a success, and end the hold."""
        self.accepted_at = self._loop.time()
        self._note_response()

    def _note_response(self) -> None:
        """Note that the service responded to a request itself, and end the hold."""
        self._has_contact, self.is_disturbed = True, False
        self._failures, self._failing_since, self._pause = 0, None, _FIRST_PAUSE_SECONDS
        self.end()

    def note_failure(self, error: BoardClientError, *, failures: int = _UNKNOWN_FAILURES) -> bool:
        """Note a failure. Return True if the request should be repeated, provided that it is safe to.

        A request that was not sent begins a hold at once, others after `failures` consecutive failures.
        """
        if isinstance(error, ConsentRequired):
            self.is_disturbed = True
            self._begin("consent")
            return True
        if not isinstance(error, TransportError | ServerError):
            if isinstance(error, ApiError | DecodeError):
                self._note_response()
                self.is_disturbed = is_throttling(error)
            return False
        now = self._loop.time()
        self.is_disturbed = True
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience(error):
            self.end()
            return False
        self._failures += 1
        if error.effect is Effect.NOT_SENT or self._failures >= failures:
            self._begin("outage")
        return True

    def _patience(self, error: BoardClientError) -> float:
        if error.effect is not Effect.NOT_SENT:
            return _UNKNOWN_PATIENCE_SECONDS if self._has_contact else 0.0
        return PATIENCE_SECONDS if self._has_contact else self._first_patience

    async def acquire(self) -> None:
        """Wait until the current task may send. During a hold one task may, after each pause."""
        while not self.may_send():
            if self._is_due:
                self._tries.add(asyncio.current_task())
                self._schedule()
            else:
                self._changed_event.clear()
                await self._changed_event.wait()

    def may_send(self) -> bool:
        """Return True if the current task may send without waiting."""
        return self.reason is None or asyncio.current_task() in self._tries

    def release(self) -> None:
        """Note that the current task has ended its request."""
        self._tries.discard(asyncio.current_task())

    def end(self) -> None:
        """End the hold, and let all waiting tasks send."""
        if self.reason is None:
            return
        self.reason = None
        self._tries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._changed_event.set()
        self._changed()

    def _begin(self, reason: HoldReason) -> None:
        """Begin a hold, or change the reason of the current one."""
        if self.reason is None:
            self.reason = reason
            self._schedule()
            self._changed()
        elif self.reason != reason:
            self.reason = reason
            self._changed()

    def _schedule(self) -> None:
        """Let one task try after a pause. In an outage the pause doubles with each try."""
        self._is_due = False
        pause = _CONSENT_PAUSE_SECONDS
        if self.reason == "outage":
            pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._is_due = None, True
        self._changed_event.set()
