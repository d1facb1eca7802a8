"""Lets the user of a terminal sign in with a browser, by the redirect to a loopback address (RFC 8252).

The browser comes back to this machine with a code. Where it runs on another machine, the user pastes the code or the address
that the browser was sent to.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import html
import os
import secrets
import select
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import attrs

import boardclient
from boardclient.cli._output import CommandError, UsageError, note
from boardclient.cli._profiles import Settings

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOOK_SECONDS = 0.2
"""How often it is checked whether the browser has brought the code, so that nothing typed later is read."""
_PAGE = "<!doctype html><meta charset=utf-8><title>boardclient</title><body style='font:1.2em system-ui;margin:3em'><p>{}"


def can_ask(settings: Settings) -> bool:
    """Return True if the user can be asked to sign in: they sit at a terminal, and the page is known."""
    return settings.authorize_url is not None and sys.stdin.isatty() and sys.stderr.isatty()


async def sign_in(
    settings: Settings, session: boardclient.AsyncSession, *, scope: str | None = None, browser: bool = True
) -> boardclient.Token:
    """Let the user sign in, and return the new token. The settings name the client and its addresses.

    Raises:
        CommandError: the user refused.
        UsageError: the address for the redirect can't be listened on.
        CredentialError: the service gave no token.
    """
    answer = _Answer()
    verifier = secrets.token_urlsafe(32)
    with _listening(settings.redirect_uri, answer) as redirect_uri:
        address = _address(settings, redirect_uri, answer.state, verifier, scope)
        note(f"Sign in at: {address}")
        note("The browser comes back by itself. If it can't, paste the code, or the address at which it has ended, here.")
        for work, given in [(webbrowser.open, address)] * browser + [(_read_pasted, answer)]:
            threading.Thread(target=work, args=(given,), daemon=True).start()
        code = await answer.code
    client = attrs.evolve(settings, redirect_uri=redirect_uri).oauth()
    assert client is not None  # noqa: S101 -- the caller has checked that the client is known
    return await client.request_token(code, session, code_verifier=verifier)


@attrs.define(eq=False)
class _Answer:
    """The code of one sign-in, from the browser or from the user, whichever comes first. Created in an event loop."""

    state: str = attrs.field(factory=lambda: secrets.token_urlsafe(16), repr=False)
    code: asyncio.Future[str] = attrs.field(factory=lambda: asyncio.get_running_loop().create_future(), repr=False)

    def read(self, query: str) -> tuple[str, Callable[[], None]]:
        """Read the query of a redirect. Return what to tell the user, and what to call after that, in any thread."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        if not hmac.compare_digest(fields.get("state", "").encode(), self.state.encode()):
            return "This is not the answer to this sign-in: its state is another one.", lambda: None
        if "code" in fields:
            return "You are signed in. You can close this page.", partial(self.take, fields["code"])
        refusal = fields.get("error_description") or fields.get("error") or "no code came back"
        return f"The sign-in failed: {refusal}. You can close this page.", partial(
            self.take, CommandError(f"not signed in: {refusal}")
        )

    def paste(self, text: str) -> None:
        """Take what the user has pasted, in any thread."""
        if "?" in text or "state=" in text:
            words, then = self.read(text.partition("?")[2] or text)
            note(words)
            then()
        else:
            self.take(text)

    def take(self, result: str | CommandError) -> None:
        """Take a code, or why there is none, in any thread."""
        self.code.get_loop().call_soon_threadsafe(self._resolve, result)

    def _resolve(self, result: str | CommandError) -> None:
        if self.code.done():
            return
        if isinstance(result, CommandError):
            self.code.set_exception(result)
        else:
            self.code.set_result(result)


def _address(settings: Settings, redirect_uri: str, state: str, verifier: str, scope: str | None) -> str:
    """Return the address of the consent page (RFC 6749 4.1.1), with a code challenge (RFC 7636)."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": settings.client_id or "",
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        **({} if scope is None else {"scope": scope}),
    }
    page = settings.authorize_url or ""
    return f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(query, quote_via=quote)}"


@contextlib.contextmanager
def _listening(redirect_uri: str | None, answer: _Answer) -> Iterator[str]:
    """Wait for the browser at the redirect address, by default at any free port. If it is of another host, only say it."""
    wanted = urlsplit(redirect_uri or "http://127.0.0.1:0/callback")
    if wanted.hostname not in _LOOPBACK or wanted.scheme != "http":
        yield redirect_uri or ""
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Take the code out of the redirect."""
            asked = urlsplit(self.path)
            is_known = asked.path == (wanted.path or "/")
            words, then = answer.read(asked.query) if is_known else ("There is nothing here.", lambda: None)
            body = _PAGE.format(html.escape(words)).encode()
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            then()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that http.server uses
            """Log nothing: the address holds the code."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", wanted.port or 0), Handler)
    except OSError as error:
        raise UsageError(
            f"can't listen at {redirect_uri}: {error.strerror}; set BOARDCLIENT_REDIRECT_URI to another one"
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield redirect_uri or f"http://127.0.0.1:{server.server_port}/callback"
    finally:
        server.shutdown()
        server.server_close()


def _read_pasted(answer: _Answer) -> None:
    """Take what the user pastes until there is a code: an address with a code, or the code alone."""
    with contextlib.suppress(AttributeError, OSError):  # there is no standard input, or none that can be waited for
        # Not by sys.stdin: at its end the process would wait for a thread that reads from it.
        descriptor = sys.stdin.fileno()
        while not answer.code.done():
            if not select.select([descriptor], [], [], _LOOK_SECONDS)[0]:
                continue
            if not (read := os.read(descriptor, 65536)):
                return
            for text in filter(None, map(str.strip, read.decode(errors="replace").splitlines())):
                answer.paste(text)
