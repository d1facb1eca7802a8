"""The commands on credentials and configuration: login, logout, auth status, and the checks of doctor."""

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

import attrs
import click

import boardclient
from boardclient.cli import _sign_in
from boardclient.cli._app import Group, json_option
from boardclient.cli._output import (
    CommandError,
    IncompleteError,
    NoCredentialsError,
    UsageError,
    has_color,
    local,
    note,
    out,
    out_columns,
    out_json,
    show,
)
from boardclient.cli._profiles import Settings, folder, load
from boardclient.cli._running import Client, reported, run_until_signal, with_session, without_session

commands = Group("account")

_STATUS = ("service", "account", "kept_in", "ends", "accepted")
_WORST_CLOCK_SECONDS = 60.0
_CERTIFICATE_DAYS = 14
_Finding: TypeAlias = tuple[str, str, str]
"""The name of a check; "ok", "warning", "wrong" or "credentials"; and what was found, or what to do."""


@commands.command("login")
@click.option("--with-token", is_flag=True, help="Read an access token from standard input, such as one of the service's portal.")
@click.option("--authorize-url", metavar="URL", help="The page on which users sign in; overrides BOARDCLIENT_AUTHORIZE_URL.")
@click.option("--scope", metavar="SCOPE", help="The scopes to ask for, such as 'read write'.", show_default="the service decides")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@json_option("service", "account", "kept_in")
def login(
    with_token: bool, authorize_url: str | None, scope: str | None, no_browser: bool, fields: tuple[str, ...] | None
) -> None:
    """Sign in to a service, and keep the token for later commands.

    The browser shows the service's page and comes back to this machine (RFC 8252). Where the browser runs on another machine,
    paste the code, or the address at which it has ended. The service's interface shows no address of that page: it must be given.

    The token, the API key and the client's secret are kept in the system's keyring if the library keyring finds one, otherwise
    in files that only you can read. When the service refuses the token, commands on a terminal let you sign in again, and imports
    wait until you have, also in another terminal.

    \b
    It needs:
      BOARDCLIENT_BASE_URL or --base-url, BOARDCLIENT_AUTH_URL or --auth-url, BOARDCLIENT_AUTHORIZE_URL or --authorize-url,
      BOARDCLIENT_CLIENT_ID, BOARDCLIENT_CLIENT_SECRET, and BOARDCLIENT_KEY if an API key is used
    A client that is registered for one redirect address needs BOARDCLIENT_REDIRECT_URI, too.

    \b
    Examples:
      boardclient --base-url https://board.example login
      boardclient login --with-token < token.txt
    """

    async def work(settings: Settings) -> None:
        if authorize_url is not None:
            settings = attrs.evolve(settings, authorize_url=authorize_url)
        if with_token:
            text = sys.stdin.readline().strip()
            if not text:
                raise UsageError("there is no token on standard input")
            token = boardclient.Token(text)
        else:
            missing = [
                f"BOARDCLIENT_{name.upper()}"
                for name in ("auth_url", "authorize_url", "client_id", "client_secret")
                if getattr(settings, name) is None
            ]
            if missing:
                raise UsageError(f"not set: {', '.join(missing)}; or use a token: boardclient login --with-token")
            async with settings.session(boardclient.StaticCredentials(token="-")) as session:  # noqa: S106 -- the exchange sends none
                token = await _sign_in.sign_in(settings, session, scope=scope, browser=not no_browser)
        async with settings.session(boardclient.StaticCredentials(token=token.value, key=settings.key)) as session:
            member = await session.members.me()
        await settings.keep(token)
        service, account, place = settings.profile.base_url, _name_of(member), settings.profile.place
        if fields is not None:
            show("", {"service": service, "account": account, "kept_in": place}, fields)
        else:
            out(f"Signed in to {service}{f' as {account}' if account else ''}. The token is kept in {place}.")

    without_session(work)


def _name_of(member: boardclient.Member) -> str | None:
    """Return what names a member. The interface documents no field (2.5)."""
    texts = (member.extra.get(name) for name in ("fullName", "username", "name"))
    return next((text for text in texts if isinstance(text, str)), member.id)


@commands.command("logout")
@json_option("service", "deleted")
def logout(fields: tuple[str, ...] | None) -> None:
    """Delete the token and the secrets of a service from this machine.

    The token itself stays valid at the service, whose interface shows no way to revoke it.
    """

    async def work(settings: Settings) -> None:
        is_deleted = await settings.forget()
        if fields is not None:
            show("", {"service": settings.profile.base_url, "deleted": is_deleted}, fields)
        elif is_deleted:
            out(f"The token of {settings.profile.base_url} is deleted.")
        else:
            note(f"boardclient: not signed in to {settings.profile.base_url}")

    without_session(work)


@commands.group("auth")
def auth() -> None:
    """Show who is signed in, and where the token is kept."""


@auth.command("status")
@json_option(*_STATUS)
def auth_status(fields: tuple[str, ...] | None) -> None:
    """Show the service, the account, where its token is kept, and whether the service accepts it. Exit code 4 if not."""

    async def work(client: Client) -> None:
        settings = client.settings
        record: dict[str, Any] = {
            "service": settings.base_url,
            "kept_in": "the environment" if settings.token is not None else settings.profile.place,
            "ends": None,
        }
        if settings.token is None:
            stored = await settings.profile.token_store().read(settings.profile.base_url)
            record["ends"] = stored and stored.token.expires_at and local(stored.token.expires_at)
        try:
            record["account"] = _name_of(await client.session.members.me())
        except (boardclient.AuthenticationError, boardclient.CredentialError):
            show("signed in", {**record, "account": None, "accepted": False}, fields)
            raise
        show("signed in", {**record, "accepted": True}, fields)

    with_session(work)


@commands.command("doctor")
@json_option()
def doctor(fields: tuple[str, ...] | None) -> None:
    """Check configuration, connection, TLS, token and clock, and show versions.

    Each line says what is good, or what to do. Exit code 1 if something is wrong, 4 if it is the credentials alone.
    """
    options = click.get_current_context().find_root().params
    with reported():
        run_until_signal(lambda: _diagnose(options, fields))


async def _diagnose(options: dict[str, Any], fields: tuple[str, ...] | None) -> None:
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
