"""A session's life over real sockets: building, closing, forgetting, loops, forks, cancellation, lent pools."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tenacity import AsyncRetrying, stop_after_attempt, wait_none
from virtual_loop import Clock

from boardclient import AsyncSession, Credentials, Effect, NotFoundError, SessionClosedError, StaticCredentials
from boardclient.testing import BoardService


async def test_many_tasks_share_few_connections(service: BoardService) -> None:
    """500 calls at once on 10 connections all succeed."""
    async with service.session(max_connections=10, timeout=None) as session:
        members = await asyncio.gather(*(session.members.me() for _ in range(500)))
        assert len(members) == 500
        assert repr(session).startswith("<AsyncSession open, 0 calls in flight, 0/10 connections")
    assert len({call.connection for call in service.calls}) <= 10


async def test_closing_ends_hanging_calls(service: BoardService) -> None:
    """Aclose ends hanging calls with SessionClosedError, refuses later ones, and may be called again, also at once."""
    service.faults.add(service.faults.hang())
    session = service.session()
    read = asyncio.ensure_future(session.members.me())
    create = asyncio.ensure_future(session.boards.create("plans"))
    await service.received("members.me")
    await service.received("boards.create")
    assert "2 calls in flight, 2/100" in repr(session)
    async with asyncio.timeout(60):
        await asyncio.gather(session.aclose(), session.aclose())
    for task in (read, create):
        error = task.exception()
        assert isinstance(error, SessionClosedError)
        assert error.effect is Effect.UNKNOWN
    await session.aclose()
    with pytest.raises(SessionClosedError) as caught:
        await session.members.me()
    assert caught.value.effect is Effect.NOT_SENT
    assert "closed" in repr(session)


@pytest.mark.parametrize("policy", [None, AsyncRetrying(stop=stop_after_attempt(2), wait=wait_none())])
async def test_closing_amid_an_own_call(service: BoardService, policy: AsyncRetrying | None) -> None:
    """A call whose own provider closes the session ends with SessionClosedError and opens nothing any more."""

    class Closer(StaticCredentials):
        async def acquire(self, exchange: Any) -> Credentials:
            await session.aclose()
            return await super().acquire(exchange)

    session = service.session(Closer("t"), retry=policy)
    with pytest.raises(SessionClosedError):
        await session.members.me()
    assert service.calls == []
    assert session._parts.transport._connector is None


class NoUser(StaticCredentials):
    @property
    def account(self) -> str:
        raise LookupError("no current user")


class Stop(BaseException):
    """An exception that is no `Exception`."""


def stop(event: object) -> None:
    raise Stop


@pytest.mark.parametrize("way", ["account", "timeout", "observer", "fields"])
async def test_a_call_that_fails_before_its_request_leaves_nothing_behind(service: BoardService, way: str) -> None:
    """No deadline ends its task later, and closing has nothing to wait for."""
    provider = NoUser(service.token, service.key) if way == "account" else StaticCredentials(service.token, service.key)
    observers: list[Any] = [stop] if way == "observer" else [lambda event: None]
    async with AsyncSession(provider, service.base_url, observers=observers) as session:
        with pytest.raises((LookupError, TypeError, Stop)):
            if way == "account":
                await session.members.me()
            fields: Any = 7 if way == "fields" else {}
            await session.exchange.post_form(service.auth_url, fields, timeout="soon" if way == "timeout" else 1)  # type: ignore[arg-type]  # -- what is refused
        assert session.stats().in_flight == 0


async def test_closing_before_the_first_call(service: BoardService) -> None:
    """A session that was never used closes without a trace."""
    session = service.session()
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await session.members.me()


async def test_a_session_never_closed_warns(service: BoardService) -> None:
    """A session that is forgotten warns ResourceWarning; one that was closed does not."""

    def forget() -> None:
        service.session()
        gc.collect()

    with pytest.warns(ResourceWarning, match="AsyncSession was never closed: use `async with`"):
        forget()
    session = service.session()
    await session.aclose()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del session
        gc.collect()
    assert [warning for warning in caught if "AsyncSession" in str(warning.message)] == []


def test_built_outside_a_loop(board_service: BoardService) -> None:
    """A session may be built without a running loop; it belongs to the loop of its first call, and refuses others."""
    session = board_service.session()

    async def use() -> None:
        await session.members.me()

    async def use_and_close() -> None:
        await use()
        await session.aclose()

    asyncio.run(use_and_close())
    session = board_service.session()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(use())
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(use())
        loop.run_until_complete(session.aclose())
    finally:
        loop.close()


def test_closing_on_a_second_loop(board_service: BoardService) -> None:
    """Once its loop is gone a session can still be closed on another: quietly, without "Event loop is closed"."""
    session = board_service.session()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(session.members.me())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(session.aclose())
        gc.collect()

    async def call() -> None:
        await session.members.me()

    with pytest.raises(SessionClosedError):
        asyncio.run(call())


FORK = """
    import asyncio, os, sys
    from boardclient.testing import BoardService

    async def call(session):
        await session.members.me()

    async def close(session):
        await session.aclose()

    with BoardService() as service:
        loop = asyncio.new_event_loop()
        session = service.session()
        loop.run_until_complete(call(session))
        child = os.fork()
        if not child:
            for run in (asyncio.run, loop.run_until_complete):
                try:
                    run(call(session))
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
            asyncio.run(close(session))
            os._exit(0)
        os.waitpid(child, 0)
        loop.run_until_complete(call(session))
        loop.run_until_complete(close(session))
        print({call.connection for call in service.calls}.__len__(), flush=True)
        loop.close()
"""


@pytest.mark.full
def test_after_a_fork() -> None:
    """A forked child gets a clear error, may close its copy, and the parent's connection remains usable."""
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(FORK)], capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout.splitlines() == [
        "RuntimeError: this AsyncSession was used before the process forked: build one in each process",
        "RuntimeError: this AsyncSession was used before the process forked: build one in each process",
        "1",
    ], run.stderr


# --- cancellation


@pytest.mark.parametrize("kind", ["read", "create", "renewal", "big"])
async def test_cancelled_at_any_await(service: BoardService, kind: str) -> None:
    """A call cancelled at any step ends with CancelledError and gives its connection back: the only one serves the next."""
    async with service.session(max_connections=1, timeout=5) as session:

        def call() -> Any:
            if kind == "create":
                return session.boards.create("plans")
            if kind == "big":
                return session.request("GET", "/1/members/me/big")
            return session.members.me()

        if kind == "big":
            service.faults.add(service.faults.foreign_body(b"x" * 2**20), "unknown")
        finished = 0
        cancelled = 0
        for steps in range(400):
            if kind == "renewal":
                service.faults.add(service.faults.status(401), "members.me", times=1)
            task = asyncio.ensure_future(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            service.faults.planned[:] = service.faults.planned[:1] if kind == "big" else []
            if isinstance(outcome, asyncio.CancelledError):
                cancelled += 1
            else:
                finished += 1
            assert repr(session).startswith("<AsyncSession open, 0 calls in flight, 0/1 connections")
            await session.request("GET", "/1/members/me")
            if finished == 5:
                break
        assert finished == 5
        assert cancelled > 5


async def test_a_timeout_of_the_application_is_its_own(service: BoardService, loop_clock: Clock) -> None:
    """asyncio.timeout around a call ends with its own TimeoutError, and a cancelled task with CancelledError."""
    service.sleep = loop_clock.sleep
    service.faults.add(service.faults.hang(seconds=20), "members.me", call=1)
    async with service.session(max_connections=1) as session:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(15):
                await session.members.me()
        assert type(caught.value) is TimeoutError
        service.faults.add(service.faults.hang(), "members.me", call=2)
        task = asyncio.ensure_future(session.members.me())
        await service.received("members.me", 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.members.me()


async def test_a_deadline_inside_a_timeout_leaves_it_intact(service: BoardService, loop_clock: Clock) -> None:
    """A call's own deadline inside asyncio.timeout is distinguished from it, and leaves no cancellation in the task."""
    service.sleep = loop_clock.sleep
    service.faults.add(service.faults.hang(seconds=10), "members.me", call=1)
    async with service.session(timeout=10, retry=None) as session, asyncio.timeout(30):
        with pytest.raises(TimeoutError, match="deadline of 10 s"):
            await session.members.me()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await session.with_options(timeout=30).members.me()


# --- a lent session


async def test_a_lent_session_is_used_and_never_closed(service: BoardService) -> None:
    """http= is used as it is, its raise_for_status does no harm, and it stays open."""
    async with aiohttp.ClientSession(raise_for_status=True, headers={"X-Own": "1"}) as http:
        async with service.session(http=http) as session:
            await session.members.me()
            with pytest.raises(NotFoundError):
                await session.cards.get("nothing")
            assert "lent connections" in repr(session)
        assert not http.closed
        async with http.get(service.base_url + "/1/members/me", params={"token": service.token}) as response:
            assert response.status == 200
    assert {call.headers.get("X-Own") for call in service.calls} == {"1"}


async def test_a_lent_session_carries_no_cookies_from_one_user_to_the_next() -> None:
    """A cookie that the service sets for one user is not sent with the next one's call, nor kept in the application's jar."""
    seen = []

    async def respond(request: web.Request) -> web.Response:
        seen.append((request.query["token"], request.headers.get("Cookie")))
        return web.json_response({"id": "m"}, headers={"Set-Cookie": f"session=of-{request.query['token']}; Path=/"})

    application = web.Application()
    application.router.add_get("/1/members/me", respond)
    async with TestServer(application) as server, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        http.cookie_jar.update_cookies({"gateway": "own"}, server.make_url("/"))
        async with AsyncSession(StaticCredentials("none"), str(server.make_url("")), http=http) as session:
            for user in ("ann", "ben"):
                await session.with_credentials(StaticCredentials(user)).members.me()
        assert [cookie.key for cookie in http.cookie_jar] == ["gateway"]
    assert seen == [("ann", None), ("ben", None)]


@pytest.mark.parametrize("option", [{"max_connections": 5}, {"trust_env": True}, {"ssl": True}, {"proxy": "http://p"}])
async def test_a_lent_session_has_its_own_pool_options(option: dict[str, Any]) -> None:
    """http= together with an option of the pool is a ValueError."""
    async with aiohttp.ClientSession() as http:
        with pytest.raises(ValueError, match="http="):
            AsyncSession(StaticCredentials("t"), "https://boards.example", http=http, **option)


async def test_views_share_the_pool(service: BoardService) -> None:
    """A view's calls go over the session's connections, and end with it."""
    async with service.session(max_connections=1) as session:
        view = session.with_credentials(StaticCredentials(service.token))
        await session.members.me()
        await view.members.me()
        service.faults.add(service.faults.hang())
        task = asyncio.ensure_future(view.members.me())
        await service.received("members.me", 3)
    with pytest.raises(SessionClosedError):
        await task
    assert len({call.connection for call in service.calls}) == 1
