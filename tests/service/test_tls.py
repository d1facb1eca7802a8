"""TLS over real sockets: what is verified, and what a refused certificate means."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from boardclient import AsyncSession, Effect, StaticCredentials, TransportError

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
