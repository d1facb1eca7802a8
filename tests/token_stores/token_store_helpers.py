"""What tests of token stores share."""

from __future__ import annotations

import functools
import os
import traceback
from pathlib import Path

import pytest
from virtual_loop import Clock

from boardclient import FileTokenStore, MemoryTokenStore, Token, TokenStore
from boardclient.testing import TokenStoreSuite

SECRET = "s3cr3t-täken"
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes, owners and forks are POSIX's")


class InjectedTime(TokenStoreSuite):
    """The suite without waiting."""

    @pytest.fixture(autouse=True)
    def _take(self, clock: Clock, path: Path) -> None:
        self.clock, self.path = clock, path

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class TestMemoryTokenStore(InjectedTime):
    async def make_store(self) -> TokenStore:
        return MemoryTokenStore(clock=self.clock)


class TestFileTokenStore(InjectedTime):
    async def make_store(self) -> TokenStore:
        return FileTokenStore(self.path, clock=self.clock)


def carries_token(error: BaseException) -> bool:
    """Look for a token, or a step that may hold one, in the frames of an error, this module's left out; a cause has none."""
    cause = error.__cause__
    assert cause is None or cause.__traceback__ is cause.__context__ is None
    own = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not frame.f_globals["__name__"].startswith("test_")]
    return any(isinstance(value, Token | functools.partial) for frame in own for value in frame.f_locals.values())
