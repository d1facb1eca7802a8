"""The options of a bulk run. They are checked before anything is opened or sent."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Final, cast, get_args

import attrs

from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import Unknown
from boardclient.bulk._proof._recognition import Marking
from boardclient.models import check_identifier

_SHORTEST_SETTLE_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 60.0
"""The default of `settle` if calls have no deadline, so that a request may take any time."""
_LARGEST_BATCH: Final = 256
_SMALLEST_BATCH: Final = 32
"""With fewer rows, the commit would be most of a row's cost, since its price hardly depends on their number."""


@attrs.frozen(kw_only=True)
class BulkOptions:
    """The checked options of a bulk run. `workers` is the number of tasks that send rows."""

    concurrency: int | None
    journal: str | os.PathLike[str] | None
    board_id: str | None
    unknown: Unknown
    marker: Marking
    settle_seconds: float
    workers: int
    probe: bool = False
    waits_for_consent: bool = True
    """Whether the run waits until a user has signed in. If not, it ends with `ConsentRequired`."""
    ledger: Ledger | None = None
    """The ledger to use in place of a journal: one that the caller has opened."""

    @property
    def batch(self) -> int:
        """How many rows are logged together at first: four per worker, from 32 to 256."""
        return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, 4 * self.workers))


def make_options(
    pipeline: Pipeline,
    drafts: object,
    *,
    concurrency: int | None,
    journal: str | os.PathLike[str] | None,
    board_id: str | None,
    unknown: str | None,
    marker: Marking,
    settle: float | None,
    probe: bool = False,
    waits_for_consent: bool = True,
) -> BulkOptions:
    """Check the arguments of `create_many`, and fill in the defaults.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a value that is not allowed.
    """
    if not isinstance(drafts, Iterable | AsyncIterable):
        raise TypeError("drafts must be an iterable or asynchronous iterable of CardDraft")
    check_count(concurrency, "concurrency")
    if board_id is not None:
        check_identifier(board_id, "board_id")
    if journal is not None and not isinstance(journal, str | os.PathLike):
        raise TypeError(f"journal must be a path, not {type(journal).__name__}")
    if marker not in (None, True, False) and not callable(marker):
        raise TypeError("marker must be True, None or a function of a draft")
    check_settle(settle)
    if not isinstance(probe, bool):
        raise TypeError(f"probe must be True or False, not {type(probe).__name__}")
    decided = _unknown(unknown, board_id)
    if probe and decided != "reconcile":
        raise ValueError('probe=True needs board_id, and unknown="reconcile": the board is read to see which cards exist')
    if settle is None:
        settle = _SETTLE_SECONDS if pipeline.timeout is None else max(_SHORTEST_SETTLE_SECONDS, 2 * pipeline.timeout)
    return BulkOptions(
        concurrency=concurrency,
        journal=journal,
        board_id=board_id,
        unknown=decided,
        marker=_marking(marker),
        settle_seconds=settle,
        probe=probe,
        workers=concurrency or pipeline.max_connections,
        waits_for_consent=waits_for_consent,
    )


def check_count(count: int | None, name: str) -> None:
    """Check a number of calls, workers or parts. Errors call it `name`.

    Raises:
        ValueError: it is not a whole number of at least 1, or None.
    """
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise ValueError(f"{name} must be a whole number of at least 1, or None")


def check_settle(settle: float | None) -> None:
    """Check how long a service may take to commit a request.

    Raises:
        ValueError: it is not a number of seconds, at least 0, or None.
    """
    if settle is not None and not (isinstance(settle, int | float) and 0 <= settle < math.inf):
        raise ValueError("settle must be a number of seconds, at least 0, or None")


def _marking(marker: Marking) -> Marking:
    """Wrap a callable, so that `if marker` holds even if its bool() is False."""
    return (lambda draft: marker(draft)) if callable(marker) else marker


def _unknown(unknown: str | None, board_id: str | None) -> Unknown:
    if unknown is None:
        return "report" if board_id is None else "reconcile"
    if unknown == "reconcile" and board_id is None:
        raise ValueError('unknown="reconcile" needs board_id: the board is read to see which cards exist')
    if unknown not in get_args(Unknown):
        raise ValueError('unknown must be "reconcile", "report", "resend" or None')
    return cast("Unknown", unknown)


def journal_identity(account: Mapping[str, str], board_id: str | None, marker: Marking = None) -> dict[str, str]:
    """Return what a journal is bound to, as names and texts.

    It is the service and the account, which `account` names, the board, and the way in which cards are recognised. A journal that
    was made for another identity is refused.
    """
    board = {} if board_id is None else {"board": board_id}
    return {**account, **board, "cards known by": "their marker" if marker else "what they say"}
