"""The checks of `doctor`: configuration, connection, TLS, proxy, token, the token exchange, the time zone and the clock."""

from __future__ import annotations

import contextlib
import html
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import click

import boardclient
from boardclient.cli._app import Group, read_zone
from boardclient.cli._output import CommandError, NoCredentialsError, in_words, out_table, quoted, show

if TYPE_CHECKING:
    from boardclient.cli._running import CommandSettings

commands = Group("doctor")

Finding: TypeAlias = tuple[str, str, str]
"""The name of a check, "ok", "warning" or "wrong", and what was found, or what to do."""

_CHECKS = ("versions", "configuration", "credentials", "connection", "token", "auth_url", "timezone", "clock")
_WORST_CLOCK_SECONDS = 60.0
_PROBE_SECONDS = 5.0
_WORDS_LENGTH = 80
_NOT_TEXT = re.compile(rb"(?is)<(script|style|svg)\b.*?</\1>|<[^>]*>")
_NO_EXCHANGE = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


@commands.runs("doctor", None, *_CHECKS, needs="nothing")
async def doctor(fields: tuple[str, ...] | None) -> None:
    """Check configuration, connection, TLS, proxy, token, time zone and clock, and show versions.

    Each line says what is good, or what to do. Exit code 1 if something is wrong, 4 if it is the credentials alone.
    """
    checks = [check async for check in _checks()]
    if fields is None:
        out_table(checks, "check", "state", "found")
    else:
        show("", {name: {"state": state, "found": text} for name, state, text in checks}, fields)
    wrong = {name for name, state, _ in checks if state == "wrong"}
    # Exit code 4 only if nothing else is wrong, since scripts answer it with a sign-in.
    if wrong - {"credentials", "token"}:
        raise CommandError("something is wrong")
    if wrong:
        raise NoCredentialsError("there are no credentials that the service accepts")


async def _checks() -> AsyncIterator[Finding]:
    import importlib.metadata
    import platform

    from boardclient.cli._running import load
    from boardclient.credentials._profiles import folder

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("boardclient", "aiohttp", "click", "rich"))
    yield "versions", "ok", f"{versions}, Python {platform.python_version()} on {platform.platform(terse=True)}"
    for finding in _zone():
        yield finding
    try:
        settings = load()
    except ValueError as error:
        yield "configuration", "wrong", in_words(error)
        return
    sources = ", ".join(f"{name} ({source})" for name, source in settings.sources.items())
    problem = settings.profiles.problem
    yield "configuration", "warning" if problem else "ok", f"{sources}; {problem or f'files in {folder()}'}"
    try:
        credentials = settings.credentials()
        yield "credentials", "ok", f"from {settings.place}"
    except boardclient.CredentialError as error:
        yield "credentials", "wrong", str(error)
        credentials = boardclient.StaticCredentials(token="none")  # noqa: S106 -- it only has to reach the service
    async for finding in _service(settings, credentials):
        yield finding
    if auth_url := settings.get("auth_url"):
        yield await _token_exchange(settings, auth_url)


def _zone() -> list[Finding]:
    """Check the zone of dates that have no offset, if it is set."""
    name = os.environ.get("BOARDCLIENT_TIMEZONE", "").strip()
    if not name:
        return []
    try:
        read_zone(name)
    except click.BadParameter as error:
        return [("timezone", "wrong", f"BOARDCLIENT_TIMEZONE: {error.message}")]
    now = datetime.now(read_zone(name))
    return [("timezone", "ok", f"dates without an offset are in {name} (BOARDCLIENT_TIMEZONE), where it is {now:%H:%M}")]


async def _service(settings: CommandSettings, credentials: boardclient.CredentialProvider) -> AsyncIterator[Finding]:
    """Check the connection, the token, and the clock."""
    headers: Mapping[str, str] = {}
    tls = ", and its certificate is valid" if settings.base_url.startswith("https") else ""
    through = _proxy_in_words(settings, settings.base_url)
    found: list[Finding] = [("connection", "ok", f"{settings.base_url} responds{through}{tls}"), ("token", "ok", "accepted")]
    body = b""
    try:
        async with settings.session(credentials) as session:
            response = await session.with_options(retry=None).request("GET", "/1/members/me")
            headers, body = response.headers, response.body
            response.read(boardclient.Member)  # a success of another server, such as a page, proves nothing
    except (boardclient.AuthenticationError, boardclient.ConsentRequired) as error:
        headers, found[1] = getattr(error, "headers", headers), ("token", "wrong", f"refused; {settings.advice()}")
    except (boardclient.BoardClientError, ValueError) as error:
        headers = getattr(error, "headers", headers)
        text = await _why(error, settings, settings.base_url, body)
        found = [("connection", "wrong", f"{through.strip()}{': ' * bool(through)}{text}")]
    for finding in found:
        yield finding
    for finding in _clock(headers):
        yield finding


async def _token_exchange(settings: CommandSettings, auth_url: str) -> Finding:
    """Check that something at the address of the token exchange responds as one. An empty form gets no token."""
    try:
        unused = boardclient.StaticCredentials(token="-")  # noqa: S106 -- the exchange sends none
        async with settings.session(unused, auth_url) as session:
            where = f"{auth_url.rstrip('/')}/1/OAuthGetAccessToken"
            response = await session.exchange.post_form(where, {}, settings.timeout)
    except (boardclient.BoardClientError, ValueError) as error:
        text = in_words(error).replace("the service's address (BOARDCLIENT_BASE_URL, --base-url)", "it")
        return "auth_url", "wrong", f"{quoted(auth_url)} (BOARDCLIENT_AUTH_URL): {text}"
    if response.status in _NO_EXCHANGE or _is_page(response.body):
        words = f"status {response.status}, {_first_words(response.body)}"
        return (
            "auth_url",
            "wrong",
            f"{auth_url} exchanges no tokens ({words}): check the address (BOARDCLIENT_AUTH_URL, --auth-url)",
        )
    return "auth_url", "ok", f"{auth_url} responds"


def _clock(headers: Mapping[str, str]) -> list[Finding]:
    from email.utils import parsedate_to_datetime

    with contextlib.suppress(LookupError, ValueError, TypeError):  # it sends no date, or another form
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
        state = "warning" if abs(ahead) > _WORST_CLOCK_SECONDS else "ok"
        return [("clock", state, f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the service's")]
    return []


# --- what is wrong, in words


def _proxy_in_words(settings: CommandSettings, url: str) -> str:
    """Return which proxy requests go through, without its password, and which variable names it. "" if there is none."""
    from boardclient._base._environment import proxy_of_environment, variable_of_proxy

    proxy = urlsplit(proxy_of_environment(url, allow_insecure=settings.allow_insecure) or "")
    if not proxy.netloc:
        return ""
    return f" through the proxy {proxy.scheme}://{proxy.netloc.rpartition('@')[2]} ({variable_of_proxy(url)})"


async def _why(error: Exception, settings: CommandSettings, url: str, body: bytes) -> str:
    """Return why the service does not respond as it should, and what to do."""
    text = in_words(error)
    status = getattr(error, "status", None)
    body = body or getattr(error, "body", b"")
    is_elsewhere = isinstance(error, boardclient.DecodeError | boardclient.NotFoundError)
    is_plain = url.startswith("http://") and not _proxy_in_words(settings, url)
    if is_plain and not isinstance(error, ValueError) and not is_elsewhere and await _speaks_tls(url):
        return f"the port speaks TLS: the address begins with https, https://{url.removeprefix('http://')}"
    if is_elsewhere or (isinstance(error, boardclient.ApiError) and _is_page(body)):
        what = "responds with a page, and not as the service does" if _is_page(body) else "is not where the service is"
        number = "" if status is None else f"status {status}, "
        return f"{url} {what} ({number}{_first_words(body)}): check the address (BOARDCLIENT_BASE_URL, --base-url)"
    return text


def _is_page(body: bytes) -> bool:
    """Return True if a body is a page of HTML, as a sign-in, a portal or another server sends it."""
    begin = body.lstrip()[:15].lower()
    return begin.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<h1", b"<p>", b"<title"))


def _first_words(body: bytes) -> str:
    """Return the first words of a body, of a page those that people read."""
    text = " ".join(html.unescape(_NOT_TEXT.sub(b" ", body[: 2**16]).decode("utf-8", "replace")).split())
    return quoted(f"{text[:_WORDS_LENGTH]}…" if len(text) > _WORDS_LENGTH else text) if text else "an empty body"


async def _speaks_tls(url: str) -> bool:
    """Return True if the port of an address completes the handshake of TLS, whatever its certificate says. Nothing is sent."""
    context = ssl.create_default_context()
    # Only whether it is TLS is asked, which a wrong certificate does not change; nothing is sent over it.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = urlsplit(url)
    import asyncio  # not at the top: help prints without it

    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(address.hostname, address.port or 80, ssl=context)
        writer.transport.abort()
        return True
    return False
