"""The life of a row: what happens to it, as a table from state and event to state and reaction. No I/O.

`_engine` carries out the reactions. docs/design/bulk.md draws the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from boardclient._pipeline._calls import CallWithdrawn
from boardclient._statuses import is_throttling
from boardclient.errors import BoardClientError, ConsentRequired, Effect

Unknown: TypeAlias = Literal["reconcile", "report", "resend"]
"""What a run does with a row of unknown effect: read the board, report it, or send it again."""

State: TypeAlias = Literal["new", "ready", "sent", "refused", "doubted", "open", "again", "resent", "ended"]
"""Where a row is.

"new": taken from the input. "ready": it may be sent, and none of its cards can exist. "sent": its request is under way.
"refused": its request was refused, and no later one has been accepted yet. "doubted": its card may exist, until the board is
read. "open": a listing lacks its card, and only a longer one proves that there is none. "again", "resent": as "ready" and "sent",
while a card of an earlier request may exist. "ended": it has a result, or is left to the next run.
"""

Event: TypeAlias = Literal[
    "admitted", "known", "in doubt", "unsendable",
    "taken", "given back", "created", "put off", "waited too long", "refused", "refused too often", "lost", "lost too often",
    "accepted another", "outage is over",
    "found", "absent", "absent too often", "not told", "not listed", "given up",
    "stopped",
]  # fmt: skip

Reaction: TypeAlias = Literal[
    "nothing", "queue", "queue first", "pause", "hold back", "keep", "withdraw",
    "created", "already", "found", "failed", "unknown",
]  # fmt: skip
"""What the engine does about an event. The last five are results."""

Step: TypeAlias = "tuple[State, Reaction]"
Life: TypeAlias = Mapping[tuple[State, Event], Step]

MOST_SENDS: Final = 5
"""How often a row is sent at most if the effect is unknown each time."""
MOST_REFUSALS: Final = 3
"""How often a row is sent at most that is refused during outages."""

_EVERY_LIFE: Final[Life] = {
    # from the input, by what the journal and the board say
    ("new", "admitted"): ("ready", "queue"),
    ("new", "known"): ("ended", "already"),
    ("new", "unsendable"): ("ended", "failed"),
    # its first request, and those after which nothing of it exists
    ("ready", "taken"): ("sent", "nothing"),
    ("sent", "given back"): ("ready", "queue first"),
    ("sent", "created"): ("ended", "created"),
    ("sent", "put off"): ("ready", "pause"),
    ("sent", "waited too long"): ("ended", "failed"),
    ("sent", "refused"): ("refused", "hold back"),
    ("sent", "refused too often"): ("ended", "failed"),
    # whose fault a refusal is
    ("refused", "taken"): ("sent", "nothing"),
    ("refused", "accepted another"): ("ended", "failed"),
    ("refused", "outage is over"): ("ready", "queue first"),
    # a stop
    ("new", "stopped"): ("ended", "withdraw"),
    ("ready", "stopped"): ("ended", "withdraw"),
    ("refused", "stopped"): ("ended", "failed"),
}
_DOUBTS: Final[Mapping[Unknown, Life]] = {
    "report": {
        ("new", "in doubt"): ("ended", "unknown"),
        ("sent", "lost"): ("ended", "unknown"),
        ("sent", "lost too often"): ("ended", "unknown"),
    },
    "resend": {
        ("new", "in doubt"): ("again", "queue"),
        ("sent", "lost"): ("again", "pause"),
        ("again", "taken"): ("resent", "nothing"),
        ("again", "stopped"): ("ended", "unknown"),
        ("resent", "given back"): ("again", "queue first"),
        ("resent", "created"): ("ended", "created"),
        ("resent", "put off"): ("again", "pause"),
        ("resent", "lost"): ("again", "pause"),
        # the failure of this request does not settle the earlier one
        ("resent", "waited too long"): ("ended", "unknown"),
        ("resent", "refused"): ("ended", "unknown"),
        ("resent", "refused too often"): ("ended", "unknown"),
        ("resent", "lost too often"): ("ended", "unknown"),
    },
    "reconcile": {
        ("new", "in doubt"): ("doubted", "keep"),
        ("sent", "lost"): ("doubted", "keep"),
        ("sent", "lost too often"): ("doubted", "keep"),
        ("doubted", "stopped"): ("ended", "unknown"),
        ("open", "given up"): ("ended", "unknown"),
        ("open", "stopped"): ("ended", "unknown"),
        ("doubted", "found"): ("ended", "found"),
        ("doubted", "absent"): ("ready", "queue first"),
        ("doubted", "absent too often"): ("ended", "failed"),
        ("doubted", "not told"): ("ended", "unknown"),
        ("doubted", "not listed"): ("open", "keep"),
        ("open", "found"): ("ended", "found"),
        ("open", "absent"): ("ready", "queue first"),
        ("open", "absent too often"): ("ended", "failed"),
        ("open", "not told"): ("ended", "unknown"),
        ("open", "not listed"): ("open", "keep"),
    },
}
LIVES: Final[Mapping[Unknown, Life]] = {unknown: {**_EVERY_LIFE, **_DOUBTS[unknown]} for unknown in get_args(Unknown)}
"""The life of a row, for each value of the option `unknown`."""


def event_of(error: BoardClientError, sends: int, refusals: int) -> Event:
    """Return what the failure of a row's request means, after so many requests and refusals of the row."""
    if error.effect in {Effect.UNKNOWN, Effect.DONE}:
        return "lost" if sends < MOST_SENDS else "lost too often"
    if isinstance(error, CallWithdrawn):
        return "given back"
    if error.effect is Effect.NOT_SENT or is_throttling(error) or isinstance(error, ConsentRequired):
        return "put off"
    return "refused" if refusals < MOST_REFUSALS else "refused too often"
