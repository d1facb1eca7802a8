"""What became of each card of a bulk run, and of the run."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from boardclient.errors import (
    AuthenticationError,
    BoardClientError,
    CredentialError,
    DecodeError,
    Effect,
    JournalError,
    SessionClosedError,
)
from boardclient.models import Card, CardDraft

FATAL: Final = (AuthenticationError, CredentialError, JournalError, SessionClosedError)
"""Errors that end a run: every further card would meet them."""
State: TypeAlias = Literal["created", "already", "failed", "unknown"]


@attrs.frozen(kw_only=True)
class CardResult:
    """What became of one draft; `index` is its position in the input, from 0.

    `state` is "created" (then `card` is set), "already" (an earlier run did it), "failed" (nothing was done) or "unknown" (the
    card may exist); of the last two `error` says why.
    """

    index: int
    draft: CardDraft
    card: Card | None = None
    error: BoardClientError | None = None
    state: State = "created"

    @classmethod
    def of_error(cls, index: int, draft: CardDraft, error: BoardClientError) -> CardResult:
        """Say what an error means for the card. A success without a usable id leaves it unknown."""
        is_open = error.effect in {Effect.UNKNOWN, Effect.DONE} or isinstance(error, DecodeError)
        return cls(index=index, draft=draft, error=error, state="unknown" if is_open else "failed")


@attrs.frozen(kw_only=True)
class BulkAudit:
    """What the board showed at the end of a run.

    `confirmed` counts the listed cards that are known to be rows', `recovered` those of them that were found although no answer
    came, `lost` those that were confirmed and are not listed. `duplicated` are cards too many: they look like the card of a row,
    and are nobody's. `unexpected` are others that are nobody's and were not there before, and `resembling` those of them that
    may be a row whose result is unknown. At most 1,000 of each are named.
    """

    confirmed: int = 0
    recovered: int = 0
    lost: int = 0
    duplicated: tuple[Card, ...] = ()
    unexpected: tuple[Card, ...] = ()
    resembling: tuple[Card, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every confirmed card is listed and no card may be a row's second one."""
        return not (self.lost or self.duplicated or self.resembling)


@attrs.frozen(kw_only=True)
class BulkReport:
    """The sum of a bulk run, with cards by state, `seconds`, and `rate` a second.

    `requests` counts the requests for cards that left, repeated ones included, `rejected` those answered with 429. `audit` is set
    where cards were in doubt and the board was read. Where it could not be read at the end, `audit_error` says why.
    """

    created: int = 0
    already: int = 0
    failed: int = 0
    unknown: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    requests: int = 0
    rejected: int = 0
    audit: BulkAudit | None = None
    audit_error: BoardClientError | None = None
