"""The events that observers receive: frozen values without credentials. No I/O.

An observer is a function of one event. It is called in the task of the call, in the order of the events, and should return
soon. Its exceptions are logged under `boardclient`, and do not change the result of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

import attrs

from boardclient.errors import Effect


# Events have no slots: it takes half the time to make one. Of the bases none is made, so they get no equality or repr: generating
# them takes half a millisecond a class.
@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class _CallEvent:
    """An event of a call.

    Attributes:
        operation: The name of the operation, such as "cards.create".
        call_id: The identifier of the call, the same in all its events, in logs and in its error.
        account: The account of the credentials, None if they have none.
    """

    operation: str
    call_id: str = attrs.field(default="", eq=False)
    account: str | None = None


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class _AttemptEvent(_CallEvent):
    """An event of an attempt.

    Attributes:
        method: The HTTP method.
        path: The path, without the query.
        attempt: The number of the attempt within the call, from 1.
    """

    method: str
    path: str
    attempt: int


@attrs.frozen(kw_only=True, slots=False)
class RequestSent(_AttemptEvent):
    """Report that a request is about to be sent."""


@attrs.frozen(kw_only=True, slots=False)
class ResponseReceived(_AttemptEvent):
    """Report how an attempt ended.

    Attributes:
        status: The HTTP status, None if no complete response arrived.
        seconds: How long the attempt took.
        effect: What the attempt may have done.
        why: Its outcome in words.
        headers: The first 64 KiB of the headers of the response, with `***` in place of credentials.
    """

    status: int | None
    seconds: float
    effect: Effect
    why: str
    headers: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)


@attrs.frozen(kw_only=True, slots=False)
class RetryScheduled(_AttemptEvent):
    """Report that the retry policy repeats a call after a pause.

    Attributes:
        pause_seconds: How long the pause is.
        why: How the attempt failed, in words.
    """

    pause_seconds: float
    why: str


@attrs.frozen(kw_only=True, slots=False)
class CredentialsRenewed(_CallEvent):
    """Report that new credentials replace those which the service refused with 401."""


WaitReason: TypeAlias = Literal["outage", "consent", "retry-after", "refusals", "settling"]
"""What a bulk run waits for.

"outage": no request gets through. "consent": the account's user has to sign in. "retry-after": the service asked for a pause.
"refusals": it refuses more requests (429) and does not say for how long, so that the pace makes pauses.
"settling": requests of unknown effect may still be carried out. The board is read once that is no longer possible.
"""


BulkPhase: TypeAlias = Literal["reading the board", "creating", "waiting"]
"""What a bulk run does: read its board, create cards, or wait until the board is read, for rows in doubt or again."""


@attrs.frozen(kw_only=True)
class BulkProgress:
    """Report how far a bulk run is.

    ```python
    def show(progress: BulkProgress) -> None:
        print(progress.status, progress.done, "of", progress.total)


    await session.cards.create_many(drafts, board_id=board.id, on_progress=show)
    ```

    Attributes:
        done: The number of rows that have a result.
        created: The number of cards that this run has created.
        already: The number of rows whose cards an earlier run of the journal has created.
        failed: The number of rows that failed.
        unknown: The number of rows whose cards may exist.
        rate: Created cards per second since the start.
        seconds: Seconds since the start.
        total: The number of rows, None if the input has no length.
        waiting_for: What holds the run up, None if nothing does. It may still send: one request at a time in an outage.
        phase: What the run does.
        wait_ends_at: When the phase "waiting" ends, or the pause that the service asked for, otherwise None.
        in_doubt: The number of rows whose requests were sent without a usable response. They have no result yet.
        in_flight: The number of requests that are under way.
        requests: The number of requests that were sent to create cards, with those in flight and repeated ones.
    """

    done: int
    created: int
    already: int = 0
    failed: int
    unknown: int
    rate: float
    seconds: float
    total: int | None = None
    waiting_for: WaitReason | None = None
    phase: BulkPhase = "creating"
    wait_ends_at: datetime | None = None
    in_doubt: int = 0
    in_flight: int = 0
    requests: int = 0

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate the seconds that remain. None if the total or the rate is not known."""
        # Before the first card nothing says how fast the run is, and zero would promise that it is over.
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate

    @property
    def status(self) -> str:
        """What the run does, in words.

        Such as "waiting until 12:00:07 for 3 rows in doubt". The time is local.
        """
        if self.waiting_for in _WAITS:
            return _WAITS[self.waiting_for]
        rows = f"{'1 row' if self.in_doubt == 1 else f'{self.in_doubt:,} rows'} in doubt"
        what = f"for {rows if self.in_doubt else 'cards that are not listed yet'}"
        if self.wait_ends_at is None:
            return f"waiting {what}" if self.phase == "waiting" else self.phase
        # Local, since a person compares it with the clock on the wall.
        until = f"waiting until {self.wait_ends_at.astimezone():%H:%M:%S}"
        return f"{until}{_PAUSES[self.waiting_for]}" if self.waiting_for in _PAUSES else f"{until} {what}"


_WAITS: Final[Mapping[WaitReason | None, str]] = {
    "outage": "waiting for the service, one request is tried at a time",
    "consent": "waiting for the user of the account to sign in",
}

_PAUSES: Final[Mapping[WaitReason | None, str]] = {
    "retry-after": ", as the service asks",
    "refusals": ", since the service refuses more requests",
}


Event: TypeAlias = RequestSent | ResponseReceived | RetryScheduled | CredentialsRenewed | BulkProgress
Observer: TypeAlias = Callable[[Event], object]
