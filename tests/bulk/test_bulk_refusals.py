"""Rows that get a 429: when they are sent again, and when they fail."""

import asyncio
from pathlib import Path

import attrs
from bulk_helpers import REFUSED, Memory, Moments, World, kept
from bulk_service import let_run
from virtual_loop import virtually

from boardclient import (
    CardDraft,
    Effect,
    Pace,
    RateLimitError,
    TransportError,
)
from boardclient.bulk._hold import Hold
from boardclient.bulk._put_off import pause_before
from boardclient.bulk._rows import Row
from boardclient.bulk.journal import read_journal
from boardclient.testing import faults


async def test_a_refused_card_waits_for_retry_after(moments: Moments) -> None:
    """Retry-After holds the refused card; others are sent meanwhile, and the run waits for it."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"b": [REFUSED]}
    async with memory.run("abcdef") as run:
        taken = [(await anext(run)).draft.name for _ in range(5)]
        assert taken == list("acdef")
        await let_run()
        assert run.take_ready() == []
        (timer,) = moments.timers
        assert timer.seconds == 30.0
        assert len(memory.times("b")) == 1
        moments.ring(timer)
        assert [result.draft.name async for result in run] == ["b"]
    assert memory.times("b")[1] >= memory.times("b")[0] + 30.0


async def test_a_refusal_without_a_time_is_the_pace_alone(moments: Moments) -> None:
    """Without Retry-After the card waits for the limiter again at once."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError("429", 429)] * 3}
    (result,) = await memory.results("a")
    assert result.state == "created"
    assert [timer.seconds for timer in moments.timers] == [0.0] * 3


async def test_refused_cards_are_sent_before_others(moments: Moments, path: Path) -> None:
    """Cards that were refused come before those that were not tried, also where many rows are logged already."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError("429", 429)], "b": [RateLimitError("429", 429)]}
    await memory.results("abcdefgh", journal=path, concurrency=2)
    assert sorted(name for name, _ in memory.sent[:6]) == ["a", "a", "b", "b", "c", "d"]


async def test_the_next_run_sends_a_card_whose_retry_after_was_too_long(moments: Moments, path: Path) -> None:
    """A card with a Retry-After of an hour fails at once, and the next run with the journal sends it."""
    memory = Memory(moments)
    memory.script = {"b": [RateLimitError("429", 429, retry_after=3600.0)]}
    assert [result.state for result in await memory.results("abc", journal=path)] == ["created", "failed", "created"]
    assert read_journal(path).counts["waiting"] == 1
    again = {result.draft.name: result.state for result in await memory.results("abc", journal=path)}
    assert again == {"a": "already", "b": "created", "c": "already"}


async def test_a_card_that_is_refused_for_too_long_fails(moments: Moments) -> None:
    """A card that would have to wait for more than five minutes since its first refusal fails if no other is accepted."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError(f"429 {number}", 429, retry_after=80.0) for number in range(20)]}
    (result,) = await memory.results("a")
    assert (result.state, str(result.error)) == ("failed", "429 3")
    first, *_, last = memory.times("a")
    assert len(memory.times("a")) == 4
    assert 240.0 <= last - first < 300.0


@virtually
async def test_a_row_is_put_off_for_longer_each_time_up_to_a_bound() -> None:
    """The pauses of a row that could not be sent double up to 6.4 s. From the 20th on its own time counts, not that of others."""
    hold, one = Hold(None, list), Row(0, CardDraft("a", "list"))
    failure = TransportError("refused", "connect", effect=Effect.NOT_SENT)
    pauses = [pause_before(one, failure, hold) for _ in range(10)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 6.4, 6.4]
    await asyncio.sleep(300.0)
    hold.note_success()
    pauses = [pause_before(one, failure, hold) for _ in range(10)]
    assert pauses == [6.4] * 9 + [None]


async def test_a_run_that_is_left_forgets_its_timers(moments: Moments, path: Path) -> None:
    """A refused card that waits is on record as not done, and no timer stays behind."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": [REFUSED]}
    async with memory.run("ab", journal=path) as run:
        await anext(run)
    assert [timer.is_cancelled for timer in moments.timers] == [True]
    assert kept(path)[0][0] == "waiting"


async def test_a_refused_card_of_a_run_that_stops_is_to_be_sent(moments: Moments, path: Path) -> None:
    """A card that was refused before the run stopped was not created: the next run sends it."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": [REFUSED]}
    async with memory.run("ab", journal=path) as run:
        await anext(run)
        run.stop()
        await run.wait()
    assert kept(path)[0][0] == "waiting"
    states = {result.draft.name: result.state for result in await memory.results("ab", journal=path)}
    assert states == {"a": "created", "b": "already"}
    assert len(memory.cards) == 2


async def test_a_pace_that_sessions_share_is_the_run_s(world: World) -> None:
    """A run reports to the session's Pace and makes none of its own; refused cards are sent again."""
    pace = Pace(start_rate=10_000.0)
    world.service.faults.add(faults.status(429), "cards.create", call=range(3, 6))
    async with world.service.session(limiter=pace) as session:
        run = attrs.evolve(world, session=session).run(world.drafts(*range(20)))
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (20, 23, 3)
    assert pace.limit is not None
    assert pace.in_flight == 0
    world.service.assert_no_duplicates()


async def test_a_fixed_number_of_workers_comes_through_a_limit(world: World) -> None:
    """Refused now and then, a run with a concurrency of its own creates each card once."""
    world.service.faults.add(faults.status(429, headers={"Retry-After": "0"}), "cards.create", call=range(4, 7))
    _, report = await world.finish(world.drafts(*range(20)), concurrency=8)
    assert (report.created, report.rejected, report.requests) == (20, 3, 23)
    world.service.assert_no_duplicates()
