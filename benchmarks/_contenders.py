"""The programs that are compared. Each is opened once, warmed up, and then handles a number of cards.

They are in separate modules, so that a process imports only what the measured program needs.
"""

import asyncio
import contextlib
import importlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple


class Service(NamedTuple):
    """The address of the canned server, and its certificate with TLS."""

    base_url: str
    certificate: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context that trusts the server's certificate."""
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else None


Work = Callable[[int, list[float]], Awaitable[int]]
"""Handles a number of cards, or reads; appends the seconds of each call, and returns the number of cards seen."""
Open = Callable[[Service, int], contextlib.AbstractAsyncContextManager[Work]]
"""Takes the number of calls in flight when creating, the number of cards on the board when reading (one call at a time).

A board of 0 cards means a single card, read by its identifier."""


Request = tuple[str, bytes | None]
"""The URL and the body."""


class Contender(NamedTuple):
    """One program: its module, and what it does not take part in.

    A slow one gets fewer cards, a sequential one has one call in flight, one that reads lists reads no single card, and a
    plain one speaks no TLS. One that runs without an event loop is not measured on another.
    """

    module: str
    function: str
    is_slow: bool = False
    is_sequential: bool = False
    is_rival: bool = False
    reads_lists: bool = False
    is_plain: bool = False
    has_loop: bool = True

    def open(self, service: Service, size: int) -> contextlib.AbstractAsyncContextManager[Work]:
        """Import the program and open it."""
        function: Open = getattr(importlib.import_module(self.module), self.function)
        return function(service, size)


CREDENTIALS = {"key": "k", "token": "t"}
LIST_ID = "5f1a0c2e9b7d4e0012ab0001"
DESC = "Written by the benchmark."


def in_workers(concurrency: int, one: Callable[[int], Awaitable[object]]) -> Work:
    """Run one task for each call in flight; they share the numbers of one iterator."""

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
    """Return the path of a board with this many cards, or of a card."""
    return f"/1/boards/b{cards}/cards" if cards else "/1/cards/c1"


def seen(value: object) -> int:
    """Return how many cards were read."""
    return len(value) if isinstance(value, list) else 1


def draft(position: int) -> dict[str, str]:
    """Return the body of a request to create a card."""
    return {"name": f"Card {position}", "idList": LIST_ID, "desc": DESC, **CREDENTIALS}


CREATING = {
    "hand-written": Contender("_by_hand", "create_by_hand"),
    "hand-written, tenacity": Contender("_by_hand", "create_with_tenacity"),
    "hand-written, tuned": Contender("_by_hand", "create_tuned"),
    "bare exchange": Contender("_by_hand", "create_bare"),
    "cards.create": Contender("_ours", "create_in_workers"),
    "cards.create, public": Contender("_ours", "create_in_workers_the_public_way"),
    "cards.create_many": Contender("_ours", "create_many"),
    "create_many, own pace": Contender("_ours", "create_many_at_its_own_pace"),
    "create_many, journal": Contender("_ours", "create_many_with_journal"),
    "pyreqwest": Contender("_clients", "create_with_pyreqwest", is_rival=True, is_plain=True),
    "wreq": Contender("_clients", "create_with_wreq", is_rival=True, is_plain=True),
    "pycurl": Contender("_clients", "create_with_pycurl", is_rival=True, has_loop=False),
    "slack_sdk's pattern": Contender("_rivals", "create_with_slack_sdk", is_rival=True),
    "httpx and pydantic": Contender("_rivals", "create_with_httpx", is_rival=True, is_slow=True),
    "trellio-client": Contender("_rivals", "create_with_trellio", is_rival=True, is_slow=True),
    "py-trello": Contender("_rivals", "create_with_py_trello", is_rival=True, is_slow=True, is_sequential=True),
    "raw sockets": Contender("_limit", "create_on_sockets", is_rival=True),
    "C": Contender("_limit", "create_in_c", is_rival=True, is_plain=True, has_loop=False),
}
GETTING = {
    "hand-written": Contender("_by_hand", "get_by_hand"),
    "hand-written, tenacity": Contender("_by_hand", "get_with_tenacity"),
    "cards.get": Contender("_ours", "get_in_workers"),
    "pyreqwest": Contender("_clients", "get_with_pyreqwest", is_rival=True, is_plain=True),
    "wreq": Contender("_clients", "get_with_wreq", is_rival=True, is_plain=True),
    "pycurl": Contender("_clients", "get_with_pycurl", is_rival=True, has_loop=False),
    "raw sockets": Contender("_limit", "get_on_sockets", is_rival=True),
    "C": Contender("_limit", "get_in_c", is_rival=True, is_plain=True, has_loop=False),
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
TABLES = {"create": CREATING, "get": GETTING, "read": READING}
"""By the kind of a case."""
OURS = [name for table in TABLES.values() for name, contender in table.items() if contender.module == "_ours"]
