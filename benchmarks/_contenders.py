"""The programs that are compared: each is opened once, warmed up, and then asked to handle a number of cards.

They are in modules of their own, so that a process that measures one of them imports nothing that only others need.
"""

import asyncio
import contextlib
import importlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple


class Service(NamedTuple):
    """Where the canned server is, and the certificate that it has over TLS."""

    base_url: str
    certificate: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return what verifies the server's certificate."""
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else None


Work = Callable[[int, list[float]], Awaitable[int]]
"""Handle so many cards (when reading: so many reads), add the seconds that each call took, return how many cards were seen."""
Open = Callable[[Service, int], contextlib.AbstractAsyncContextManager[Work]]
"""Takes the number of calls in flight when creating, the number of cards on the board when reading (one call at a time).

A board of 0 cards stands for a single card, read by its identifier."""


class Contender(NamedTuple):
    """One program: where it is, and what is left out for it.

    A slow one gets fewer cards, a sequential one can't have calls in flight, one that reads lists is not asked for a single card.
    """

    module: str
    function: str
    is_slow: bool = False
    is_sequential: bool = False
    is_rival: bool = False
    reads_lists: bool = False

    def open(self, service: Service, size: int) -> contextlib.AbstractAsyncContextManager[Work]:
        """Import the program and open it."""
        function: Open = getattr(importlib.import_module(self.module), self.function)
        return function(service, size)


CREDENTIALS = {"key": "k", "token": "t"}
LIST_ID = "5f1a0c2e9b7d4e0012ab0001"
DESC = "Written by the benchmark."


def in_workers(concurrency: int, one: Callable[[int], Awaitable[object]]) -> Work:
    """Let as many tasks as calls may be in flight take numbers from one iterator."""

    async def worker(numbers: Iterator[int], seconds: list[float]) -> int:
        done = 0
        for position in numbers:
            started = time.perf_counter()
            await one(position)
            seconds.append(time.perf_counter() - started)
            done += 1
        return done

    async def work(cards: int, seconds: list[float]) -> int:
        numbers = iter(range(cards))
        return sum(await asyncio.gather(*(worker(numbers, seconds) for _ in range(concurrency))))

    return work


def one_by_one(read: Callable[[], Awaitable[int]]) -> Work:
    """Read the cards again and again."""

    async def work(reads: int, seconds: list[float]) -> int:
        seen = 0
        for _ in range(reads):
            started = time.perf_counter()
            seen += await read()
            seconds.append(time.perf_counter() - started)
        return seen

    return work


def read_path(cards: int) -> str:
    """Return what is read: a board of so many cards, or a card."""
    return f"/1/boards/b{cards}/cards" if cards else "/1/cards/c1"


def seen(value: object) -> int:
    """Return how many cards were read."""
    return len(value) if isinstance(value, list) else 1


def draft(position: int) -> dict[str, str]:
    """Return what a request to create a card sends."""
    return {"name": f"Card {position}", "idList": LIST_ID, "desc": DESC, **CREDENTIALS}


CREATING = {
    "hand-written": Contender("_by_hand", "create_by_hand"),
    "hand-written, tuned": Contender("_by_hand", "create_tuned"),
    "bare exchange": Contender("_by_hand", "create_bare"),
    "cards.create": Contender("_ours", "create_in_workers"),
    "cards.create, public": Contender("_ours", "create_in_workers_the_public_way"),
    "cards.create_many": Contender("_ours", "create_many"),
    "create_many, journal": Contender("_ours", "create_many_with_journal"),
    "slack_sdk's pattern": Contender("_rivals", "create_with_slack_sdk", is_rival=True),
    "httpx and pydantic": Contender("_rivals", "create_with_httpx", is_rival=True, is_slow=True),
    "trellio-client": Contender("_rivals", "create_with_trellio", is_rival=True, is_slow=True),
    "py-trello": Contender("_rivals", "create_with_py_trello", is_rival=True, is_slow=True, is_sequential=True),
    "raw sockets": Contender("_rivals", "create_on_sockets", is_rival=True),
}
READING = {
    "hand-written": Contender("_by_hand", "read_by_hand"),
    "hand-written, objects": Contender("_by_hand", "read_objects_by_hand", reads_lists=True),
    "hand-written, tuned": Contender("_by_hand", "read_tuned"),
    "boards.cards": Contender("_ours", "read_board"),
    "aiohttp and pydantic": Contender("_rivals", "read_with_pydantic", is_rival=True),
    "httpx and pydantic": Contender("_rivals", "read_with_httpx", is_rival=True),
    "trellio-client": Contender("_rivals", "read_with_trellio", is_rival=True, reads_lists=True),
}
OURS = [name for table in (CREATING, READING) for name, contender in table.items() if contender.module == "_ours"]
