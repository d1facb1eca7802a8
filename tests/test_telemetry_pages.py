"""The pages on events and on errors say what is so: they are compared with the code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from error_headings import is_in_text
from virtual_loop import Clock

from boardclient import AsyncSession, BoardClientError, OAuthCredentials, StaticCredentials, events
from boardclient.testing import BoardService, faults

_DOCS = Path(__file__).parent.parent / "docs"
_HTML = {"Content-Type": "text/html"}


def test_the_page_of_events_lists_them_all() -> None:
    """Each event is in the table with all its fields."""
    page = (_DOCS / "telemetry.md").read_text(encoding="utf-8")
    for event in get_args(events.Event):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{event.__name__}` |")]
        assert re.findall(r"`(\w+)`", row)[1:] == [field.name for field in attrs.fields(event)]


def _session(service: BoardService, **options: Any) -> AsyncSession:
    return AsyncSession(StaticCredentials(service.token, service.key), service.base_url, **{"retry": None, **options})


def _built(**options: Any) -> Callable[[BoardService], Awaitable[object]]:
    async def build(service: BoardService) -> object:
        given = {"credentials": StaticCredentials("t"), "base_url": "https://board.example", **options}
        return AsyncSession(**given)

    return build


def _called(
    use: Callable[[AsyncSession], Awaitable[object]], fault: Any = None, **options: Any
) -> Callable[[BoardService], Awaitable[object]]:
    async def call(service: BoardService) -> object:
        if fault is not None:
            service.faults.add(fault)
        async with _session(service, **options) as session:
            return await use(session)

    return call


def _status(status: int, **options: Any) -> Callable[[BoardService], Awaitable[object]]:
    return _called(lambda session: session.members.me(), faults.status(status, body=b"", **options))


async def _wrong_token(service: BoardService) -> object:
    async with AsyncSession(StaticCredentials("wrong", service.key), service.base_url) as session:
        return await session.members.me()


async def _wrong_host(service: BoardService) -> object:
    async with AsyncSession(StaticCredentials("t"), "https://no-such-host.invalid", retry=None) as session:
        return await session.members.me()


async def _nothing_listens(service: BoardService) -> object:
    async with AsyncSession(StaticCredentials("t"), "http://127.0.0.1:1", retry=None) as session:
        return await session.members.me()


async def _https_to_http(service: BoardService) -> object:
    url = service.base_url.replace("http:", "https:")
    async with AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        return await session.members.me()


async def _closed(service: BoardService) -> object:
    session = _session(service)
    await session.aclose()
    return await session.members.me()


async def _hung(service: BoardService) -> object:
    async with _session(service, timeout=0.5) as session:
        await session.members.me()
        service.faults.add(faults.hang(seconds=1))
        return await session.members.me()


def _signing_in(**options: Any) -> Callable[[BoardService], Awaitable[object]]:
    async def call(service: BoardService) -> object:
        async def authorize(request: object) -> str:
            return "not-a-good-code"

        given = {"client_id": service.client_id, "client_secret": service.client_secret, "redirect_uri": service.redirect_uri}
        credentials = OAuthCredentials(**{**given, "auth_url": service.auth_url, "authorize": authorize, **options})
        async with AsyncSession(credentials, service.base_url) as session:
            return await session.members.me()

    return call


class _Closed:
    """A limiter at which time passes, and nothing else."""

    async def __aenter__(self) -> None:
        await asyncio.get_running_loop().time.sleep(1)  # type: ignore[attr-defined]  # -- the test's own clock
        await asyncio.Event().wait()

    async def __aexit__(self, *exc: object) -> None: ...


async def _asked_too_long(service: BoardService) -> object:
    service.faults.add(faults.status(429, body=b"", headers={"Retry-After": "19"}))
    async with AsyncSession(StaticCredentials(service.token, service.key), service.base_url, timeout=3) as session:
        return await session.members.me()


MISTAKES: dict[str, Callable[[BoardService], Awaitable[object]]] = {
    "base_url without a scheme": _built(base_url="board.example"),
    'base_url that ends in "/1"': _built(base_url="https://board.example/1"),
    "base_url with a query": _built(base_url="https://board.example?a=b"),
    "plain http to another machine": _built(base_url="http://board.example"),
    "a timeout of 0": _built(timeout=0),
    "credentials that are a text": _built(credentials="token"),
    "retry that is no policy": _built(retry=3),
    'credentials_in="header"': _built(credentials_in="header"),
    "an empty token": lambda service: _built(credentials=StaticCredentials(""))(service),
    "no host of that name": _wrong_host,
    "nothing listens there": _nothing_listens,
    "https to a port that speaks http": _https_to_http,
    "a wrong token": _wrong_token,
    "a token without the right to write": _status(403),
    "an identifier that does not exist": _status(404),
    "a request that the service refuses": _status(400),
    "too many requests": _status(429),
    "a pause that the timeout does not allow": _asked_too_long,
    "a redirect": _status(302),
    "a service that fails": _status(500),
    "a proxy's page in place of JSON": _called(
        lambda session: session.members.me(), faults.status(200, body=b"<html>Sign in to the hotel</html>", headers=_HTML)
    ),
    "a service that does not respond": _hung,
    "a limiter that lets nothing through": _called(lambda session: session.members.me(), timeout=0.3, limiter=_Closed()),
    "a closed session": _closed,
    "an empty identifier": _called(lambda session: session.cards.get("")),
    "an identifier with a slash": _called(lambda session: session.cards.get("a/b")),
    "a name that is None": _called(lambda session: session.boards.create(None)),  # type: ignore[arg-type]  # -- the mistake
    "a path outside of the interface": _called(lambda session: session.request("GET", "/cards")),
    "a token in the parameters": _called(lambda session: session.request("GET", "/1/cards", params={"token": "t"})),
    "a used or expired code": _signing_in(),
    "a wrong client secret": _signing_in(client_secret="wrong"),
    "nobody has signed in": _signing_in(authorize=None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_the_error_of_a_typical_mistake_is_a_heading(service: BoardService, loop_clock: Clock, mistake: str) -> None:
    """Each mistake raises an error whose text has a heading on the page of errors, where its author can find it."""
    service.sleep = loop_clock.sleep
    with pytest.raises((BoardClientError, ValueError, TypeError)) as caught:
        await MISTAKES[mistake](service)
    assert is_in_text(str(caught.value))
