"""Bulk creation: laziness, order, back-pressure, errors as results, and progress."""

import asyncio
import json
from typing import Any

import pytest
from bulk_service import Service, drafts, let_run

from boardclient import AsyncSession, BadRequestError, BulkProgress, DecodeError, Effect, TransportError
from boardclient.testing import BoardService, faults


@pytest.mark.parametrize("concurrency", [None, 1, 40])
async def test_every_card_is_created_once(
    concurrency: int | None, service: BoardService, session: AsyncSession, list_id: str
) -> None:
    """Whatever the number of workers, each draft gives one card and one result with its index."""
    source = [*drafts(list_id, 30)]
    results = {}
    async with session.cards.create_many(source, concurrency=concurrency) as run:
        async for result in run:
            assert result.state == "created"
            assert result.error is None
            assert result.card is not None
            assert result.card.name == result.draft.name == f"card {result.index}"
            results[result.index] = result
        assert run.progress.total == 30
    assert sorted(results) == list(range(30))
    assert len(service.rules.cards) == 30
    service.assert_no_duplicates()
    report = run.report
    assert (report.created, report.already, report.failed, report.unknown) == (30, 0, 0, 0)
    assert (report.requests, report.rejected) == (30, 0)
    assert report.seconds > 0
    assert report.rate == pytest.approx(30 / report.seconds)


async def test_more_workers_than_connections_cost_nothing(session: AsyncSession, list_id: str) -> None:
    """There are no more of them than requests that can be sent at a time."""
    tasks: list[int] = []

    async with session.cards.create_many(drafts(list_id, 3), concurrency=20_000) as run:
        async for result in run:
            tasks.append(len(asyncio.all_tasks()))
            assert result.state == "created"
    assert len(tasks) == 3
    assert max(tasks) < 200


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_input_is_lazy_and_results_press_back(concurrency: int) -> None:
    """Without a consumer at most two rows per worker are sent, and few more read; each result taken lets one more in."""
    pulled: list[int] = []
    service = Service()
    async with service.run(drafts("list", 1000, pulled.append), concurrency) as run:
        taken = 0
        async for _ in run:
            taken += 1
            await let_run()
            assert len(service.begun) == 2 * concurrency + taken
            assert len(pulled) <= len(service.begun) + 32
            if taken == 100:
                break


async def test_errors_of_cards_are_results(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """A failed card is a result, "failed" if nothing was done and "unknown" if it may have been; the run continues."""
    plan: dict[int, faults.Fault] = {
        1: faults.status(400),
        2: faults.status(503),
        4: faults.drop(commit=True),
        5: faults.status(403),
        7: faults.foreign_body(b'{"name": "no id"}'),
        8: faults.foreign_body(b"<html>"),
        10: faults.status(404),
        11: faults.status(408),
        13: faults.redirect("/elsewhere"),
    }
    for number, fault in plan.items():
        service.faults.add(fault, "cards.create", call=number)
    async with session.cards.create_many(drafts(list_id, 14), concurrency=1) as run:
        results = sorted([result async for result in run], key=lambda result: result.index)
    assert [result.state[0] for result in results] == [*"fucufcuucfucfc"]
    assert all((result.error is None) == (result.state == "created") for result in results)
    assert all((result.card is None) == (result.state != "created") for result in results)
    assert isinstance(results[0].error, BadRequestError)
    assert isinstance(results[3].error, TransportError)
    assert isinstance(results[6].error, DecodeError)
    report = run.report
    assert (report.created, report.failed, report.unknown, report.requests, report.rejected) == (5, 4, 5, 14, 0)


@pytest.mark.parametrize("identifier", ["", " ", ".", "a/b", "\n", "\ud83d"])
async def test_an_identifier_that_names_no_card_leaves_a_row_in_doubt(
    identifier: str, service: BoardService, session: AsyncSession
) -> None:
    """No later call could name the card, and a journal could not keep it: the row is looked for on the board."""
    board = await session.boards.create("Board", default_lists=True)
    (list_id, *_) = [item.id for item in await session.boards.lists(board.id)]
    body = json.dumps({"id": identifier}).encode()
    service.faults.add(faults.foreign_body(body), "cards.create", call=1)
    async with session.cards.create_many(drafts(list_id, 3), concurrency=1) as run:
        results = [result async for result in run]
    assert [result.state for result in results] == ["unknown", "created", "created"]
    assert isinstance(results[0].error, DecodeError)
    assert (results[0].error.path, results[0].error.effect) == ("id", Effect.DONE)
    assert run.report.requests == 3
    service.faults.add(faults.foreign_body(body), "cards.create", call=4)
    report = await session.cards.create_many(drafts(list_id, 3), concurrency=1, board_id=board.id, settle=0.0).wait()
    assert (report.created, report.unknown) == (3, 0)
    assert len(service.rules.cards) == 6


async def test_progress_is_reported_after_each_card(service: BoardService, list_id: str) -> None:
    """`on_progress` and the observers get the numbers after each card."""
    service.faults.add(faults.status(400), "cards.create", call=2)
    service.faults.add(faults.status(500), "cards.create", call=3)
    reported: list[BulkProgress] = []
    observed: list[object] = []
    async with (
        service.session(retry=None, observers=[observed.append]) as session,
        session.cards.create_many([*drafts(list_id, 4)], concurrency=1, on_progress=reported.append) as run,
    ):
        await run.wait()
        assert run.progress == reported[-1]
    assert [(one.done, one.created, one.failed, one.unknown, one.total) for one in reported] == [
        (1, 1, 0, 0, 4),
        (2, 1, 0, 1, 4),
        (3, 1, 1, 1, 4),
        (4, 2, 1, 1, 4),
    ]
    assert [event for event in observed if isinstance(event, BulkProgress)] == reported
    assert reported[-1].remaining_seconds == 0
    assert reported[0].remaining_seconds == pytest.approx(3 / reported[0].rate)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": -1}, ValueError),
        ({"concurrency": True}, ValueError),
        ({"concurrency": 1.5}, ValueError),
        ({"unknown": "never"}, ValueError),
        ({"unknown": "reconcile"}, ValueError),
        ({"board_id": ".."}, ValueError),
        ({"journal": 3}, TypeError),
        ({"marker": "text"}, TypeError),
        ({"settle": -1}, ValueError),
        ({"patience": -1}, ValueError),
        ({"settle": float("inf")}, ValueError),
        ({"unknown": []}, ValueError),
        ({"drafts": 3}, TypeError),
        ({"on_progress": 3}, TypeError),
    ],
)
async def test_bad_arguments(
    arguments: dict[str, Any], error: type[Exception], service: BoardService, session: AsyncSession
) -> None:
    """A bad argument is refused by `create_many` itself, before anything is sent."""
    with pytest.raises(error):
        session.cards.create_many(**{"drafts": [], **arguments})
    assert len(service.calls) == 0
    assert (await session.cards.create_many([], unknown="report")).created == 0


async def test_results_that_wait_are_taken_without_waiting(service: BoardService, list_id: str) -> None:
    """`take_ready` returns the available results, also after the end, and never waits for a card."""
    service.faults.add(faults.hang(), "cards.create", call=2)
    async with service.session() as session, session.cards.create_many(drafts(list_id, 3), concurrency=1) as run:
        assert run.take_ready() == []
        await service.received("cards.create", 2)
        assert [result.index for result in run.take_ready()] == [0]
        assert run.take_ready() == []
    async with service.session() as session, session.cards.create_many([]) as run:
        await run.wait()
        assert run.take_ready() == []
        with pytest.raises(StopAsyncIteration):
            await anext(run)
