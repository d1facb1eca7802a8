"""Renewals of several processes on one token store: one for all of them, and one more where the holder is killed or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from boardclient import FileTokenStore, Token
from boardclient.testing import BoardService, faults

PROGRAM = Path(__file__).with_name("renewing_process.py")
PROCESSES, REQUESTS = 4, 250
LEASE_SECONDS = 1000
"""No process is so slow that its lease ends by itself: `end_leases` moves the clock of all stores."""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals and private files are POSIX"),
    pytest.mark.full,  # the renewal model and tests of shared stores say the same within one process
]


class Family:
    """Four processes, each with 250 requests, and whom they ask for codes. Owned by the test's `family`."""

    def __init__(self, service: BoardService, store: Path) -> None:
        self.service, self.store = service, store
        self._ahead = store.with_name("ahead")
        """A file whose size is how many seconds the clock of the stores is ahead."""
        self._ahead.touch()
        self.processes: list[asyncio.subprocess.Process] = []
        self.askers: list[int] = []
        """The process identifiers of those who asked for a code, in their order."""
        self.stop_first_in = ""
        """The step that the first process that asks is to stop in."""
        self.first_asked, self.first_may_go = asyncio.Event(), asyncio.Event()
        self.first_may_go.set()
        self.on_first: Callable[[int], object] = lambda pid: None
        """What is done with the first one that asks, before it gets its code."""
        self.stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._barriers = {what: asyncio.Barrier(PROCESSES) for what in ("ready", "half", "half again")}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one line of a process."""
        with contextlib.suppress(ConnectionError):
            what, pid = json.loads(await reader.readline())
            writer.write(json.dumps(await self._answer_to(what, pid)).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer_to(self, what: str, pid: int) -> dict[str, str]:
        if what == "code":
            self.askers.append(pid)
            is_first = len(self.askers) == 1
            code = self.service.new_code()
            if is_first:
                self.first_asked.set()
                self.on_first(pid)
                await self.first_may_go.wait()
            return {"code": code, "stop in": self.stop_first_in if is_first else ""}
        if what in self._barriers:
            await self._barriers[what].wait()
        else:
            self.stopped.set_result(pid)
        return {}

    async def begin(self, port: int, **options: bool) -> None:
        """Start the processes; they begin together."""
        service = self.service
        plan = {
            "base_url": service.base_url,
            "store": str(self.store),
            "ahead": str(self._ahead),
            "parent": port,
            "requests": REQUESTS,
            "lease_seconds": LEASE_SECONDS,
            "is_blocking": options.get("is_blocking", False),
            "meets_at_half": options.get("meets_at_half", False),
            "client": {
                "client_id": service.client_id,
                "client_secret": service.client_secret,
                "redirect_uri": service.redirect_uri,
                "auth_url": service.auth_url,
                "key": service.key,
            },
        }
        pipe = asyncio.subprocess.PIPE
        for _ in range(PROCESSES):
            process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe)
            self.processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(plan).encode() + b"\n")

    def end_leases(self) -> None:
        """Let the time pass for which a holder may be silent."""
        os.truncate(self._ahead, self._ahead.stat().st_size + LEASE_SECONDS + 1)

    async def kill(self, pid: int) -> None:
        """End a process without giving it the time for anything, and let its lease end."""
        os.kill(pid, signal.SIGKILL)
        (process,) = (process for process in self.processes if process.pid == pid)
        await process.communicate()
        self.processes.remove(process)
        self.end_leases()

    async def reports(self) -> list[dict[str, Any]]:
        """Wait for all processes that live, and return what they report."""
        outputs = await asyncio.gather(*(process.communicate() for process in self.processes))
        assert [process.returncode for process in self.processes] == [0] * len(self.processes), outputs
        return [json.loads(output) for output, _ in outputs]

    async def assert_all_answered(self, survivors: int = PROCESSES) -> None:
        """Check that each process that was not killed had a response to each of its requests."""
        reports = await self.reports()
        assert [(report["answered"], report["errors"]) for report in reports] == [(REQUESTS, [])] * survivors

    @property
    def counts(self) -> tuple[int, int]:
        """How often a code was asked for, and how often one was exchanged."""
        return len(self.askers), len(self.service.calls_of("token.exchange"))

    async def generation(self) -> int:
        """The number of tokens that were published."""
        stored = await FileTokenStore(self.store).read("default")
        return 0 if stored is None else stored.generation


@contextlib.asynccontextmanager
async def running(family: Family, **options: Any) -> AsyncIterator[None]:
    """Run the processes and what they ask, for 200 seconds at most; none outlives the block."""
    server = await asyncio.start_server(family.answer, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(200):
            await family.begin(server.sockets[0].getsockname()[1], **options)
            yield
    finally:
        for process in family.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.communicate()
        server.close()
        await asyncio.sleep(0)


@pytest.fixture
async def family(service: BoardService, tmp_path: Path) -> Family:
    return Family(service, tmp_path / "tokens")


async def test_one_renewal_for_all_processes(family: Family, service: BoardService) -> None:
    """Four processes with 1,000 requests get by with one exchange at first use and one for each time the token expires."""
    # At half they wait for each other: no request is to meet both expiries.
    async with running(family, meets_at_half=True):
        for expiry, requests in ((1, 330), (2, 750)):
            await service.received("members.me", requests)
            assert family.counts == (expiry, expiry)
            service.rules.expire_tokens()
        await family.assert_all_answered()
    assert family.counts == (3, 3)
    assert await family.generation() == 3
    statuses = [call.status for call in service.calls_of("members.me")]
    assert statuses.count(200) == PROCESSES * REQUESTS
    assert 2 <= statuses.count(401) <= 2 * PROCESSES * 10  # at most what was in flight
    with sqlite3.connect(family.store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.parametrize("when", ["first use", "expired"])
@pytest.mark.parametrize(
    ("step", "more"),
    [("callback", (1, 0)), ("exchange", (1, 1)), ("publish", (1, 1)), ("release", (0, 0))],
)
async def test_the_holder_is_killed(family: Family, service: BoardService, step: str, more: tuple[int, int], when: str) -> None:
    """Where the holder is killed amid its renewal one of the others renews in its place, once, and they finish all they have.

    After the token was published there is nothing left to be renewed.
    """
    if when == "expired":
        store = FileTokenStore(family.store)
        await store.publish("default", Token(service.token), 0)
        service.rules.expire_tokens()
    if step == "exchange":
        service.faults.add(faults.hang(commit=True), "token.exchange", call=1)
    else:
        family.stop_first_in = step
    async with running(family):
        if step == "exchange":
            await service.received("token.exchange")
            await family.kill(family.askers[0])
        else:
            await family.kill(await family.stopped)
        await family.assert_all_answered(PROCESSES - 1)
    asked, exchanged = more
    assert family.counts == (1 + asked, 1 + exchanged)
    assert await family.generation() == (1 if when == "first use" else 2)


@pytest.mark.parametrize("is_blocking", [False, True], ids=["stopped", "blocked"])
async def test_a_holder_that_is_silent_for_longer_than_its_lease(
    family: Family, service: BoardService, is_blocking: bool
) -> None:
    """A process that is stopped, or whose callback blocks its loop, costs one more code. When it resumes it does no harm."""
    family.first_may_go.clear()
    family.on_first = lambda pid: (is_blocking or os.kill(pid, signal.SIGSTOP), family.end_leases())
    async with running(family, is_blocking=is_blocking):
        await service.received("members.me", 100)
        assert len(set(family.askers)) == 2
        os.kill(family.askers[0], signal.SIGCONT)
        family.first_may_go.set()
        await family.assert_all_answered()
    assert len(family.askers) == 2
    assert len(service.calls_of("token.exchange")) <= 2
    assert await family.generation() == 1
