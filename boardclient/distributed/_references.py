"""The card of a reference: a batch of one, whose row is settled by the call itself."""

from __future__ import annotations

import asyncio
import copy
import json
import os

import attrs

from boardclient._interface import _operations as operations
from boardclient._interface._responses import add_words
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk import CardResult
from boardclient.bulk._life import IN_DOUBT
from boardclient.bulk._proof._reconciler import NOT_KNOWN, cause_in
from boardclient.bulk._run import settle_seconds_of
from boardclient.bulk._single import bound_of, say_when
from boardclient.distributed._batches import check_text
from boardclient.distributed._doubts import BY_REPEATING, explain
from boardclient.distributed._import_calls import run_batch
from boardclient.distributed._jobs import Job, enter_job, new_job
from boardclient.distributed._leases import GivenBackError, HeldElsewhereError
from boardclient.distributed._task import WorkOptions
from boardclient.distributed._worker_process import WorkerProcess, worker_for
from boardclient.errors import BoardClientError, DeadlineError, Effect, NotFoundError
from boardclient.models import Card, CardDraft, unread_card
from boardclient.store._location import checked_location

_WITHOUT_CAUSE = (BoardClientError, DeadlineError, GivenBackError, HeldElsewhereError)
"""The classes of errors that say nothing of the request: what broke, or who has to act, is of another class."""


async def create_once(
    pipeline: Pipeline,
    draft: CardDraft,
    board_id: str,
    reference: str,
    ledger: str | os.PathLike[str],
    times: tuple[float | None, float | None],
    *,
    probe: bool,
) -> Card:
    """Create the card of a reference as a batch of one, or return it. If the card is in doubt, only its row is settled.

    `times` are `settle` and `patience` of `cards.create`, which describes them.
    """
    settle, patience = times
    check_text(reference, "reference")
    job, options = new_job(board_id, checked_location(ledger), settle=settle)
    async with worker_for(job.ledger, creates=True) as worker:
        key = job.name, options
        if key not in worker.opened:
            worker.opened[key], _ = await enter_job(worker.database, job, options, takes_batches=True)
        job = worker.opened[key]
        row, settle_seconds = attrs.evolve(draft, reference=reference), settle_seconds_of(pipeline, settle)
        clock = asyncio.get_running_loop().time
        bound = bound_of(pipeline, settle_seconds, patience)
        work = WorkOptions(
            lease=1.0,  # which counts as the shortest
            probe=probe,
            patience=bound,
            settle=settle,
            ends_at=None if bound is None else clock() + bound,
            is_of_one=True,
        )
        result: CardResult | None = None
        failure: BoardClientError | None = None
        try:
            _, (result,) = await run_batch(job, None, [row], pipeline, work, explains=False)
            if result.state == "unknown":
                failure = result.error
                if patience is None and bound is not None:  # the time to settle begins with the end of the request
                    work = attrs.evolve(work, ends_at=clock() + bound)
                _, (result,) = await run_batch(job, None, [row], pipeline, work, settles=True, explains=False)
            error = result.error
        except BoardClientError as early:
            if failure is None and not isinstance(early, HeldElsewhereError):  # nothing is known that the error does not say
                raise
            error = early
        if error is not None:
            raise await _explained(worker, job, reference, error, failure, settle_seconds)
    assert result is not None  # noqa: S101 -- it would have an error
    assert result.card is not None  # noqa: S101 -- it has one of both
    if result.state == "created":
        return result.card
    return await _shown(pipeline, result.card, reference)


async def _explained(
    worker: WorkerProcess,
    job: Job,
    reference: str,
    error: BoardClientError,
    failure: BoardClientError | None,
    settle_seconds: float,
) -> BoardClientError:
    """Return the error of a reference without a card. While it is in doubt, it says why, and how it is settled.

    `failure` is how its request has failed, as far as this call knows.
    """
    state, candidates, age = await _stored_state(worker, job, reference)
    if state not in IN_DOUBT:
        return error
    if failure is not None and error is not failure:
        told, cause = error.message, cause_in(failure.message)
        retry_at = None if isinstance(error, DeadlineError) else error.retry_at  # what is left of `settle` is longer
        if type(error) in _WITHOUT_CAUSE:
            error = copy.copy(failure)  # it has the status, or what broke
        error.message = told if told.startswith(cause) else f"{cause}; {NOT_KNOWN}: {told}"
        error.retry_at = retry_at
    error.effect, error.candidates = Effect.UNKNOWN, candidates or error.candidates
    say_when(error, settle_seconds - age)
    explain(error, job, reference, BY_REPEATING)
    return error


async def _stored_state(worker: WorkerProcess, job: Job, reference: str) -> tuple[str, tuple[str, ...], float]:
    """Return the state of a reference, the cards that may be its own, and how many seconds ago its request ended."""
    found = await worker.database.read(
        "SELECT {state} AS state, o.resembling, coalesce({clock} - o.at, 0.0) AS age FROM boardclient_jobs AS j"
        " JOIN boardclient_rows AS r ON r.job = j.job JOIN boardclient_parts AS p ON p.part = r.seq / 4294967296"
        " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq WHERE j.name = ? AND r.ref = ?",
        job.name,
        reference,
    )
    for row in found:
        return row.state, tuple(card[0] for card in json.loads(row.resembling or "[]")), float(row.age)
    return "waiting", (), 0.0


async def _shown(pipeline: Pipeline, card: Card, reference: str) -> Card:
    """Return the card of a reference as it is now, or only its identifier if it can't be read.

    Raises:
        NotFoundError: it is deleted.
    """
    try:
        shown = await pipeline.call(operations.READ_CARD.request(card.id))
    except NotFoundError as error:
        add_words(error, f"the card {card.id} of the reference {reference!r} was created, and is deleted or out of reach")
        error.effect, error.repeatable = Effect.DONE, False
        raise
    except BoardClientError as error:  # raising it would mean that nothing was created
        return unread_card(card.id, error)
    return shown if shown.id == card.id else card
