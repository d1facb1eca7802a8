"""Calls that fail for every reason that there is, against a service that repeats credentials wherever it can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs
from virtual_loop import Clock

from boardclient import (
    ApiError,
    AsyncSession,
    BoardClientError,
    CredentialError,
    DeadlineError,
    DecodeError,
    OAuthCredentials,
    SessionClosedError,
    StaticCredentials,
    TransportError,
)
from boardclient.testing import BoardService, faults


@attrs.define(repr=False)
class Scene:
    """What a call is made on.

    Args:
        service: the service.
        raw_server: a server below HTTP.
        clock: the loop's, which stands still.
        options: of every session.
        secrets: what no instrument may see.
    """

    service: BoardService
    raw_server: Any
    clock: Clock
    options: dict[str, Any]
    secrets: list[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.secrets = [self.service.key, self.service.token, self.service.client_secret]

    @property
    def echo(self) -> str:
        """What a request of a card holds of the secrets."""
        return f"{self.service.key} {self.service.token}"

    @property
    def form(self) -> str:
        """What a token exchange holds of them."""
        return f"{self.service.client_secret} {self.secrets[-1]}"

    def session(self, base_url: str | None = None, **options: Any) -> AsyncSession:
        credentials = StaticCredentials(self.service.token, self.service.key)
        return AsyncSession(credentials, base_url or self.service.base_url, **{"retry": None, **self.options, **options})

    def oauth_session(self, authorize: Any = None, **options: Any) -> AsyncSession:
        async def at_once(request: object) -> str:
            self.secrets.append(self.service.new_code())
            return self.secrets[-1]

        credentials = OAuthCredentials(
            client_id=self.service.client_id,
            client_secret=self.service.client_secret,
            redirect_uri=self.service.redirect_uri,
            auth_url=self.service.auth_url,
            key=self.service.key,
            authorize=authorize or at_once,
        )
        return AsyncSession(credentials, self.service.base_url, **{"retry": None, **self.options, **options})

    async def arrived(self, number: int = 1) -> None:
        while len(self.service.calls) < number:
            await asyncio.sleep(0)


Situation = Callable[[Scene], Awaitable[object]]


async def success(scene: Scene) -> None:
    board = scene.service.seed({"To Do": []})
    async with scene.session() as session:
        await session.members.me()
        await session.cards.create("a card", list_id=board.lists["To Do"])
        await session.boards.lists(board.id)


async def success_after_renewal(scene: Scene) -> None:
    async with scene.oauth_session() as session:
        await session.members.me()
        scene.service.faults.add(faults.status(401, body=scene.service.key.encode()), "members.me", times=1)
        await session.members.me()


def at(base_url: str) -> Situation:
    async def call(scene: Scene) -> None:
        async with scene.session(base_url) as session:
            await session.members.me()

    return call


async def tls(scene: Scene) -> None:
    await at(scene.service.base_url.replace("http:", "https:"))(scene)


def met(fault: Callable[[Scene], Any], **options: Any) -> Situation:
    async def call(scene: Scene) -> None:
        scene.service.faults.add(fault(scene))
        async with scene.session(**options) as session:
            for request in (session.members.me(), session.cards.create("a card", list_id="l")):
                try:
                    await request
                except BoardClientError as error:
                    last = error
            raise last

    return call


def answered(status: int, **headers: str) -> Situation:
    """Make a call whose response repeats all that the service knows."""
    return met(
        lambda scene: faults.status(
            status, body=scene.echo.encode(), headers={"X-Echo": scene.echo, "Set-Cookie": f"a={scene.secrets[1]}", **headers}
        ),
        timeout=5.0,
    )


def raw(*pieces: bytes) -> Situation:
    """Make a call that these bytes answer, after which the connection is cut. `%` stands for the request."""

    async def call(scene: Scene) -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"".join(pieces).replace(b"%", head.split(b"\r\n")[0]))
            await writer.drain()

        async with scene.raw_server.run(handler) as url:
            await at(url)(scene)

    return call


async def refused_twice(scene: Scene) -> None:
    scene.service.faults.add(faults.status(401, body=scene.service.key.encode()), "members.me")
    async with scene.oauth_session() as session:
        await session.members.me()


async def waiting_for_the_response(scene: Scene) -> None:
    scene.service.faults.add(faults.hang())
    async with scene.session(timeout=5.0) as session:
        call = asyncio.ensure_future(session.members.me())
        await scene.arrived()
        scene.clock.advance(6.0)
        await call


async def waiting_for_the_pool(scene: Scene) -> None:
    scene.service.faults.add(faults.hang())
    async with scene.session(timeout=5.0, max_connections=1) as session:
        calls = [asyncio.ensure_future(session.members.me()) for _ in range(2)]
        await scene.arrived()
        scene.clock.advance(6.0)
        raise (await asyncio.gather(*calls, return_exceptions=True))[1]  # type: ignore[misc]  # -- both fail


class Closed:
    """A limiter that lets nothing through."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def __aenter__(self) -> None:
        self.entered.set()
        await asyncio.Event().wait()

    async def __aexit__(self, *error: object) -> None: ...


async def waiting_for_the_limiter(scene: Scene) -> None:
    limiter = Closed()
    async with scene.session(timeout=5.0, limiter=limiter) as session:
        call = asyncio.ensure_future(session.members.me())
        await limiter.entered.wait()
        scene.clock.advance(6.0)
        await call


async def waiting_for_consent(scene: Scene) -> None:
    asked = asyncio.Event()

    async def authorize(request: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with scene.oauth_session(authorize, timeout=5.0) as session:
        call = asyncio.ensure_future(session.members.me())
        await asked.wait()
        scene.clock.advance(6.0)
        await call


def exchanged(fault: Callable[[Scene], Any]) -> Situation:
    async def call(scene: Scene) -> None:
        scene.service.faults.add(fault(scene), "token.exchange")
        async with scene.oauth_session() as session:
            await session.members.me()

    return call


def refusal(scene: Scene) -> Any:
    words = {"error": "invalid_grant", "error_description": f"not good: {scene.form}"}
    return faults.status(400, body=json.dumps(words).encode(), headers={"X-Echo": scene.form})


def no_token(scene: Scene) -> Any:
    return faults.status(200, body=json.dumps({"data": {"t": scene.form}}).encode(), headers={"X-Echo": scene.form})


async def cancelled(scene: Scene) -> None:
    scene.service.faults.add(faults.hang())
    async with scene.session() as session:
        call = asyncio.ensure_future(session.members.me())
        await scene.arrived()
        call.cancel()
        await call


async def closed(scene: Scene) -> None:
    session = scene.session()
    await session.aclose()
    await session.members.me()


async def closed_meanwhile(scene: Scene) -> None:
    scene.service.faults.add(faults.hang())
    session = scene.session()
    call = asyncio.ensure_future(session.members.me())
    await scene.arrived()
    await session.aclose()
    await call


SITUATIONS: dict[str, tuple[Situation, type[BaseException] | None]] = {
    "success": (success, None),
    "success after a renewal": (success_after_renewal, None),
    "refused": (at("http://127.0.0.1:1"), TransportError),
    "no such host": (at("https://no-such-host.invalid"), TransportError),
    "no TLS": (tls, TransportError),
    "closed before the response": (met(lambda scene: faults.drop()), TransportError),
    "reset before the response": (met(lambda scene: faults.drop(reset=True)), TransportError),
    "cut in the head": (raw(b"HTTP/1.1 200 OK\r\nX-Echo: %\r\nContent-"), TransportError),
    "cut in the body": (raw(b"HTTP/1.1 200 OK\r\nX-Echo: %\r\nContent-Length: 1000\r\n\r\n{%"), TransportError),
    "truncated": (met(lambda scene: faults.truncated(scene.echo.encode())), ApiError),
    "a bad chunk": (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz%\r\n%\r\n"), TransportError),
    "no HTTP": (raw(b"% is no request that I know\r\n\r\n"), TransportError),
    "a bad header": (raw(b"HTTP/1.1 200 OK\r\nX Echo %\r\n\r\n"), TransportError),
    "bad gzip": (answered(200, **{"Content-Encoding": "gzip"}), TransportError),
    "bad JSON": (answered(200), DecodeError),
    "redirect": (answered(302, Location="https://elsewhere.example/?token=%"), ApiError),
    "429 with a long pause": (answered(429, **{"Retry-After": "30"}), ApiError),
    **{str(status): (answered(status), ApiError) for status in (400, 401, 403, 404, 408, 418, 500, 503)},
    "401 twice": (refused_twice, BoardClientError),
    "waiting for the response": (waiting_for_the_response, DeadlineError),
    "waiting for the pool": (waiting_for_the_pool, DeadlineError),
    "waiting for the limiter": (waiting_for_the_limiter, DeadlineError),
    "waiting for consent": (waiting_for_consent, DeadlineError),
    "a refused exchange": (exchanged(refusal), CredentialError),
    "an exchange without a token": (exchanged(no_token), CredentialError),
    "a dropped exchange": (exchanged(lambda scene: faults.drop(commit=True)), CredentialError),
    "a body that is too large": (met(lambda scene: faults.status(200, body=b"x" * 100), max_answer_bytes=10), TransportError),
    "a body that is far too large": (
        met(lambda scene: faults.status(200, body=b"x" * 2**20), max_answer_bytes=10),
        TransportError,
    ),
    "cancelled": (cancelled, asyncio.CancelledError),
    "on a closed session": (closed, SessionClosedError),
    "closed meanwhile": (closed_meanwhile, SessionClosedError),
}
"""Each situation, and what it raises."""


def tokens_of(service: BoardService) -> Iterable[str]:
    """Yield the tokens that requests were signed with."""
    for call in service.calls:
        for fields in (call.query, call.body):
            if isinstance(fields, dict) and "token" in fields:
                yield str(fields["token"])
