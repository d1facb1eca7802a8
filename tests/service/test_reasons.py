"""Why there is no response, in words and at once: framing, codings, and the code of applications on lent sessions."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest
from transport_helpers import read_request

from boardclient import AsyncSession, Effect, StaticCredentials, TransportError
from boardclient._transport import _bodies
from boardclient.testing import BoardService

_CARD = b'{"id":"c1"}'
_LENGTH = b"Content-Length: 11\r\n"
_CHUNKS = b"b\r\n" + _CARD + b"\r\n0\r\n\r\n"


@contextlib.asynccontextmanager
async def _session(url: str, is_lent: bool, **lent: Any) -> Any:
    options = {"retry": None, "timeout": None}
    if not is_lent:
        async with AsyncSession(StaticCredentials("t" * 20), url, **options) as session:  # type: ignore[arg-type]  # -- as typed
            yield session
        return
    async with (
        aiohttp.ClientSession(**lent) as http,
        AsyncSession(StaticCredentials("t" * 20), url, http=http, **options) as session,  # type: ignore[arg-type]  # -- as typed
    ):
        yield session


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        (b"HTTP/1.1 099 X\r\n" + _LENGTH, _CARD, "its status is 99|status 99"),
        (b"HTTP/1.1 000 X\r\n" + _LENGTH, _CARD, "its status is 0|status 0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\t\r\n", _CHUNKS, "its Transfer-Encoding is not chunked"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\tchunked\t\r\n", _CHUNKS, "its Transfer-Encoding is not chunked"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n" + _LENGTH, _CARD, "a header field is longer than 64|max_field_size"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 1001 + _LENGTH, _CARD, "more than 1000 header fields|not HTTP"),
    ],
)
async def test_what_is_not_http_is_an_error_at_once(raw_server: Any, is_lent: bool, head: bytes, body: bytes, words: str) -> None:
    """A response that no client can read ends the call when its head is there, and the error says what is wrong."""

    async def handler(reader: Any, writer: Any) -> None:
        await read_request(reader)
        writer.write(head + b"\r\n" + body)
        await reader.read()  # the connection stays open: nothing but the head ends the call

    async with raw_server.run(handler) as url, _session(url, is_lent) as session:
        with pytest.raises(Exception, match=words) as caught:
            await asyncio.wait_for(session.cards.create("n", list_id="l"), 20)
    assert caught.value.effect is Effect.UNKNOWN  # type: ignore[attr-defined]  # -- an error of ours


async def test_a_tab_before_the_coding_is_white_space(raw_server: Any) -> None:
    """RFC 9110 allows tabs before a value, and parsers read it so (section 5.5)."""

    async def handler(reader: Any, writer: Any) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\tchunked\r\n\r\n" + _CHUNKS)
        await reader.read()

    for is_lent in (False, True):
        async with raw_server.run(handler) as url, _session(url, is_lent) as session:
            assert (await session.cards.create("n", list_id="l")).id == "c1"


@pytest.mark.parametrize("coding", ["br", "zstd"])
async def test_a_coding_without_its_library_is_named(raw_server: Any, coding: str) -> None:
    """A success in a coding that can't be undone was done, and the error names the package. A refusal's body stays as it is."""
    status = b"200 OK"

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            head = b"HTTP/1.1 %s\r\nContent-Encoding: %s\r\n" % (status, coding.encode())
            writer.write(head + _LENGTH + b"\r\n" + _CARD)

    missing = mock.patch("importlib.import_module", side_effect=ImportError)
    async with raw_server.run(handler) as url, _session(url, is_lent=False) as session:
        with missing:
            with pytest.raises(TransportError, match=f"encoded as {coding}, which needs the package") as caught:
                await session.cards.create("n", list_id="l")
            status = b"404 Not Found"
            with pytest.raises(Exception, match="status 404") as refused:
                await session.cards.create("n", list_id="l")
    assert caught.value.effect is Effect.DONE
    assert refused.value.body == _CARD  # type: ignore[attr-defined]  # -- an ApiError


def test_a_library_that_decodes_without_a_bound_is_not_used() -> None:
    """Brotli before 1.2 unpacks all at once, so a few kilobytes could fill the memory."""
    old = mock.Mock(spec=["Decompressor"], Decompressor=mock.Mock(spec=["process"]))
    with mock.patch("importlib.import_module", return_value=old):
        assert _bodies._library_of("br") is None


# --- on a session that the application lends


async def _raising(request: Any, handler: Any) -> Any:
    raise LookupError("a bug of the application")


async def _missing_file(request: Any, handler: Any) -> Any:
    return Path("/nonexistent/token").read_bytes()


async def _afterwards(request: Any, handler: Any) -> Any:
    await handler(request)
    raise LookupError("a bug of the application")


async def _translating(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except aiohttp.ClientError as error:
        raise LookupError("no board") from error


async def _traced(*_: Any) -> None:
    raise LookupError("a bug of the application")


def _trace_config() -> aiohttp.TraceConfig:
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_traced)
    return config


@pytest.mark.parametrize(
    ("options", "cause", "function"),
    [
        ({"middlewares": (_raising,)}, LookupError, "_raising"),
        ({"middlewares": (_missing_file,)}, FileNotFoundError, "_missing_file"),
        ({"middlewares": (_afterwards,)}, LookupError, "_afterwards"),
        ({"trace_configs": [_trace_config()]}, LookupError, "_traced"),
    ],
)
async def test_what_code_of_the_application_raises_is_the_cause(
    service: BoardService, options: Any, cause: type[Exception], function: str
) -> None:
    """It has the frames of that code, and no others. The request may have been sent, so the effect is unknown."""
    async with _session(service.base_url, is_lent=True, **options) as session:
        with pytest.raises(TransportError, match=f"the application's own code raised {cause.__name__}, see the cause") as caught:
            await session.cards.create("n", list_id="l")
    assert isinstance(caught.value.__cause__, cause)
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert frames[0].name == function
    assert caught.value.effect is Effect.UNKNOWN


async def test_the_cause_has_no_exception_of_aiohttp_behind_it() -> None:
    """A middleware may translate what aiohttp raises, whose frames hold the signed request."""
    async with _session("http://127.0.0.1:1", is_lent=True, middlewares=(_translating,)) as session:
        with pytest.raises(TransportError) as caught:
            await session.cards.create("n", list_id="l")
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert (cause.__cause__, cause.__context__) == (None, None)


async def test_unread_bytes_are_no_response_to_the_next_request(raw_server: Any) -> None:
    """On a lent session too, a connection on which a response came twice is not used: the next call would get that response."""
    sent: list[asyncio.StreamWriter] = []

    async def handler(reader: Any, writer: Any) -> None:
        sent.append(writer)
        for number in range(2):
            await read_request(reader)
            answer = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"id":"c%d"}' % (2 * len(sent) + number)
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(answer)

    async with raw_server.run(handler) as url, _session(url, is_lent=True) as session:
        first = await session.cards.create("A", list_id="l")
        for _ in range(5):
            await asyncio.sleep(0)
        second = await session.cards.create("B", list_id="l")
    assert (first.id, second.id) == ("c2", "c4")
    assert len(sent) == 2
