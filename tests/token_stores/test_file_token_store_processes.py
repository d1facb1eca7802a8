"""FileTokenStore among processes and forks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from token_store_helpers import POSIX
from waiting import SECONDS

from boardclient import AsyncSession, FileTokenStore, OAuthCredentials, Token
from boardclient.testing import BoardService, Call


def contend(path: str, barrier: Any, number: int) -> tuple[str, list[int]]:
    """Race for the lease and for each generation. Return the generations that it has published."""
    store = FileTokenStore(path)

    async def race() -> tuple[str, list[int]]:
        state = (await store.lease("a", f"holder {number}", 60.0)).state
        last, won = 0, list[int]()
        for turn in range(20):
            stored = await store.publish("a", Token(f"{number}.{turn}"), last)
            won += [] if stored is None else [stored.generation]
            last = await store.generation("a")
        return state, won

    barrier.wait(SECONDS)
    return asyncio.run(race())


def call(path: str, barrier: Any, number: int, options: dict[str, str], base_url: str, authorize_url: str) -> int:
    """Make many calls at once, with codes from the consent page, and return how many succeeded."""

    async def authorize(request: object) -> str:
        form = {"response_type": "code", "client_id": options["client_id"], "member": "A Member"}
        async with aiohttp.ClientSession() as http, http.post(authorize_url, data=form, allow_redirects=False) as response:
            return parse_qs(urlsplit(response.headers["Location"]).query)["code"][0]

    async def run() -> int:
        credentials = OAuthCredentials(authorize=authorize, store=FileTokenStore(path), **options)
        async with AsyncSession(credentials, base_url) as session:
            return len(
                [result async for result in session.map(lambda _: session.members.me(), range(100)) if result.error is None]
            )

    barrier.wait(SECONDS)
    return asyncio.run(run())


def _put(queue: Any, function: Callable[..., Any], *arguments: Any) -> None:
    queue.put(function(*arguments))


def in_processes(function: Callable[..., Any], path: Path, *arguments: Any) -> list[Any]:
    """Run a function in four processes that begin together."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    given = [(queue, function, str(path), barrier, number, *arguments) for number in range(4)]
    children = [context.Process(target=_put, args=one) for one in given]
    for child in children:
        child.start()
    done = [queue.get(timeout=300) for _ in children]
    for child in children:
        child.join(SECONDS)
    return done


@pytest.mark.full
def test_one_of_several_processes_wins(path: Path) -> None:
    """Of processes that begin together, with no file yet, one gets the lease, and one publishes each generation."""
    done = in_processes(contend, path)
    assert sorted(state for state, _ in done) == ["granted"] + ["held"] * 3
    generations = [generation for _, won in done for generation in won]
    assert len(set(generations)) == len(generations)
    stored = asyncio.run(FileTokenStore(path).read("a"))
    assert stored is not None
    assert stored.generation == max(generations)


@pytest.mark.full
def test_processes_renew_once_for_all(path: Path) -> None:
    """Four processes make one exchange at first use, and one when their token expires."""

    def expire(call: Call) -> None:
        if call.operation == "members.me" and call.number == 200:
            service.rules.expire_tokens()

    with BoardService(on_call=expire) as service:
        names = ("client_id", "client_secret", "redirect_uri", "auth_url", "key")
        options = {name: getattr(service, name) for name in names}
        assert in_processes(call, path, options, service.base_url, service.authorize_url) == [100] * 4
    assert len(service.calls_of("token.exchange")) == len(service.calls_of("consent.decide")) == 2


async def test_time_of_a_step_is_taken_under_the_lock(path: Path, file_store: FileTokenStore) -> None:
    """No other process can write once the time is read, as that time could precede a lease that was just granted."""
    await file_store.publish("a", Token("token"), 0)
    tries: list[str] = []

    def prying() -> float:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                tries.append(str(error))
        return 1.0

    prying_store = FileTokenStore(path, clock=prying)
    await prying_store.lease("a", "x", 1.0)
    await prying_store.release("a", "x")
    assert tries == ["database is locked"] * 2


FORK = """
import asyncio, os, sys, threading, warnings
warnings.simplefilter("ignore")
from boardclient import FileTokenStore, Token

path = sys.argv[1]
inside, go = threading.Event(), threading.Event()
os.register_at_fork(before=go.set)  # runs first: the store's own hook, registered before it, then waits for the step

def slow():
    inside.set()
    assert go.wait(300)
    return 100.0

slow_store, store = FileTokenStore(path, clock=slow), FileTokenStore(path, clock=lambda: 101.0)
before = asyncio.run(store.publish("a", Token("before"), 0))
thread = threading.Thread(target=lambda: asyncio.run(slow_store.lease("a", "x", 60.0)), daemon=True)
thread.start()
assert inside.wait(300)
child = os.fork()
if child == 0:
    try:
        kept = asyncio.run(store.publish("a", Token("child"), before.generation))
        seen = [asyncio.run(store.lease("a", "y", 60.0)).state, kept is not None]
    except BaseException as error:
        seen = [error]
    print(seen, flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join(300)
print(asyncio.run(store.read("a")).token.value, asyncio.run(store.lease("a", "x", 1.0)).state)
"""


@POSIX
def test_process_may_fork_within_a_step(path: Path) -> None:
    """A fork waits for the step of another thread; both processes then use the store."""
    done = subprocess.run([sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["['held', True]", "child granted"], done.stderr


KILLED = """
import asyncio, os, signal, sys
from boardclient import FileTokenStore
asyncio.run(FileTokenStore(sys.argv[1], clock=lambda: os.kill(os.getpid(), signal.SIGKILL)).lease("a", "x", 60.0))
"""


@POSIX
async def test_killed_process_leaves_no_lock(path: Path, file_store: FileTokenStore) -> None:
    """A process that dies within its first step leaves a file that the next can use."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, timeout=300)
    assert done.returncode == -9
    assert (await file_store.lease("a", "y", 60.0)).state == "granted"
