"""The rows of a bulk run. Each is a draft, its number, and what is known of it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from boardclient.errors import BoardClientError
from boardclient.models import CardDraft

Standing: TypeAlias = Literal["send", "done", "failed", "doubtful"]
"""What is to be done with a row: send it, report what an earlier run did or was refused, or find out whether it was done."""


class Row:
    """A draft on its way. Owned by its run; there are few at a time, and most have no more than the defaults."""

    standing: Standing = "send"
    detail: str | None = None
    """The id of the card of a row that is done, the reason of one that failed earlier."""
    is_earlier = False
    """Whether an earlier run may have sent it."""
    error: BoardClientError | None = None
    """Why it is in doubt, None where it is not."""
    marker: str | None = None
    """What its card's description holds, once that was asked for."""
    sends = 0
    doubted_at = 0.0
    """When its effect became unknown in this run, on the loop's clock."""
    put_off = 0
    """How often it was put off since it could not be sent."""
    put_off_at: float | None = None
    """When it was first put off, or answered with 429, on the loop's clock."""

    def __init__(self, index: int, draft: CardDraft) -> None:
        self.index = index
        self.draft = draft
        self.seq = index
        """The number that the ledger knows it by."""

    @property
    def key(self) -> int | str:
        """What the caller knows the row by."""
        return self.index if self.draft.reference is None else self.draft.reference
