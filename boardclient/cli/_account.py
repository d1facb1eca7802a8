"""The commands on credentials and configuration: login, logout, auth status, doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import boardclient
from boardclient.cli._app import Group, json_option
from boardclient.cli._output import local, note, out, show

if TYPE_CHECKING:
    from boardclient.cli._profiles import Settings
    from boardclient.cli._running import Client

commands = Group("account")

_STATUS = ("service", "account", "kept_in", "ends", "accepted")


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
    import sys

    import attrs

    from boardclient.cli import _sign_in
    from boardclient.cli._output import UsageError
    from boardclient.cli._running import without_session

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
    from boardclient.cli._running import without_session

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
    from boardclient.cli._running import with_session

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
    from boardclient.cli import _doctor
    from boardclient.cli._running import reported, run_until_signal

    options = click.get_current_context().find_root().params
    with reported():
        run_until_signal(lambda: _doctor.run(options, fields))
