"""The commands on credentials and configuration: login, logout, auth status, and the checks of doctor."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

import boardclient
from boardclient.cli._app import Group, argument, option
from boardclient.cli._output import CommandError, NoCredentialsError, UsageError, in_words, local, note, out, out_table, show

if TYPE_CHECKING:
    from boardclient.cli._running import Client, Settings

commands = Group("account")

_WORST_CLOCK_SECONDS = 60.0


@commands.runs("login", "signed in", "service", "account", "kept_in", needs="settings")
async def login(settings: Settings, with_token: bool = option(is_flag=True)) -> Mapping[str, Any]:
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

    Args:
        with_token: Read an access token from standard input, such as one of the service's portal.
    """
    from boardclient.cli._commands import _sign_in
    from boardclient.credentials._profiles import VARIABLES, changed_profiles

    with changed_profiles():  # a folder that can't be written is named before the user signs in
        pass
    if with_token:
        token = boardclient.Token(_read_token())
    else:
        needed = ("auth_url", "authorize_url", "client_id", "client_secret")
        missing = [VARIABLES[name] for name in needed if settings.get(name) is None]
        if missing:
            raise UsageError(f"not set: {', '.join(missing)}; or use a token: boardclient login --with-token")
        unused = boardclient.StaticCredentials(token="-")  # noqa: S106 -- the exchange sends none
        async with settings.session(unused, settings.get("auth_url")) as session:
            token = await _sign_in.sign_in(settings, session)
    async with settings.session(boardclient.StaticCredentials(token=token.value, key=settings.key)) as session:
        member = await session.members.me()
    await settings.keep(token)
    if settings.token is not None:
        note("BOARDCLIENT_TOKEN is set: commands use it in place of this sign-in")
    return {"service": settings.profile.base_url, "account": _name_of(member), "kept_in": settings.profile.place}


def _read_token() -> str:
    """Read a token from standard input, in UTF-8 or, as PowerShell writes files, in UTF-16."""
    from boardclient.cli._running import handled_by

    if sys.stdin.isatty():
        note("Paste the access token, and press Enter.")
    with handled_by(signal.SIG_DFL):
        line = sys.stdin.buffer.readline()
    # What follows the line feed in UTF-16 is not read.
    encoding = "utf-16" if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(line).strip()
    if not text:
        raise UsageError("there is no token on standard input")
    if not text.isprintable() or "\ufffd" in text:
        raise UsageError("the token on standard input is no text in UTF-8: save its file in this encoding")
    return text


def _name_of(member: boardclient.Member) -> str | None:
    """Return what names a member. The interface documents no field (2.5)."""
    texts = (member.extra.get(name) for name in ("fullName", "username", "name"))
    return next((text for text in texts if isinstance(text, str)), member.id)


@commands.runs("logout", "signed out", "service", "deleted", needs="settings")
async def logout(settings: Settings) -> Mapping[str, Any]:
    """Delete the token and the secrets of a service from this machine.

    The token itself stays valid at the service, whose interface shows no way to revoke it.
    """
    return {"service": settings.profile.base_url, "deleted": await settings.forget()}


auth = commands.part("auth")


@auth.runs("status", None, "service", "account", "kept_in", "ends", "accepted")
async def auth_status(client: Client, fields: tuple[str, ...] | None) -> None:
    """Show the service, the account, where its token is kept, and whether the service accepts it. Exit code 4 if not."""
    settings = client.settings
    record: dict[str, Any] = {"service": settings.base_url, "kept_in": settings.place, "ends": None}
    if settings.token is None:
        stored = await settings.profile.token_store().read(settings.profile.base_url)
        record["ends"] = stored and stored.token.expires_at and local(stored.token.expires_at).isoformat()
    try:
        record["account"] = _name_of(await client.session.members.me())
    except (boardclient.AuthenticationError, boardclient.CredentialError):
        show("not signed in", {**record, "account": None, "accepted": False}, fields)
        raise
    show("signed in", {**record, "accepted": True}, fields)


@auth.runs("token", None, "token", needs="settings")
async def auth_token(settings: Settings, fields: tuple[str, ...] | None) -> None:
    """Print the access token that commands use, for other programs. It is not checked.

    boardclient run gives it to a program without showing it, and Python has AsyncSession.from_profile().

    Example:  curl "$BOARDCLIENT_BASE_URL/1/members/me?token=$(boardclient auth token)"
    """
    token = await settings.usable_token()
    if sys.stdout.isatty():
        note("Whoever has this token can act in your name: clear the screen after use.", fg="yellow")
    if fields is None:
        out(token)
    else:
        show("", {"token": token}, fields)


_command = argument("COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
_as_given = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@commands.runs("run", needs="settings", context_settings=_as_given)
async def run(settings: Settings, command: tuple[str, ...] = _command) -> None:
    """Run a program with the service and the token of this command line in its environment.

    It gets BOARDCLIENT_BASE_URL, BOARDCLIENT_TOKEN and, if one is used, BOARDCLIENT_KEY: AsyncSession.from_env() reads them. No
    other program sees them. It takes the place of this process, so signals reach it, and its exit code is that of the program:
    127 if there is no such program, 126 if it can't be run.

    Example:  boardclient run -- python script.py

    Args:
        command: A program and its arguments.
    """
    from boardclient.cli._running import handled_by
    from boardclient.credentials._profiles import VARIABLES

    environment = {**os.environ, VARIABLES["token"]: await settings.usable_token(), **settings.variables("base_url", "key")}
    ignored = signal.valid_signals() & {getattr(signal, name, 0) for name in ("SIGPIPE", "SIGXFSZ")}
    if os.name == "nt":  # pragma: no cover -- Windows, where what replaces a process is not waited for
        import subprocess

        raise click.exceptions.Exit(subprocess.call(command, env=environment))  # noqa: ASYNC221, S603 -- the user's own
    try:
        with handled_by(signal.SIG_DFL, ignored):  # what Python ignores would stay so in the program
            os.execvpe(command[0], command, environment)  # noqa: S606 -- no shell is wanted
    except OSError as error:
        note(f"boardclient: error: can't run {command[0]}: {error.strerror}")
        raise click.exceptions.Exit(127 if isinstance(error, FileNotFoundError) else 126) from None


@commands.runs("doctor", None, "versions", "configuration", "credentials", "connection", "token", "clock", needs="nothing")
async def doctor(fields: tuple[str, ...] | None) -> None:
    """Check configuration, connection, TLS, token and clock, and show versions.

    Each line says what is good, or what to do. Exit code 1 if something is wrong, 4 if it is the credentials alone.
    """
    checks = [check async for check in _checks()]
    if fields is None:
        out_table(checks, "check", "state", "found")
    else:
        show("", {name: {"state": state, "found": text} for name, state, text in checks}, fields)
    wrong = {name for name, state, _ in checks if state == "wrong"}
    if wrong - {"credentials", "token"}:
        raise CommandError("something is wrong")
    if wrong:
        raise NoCredentialsError("there are no credentials that the service accepts")


async def _checks() -> AsyncIterator[tuple[str, str, str]]:
    """Yield the name of each check, "ok", "warning" or "wrong", and what was found, or what to do."""
    import importlib.metadata
    import platform
    from email.utils import parsedate_to_datetime
    from urllib.parse import urlsplit

    from boardclient._environment import proxy_of
    from boardclient.cli._running import advice, load
    from boardclient.credentials._profiles import folder

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("boardclient", "aiohttp", "click", "rich"))
    yield "versions", "ok", f"{versions}, Python {platform.python_version()} on {platform.platform(terse=True)}"
    try:
        settings = load()
    except ValueError as error:
        yield "configuration", "wrong", str(error)
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
    headers: Mapping[str, str] = {}
    tls = ", and its certificate is valid" if settings.base_url.startswith("https") else ""
    proxy = urlsplit(proxy_of(settings.base_url, allow_insecure=settings.allow_insecure) or "")
    through = f" through the proxy {proxy.scheme}://{proxy.netloc.rpartition('@')[2]}" if proxy.netloc else ""
    found = [("connection", "ok", f"{settings.base_url} responds{through}{tls}"), ("token", "ok", "accepted")]
    try:
        async with settings.session(credentials) as session:
            response = await session.with_options(retry=None).request("GET", "/1/members/me")
            headers = response.headers
            response.read(boardclient.Member)  # a success of another server, such as a page, proves nothing
    except (boardclient.AuthenticationError, boardclient.ConsentRequired) as error:
        headers, found[1] = getattr(error, "headers", headers), ("token", "wrong", f"refused; {advice()}")
    except (boardclient.BoardClientError, ValueError) as error:
        headers, found = getattr(error, "headers", headers), [("connection", "wrong", f"{in_words(error)}{through}")]
    for finding in found:
        yield finding
    with contextlib.suppress(LookupError, ValueError, TypeError):  # it sends no date, or another form
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
        state = "warning" if abs(ahead) > _WORST_CLOCK_SECONDS else "ok"
        yield "clock", state, f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the service's"
