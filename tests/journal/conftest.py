"""The fixtures of the tests of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the place of a journal."""
    return tmp_path / "cards.journal"
