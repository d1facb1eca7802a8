"""Rows that get a 429: when they are sent again, and when they fail."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from bulk_helpers import REFUSED, Memory, Moments, World, kept
from pace_simulation import pace_of
from waiting import until

from boardclient import BadRequestError, BulkProgress, CardDraft, RateLimitError
from boardclient.bulk.journal import read_journal
from boardclient.testing import faults


async def test_a_refused_card_waits_for_retry_after(moments: Moments) -> None:
    """It is sent again no earlier than it was asked for, and created."""
    memory = Memory(moments, seconds=0.0)
    memory.script = {"b": [REFUSED], "d": [RateLimitError("429", 429)] * 3}
    results = await memory.results("abcdef", board_id=None)
    assert {result.state for result in results} == {"created"}
    first, second = memory.times("b")
    assert 30.0 <= second - first < 60.0


async def test_refused_cards_are_sent_before_others(moments: Moments, path: Path) -> None:
    """Cards that were refused come before those that were not tried, also where many rows are logged already."""
    memory = Memory(moments, seconds=0.0)
    memory.script = {"a": [RateLimitError("429", 429)] * 2}
    await memory.results("abcdefgh", journal=path, concurrency=1)
    assert [name for name, _ in memory.sent] == [*"aaabcdefgh"]


@pytest.mark.parametrize("board_id", ["board", None])
async def test_what_an_earlier_run_saw_refused_is_sent_after_all_others(
    moments: Moments, path: Path, board_id: str | None
) -> None:
    """Rows that are always refused are an outage to a run: the rows behind them must not wait for it in each run."""
    memory = Memory(moments, seconds=0.0)
    memory.script = {name: [BadRequestError("400", 400)] * 2 for name in "ab"}
    first = await memory.results("abc", journal=path, concurrency=1, board_id=board_id)
    assert {result.draft.name: result.state for result in first} == {"a": "failed", "b": "failed", "c": "created"}
    memory.sent.clear()
    again = await memory.results("abcdef", journal=path, concurrency=1, board_id=board_id)
    assert [name for name, _ in memory.sent] == [*"defab"]
    assert Counter(result.state for result in again) == {"failed": 2, "already": 1, "created": 3}


def row(name: str) -> CardDraft:
    return CardDraft(name, "list", reference=name)


async def refused_before(moments: Moments, path: Path, number: int) -> tuple[Memory, list[CardDraft]]:
    """Run rows of which a number are refused, each before one that is not."""
    memory = Memory(moments, seconds=0.0)
    rows = [row(f"{kind} {index}") for index in range(number) for kind in ("refused", "accepted")]
    memory.script = {draft.name: [BadRequestError("400", 400)] for draft in rows[::2]}
    await memory.results(rows, journal=path, concurrency=1)
    memory.sent.clear()
    return memory, rows


async def test_what_an_earlier_run_saw_refused_is_not_in_doubt_until_it_is_sent(moments: Moments, path: Path) -> None:
    """It is sent last, and a kill leaves in doubt what may have been sent."""
    memory, rows = await refused_before(moments, path, 40)
    failed: list[int] = []
    call = memory.call

    async def watched(request: Any) -> Any:
        failed.append(read_journal(path).counts["failed"])
        return await call(request)

    memory.call = watched  # type: ignore[method-assign]  # -- what a kill at this moment would leave
    results = await memory.results([*rows, *(row(str(number)) for number in range(60))], journal=path, concurrency=1)
    assert Counter(result.state for result in results) == {"already": 40, "created": 100}
    assert failed[:60] == [40] * 60
    assert read_journal(path).counts["done"] == 140


async def test_a_run_that_is_stopped_leaves_what_was_refused_before_as_it_was(moments: Moments, path: Path) -> None:
    """The next run sends it after the others, too."""
    memory, rows = await refused_before(moments, path, 4)
    call = memory.call

    async def stopping(request: Any) -> Any:
        if request.operation.name == "cards.create":
            run.stop()
        return await call(request)

    memory.call = stopping  # type: ignore[method-assign]  # -- stopped while the row is sent
    async with memory.run([*rows, row("new"), row("last")], journal=path, concurrency=1) as run:
        assert [result.state async for result in run][-1] == "created"
    assert {state: number for state, number in read_journal(path).counts.items() if number} == {
        "done": 5,
        "failed": 4,
        "waiting": 1,
    }


async def test_what_was_refused_before_is_not_kept_without_a_limit(
    moments: Moments, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input is consumed lazily, however much of it an earlier run saw refused."""
    monkeypatch.setattr("boardclient.bulk._engine._places._MOST_REFUSED", 8)
    memory, rows = await refused_before(moments, path, 400)
    taken = 0

    def drafts() -> Iterator[CardDraft]:
        nonlocal taken
        for draft in rows[::2]:
            taken += 1
            yield draft

    async with memory.open_run(drafts(), journal=path, concurrency=1, board_id="board") as run:
        async for _ in run:
            assert taken < 400
            break


@pytest.mark.parametrize("number", [1, 3])
async def test_a_pause_that_is_too_long_ends_the_run(moments: Moments, path: Path, number: int) -> None:
    """A Retry-After of an hour ends the run, which says when to come back. The next run sends all cards that were not created."""
    memory, began = Memory(moments), moments.now
    memory.script = {name: [RateLimitError("429", 429, retry_after=3600.0)] for name in "bcd"[:number]}
    with pytest.raises(RateLimitError, match=r"the service accepts requests again at 20\d\d-.*left to the next"):
        async with memory.run("abcdefgh", journal=path, concurrency=None) as run:
            assert {result.state async for result in run} <= {"created"}
    assert moments.now < began + 10.0
    created = {card.name for card in memory.cards}
    assert (run.report.failed, run.report.unknown, run.report.created) == (0, 0, len(created))
    assert read_journal(path).counts["waiting"] == 8 - len(created)
    again = {result.draft.name: result.state for result in await memory.results("abcdefgh", journal=path)}
    assert again == {name: "already" if name in created else "created" for name in "abcdefgh"}


async def test_a_pause_is_shown_with_its_end(moments: Moments) -> None:
    """While refusals hold all cards, the progress says until when."""
    memory, shown = Memory(moments, seconds=0.0), list[BulkProgress]()
    memory.script = {name: [RateLimitError("429", 429, retry_after=200.0)] for name in "abcdefgh"}
    run, began = memory.run("abcdefgh", shown.append, board_id=None, concurrency=None), datetime.now(UTC)
    assert (await run.wait()).created == 8
    held = [progress for progress in shown if progress.waiting_for == "retry-after"]
    assert held
    for progress in held:
        assert progress.wait_ends_at is not None
        assert began < progress.wait_ends_at <= datetime.now(UTC) + timedelta(seconds=200.0)
        assert progress.status.endswith(", as the service asks")


async def test_a_pause_that_nobody_has_asked_for_is_not_said_to_be(moments: Moments) -> None:
    """Without Retry-After the pace makes the pauses itself."""
    memory, shown = Memory(moments, seconds=0.0), list[BulkProgress]()
    memory.script = {name: [RateLimitError("429", 429)] * 4 for name in "abcdefgh"}
    run = memory.run("abcdefgh", shown.append, board_id=None, concurrency=None)
    assert (await run.wait()).created == 8
    held = [progress for progress in shown if progress.waiting_for == "refusals"]
    assert held
    assert "retry-after" not in {progress.waiting_for for progress in shown}
    assert all(progress.status.endswith(", since the service refuses more requests") for progress in held)


async def test_a_card_that_is_refused_for_too_long_fails(moments: Moments) -> None:
    """A card that would have to wait for more than five minutes since its first refusal fails if no other is accepted."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError(f"429 {number}", 429, retry_after=80.0) for number in range(20)]}
    (result,) = await memory.results("a")
    assert (result.state, str(result.error)) == ("failed", "429 3")
    first, *_, last = memory.times("a")
    assert len(memory.times("a")) == 4
    assert 240.0 <= last - first < 300.0


@pytest.mark.parametrize("stops", [True, False])
async def test_a_refused_card_of_a_run_that_ends_is_to_be_sent(moments: Moments, path: Path, stops: bool) -> None:
    """A card that was refused before the run stopped, or was left, was not created: the next run sends it."""
    memory = Memory(moments)
    memory.script = {"b": [REFUSED]}
    async with memory.run("abc", journal=path) as run:
        await anext(run)
        await until(lambda: memory.times("b") and not run.progress.in_flight, pause=0.01)
        if stops:
            run.stop()
            await run.wait()
    assert {kept(path)[1][0], kept(path)[2][0]} == {"waiting"}
    states = {result.draft.name: result.state for result in await memory.results("abc", journal=path)}
    assert states == {"a": "already", "b": "created", "c": "created"}
    assert len(memory.cards) == 3


async def test_a_pace_that_sessions_share_is_the_run_s(world: World) -> None:
    """A run reports to the session's Pace and makes none of its own; refused cards are sent again."""
    pace = pace_of(10_000.0)
    world.service.faults.add(faults.status(429), "cards.create", call=range(3, 6))
    async with world.service.session(limiter=pace) as session:
        run = attrs.evolve(world, session=session).run(world.drafts(*range(20)))
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (20, 23, 3)
    assert pace.limit is not None
    assert pace.in_flight == 0
    world.service.assert_no_duplicates()


@pytest.mark.parametrize("how", ["stops", "leaves"])
async def test_rows_that_wait_for_the_pace_are_left_to_the_next_run(how: str, moments: Moments, path: Path) -> None:
    """A run that is stopped or left during a pause that the service asked for ends at once."""
    memory = Memory(moments, seconds=0.0)
    memory.script = {name: [RateLimitError("429", 429, retry_after=200.0)] for name in "abcd"}
    async with memory.run("abcdefgh", journal=path, board_id=None, concurrency=None) as run:
        await until(lambda: len(memory.sent) >= 4 and not run.progress.in_flight, pause=0.01)
        began = moments.now
        if how == "stops":
            run.stop()
            await run.wait()
    assert moments.now < began + 1.0
    assert {state for state, _ in kept(path).values()} <= {"waiting", "done"}


async def test_a_request_that_waits_for_a_limiter_is_held_with_the_others(world: World) -> None:
    """An outage that begins while requests wait for the session's limiter holds them: only few reach the service."""

    class Turnstile:
        async def __aenter__(self) -> None:
            await asyncio.sleep(0)

        async def __aexit__(self, *reason: object) -> None: ...

    first = len(world.sent) + 1
    world.service.faults.add(faults.status(404), "cards.create", call=range(first, first + 8))
    async with world.service.session(limiter=Turnstile()) as session:
        report = await attrs.evolve(world, session=session).run(world.drafts(*range(40)), concurrency=8).wait()
    assert (report.created, report.failed) == (40, 0)
    world.service.assert_no_duplicates()
