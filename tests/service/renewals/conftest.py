"""The fixtures of these tests."""

from __future__ import annotations

import time

import pytest
from renewal_helpers import Consent
from virtual_loop import Clock

from boardclient.credentials import _renewal
from boardclient.testing import BoardService


@pytest.fixture
def consent(service: BoardService) -> Consent:
    return Consent(service)


@pytest.fixture
def clock() -> Clock:
    return Clock(time.monotonic() // 1 + 1000.0)


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiting providers check the store again soon."""
    monkeypatch.setattr(_renewal, "_POLL_SECONDS", (0.001, 0.002))
