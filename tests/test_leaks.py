"""No secret is readable from anything that a failing call hands out: every kind of failure, every place to look."""

import asyncio
import copy
import json
import logging
import pickle
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from leak_scenes import CORES, KEY, KINDS, QUIET, SECRET, TOKEN, Scene
from virtual_loop import Clock

from boardclient import (
    BoardClientError,
    CredentialError,
    Credentials,
    DeadlineError,
    SessionClosedError,
    StaticCredentials,
)
from boardclient.testing import BoardService, assert_no_secrets


# Each holds a core that no encoding changes, so that one look finds it however it is written.
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
    expected = (LookupError,) if kind == "limiter raises" else (QUIET.get(kind, BoardClientError),)
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
