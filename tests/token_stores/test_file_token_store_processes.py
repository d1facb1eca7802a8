"""FileTokenStore among processes and forks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from token_store_helpers import POSIX

from boardclient import FileTokenStore, Token


def contend(path: str, barrier: Any, number: int) -> tuple[str, list[bool]]:
    """Race for the lease and for each generation; run in a process of its own."""
    store = FileTokenStore(path)

    async def race() -> tuple[str, list[bool]]:
        state = await store.lease("a", f"holder {number}", 60.0)
        return state, [await store.publish("a", Token(f"{number}.{after}"), after) for after in range(20)]

    barrier.wait(60)
    return asyncio.run(race())


def _contend(queue: Any, *arguments: Any) -> None:
    queue.put(contend(*arguments))


def test_one_of_several_processes_wins(path: Path) -> None:
    """Of processes that begin together, with no file yet, one gets the lease, and one publishes each generation."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    children = [context.Process(target=_contend, args=(queue, str(path), barrier, number)) for number in range(4)]
    for child in children:
        child.start()
    done = [queue.get(timeout=300) for _ in children]
    for child in children:
        child.join(60)
    assert sorted(state for state, _ in done) == ["granted"] + ["held"] * 3
    assert all(sum(won) <= 1 for won in zip(*(won for _, won in done), strict=True))
    stored = asyncio.run(FileTokenStore(path).read("a"))
    assert stored is not None
    assert stored.generation == sum(sum(won) for _, won in done)
    assert stored.generation >= 1


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
    assert go.wait(10)
    return 100.0

slow_store, store = FileTokenStore(path, clock=slow), FileTokenStore(path, clock=lambda: 101.0)
asyncio.run(store.publish("a", Token("before"), 0))
thread = threading.Thread(target=lambda: asyncio.run(slow_store.lease("a", "x", 60.0)), daemon=True)
thread.start()
assert inside.wait(10)
child = os.fork()
if child == 0:
    try:
        seen = [asyncio.run(store.lease("a", "y", 60.0)), asyncio.run(store.publish("a", Token("child"), 1))]
    except BaseException as error:
        seen = [error]
    print(seen, flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join(10)
print(asyncio.run(store.read("a")).generation, asyncio.run(store.lease("a", "x", 1.0)))
"""


@POSIX
def test_process_may_fork_within_a_step(path: Path) -> None:
    """A fork waits for the step of another thread; both processes then use the store."""
    done = subprocess.run([sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["['held', True]", "2 granted"], done.stderr


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
    assert await file_store.lease("a", "y", 60.0) == "granted"
