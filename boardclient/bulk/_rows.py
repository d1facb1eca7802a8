"""The rows of a bulk run: a draft, its number, and what is known about its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from boardclient.errors import BoardClientError
from boardclient.models import CardDraft

if TYPE_CHECKING:
    from boardclient.bulk._life import State
    from boardclient.bulk._listing import Extent

RowKey: TypeAlias = int | str
"""Identifies a row: its reference, a text, or its position in the input, a number from 0."""
RowAction: TypeAlias = Literal["send", "done", "doubtful"]
"""What to do with a row of the input: send it; skip it, since it is done; find out whether its card exists."""
RowState: TypeAlias = Literal["logged", "done", "failed", "waiting", "unknown", "undone"]
"""The state of a row in a durable ledger: "logged" until it has an outcome; then created; refused for good; refused for
now, or not sent; reported as unknown; deleted again. Refused rows are sent by the next run, whatever the reason was."""


class Row:
    """A draft in a run, which owns it.

    Rarely changed fields are class-level defaults, which saves time and memory: one row is made per card.
    """

    state: State = "new"
    """Where it is in its life."""
    action: RowAction = "send"
    """What the ledger says: send it, an earlier run has created its card, or its card may exist."""
    detail: str | None = None
    """The card's id if an earlier run has created it, the reason if it is in doubt."""
    is_earlier = False
    """Whether an earlier run may have sent it."""
    error: BoardClientError | None = None
    """Why the row is in doubt, or why it was refused. None otherwise."""
    marker: str | None = None
    """The marker in its card's description, once it was made."""
    doubted_at: float = 0.0
    """When its effect became unknown in this run, on the loop's clock."""
    absent_at: Extent | None = None
    """How many cards a listing showed that lacked its card, since it was last sent."""
    is_last = False
    """Whether it was kept back, and may be sent now."""
    sent_as = 0
    """The number of its last request among those of the run."""
    refusals = 0
    """How often it was refused."""
    put_off = 0
    """How often it was put off because it was refused with 429 or could not be sent."""
    put_off_at: float | None = None
    """When it was first put off, on the loop's clock."""

    def __init__(self, index: int, draft: object) -> None:
        if not isinstance(draft, CardDraft):
            raise TypeError(f"draft {index} must be a CardDraft, not {type(draft).__name__}")
        self.index = index
        self.draft = draft
        self.seq = index
        """The number of the row in the ledger."""
        self.sends = 0
        """How often this run has sent it."""

    @property
    def key(self) -> RowKey:
        """The draft's reference or, without one, the position of the row in the input."""
        return self.index if self.draft.reference is None else self.draft.reference
