"""The programs that are compared: each is opened once, warmed up, and then asked to handle a number of cards."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import attrs
import msgspec
import yarl

import boardclient
from boardclient._transport import Pool

Work = Callable[[int], Awaitable[int]]
"""Handle so many cards (when reading: so many reads) and return how many were seen."""
Contender = Callable[[str, int], contextlib.AbstractAsyncContextManager[Work]]

_CREDENTIALS = {"key": "k", "token": "t"}
_LIST_ID = "5f1a0c2e9b7d4e0012ab0001"
_DESC = "Written by the benchmark."


async def _in_workers(number: int, concurrency: int, one: Callable[[int], Awaitable[object]]) -> int:
    numbers = iter(range(number))
    done = 0

    async def worker(numbers: Iterator[int]) -> None:
        nonlocal done
        for position in numbers:
            await one(position)
            done += 1

    await asyncio.gather(*(worker(numbers) for _ in range(concurrency)))
    return done


@contextlib.asynccontextmanager
async def create_by_hand(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Create cards the way a good engineer writes it in an afternoon."""
    limit = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as http:

        async def one(position: int) -> dict[str, Any]:
            body = {"name": f"Card {position}", "idList": _LIST_ID, "desc": _DESC, **_CREDENTIALS}
            async with limit, http.post(f"{base_url}/1/cards", json=body) as response:
                response.raise_for_status()
                card: dict[str, Any] = await response.json()
                return card

        async def work(cards: int) -> int:
            return len(await asyncio.gather(*(one(position) for position in range(cards))))

        yield work


def _tuned_session(concurrency: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "tuned"},
    )


@contextlib.asynccontextmanager
async def create_tuned(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with everything that aiohttp's public interface lets one save."""
    url = yarl.URL(f"{base_url}/1/cards", encoded=True)
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    async with _tuned_session(concurrency) as http:

        async def one(position: int) -> object:
            body = encode({"name": f"Card {position}", "idList": _LIST_ID, "desc": _DESC, **_CREDENTIALS})
            async with http.post(url, data=body, allow_redirects=False) as response:
                answer = await response.read()
            if response.status != 200:
                raise RuntimeError(response.status)
            return decode(answer)

        yield lambda cards: _in_workers(cards, concurrency, one)


def _session(base_url: str, concurrency: int) -> boardclient.AsyncSession:
    credentials = boardclient.StaticCredentials(token="t", key="k")
    return boardclient.AsyncSession(credentials, base_url=base_url, max_connections=concurrency)


@contextlib.asynccontextmanager
async def create_in_workers(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create` in worker tasks."""
    async with _session(base_url, concurrency) as session:

        async def one(position: int) -> boardclient.Card:
            return await session.cards.create(f"Card {position}", list_id=_LIST_ID, desc=_DESC)

        yield lambda cards: _in_workers(cards, concurrency, one)


@contextlib.asynccontextmanager
async def create_many(base_url: str, concurrency: int, folder: str | None = None) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create_many`; with a journal for each run where a folder is given."""
    async with _session(base_url, concurrency) as session:

        async def work(cards: int) -> int:
            drafts = (boardclient.CardDraft(f"Card {position}", _LIST_ID, desc=_DESC) for position in range(cards))
            journal = None if folder is None else f"{folder}/{cards}.journal"
            async with session.cards.create_many(drafts, concurrency=concurrency, journal=journal) as run:
                await run.wait()
            return run.report.created

        yield work


@contextlib.asynccontextmanager
async def create_many_with_journal(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create_many` and a journal."""
    with tempfile.TemporaryDirectory() as folder:
        async with create_many(base_url, concurrency, folder) as work:
            yield work


@contextlib.asynccontextmanager
async def read_by_hand(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Read a board's cards as plain dictionaries."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as http:

        async def work(reads: int) -> int:
            seen = 0
            for _ in range(reads):
                async with http.get(f"{base_url}/1/boards/b1/cards", params=_CREDENTIALS) as response:
                    response.raise_for_status()
                    seen += len(await response.json())
            return seen

        yield work


@attrs.frozen(kw_only=True)
class _Card:
    id: str
    name: str | None
    desc: str | None
    url: str | None
    extra: dict[str, object]


@contextlib.asynccontextmanager
async def read_objects_by_hand(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Read a board's cards as attrs objects that keep every other field, without checking a type."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as http:

        async def work(reads: int) -> int:
            seen = 0
            for _ in range(reads):
                async with http.get(f"{base_url}/1/boards/b1/cards", params=_CREDENTIALS) as response:
                    response.raise_for_status()
                    cards = [
                        _Card(id=raw.pop("id"), name=raw.pop("name"), desc=raw.pop("desc"), url=raw.pop("url"), extra=raw)
                        for raw in await response.json()
                    ]
                    seen += len(cards)
            return seen

        yield work


@contextlib.asynccontextmanager
async def read_tuned(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Read a board's cards as plain dictionaries, decoded by msgspec."""
    url = yarl.URL(f"{base_url}/1/boards/b1/cards?key=k&token=t", encoded=True)
    decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
    async with _tuned_session(concurrency) as http:

        async def work(reads: int) -> int:
            seen = 0
            for _ in range(reads):
                async with http.get(url, allow_redirects=False) as response:
                    answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(response.status)
                seen += len(decode(answer))
            return seen

        yield work


@contextlib.asynccontextmanager
async def read_board(base_url: str, concurrency: int) -> AsyncIterator[Work]:
    """Read a board's cards with `session.boards.cards`."""
    async with _session(base_url, concurrency) as session:

        async def work(reads: int) -> int:
            return sum([len(await session.boards.cards("b1")) for _ in range(reads)])

        yield work


def _the_public_way(contender: Contender) -> Contender:
    """Let a contender of the SDK go over `ClientSession.request`, as it does where the direct exchange can't serve."""

    @contextlib.asynccontextmanager
    async def opened(base_url: str, concurrency: int) -> AsyncIterator[Work]:
        Pool._may_be_direct = False  # each contender has a process of its own
        async with contender(base_url, concurrency) as work:
            yield work

    return opened


CREATING: dict[str, Contender] = {
    "hand-written": create_by_hand,
    "hand-written, tuned": create_tuned,
    "cards.create": create_in_workers,
    "cards.create, public": _the_public_way(create_in_workers),
    "cards.create_many": create_many,
    "create_many, public": _the_public_way(create_many),
    "create_many, journal": create_many_with_journal,
}
READING: dict[str, Contender] = {
    "hand-written": read_by_hand,
    "hand-written, objects": read_objects_by_hand,
    "hand-written, tuned": read_tuned,
    "boards.cards": read_board,
    "boards.cards, public": _the_public_way(read_board),
}
