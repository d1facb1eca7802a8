"""Failing calls of every kind, with secrets that are recognised wherever they come out."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, quote_plus

import attrs
from tenacity import AsyncRetrying, retry_always, stop_after_attempt, wait_none

from boardclient import AsyncSession, CardDraft, CredentialError, Credentials, StaticCredentials
from boardclient.retry import when_safe, when_status
from boardclient.testing import BoardService, faults

# Each holds a core that no encoding changes, so that one look finds it however it is written.
KEY = "ké&y/ 1\"canary4k7e\\+%2f'"
TOKEN = "tö😀\"/canary9t3z%+\\ =&'"
SECRET = "sß/canary2s8c\"%+\\ '"
CORES = ("canary4k7e", "canary9t3z", "canary2s8c")


class Provider:
    """Sends the client secret through the session's exchange, and gives the key and the token."""

    async def acquire(self, exchange: Any) -> Credentials:
        await exchange.post_form(self.url, {"client_secret": SECRET})
        return Credentials(TOKEN, KEY)

    async def renew(self, rejected: Credentials, exchange: Any) -> Credentials:
        return await self.acquire(exchange)

    def __init__(self, url: str) -> None:
        self.url = url


@attrs.define(eq=False)
class Scene:
    """One failing call, and everything that came out of it."""

    service: BoardService
    operation: str
    events: list[object] = attrs.field(factory=list)
    records: list[logging.LogRecord] = attrs.field(factory=list)
    warned: list[warnings.WarningMessage] = attrs.field(factory=list)
    reprs: list[str] = attrs.field(factory=list)
    errors: list[BaseException] = attrs.field(factory=list)
    stack: contextlib.AsyncExitStack = attrs.field(factory=contextlib.AsyncExitStack)

    async def session(self, provider: Any = None, **options: Any) -> AsyncSession:
        given = provider or Provider(self.service.auth_url + "/1/OAuthGetAccessToken")
        options = {"retry": None, "timeout": 20.0, "observers": [self.events.append], **options}
        return await self.stack.enter_async_context(self.service.session(given, **options))

    async def call(self, session: AsyncSession) -> object:
        self.reprs.append(repr(session))
        try:
            if self.operation == "cards.create":
                return await session.cards.create("card", list_id="1")
            return await session.cards.get("1")
        finally:
            self.reprs += [repr(session), repr(self.service), str(session.__dict__)]

    async def meet(self, fault: faults.Fault, **options: Any) -> object:
        self.service.faults.add(fault, self.operation)
        del fault  # it may hold what the service echoes
        return await self.call(await self.session(**options))


Kind = Callable[[Scene], Awaitable[object]]


def forms(secret: str) -> list[str]:
    plain = [secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]]
    lowered = [json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="").lower(), quote(secret, safe="!$&'()*+,;=:@/")]
    return plain + lowered + [json.dumps(secret)[1:-1].replace("/", "\\/")]


ECHO = json.dumps([form for secret in (KEY, TOKEN) for form in forms(secret)]).encode()
ECHO_PLAIN = "\n".join(form for secret in (KEY, TOKEN) for form in forms(secret)).encode()
ECHO_HEADERS = {f"X-Echo-{n}": form for n, form in enumerate(form for secret in (KEY, TOKEN) for form in forms(secret))}
TOKEN_HEADERS = {f"X-Echo-{n}": form for n, form in enumerate(forms(TOKEN))}

SIMPLE: dict[str, tuple[faults.Fault, dict[str, Any]]] = {
    "drop before commit": (faults.drop(), {}),
    "drop after commit": (faults.drop(commit=True), {}),
    "reset": (faults.drop(reset=True), {}),
    "truncated": (faults.truncated(), {}),
    "deadline": (faults.hang(seconds=1), {"timeout": 0.2}),
    "slow": (faults.slow_body(60), {"timeout": 0.2}),
    "redirect": (faults.redirect("http://elsewhere.example/1/cards"), {}),
    **{f"status {code}": (faults.status(code, body=ECHO), {}) for code in (400, 401, 403, 404, 408, 418, 429, 500, 503)},
    "html": (faults.foreign_body(b"<html>" + ECHO_PLAIN, "text/html"), {}),
    "wrong shape": (faults.foreign_body(ECHO), {}),
    "wrong type of a field": (faults.foreign_body(json.dumps({"id": [KEY, TOKEN]}).encode()), {}),
    "echo in body": (faults.status(400, body=ECHO_PLAIN), {}),
    "echo in headers": (faults.status(400, ECHO_HEADERS, ECHO), {}),
    "echo in a redirect": (faults.redirect("/1/cards?" + quote(TOKEN) + "&" + quote(KEY)), {}),
    "echo in retry-after": (faults.status(429, {"Retry-After": quote(TOKEN, safe="")}), {}),
    "invalid json": (faults.foreign_body(b'{"id": "' + TOKEN.encode()), {}),
    "not utf-8": (faults.foreign_body(b'"\xff' + TOKEN.encode()), {}),
    "too large": (faults.foreign_body(ECHO_PLAIN * 50), {"max_answer_bytes": 4096}),
    "too large an error": (faults.status(500, body=ECHO_PLAIN * 200), {"max_answer_bytes": 70000}),
    "bad gzip": (faults.foreign_body(ECHO, headers={"Content-Encoding": "gzip"}), {}),
    "half a gzip": (faults.foreign_body(gzip.compress(ECHO)[:40], headers={"Content-Encoding": "gzip"}), {}),
    "retry exhausted": (
        faults.status(500, body=ECHO),
        {"retry": AsyncRetrying(retry=when_status(500), stop=stop_after_attempt(3), wait=wait_none())},
    ),
    "retry exhausted, reraised": (
        faults.status(500, body=ECHO),
        {"retry": AsyncRetrying(retry=when_status(500), stop=stop_after_attempt(3), wait=wait_none(), reraise=True)},
    ),
    "retry exhausted on drops": (
        faults.drop(),
        {"retry": AsyncRetrying(retry=when_safe, stop=stop_after_attempt(2), wait=wait_none())},
    ),
    "retry of whatever comes": (
        faults.foreign_body(b'{"id": "1"}'),
        {"retry": AsyncRetrying(retry=retry_always, stop=stop_after_attempt(2), wait=wait_none())},
    ),
    "pause past the deadline": (
        faults.status(429, {"Retry-After": "50"}, ECHO),
        {"retry": AsyncRetrying(retry=when_safe, wait=lambda state: 50.0), "timeout": 5.0},
    ),
    "proxy refused": (faults.drop(), {"proxy": "http://127.0.0.1:1"}),
}


def simple(fault: faults.Fault, options: dict[str, Any]) -> Kind:
    return lambda scene: scene.meet(fault, **options)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


async def refused(scene: Scene) -> object:
    return await scene.call(await scene.session(base_url=f"http://127.0.0.1:{free_port()}"))


async def closed_in_flight(scene: Scene) -> object:
    scene.service.faults.add(faults.hang(), scene.operation)
    session = await scene.session()
    task = asyncio.create_task(scene.call(session))
    await scene.service.received(scene.operation)
    await session.aclose()
    return await task


async def cancelled(scene: Scene) -> object:
    scene.service.faults.add(faults.hang(), scene.operation)
    task = asyncio.create_task(scene.call(await scene.session()))
    await scene.service.received(scene.operation)
    task.cancel()
    return await task


async def provider_raises(scene: Scene) -> object:
    class Failing(Provider):
        async def acquire(self, exchange: Any) -> Credentials:
            await super().acquire(exchange)
            raise LookupError("no credentials")

    return await scene.call(await scene.session(Failing(scene.service.auth_url)))


async def renewal_raises(scene: Scene) -> object:
    class Failing(Provider):
        async def renew(self, rejected: Credentials, exchange: Any) -> Credentials:
            raise CredentialError("not again")

    scene.service.faults.add(faults.status(401, body=ECHO), scene.operation)
    return await scene.call(await scene.session(Failing(scene.service.auth_url)))


def form(fault: faults.Fault, **options: Any) -> Kind:
    async def kind(scene: Scene) -> object:
        scene.service.faults.add(fault, "token.exchange")
        return await scene.call(await scene.session(**options))

    return kind


async def form_closed(scene: Scene) -> object:
    scene.service.faults.add(faults.hang(), "token.exchange")
    session = await scene.session()
    task = asyncio.create_task(scene.call(session))
    await scene.service.received("token.exchange")
    await session.aclose()
    return await task


async def second_401(scene: Scene) -> object:
    class Renewing(Provider):
        async def renew(self, rejected: Credentials, exchange: Any) -> Credentials:
            return Credentials(TOKEN + "2", KEY)

    scene.service.faults.add(faults.status(401, body=ECHO), scene.operation)
    return await scene.call(await scene.session(Renewing(scene.service.auth_url + "/1/OAuthGetAccessToken")))


async def token_only(scene: Scene) -> object:
    scene.service.faults.add(faults.status(403, TOKEN_HEADERS, json.dumps(forms(TOKEN)).encode()), scene.operation)
    return await scene.call(await scene.session(StaticCredentials(TOKEN), credentials_in="query"))


async def bulk(scene: Scene) -> object:
    scene.service.faults.add(faults.status(401, body=ECHO), "cards.create")
    session = await scene.session()
    async with session.cards.create_many([CardDraft("card", "1")] * 5, concurrency=2) as run:
        scene.reprs += [repr(run), str(vars(run))]
        await run.wait()
    return None


KINDS: dict[str, Kind] = {
    **{name: simple(fault, options) for name, (fault, options) in SIMPLE.items()},
    "connection refused": refused,
    "closed in flight": closed_in_flight,
    "cancelled": cancelled,
    "provider raises": provider_raises,
    "renewal raises": renewal_raises,
    "form dropped": form(faults.drop()),
    "form truncated": form(faults.truncated()),
    "form past the deadline": form(faults.hang(seconds=1), timeout=0.2),
    "form closed in flight": form_closed,
    "second 401": second_401,
    "token only": token_only,
    "bulk": bulk,
}
