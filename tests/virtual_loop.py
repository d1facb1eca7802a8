"""The time of tests: a loop whose time passes once all tasks wait, and a clock for tests with real sockets."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class Clock:
    """A clock that stops until `advance`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and others run."""
        self.advance(seconds)
        for _ in range(3):
            await asyncio.sleep(0)


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]  # -- which class it is depends on the platform
    """Let the time pass that a loop would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits, and for nothing that will come"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes without waiting."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def virtually(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test that runs on a loop whose time passes only by waiting."""

    @functools.wraps(body)
    def test(*args: Any, **options: Any) -> None:
        async def run() -> None:
            await body(*args, **options)

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(run())

    return test
