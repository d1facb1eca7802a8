"""The fixtures of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_loop import Clock

from boardclient import FileTokenStore, MemoryTokenStore, TokenStore


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "tokens.db"


@pytest.fixture
def file_store(path: Path, clock: Clock) -> FileTokenStore:
    return FileTokenStore(path, clock=clock)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, clock: Clock) -> TokenStore:
    if request.param == "memory":
        return MemoryTokenStore(clock=clock)
    chosen: FileTokenStore = request.getfixturevalue("file_store")
    return chosen
