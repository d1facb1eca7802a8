"""Fixtures that the tests of this folder use."""

import pytest
from ledger_places import ledger as ledger
from ledger_places import pooler as pooler
from ledger_places import postgresql as postgresql

from boardclient.distributed import _leases


@pytest.fixture(autouse=True)
def leases_may_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lease be as short as a test wants it."""
    monkeypatch.setattr(_leases, "SHORTEST_SECONDS", 0.0)
