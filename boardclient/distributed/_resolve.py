"""Rows of a ledger that a person settles, since nothing proves whether their cards exist."""

from __future__ import annotations

import os

import sqlalchemy as sa

from boardclient._database import Database, takes_location
from boardclient.bulk import CardResult
from boardclient.bulk._content import Content, IdSet
from boardclient.bulk.journal import JournalRow, UnknownRow
from boardclient.distributed._parts import PartLedger, claim, worker_name
from boardclient.distributed._plan import Job
from boardclient.distributed._status import of_ledger, results
from boardclient.distributed._tables import CLOSING, State, count_of, load_drafts, parts, read_states
from boardclient.errors import JournalError
from boardclient.models import check_identifier

_LEASE_SECONDS = 30.0


@takes_location
async def unknown_rows(ledger: Job | str | os.PathLike[str], *, name: str | None = None) -> list[UnknownRow]:
    """Return the rows of a job whose cards may exist. A ledger knows no candidates: the detail of a row names similar cards.

    Args:
        ledger: The job, or its ledger.
        name: The name of the job, if the ledger has several.

    Raises:
        JournalError: the ledger can't be read, has no such job, or several.
    """
    async with of_ledger(ledger, name) as (database, names):
        job = Job(ledger=database.where, name=_only(names), board_id="")
    return [_unknown(result) async for result in results(job, is_problem=True) if result.state == "unknown"]


def _unknown(result: CardResult) -> UnknownRow:
    key = result.index if result.draft.reference is None else result.draft.reference
    content, detail = Content.of(result.draft, None), str(result.error)
    row = JournalRow(seq=result.index + 1, key=key, content=content, marker="", run=0, state="unknown", detail=detail)
    return UnknownRow(row=row)


@takes_location
async def resolve(
    ledger: Job | str | os.PathLike[str],
    row: int | str,
    *,
    card_id: str | None = None,
    absent: bool = False,
    name: str | None = None,
) -> bool:
    """Resolve a row by hand whose card may exist, as `boardclient.bulk.resolve` does for journals.

    Look at the board first: an absent row is sent again without further questions, by `reconcile`, by its batch if that is
    delivered again, or by its part.

    Args:
        ledger: The job, or its ledger.
        row: The row's reference, or its position in the job, from 0, as results have it.
        card_id: The identifier of its card.
        absent: True if there is no card.
        name: The name of the job, if the ledger has several.

    Returns:
        True if it is resolved now, False if it had this card before.

    Raises:
        JournalError: the ledger can't be used, a worker is settling its rows, it has no such row in doubt, or the card is another
            row's.
        ValueError: neither or both of `card_id` and `absent` are given, or the identifier is unusable.
    """
    if (card_id is None) is not absent:
        raise ValueError("give either card_id or absent=True")
    told: State = ("waiting", "") if card_id is None else ("done", check_identifier(card_id, "card_id"))
    async with of_ledger(ledger, name) as (database, names):
        job = _only(names)
        lease = await claim(database, job, CLOSING, worker_name(), _LEASE_SECONDS, condition=sa.true())
        if lease is None:
            raise JournalError(f"a worker settles the rows of {job!r}, or the job is drained: try again later")
        try:
            states = await read_states(database, job)
            seq, part = await _found(database, job, row, states)
            if states[seq] == told:
                return False
            if count_of(states[seq]) != "in_doubt":
                raise JournalError(f"the row {row!r} of {job!r} is {states[seq][0]}, not in doubt")
            if told in states.values():
                raise JournalError(f"the card {card_id} is that of another row")
            await PartLedger(database, lease, [], states, secret=b"", baseline=IdSet()).settle(seq, part, told)
        finally:
            if not lease.is_returned:
                await lease.give_back(database)
    return True


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise JournalError(f"the ledger has {len(names)} jobs: name one of {', '.join(map(repr, names)) or 'none'}")
    return names[0]


async def _found(database: Database, job: str, row: int | str, states: dict[int, State]) -> tuple[int, int]:
    """Return the number and the part of a row that was sent, and that no worker is sending."""
    is_idle = (parts.c.lease_until < database.clock) | (parts.c.part == CLOSING)
    wanted = sa.select(parts.c.part, parts.c.first, parts.c.rows).where(parts.c.job == job, is_idle)
    for part in await database.read(wanted.order_by(parts.c.first)):
        for seq, draft in enumerate(load_drafts(part.rows, f"part {part.part} of {job!r}"), part.first + 1):
            if seq in states and row in {draft.reference, seq - 1}:
                return seq, part.part
    raise JournalError(f"the job {job!r} has no row {row!r} that was sent, or a worker is sending it")
