"""Pages of other origins: they send no form and no JSON, open no websocket, and read what anyone may read."""

from __future__ import annotations

import pytest
from web_apps import HOST, MakeSignIn, Running, asynchronous_client, starlette_app

from boardclient.integrations.starlette import StarletteBoards
from boardclient.testing import BoardService

PROGRAM = {"Host": "app.example:8000"}
OWN = {**PROGRAM, "Origin": "https://app.example:8000"}
OF_THE_REDIRECT = {**PROGRAM, "Origin": HOST}
ADMIN = {**PROGRAM, "Origin": "https://admin.example", "Sec-Fetch-Site": "cross-site"}
PORT = {**PROGRAM, "Origin": "https://app.example:9000"}
SCHEME = {"Host": "app.example", "Origin": "http://app.example"}
SAME_SITE = {**OWN, "Sec-Fetch-Site": "same-site"}
NULL = {**PROGRAM, "Origin": "null"}


async def test_a_page_of_another_origin_sends_nothing_unsafe(
    consenting: BoardService, running: Running, make: MakeSignIn
) -> None:
    """Even of another port or scheme of the host it can send no form and read no websocket. Programs and allowed pages can."""
    async with running(make, origins=["https://admin.example"]) as send:
        for headers in (PROGRAM, OWN, OF_THE_REDIRECT, ADMIN):
            assert (await send("POST", f"{HOST}/me", headers)).status == 401
            assert send.connect is None or await send.connect(headers)
        for headers in (PORT, SCHEME, SAME_SITE, NULL):
            refused = await send("POST", f"{HOST}/me", headers)
            assert (refused.status, refused.header("Content-Type")) == (403, "application/problem+json")
            assert send.connect is None or not await send.connect(headers)
        assert (await send("GET", f"{HOST}/me", PORT)).status == 401


async def test_the_check_can_be_switched_off(consenting: BoardService, make: MakeSignIn) -> None:
    """With `origins=None` an application checks origins itself."""
    async with asynchronous_client(starlette_app(make, origins=None)) as send:
        assert (await send("POST", f"{HOST}/me", PORT)).status == 401
    with pytest.raises(TypeError, match="origins must be a collection"):
        StarletteBoards(make, origins="https://admin.example")
