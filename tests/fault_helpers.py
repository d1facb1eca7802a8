"""Faults of the embedded service that tests of several kinds share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from boardclient.testing.faults import Stage


class Held:
    """A fault: the response is made and sent once the test calls `open`, from whatever thread."""

    def __init__(self) -> None:
        self._opened: Future[None] = Future()

    def open(self) -> None:
        """Let the response go."""
        self._opened.set_result(None)

    async def play(self, stage: Stage) -> None:
        """Wait, then answer."""
        await asyncio.shield(asyncio.wrap_future(self._opened))
        await stage.reply_answer()


class Meanwhile:
    """A fault: something happens before a request is carried out, or after its response was sent."""

    def __init__(self, act: Callable[[], object], *, is_after: bool = False) -> None:
        self._act, self._is_after = act, is_after

    async def play(self, stage: Stage) -> None:
        """Act and answer, in this order or the other."""
        if not self._is_after:
            self._act()
        await stage.reply_answer()
        if self._is_after:
            self._act()
