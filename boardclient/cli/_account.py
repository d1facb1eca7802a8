"""The commands on credentials and configuration: login, logout, auth status, and the checks of doctor."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import click

import boardclient
from boardclient.cli import _sign_in
from boardclient.cli._app import Group, json_option
from boardclient.cli._errors import CommandError, NoCredentialsError, UsageError
from boardclient.cli._output import local, note, out_json, out_table, show
from boardclient.cli._profiles import Settings, advice, folder, load
from boardclient.cli._running import Client, reading, runs

commands = Group("account")

_WORST_CLOCK_SECONDS = 60.0


@commands.command("login")
@click.option("--with-token", is_flag=True, help="Read an access token from standard input, such as one of the service's portal.")
@runs("signed in", "service", "account", "kept_in", needs="settings")
async def login(settings: Settings, with_token: bool) -> Mapping[str, Any]:
    """Sign in to a service, and keep the token for later commands.

    The browser shows the service's page and comes back to this machine (RFC 8252). Where the browser runs on another machine,
    paste the code, or the address at which it has ended. The service's interface shows no address of that page: it must be given.

    The token, the API key and the client's secret are kept in the system's keyring if the library keyring finds one, otherwise
    in files that only you can read. When the service refuses the token, sign in again: imports wait for that, and continue.

    \b
    It needs:
      BOARDCLIENT_BASE_URL or --base-url, BOARDCLIENT_AUTH_URL or --auth-url,
      BOARDCLIENT_AUTHORIZE_URL, BOARDCLIENT_CLIENT_ID, BOARDCLIENT_CLIENT_SECRET,
      and BOARDCLIENT_KEY if an API key is used

    A client that is registered for one redirect address needs BOARDCLIENT_REDIRECT_URI, too. Scopes belong to the page's
    address: BOARDCLIENT_AUTHORIZE_URL=https://board.example/authorize?scope=read%20write

    \b
    Examples:
      boardclient --base-url https://board.example login
      boardclient login --with-token < token.txt
    """
    if with_token:
        with reading():
            text = sys.stdin.readline().lstrip("\ufeff").strip()
        if not text:
            raise UsageError("there is no token on standard input")
        token = boardclient.Token(text)
    else:
        needed = ("auth_url", "authorize_url", "client_id", "client_secret")
        missing = [f"BOARDCLIENT_{name.upper()}" for name in needed if getattr(settings, name) is None]
        if missing:
            raise UsageError(f"not set: {', '.join(missing)}; or use a token: boardclient login --with-token")
        async with settings.session(boardclient.StaticCredentials(token="-")) as session:  # noqa: S106 -- the exchange sends none
            token = await _sign_in.sign_in(settings, session)
    async with settings.session(boardclient.StaticCredentials(token=token.value, key=settings.key)) as session:
        member = await session.members.me()
    await settings.keep(token)
    if settings.token is not None:
        note("BOARDCLIENT_TOKEN is set: commands use it in place of this sign-in")
    profile = settings.profile
    return {"service": profile.base_url, "account": _name_of(member), "kept_in": profile.place}


def _name_of(member: boardclient.Member) -> str | None:
    """Return what names a member. The interface documents no field (2.5)."""
    texts = (member.extra.get(name) for name in ("fullName", "username", "name"))
    return next((text for text in texts if isinstance(text, str)), member.id)


@commands.command("logout")
@runs("signed out", "service", "deleted", needs="settings")
async def logout(settings: Settings) -> Mapping[str, Any]:
    """Delete the token and the secrets of a service from this machine.

    The token itself stays valid at the service, whose interface shows no way to revoke it.
    """
    return {"service": settings.profile.base_url, "deleted": await settings.forget()}


@commands.group("auth")
def auth() -> None:
    """Show who is signed in, and where the token is kept."""


@auth.command("status")
@json_option("service", "account", "kept_in", "ends", "accepted")
@runs()
async def auth_status(client: Client, fields: tuple[str, ...] | None) -> None:
    """Show the service, the account, where its token is kept, and whether the service accepts it. Exit code 4 if not."""
    settings, record = client.settings, dict[str, Any]()
    record["service"], record["kept_in"], record["ends"] = settings.base_url, settings.place, None
    if settings.token is None:
        stored = await settings.profile.token_store().read(settings.profile.base_url)
        record["ends"] = stored and stored.token.expires_at and local(stored.token.expires_at).isoformat()
    try:
        record["account"] = _name_of(await client.session.members.me())
    except (boardclient.AuthenticationError, boardclient.CredentialError):
        show("signed in", {**record, "account": None, "accepted": False}, fields)
        raise
    show("signed in", {**record, "accepted": True}, fields)


@commands.command("doctor")
@json_option("versions", "configuration", "credentials", "connection", "token", "clock")
@runs(needs="nothing")
async def doctor(fields: tuple[str, ...] | None) -> None:
    """Check configuration, connection, TLS, token and clock, and show versions.

    Each line says what is good, or what to do. Exit code 1 if something is wrong, 4 if it is the credentials alone.
    """
    checks = [check async for check in _checks(click.get_current_context().find_root().params)]
    if fields is None:
        out_table(checks, "check", "state", "found")
    else:
        found = {name: {"state": state, "found": text} for name, state, text in checks}
        out_json({name: found.get(name) for name in fields or found})
    wrong = {name for name, state, _ in checks if state == "wrong"}
    if wrong - {"credentials", "token"}:
        raise CommandError("something is wrong")
    if wrong:
        raise NoCredentialsError("there are no credentials that the service accepts")


async def _checks(options: Mapping[str, Any]) -> AsyncIterator[tuple[str, str, str]]:
    """Yield the name of each check, "ok", "warning" or "wrong", and what was found, or what to do."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("boardclient", "aiohttp", "click", "rich"))
    yield "versions", "ok", f"{versions}, Python {platform.python_version()} on {platform.platform(terse=True)}"
    try:
        settings = load(options)
    except (UsageError, boardclient.CredentialError) as error:
        yield "configuration", "wrong", str(error)
        return
    sources = ", ".join(f"{name} ({source})" for name, source in settings.sources.items())
    yield "configuration", "ok", f"{sources}; files in {folder()}"
    try:
        credentials = await settings.credentials()
        yield "credentials", "ok", f"from {settings.place}"
    except (NoCredentialsError, boardclient.CredentialError) as error:
        yield "credentials", "wrong", str(error)
        credentials = boardclient.StaticCredentials(token="none")  # noqa: S106 -- it only has to reach the service
    headers: Mapping[str, str] = {}
    tls = ", and its certificate is valid" if settings.base_url.startswith("https") else ""
    found = [("connection", "ok", f"{settings.base_url} responds{tls}"), ("token", "ok", "accepted")]
    try:
        async with settings.session(credentials) as session:
            response = await session.with_options(retry=None).request("GET", "/1/members/me")
            headers = response.headers
            response.read(boardclient.Member)  # a success of another server, such as a page, proves nothing
    except (boardclient.AuthenticationError, boardclient.ConsentRequired) as error:
        headers, found[1] = getattr(error, "headers", headers), ("token", "wrong", f"refused; {advice()}")
    except (boardclient.BoardClientError, ValueError) as error:
        headers, found = getattr(error, "headers", headers), [("connection", "wrong", str(error))]
    for finding in found:
        yield finding
    with contextlib.suppress(LookupError, ValueError, TypeError):  # it sends no date, or another form
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
        state = "warning" if abs(ahead) > _WORST_CLOCK_SECONDS else "ok"
        yield "clock", state, f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the service's"
