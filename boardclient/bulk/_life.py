"""A row of a run, and its life, as a table from state and event to state and reaction. No I/O.

`_engine._places` carries out the reactions. docs/design/bulk.md draws the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from boardclient.errors import BoardClientError
from boardclient.models import CardDraft, as_draft

RowKey: TypeAlias = int | str
"""Identifies a row: its reference, a text, or its position in the input, a number from 0."""
RowState: TypeAlias = Literal["waiting", "logged", "done", "failed", "unknown", "undone"]
"""What a ledger keeps of a row. "waiting": it was not sent. "logged": it may be sent from now on, and has no outcome yet. "done":
its card is known. "failed": no card was created. "unknown": it was reported as unknown. "undone": its card was deleted again."""
IN_DOUBT: Final = ("logged", "unknown")
"""The states of rows whose cards may exist, once no run sends them."""


class Outcome(NamedTuple):
    """What a ledger has of a row: its state, and the card's identifier if it is done, otherwise the reason."""

    state: RowState
    detail: str = ""


Unknown: TypeAlias = Literal["reconcile", "report", "resend"]
"""What a run does with a row of unknown effect: read the board, report it, or send it again."""

State: TypeAlias = Literal["new", "ready", "sent", "doubted", "open", "again", "resent", "ended"]
"""Where a row is.

"new": taken from the input. "ready": it may be sent, and none of its cards can exist. "sent": its request is under way.
"doubted": it was sent, and neither a success nor a refusal with 429 came. Its card may exist until the board is read or, where it
is not and the row was refused, until it is known whose fault that was. "open": a listing lacks its card, and only a longer one
proves that there is none. "again", "resent": as "ready" and "sent", while a card of an earlier request may exist. "ended": it has
a result, or is left to the next run.
"""

Event: TypeAlias = Literal[
    "admitted", "known", "in doubt", "was refused", "unsendable",
    "taken", "given back", "created", "put off", "waited too long", "refused", "refused too often", "lost", "lost too often",
    "found", "absent", "absent too often", "refusal stands", "undecided", "not listed", "given up",
    "stopped",
]  # fmt: skip

Reaction: TypeAlias = Literal[
    "nothing", "queue", "queue first", "keep back", "pause", "set aside", "return", "withdraw",
    "created", "already", "found", "failed", "unknown",
]  # fmt: skip
"""What the engine does about an event. The last five are results."""

Step: TypeAlias = "tuple[State, Reaction]"
Life: TypeAlias = Mapping[tuple[State, Event], Step]

ADMISSION: Final[Mapping[RowState, Event]] = {
    "waiting": "admitted",
    "undone": "admitted",
    "done": "known",
    "logged": "in doubt",
    "unknown": "in doubt",
    "failed": "was refused",
}
"""The first event of a row of which the ledger has something. That of others is "admitted"."""
UNSENT: Final = frozenset(state for state, event in ADMISSION.items() if event == "admitted")
"""The states of rows that are sent without a further question, since no card of theirs exists."""
FIXED: Final = frozenset(state for state, event in ADMISSION.items() if event in {"known", "in doubt"})
"""The states of rows whose content can't change any more, since their cards exist or may."""
MOST_SENDS: Final = 5
"""How often a row of unknown effect is sent at most."""

_EVERY_LIFE: Final[Life] = {
    # from the input, by what the ledger and the board say
    ("new", "known"): ("ended", "already"),
    ("new", "unsendable"): ("ended", "failed"),
    # its first request, and those after which nothing of it exists
    ("ready", "taken"): ("sent", "nothing"),
    ("sent", "given back"): ("ready", "queue first"),
    ("sent", "created"): ("ended", "created"),
    ("sent", "put off"): ("ready", "pause"),
    ("sent", "waited too long"): ("ended", "failed"),
    # refused: it fails, or is sent again after the others, if that was in an outage or in an earlier run
    ("sent", "refused"): ("doubted", "set aside"),
    ("doubted", "refusal stands"): ("ended", "failed"),
    ("doubted", "admitted"): ("ready", "keep back"),
    ("doubted", "unsendable"): ("ended", "failed"),
    # a stop
    ("new", "stopped"): ("ended", "withdraw"),
    ("ready", "stopped"): ("ended", "withdraw"),
}
_BELIEVED: Final[Life] = {
    ("new", "admitted"): ("ready", "queue"),
    ("new", "was refused"): ("doubted", "return"),
    ("doubted", "admitted"): ("ready", "queue"),
    ("doubted", "absent"): ("ready", "queue first"),
    ("doubted", "taken"): ("sent", "nothing"),
    ("doubted", "stopped"): ("ended", "failed"),
    ("sent", "refused too often"): ("ended", "failed"),
}
"""Refusals where the board is not read: they say that nothing was done."""
_DOUBTS: Final[Mapping[Unknown, Life]] = {
    "report": {
        **_BELIEVED,
        ("new", "in doubt"): ("ended", "unknown"),
        ("sent", "lost"): ("ended", "unknown"),
        ("sent", "lost too often"): ("ended", "unknown"),
        ("doubted", "lost"): ("ended", "unknown"),
    },
    "resend": {
        **_BELIEVED,
        ("new", "in doubt"): ("again", "queue"),
        ("sent", "lost"): ("again", "pause"),
        ("doubted", "lost"): ("again", "pause"),
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
        ("new", "was refused"): ("doubted", "set aside"),
        ("sent", "refused too often"): ("doubted", "set aside"),
        ("sent", "lost"): ("doubted", "set aside"),
        ("sent", "lost too often"): ("doubted", "set aside"),
        ("doubted", "lost"): ("doubted", "set aside"),
        # what the board says
        ("doubted", "found"): ("ended", "found"),
        ("doubted", "undecided"): ("ended", "unknown"),
        ("doubted", "absent"): ("doubted", "return"),
        ("doubted", "not listed"): ("open", "set aside"),
        ("open", "found"): ("ended", "found"),
        ("open", "undecided"): ("ended", "unknown"),
        ("open", "not listed"): ("open", "set aside"),
        ("open", "absent"): ("ready", "keep back"),
        ("open", "absent too often"): ("ended", "failed"),
        ("open", "given up"): ("ended", "unknown"),
        ("doubted", "stopped"): ("ended", "unknown"),
        ("open", "stopped"): ("ended", "unknown"),
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

    outcome: Outcome | None = None
    """What the ledger has of it, and keeps until it is logged. None if it is logged."""
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
    is_refused = False
    """Whether its last request was refused, so that its card exists only if the board shows it."""
    is_excused = False
    """Whether it is sent again once the board does not show its card: it was refused in an outage, or in an earlier run."""
    put_off = 0
    """How often it was put off because it was refused with 429 or could not be sent."""
    put_off_at: float = math.inf
    """When it was first put off, on the loop's clock. Infinity if it was not."""

    def __init__(self, index: int, draft: object) -> None:
        self.index = index
        self.draft: CardDraft = as_draft(draft, f"draft {index}")
        self.seq = index
        """The number of the row in the ledger."""
        self.state: State = "new"
        """Where it is in its life."""
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
