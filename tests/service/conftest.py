"""Tests over real sockets run on both transports, but for those that are about credentials alone."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from session_helpers import transport_settings

from boardclient._transport._choice import DirectTransport, TransportChoice
from boardclient._transport._client_session import ClientSessionTransport


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both transports, or on the one that it chooses."""
    is_about_credentials = "renewal" in metafunc.module.__name__
    if "transport_kind" in metafunc.fixturenames and "transport_kind" not in _names_chosen_by(metafunc):
        metafunc.parametrize("transport_kind", ["direct"] if is_about_credentials else ["direct", "public"], indirect=True)


def _names_chosen_by(metafunc: pytest.Metafunc) -> set[str]:
    """Return what the test itself chooses."""
    return {name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}


@pytest.fixture(autouse=True)
def transport_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the transport that the requests of the test use."""
    monkeypatch.setattr(TransportChoice, "_may_be_direct", request.param == "direct")
    return str(request.param)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a throw-away self-signed certificate for 127.0.0.1."""
    home = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return home


@pytest.fixture
def server_context(certificate: Path) -> ssl.SSLContext:
    """Give the server's side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


@pytest.fixture(params=["http", "https"])
def contexts(request: pytest.FixtureRequest, certificate: Path) -> tuple[ssl.SSLContext | None, dict[str, Any]]:
    """Give the server's TLS context and the pool's settings, for plain http and for https."""
    if request.param == "http":
        return None, {}
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return server, {"ssl": ssl.create_default_context(cafile=str(certificate / "cert.pem"))}


@pytest.fixture
async def open_pool() -> AsyncIterator[Callable[..., TransportChoice]]:
    """Make pools, which are closed in the end and leave no connection behind."""
    pools: list[TransportChoice] = []

    def opened(lent: aiohttp.ClientSession | None = None, **settings: Any) -> TransportChoice:
        pools.append(TransportChoice(transport_settings(**{"max_connections": 1, **settings}), lent))
        return pools[-1]

    yield opened
    for pool in pools:
        connector = pool._connector
        assert connector is None or not connector._acquired
        await pool.aclose()


@pytest.fixture
async def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the transports that requests took, as they leave."""
    taken: list[str] = []
    for name, kind in (("direct", DirectTransport), ("public", ClientSessionTransport)):

        def noted(self: Any, *args: Any, name: str = name, round_trip: Any = kind.round_trip) -> Any:
            taken.append(name)
            return round_trip(self, *args)

        monkeypatch.setattr(kind, "round_trip", noted)
    return taken
