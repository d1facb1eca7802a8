"""Every test over real sockets runs on both ways of the exchange."""

from __future__ import annotations

import pytest

from boardclient._transport import Pool, _direct


@pytest.fixture(autouse=True, params=["direct", "public"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the way that the requests of the test's own process go; the direct one also on an aiohttp that is not known yet."""
    monkeypatch.setattr(_direct, "_IS_KNOWN", True)
    monkeypatch.setattr(Pool, "_may_be_direct", request.param == "direct")
    return str(request.param)
