"""One session for each event loop of an application, its users and the routes of their sign-in. No framework."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import attrs

from boardclient.errors import ConsentRequired
from boardclient.integrations._http import IncomingRequest, OutgoingResponse, problem, redirect
from boardclient.session import AsyncSession
from boardclient.web import SignIn

MakeSession: TypeAlias = Callable[[], AsyncSession | SignIn | Awaitable[AsyncSession | SignIn]]
"""A function, which may be async, that makes a session, or a sign-in with its session."""

_NOT_OPEN: Final = (
    "no session is open in this event loop: the application's lifespan has not run. With aiohttp, Quart and Litestar, was"
    " boards.install(app) called, or plugins=[boards] given? In tests, use the client as a context manager"
    " (`with TestClient(app)`); where the application is mounted in another one, give that one the lifespan, or wrap it in"
    " boardclient.integrations.asgi.BoardLifespan; at the server, switch lifespan on. As a dependency use boards.app_session."
)
_NO_SIGN_IN: Final = "users do not sign in to this application"


@attrs.define
class _Opened:
    session: AsyncSession
    sign_in: SignIn | None
    times: int = 0
    """How often it was opened and not closed again."""


class BoardSessions:
    """One session with one pool for an application, and a view for each user.

    `make` is called when the application starts, once for each event loop. The session is closed when the application ends.

    A page of another origin, such as another port of the same host, can neither send a form or JSON nor open a websocket: its
    unsafe requests get 403. Programs send no origin.

    Args:
        make: A function without arguments, which may be async, that returns an `AsyncSession`, or a `SignIn`, whose session is
            used, such as `SignIn.from_env`.
        login_path: The path of the route that begins a sign-in, "/login" by default.
        callback_path: The path of the redirect URI, "/callback" by default.
        logout_path: The path of the route (POST) that signs out, "/logout" by default.
        after_logout: Where the browser goes after signing out, "/" by default. `return_to` in the query replaces it. A page that
            needs a sign-in would begin the next one.
        origins: Origins such as "https://admin.example" whose pages may send unsafe requests too. That of the redirect URI
            always may. None switches the check off.
    """

    def __init__(
        self,
        make: MakeSession,
        *,
        login_path: str = "/login",
        callback_path: str = "/callback",
        logout_path: str = "/logout",
        after_logout: str = "/",
        origins: Collection[str] | None = (),
    ) -> None:
        if not callable(make):
            raise TypeError("make must be a function that returns an AsyncSession or a SignIn: each start makes its own")
        if isinstance(origins, str):
            raise TypeError("origins must be a collection of texts, or None")
        self._make = make
        self.login_path: Final[str] = login_path
        self.callback_path: Final[str] = callback_path
        self.logout_path: Final[str] = logout_path
        self.after_logout = after_logout
        self._origins = origins
        self._opened: dict[asyncio.AbstractEventLoop, _Opened] = {}
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    # --- life

    async def open(self) -> None:
        """Make the session, or share the one that this event loop has.

        Raises:
            TypeError: `make` returned neither a session nor a sign-in.
            ValueError: the paths of the sign-in are not those of the routes.
        """
        loop = asyncio.get_running_loop()
        async with self._opening.setdefault(loop, asyncio.Lock()):  # `make` may wait, and be called only once
            if loop not in self._opened:
                made = self._make()
                self._opened[loop] = await self._check(await made if inspect.isawaitable(made) else made)
            self._opened[loop].times += 1

    async def aclose(self) -> None:
        """Close the session when it was closed as often as it was opened."""
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            return
        opened.times -= 1
        if not opened.times:
            # Out of the table before it is closed, so that no request takes a session that is closing.
            del self._opened[loop]
            await opened.session.aclose()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the session open during the block."""
        await self.open()
        try:
            yield
        finally:
            await self.aclose()

    async def _check(self, made: object) -> _Opened:
        if isinstance(made, AsyncSession):
            return _Opened(made, None)
        if not isinstance(made, SignIn):
            raise TypeError(f"make returned {type(made).__name__}, not an AsyncSession or a SignIn")
        for name, path, route in (
            ("login_path", made.login_path, self.login_path),
            ("redirect_uri", made.callback_path, self.callback_path),
        ):
            if not path.endswith(route):  # a mounted application has a prefix
                # Nobody else has the session yet, so nobody else would close it.
                await made.session.aclose()
                raise ValueError(f"the sign-in's {name} leads to {path}, and the route is {route}")
        return _Opened(made.session, made)

    # --- what requests use

    @property
    def session(self) -> AsyncSession:
        """The application's own session.

        Raises:
            RuntimeError: the application's lifespan has ended, or has not run in this event loop.
        """
        return self._current().session

    async def app_session(self) -> AsyncSession:
        """Return the application's own session, as a dependency."""
        return self.session

    @property
    def sign_in(self) -> SignIn:
        """The application's sign-in.

        Raises:
            RuntimeError: the application's lifespan has not run, or `make` makes no sign-in.
        """
        sign_in = self._current().sign_in
        if sign_in is None:
            raise RuntimeError("users can't sign in: make returned an AsyncSession, not a SignIn")
        return sign_in

    @property
    def has_sign_in(self) -> bool:
        """Whether `make` made a sign-in."""
        return self._current().sign_in is not None

    @property
    def missing(self) -> str:
        """What the application has forgotten, in words, "" if nothing."""
        return ""

    async def account_of(self, request: IncomingRequest) -> str:
        """Return the account that is signed in at the browser.

        Raises:
            ConsentRequired: nobody is signed in.
            CredentialError: the token store failed.
        """
        account = await self.sign_in.signed_in_account(request.cookies)
        if account is None:
            words = "nobody is signed in at this browser" + (self.missing and f"; {self.missing}")
            raise ConsentRequired(words, login_url=self.sign_in.login_path)
        return account

    async def session_of(self, request: IncomingRequest) -> AsyncSession:
        """Return a session on the pool for the account that is signed in at the browser.

        Its calls raise `ConsentRequired` too, once the user's token is no longer accepted.

        Raises:
            ConsentRequired: nobody is signed in.
            CredentialError: the token store failed.
        """
        account = await self.account_of(request)
        return self.sign_in.session_for(account)

    async def optional_session_of(self, request: IncomingRequest) -> AsyncSession | None:
        """Return a session for the account that is signed in at the browser, None for a guest.

        Raises:
            CredentialError: the token store failed.
        """
        account = await self.sign_in.signed_in_account(request.cookies)
        return None if account is None else self.sign_in.session_for(account)

    def refusal_of(self, request: IncomingRequest) -> OutgoingResponse | None:
        """Return the 403 for an unsafe request of another origin's page, else None."""
        if self._origins is None:
            return None
        opened, own = self._opened.get(asyncio.get_running_loop()), ""
        if opened is not None and opened.sign_in is not None:
            address = urlsplit(opened.sign_in.redirect_uri)
            # Browsers reach the application where the service sends them back to, whatever proxies stand before it.
            own = f"{address.scheme}://{address.netloc}"
        is_forged = request.is_forged(self._origins, own)
        return problem(request, 403, "a page of another origin sent this request") if is_forged else None

    def _current(self) -> _Opened:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("the session is used in the application's event loop: make the function async") from None
        if loop not in self._opened:
            raise RuntimeError(_NOT_OPEN)
        return self._opened[loop]

    # --- routes, which are 404 if `make` makes no sign-in

    async def log_in(self, request: IncomingRequest) -> OutgoingResponse:
        """Send the browser to the consent page. After the sign-in it goes to `return_to` of the query."""
        if not self.has_sign_in:
            return problem(request, 404, _NO_SIGN_IN)
        begun = self.sign_in.begin(request.return_to(), request.cookies, host=request.headers.get("host"))
        return redirect(begun.location, begun.set_cookies)

    async def call_back(self, request: IncomingRequest) -> OutgoingResponse:
        """Complete the sign-in, and send the browser on to `return_to`.

        Raises:
            SignInError: nobody is signed in.
        """
        if not self.has_sign_in:
            return problem(request, 404, _NO_SIGN_IN)
        if request.method != "GET":  # frameworks route HEAD as well, which would use up the code
            return OutgoingResponse(405, (("Allow", "GET"), ("Content-Length", "0")))
        if request.is_prefetch:  # it would use up the code; after a failure the browser asks again when the user opens it
            return problem(request, 503, "a sign-in is not prefetched")
        done = await self.sign_in.complete(request.query, request.cookies)
        return redirect(done.return_to, done.set_cookies)

    async def log_out(self, request: IncomingRequest) -> OutgoingResponse:
        """Delete the user's token, for all workers and browsers, and send the browser on."""
        if not self.has_sign_in:
            return problem(request, 404, _NO_SIGN_IN)
        account = await self.sign_in.signed_in_account(request.cookies)
        if account is not None:
            await self.sign_in.sign_out(account)
        # The cookies go also from a browser that was signed out elsewhere.
        return redirect(request.return_to(self.after_logout), self.sign_in.sign_out_cookies)
