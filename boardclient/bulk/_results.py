"""What a run tells: its results, its report and its progress."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import attrs

from boardclient._interface._responses import moment_in, status_of
from boardclient.errors import Attempt, BoardClientError, Effect
from boardclient.events import BulkPhase, BulkProgress, WaitReason
from boardclient.models import Card, CardDraft, html_table

ResultState: TypeAlias = Literal["created", "already", "failed", "unknown"]

Listener: TypeAlias = Callable[[BulkProgress], object]

_SHOWN_PROBLEMS: Final = 3
_PROBLEMS_IN_TABLE: Final = 20
MOST_PROBLEMS: Final = 1000
"""How many rows a report names at most."""


@attrs.frozen
class CardResult:
    """The result of one draft (interface 4.3).

    ```python
    async with session.cards.create_many(drafts, board_id=board.id) as run:
        async for result in run:
            print(result.draft.name, result.state, result.card or result.error)
    ```

    Attributes:
        index: The position of the draft in the input, from 0.
        draft: The draft, as the input gave it.
        card: The card, if `state` is "created" or "already". Of a card that a journal knows, only the id is set.
        error: Why the card failed or is unknown, otherwise None.
        state: "created"; "already", if an earlier run with the same journal created it; "failed", if no card was created; or
            "unknown", if a card may exist.
    """

    index: int
    draft: CardDraft
    card: Card | None = None
    error: BoardClientError | None = None
    state: ResultState = "created"


Values: TypeAlias = tuple[int, CardDraft, Card | None, BoardClientError | None, ResultState]
"""The values of a result, which is made when it is taken: most runs discard theirs."""


@attrs.frozen(kw_only=True)
class BulkAudit:
    """What the board showed when it was read at the end of a run (interface 4.4).

    Each tuple names at most 1,000 cards or drafts.

    Attributes:
        confirmed: The number of listed cards that are known to belong to rows.
        recovered: The number of rows, in doubt or refused, whose cards were found on the board.
        lost: The number of confirmed cards of rows in the input that are deleted.
        hidden: The number of confirmed cards that exist, or may, and are not listed. The listing is incomplete.
        reused: The number of rows whose card is another row's, or a temporary one, by its identifier. They may have no other.
        duplicated: Second cards of rows: they show the marker of a row that has a card, or equal what was sent for it. A card of
            others that equals a row is among them. Markers tell it apart.
        unexpected: Other cards that belong to no known row and did not exist before the run. Those of others are no fault.
        resembling: Those of `duplicated` and `unexpected` that may belong to rows that are unknown, whose errors name them.
        unproven: The drafts of the rows that stayed unknown.
        lost_cards: The lost cards, of which only the id is known.
    """

    confirmed: int = 0
    recovered: int = 0
    lost: int = 0
    hidden: int = 0
    reused: int = 0
    duplicated: tuple[Card, ...] = ()
    unexpected: tuple[Card, ...] = ()
    resembling: tuple[Card, ...] = ()
    unproven: tuple[CardDraft, ...] = ()
    lost_cards: tuple[Card, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether a row has lost its card, has none of its own, or has a second one."""
        return bool(self.lost or self.reused or self.duplicated)

    @property
    def is_sound(self) -> bool:
        """Whether each row is proven to have one listed card. If it is neither sound nor wrong, something is not proven."""
        return not (self.is_wrong or self.hidden or self.unproven)


@attrs.frozen(kw_only=True)
class BulkReport:
    """A summary of a bulk run (interface 4.3).

    ```python
    report = await session.cards.create_many(drafts, board_id=board.id)
    print(report.created, "created,", report.unknown, "unknown")
    report.raise_for_problems()
    ```

    Attributes:
        created: The number of cards created by this run.
        already: The number of cards that earlier runs with the same journal had created.
        failed: The number of cards that were not created.
        unknown: The number of cards that may exist.
        missing: The number of rows that were announced, by `open_job(rows=…)`, and never came to the ledger.
        seconds: The time from the start to the latest result.
        rate: Cards created per second.
        requests: The number of requests that were sent to create cards, including repeated ones.
        rejected: The number of those that were refused with status 429.
        problems: The first 1,000 results that are failed or unknown, with their errors and drafts.
        audit: What the board showed at the end, or None if it was not read: with `unknown="reconcile"` it is read if rows were in
            doubt or refused, and in runs with a journal.
        audit_error: Why the board could not be read at the end, otherwise None.
        probes: The temporary cards of `probe=True` that are still on the board: they could not be deleted, or people have changed
            them.
    """

    created: int = 0
    already: int = 0
    failed: int = 0
    unknown: int = 0
    missing: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    requests: int = 0
    rejected: int = 0
    problems: tuple[CardResult, ...] = attrs.field(default=(), repr=False)
    audit: BulkAudit | None = None
    audit_error: BoardClientError | None = None
    probes: tuple[Card, ...] = ()

    def raise_for_problems(self) -> None:
        """Raise the errors of `problems`, if there are any, in one group.

        The message of the group counts the rows and names the first ones. Each error has a note that names its row.

        Raises:
            ExceptionGroup: some rows failed or are unknown. It holds a `BoardClientError` for each of `problems`.
            BoardClientError: none failed, and rows that were announced are missing.
        """
        # Copies: a note stays on its error, so that a second call would add it again.
        if errors := [copy.copy(result.error) for result in self.problems if result.error is not None]:
            for error, result in zip(errors, self.problems, strict=True):
                error.add_note(f"{_row_name(result)}: {result.draft.name!a:.80}")
            raise ExceptionGroup(self.problem_summary, errors)
        if self.missing:
            raise BoardClientError(
                f"{self.missing:,} of the rows that were announced never came to the ledger: deliver them again"
            )

    def _repr_html_(self) -> str:
        """Return a table of the counts and the first problems, for notebooks."""
        values: dict[str, object] = {state: getattr(self, state) for state in get_args(ResultState)}
        values |= {"seconds": f"{self.seconds:.1f}", "cards per second": f"{self.rate:.0f}", "requests": self.requests}
        values |= {_row_name(result): f"{result.state}: {result.error}" for result in self.problems[:_PROBLEMS_IN_TABLE]}
        return html_table("BulkReport", values)

    @property
    def problem_summary(self) -> str:
        """The number of rows that failed or are unknown, and the first of them with their reasons, as a text."""
        counts = [f"{number} {words}" for number, words in ((self.failed, "failed"), (self.unknown, "unknown")) if number]
        first = [f"{_row_name(result)}: {result.error}" for result in self.problems[:_SHOWN_PROBLEMS]]
        more = ["…"] if self.failed + self.unknown > len(first) else []
        return f"{' and '.join(counts) or 'none failed'} of {self.created + self.already + self.failed + self.unknown} rows" + (
            f" ({'; '.join([*first, *more])})" if first else ""
        )


def _row_name(result: CardResult) -> str:
    reference = result.draft.reference
    # ASCII and cut: a reference may hold any text of any length, and this goes to logs and terminals.
    return f"row {result.index}" if reference is None else f"row {result.index} ({reference!a:.60})"


class Results:
    """Results in the order of completion. Any number of tasks may take them.

    Owned by a run, which closes the queue after the last result.
    """

    def __init__(self) -> None:
        self.untaken: deque[Values] = deque()
        self.on_take: Callable[[], object] = lambda: None
        """Called when results were taken."""
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, values: Values) -> None:
        # A set event stays set: only the first result has to wake those who wait.
        if not self.untaken:
            self._changed.set()
        self.untaken.append(values)

    def close(self) -> None:
        """Close the queue: after the last result `wait` returns False."""
        self._is_closed = True
        self._changed.set()

    async def wait(self) -> bool:
        """Wait for a result and return True, or return False if no more will come."""
        while not self.untaken:
            if self._is_closed:
                return False
            # One result wakes all who wait. Those who find that another has taken it wait again.
            self._changed.clear()
            await self._changed.wait()
        return True

    def take(self) -> CardResult:
        """Remove and return the oldest result. The queue must not be empty."""
        result = CardResult(*self.untaken.popleft())
        self.on_take()
        return result

    def take_all(self) -> list[CardResult]:
        """Remove and return all results."""
        results = [CardResult(*values) for values in self.untaken]
        self.discard_all()
        return results

    def discard_all(self) -> None:
        self.untaken.clear()
        self.on_take()


class Snapshot(NamedTuple):
    """What a run does at a moment. The defaults are those of a run that was not opened."""

    in_flight: int = 0
    in_doubt: int = 0
    waiting_for: WaitReason | None = None
    held_seconds: float | None = None
    """For how long no request is started because of refusals."""
    is_quiet: bool = True
    """Whether nothing is sent, and nothing waits to be."""


class Tally:
    """What a run tells of itself: counts, phases, its first error. Owned by the run.

    Its report and its progress are made from it. `note` passes words to the instruments that follow the run.
    """

    def __init__(self, total: int | None, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        self.note: Callable[[str], object] = lambda words: None
        self.watch: Listener | None = None
        """Called with the progress when the run begins or ends to wait, and not with each result."""
        self.requests = 0
        """How many requests to create cards were sent."""
        self.error: BaseException | None = None
        """The first error that ended the run early."""
        self.audit: BulkAudit | None = None
        self.audit_error: BoardClientError | None = None
        """Why the board could not be read at the end."""
        self.probes: Callable[[], tuple[Card, ...]] = tuple
        """Returns the probes that could not be deleted."""
        self.ended_waiting: BulkProgress | None = None
        """What the run waited for when `patience` ended it."""
        self.problems: list[CardResult] = []
        """The first results that are failed or unknown."""
        self.phase: BulkPhase = "creating"
        self.announced: WaitReason | None = None
        """What the run waited for when listeners were notified last."""
        self._phase_ends_at: datetime | None = None
        self._rejected = 0
        self._total = total
        self._states: dict[ResultState, int] = dict.fromkeys(get_args(ResultState), 0)
        self.begin()

    def begin(self) -> None:
        """Start measuring the time of the run."""
        self._started = self._ended = time.monotonic()

    def add_result(self, values: Values) -> None:
        _, _, _, error, state = values
        # Each result may be the last: the time of the run ends with it, and not when the report is asked for.
        self._states[state] += 1
        self._ended = time.monotonic()
        if error is not None and len(self.problems) < MOST_PROBLEMS:
            self.problems.append(CardResult(*values))

    def add_attempts(self, attempts: Iterable[Attempt]) -> None:
        """Count the attempts that were sent."""
        for attempt in attempts:
            # What never left this machine is no request: counted, it would make a cut cable look like a busy service.
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
            probes=self.probes(),
        )

    def begin_phase(self, phase: BulkPhase, words: str | None, seconds: float | None) -> None:
        """Note what the run does from now on, and for how long if it waits."""
        self.phase, self._phase_ends_at = phase, None if seconds is None else moment_in(seconds)
        if words is not None:
            self.note(words)

    def notify(self, now: Snapshot) -> BaseException | None:
        """Notify the listeners. Return what one of them raised."""
        self.announced = now.waiting_for
        try:
            for listener in (*self.listeners, *filter(None, [self.watch])):
                given: object = listener(self.progress(now))
                if inspect.iscoroutine(given):
                    # Or Python warns of a coroutine that was never awaited, at a line that says nothing about the listener.
                    given.close()
                    raise TypeError("on_progress returned a coroutine, which is not awaited: it must be a plain function")
        except asyncio.CancelledError:  # a plain function can't be cancelled, so the function itself raised this
            return RuntimeError("on_progress raised CancelledError")
        except BaseException as error:  # it ends the run and is raised to its owner
            return error
        return None

    def progress(self, now: Snapshot) -> BulkProgress:
        """How far the run is."""
        seconds, states = self._ended - self._started, self._states
        # While refusals pause all requests, their end is nearer than that of the phase, and is what a user waits for.
        is_held = now.waiting_for in {"retry-after", "refusals"} and now.held_seconds is not None
        return BulkProgress(
            done=sum(states.values()),
            created=states["created"],
            already=states["already"],
            failed=states["failed"],
            unknown=states["unknown"],
            rate=states["created"] / seconds if seconds else 0.0,
            seconds=seconds,
            total=self._total,
            requests=self.requests + now.in_flight,
            in_flight=now.in_flight,
            in_doubt=now.in_doubt,
            phase=self.phase,
            waiting_for=now.waiting_for,
            wait_ends_at=moment_in(now.held_seconds or 0.0) if is_held else self._phase_ends_at,
        )
