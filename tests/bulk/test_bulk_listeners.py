"""What listeners and the journal receive, and what they never do."""

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bulk_helpers import LOST, Memory, Moments, World, kept

from boardclient import BulkProgress
from boardclient.testing import faults


async def test_progress_of_a_resumed_run(world: World) -> None:
    """Each result is announced once, with all states; a card in doubt is announced when it is settled."""
    reported: list[BulkProgress] = []
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    drafts = world.drafts(*range(3))
    await world.finish(drafts, concurrency=1)
    world.service.faults.clear()
    world.service.faults.add(faults.status(500), "cards.create", call=4)
    drafts += world.drafts(3, 4)
    async with world.run(drafts, concurrency=1, unknown="report", on_progress=reported.append) as run:
        await run.wait()
    results = [one for number, one in enumerate(reported) if one.done and one.done != reported[number - 1].done]
    assert [(one.done, one.already, one.failed, one.unknown, one.created, one.total) for one in results] == [
        (1, 1, 0, 0, 0, 5),
        (2, 2, 0, 0, 0, 5),
        (3, 2, 0, 1, 0, 5),
        (4, 2, 0, 1, 1, 5),
        (5, 2, 0, 1, 2, 5),
    ]
    report = run.report
    assert (report.created, report.already, report.failed, report.unknown, report.requests) == (2, 2, 0, 1, 3)


async def test_a_failing_listener_loses_no_card_that_was_sent(moments: Moments, path: Path) -> None:
    """Cards that are in flight when it fails have their results, and are on record; the first error is raised."""

    def fail(progress: BulkProgress) -> None:
        if progress.done:
            raise ZeroDivisionError(progress.done)

    memory = Memory(moments)
    seen = []
    async with memory.run("abcdefgh", fail, journal=path, concurrency=3) as run:
        with pytest.raises(ZeroDivisionError, match="1"):
            async for result in run:
                seen.append(result.draft.name)
        assert run.report.created == len(seen)
    assert sorted(seen) == sorted(card.name or "" for card in memory.cards)
    assert {state for state, _ in kept(path).values()} <= {"done", "waiting"}
    report = Counter(result.state for result in await memory.results("abcdefgh", journal=path))
    assert report == {"already": len(seen), "created": 8 - len(seen)}


async def test_a_failing_listener_loses_no_card_in_doubt(moments: Moments) -> None:
    """Each card that was sent has a result, also where telling of one fails."""

    def fail(progress: BulkProgress) -> None:
        if progress.done == 2:
            raise ZeroDivisionError

    memory = Memory(moments)
    memory.script = {name: ["swallowed"] for name in "abc"}
    seen = []
    async with memory.run("abcde", fail) as run:
        with pytest.raises(ZeroDivisionError):
            async for result in run:
                seen.append(result.draft.name)
    assert sorted(seen) == ["a", "b", "c", "d"] == sorted(name for name, _ in memory.sent)


@pytest.mark.parametrize("marker", [None, True])
async def test_nothing_secret_is_in_the_journal(world: World, marker: Any) -> None:
    """Neither key nor token is in the file or beside it, during the run or after, whatever the service responds."""
    secrets = [world.service.token, world.service.key]
    echo = " and ".join(secrets).encode()
    for call, status in ((1, 400), (2, 500), (3, 403)):
        world.service.faults.add(faults.status(status, body=echo), "cards.create", call=call)
    found = []

    def look() -> None:
        for file in world.path.parent.iterdir():
            content = file.read_bytes()
            found.extend(secret for secret in secrets if secret.encode() in content or secret[-20:-2].encode() in content)

    async with world.run(world.drafts(*range(8)), marker=marker, unknown="report") as run:
        async for result in run:
            look()
            assert all(secret not in str(result.error) for secret in secrets)
    look()
    assert found == []
    assert {state for state, _ in kept(world.path).values()} == {"done", "failed", "unknown"}


async def test_listeners_see_when_the_wait_for_the_board_is_over(moments: Moments) -> None:
    """Progress says "settling" until the board was read, and listeners are notified at once that it no longer waits."""
    memory, heard = Memory(moments), []
    memory.script = {"a": [LOST]}

    def note(progress: BulkProgress) -> None:
        heard.append((progress.done, progress.in_doubt, progress.waiting_for, progress.phase, progress.status[:13]))

    async with memory.run("ab", note) as run:
        await run.wait()
    waiting = heard.index((0, 1, "settling", "waiting", "waiting until"))
    assert heard[:waiting] == [(0, 0, None, "reading the board", "reading the b"), (0, 0, None, "creating", "creating")]
    assert heard[waiting + 1 : waiting + 3] == [
        (0, 1, "settling", "reading the board", "reading the b"),
        (0, 1, None, "creating", "creating"),
    ]
    assert heard[-1][:3] == (2, 0, None)


@pytest.mark.parametrize(("settle", "is_shown", "lines"), [(60.0, False, 1), (3.0, False, 0), (60.0, True, 0)])
async def test_a_run_that_waits_says_so_where_no_program_shows_progress(
    moments: Moments, caplog: pytest.LogCaptureFixture, settle: float, is_shown: bool, lines: int
) -> None:
    """A wait of more than a few seconds is one warning in the log. A program that shows the progress needs none."""
    memory = Memory(moments)
    memory.script = {"a": [LOST]}
    shown = [lambda progress: None] if is_shown else []
    async with memory.run("ab", *shown, settle=settle) as run:
        await run.wait()
    found = [record.getMessage() for record in caplog.records if record.name == "boardclient.runs"]
    assert len(found) == lines
    assert all(re.fullmatch(r"cards.create_many: waiting until \d\d:\d\d:\d\d for 1 row in doubt", line) for line in found)


async def test_a_run_that_is_left_while_it_waits_says_nothing_later(moments: Moments, caplog: pytest.LogCaptureFixture) -> None:
    """Leaving the block ends the wait, and with it the warning that was due."""
    memory = Memory(moments)
    memory.script = {"a": [LOST]}
    async with memory.run("ab", settle=60.0) as run:
        await asyncio.sleep(2)
        assert run.progress.waiting_for == "settling"
    await asyncio.sleep(60)
    assert [record for record in caplog.records if record.name == "boardclient.runs"] == []
