"""Lets the user of a terminal sign in with a browser, by the redirect to a loopback address (RFC 8252).

The browser comes back to this machine with a code. Where it runs on another machine, the user pastes the code or the address
that the browser was sent to.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import html
import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qsl, urlsplit

import attrs
from aiohttp import web

import boardclient
from boardclient.cli._output import CommandError, UsageError, note
from boardclient.cli._running import CommandSettings
from boardclient.credentials import is_issued_by

_ADDRESSES = {"127.0.0.1": ["127.0.0.1"], "::1": ["::1"], "localhost": ["::1", "127.0.0.1"]}
"""Where a browser goes that is sent to a name of this machine."""
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_SECONDS = 600.0
_ALONE_SECONDS = 15.0
_WAYS = ("no browser that could be opened", "no input to paste a code into")
_PAGE = "<!doctype html><meta charset=utf-8><title>boardclient</title><body style='font:1.2em system-ui;margin:3em'><p>{}"


async def sign_in(settings: CommandSettings, session: boardclient.AsyncSession) -> boardclient.Token:
    """Let the user sign in, and return the new token. The settings name the client and its addresses.

    Raises:
        CommandError: the user refused.
        UsageError: the address for the redirect can't be listened on.
        CredentialError: the service gave no token.
    """
    page = settings.get("authorize_url") or ""
    if (registered := settings.get("redirect_uri")) is not None:
        session.exchange.check_url(registered.partition("?")[0], "redirect_uri")
    answer = _Answer(issuers=(page, settings.get("auth_url") or ""))
    verifier = secrets.token_urlsafe(32)
    async with _listening(settings.get("redirect_uri"), answer) as redirect_uri:
        client = settings.oauth(redirect_uri=redirect_uri)
        address = client.consent_address(page, answer.state, code_verifier=verifier)
        note(f"Sign in at: {address}")
        is_local = urlsplit(redirect_uri).hostname in _ADDRESSES
        paste = "The browser comes back by itself. If it can't, paste" if is_local else "Paste"
        note(f"{paste} the code, or the address at which it has ended, here.")
        answer.end_after(_SECONDS)
        # Not in a thread that the loop waits for: a browser in the terminal runs until the user ends it.
        threading.Thread(target=_open_browser, args=(address, answer), daemon=True).start()
        with _reading_pasted(answer):
            code = await answer.code
    return await client.request_token(code, session, code_verifier=verifier)


def _open_browser(address: str, answer: _Answer) -> None:
    if not webbrowser.open(address):
        with contextlib.suppress(RuntimeError):  # the loop has ended: the user has come back meanwhile
            answer.code.get_loop().call_soon_threadsafe(answer.lack, _WAYS[0])


@attrs.define(eq=False)
class _Answer:
    """The code of one sign-in, from the browser or from the user, whichever comes first. Created in an event loop."""

    issuers: tuple[str, ...]
    """Addresses of the service, of which a redirect that names its issuer must come."""
    state: str = attrs.field(factory=lambda: secrets.token_urlsafe(16), repr=False)
    code: asyncio.Future[str] = attrs.field(factory=lambda: asyncio.get_running_loop().create_future(), repr=False)
    _lacks: set[str] = attrs.field(factory=set)

    def end_after(self, seconds: float) -> None:
        """Give up after so many seconds."""
        error = CommandError(f"not signed in: nobody came back within {seconds:.0f} s; or use: boardclient login --with-token")
        self.code.get_loop().call_later(seconds, self._finish, error)

    def lack(self, what: str) -> None:
        """Note what this machine lacks for the sign-in. Without a browser and an input, few users can answer."""
        self._lacks.add(what)
        if len(self._lacks) == len(_WAYS) and not self.code.done():
            note(f"There is {' and '.join(_WAYS)} here: this ends in {_ALONE_SECONDS:.0f} s unless the address above is opened.")
            self.end_after(_ALONE_SECONDS)

    def redirect(self, query: str) -> str:
        """Take the query of a redirect. Return what to tell the user."""
        fields = dict(parse_qsl(query))
        if not hmac.compare_digest(fields.get("state", "").encode(), self.state.encode()):
            return "This is not the answer to this sign-in: its state is another one."
        if not is_issued_by(fields.get("iss"), *self.issuers):
            return "This is not the answer to this sign-in: it comes from another service."
        if "code" in fields:
            self._finish(fields["code"])
            return "You are signed in. You can close this page."
        refusal = fields.get("error_description") or fields.get("error") or "no code came back"
        self._finish(CommandError(f"not signed in: {refusal}"))
        return f"The sign-in failed: {refusal}. You can close this page."

    def paste(self, text: str) -> None:
        """Take what the user has pasted: a code, or an address with one."""
        if "?" in text or "state=" in text:
            said = self.redirect(text.partition("?")[2] or text)
            if not self.code.done():
                note(said)
        else:
            self._finish(text)

    def _finish(self, result: str | CommandError) -> None:
        """Take a code or a refusal, unless there is one."""
        with contextlib.suppress(asyncio.InvalidStateError):
            self.code.set_result(result) if isinstance(result, str) else self.code.set_exception(result)


@contextlib.asynccontextmanager
async def _listening(redirect_uri: str | None, answer: _Answer) -> AsyncIterator[str]:
    """Wait for the browser at the redirect address, by default at any free port. If it is of another host, only say it."""
    wanted = urlsplit(redirect_uri or "http://127.0.0.1:0/callback")
    if wanted.hostname not in _ADDRESSES or wanted.scheme != "http":
        yield redirect_uri or ""
        return

    async def come_back(request: web.Request) -> web.Response:
        return web.Response(text=_PAGE.format(html.escape(answer.redirect(request.query_string))), content_type="text/html")

    pages = web.Application()
    pages.router.add_get(wanted.path or "/", come_back, allow_head=False)  # a scanner's HEAD is no user who comes back
    runner = web.AppRunner(pages, access_log=None)  # the address holds the code
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(runner.cleanup)
        await runner.setup()
        # On all addresses of the name: a browser tries one after another, and another program may listen at the one that is left.
        for address in _ADDRESSES[wanted.hostname]:
            try:
                await web.TCPSite(runner, address, 80 if wanted.port is None else wanted.port).start()
            except OSError as error:
                if error.errno in _NO_SUCH_ADDRESS and len(_ADDRESSES[wanted.hostname]) > 1:
                    continue  # a machine without IPv6, where no program listens there
                why = os.strerror(error.errno or 0)
                advice = "end what listens there, or set BOARDCLIENT_REDIRECT_URI to another registered address"
                raise UsageError(f"can't listen at {redirect_uri} ({address}): {why}; {advice}") from None
        yield redirect_uri or f"http://127.0.0.1:{runner.addresses[0][1]}/callback"


@contextlib.contextmanager
def _reading_pasted(answer: _Answer) -> Iterator[None]:
    """Take what the user pastes. Nothing that is typed after the block is read."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        text = os.read(descriptor, 65536).decode(errors="replace")
        if not text:
            loop.remove_reader(descriptor)
            answer.lack(_WAYS[1])
        for line in filter(None, map(str.strip, text.splitlines())):
            answer.paste(line)

    with contextlib.ExitStack() as opened:
        try:
            descriptor = sys.stdin.fileno()
            loop.add_reader(descriptor, read)
            opened.callback(loop.remove_reader, descriptor)
        except (AttributeError, OSError, NotImplementedError):  # no standard input, or one without waiting
            answer.lack(_WAYS[1])
        yield
