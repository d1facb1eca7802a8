"""No secret is readable from anything that a failing call hands out: every kind of failure, every place to look."""

import asyncio
import contextlib
import copy
import gzip
import json
import logging
import pickle
import socket
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import aiohttp
import attrs
import pytest
from tenacity import AsyncRetrying, retry_always, stop_after_attempt, wait_none
from virtual_loop import Clock

from boardclient import (
    AsyncSession,
    BoardClientError,
    CardDraft,
    CredentialError,
    Credentials,
    DeadlineError,
    SessionClosedError,
    StaticCredentials,
)
from boardclient.retry import when_safe, when_status
from boardclient.testing import BoardService, assert_no_secrets, faults

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


async def unresolved(scene: Scene) -> object:
    async def getaddrinfo(*args: object, **options: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]  # -- no network is asked
    return await scene.call(await scene.session(base_url="https://nowhere.invalid"))


async def no_tls(scene: Scene) -> object:
    return await scene.call(await scene.session(base_url=scene.service.base_url.replace("http:", "https:")))


async def lent_and_closed(scene: Scene) -> object:
    http = aiohttp.ClientSession()
    await http.close()
    return await scene.call(await scene.session(StaticCredentials(TOKEN, KEY), http=http))


async def closed_in_flight(scene: Scene) -> object:
    scene.service.faults.add(faults.hang(), scene.operation)
    session = await scene.session()
    task = asyncio.create_task(scene.call(session))
    await scene.service.received(scene.operation)
    await session.aclose()
    return await task


async def closed_before(scene: Scene) -> object:
    session = await scene.session()
    await session.aclose()
    return await scene.call(session)


async def cancelled(scene: Scene) -> object:
    scene.service.faults.add(faults.hang(), scene.operation)
    task = asyncio.create_task(scene.call(await scene.session()))
    await scene.service.received(scene.operation)
    task.cancel()
    return await task


async def another_loop(scene: Scene) -> object:
    session = await scene.session()
    with contextlib.suppress(BoardClientError):
        await scene.call(session)
    return await asyncio.to_thread(asyncio.run, scene.call(session))


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


async def provider_gives_junk(scene: Scene) -> object:
    class Junk(Provider):
        async def acquire(self, exchange: Any) -> Any:
            return {"token": TOKEN}

    return await scene.call(await scene.session(Junk("")))


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


async def form_after_closing(scene: Scene) -> object:
    class Closing(Provider):
        async def acquire(self, exchange: Any) -> Credentials:
            await session.aclose()
            return await super().acquire(exchange)

    session = await scene.session(Closing(scene.service.auth_url))
    return await scene.call(session)


async def form_in_the_open(scene: Scene) -> object:
    return await scene.call(await scene.session(Provider("http://board.example/exchange")))


async def limiter_raises(scene: Scene) -> object:
    class Limiter:
        async def __aenter__(self) -> None:
            raise LookupError("limiter")

        async def __aexit__(self, *exc: object) -> None: ...

    return await scene.call(await scene.session(limiter=Limiter()))


async def observer_raises(scene: Scene) -> object:
    def observe(event: object) -> None:
        raise LookupError("observer")

    return await scene.meet(faults.status(500, body=ECHO), observers=[observe])


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
    "name does not resolve": unresolved,
    "TLS failed": no_tls,
    "lent session closed": lent_and_closed,
    "closed in flight": closed_in_flight,
    "closed before": closed_before,
    "cancelled": cancelled,
    "another loop": another_loop,
    "provider raises": provider_raises,
    "renewal raises": renewal_raises,
    "provider gives junk": provider_gives_junk,
    "form dropped": form(faults.drop()),
    "form truncated": form(faults.truncated()),
    "form past the deadline": form(faults.hang(seconds=1), timeout=0.2),
    "form closed in flight": form_closed,
    "form after closing": form_after_closing,
    "form to plain http": form_in_the_open,
    "limiter raises": limiter_raises,
    "observer raises": observer_raises,
    "second 401": second_401,
    "token only": token_only,
    "bulk": bulk,
}

_QUIET = {"retry of whatever comes": BoardClientError, "cancelled": asyncio.CancelledError, "another loop": RuntimeError}


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and everything that hangs on it."""
    waiting, seen = [error], set()
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [other for other in (found.__cause__, found.__context__) if other is not None]
            if isinstance(found, BaseExceptionGroup):
                waiting += found.exceptions


def whole(error: BaseException, *, capture_locals: bool) -> str:
    made = traceback.TracebackException(type(error), error, error.__traceback__, capture_locals=capture_locals)
    return "".join(made.format())


def pickled(thing: object) -> str:
    try:
        return pickle.dumps(thing).decode("latin-1")
    except Exception as error:  # what can't be pickled leaks nothing that way, but may say why
        return repr(error)


def shown(record: logging.LogRecord) -> str:
    trace = whole(record.exc_info[1], capture_locals=True) if record.exc_info and record.exc_info[1] else ""
    return f"{logging.Formatter().format(record)} {record.args!r} {record.__dict__!r} {trace}"


SINKS: dict[str, Callable[[Scene], str]] = {
    "str": lambda scene: "".join(str(part) for error in scene.errors for part in chain(error)),
    "repr": lambda scene: "".join(repr(part) for error in scene.errors for part in chain(error)),
    "args": lambda scene: "".join(repr(part.args) for error in scene.errors for part in chain(error)),
    "vars": lambda scene: "".join(repr(vars(part)) for error in scene.errors for part in chain(error)),
    "notes": lambda scene: "".join(repr(getattr(part, "__notes__", ())) for error in scene.errors for part in chain(error)),
    "attempts": lambda scene: "".join(repr(getattr(part, "attempts", ())) for error in scene.errors for part in chain(error)),
    "format_exception": lambda scene: "".join("".join(traceback.format_exception(error)) for error in scene.errors),
    "locals": lambda scene: "".join(whole(error, capture_locals=True) for error in scene.errors),
    "pickle": lambda scene: "".join(pickled(part) for error in scene.errors for part in chain(error)),
    "log records": lambda scene: "".join(map(shown, scene.records)),
    "warnings": lambda scene: "".join(map(str, scene.warned)),
    "events": lambda scene: "".join(f"{event!s} {event!r} {pickled(event)}" for event in scene.events),
    "reprs": lambda scene: "".join(scene.reprs),
}


class Collector(logging.Handler):
    """Keeps every record, of every logger."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.DEBUG)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
async def service(loop_clock: Clock) -> AsyncIterator[BoardService]:
    async with BoardService(sleep=loop_clock.sleep) as running:
        running.rules.key = KEY
        running.rules.tokens[TOKEN] = attrs.evolve(running.rules.tokens[running.token], value=TOKEN)
        yield running


@pytest.fixture
def debugging() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    root, collector = logging.getLogger(), Collector(records)
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(collector)
    yield records
    root.removeHandler(collector)
    root.setLevel(before)


def found(scene: Scene) -> list[str]:
    """Name the places where a secret, or a part of one, can be read."""
    texts = {name: sink(scene).lower() for name, sink in SINKS.items()}
    return [f"{core} in {name}" for name, text in texts.items() for core in CORES if core in text]


@pytest.mark.parametrize("operation", ["cards.create", "cards.get"])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_secret_is_readable(
    kind: str, operation: str, service: BoardService, debugging: list[logging.LogRecord]
) -> None:
    """Key, token and client secret are nowhere: whether they went in the body or in the query, whatever failed."""
    scene = Scene(service, operation, records=debugging)
    asyncio.get_running_loop().set_debug(True)
    with warnings.catch_warnings(record=True) as scene.warned:
        warnings.simplefilter("always")
        async with scene.stack:
            try:
                await KINDS[kind](scene)
            except BaseException as error:
                scene.errors.append(error)
        asyncio.get_running_loop().set_debug(False)
    assert scene.errors, "the call did not fail"
    expected = (LookupError,) if kind == "limiter raises" else (_QUIET.get(kind, BoardClientError),)
    assert isinstance(scene.errors[0], expected)
    assert found(scene) == []
    for thing in (scene.errors[0], scene.events, list(map(shown, scene.records)), [str(one) for one in scene.warned]):
        assert_no_secrets(thing, secrets=[KEY, TOKEN, SECRET])
    if isinstance(scene.errors[0], BoardClientError):
        again = [copy.copy(scene.errors[0]), pickle.loads(pickle.dumps(scene.errors[0]))]
        assert [str(one) for one in again] == [str(scene.errors[0])] * 2


def raised(error: BaseException, *, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def with_local() -> BaseException:
    held = TOKEN
    try:
        raise BoardClientError(str(len(held)))
    except BoardClientError as error:
        return error


def noted() -> BaseException:
    error = BoardClientError("quiet")
    error.add_note(KEY)
    return error


def with_attribute() -> BaseException:
    error = BoardClientError("quiet")
    error.extra = SECRET  # type: ignore[attr-defined]  # -- what is planted
    return error


def with_attempt() -> BaseException:
    error = BoardClientError("quiet")
    error.attempts = (TOKEN,)  # type: ignore[assignment]  # -- what is planted
    return error


def logged() -> logging.LogRecord:
    return logging.LogRecord("asyncio", logging.DEBUG, __file__, 1, "sent %s", (quote(TOKEN),), None)


def logged_with_trace() -> logging.LogRecord:
    error = with_local()
    return logging.LogRecord("x", logging.DEBUG, __file__, 1, "quiet", (), (type(error), error, error.__traceback__))


PLANTED: dict[str, dict[str, Any]] = {
    "str": {"errors": [BoardClientError(f"refused {quote(TOKEN, safe='')}")]},
    "repr": {"errors": [BoardClientError(json.dumps(SECRET))]},
    "args": {"errors": [KeyError(KEY.encode())]},
    "vars": {"errors": [with_attribute()]},
    "notes": {"errors": [noted()]},
    "attempts": {"errors": [with_attempt()]},
    "format_exception": {"errors": [raised(BoardClientError("quiet"), cause=LookupError(TOKEN))]},
    "locals": {"errors": [with_local()]},
    "pickle": {"errors": [with_attribute()]},
    "log records": {"records": [logged()]},
    "warnings": {"warned": [types.SimpleNamespace(message=KEY)]},
    "events": {"events": [TOKEN]},
    "reprs": {"reprs": [f"<AsyncSession {SECRET}>"]},
}


@pytest.mark.parametrize("sink", SINKS)
def test_planted_leak_is_found(sink: str) -> None:
    """Each place to look finds what was left there on purpose."""
    assert any(name.endswith(f" in {sink}") for name in found(Scene(BoardService(), "cards.get", **PLANTED[sink])))


def test_planted_leak_in_a_logged_traceback_is_found() -> None:
    """The locals of a traceback that a log record carries are searched as well."""
    assert found(Scene(BoardService(), "cards.get", records=[logged_with_trace()])) == [f"{CORES[1]} in log records"]


@pytest.mark.parametrize("sink", sorted({"str", "repr", "vars", "notes", "attempts", "format_exception", "pickle"}))
def test_package_search_finds_the_planted_leak(sink: str) -> None:
    """`assert_no_secrets` finds in an error what was planted, and does not repeat it."""
    with pytest.raises(AssertionError) as caught:
        assert_no_secrets(PLANTED[sink]["errors"][0], secrets=[KEY, TOKEN, SECRET])
    assert not any(core in str(caught.value) for core in CORES)


def test_nothing_planted_nothing_found() -> None:
    """A scene without a leak is clean."""
    assert found(Scene(BoardService(), "cards.get", errors=[BoardClientError("quiet")])) == []


async def test_objects_show_no_secret(service: BoardService) -> None:
    """Sessions, views, runs, credentials, providers and the service print none of what they hold."""
    credentials = Credentials(TOKEN, KEY)
    provider = StaticCredentials(TOKEN, KEY)
    async with service.session(provider) as session:
        run = session.cards.create_many([])
        view = session.with_credentials(StaticCredentials(TOKEN))
        things: list[object] = [credentials, provider, session, run, view, session.cards, service, service.rules]
        things += [credentials.sign(request()), vars(session), list(service.rules.tokens.values()), service.calls]
        texts = [way(thing) for thing in things for way in (str, repr, format)]
    assert not [text for text in texts if any(core in text.lower() for core in CORES)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_secrets_are_not_pickled(protocol: int) -> None:
    """Neither credentials nor what holds them can be pickled, and the refusal names none."""
    for thing in (Credentials(TOKEN, KEY), StaticCredentials(TOKEN, KEY), {"held": [Credentials(TOKEN)]}):
        with pytest.raises(TypeError, match="credentials are not pickled") as caught:
            pickle.dumps(thing, protocol)
        assert_no_secrets(caught.value, secrets=[KEY, TOKEN])


@pytest.mark.parametrize("kind", [DeadlineError, SessionClosedError, CredentialError])
def test_other_errors_pickle(kind: type[BoardClientError]) -> None:
    """Errors themselves pickle, so that no secret can hide in a refusal to."""
    assert str(pickle.loads(pickle.dumps(kind("quiet")))) == "quiet"


def request() -> Any:
    from boardclient._operations import ADD_CARD

    return ADD_CARD.request(name="card", list_id="1", desc=None, due=None, pos=None)
