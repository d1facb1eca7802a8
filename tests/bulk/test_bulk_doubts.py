"""Rows whose effect is unknown: kept until the board is read, reported, or sent again, as the option `unknown` says."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from bulk_helpers import LOST, Memory, Moments, kept
from virtual_loop import virtually
from waiting import until

from boardclient import BadRequestError, CardDraft, Effect, ServerError


@virtually
async def test_settle_is_kept() -> None:
    """The board is read, and a card sent again, no earlier than `settle` seconds after the last one in doubt was sent."""
    memory = Memory(seconds=7.0)
    memory.script = {"b": [LOST], "d": [LOST]}
    results = await memory.results("abcdef", settle=60.0)
    assert {result.state for result in results} == {"created"}
    last = memory.times("d")[0]
    assert min(at for at in memory.read_at if at > 0) >= last + 60.0
    assert memory.times("b")[1] >= last + 60.0


@pytest.mark.parametrize(("timeout", "settle"), [(None, 60.0), (3.0, 10.0), (30.0, 60.0), (100.0, 200.0)])
@virtually
async def test_the_default_settle_is_twice_the_timeout(timeout: float | None, settle: float) -> None:
    """At least ten seconds; a minute where calls have no deadline."""
    memory = Memory(timeout=timeout)
    memory.script = {"a": ["swallowed"]}
    await memory.results("ab", settle=None)
    assert min(at for at in memory.read_at if at > 0) == settle


async def test_settle_counts_from_the_opening_for_earlier_runs(moments: Moments, path: Path) -> None:
    """The run that sent a row has ended when the journal is opened. Only then the waiting begins."""
    memory = Memory(moments)
    memory.script = {"b": ["hang"]}
    async with memory.run("abc", journal=path) as run:
        await anext(run)
        await until(lambda: memory.times("b"), pause=0.01)
    opened = moments.now
    results = {result.draft.name: result.state for result in await memory.results("abc", journal=path)}
    assert results == {"a": "already", "b": "created", "c": "created"}
    assert opened + 60.0 <= memory.times("b")[1] < opened + 120.0
    assert sorted(card.name or "" for card in memory.cards) == [*"abc"]


@virtually
async def test_the_last_row_is_kept_back_to_prove_the_others_absent() -> None:
    """Its card makes the listing longer. Without one, a row that is not listed is unknown, and is not sent again."""
    memory = Memory()
    memory.script = {"b": [LOST]}
    results = await memory.results("abc", concurrency=3)
    assert {result.state for result in results} == {"created"}
    assert [name for name, _ in memory.sent] == ["a", "b", "c", "b"]
    memory = Memory()
    memory.script = {"b": [LOST], "c": [LOST]}
    results = await memory.results("abc", concurrency=3)
    assert {result.draft.name: result.state for result in results} == {"a": "created", "b": "unknown", "c": "unknown"}
    assert len(memory.sent) == 3
    assert results[-1].error is not None
    assert results[-1].error.effect is Effect.UNKNOWN


@virtually
async def test_of_absent_rows_one_is_kept_back() -> None:
    """Rows that are sent again may be lost again: the last of them proves what happened to the others."""
    memory = Memory()
    memory.script = {"a": [LOST, LOST], "b": [LOST]}
    results = await memory.results("abcd", concurrency=2)
    assert {result.state for result in results} == {"created"}
    assert sorted(card.name or "" for card in memory.cards) == [*"abcd"]


@virtually
async def test_a_card_lost_and_proven_absent_each_time_fails_at_last() -> None:
    """After five requests it is known not to exist, so it failed, and is not unknown."""
    memory = Memory()
    memory.script = {"a": [LOST] * 9}

    async def rows() -> AsyncIterator[CardDraft]:
        for number in range(40):
            yield CardDraft("a" if not number else f"other {number}", "list")
            await asyncio.sleep(30.0)

    async with memory.open_run(rows(), concurrency=2, board_id="board", settle=60.0) as run:
        results = {result.draft.name: result async for result in run}
    assert (results["a"].state, len(memory.times("a"))) == ("failed", 5)
    assert "sent 5 times, and not on the board" in str(results["a"].error)
    assert run.report.created == 39


@virtually
async def test_a_card_that_is_not_listed_waits_for_an_input_that_may_yield_another() -> None:
    """It is unknown after `settle` more seconds in which no card came that could prove it absent."""

    async def rows() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", "list")
        await asyncio.sleep(1000.0)

    memory = Memory()
    memory.script = {"a": [LOST]}
    async with memory.open_run(rows(), concurrency=1, board_id="board", settle=60.0, probe=False) as run:
        began = asyncio.get_running_loop().time()
        result = await anext(run)
        waited = asyncio.get_running_loop().time() - began
    assert result.state == "unknown"
    assert 120.0 <= waited < 130.0


@virtually
async def test_the_board_is_not_read_while_a_row_is_sent() -> None:
    """Rows that the input yields during `settle` are sent meanwhile, and the board is read when their calls have ended."""

    async def rows() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", "list")
        await asyncio.sleep(62.0)
        for name in "bcd":
            yield CardDraft(name, "list")

    memory = Memory(seconds=7.0)
    memory.script = {"a": [LOST]}
    async with memory.open_run(rows(), concurrency=3, board_id="board", settle=60.0) as run:
        states = {result.draft.name: result.state async for result in run}
    assert states == dict.fromkeys("abcd", "created")
    assert 67.0 < memory.times("b")[0] + 7.0 <= min(at for at in memory.read_at if at > 0)


@virtually
async def test_more_rows_in_doubt_than_are_kept() -> None:
    """Before the end of the input the board is read as well, whenever a thousand rows are in doubt."""
    memory = Memory()
    drafts = [f"{number}" for number in range(2500)]
    memory.script = {name: ["swallowed"] for number, name in enumerate(drafts) if number % 2}
    most = 0

    def note(progress: object) -> None:
        nonlocal most
        most = max(most, progress.in_doubt)  # type: ignore[attr-defined]  # -- it is a BulkProgress

    async with memory.run(drafts, note, concurrency=4) as run:
        report = await run.wait()
    assert (report.created, report.unknown) == (2500, 0)
    assert 1000 <= most <= 1004
    assert len(memory.sent) == 2500


@virtually
async def test_a_run_without_doubts_and_without_a_journal_reads_the_board_once() -> None:
    """The audit reads the whole board, so it is left to runs that had cards in doubt, or have a journal."""
    memory = Memory()
    async with memory.run("abc") as run:
        await run.wait()
    assert len(memory.read_at) == 1
    assert run.report.audit is None


@virtually
async def test_report_sends_at_most_once() -> None:
    """A card in doubt is unknown at once, and the cards of the board are not read."""
    memory = Memory()
    memory.script = {"a": [LOST], "b": ["swallowed"], "c": [BadRequestError("400", 400)]}
    results = await memory.results("abcd", unknown="report")
    states = {result.draft.name: result.state for result in results}
    assert states == {"a": "unknown", "b": "unknown", "c": "failed", "d": "created"}
    assert (len(memory.sent), memory.read_at) == (4, [])


def unavailable(seconds: float) -> ServerError:
    return ServerError("503", 503, retry_after=seconds, effect=Effect.UNKNOWN)


@virtually
async def test_resend_sends_at_least_once() -> None:
    """A card in doubt is sent again after growing pauses, at most five times, while others continue."""
    memory = Memory()
    memory.script = {"a": [LOST] * 9, "b": ["swallowed"], "c": [LOST, BadRequestError("400", 400)]}
    async with memory.run("abcdef", board_id=None, unknown="resend") as run:
        results = {result.draft.name: result async for result in run}
    assert {name: result.state for name, result in results.items()} == {
        "a": "unknown", "b": "created", "c": "unknown", "d": "created", "e": "created", "f": "created",
    }  # fmt: skip
    times = memory.times("a")
    assert [after - before for before, after in pairwise(times)] == pytest.approx([0.5, 1, 2, 4])
    assert Counter(card.name for card in memory.cards)["b"] == 2
    assert "sent again: 400" in "".join(getattr(results["c"].error, "__notes__", []))


@virtually
async def test_resend_waits_as_long_as_the_service_asks() -> None:
    """`Retry-After` counts from the first 503, unless the own pause is longer."""
    memory = Memory()
    memory.script = {"a": [unavailable(4.0), unavailable(0.1)]}
    async with memory.run("ab", board_id=None, unknown="resend") as run:
        assert {result.state async for result in run} == {"created"}
    assert [after - before for before, after in pairwise(memory.times("a"))] == pytest.approx([4.0, 1.0])


@virtually
async def test_resend_leaves_a_card_to_the_next_run_if_the_service_asks_for_too_long_a_pause() -> None:
    """The run ends with an error that says when to come back; its card is unknown."""
    memory = Memory()
    memory.script = {"a": [unavailable(3600.0)]}
    async with memory.run("a", board_id=None, unknown="resend") as run:
        with pytest.raises(ServerError, match=r"the service accepts requests again at 20\d\d-.*left to the next"):
            await run.wait()
    assert (run.report.unknown, len(memory.sent)) == (1, 1)


@pytest.mark.parametrize("stops", [True, False])
async def test_the_doubt_of_a_card_that_waits_to_be_resent_is_kept(stops: bool, moments: Moments, path: Path) -> None:
    """A card that was sent and waits to be sent again may exist: a next run that sends at most once does not send it."""
    memory = Memory(moments, seconds=0.05)
    memory.script = {"a": [LOST, LOST]}
    async with memory.run("a", journal=path, unknown="resend", board_id=None) as run:
        await until(lambda: memory.sent and not run.progress.in_flight, pause=0.01)
        if stops:
            run.stop()
            assert [result.state async for result in run] == ["unknown"]
    assert (kept(path)[0][0], run.report.unknown) == ("unknown", 1)
    (result,) = await memory.results("a", journal=path, unknown="report", board_id=None)
    assert (result.state, len(memory.sent)) == ("unknown", 1)


@virtually
async def test_one_card_that_two_responses_name_is_one_row_s() -> None:
    """Of the second row it is not known what happened; it is never reported as created."""

    class Repeating(Memory):
        async def call(self, request):  # type: ignore[no-untyped-def]  # -- as its base's
            card = await super().call(request)
            return self.cards[0] if request.operation.name == "cards.create" and card.name == "c" else card

    for options in ({"board_id": None}, {"unknown": "report"}):
        memory = Repeating()
        results = {result.draft.name: result for result in await memory.results("abcd", **options)}
        assert {name: result.state for name, result in results.items()} == dict.fromkeys("abd", "created") | {"c": "unknown"}
        assert "which is another row's" in str(results["c"].error)
    memory = Repeating()
    results = {result.draft.name: result for result in await memory.results("abcd")}
    ids = [result.card.id for result in results.values() if result.card is not None]
    assert len(ids) == len(set(ids)) >= 3
