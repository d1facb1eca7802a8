"""A row of a run, and its life, as a table from state and event to state and reaction. No I/O.

`_engine._places` carries out the reactions. docs/design/bulk.md draws the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from boardclient.errors import BoardClientError
from boardclient.models import as_draft

RowKey: TypeAlias = int | str
"""Identifies a row: its reference, a text, or its position in the input, a number from 0."""
RowAction: TypeAlias = Literal["send", "done", "in doubt"]
"""What to do with a row of the input: send it; skip it, since it is done; find out whether its card exists."""

Unknown: TypeAlias = Literal["reconcile", "report", "resend"]
"""What a run does with a row of unknown effect: read the board, report it, or send it again."""

State: TypeAlias = Literal["new", "ready", "sent", "refused", "failed", "doubted", "open", "again", "resent", "ended"]
"""Where a row is.

"new": taken from the input. "ready": it may be sent, and none of its cards can exist. "sent": its request is under way.
"refused": its request was refused, and no later one has been accepted yet. "failed": it is not sent again, since it was refused
or could not be sent for too long, and the board was not read since. "doubted": its card may exist, until the board is read.
"open": a listing lacks its card, and only a longer one proves that there is none. "again", "resent": as "ready" and "sent", while
a card of an earlier request may exist. "ended": it has a result, or is left to the next run.
"""

Event: TypeAlias = Literal[
    "admitted", "known", "in doubt", "unsendable",
    "taken", "given back", "created", "put off", "waited too long", "refused", "refused too often", "lost", "lost too often",
    "accepted another", "outage is over",
    "found", "absent", "absent too often", "refusal stands", "undecided", "not listed", "given up",
    "stopped",
]  # fmt: skip

Reaction: TypeAlias = Literal[
    "nothing", "queue", "queue first", "keep back", "pause", "set aside", "check", "withdraw",
    "created", "already", "found", "failed", "unknown",
]  # fmt: skip
"""What the engine does about an event. The last five are results."""

Step: TypeAlias = "tuple[State, Reaction]"
Life: TypeAlias = Mapping[tuple[State, Event], Step]

MOST_SENDS: Final = 5
"""How often a row of unknown effect is sent at most."""

_EVERY_LIFE: Final[Life] = {
    # from the input, by what the journal and the board say
    ("new", "known"): ("ended", "already"),
    ("new", "unsendable"): ("ended", "failed"),
    # its first request, and those after which nothing of it exists
    ("ready", "taken"): ("sent", "nothing"),
    ("sent", "given back"): ("ready", "queue first"),
    ("sent", "created"): ("ended", "created"),
    ("sent", "put off"): ("ready", "pause"),
    ("sent", "refused"): ("refused", "set aside"),
    # whose fault a refusal is
    ("refused", "taken"): ("sent", "nothing"),
    # a stop
    ("new", "stopped"): ("ended", "withdraw"),
    ("ready", "stopped"): ("ended", "withdraw"),
    ("refused", "stopped"): ("ended", "failed"),
}
_BELIEVED: Final[Life] = {
    ("sent", "waited too long"): ("ended", "failed"),
    ("sent", "refused too often"): ("ended", "failed"),
    ("refused", "accepted another"): ("ended", "failed"),
    ("refused", "outage is over"): ("ready", "queue first"),
}
"""Refusals where the board is not read."""
_DOUBTS: Final[Mapping[Unknown, Life]] = {
    "report": {
        **_BELIEVED,
        ("new", "admitted"): ("ready", "queue"),
        ("new", "in doubt"): ("ended", "unknown"),
        ("sent", "lost"): ("ended", "unknown"),
        ("refused", "lost"): ("ended", "unknown"),
        ("sent", "lost too often"): ("ended", "unknown"),
    },
    "resend": {
        **_BELIEVED,
        ("new", "admitted"): ("ready", "queue"),
        ("new", "in doubt"): ("again", "queue"),
        ("sent", "lost"): ("again", "pause"),
        ("refused", "lost"): ("again", "pause"),
        ("again", "taken"): ("resent", "nothing"),
        ("again", "stopped"): ("ended", "unknown"),
        ("resent", "given back"): ("again", "queue first"),
        ("resent", "created"): ("ended", "created"),
        ("resent", "put off"): ("again", "pause"),
        ("resent", "lost"): ("again", "pause"),
        # the failure of this request says nothing about the earlier one
        ("resent", "waited too long"): ("ended", "unknown"),
        ("resent", "refused"): ("ended", "unknown"),
        ("resent", "refused too often"): ("ended", "unknown"),
        ("resent", "lost too often"): ("ended", "unknown"),
    },
    "reconcile": {
        ("new", "admitted"): ("ready", "keep back"),
        ("new", "in doubt"): ("doubted", "set aside"),
        # one that is not sent again
        ("new", "refused"): ("failed", "set aside"),
        # a refused row of an earlier run, whose card is listed or may be
        ("new", "found"): ("ended", "found"),
        ("new", "undecided"): ("ended", "unknown"),
        # a refusal is believed once the board does not show the row's card
        ("sent", "waited too long"): ("failed", "set aside"),
        ("sent", "refused too often"): ("failed", "set aside"),
        ("refused", "accepted another"): ("failed", "set aside"),
        ("refused", "outage is over"): ("refused", "check"),
        ("refused", "admitted"): ("ready", "keep back"),
        ("refused", "found"): ("ended", "found"),
        ("refused", "undecided"): ("ended", "unknown"),
        ("refused", "unsendable"): ("ended", "failed"),
        ("failed", "found"): ("ended", "found"),
        ("failed", "refusal stands"): ("ended", "failed"),
        ("failed", "undecided"): ("ended", "unknown"),
        ("failed", "stopped"): ("ended", "failed"),
        ("sent", "lost"): ("doubted", "set aside"),
        ("refused", "lost"): ("doubted", "set aside"),
        ("failed", "lost"): ("doubted", "set aside"),
        ("sent", "lost too often"): ("doubted", "set aside"),
        ("doubted", "stopped"): ("ended", "unknown"),
        ("open", "given up"): ("ended", "unknown"),
        ("open", "stopped"): ("ended", "unknown"),
        ("doubted", "found"): ("ended", "found"),
        ("doubted", "undecided"): ("ended", "unknown"),
        ("doubted", "not listed"): ("open", "set aside"),
        ("open", "found"): ("ended", "found"),
        ("open", "absent"): ("ready", "keep back"),
        ("open", "absent too often"): ("ended", "failed"),
        ("open", "undecided"): ("ended", "unknown"),
        ("open", "not listed"): ("open", "set aside"),
    },
}
LIVES: Final[Mapping[Unknown, Life]] = {unknown: {**_EVERY_LIFE, **_DOUBTS[unknown]} for unknown in get_args(Unknown)}
"""The life of a row, for each value of the option `unknown`."""


class Extent(NamedTuple):
    """How many cards a listing showed, in total and in the list of one row.

    The latter is -1 if it showed none of the list, or does not show lists at all.
    """

    total: int
    of_list: int


class Row:
    """A draft in a run, which owns it.

    Rarely changed fields are class-level defaults, which saves time and memory: one row is made per card. `__init__` sets those
    that each row sets later, too. An object that gets an attribute which the first ones of its class did not have needs a
    dictionary of its own, at a thirtieth of the cost of a call (https://peps.python.org/pep-0412/).
    """

    is_final = False
    """Whether an earlier run saw it refused, and this one only looks for its card."""
    is_earlier = False
    """Whether an earlier run may have sent it."""
    error: BoardClientError | None = None
    """Why the row is in doubt, or why it was refused. None otherwise."""
    doubted_at: float = 0.0
    """When its last request failed in this run, on the loop's clock."""
    first_seq: int | None = None
    """The number that the ledger gave it first, if `seq` is a later one. Its secret marker stays that of this number."""
    probes = 0
    """How many probes were sent for it since it was last sent."""
    named: str | None = None
    """The card that a response named, though it was known already: a service may give identifiers again."""
    absent_from: Extent | None = None
    """The size of a listing that lacked its card, since it was last sent."""
    sends = 0
    """How often this run has sent it without learning what became of it."""
    is_unproven = False
    """Whether the response that refused it may be that to another request."""
    refusals = 0
    """How often it was refused."""
    put_off = 0
    """How often it was put off because it was refused with 429 or could not be sent."""
    put_off_at: float = math.inf
    """When it was first put off, on the loop's clock. Infinity if it was not."""

    def __init__(self, index: int, draft: object) -> None:
        self.index = index
        self.draft = as_draft(draft, f"draft {index}")
        self.seq = index
        """The number of the row in the ledger."""
        self.state: State = "new"
        """Where it is in its life."""
        self.action: RowAction = "send"
        """What the ledger says: send it, an earlier run has created its card, or its card may exist."""
        self.detail: str | None = None
        """The card's id if an earlier run has created it, the reason if it is in doubt or was refused."""
        self.marker: str | None = None
        """The marker in its card's description, once it was made."""
        self.is_probe = False
        """Whether it is a probe of the run, and no row of the input."""
        self.sent_as = 0
        """The number of its last request among those of the run."""

    @property
    def key(self) -> RowKey:
        """The draft's reference or, without one, the position of the row in the input."""
        return self.index if self.draft.reference is None else self.draft.reference


def check_row(row: object) -> None:
    """Check what names a row.

    Raises:
        TypeError: it is neither a string nor a whole number.
    """
    if not isinstance(row, str | int) or isinstance(row, bool):
        raise TypeError(f"row must be a reference (str) or a position (int), not {type(row).__name__}")
