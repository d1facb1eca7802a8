"""TLS over real sockets: what is verified, what a refused certificate means, and what the peer says in the end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from transport_helpers import read_request
from waiting import SECONDS

from boardclient import AsyncSession, Effect, StaticCredentials, TransportError
from boardclient._transport._values import Progress

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"id": "m"}'


async def _answer(reader: Any, writer: Any) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await writer.drain()
    await reader.read()


async def test_an_unknown_certificate_is_refused(raw_server: Any, server_context: ssl.SSLContext, policy: Any) -> None:
    """An untrusted certificate is refused: NOT_SENT, phase connect, and the server sees no request."""
    async with raw_server.run(_answer, server_context) as url, AsyncSession(StaticCredentials("t"), url, retry=policy) as session:
        with pytest.raises(TransportError, match="certificate was refused") as caught:
            await session.members.me()
    assert (caught.value.phase, caught.value.effect, raw_server.served) == ("connect", Effect.NOT_SENT, 0)


async def test_a_context_that_trusts_it(raw_server: Any, server_context: ssl.SSLContext, certificate: Path) -> None:
    """ssl= takes a context with the application's own authorities."""
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    async with raw_server.run(_answer, server_context) as url, AsyncSession(StaticCredentials("t"), url, ssl=context) as session:
        assert (await session.members.me()).id == "m"


async def test_unverified_only_with_allow_insecure(raw_server: Any, server_context: ssl.SSLContext) -> None:
    """ssl=False turns verification off, and only together with allow_insecure."""
    async with raw_server.run(_answer, server_context) as url:
        with pytest.raises(ValueError, match="allow_insecure"):
            AsyncSession(StaticCredentials("t"), url, ssl=False)
        async with AsyncSession(StaticCredentials("t"), url, ssl=False, allow_insecure=True) as session:
            assert (await session.members.me()).id == "m"


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_pinned_certificate(raw_server: Any, server_context: ssl.SSLContext, certificate: Path, is_right: bool) -> None:
    """ssl= takes a fingerprint; another certificate's is NOT_SENT."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert((certificate / "cert.pem").read_text())).digest()
    pin = aiohttp.Fingerprint(digest if is_right else bytes(32))
    async with (
        raw_server.run(_answer, server_context) as url,
        AsyncSession(StaticCredentials("t"), url, ssl=pin, retry=None) as session,
    ):
        if is_right:
            assert (await session.members.me()).id == "m"
        else:
            with pytest.raises(TransportError, match="fingerprint") as caught:
                await session.members.me()
            assert (caught.value.phase, caught.value.effect) == ("connect", Effect.NOT_SENT)


@pytest.mark.parametrize("size", [2**17, 2**20])
@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_large_response_with_more_behind_it_counts(
    raw_server: Any, server_context: ssl.SSLContext, certificate: Path, size: int, is_closed: bool
) -> None:
    """What follows a whole response makes aiohttp close the connection several times, which asyncio's TLS does not survive."""

    async def handler(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%bjunk" % (size, b"x" * size))
        if is_closed:
            writer.close()
        with contextlib.suppress(ConnectionError):
            await reader.read()

    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    async with (
        raw_server.run(handler, server_context) as url,
        AsyncSession(StaticCredentials("t"), url, ssl=context, retry=None) as session,
    ):
        response = await session.request("GET", "/1/cards/c")
    assert (response.status, len(response.body)) == (200, size)


# --- what the peer says in the end

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: the connection is reset when it is closed."""


def _close(peer: ssl.SSLSocket) -> None:
    """Leave what the client has sent unread, which may be a reset."""


def _reset(peer: ssl.SSLSocket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _read_on(peer: ssl.SSLSocket) -> None:
    while socket.socket.recv(peer, 2**16):
        pass


@pytest.fixture
def refusing(server_context: ssl.SSLContext, certificate: Path) -> ssl.SSLContext:
    """Give the context of a server that wants a client certificate."""
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(certificate / "cert.pem")
    return server_context


@pytest.fixture
def trusting(certificate: Path) -> ssl.SSLContext:
    """Give the context of a client that has none."""
    return ssl.create_default_context(cafile=str(certificate / "cert.pem"))


@contextlib.asynccontextmanager
async def _session(url: str, context: ssl.SSLContext, is_lent: bool) -> AsyncIterator[AsyncSession]:
    async with contextlib.AsyncExitStack() as stack:
        pool: dict[str, Any] = {"ssl": context}
        if is_lent:
            http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
            pool = {"http": await stack.enter_async_context(http)}
        yield await stack.enter_async_context(AsyncSession(StaticCredentials("t"), url, retry=None, **pool))


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("end", [_close, _reset, _read_on])
async def test_a_peer_that_wants_a_certificate_is_named(
    refusing: ssl.SSLContext, trusting: ssl.SSLContext, end: Callable[[ssl.SSLSocket], None], is_lent: bool
) -> None:
    """TLS 1.3 refuses a client without one after the handshake, when its request may be on the way, or the connection reset."""
    calls = 3

    def serve() -> None:
        for _ in range(calls):
            connection, _ = listening.accept()
            with refusing.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as peer:
                with contextlib.suppress(OSError):
                    peer.do_handshake()
                with contextlib.suppress(OSError):
                    end(peer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(asyncio.to_thread(serve))
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        for _ in range(calls):
            async with _session(url, trusting, is_lent) as session:
                with pytest.raises(TransportError, match=r"the peer (wants|may want) a client certificate"):
                    await session.cards.create("n", list_id="l")
        await serving


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_peer_that_refuses_without_an_alert(
    raw_server: Any, refusing: ssl.SSLContext, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    """A server on asyncio closes the connection without an alert. The error says what that may mean."""
    refusing.maximum_version = version
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # which gets the server's own errors
    async with (
        raw_server.run(_answer, refusing) as url,
        AsyncSession(StaticCredentials("t"), url, ssl=trusting, retry=None) as session,
    ):
        with pytest.raises(TransportError, match="TLS handshake: the peer may want a client certificate, give ssl= a context"):
            await session.cards.create("n", list_id="l")


@pytest.mark.parametrize("is_lent", [False, True])
async def test_a_connection_that_was_used_says_nothing_of_certificates(
    raw_server: Any, server_context: ssl.SSLContext, trusting: ssl.SSLContext, is_lent: bool
) -> None:
    """Its peer has accepted the client, so an end without a response has other reasons."""

    async def handler(reader: Any, writer: Any) -> None:
        await read_request(reader)
        writer.write(ANSWER.replace(b"Connection: close\r\n", b""))
        await read_request(reader)

    async with raw_server.run(handler, server_context) as url, _session(url, trusting, is_lent) as session:
        assert (await session.cards.create("A", list_id="l")).id == "m"
        with pytest.raises(TransportError, match="closed before the response") as caught:
            await session.cards.create("B", list_id="l")
    assert "client certificate" not in str(caught.value)


class _Paused(Progress):
    """The progress of a request that is written when the peer has ended the connection."""

    may_end: threading.Event
    has_ended: threading.Event

    def begin_sending(self, stage: Any = "send") -> None:
        super().begin_sending(stage)
        if stage == "send":  # there is a connection
            self.may_end.set()
            assert self.has_ended.wait(SECONDS)


def _exchange(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, peer: socket.socket) -> bool:
    """Continue a handshake, and return True once it has ended."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        peer.sendall(outgoing.read())
        incoming.write(peer.recv(2**16))
        return False
    except ssl.SSLError:
        pass
    return True


@pytest.mark.parametrize("size", [100, 2**20 + 1])
@pytest.mark.parametrize("wants_certificate", [True, False])
async def test_what_the_peer_has_said_is_read_when_the_request_can_not_be_written(
    refusing: ssl.SSLContext,
    trusting: ssl.SSLContext,
    open_pool: Any,
    wants_certificate: bool,
    size: int,
) -> None:
    """Its response or its alert came before the reset that writing meets, and says more."""
    may_end, has_ended = threading.Event(), threading.Event()
    if not wants_certificate:
        refusing.verify_mode = ssl.CERT_NONE

    def serve() -> None:  # without a socket of TLS, which does not wait within the handshake
        peer, _ = listening.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = refusing.wrap_bio(incoming, outgoing, server_side=True)
        steps = 0
        while not _exchange(tls, incoming, outgoing, peer):
            steps += 1
            if steps == 2:  # the client's last part is there, after which its request follows
                assert may_end.wait(SECONDS)
        if not wants_certificate:
            tls.write(ANSWER)
        peer.sendall(outgoing.read())
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        peer.close()
        has_ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(asyncio.to_thread(serve))
        progress = _Paused(may_end=may_end, has_ended=has_ended)
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/1/cards"
        outcome = await open_pool(ssl=trusting).send("POST", url, b"x" * size, progress)
        await serving
    if wants_certificate:
        assert "the peer wants a client certificate" in outcome.why
    else:
        assert (outcome.status, outcome.body) == (200, b'{"id": "m"}')
