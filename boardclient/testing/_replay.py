"""Replay a recording on a loopback port, and record or replay the requests of a test.

Requests are equal if they have the same method, path, query and body. The order of names and the credentials don't count. If a
secret was replaced by `***`, any text matches it.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import difflib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args
from urllib.parse import parse_qsl, urlencode

import attrs
from aiohttp import web
from multidict import CIMultiDict

from boardclient._pipeline._taps import Go, PoolRequest, TransportFailure, TransportResult, close_tap, open_tap
from boardclient.errors import Effect, Phase
from boardclient.testing._http import HttpStage, LoopbackServer, read_body
from boardclient.testing._oauth import Json
from boardclient.testing._recording import (
    DROPPED_HEADERS,
    EXCHANGE_PATH,
    FORM_TYPE,
    OWN,
    SIGNING,
    STARS,
    Recording,
    decoded,
    path_of,
    record,
)
from boardclient.testing._rules import operation_of
from boardclient.testing._service import ServiceEndpoint

if TYPE_CHECKING:
    from boardclient import AsyncSession, CredentialProvider

RecordMode: TypeAlias = Literal["none", "once", "all"]
_NUMBER: Final = "X-Boardclient-Interaction"
"""The header with the number of the entry, which requests of this process carry: `_tap` has chosen it already."""
_UNRECORDED_STATUS: Final = 421
"""Misdirected Request (https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20): it is not retried, and services do not use it."""
_MOST_BYTES: Final = 2**30
_BODILESS: Final = (204, 304)
_COMPARED_LENGTH: Final = 500
_MOST_COMPARED: Final = 200
_SHOWN_LENGTH: Final = 300


@attrs.frozen
class _Response:
    """A recorded response. `left_out` says why its body was not recorded."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    left_out: str = ""


@attrs.frozen(kw_only=True)
class _Failure:
    """Why there is no complete response, in the terms of `TransportError`."""

    phase: Phase = attrs.field(validator=attrs.validators.in_(get_args(Phase)))
    effect: Effect = attrs.field(converter=Effect)
    why: str


@attrs.frozen(kw_only=True)
class _Unanswered:
    """A request that its deadline or its caller cancelled, and how far it had got."""

    stage: Literal["idle", "handed", "connect", "write", "send", "receive"]


@attrs.frozen
class _Asked:
    """What is compared of a request."""

    method: str
    path: str
    fields: Mapping[str, Json]

    @property
    def operation(self) -> str:
        return "token.exchange" if self.path == EXCHANGE_PATH else operation_of(self.method, self.path)[0]

    def text(self, ignored: frozenset[str]) -> str:
        fields = {name: value for name, value in self.fields.items() if name not in ignored}
        shown = json.dumps(fields, sort_keys=True, ensure_ascii=False) if fields else ""
        return f"{self.method} {self.path} {shown}".rstrip()


def _asked(method: str, url: str, body: bytes, content_type: str) -> _Asked:
    path, _, query = path_of(url).partition("?")
    fields: dict[str, Json] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        fields[name] = value if name not in fields else [*cast("list[Json]", fields[name]), value]
    content = decoded(body, content_type)
    if isinstance(content, dict):
        # The values of a form are secret, so only its names are compared.
        fields |= dict.fromkeys(content) if content_type == FORM_TYPE else content
    elif body:
        fields["the body"] = cast("Json", content) if content is not None else body.decode(errors="backslashreplace")
    return _Asked(method, path, fields)


@attrs.frozen
class _Entry:
    """A request of a recording and its outcome."""

    asked: _Asked
    outcome: _Response | _Failure | _Unanswered


def _entries(recording: Recording) -> Iterator[_Entry]:
    for number, entry in enumerate(recording.entries, 1):
        try:
            yield _Entry(_asked_of(entry["request"]), _outcome_of(entry["response"]))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"entry {number} is incomplete or wrong ({type(error).__name__}: {error})") from None


def _asked_of(value: Mapping[str, Any]) -> _Asked:
    posted = value.get("postData") or {}
    kind = str(posted.get("mimeType", "")).partition(";")[0].strip().lower()
    raw = _raw(posted, "_encoding") or urlencode(_pairs(posted.get("params") or ())).encode()
    asked = _asked(str(value["method"]), str(value["url"]), raw, kind)
    return attrs.evolve(asked, fields={**asked.fields, "the body": STARS}) if not raw and posted.get("comment") else asked


def _outcome_of(value: Mapping[str, Any]) -> _Response | _Failure | _Unanswered:
    own = value.get(OWN) or {}
    if "failure" in own:
        return _Failure(**own["failure"])
    if "unanswered" in own:
        return _Unanswered(**own["unanswered"])
    if not value["status"]:  # what browsers write for a request without a response
        return _Failure(phase="receive", effect=Effect.UNKNOWN, why=str(value.get("_error") or "no response"))
    content = value.get("content") or {}
    raw = _raw(content, "encoding")
    left_out = (
        "" if raw or not (content.get("comment") or content.get("size", 0) > 0) else str(content.get("comment") or "its text")
    )
    headers = _pairs(value.get("headers") or ())
    # HTTP/2 has pseudo-headers, such as ":status".
    kept = [(name, one) for name, one in headers if name.lower() not in DROPPED_HEADERS and not name.startswith(":")]
    return _Response(int(value["status"]), tuple(kept), raw, left_out)


def _raw(content: Mapping[str, Any], encoding: str) -> bytes:
    text = content.get("text") or ""
    return base64.b64decode(text, validate=True) if content.get(encoding) == "base64" else text.encode()


def _pairs(fields: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(field["name"]), str(field.get("value", ""))) for field in fields]


class _Playlist:
    """The entries of a recording, each of which is used once; with `repeats`, the last of equal ones any number of times."""

    def __init__(self, entries: Iterable[_Entry], ignored: Iterable[str], *, repeats: bool) -> None:
        self.entries: Final = tuple(entries)
        self._repeats = repeats
        self._used: set[int] = set()
        self._ignored = SIGNING | {*ignored}
        self._texts = [one.asked.text(self._ignored) for one in self.entries]
        self._unused: dict[str, collections.deque[int]] = {}
        for number, text in enumerate(self._texts):
            self._unused.setdefault(text, collections.deque()).append(number)
        self._starred = [text for text in self._unused if STARS in text]
        self._lock = threading.Lock()  # sessions may be in several threads

    def take(self, asked: _Asked) -> int | None:
        """Return the number of the entry for a request, and use it up. None if there is none, or all of them are used."""
        text = asked.text(self._ignored)
        with self._lock:
            for fitting in (text, *(starred for starred in self._starred if _fits(text, starred))):
                if waiting := self._unused.get(fitting):
                    number = waiting[0] if self._repeats and len(waiting) == 1 else waiting.popleft()
                    self._used.add(number)
                    return number
        return None

    def unused(self) -> list[str]:
        """Return the requests that were not made again, except for cancelled ones."""
        with self._lock:
            numbers = sorted(number for waiting in self._unused.values() for number in waiting if number not in self._used)
        left = [number for number in numbers if not isinstance(self.entries[number].outcome, _Unanswered)]
        return [_shown(self._texts[number]) for number in left]

    def explain(self, asked: _Asked) -> str:
        """Say why no entry is left for a request, and name the most similar one."""
        text = asked.text(self._ignored)
        times = sum(text == one or _fits(text, one) for one in self._texts)
        if times:
            return f"{_shown(text)} was recorded {times} times and is asked once more"
        nearest = self._nearest(asked, text)
        if nearest is None:
            return f"{_shown(text)} is not in the recording, nor is anything like it"
        differences = "; ".join(_differences(asked.fields, self.entries[nearest].asked.fields, self._ignored))
        return f"{_shown(text)} is not in the recording; the nearest is {_shown(self._texts[nearest])}" + (
            f", where {differences}" if differences else ""
        )

    def _nearest(self, asked: _Asked, text: str) -> int | None:
        same = [number for number, one in enumerate(self.entries) if one.asked.operation == asked.operation]
        matcher = difflib.SequenceMatcher(b=text[:_COMPARED_LENGTH], autojunk=False)
        ratios: dict[int, float] = {}
        for number in (same or range(len(self._texts)))[:_MOST_COMPARED]:
            matcher.set_seq1(self._texts[number][:_COMPARED_LENGTH])
            ratios[number] = matcher.ratio()
        return max(ratios, key=lambda number: ratios[number], default=None)


def _fits(text: str, starred: str) -> bool:
    """Return True if a text matches a recorded one whose stars stand for any text."""
    first, *others = starred.split(STARS)
    if not others or not text.startswith(first):
        return False
    *middle, last = others
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) >= at


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def _differences(asked: Mapping[str, Json], recorded: Mapping[str, Json], ignored: frozenset[str]) -> Iterator[str]:
    for name in sorted({*asked, *recorded} - ignored):
        if name not in recorded:
            yield f"{name} is absent"
        elif name not in asked or json.dumps(asked[name], sort_keys=True) != json.dumps(recorded[name], sort_keys=True):
            yield f"{name} is {_shown(json.dumps(recorded[name], ensure_ascii=False))}"


def replay(
    recording: str | os.PathLike[str] | Recording,
    *,
    strict: bool = True,
    ignoring: Iterable[str] = (),
    repeats: bool = False,
    port: int = 0,
) -> ReplayService:
    """Serve a recording on a loopback port within a block.

    ```python
    async with replay("calls.har") as service, service.session() as session:
        await session.boards.cards(board_id)
    ```

    Each entry is used once, equal requests in their order. Requests are equal if they have the same method, path, query and body.
    The order of names and the credentials don't count. A request that is not in the recording gets status 421 and a text that
    names the most similar one, and the block ends with an `AssertionError`. Failures are replayed as they were recorded.

    Args:
        recording: A `Recording`, or the path of an HTTP Archive, which may be another tool's.
        strict: Whether the block ends with an `AssertionError` if recorded requests were not made again. True by default.
        ignoring: Further query parameters and fields of the body that don't count, such as "due". None by default.
        repeats: Whether the last of equal requests may be used any number of times. False by default.
        port: The port on 127.0.0.1. 0, the default, means any free port.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not an HTTP Archive.
    """
    if isinstance(recording, Recording):
        name, loaded = "the recording", recording
    else:
        name, loaded = os.fspath(recording), Recording.load(recording)
    try:
        playlist = _Playlist(_entries(loaded), ignoring, repeats=repeats)
    except ValueError as error:
        raise ValueError(f"{name} can't be replayed: {error}") from None
    return ReplayService(name=name, playlist=playlist, strict=strict, port=port)


@attrs.define(kw_only=True, eq=False, repr=False)
class ReplayService(LoopbackServer, ServiceEndpoint):
    """Serves the responses of a recording, whatever the credentials are. `replay` makes one.

    `unrecorded` describes the requests that are not in the recording.
    """

    name: str
    playlist: _Playlist
    strict: bool = True
    key: str = attrs.field(init=False, default="replayed-key")
    token: str = attrs.field(init=False, default="replayed-token")
    client_id: str = attrs.field(init=False, default="replayed-client")
    client_secret: str = attrs.field(init=False, default="replayed-client-secret")
    redirect_uri: str = attrs.field(init=False, default="https://application.example/callback")
    unrecorded: list[str] = attrs.field(init=False, factory=list)
    on_request: Callable[[str, str, int | None, str], object] | None = attrs.field(init=False, default=None)
    """Called for each request with its method, its path, the status (None without a response), and a text that describes a
    request which is not in the recording ("" for any other)."""

    def __repr__(self) -> str:
        return f"<ReplayService of {self.name}>"

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
        number = self.playlist.take(_asked(request.method, request.url, request.body or b"", request.content_type))
        if number is None:
            return await go(request)
        outcome = self._outcome(number)
        if isinstance(outcome, _Failure):
            return TransportFailure(outcome.phase, outcome.effect, outcome.why)
        if isinstance(outcome, _Unanswered):
            request.progress.stage = outcome.stage  # the error of the cancelled call depends on it
            await asyncio.Event().wait()
        return await go(attrs.evolve(request, headers={**request.headers, _NUMBER: str(number)}))

    def _outcome(self, number: int) -> _Response | _Failure | _Unanswered:
        return self.playlist.entries[number].outcome

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
        raw = await read_body(request, _MOST_BYTES)
        asked = _asked(request.method, f"{self.base_url}{request.raw_path}", raw or b"", request.content_type)
        taken = request.headers.get(_NUMBER)
        number = self.playlist.take(asked) if taken is None else int(taken)
        if number is None:
            await self._refuse(stage, self.playlist.explain(asked))
            return
        outcome = self._outcome(number)
        if not isinstance(outcome, _Response):  # the client is in another process, so `_tap` has not replayed it
            await (stage.hang() if isinstance(outcome, _Unanswered) else _reset(stage))
        elif outcome.left_out:
            await self._refuse(stage, f"the response was left out of the recording: {outcome.left_out}")
        else:
            body = b"" if outcome.status in _BODILESS else outcome.body
            await stage.reply(outcome.status, body, CIMultiDict(outcome.headers))

    async def _refuse(self, stage: HttpStage, words: str) -> None:
        self.unrecorded.append(words)
        await stage.reply(
            _UNRECORDED_STATUS, words.encode(errors="backslashreplace"), {"Content-Type": "text/plain; charset=utf-8"}
        )


async def _reset(stage: HttpStage) -> None:
    stage.on_settled()
    stage.abort(reset=True)


@attrs.frozen(eq=False)
class BoardRecording:
    """The recording of one test, which the fixture `board_recording` gives.

    While it is replayed, the environment variables are those of the service that replays it. While it is recorded, they are those
    of the real service.
    """

    path: Path
    """The file."""
    service: ReplayService | None
    """The service that replays the file, None while it is recorded."""

    @property
    def is_replayed(self) -> bool:
        """Whether the file is replayed. Otherwise it is recorded."""
        return self.service is not None

    def session(self, credentials: CredentialProvider | None = None, **options: Any) -> AsyncSession:
        """Return a session that the environment configures. The caller closes it.

        Args:
            credentials: The credentials. By default those of the environment.
            options: The options of `AsyncSession`.
        """
        from boardclient import AsyncSession

        return AsyncSession.from_env(credentials, **options)


class NotRecordedError(Exception):
    """There is no file to replay, and none may be recorded."""


@contextmanager
def recording_of_test(
    path: Path, mode: RecordMode, options: Mapping[str, Any], has_failed: Callable[[], bool]
) -> Iterator[BoardRecording]:
    """Record or replay the file of a test.

    Args:
        path: The file.
        mode: What to do. See the documentation.
        options: Those of `record` and `replay`.
        has_failed: Returns True if the test has failed. Its file is not written then.

    Raises:
        NotRecordedError: the file does not exist, and the mode is "none".
        AssertionError: the requests of the test are not those in the file.
        TypeError: there is no such option.
    """
    of_record = {name: options[name] for name in ("secrets", "max_body_bytes") if name in options}
    of_replay = {name: options[name] for name in ("strict", "ignoring", "repeats") if name in options}
    if unknown := set(options) - {*of_record, *of_replay}:
        raise TypeError(f"board_recording does not take {', '.join(sorted(unknown))}")
    if mode == "all" or (mode == "once" and not path.exists()):
        with record(**of_record) as recorder:
            yield BoardRecording(path, None)
        if recorder.recording.entries and not has_failed():
            path.parent.mkdir(parents=True, exist_ok=True)
            recorder.recording.save(path)
        return
    if not path.exists():
        raise NotRecordedError(f"{path} does not exist: run the test with --board-record=once to record it")
    with replay(path, **of_replay) as service, _environment(service.environment):
        yield BoardRecording(path, service)
        service.strict = service.strict and not has_failed()  # a failed test may have ended before its last requests


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
