"""What a run tells of rows that failed or are unknown, and what a retry policy may repeat in a run."""

import logging
import re
from typing import Any

import pytest
from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt

from boardclient import BadRequestError, CardDraft, Effect, ServerError, TransportError
from boardclient.testing import BoardService, faults


async def test_problems_are_seen(service: BoardService, list_id: str, caplog: pytest.LogCaptureFixture) -> None:
    """The report, the log, the run's repr and one call that raises name them, with their reasons."""
    caplog.set_level(logging.WARNING, "boardclient")
    service.faults.add(faults.status(400), "cards.create", call=2)
    service.faults.add(faults.status(503), "cards.create", call=4)
    drafts = [CardDraft(f"card {number}", list_id, reference=f"ref {number}") for number in range(6)]
    async with service.session(retry=None) as session:
        run = session.cards.create_many(drafts, concurrency=1)
        assert repr(run) == "<BulkRun new, 0 of 6 done>"
        report = await run.wait()
    assert {result.draft.reference: type(result.error) for result in report.problems} == {
        "ref 1": BadRequestError,
        "ref 3": ServerError,
    }
    with pytest.raises(ExceptionGroup, match="1 failed and 1 unknown of 6 rows") as caught:
        report.raise_for_problems()
    assert {type(error) for error in caught.value.exceptions} == {BadRequestError, ServerError}
    assert all("row" in "".join(error.__notes__) for error in caught.value.exceptions)
    assert repr(run) == "<BulkRun left, 6 of 6 done, 1 failed, 1 unknown>"
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "row 1 ('ref 1')" in record.getMessage()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "the board does not list it"),
        (faults.status(401), "the run has ended: GET .* status 401"),
        (faults.hang(), "the run was stopped"),
    ],
)
async def test_the_error_of_an_unknown_row_is_its_own(
    fault: faults.Fault | None, words: str, service: BoardService, list_id: str
) -> None:
    """Whatever left it unknown: it has the history and the request of the row, and says why its card was not found."""
    (board_id,) = service.rules.boards
    service.faults.add(faults.drop(), "cards.create")
    if fault is not None:
        service.faults.add(fault, "boards.cards", call=2)
    async with (
        service.session() as session,
        session.cards.create_many([CardDraft("a", list_id)], board_id=board_id, settle=0.0) as run,
    ):
        await service.received("boards.cards", 2)
        if isinstance(fault, faults.hang):
            run.stop()
        error = (await anext(run)).error
    assert isinstance(error, TransportError)
    assert (error.effect, [attempt.effect for attempt in error.attempts]) == (Effect.UNKNOWN, [Effect.UNKNOWN])
    assert error.as_curl() is not None
    assert re.fullmatch(f"POST /1/cards: .*; whether the card exists is not known: {words}.*", str(error))


async def test_a_run_without_problems_raises_none(service: BoardService, list_id: str) -> None:
    """Nothing is logged either."""
    async with service.session() as session:
        report = await session.cards.create_many([CardDraft("a", list_id)]).wait()
    assert report.problems == ()
    report.raise_for_problems()


async def test_a_value_of_a_callback_is_no_card(service: BoardService, list_id: str) -> None:
    """A refused row fails, whatever the policy makes of its last attempt."""
    service.faults.add(faults.status(400), "cards.create", call=2)
    policy = AsyncRetrying(stop=stop_after_attempt(1), retry_error_callback=lambda state: 7)
    async with service.session(retry=policy) as session:
        run = session.cards.create_many([CardDraft(f"card {number}", list_id) for number in range(3)], concurrency=1)
        report = await run.wait()
    assert (report.created, report.failed) == (2, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry_error_callback": lambda state: None},
        {"retry_error_callback": lambda state: 7, "before": lambda state: None},
        {"retry_error_callback": lambda state: 7, "stop": stop_after_attempt(1)},
        {"retry": retry_if_result(lambda value: True)},
    ],
)
@pytest.mark.parametrize("unknown", ["report", "reconcile"])
async def test_no_policy_repeats_what_may_have_been_done(
    options: dict[str, Any], unknown: str, service: BoardService, list_id: str
) -> None:
    """A policy that repeats everything makes no second card, and the value of its callback is no card."""
    board_id = next(iter(service.rules.boards))
    service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    policy = AsyncRetrying(**{"stop": stop_after_attempt(3), **options})
    async with service.session(retry=policy) as session:
        run = session.cards.create_many(
            [CardDraft(f"card {number}", list_id) for number in range(5)],
            concurrency=1, board_id=board_id, unknown=unknown, settle=0.0,
        )  # fmt: skip
        report = await run.wait()
    assert len(service.rules.cards) == 5
    expected = (5, 0) if unknown == "reconcile" else (4, 1)
    assert (report.created, report.unknown) == expected
