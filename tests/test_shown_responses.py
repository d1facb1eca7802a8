"""What instruments that wrap `ClientSession` see of responses."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from boardclient import ApiError, TransportError
from boardclient.testing import BoardService, faults

SECRET = "s3cret-of-the-client"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, bytes]]:
    """Wrap the requests of aiohttp, and give the header X-Copy and the body of each response."""
    noted: list[tuple[str | None, bytes]] = []

    async def request(self: Any, *args: Any, request: Any = aiohttp.ClientSession._request, **options: Any) -> Any:
        response = await request(self, *args, **options)
        noted.append((response.headers.get("X-Copy"), await response.read()))
        return response

    monkeypatch.setattr(aiohttp.ClientSession, "_request", request)
    return noted


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            b'{"access_token": "t0", "expires_in": 60, "more": [{"t": "t1"}, ""]}',
            b'{"access_token": "***", "expires_in": 60, "more": [{"t": "***"}, ""]}',
        ),
        (b"access_token=t0", b"null"),
        (b"\xff", b"null"),
        (b'"t0"', b'"***"'),
    ],
)
async def test_a_token_is_not_shown(
    service: BoardService, seen: list[tuple[str | None, bytes]], body: bytes, shown: bytes
) -> None:
    """Of the response to a token exchange names and numbers are left, and the application gets all of it."""
    service.faults.add(faults.status(200, {"X-Copy": f"bearer {SECRET}"}, body), "token.exchange")
    async with service.session() as session:
        response = await session.exchange.post_form(f"{service.auth_url}/1/OAuthGetAccessToken", {"client_secret": SECRET})
    assert (response.headers["X-Copy"], response.body) == (f"bearer {SECRET}", body)
    assert seen == [("bearer ***", shown)]


@pytest.mark.parametrize("json", [["a list"], {"name": "a field"}])
async def test_credentials_of_a_request_are_not_shown(
    service: BoardService, seen: list[tuple[str | None, bytes]], json: Any
) -> None:
    """Credentials in a query or in a JSON body are redacted in what the service repeats of them."""
    service.faults.add(faults.status(403, {"X-Copy": service.token}, f"no {service.key} here".encode()))
    async with service.session(retry=None) as session:
        with pytest.raises(ApiError):
            await session.request("POST", "/1/things", json=json)
    assert seen == [("***", b"no *** here")]


@pytest.mark.parametrize("fault", [faults.truncated(), faults.foreign_body(b"x" * 2**20)])
async def test_a_response_that_can_not_be_used_is_not_shown(
    service: BoardService, seen: list[tuple[str | None, bytes]], fault: faults.Fault
) -> None:
    """What wraps the request gets no part of a response that breaks off or is too large."""
    service.faults.add(fault)
    async with service.session(retry=None, max_answer_bytes=2**16) as session:
        with pytest.raises(TransportError):
            await session.members.me()
    assert seen == []
