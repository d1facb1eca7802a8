"""A session: its construction and life, views of it, its observers, its limiter and its token exchange."""

from __future__ import annotations

import logging
import pickle
import re
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

import aiohttp
import pytest
from session_helpers import ANY, BOARD, TOKEN, counted, requests, session_of
from yarl import URL

import boardclient.retry
from boardclient import AsyncSession, Effect, NotFoundError, ServerError, SessionClosedError, StaticCredentials
from boardclient.events import RequestSent, ResponseReceived, RetryScheduled
from boardclient.models import Board, check_identifier
from boardclient.testing import BoardService

# --- observers and limiter


async def test_observers_see_the_call(wire: Any, policy: Any) -> None:
    """Observers receive requests, responses and pauses in order, without secrets."""
    wire.get(ANY, status=503)
    wire.get(ANY, payload={})
    events: list[Any] = []
    async with session_of(retry=policy, observers=[events.append]) as session:
        await session.members.me()
    assert [type(event) for event in events] == [RequestSent, ResponseReceived, RetryScheduled, RequestSent, ResponseReceived]
    assert {(event.operation, event.method, event.path) for event in events} == {("members.me", "GET", "/1/members/me")}
    assert [event.attempt for event in events] == [1, 1, 1, 2, 2]
    assert [(event.status, event.effect) for event in events if isinstance(event, ResponseReceived)] == [
        (503, Effect.UNKNOWN),
        (200, Effect.DONE),
    ]
    assert events[2].pause_seconds == 0.05
    assert events[4].why == "success"
    assert TOKEN not in repr(events)


async def test_an_observer_that_raises_is_logged_and_ignored(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What an observer raises is logged, and neither the call nor the other observers notice."""
    wire.get(ANY, payload={})
    events: list[object] = []

    def broken(event: object) -> None:
        raise ValueError("broken observer")

    with caplog.at_level(logging.ERROR, "boardclient"):
        async with session_of(observers=[broken, events.append]) as session:
            await session.members.me()
    assert (len(events), len(caplog.records)) == (2, 2)


class Limiter:
    """A limiter that counts how often it was entered and left, and keeps the reports."""

    def __init__(self) -> None:
        self.entered = self.left = 0
        self.reports: list[tuple[int | None, float | None]] = []

    async def __aenter__(self) -> None:
        self.entered += 1

    async def __aexit__(self, *error: object) -> None:
        self.left += 1

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Take note of a response."""
        assert seconds >= 0
        self.reports.append((status, retry_after))


async def test_the_limiter_is_entered_around_each_attempt(wire: Any, policy: Any) -> None:
    """The limiter is entered and left for each attempt, not for pauses, and receives every result."""
    wire.get(ANY, status=429, headers={"Retry-After": "3"})
    wire.get(ANY, exception=aiohttp.ServerDisconnectedError())
    wire.get(ANY, payload={})
    limiter = Limiter()
    async with session_of(retry=policy, limiter=limiter) as session:
        await session.members.me()
    assert (limiter.entered, limiter.left) == (3, 3)
    assert limiter.reports == [(429, 3.0), (None, None), (200, None)]


# --- views


async def test_a_view_for_other_credentials(wire: Any) -> None:
    """with_credentials signs with others on the same pool; closing the view closes nothing."""
    wire.get(ANY, payload={}, repeat=True)
    async with session_of() as session:
        async with session.with_credentials(StaticCredentials("other-t")) as view:
            await view.members.me()
        assert "view" in repr(view)
        await view.aclose()
        await session.members.me()
        assert view._parts is session._parts
    assert [dict(url.query)["token"] for _, url, _ in requests(wire)] == ["other-t", TOKEN]
    with pytest.raises(SessionClosedError):
        await view.members.me()


async def test_a_view_with_other_options(wire: Any, policy: Any) -> None:
    """with_options changes the given options, including those given as None, and keeps the others."""
    wire.get(ANY, status=503, repeat=True)
    limiter = Limiter()
    async with session_of(retry=policy, limiter=limiter, timeout=5) as session:
        view = session.with_options(retry=None)
        with pytest.raises(ServerError):
            await view.members.me()
        assert (counted(wire), limiter.entered, view._pipeline.timeout) == (1, 1, 5)
        free = session.with_options(timeout=None, limiter=None)
        with pytest.raises(ServerError):
            await free.members.me()
        assert (counted(wire), limiter.entered, free._pipeline.timeout) == (4, 1, None)


# --- construction and life


@pytest.mark.parametrize(
    "url",
    [
        "",
        "boards.example",
        "ftp://boards.example",
        "https://",
        "https://user@boards.example",
        "https://:secret@boards.example",
        "https://boards.example?a=1",
        "https://boards.example#x",
        "https://boards.example/1",
        "https://boards.example/1/",
        "https://1/1",
        "https://boards.example/\n",
        "https://boards.example:port",
        "https://boards example",
        "https://boards.example<",
        "https://a^b",
        "http://boards.example",
        "http://10.0.0.1",
        None,
    ],
)
def test_a_base_url_that_is_refused(url: Any) -> None:
    """A base URL that is not absolute, carries more than scheme, host and path, ends in /1 or is plain http is a ValueError."""
    with pytest.raises(ValueError, match="base_url"):
        AsyncSession(StaticCredentials(TOKEN), url)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://boards.example/", "https://boards.example"),
        ("https://boards.example/api/", "https://boards.example/api"),
        ("https://boards.example:8443", "https://boards.example:8443"),
        ("https://1/", "https://1"),
        ("http://localhost:80/x", "http://localhost/x"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
async def test_a_base_url_that_is_taken(url: str, kept: str) -> None:
    """Https anywhere and plain http to a loopback host are taken, without the trailing slash."""
    async with AsyncSession(StaticCredentials(TOKEN), url) as session:
        assert session._parts.base_url == kept


async def test_plain_http_with_allow_insecure(wire: Any) -> None:
    """allow_insecure lets plain http through to any host."""
    wire.get(re.compile("http://boards.example/1/.*"), payload={})
    async with AsyncSession(StaticCredentials(TOKEN), "http://boards.example", allow_insecure=True) as session:
        await session.members.me()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ssl": False}, ValueError),
        ({"max_connections": 0}, ValueError),
        ({"max_answer_bytes": 0}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"credentials_in": "header"}, ValueError),
        ({"headers": {"X": "a\r\nb"}}, ValueError),
        ({"headers": {"X": 1}}, ValueError),
        ({"headers": {1: "x"}}, ValueError),
        ({"headers": {"": "x"}}, ValueError),
        ({"headers": {"X Y": "x"}}, ValueError),
        ({"headers": {"X:": "x"}}, ValueError),
        ({"headers": {"Content-length": "3"}}, ValueError),
        ({"headers": {"transfer-encoding": "chunked"}}, ValueError),
        ({"user_agent": "a\nb"}, ValueError),
        ({"retry": "often"}, TypeError),
        ({"ssl": "/etc/ssl/ca.pem"}, TypeError),
        ({"credentials": TOKEN}, TypeError),
        ({"credentials": StaticCredentials}, TypeError),
    ],
)
def test_options_out_of_range(options: dict[str, Any], error: type[Exception]) -> None:
    """An option out of its range is refused at once, by an error without the credential, and without a ResourceWarning."""
    with pytest.raises(error) as caught:
        session_of(**options)
    assert TOKEN not in str(caught.value)


async def test_a_session_is_not_pickled() -> None:
    """A session can't be pickled, and says so."""
    async with session_of() as session:
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(session)


async def test_reprs_hold_no_secret() -> None:
    """The repr shows the state and no credential."""
    session = session_of(proxy="http://user:s3cret@proxy.example", headers={"X": "s3cret"})
    assert "open" in repr(session)
    await session.aclose()
    assert "closed" in repr(session)
    assert TOKEN not in repr(session) + repr(session.__dict__)
    assert "s3cret" not in repr(session) + repr(session._parts.settings)
    assert repr(boardclient.session.UNSET) == "…"


async def test_the_clock_of_the_history(wire: Any) -> None:
    """An attempt's start is aware and between the moments before and after the call."""
    wire.get(ANY, status=404)
    before = time.time()
    async with session_of() as session:
        with pytest.raises(NotFoundError) as caught:
            await session.cards.get("c")
    (attempt,) = caught.value.attempts
    assert attempt.started_at.utcoffset() is not None
    assert before - 1 <= attempt.started_at.timestamp() <= time.time() + 1


async def test_a_clock_that_is_set_does_not_lengthen_an_attempt(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds in histories and events, and those that a limiter receives, are those that passed."""
    began = time.time()
    told: list[float] = []
    events: list[Any] = []

    class Timed(Limiter):
        def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
            told.append(seconds)

    def set_clock(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(time, "time", lambda: began + 3600)

    wire.get(ANY, status=404, callback=set_clock)
    async with session_of(limiter=Timed(), observers=[events.append]) as session:
        with pytest.raises(NotFoundError) as caught:
            await session.cards.get("c")
    assert max(caught.value.attempts[0].seconds, events[-1].seconds, *told) < 600
    assert len(told) == 1


@pytest.mark.parametrize("proxy", ["proxy.example:3128", "socks5://proxy.example", "http://", "http://\x00", 3128])
def test_a_proxy_that_is_no_url_is_refused(proxy: Any) -> None:
    """A proxy without a scheme, or of a kind that aiohttp can't use, is refused before anything is sent."""
    for root in ("https://board.example", "http://127.0.0.1:9"):
        with pytest.raises(ValueError, match=r"proxy must be an http or https URL, such as http://proxy\.example:3128"):
            AsyncSession(StaticCredentials(TOKEN), root, proxy=proxy, allow_insecure=True)


def test_arguments_in_the_wrong_order_are_named() -> None:
    """A base URL of another type is named by its type, and a yarl.URL is taken."""
    with pytest.raises(ValueError, match=r"base_url must be .*, not StaticCredentials$"):
        AsyncSession("https://board.example", StaticCredentials(TOKEN))  # type: ignore[arg-type]  # -- what is tested
    AsyncSession(StaticCredentials(TOKEN), URL("https://board.example"))._discard()  # type: ignore[arg-type]  # -- httpx takes one


async def test_a_remote_proxy_gets_no_plain_http() -> None:
    """Plain http to this machine does not allow credentials to go unencrypted to a proxy elsewhere."""
    provider, root, proxy = StaticCredentials(TOKEN), "http://127.0.0.1:9", "http://proxy.example:3128"
    with pytest.raises(ValueError, match="proxy would be sent the credentials") as caught:
        AsyncSession(provider, root, proxy=proxy)
    assert proxy not in str(caught.value)
    for options in ({"proxy": proxy, "allow_insecure": True}, {"proxy": "http://user:word@localhost:3128"}):
        await AsyncSession(provider, root, **options).aclose()
    async with AsyncSession(provider, "https://board.example", proxy=proxy) as session:
        with pytest.raises(ValueError, match="proxy would be sent the credentials"):
            session.exchange.check_url("http://127.0.0.1:9", "auth_url")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": "3"}, "timeout must be a number of seconds or None, not str"),
        ({"timeout": Decimal(3)}, "timeout must be a number of seconds or None, not Decimal"),
        ({"timeout": timedelta(seconds=3)}, "timeout must be a number of seconds or None, not timedelta"),
        ({"timeout": aiohttp.ClientTimeout(3)}, "timeout must be a number of seconds or None, not ClientTimeout"),
        ({"limiter": 3}, r"limiter must be an async context manager, such as Pace\(\), not int"),
        ({"observers": print}, r"observers must be an iterable of functions, such as \[print\]"),
        ({"observers": ["print"]}, "observers must be an iterable of functions"),
        ({"max_connections": "3"}, "max_connections must be a whole number, not str"),
        ({"headers": 3}, "headers must be a mapping of strings, not int"),
        ({"http": 3}, "http must be an aiohttp.ClientSession, not int"),
        ({"trust_env": "no"}, "trust_env must be a bool, not str"),
        ({"allow_insecure": "no"}, "allow_insecure must be a bool, not str"),
    ],
)
async def test_an_option_of_another_type_is_named(options: dict[str, Any], words: str) -> None:
    """The error of an option says what it must be, for a session and for a view, before anything is sent."""
    with pytest.raises(TypeError, match=words):
        AsyncSession(StaticCredentials("t"), "https://board.example", **options)
    if {"timeout", "limiter", "observers"} & options.keys():
        async with AsyncSession(StaticCredentials("t"), "https://board.example") as session:
            with pytest.raises(TypeError, match=words):
                session.with_options(**options)


def test_a_record_in_place_of_an_identifier_is_named() -> None:
    """An operation that gets a whole record says that its id is wanted."""
    with pytest.raises(TypeError, match="board_id must be a string, not Board: pass its id"):
        check_identifier(Board("b"), "board_id")


async def test_headers_go_with_every_request(wire: Any) -> None:
    """Own headers are sent with every request, and the user agent is appended to the package's."""
    wire.post(ANY, payload=BOARD)
    wire.get(ANY, payload={})
    async with session_of(headers={"X-Team": "blue"}, user_agent="planner/2") as session:
        await session.boards.create("plans")
        await session.members.me()
    first, second = (kwargs["headers"] for _, _, kwargs in requests(wire))
    assert first["X-Team"] == second["X-Team"] == "blue"
    assert re.fullmatch(r"boardclient/\S+ planner/2", first["User-Agent"])
    assert (first["Content-Type"], second.get("Content-Type")) == ("application/json", None)


@pytest.mark.parametrize("name", ["Authorization", "cookie", "Host", "Proxy-Authorization", "Connection", "TE", "Content-Type"])
def test_a_session_refuses_the_headers_that_a_call_refuses(name: str) -> None:
    """Headers that hold credentials or frame messages are neither a session's."""
    with pytest.raises(ValueError, match=f"headers must not hold {name}"):
        AsyncSession(StaticCredentials("t"), "https://board.example", headers={name: "x"})


async def test_a_free_request_takes_headers_of_its_own(service: BoardService) -> None:
    """They are sent besides those of the session. Credentials, and headers that frame a message, are refused unsent."""
    async with service.session(headers={"X-Of": "session"}) as session:
        response = await session.request("GET", "/1/members/me", headers={"X-Trace": "abc", "If-None-Match": '"1"'})
        sent = service.calls[-1].headers
        assert (response.status, sent["X-Trace"], sent["X-Of"], sent["If-None-Match"]) == (200, "abc", "session", '"1"')
        for name in ("Authorization", "content-type", "Host", "Proxy-Authorization", "Content-Length", "Transfer-Encoding"):
            with pytest.raises(ValueError, match="headers must not hold"):
                await session.request("GET", "/1/members/me", headers={name: "x"})
        with pytest.raises(ValueError, match="printable"):
            await session.request("GET", "/1/members/me", headers={"X": "a\r\nb"})
        with pytest.raises(TypeError):
            await session.request("GET", "/1/members/me", headers=[("X", "a")])  # type: ignore[arg-type]  -- what is refused
        assert len(service.calls) == 1
