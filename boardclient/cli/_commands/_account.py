"""The commands on credentials: login, logout, auth, and run, which gives them to another program."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

import boardclient
from boardclient.cli._app import Group, argument, option
from boardclient.cli._output import CommandError, UsageError, in_words, local, note, out, show

if TYPE_CHECKING:
    from boardclient.cli._running import CommandSettings

commands = Group("account")

_QUIET_SECONDS = 1.0
"""How long a token is waited for before a line says so."""


@commands.runs("login", "signed in", "service", "account", "kept_in", needs="settings")
async def login(settings: CommandSettings, with_token: bool = option(is_flag=True)) -> Mapping[str, Any]:
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
        # Before it is kept: a token that the service refuses must not replace a good one.
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
    said = threading.Timer(_QUIET_SECONDS, note, ["waiting for the access token on standard input, a line of text"])
    with handled_by(signal.SIG_DFL), contextlib.ExitStack() as stack:
        stack.callback(said.cancel)
        said.start()
        line = sys.stdin.buffer.readline()
    # What follows the line feed in UTF-16 is not read.
    encoding = "utf-16" if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(line).strip()
    if not text:
        raise UsageError("there is no token on standard input")
    if not text.isprintable() or "\ufffd" in text:
        raise UsageError("the token on standard input is not UTF-8 text: save its file in this encoding")
    return text


def _name_of(member: boardclient.Member) -> str | None:
    """Return what names a member. The interface documents no field (2.5)."""
    texts = (member.extra.get(name) for name in ("fullName", "username", "name"))
    return next((text for text in texts if isinstance(text, str)), member.id)


@commands.runs("logout", "signed out", "service", "deleted", needs="settings")
async def logout(settings: CommandSettings) -> Mapping[str, Any]:
    """Delete the token and the secrets of a service from this machine.

    The token itself stays valid at the service, whose interface shows no way to revoke it. If the keyring is locked or gone, the
    exit code is 1, and the next logout tries again.
    """
    try:
        return {"service": settings.profile.base_url, "deleted": await settings.forget()}
    except boardclient.CredentialError as error:
        raise CommandError(str(error)) from None


auth = commands.part("auth")


_STATUS = ("service", "account", "kept_in", "ends", "accepted")


@auth.runs("status", None, *_STATUS, "profiles", needs="settings")
async def auth_status(settings: CommandSettings, fields: tuple[str, ...] | None) -> None:
    """Show the service, the account, where its token is kept, and whether the service accepts it. Exit code 4 if not.

    The other services to which this machine is signed in follow: boardclient auth switch chooses one of them.
    """
    import asyncio

    kept = [profile.base_url for profile in settings.profiles.by_url.values() if profile.kept_in]
    others = [settings.of_profile(url) for url in kept if url != settings.profile.base_url]
    # All at once: a service that does not respond would hold up the lines of the others.
    checked = await asyncio.gather(*map(_checked, [settings, *others]))
    (record, error), *rest = checked
    if fields is not None:
        profiles = [{**one, "current": one is record} for one, _ in checked if one is not record or settings.profile.kept_in]
        show("", {**record, "profiles": profiles}, fields)
    else:
        show("signed in" if record["accepted"] else "not signed in", record)
        for other, problem in rest:
            title = "signed in as well" if other["accepted"] else "not signed in any more"
            show(title if problem is None or other["accepted"] is False else f"not known: {in_words(problem)}", other)
    if error is not None:
        raise error


async def _checked(settings: CommandSettings) -> tuple[dict[str, Any], Exception | None]:
    """Return what is known of one sign-in, and why the service does not accept it."""
    record: dict[str, Any] = dict.fromkeys(_STATUS) | {"service": settings.base_url, "accepted": False}
    try:
        credentials = settings.credentials()
        record["kept_in"] = settings.place
        if settings.token is None:
            stored = await settings.profile.token_store().read(settings.profile.base_url, service=settings.profile.base_url)
            record["ends"] = stored and stored.token.expires_at and local(stored.token.expires_at).isoformat()
        async with settings.session(credentials) as session:
            record["account"] = _name_of(await session.members.me())
    except (boardclient.AuthenticationError, boardclient.CredentialError) as error:
        return record, settings.with_advice(error)
    except boardclient.BoardClientError as error:
        return record | {"accepted": None}, error
    return record | {"accepted": True}, None


@auth.runs("switch", "service switched", "service", needs="nothing")
async def auth_switch(service: str | None = argument("[SERVICE]", required=False)) -> Mapping[str, Any]:
    """Choose the service that commands use without an address, among those to which this machine is signed in.

    \b
    Examples:
      boardclient auth switch board.example
      boardclient auth switch                 # to the other one of two

    Args:
        service: The address of a service, or its host. Without it, the other one of two.
    """
    from boardclient.credentials._profiles import VARIABLES, changed_profiles

    with changed_profiles() as profiles:
        signed_in = [url for url, profile in profiles.by_url.items() if profile.kept_in]
        others = [url for url in signed_in if url != profiles.current]
        named = others if service is None else [url for url in signed_in if profiles.is_named(url, service)]
        if len(named) != 1:
            what = "which one" if service is None or named else f"there is no sign-in to {service}"
            known = f"signed in to {', '.join(signed_in) or 'none'}"
            raise UsageError(f"{what}: {known}; sign in to another one with: boardclient --base-url URL login")
        profiles.current = named[0]
    if os.environ.get(VARIABLES["base_url"], "").strip():
        note(f"{VARIABLES['base_url']} is set: commands use it in place of this choice", fg="yellow")
    return {"service": named[0]}


@auth.runs("token", None, "token", needs="settings")
async def auth_token(settings: CommandSettings, fields: tuple[str, ...] | None) -> None:
    """Print the access token that commands use, for other programs. It is not checked.

    boardclient run gives it to a program without showing it, and Python has AsyncSession.from_profile().

    Every user of the machine can read the arguments of programs, so the token goes through a pipe:

    \b
    Example:
      boardclient auth token | sed 's/.*/data-urlencode = "token=&"/' |
        curl -sS -G -K - "$BOARDCLIENT_BASE_URL/1/members/me"
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
async def run(settings: CommandSettings, command: tuple[str, ...] = _command) -> None:
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
