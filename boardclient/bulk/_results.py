"""The results of a bulk run, for each draft and for the whole run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs

from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card, CardDraft, WeaklyReferenceable, constructor_of

ResultState: TypeAlias = Literal["created", "already", "failed", "unknown"]

_SHOWN_PROBLEMS: Final = 3


@attrs.frozen(kw_only=True)
class CardResult(WeaklyReferenceable):
    """The result of one draft (interface 4.3).

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


ResultValues: TypeAlias = tuple[int, CardDraft, "Card | None", "BoardClientError | None", ResultState]
"""The values of a `CardResult`, which is made when it is taken: `BulkRun.wait` takes none."""

make_result: Final[Callable[[*ResultValues], CardResult]] = constructor_of(CardResult)
"""Makes a result faster than the class."""


def state_after(error: BoardClientError) -> ResultState:
    """Return the state of a row whose request failed.

    It is "unknown" unless the error rules out that the card exists.
    """
    return "unknown" if error.effect in {Effect.UNKNOWN, Effect.DONE} else "failed"


@attrs.frozen(kw_only=True)
class BulkAudit:
    """What the board showed when it was read at the end of a run (interface 4.4).

    Each tuple names at most 1,000 cards or drafts.

    Attributes:
        confirmed: The number of listed cards that are known to belong to rows.
        recovered: The number of rows in doubt whose cards were found on the board.
        lost: The number of confirmed cards that are deleted.
        hidden: The number of confirmed cards that exist, or may, and are not listed. The listing is incomplete.
        reused: The number of rows whose response named the card of another row, or one that existed before the run. They may have
            no card of their own.
        duplicated: Second cards of rows: they show the marker of a row that has a card, or equal what was sent for it. A card of
            others that equals a row is among them. Markers tell it apart.
        unexpected: Other cards that belong to no known row and did not exist before the run. Those of others are no fault.
        resembling: Those of `duplicated` and `unexpected` that may belong to a row that is unknown, whose error names them, or to
            one that was refused.
        unproven: The drafts of the rows that stayed unknown.
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

    Attributes:
        created: The number of cards created by this run.
        already: The number of cards that earlier runs with the same journal had created.
        failed: The number of cards that were not created.
        unknown: The number of cards that may exist.
        seconds: The time from the start to the latest result.
        rate: Cards created per second.
        requests: The number of requests that were sent to create cards, including repeated ones.
        rejected: The number of those that were refused with status 429.
        problems: The first 1,000 results that are failed or unknown, with their errors and drafts.
        audit: What the board showed at the end, or None if it was not read: it is read if cards were in doubt, and in runs with
            a journal and `unknown="reconcile"`.
        audit_error: Why the board could not be read at the end, otherwise None.
    """

    created: int = 0
    already: int = 0
    failed: int = 0
    unknown: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    requests: int = 0
    rejected: int = 0
    problems: tuple[CardResult, ...] = attrs.field(default=(), repr=False)
    audit: BulkAudit | None = None
    audit_error: BoardClientError | None = None

    def raise_for_problems(self) -> None:
        """Raise the errors of `problems`, if there are any, in one group.

        The message of the group counts the rows and names the first ones. Each error has a note that names its row.

        Raises:
            ExceptionGroup: some rows failed or are unknown. It holds a `BoardClientError` for each of `problems`.
        """
        errors: list[BoardClientError] = []
        for result in self.problems:
            error = copy.copy(result.error)
            if error is not None:
                error.add_note(f"{_row_name(result)}: {result.draft.name!a:.80}")
                errors.append(error)
        if errors:
            raise ExceptionGroup(self.problem_summary, errors)

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
    return f"row {result.index}" if reference is None else f"row {result.index} ({reference!a:.60})"
