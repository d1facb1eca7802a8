"""Other clients, used as their users would.

Each imports its packages when it is opened, since this package does not require them.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from _contenders import DESC, LIST_ID, Service, Work, draft, in_workers, one_by_one, read_path, seen

# --- httpx with pydantic


@contextlib.asynccontextmanager
async def _httpx_client(service: Service, concurrency: int) -> AsyncIterator[Any]:
    import httpx

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=service.base_url, limits=limits, verify=service.context() or True) as http:
        yield http


def _pydantic_card() -> Any:
    from datetime import datetime

    import pydantic

    return pydantic.create_model(
        "Card",
        __config__=pydantic.ConfigDict(extra="allow"),
        id=(str, ...),
        name=(str | None, None),
        desc=(str | None, None),
        url=(str | None, None),
        idList=(str | None, None),
        due=(datetime | None, None),
        pos=(str | float | None, None),
    )


def _pydantic_reader(cards: int) -> Callable[[bytes], object]:
    """Return a pydantic validator for a model with this package's fields that keeps the others."""
    import pydantic

    card: Any = _pydantic_card()
    return pydantic.TypeAdapter(list[card] if cards else card).validate_json


@contextlib.asynccontextmanager
async def create_with_httpx(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with one AsyncClient in worker tasks, each response checked by a pydantic model."""
    card = _pydantic_card()
    async with _httpx_client(service, concurrency) as http:

        async def one(position: int) -> object:
            response = await http.post("/1/cards", json=draft(position))
            return card.model_validate_json(response.raise_for_status().content)

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def read_with_httpx(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards with httpx, checked by pydantic."""
    decode = _pydantic_reader(cards)
    async with _httpx_client(service, 1) as http:

        async def read() -> int:
            response = await http.get(read_path(cards), params={"key": "k", "token": "t"})
            return seen(decode(response.raise_for_status().content))

        yield one_by_one(read)


@contextlib.asynccontextmanager
async def read_with_pydantic(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards with aiohttp, as fast as it goes, checked by pydantic."""
    from _by_hand import reading_with

    async with reading_with(service, cards, _pydantic_reader(cards)) as work:
        yield work


# --- trellio-client


@contextlib.asynccontextmanager
async def _trellio(service: Service, path: str) -> AsyncIterator[Any]:
    from trellio import TrellioClient

    if service.certificate:
        os.environ["SSL_CERT_FILE"] = service.certificate  # httpx's own way: this client accepts no SSL context
    client = TrellioClient("k", "t", base_url=f"{service.base_url}{path}")
    try:
        yield client
    finally:
        await client._client.aclose()


@contextlib.asynccontextmanager
async def create_with_trellio(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with one TrellioClient in worker tasks."""
    async with _trellio(service, "/trellio") as client:

        async def one(position: int) -> object:
            return await client.create_card(LIST_ID, f"Card {position}", desc=DESC)

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def read_with_trellio(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a list's cards, since the client can't read a board's; the response is the same."""
    async with _trellio(service, "") as client:

        async def read() -> int:
            return len(await client.list_cards(f"l{cards}"))

        yield one_by_one(read)


# --- py-trello


@contextlib.asynccontextmanager
async def create_with_py_trello(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards one after the other: it is synchronous. One kept-alive session, which is not its default."""
    import requests
    from trello import Board, List, TrelloClient

    class Redirected(requests.Session):
        def request(self, method: str, url: str, *rest: Any, **options: Any) -> requests.Response:
            return super().request(method, url.replace("https://api.trello.com", f"{service.base_url}/trello"), *rest, **options)

    with Redirected() as http:
        http.verify = service.certificate or True
        client = TrelloClient(api_key="k", api_secret="t", http_service=http)
        to = List(Board(client, board_id="b"), LIST_ID)

        async def one(position: int) -> object:
            return to.add_card(f"Card {position}", desc=DESC)

        yield in_workers(1, one)


# --- slack_sdk


@contextlib.asynccontextmanager
async def create_with_slack_sdk(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with the client pattern of slack_sdk: one AsyncWebClient with an aiohttp session, the body as JSON."""
    from _by_hand import plain_session
    from slack_sdk.web.async_client import AsyncWebClient

    async with plain_session(service, concurrency) as http:
        client = AsyncWebClient("t", base_url=f"{service.base_url}/slack/", session=http, ssl=service.context())

        async def one(position: int) -> object:
            return await client.api_call("1/cards", json={"name": f"Card {position}", "idList": LIST_ID, "desc": DESC})

        yield in_workers(concurrency, one)
