"""What looks through objects finds no secret: loggers, tracebacks with locals, error trackers, test runners and shells."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import io
import pickle
import pprint
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import rich.console
import rich.pretty
import rich.traceback
from code_base import package

from boardclient import (
    AsyncSession,
    BoardClientError,
    CardDraft,
    Credentials,
    EncryptedTokenStore,
    MemoryTokenStore,
    OAuthCredentials,
    StaticCredentials,
    Token,
)
from boardclient.testing import BoardService, assert_no_secrets, faults
from boardclient.web import SignIn

COOKIE_SECRET = "canary-cookie-secret-7"


@pytest.fixture
async def service() -> AsyncIterator[BoardService]:
    async with BoardService() as running:
        yield running


def secrets_of(service: BoardService) -> list[str]:
    return [service.client_secret, service.key, service.token, COOKIE_SECRET, *service.rules.tokens]


def sign_in_of(service: BoardService, session: AsyncSession, store: Any) -> SignIn:
    return SignIn(
        session,
        client_id=service.client_id,
        client_secret=service.client_secret,
        redirect_uri=service.redirect_uri,
        auth_url=service.auth_url,
        authorize_url="https://board.example/authorize",
        cookie_secret=COOKIE_SECRET,
        key=service.key,
        store=store,
    )


async def get_card(session: AsyncSession) -> None:
    await session.cards.get("no-such-card")


async def exchange(session: AsyncSession) -> None:
    await session.members.me()


async def run(session: AsyncSession) -> None:
    report = await session.cards.create_many([CardDraft("card", "no-such-list")], unknown="report").wait()
    report.raise_for_problems()


async def free(session: AsyncSession) -> None:
    await session.request("GET", "/1/no-such-path")


FAILING: dict[str, Callable[[AsyncSession], Any]] = {
    "cards.get": get_card,
    "token.exchange": exchange,
    "run": run,
    "request": free,
}


async def error_of(service: BoardService, call: Callable[[AsyncSession], Any], operation: str) -> BaseException:
    """Return the error of a call with OAuth credentials, whose traceback begins in this package."""

    async def authorize(_: object) -> str:
        return service.new_code()

    store = EncryptedTokenStore(MemoryTokenStore(), EncryptedTokenStore.generate_key())
    options = {"retry": None, "proxy": None}
    async with AsyncSession(service.oauth_credentials(authorize=authorize, store=store), service.base_url, **options) as session:  # type: ignore[arg-type]  # -- as a caller with a dictionary would
        if operation == "token.exchange":
            service.faults.add(faults.status(500), operation)
        else:
            await session.members.me()
        try:
            await call(session)
        except (BoardClientError, ExceptionGroup) as error:
            return error.with_traceback(own_frames(error))
    raise AssertionError("nothing failed")


def own_frames(error: BaseException) -> Any:
    """Return the traceback from the first frame of the package on."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(str(package())):
        frames = frames.tb_next
    assert frames is not None
    return frames


def by_rich(error: BaseException) -> str:
    console = rich.console.Console(file=io.StringIO(), width=10_000)
    shown = rich.traceback.Traceback.from_exception(
        type(error), error, error.__traceback__, show_locals=True, locals_max_length=1000, locals_max_string=10_000
    )
    console.print(shown)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # -- it is the StringIO
    return text


def by_attrs(error: BaseException) -> str:
    """Follow all fields of attrs, also those that are not shown, as converters to JSON do."""
    return "\n".join(pprint.pformat(attrs.asdict(value)) for value in local_variables(error) if attrs.has(type(value)))


def by_capture(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def by_structlog(error: BaseException) -> str:
    structlog = importlib.import_module("structlog")
    tracebacks = structlog.tracebacks.extract(type(error), error, error.__traceback__, show_locals=True, locals_max_string=10_000)
    printed = io.StringIO()
    structlog.dev.RichTracebackFormatter(show_locals=True, width=1000)(printed, (type(error), error, error.__traceback__))
    return f"{tracebacks}{printed.getvalue()}"


def by_loguru(error: BaseException) -> str:
    loguru = importlib.import_module("loguru")
    written = io.StringIO()
    loguru.logger.remove()
    loguru.logger.add(written, diagnose=True, backtrace=True)
    loguru.logger.opt(exception=error).error("failed")
    loguru.logger.remove()
    return written.getvalue()


def by_sentry(error: BaseException) -> str:
    utils = importlib.import_module("sentry_sdk.utils")
    event, _ = utils.event_from_exception(error, client_options=importlib.import_module("sentry_sdk.consts").DEFAULT_OPTIONS)
    return str(event)


def by_ipython(error: BaseException) -> str:
    ultratb = importlib.import_module("IPython.core.ultratb")
    return "\n".join(ultratb.VerboseTB(**IPYTHON).structured_traceback(type(error), error, error.__traceback__))


def by_pretty(error: BaseException) -> str:
    pretty = importlib.import_module("IPython.lib.pretty").pretty
    return "\n".join(pretty(value, verbose=True, max_seq_length=1000) for value in local_variables(error))


IPYTHON: dict[str, Any] = {}
FULL = [pytest.param(walker, marks=pytest.mark.full) for walker in (by_structlog, by_loguru, by_sentry, by_ipython, by_pretty)]
WALKERS: list[Any] = [by_rich, by_attrs, by_capture, *FULL]


def local_variables(error: BaseException) -> Iterator[object]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield from frame.f_locals.values()


@pytest.mark.parametrize("operation", FAILING)
@pytest.mark.parametrize("walker", WALKERS)
async def test_a_walker_of_a_failing_call_finds_no_secret(
    service: BoardService, operation: str, walker: Callable[[BaseException], str]
) -> None:
    """Whatever logs the error with local variables shows no key, token, client secret or key of encryption."""
    error = await error_of(service, FAILING[operation], operation)
    assert_no_secrets("".join(walker(error).split()), secrets=secrets_of(service))


@pytest.mark.parametrize("operation", FAILING)
async def test_no_frame_of_ours_leads_to_a_secret(service: BoardService, operation: str) -> None:
    """Following each attribute of each local variable of a frame, and theirs in turn, ends at no secret."""
    error = await error_of(service, FAILING[operation], operation)
    assert_no_secrets([*local_variables(error)], secrets=secrets_of(service))


async def things_with_secrets(service: BoardService, session: AsyncSession) -> list[object]:
    store = MemoryTokenStore()
    await store.publish("ann", Token(service.token), 0, service=service.auth_url)
    oauth = service.oauth_credentials(authorize=None, store=store, account="ann")
    await session.with_credentials(oauth).members.me()
    static = StaticCredentials(service.token, service.key)
    view = session.with_credentials(static)
    await view.members.me()
    encrypted = EncryptedTokenStore(MemoryTokenStore(), EncryptedTokenStore.generate_key())
    return [
        oauth,
        static,
        view,
        store,
        encrypted,
        Token(service.token),
        Credentials(service.token, service.key),
        sign_in_of(service, session, store),
    ]


@pytest.mark.parametrize(
    "walk", [repr, rich.pretty.pretty_repr, pprint.pformat, lambda thing: assert_no_secrets(thing, secrets=["canary"])]
)
async def test_objects_that_hold_secrets_show_none(service: BoardService, walk: Callable[[object], object]) -> None:
    """Credentials, providers, views, tokens, stores and sign-ins show nothing to what looks through them."""
    async with service.session(StaticCredentials("unused")) as session:
        for thing in await things_with_secrets(service, session):
            assert_no_secrets(str(walk(thing)), secrets=secrets_of(service))
            assert_no_secrets(thing, secrets=secrets_of(service))


async def test_what_holds_secrets_is_not_copied(service: BoardService) -> None:
    """`asdict`, `copy` and `pickle` refuse credentials, providers and tokens with words that name no secret."""
    oauth = service.oauth_credentials(authorize=None)
    things = [oauth, StaticCredentials(service.token, service.key), Credentials(service.token, service.key), Token(service.token)]
    ways: list[Callable[[Any], object]] = [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        attrs.asdict,
        attrs.astuple,
        dataclasses.asdict,
    ]
    for thing in things:
        for way in ways:
            with pytest.raises((TypeError, ValueError), match=r"not pickled|is not an attrs|dataclass instances") as caught:
                way(thing)
            assert_no_secrets(caught.value, secrets=secrets_of(service))


@pytest.mark.full
def test_pytest_compares_credentials_without_showing_them(tmp_path: Path) -> None:
    """A failing comparison in an application's test prints neither side, with locals too."""
    (tmp_path / "theirs.py").write_text(
        "from boardclient import Credentials, OAuthCredentials, StaticCredentials, Token\n"
        "def oauth(secret):\n"
        "    addresses = dict.fromkeys(['redirect_uri', 'auth_url'], 'https://a.example')\n"
        "    return OAuthCredentials(client_id='i', client_secret=secret, key=secret, **addresses)\n"
        "PAIRS = [[make(f'canary-{n}') for n in (1, 2)] for make in (Credentials, Token, StaticCredentials, oauth)]\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "import pytest\nfrom theirs import PAIRS\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_equal(number):\n    one, other = PAIRS[number]\n    assert one == other\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_in_lists(number):\n    one, other = PAIRS[number]\n    assert [one] == [other]\n"
    )
    command = [sys.executable, "-m", "pytest", "-vv", "--showlocals", "--tb=short", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "8 failed" in done.stdout, done.stdout
    assert "canary" not in done.stdout


def test_for_account_keeps_what_is_hidden() -> None:
    """Credentials of another account have the same client."""
    one = OAuthCredentials(
        client_id="i", client_secret="s", redirect_uri="https://a.example", auth_url="https://a.example", key="k", account="ann"
    )
    other = one.for_account("ben")
    assert (other.client_secret, other.key, other.account, one.account) == ("s", "k", "ben", "ann")
