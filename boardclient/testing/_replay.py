"""A service that replays a recording on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final

import attrs
from aiohttp import web
from multidict import CIMultiDict

from boardclient._pipeline._taps import Go, PoolRequest, TransportFailure, TransportResult, close_tap, open_tap
from boardclient.testing._endpoint import ServiceEndpoint
from boardclient.testing._loopback import LoopbackServer
from boardclient.testing._parsing import path_of, request_of
from boardclient.testing._playlist import Playlist
from boardclient.testing._recording import MultiFields, RecordedFailure, RecordedOutcome, RecordedResponse, Unanswered
from boardclient.testing._rules import AUTH_PREFIX
from boardclient.testing._stage import HttpStage, read_body

_NUMBER: Final = "X-Boardclient-Interaction"
"""The header with the number of the interaction, which requests of this process carry: `_tap` has chosen it already."""
_UNRECORDED_STATUS: Final = 421
"""Misdirected Request (https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20): it is not retried, and services do not use it."""
_MOST_BYTES: Final = 2**30
_BODILESS: Final = (204, 304)


@attrs.define(kw_only=True, eq=False, repr=False)
class ReplayService(LoopbackServer, ServiceEndpoint):
    """Serves the responses of a recording, with any credentials. `replay` makes one.

    `unrecorded` describes the requests that are not in the recording.
    """

    name: str
    playlist: Playlist
    strict: bool = True
    unrecorded: list[str] = attrs.field(init=False, factory=list)
    on_request: Callable[[str, str, int | None, str], object] | None = attrs.field(init=False, default=None)
    """Called for each request with its method, its path, the status (None without a response), and a text that describes a
    request which is not in the recording ("" for any other)."""

    def __repr__(self) -> str:
        return f"<ReplayService of {self.name}>"

    @property
    def auth_url(self) -> str:
        """The address of the token exchange."""
        return self.base_url + AUTH_PREFIX

    @property
    def key(self) -> str:
        """An API key; any is accepted."""
        return "replayed-key"

    @property
    def token(self) -> str:
        """An access token; any is accepted."""
        return "replayed-token"

    @property
    def client_id(self) -> str:
        """A client identifier; any is accepted."""
        return "replayed-client"

    @property
    def client_secret(self) -> str:
        """A client secret; any is accepted."""
        return "replayed-client-secret"

    @property
    def redirect_uri(self) -> str:
        """A redirect URI; any is accepted."""
        return "https://application.example/callback"

    def new_code(self) -> str:
        """Return an authorization code; any is accepted."""
        return "replayed-code"

    def assert_all_used(self) -> None:
        """Check that each recorded request was made again, except for cancelled ones.

        Raises:
            AssertionError: some were not. The message names them.
        """
        __tracebackhide__ = True
        unused = self.playlist.unused()
        if unused:
            raise AssertionError(f"{len(unused)} recorded requests of {self.name} were not made: {'; '.join(unused)}")

    async def start(self) -> None:
        """Start listening, and intercept the requests of this process.

        Raises:
            RuntimeError: the service is already running.
            OSError: the port is in use.
        """
        await LoopbackServer.start(self)
        open_tap(self._tap)

    async def stop(self) -> None:
        """Close the listener and all connections at once. Calling it again does nothing."""
        if self._server is not None:
            close_tap(self._tap)
        await LoopbackServer.stop(self)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        __tracebackhide__ = True
        await self.stop()
        self._check(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        __tracebackhide__ = True
        LoopbackServer.__exit__(self, kind, error, where)
        self._check(error)

    def _check(self, error: BaseException | None) -> None:
        __tracebackhide__ = True
        mismatch = f"{self.name} does not fit: {'; '.join(self.unrecorded)}" if self.unrecorded else ""
        if error is not None:
            if mismatch:
                error.add_note(mismatch)
        elif mismatch:
            raise AssertionError(mismatch)
        elif self.strict:
            self.assert_all_used()

    async def _tap(self, request: PoolRequest, go: Go) -> TransportResult:
        """Replay failures and cancellations. The server can't: a listening port refuses no connection."""
        if not request.url.startswith(f"{self.base_url}/"):
            return await go(request)
        number = self.playlist.take(request_of(request.method, path_of(request.url), request.body, request.content_type))
        if number is None:
            return await go(request)
        outcome = self._outcome(number)
        if isinstance(outcome, RecordedFailure):
            return TransportFailure(outcome.phase, outcome.effect, outcome.why)
        if isinstance(outcome, Unanswered):
            request.progress.stage = outcome.stage  # the error of the cancelled call depends on it
            await asyncio.Event().wait()
        return await go(attrs.evolve(request, headers={**request.headers, _NUMBER: str(number)}))

    def _outcome(self, number: int) -> RecordedOutcome:
        return self.playlist.interactions[number].outcome

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        stage = HttpStage(request, asyncio.sleep)
        stage.on_status = partial(self._note, request)
        stage.on_settled = partial(self._note, request, None)
        with contextlib.suppress(ConnectionError):
            await self._play(request, stage)
        return stage.response

    def _note(self, request: web.BaseRequest, status: int | None) -> None:
        if self.on_request is not None:
            words = self.unrecorded[-1] if status == _UNRECORDED_STATUS and self.unrecorded else ""
            self.on_request(request.method, request.path, status, words)

    async def _play(self, request: web.BaseRequest, stage: HttpStage) -> None:
        asked = request_of(
            request.method,
            path_of(f"{self.base_url}{request.raw_path}"),
            await read_body(request, _MOST_BYTES),
            request.content_type,
        )
        taken = request.headers.get(_NUMBER)
        number = self.playlist.take(asked) if taken is None else int(taken)
        if number is None:
            await self._refuse(stage, self.playlist.explain(asked))
            return
        outcome = self._outcome(number)
        if not isinstance(outcome, RecordedResponse):  # the client is in another process, so `_tap` has not replayed it
            await (stage.hang() if isinstance(outcome, Unanswered) else _reset(stage))
        elif outcome.body is not None and outcome.body.kind == "left_out":
            await self._refuse(stage, f"the response was left out of the recording: {outcome.body.value}")
        else:
            body = b"" if outcome.body is None or outcome.status in _BODILESS else outcome.body.encode()
            await stage.reply(outcome.status, body, _multi(outcome.headers))

    async def _refuse(self, stage: HttpStage, words: str) -> None:
        self.unrecorded.append(words)
        await stage.reply(_UNRECORDED_STATUS, words.encode(), {"Content-Type": "text/plain; charset=utf-8"})


async def _reset(stage: HttpStage) -> None:
    stage.on_settled()
    stage.abort(reset=True)


def _multi(headers: MultiFields) -> CIMultiDict[str]:
    return CIMultiDict((name, one) for name, value in headers.items() for one in (value if isinstance(value, list) else [value]))
