"""No secret is readable from anything that a failing call gives out: every kind of failure, every place to look."""

import asyncio
import copy
import json
import logging
import pickle
import warnings
from collections.abc import AsyncIterator, Iterator

import attrs
import pytest
from leak_scenes import CORES, KEY, KINDS, SECRET, TOKEN, Scene
from rich.pretty import pretty_repr
from virtual_loop import Clock

from boardclient import BoardClientError, CardDraft, Credentials, StaticCredentials
from boardclient._transport._values import RawResponse
from boardclient.testing import BoardService, assert_no_secrets, faults


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
    assert isinstance(scene.errors[0], asyncio.CancelledError if kind == "cancelled" else BoardClientError)
    # Asyncio's records hold tasks and transports, which lead to the service and its secrets: what a handler can format counts.
    logged = [(record.getMessage(), repr(record.__dict__), record.exc_info and record.exc_info[1]) for record in scene.records]
    for thing in (scene.errors, scene.events, logged, [str(one) for one in scene.warned], scene.reprs):
        assert_no_secrets(thing, secrets=[KEY, TOKEN, SECRET, *CORES])
    if isinstance(scene.errors[0], BoardClientError):
        again = [copy.copy(scene.errors[0]), pickle.loads(pickle.dumps(scene.errors[0]))]
        assert [str(one) for one in again] == [str(scene.errors[0])] * 2


@pytest.mark.parametrize("end", ["", "\ud800"])
async def test_an_identifier_that_repeats_the_key_is_in_no_error_of_a_run(
    end: str, service: BoardService, debugging: list[logging.LogRecord]
) -> None:
    """A row whose identifier can't be sent, or is another row's, says so without the identifier."""
    service.rules.key = key = CORES[0]
    service.faults.add(faults.foreign_body(json.dumps({"id": key + end, "name": "n"}).encode()), "cards.create")
    drafts = [CardDraft("a", list_id="1"), CardDraft("b", list_id="1")]
    async with service.session(StaticCredentials(TOKEN, key)) as session, session.cards.create_many(drafts) as run:
        results = [result async for result in run]
    errors = [result.error for result in results if result.error is not None]
    assert errors
    logged = [record.getMessage() for record in debugging]
    assert_no_secrets([errors, run.report.problem_summary, logged], secrets=[KEY, TOKEN, *CORES])


async def test_objects_show_no_secret(service: BoardService) -> None:
    """Sessions, views, runs, credentials, providers, responses and the service print none of what they hold."""
    credentials = Credentials(TOKEN, KEY)
    provider = StaticCredentials(TOKEN, KEY)
    async with service.session(provider) as session:
        run = session.cards.create_many([])
        await run.wait()
        view = session.with_credentials(StaticCredentials(TOKEN))
        things: list[object] = [credentials, provider, session, run, view, session.cards, service, service.rules]
        things += [vars(session), list(service.rules.tokens.values()), service.calls]
        things.append(response := RawResponse(200, {"Set-Cookie": TOKEN}, TOKEN.encode()))
        texts = [pretty_repr(response), *(way(thing) for thing in things for way in (str, repr, format))]
    assert not [text for text in texts if any(core in text.lower() for core in CORES)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_secrets_are_not_pickled(protocol: int) -> None:
    """Neither credentials nor what holds them can be pickled, and the refusal names none."""
    for thing in (Credentials(TOKEN, KEY), StaticCredentials(TOKEN, KEY), {"held": [Credentials(TOKEN)]}):
        with pytest.raises(TypeError, match="credentials are not pickled") as caught:
            pickle.dumps(thing, protocol)
        assert_no_secrets(caught.value, secrets=[KEY, TOKEN])
