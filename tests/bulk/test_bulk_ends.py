"""What ends a run or a row early: refusals, stopping, a journal that fails; each leaves a journal to resume."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from bulk_helpers import LOST, Memory, World, kept, names
from bulk_service import Service, let_run

from boardclient import AuthenticationError, CardDraft, Effect, SessionClosedError, TransportError
from boardclient.testing import faults


async def test_failed_rows_are_sent_again_by_every_later_run(world: World) -> None:
    """Whatever the reason was: it may have been a fault that has passed, such as the page of a proxy."""
    world.service.faults.add(faults.status(404), "cards.create", call=[1, 3])
    drafts = world.drafts(0, 1)
    assert (await world.finish(drafts, concurrency=1))[0] == {"0": "failed", "1": "created"}
    assert (await world.finish(drafts, concurrency=1))[0] == {"0": "failed", "1": "already"}
    assert kept(world.path)["row 0"][0] == "failed"
    assert (await world.finish(drafts, concurrency=1))[0] == {"0": "created", "1": "already"}
    assert (await world.finish(drafts, concurrency=1))[0] == {"0": "already", "1": "already"}
    assert world.sent == ["0", "1", "0", "0"]


async def test_a_failed_row_may_be_changed(world: World) -> None:
    """No card was created, so its content may be mended under the same reference."""
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    (draft,) = world.drafts(0)
    assert (await world.finish([draft]))[0] == {"0": "failed"}
    assert (await world.finish([attrs.evolve(draft, desc="better")]))[0] == {"0": "created"}


@pytest.mark.usefixtures("passing_time")
async def test_rows_that_never_left_are_sent_by_the_next_run(world: World) -> None:
    """A service that could not be reached was sent nothing: no doubt remains."""
    port = world.service.port
    await world.service.stop()
    async with world.session.with_options(timeout=0.2).cards.create_many(world.drafts(0, 1), journal=world.path) as run:
        with pytest.raises(TransportError, match="nothing was accepted for too long"):
            await run.wait()
    assert (run.report.requests, run.report.failed) == (0, 0)
    assert {state for state, _ in kept(world.path).values()} == {"waiting"}
    await world.service.start()
    assert world.service.port == port
    states, _ = await world.finish(world.drafts(0, 1), board_id=None)
    assert states == {"0": "created", "1": "created"}


async def test_a_fatal_401_leaves_a_resumable_journal(world: World) -> None:
    """The run ends at once; with good credentials the next run resumes, and each card is created once."""
    world.service.faults.add(faults.status(401), "cards.create", call=range(6, 1000))
    drafts = world.drafts(*range(20))
    seen = []
    async with world.run(drafts, concurrency=3) as run:
        with pytest.raises(AuthenticationError):
            async for result in run:
                seen.append(result.state)
    assert Counter(seen)["created"] == 5
    assert set(seen) == {"created", "failed"}
    assert {state for state, _ in kept(world.path).values()} == {"done", "failed", "waiting"}
    world.service.faults.clear()
    states, report = await world.finish(drafts)
    assert (report.already, report.created) == (5, 15)
    assert len(states) == 20
    assert world.there == names(range(20))


async def test_a_lent_session_that_is_closed_leaves_a_resumable_journal(world: World) -> None:
    """The run ends at once, with an error that says so: no outage is waited out."""
    drafts = world.drafts(*range(20))
    async with (
        aiohttp.ClientSession() as http,
        world.service.session(http=http) as lender,
        lender.cards.create_many(drafts, journal=world.path, board_id=world.board_id, concurrency=1) as run,
    ):
        await anext(run)
        await http.close()
        with pytest.raises(SessionClosedError, match="lent as http= is closed"):
            await run.wait()
    await world.finish(drafts)
    assert world.there == names(range(20))


async def test_stopping_begins_no_further_card(world: World) -> None:
    """Cards in flight are completed; each logged row is done or not sent; the next run does the rest."""
    drafts = world.drafts(*range(60))
    results = []
    async with world.run(iter(drafts), concurrency=4) as run:
        async for result in run:
            results.append(result)
            if len(results) == 10:
                under_way = len(world.sent)
                run.stop()
                run.stop()
        assert len(results) == run.report.created == run.progress.done
    run.stop()
    assert len(results) == len(world.sent) <= under_way + 4 < 60
    states = Counter(state for state, _ in kept(world.path).values())
    assert states["done"] == len(results)
    assert set(states) <= {"done", "waiting"}
    _, report = await world.finish(drafts)
    assert (report.already, report.created) == (len(results), 60 - len(results))
    assert world.there == names(range(60))
    assert report.audit is not None
    assert report.audit.is_sound


async def test_stopping_reports_rows_in_doubt() -> None:
    """While the run waits until the board may be read, stopping ends it at once: what is in doubt is unknown."""
    memory = Memory()
    memory.script = {"a": [LOST], "c": ["swallowed"]}
    async with memory.run("abcd", settle=1000.0) as run:
        assert (await anext(run)).draft.name == "b"
        await let_run()
        run.stop()
        results = {result.draft.name: result async for result in run}
    assert {name: result.state for name, result in results.items()} == {"a": "unknown", "c": "unknown"}
    assert isinstance(results["a"].error, TransportError)
    assert len(memory.read_at) == 1
    assert (run.report.created, run.report.unknown) == (1, 2)


async def test_stopping_withdraws_what_waits_to_be_sent(path: Path) -> None:
    """A row that is on record and was not sent is no row in doubt, while the block still runs and after."""

    class Stopping(Memory):
        async def call(self, request: Any) -> Any:
            if request.operation.name == "cards.create":
                run.stop()
            return await super().call(request)

    memory = Stopping()
    run = memory.run("abc", journal=path)
    async with run:
        assert [result.draft.name async for result in run] == ["a"]
        assert set(kept(path)) == {0, 1, 2}
    assert [state for state, _ in kept(path).values()] == ["done", "waiting", "waiting"]


async def test_a_list_of_another_board_is_not_sent(world: World) -> None:
    """A draft whose list is not on the board fails without a request; with its list in place the next run sends it."""
    other = await world.session.boards.create("Other")
    elsewhere = (await world.session.lists.create("elsewhere", board_id=other.id)).id
    stray = CardDraft("card stray", elsewhere, reference="stray")
    async with world.run([stray, *world.drafts(0)], concurrency=1) as run:
        first, second = [result async for result in run]
    assert (first.state, second.state) == ("failed", "created")
    assert first.error is not None
    assert first.error.effect is Effect.NOT_SENT
    assert f"the list {elsewhere} is not on the board" in str(first.error)
    assert world.sent == ["0"]
    assert kept(world.path)["stray"][0] == "failed"
    states, _ = await world.finish([attrs.evolve(stray, list_id=world.lists[0])])
    assert states == {"stray": "created"}


@pytest.mark.parametrize(("error", "unknown", "state"), [(LOST, "resend", "unknown"), (LOST, "report", "unknown")])
async def test_a_card_that_fails_after_the_stop_is_not_sent_again(error: BaseException, unknown: str, state: str) -> None:
    """A request in flight when the run is stopped ends it, whatever its result would else lead to."""
    service = Service(waits=True)
    service.errors["a"] = error
    async with service.open_run([CardDraft("a", "list")], concurrency=1, unknown=unknown) as run:
        await let_run()
        run.stop()
        await let_run()
        service.may_end.set()
        async with asyncio.timeout(60):
            assert [result.state async for result in run] == [state]
    assert service.begun == ["a"]
