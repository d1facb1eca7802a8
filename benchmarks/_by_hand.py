"""Hand-written aiohttp programs: straightforward ones, and ones with every possible optimisation."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import attrs
import msgspec
import yarl
from _contenders import CREDENTIALS, Service, Work, draft, in_workers, one_by_one, read_path, seen


def plain_session(service: Service, concurrency: int) -> aiohttp.ClientSession:
    """Return the session that most programs make."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency, ssl=service.context() or True))


def _tuned_session(service: Service, concurrency: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency, ssl=service.context() or True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "tuned"},
    )


_Send = Callable[[aiohttp.ClientSession, int], Awaitable[dict[str, Any]]]
"""Makes one call with a session."""


@contextlib.asynccontextmanager
async def _gathered(service: Service, concurrency: int, send: _Send) -> AsyncIterator[Work]:
    """Start a task for each call, with a semaphore, as most programs do."""
    limit = asyncio.Semaphore(concurrency)
    async with plain_session(service, concurrency) as http:

        async def one(position: int, seconds: list[float]) -> dict[str, Any]:
            async with limit:
                started = time.perf_counter()
                card = await send(http, position)
                seconds.append(time.perf_counter() - started)
                return card

        async def work(cards: int, seconds: list[float]) -> int:
            return len(await asyncio.gather(*(one(position, seconds) for position in range(cards))))

        yield work


def _creating(service: Service) -> _Send:
    async def create(http: aiohttp.ClientSession, position: int) -> dict[str, Any]:
        async with http.post(f"{service.base_url}/1/cards", json=draft(position)) as response:
            response.raise_for_status()
            card: dict[str, Any] = await response.json()
            return card

    return create


def _getting(service: Service) -> _Send:
    async def get(http: aiohttp.ClientSession, _: int) -> dict[str, Any]:
        async with http.get(service.base_url + read_path(0), params=CREDENTIALS) as response:
            response.raise_for_status()
            card: dict[str, Any] = await response.json()
            return card

    return get


def _retrying(send: _Send) -> _Send:
    from tenacity import retry, stop_after_attempt, wait_random_exponential

    return retry(stop=stop_after_attempt(3), wait=wait_random_exponential(max=20), reraise=True)(send)


def create_by_hand(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Create cards in a straightforward way."""
    return _gathered(service, concurrency, _creating(service))


def create_with_tenacity(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Create cards in a straightforward way, with retries."""
    return _gathered(service, concurrency, _retrying(_creating(service)))


def get_by_hand(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Read single cards in a straightforward way."""
    return _gathered(service, concurrency, _getting(service))


def get_with_tenacity(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Read single cards in a straightforward way, with retries."""
    return _gathered(service, concurrency, _retrying(_getting(service)))


@contextlib.asynccontextmanager
async def create_tuned(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with every optimisation that aiohttp's public interface allows."""
    url = yarl.URL(f"{service.base_url}/1/cards", encoded=True)
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    async with _tuned_session(service, concurrency) as http:

        async def one(position: int) -> object:
            async with http.post(url, data=encode(draft(position)), allow_redirects=False) as response:
                answer = await response.read()
            if response.status != 200:
                raise RuntimeError(response.status)
            return decode(answer)

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def create_bare(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with aiohttp's connector and parser, prepared bytes, and nothing else."""
    url = yarl.URL(f"{service.base_url}/1/cards", encoded=True)
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    async with _tuned_session(service, concurrency) as http:
        connector = http.connector
        assert connector is not None
        request = aiohttp.ClientRequest("POST", url, headers=http.headers, loop=asyncio.get_running_loop())
        timeout = aiohttp.ClientTimeout(total=None)
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items() if name != "Content-Length")
        head = f"POST {url.raw_path} HTTP/1.1\r\n{lines}".encode()

        async def one(position: int) -> object:
            body = encode(draft(position))
            connection = await connector.connect(request, [], timeout)
            protocol = connection.protocol
            assert protocol is not None
            assert protocol.transport is not None
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            protocol.transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
            message, content = await protocol.read()
            answer = await content.read()
            connection.release()
            if message.code != 200:
                raise RuntimeError(message.code)
            return decode(answer)

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def read_by_hand(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards as plain dictionaries."""
    async with plain_session(service, 1) as http:

        async def read() -> int:
            async with http.get(service.base_url + read_path(cards), params=CREDENTIALS) as response:
                response.raise_for_status()
                return seen(await response.json())

        yield one_by_one(read)


@attrs.frozen(kw_only=True)
class _Card:
    id: str
    name: str | None
    desc: str | None
    url: str | None
    extra: dict[str, object]


@contextlib.asynccontextmanager
async def read_objects_by_hand(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards as attrs objects that keep every other field, without checking a type."""
    async with plain_session(service, 1) as http:

        async def read() -> int:
            async with http.get(service.base_url + read_path(cards), params=CREDENTIALS) as response:
                response.raise_for_status()
                found = [
                    _Card(id=raw.pop("id"), name=raw.pop("name"), desc=raw.pop("desc"), url=raw.pop("url"), extra=raw)
                    for raw in await response.json()
                ]
                return len(found)

        yield one_by_one(read)


@contextlib.asynccontextmanager
async def read_tuned(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards as plain dictionaries, decoded by msgspec."""
    async with reading_with(service, cards, msgspec.json.Decoder().decode) as work:
        yield work


@contextlib.asynccontextmanager
async def reading_with(service: Service, cards: int, decode: Callable[[bytes], object]) -> AsyncIterator[Work]:
    """Read with every optimisation that aiohttp's public interface allows."""
    url = yarl.URL(f"{service.base_url}{read_path(cards)}?key=k&token=t", encoded=True)
    async with _tuned_session(service, 1) as http:

        async def read() -> int:
            async with http.get(url, allow_redirects=False) as response:
                answer = await response.read()
            if response.status != 200:
                raise RuntimeError(response.status)
            return seen(decode(answer))

        yield one_by_one(read)
