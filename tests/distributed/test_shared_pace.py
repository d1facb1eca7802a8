"""Processes with the same credentials share a pace through a database."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pace_simulation import Bucket, Service, SlidingWindow, Window, served
from virtual_loop import virtually
from waiting import SECONDS, until

from boardclient import JournalError, Pace
from boardclient._pipeline._pace import _shared
from boardclient.testing import BoardService, faults

WORKER = """
import asyncio, sys
from boardclient import ApiError, AsyncSession, Pace

async def main(shared, list_id):
    async with AsyncSession.from_env(limiter=Pace(shared=shared), retry=None) as session:
        async def work():
            while True:
                try:
                    await session.cards.create(name="card", list_id=list_id)
                except ApiError:
                    pass
        await asyncio.gather(*(work() for _ in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


class Memory:
    """The row of a group, without a database. A process that has died hangs in it."""

    stored: bytes | None = None
    dies: tuple[float, ...] = ()

    def __init__(self, place: str, name: str) -> None:
        self._end = self.dies[int(place.rpartition(" ")[2])]

    async def send(self, name: str, message: Any) -> Any:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._end:
            await asyncio.sleep(math.inf)
        await asyncio.sleep(0.003)
        group = _shared.Group() if self.stored is None else _shared.load(self.stored)
        answer = group.answer_to(name, 1e9 + loop.time(), message)
        Memory.stored = _shared.dump(group)
        await asyncio.sleep(0.002)
        return answer

    async def aclose(self) -> None:
        pass


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Memory]]:
    monkeypatch.setattr(_shared, "Store", Memory)
    yield Memory
    Memory.stored = None


@pytest.mark.parametrize(
    ("service", "limit"),
    [(Bucket(20), 20), (Bucket(100, burst=0.1), 100), (Window(100), 100), (SlidingWindow(20), 20), (Bucket(100), 100)],
)
def test_eight_processes_find_a_limit_and_use_it(memory: type[Memory], service: Service, limit: int) -> None:
    """After 15 s at least 90 in 100 of it, with at most 2 in 100 refused, also when three of them have died."""
    memory.dies = (25.0, 26.0, 27.0, *[math.inf] * 5)
    outcome = served(service, 50.0, workers=40, shared=memory.dies)
    assert outcome.accepted(15, 25) >= 0.9 * limit
    assert outcome.accepted(25, 50) >= 0.9 * limit
    assert outcome.refused(15, 50) <= 0.02


@pytest.mark.parametrize(
    ("service", "processes", "seed"), [(Bucket(100), 4, 1), (Bucket(100, 0.1), 4, 1), (Bucket(100, 0.1), 2, 5)]
)
def test_what_processes_have_sent_before_the_first_refusal_counts(
    memory: type[Memory], service: Service, processes: int, seed: int
) -> None:
    """Also if one tells it after another was granted its first start: the limit found would be a tenth of the true one."""
    memory.dies = (math.inf,) * processes
    outcome = served(service, 10.0, workers=8 * processes, latency=0.02, seed=seed, shared=memory.dies)
    assert outcome.accepted(0, 10) >= 90


@pytest.mark.parametrize("processes", [1, 4])
def test_processes_that_begin_slowly_find_the_limit(memory: type[Memory], processes: int) -> None:
    """What one of them asks for before all are ready is not taken for what the service accepts."""
    memory.dies = (math.inf,) * processes
    outcome = served(Bucket(100, 0.1), 15.0, workers=8 * processes, latency=0.02, rests=(0.0, 5.0), shared=memory.dies)
    assert outcome.accepted(5, 15) >= 90


@virtually
async def test_a_single_call_waits_for_what_the_service_has_asked_for_and_no_longer(memory: type[Memory]) -> None:
    """However rarely the group may send by what was refused before, and however long it has sent nothing."""
    memory.dies = (math.inf,)
    pace, clock = Pace(shared="/process 0"), asyncio.get_running_loop().time

    async def send(status: int, asked: float | None = None) -> float:
        began = clock()
        async with pace:
            waited = clock() - began
            pace.report(status, asked, 0.02)
        return waited

    await send(429)
    await send(429, 100.0)
    await asyncio.sleep(60.0)
    assert await send(200) == pytest.approx(40.0, abs=1.0)
    for _ in range(5):  # a service that accepts one request in twenty seconds
        await send(200)
        await send(429)
        await asyncio.sleep(20.0)
    await send(200)
    await send(429)
    await asyncio.sleep(1.0)
    assert await send(200) <= 0.4


async def test_processes_share_a_pace_and_continue_when_one_is_killed(ledger: str) -> None:
    """Hardly anything is refused, and what the dead one did not use, the others do."""
    async with BoardService() as service, service.session() as session:
        board = await session.boards.create("Board")
        to_do = await session.lists.create("To Do", board_id=board.id)
        service.faults.rate_limit = faults.rate_limit(40, burst=40)
        line = [sys.executable, "-c", WORKER, ledger, to_do.id]
        workers = [subprocess.Popen(line, env={**os.environ, **service.environment}) for _ in range(3)]

        def accepted() -> int:
            return sum(call.status == 200 for call in service.calls_of("cards.create"))

        try:
            await until(lambda: accepted() >= 300, pause=0.05)
            workers[0].kill()
            await until(lambda: accepted() >= 700, pause=0.05)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        calls = service.calls_of("cards.create")
        assert sum(call.status == 429 for call in calls) <= 0.15 * len(calls)


async def test_a_database_that_is_not_there_is_named_and_one_that_is_gone_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what never worked raises."""
    pace = Pace(shared="postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(JournalError, match=r"postgresql://postgres@127\.0\.0\.1:1/none can't be used"):
        async with pace:
            pass
    with pytest.raises(ValueError, match="can't hold a password"):
        Pace(shared="postgresql://user:secret@host/db")

    pace = Pace(shared=tmp_path / "paces")
    failures = [JournalError("the disk is full")] * 3
    send = _shared.Store.send

    async def failing(self: _shared.Store, name: str, message: Any) -> Any:
        if pace.in_flight and failures:
            raise failures.pop()
        return await send(self, name, message)

    monkeypatch.setattr(_shared.Store, "send", failing)
    async with asyncio.timeout(SECONDS):
        async with pace:
            pace.report(429, 0.0, 0.1)  # which is sent at once
            await until(lambda: not failures, pause=0.05)
        for _ in range(3):
            async with pace:
                pace.report(200, None, 0.1)
    assert [record.message for record in caplog.records] == ["the disk is full. Attempts wait until it can be used again"]


def test_a_limit_stays_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process begins with it. Each account has its own, and what another version has stored is not used."""

    def limit(*statuses: int, account: str = "") -> float | None:
        async def use() -> float | None:
            pace = Pace(shared=tmp_path / "paces", account=account)
            for status in statuses:
                async with pace:
                    pace.report(status, None, 0.01)
            assert f"limit about {pace.limit:.3g}/s" in repr(pace) if pace.limit else "no limit met" in repr(pace)
            return pace.limit

        return asyncio.run(use())

    found = limit(200, 200, 429, 200, 200)
    assert found is not None
    assert limit(200) == pytest.approx(found, rel=0.5)
    assert limit(200, account="another") is None
    monkeypatch.setattr(_shared, "__version__", "0.0.0")
    assert limit(200) is None


def test_a_process_that_has_ended_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    """At once, and not when it counts as dead: the next one begins as if it were alone."""

    async def use() -> int:
        pace = Pace(shared=tmp_path / "paces")
        async with pace:
            return pace.workers

    assert [asyncio.run(use()) for _ in range(3)] == [16, 16, 16]


@pytest.mark.parametrize("is_limited", [False, True])
async def test_a_start_that_is_cancelled_is_given_back(tmp_path: Path, is_limited: bool) -> None:
    """It is no attempt in flight, of which there are never more than allowed."""
    pace = Pace(shared=tmp_path / "paces", max_in_flight=1)
    if is_limited:
        async with pace:
            pace.report(429, 0.0, 0.01)
    inner: Any = pace
    grant = inner._grant_permits

    async def enter() -> None:
        async with pace:
            assert pace.in_flight == 1

    def grant_and_cancel() -> None:
        grant()
        if pace.in_flight:
            task.cancel()

    async with asyncio.timeout(SECONDS):
        inner._grant_permits = inner._permits._wake = grant_and_cancel
        task = asyncio.create_task(enter())
        with pytest.raises(asyncio.CancelledError):
            await task
        inner._grant_permits = inner._permits._wake = grant
        assert pace.in_flight == 0
        await asyncio.gather(*(enter() for _ in range(5)))
        assert not pace.held_seconds
        await inner._permits._task  # what was granted and not used is given back


def test_what_is_stored_is_plain_json() -> None:
    """Code can't be run by writing to the database."""
    group = _shared.Group()
    for number, status in enumerate((200, 429, 200, 429, 429, 200)):
        message = _shared.Message(refused=1, wanted=2)
        if group.members:
            held = group.members["a"].attempts
            message.ended = {attempt.serial: (status, None, 0.01) for attempt in held[:1]}
            message.unended = {attempt.serial for attempt in held[1:]}
        group.answer_to("a", 1e9 + 5 * number, message)
    stored = _shared.dump(group)
    assert _shared.dump(_shared.load(stored)) == stored
    state = json.loads(zlib.decompress(stored))
    state["permits"]["_search"]["phase"]["_type"] = "Popen"
    with pytest.raises(KeyError, match="Popen"):
        _shared.load(zlib.compress(json.dumps(state).encode()))
