"""Tests over real sockets run on both ways of the exchange, but for those that are about credentials alone."""

from __future__ import annotations

import pytest

from boardclient._transport import _direct
from boardclient._transport._pool import Pool


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both ways, or on the one that it gets by itself."""
    is_about_credentials = "renewal" in metafunc.module.__name__
    if "way" in metafunc.fixturenames and "way" not in _ways_of(metafunc):
        metafunc.parametrize("way", ["direct"] if is_about_credentials else ["direct", "public"], indirect=True)


def _ways_of(metafunc: pytest.Metafunc) -> set[str]:
    """Return what the test itself chooses."""
    return {name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the way that the requests of the test's own process go; the direct one also on an aiohttp that is not known yet."""
    monkeypatch.setattr(_direct, "_IS_KNOWN", True)
    monkeypatch.setattr(Pool, "_may_be_direct", request.param == "direct")
    return str(request.param)
