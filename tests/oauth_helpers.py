"""What tests of OAuth credentials share: fake sessions and applications, on a loop whose time passes while all wait."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest
from virtual_loop import VirtualLoop

from boardclient import (
    AuthorizationRequest,
    CredentialError,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    SessionClosedError,
    Token,
    TransportError,
)
from boardclient.errors import Effect

SECRETS = ["canary-secret7", "canary-id7", "canary-redirect7", "canary-key7"]
OPTIONS: dict[str, Any] = {
    "client_id": "canary-id7",
    "client_secret": "canary-secret7",
    "redirect_uri": "https://app.example/canary-redirect7",
    "auth_url": "https://auth.example/root",
}


def virtual(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test that runs on a virtual loop, where every task must have ended in the end and nothing was left unseen."""

    @functools.wraps(body)
    def test(*args: Any, **options: Any) -> None:
        problems: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: problems.append(context))
            await body(*args, **options)
            await asyncio.sleep(0.001)  # of the virtual time: all that is ready has run by then
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(watched())
        assert problems == []

    return test


def token_response(value: str = "t1", **more: object) -> Response:
    return Response(200, {}, json.dumps({"access_token": value, **more}).encode())


def lost(effect: Effect = Effect.UNKNOWN) -> TransportError:
    return TransportError("no answer", "receive", "POST", effect)


class FakeSession:
    """What a provider sees of a session; `answers` are given to one form after another."""

    def __init__(self, *answers: object, timeout: float | None = 30.0, refusal: str = "") -> None:
        self.answers = list(answers)
        self.timeout = timeout
        self.refusal = refusal
        self.forms: list[tuple[str, dict[str, str], float | None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_closed = False

    @property
    def exchange(self) -> FakeSession:
        return self

    def check_url(self, url: str, name: str) -> str:
        if self.refusal:
            raise ValueError(self.refusal.format(name=name))
        return url

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self.is_closed:
            work.close()
            raise SessionClosedError("the session is closed")
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        self.forms.append((url, dict(fields), timeout))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Response) else await answer  # type: ignore[no-any-return, misc]  # -- whatever a test gives

    def close(self) -> None:
        self.is_closed = True
        for task in self.tasks:
            task.cancel()


class Application:
    """The callback: `codes` are what it does one time after another; then it gives new codes."""

    def __init__(self, *codes: object) -> None:
        self.codes = list(codes)
        self.requests: list[AuthorizationRequest] = []

    async def __call__(self, request: AuthorizationRequest) -> str:
        self.requests.append(request)
        code = self.codes.pop(0) if self.codes else f"code {len(self.requests)}"
        if isinstance(code, BaseException):
            raise code
        if callable(code):
            code = await code()
        return code  # type: ignore[return-value]  # -- whatever a test gives


def provider_of(authorize: Any = ..., **options: Any) -> OAuthCredentials:
    """Make a provider whose clock is the running loop's."""
    clock = asyncio.get_running_loop().time
    options.setdefault("store", MemoryTokenStore(clock=clock))
    return OAuthCredentials(
        **{**OPTIONS, "authorize": Application() if authorize is ... else authorize, "clock": clock, **options}
    )


async def error_of(awaitable: Awaitable[object]) -> CredentialError:
    with pytest.raises(CredentialError) as caught:
        await awaitable
    return caught.value


def waiting_provider(**options: Any) -> OAuthCredentials:
    """Make a provider whose users sign in elsewhere, on the running loop's clock."""
    return provider_of(**{"authorize": None, **options})


class Scripted(MemoryTokenStore):
    """A store one of whose methods does what the test says, in place of its step or after it."""

    def __init__(self, method: str, step: Callable[[], Any], *, is_after: bool = False) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.calls = 0
        original = getattr(self, method)

        async def scripted(*arguments: Any, **at: Any) -> Any:
            self.calls += 1
            if is_after:
                await original(*arguments, **at)
            return await step()

        setattr(self, method, scripted)


def raising(error: BaseException) -> Callable[[], Any]:
    """Return a step that raises the error."""

    async def step() -> None:
        raise error

    return step


async def token_in(store: Any, account: str) -> Token | None:
    """Return the token of an account, whatever its generation."""
    stored = await store.read(account)
    return None if stored is None else stored.token
