"""The checks of the command `doctor`."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import ssl
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import click

import boardclient
from boardclient.cli._output import (
    CommandError,
    IncompleteError,
    NoCredentialsError,
    UsageError,
    has_color,
    local,
    out_columns,
    out_json,
)
from boardclient.cli._profiles import Settings, folder, load

_WORST_CLOCK_SECONDS = 60.0
_CERTIFICATE_DAYS = 14


_Finding: TypeAlias = tuple[str, str, str]
"""The name of a check; "ok", "warning", "wrong" or "credentials"; and what was found, or what to do."""


async def run(options: dict[str, Any], fields: tuple[str, ...] | None) -> None:
    """Make all checks, print each, and fail if one does.

    Raises:
        CommandError: something is wrong.
    """
    found: dict[str, dict[str, str]] = {}
    states: set[str] = set()
    async for name, state, text in _checks(options):
        states.add(state)
        found[name] = {"state": "wrong" if state == "credentials" else state, "found": text}
        if fields is None:
            _print(name, state, text)
    if fields is not None:
        out_json({name: found.get(name) for name in fields or found})
    if "wrong" in states:
        raise IncompleteError("something is wrong")
    if "credentials" in states:
        raise NoCredentialsError("there are no credentials that the service accepts")


def _print(name: str, state: str, text: str) -> None:
    if not sys.stdout.isatty():
        out_columns(name, "wrong" if state == "credentials" else state, text)
        return
    mark, color = {"ok": ("ok", "green"), "warning": ("!", "yellow")}.get(state, ("wrong", "red"))
    click.echo(f"{click.style(f'{mark:<5}', fg=color)}  {name:<13}  {text}", color=has_color())


async def _checks(options: dict[str, Any]) -> AsyncIterator[_Finding]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("boardclient", "aiohttp", "click", "rich"))
    yield "versions", "ok", f"{versions}, Python {platform.python_version()} on {platform.platform(terse=True)}"
    try:
        settings = load(options)
    except UsageError as error:
        yield "configuration", "wrong", str(error)
        return
    sources = ", ".join(f"{name} ({source})" for name, source in settings.sources.items())
    yield "configuration", "ok", f"{sources}; files in {folder()}"
    try:
        credentials = await settings.credentials()
        place = "the environment" if settings.token is not None else settings.profile.place
        yield "credentials", "ok", f"from {place}; {_renewal(credentials)}"
    except (CommandError, boardclient.CredentialError) as error:
        yield "credentials", "credentials", str(error)
        credentials = boardclient.StaticCredentials(token="none")  # noqa: S106 -- it only has to reach the service
    address = urlsplit(settings.base_url)
    if address.scheme == "https":
        yield "TLS", *await _tls(address.hostname or "", address.port or 443)
    async for finding in _answer(settings, credentials):
        yield finding


def _renewal(credentials: boardclient.CredentialProvider) -> str:
    if isinstance(credentials, boardclient.OAuthCredentials):
        return "a refused token is renewed by signing in again"
    return "a refused token can't be renewed: the client and the address of the token exchange are not known"


async def _tls(host: str, port: int) -> tuple[str, str]:
    """Check the certificate of a host."""
    try:
        async with asyncio.timeout(10):
            _, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
    except (OSError, TimeoutError) as error:
        return "wrong", f"no connection to {host}:{port}: {error or 'no answer within 10 s'}"
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str((connection.getpeercert() or {})["notAfter"])), UTC)
    days = (end - datetime.now(UTC)).days
    state = "warning" if days < _CERTIFICATE_DAYS else "ok"
    return state, f"{connection.version()}, the certificate ends {local(end):%Y-%m-%d} (in {days} days)"


async def _answer(settings: Settings, credentials: boardclient.CredentialProvider) -> AsyncIterator[_Finding]:
    """Read the member record, and compare the clocks by the Date of the response."""
    began = time.monotonic()
    try:
        async with settings.session(credentials) as session:
            response = await session.with_options(retry=None).request("GET", "/1/members/me")
        headers, token = response.headers, ("ok", "accepted")
    except (boardclient.AuthenticationError, boardclient.ConsentRequired) as error:
        headers, token = getattr(error, "headers", {}), ("credentials", f"refused; {settings.advice}")
    except boardclient.ApiError as error:
        headers, token = error.headers, ("wrong", str(error))
    except (boardclient.BoardClientError, ValueError) as error:
        yield "connection", "wrong", str(error)
        return
    yield "connection", "ok", f"{settings.base_url} responds in {time.monotonic() - began:.2f} s"
    yield "token", *token
    try:
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
    except (LookupError, ValueError, TypeError):
        return
    state = "warning" if abs(ahead) > _WORST_CLOCK_SECONDS else "ok"
    yield "clock", state, f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the service's"
