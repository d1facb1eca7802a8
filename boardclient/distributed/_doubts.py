"""What the error of a row in doubt says: its cause, the cards that may be its own, and how it is settled."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime

from boardclient.bulk import CardResult
from boardclient.bulk._proof._reconciler import NOT_KNOWN, cause_in
from boardclient.distributed._jobs import Job
from boardclient.errors import BoardClientError

BY_RECONCILING = "reconciling the job"
BY_REPEATING = "the same call"


def resolve_command(job: Job, row: int | str) -> str:
    """Return the command that settles a row by hand, without what it settles it with."""
    if isinstance(row, int):
        named = ["--position", str(row)]
    elif row.startswith("-") or row.isdecimal():  # the first would be an option, the second may be the number of a row
        named = [f"--reference={row}"]
    else:
        named = [row]
    return shlex.join(["boardclient", "ledger", "resolve", "--ledger", job.ledger, "--job", job.name, *named])


def explain(error: BoardClientError, job: Job, row: int | str, how: str) -> None:
    """Let the error of a row in doubt say how the row is settled, and whether that can be by what `how` names.

    As long as the board shows cards that may be the row's, only a person can tell. Otherwise the board is looked at again.
    """
    cause, _, why = error.message.partition(NOT_KNOWN)
    cause = cause_in(cause.removesuffix("; "))
    words = [cause] if cause else []
    words.append(f"{NOT_KNOWN}{why}")
    command = resolve_command(job, row)
    if error.candidates:
        words.append(f"{how} can't tell while the board shows {'it' if len(error.candidates) == 1 else 'them'}")
        words.append(
            f"look at the board, then `{shlex.join([*shlex.split(command), '--card', error.candidates[0]])}`"
            " if that is its card, or the same with `--absent` if there is none"
        )
    else:
        words.append(f"{how} looks for it again{_from(error.retry_at)}")
        words.append(f"by hand, once you have looked at the board: `{command} --card CARD_ID`, or `--absent` if there is none")
    error.message = "; ".join(words)
    error.args = (error.message, *error.args[1:])


def _from(moment: datetime | None) -> str:
    return "" if moment is None else f" from {moment.astimezone():%H:%M:%S} on"


def explain_all(results: list[CardResult], job: Job, position_of: Callable[[int], int]) -> None:
    """Let the errors of the unknown rows of a batch say how they are settled. `position_of` returns a row's in the job."""
    for result in results:
        if result.state == "unknown" and result.error is not None:
            reference = result.draft.reference
            explain(result.error, job, position_of(result.index) if reference is None else reference, BY_RECONCILING)
