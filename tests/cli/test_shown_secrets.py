"""What commands print of a service's records holds no credential, even if the service sends one back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from boardclient import AsyncSession, StaticCredentials
from boardclient.testing import BoardService, faults


def test_whoami_prints_no_credential(cli: Callable[..., object], board_service: BoardService, monkeypatch, capsys) -> None:
    """A member record that holds the key, the token or the client's secret is printed with `***` in their places."""
    monkeypatch.setenv("BOARDCLIENT_CLIENT_SECRET", "client-secret-canary")
    record = {
        "id": "m",
        "keys": [board_service.key, f"Bearer {board_service.token}"],
        board_service.token: "client-secret-canary",
    }
    board_service.faults.add(faults.foreign_body(json.dumps(record).encode()), "members.me")
    shown = cli("whoami", "--json")
    assert json.loads(shown.out) == {"id": "m", "keys": ["***", "Bearer ***"], "***": "***"}  # type: ignore[attr-defined]  # -- what the fixture gives


@pytest.mark.parametrize("key", [None, "key-canary-1"])
async def test_a_value_is_passed_on_without_the_credentials(key: str | None) -> None:
    """They are found in texts and names within it, also encoded. What is no text stays as it is."""
    async with AsyncSession(StaticCredentials("token canary/2", key=key), "https://board.example") as session:
        value = {"token canary/2": ["token%20canary%2F2", 7, None, True, {"url": "?key=key-canary-1"}]}
        kept = "?key=key-canary-1" if key is None else "?key=***"
        assert session.redacted(value) == {"***": ["***", 7, None, True, {"url": kept}]}
        assert session.redacted("other-canary", "other-canary") == "***"
        assert value != session.redacted(value)
