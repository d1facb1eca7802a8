"""What tools of agents take: nothing is converted, guessed or ignored, and what is wrong is named."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from boardclient.integrations.mcp import make_server
from boardclient.integrations.mcp._arguments import CONTENT, FILTER, WrongArgumentError, read_arguments
from boardclient.testing import BoardService, assert_no_secrets

_CARD = {"name": "n", "reference": "r"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"desc": 7}, "desc must be a text, not a number"),
        ({"desc": ["a"]}, "desc must be a text, not a list"),
        ({"desc": "\ud83d"}, "desc holds half of a character"),
        ({"name": " \u200e"}, "name has no character that people see"),
        ({"name": None}, "name is missing"),
        ({"due": 1798761600}, "due must be a text, not a number"),
        ({"due": "1798761600"}, "due is not an ISO 8601 date"),
        ({"pos": "middle"}, 'pos must be "top" or "bottom"'),
        ({"due_date": "2027-01-31"}, r"create_card has no argument 'due_date' \(did you mean due\?\); its arguments are name,"),
        ({"due": "x", "pos": "y"}, "due is .*; pos must be"),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], words: str) -> None:
    """The error has the name and what was expected, of each of several arguments."""
    with pytest.raises(WrongArgumentError, match=words):
        read_arguments("create_card", CONTENT, {**_CARD, **given}, UTC)


@pytest.mark.parametrize("limit", [-1, True, 1.5, "5"])
def test_a_limit_is_a_whole_number(limit: object) -> None:
    with pytest.raises(WrongArgumentError, match="limit must be a whole number from 0"):
        read_arguments("board_cards", FILTER, {"limit": limit}, UTC)


@pytest.mark.parametrize("fields", ["name", ["labels"], [7]])
def test_fields_are_names_of_fields(fields: object) -> None:
    with pytest.raises(WrongArgumentError, match="fields must be a list of names among id, name"):
        read_arguments("board_cards", FILTER, {"fields": fields}, UTC)


def test_texts_are_taken_as_they_are() -> None:
    """A description that is JSON is a text. null is not given, and a whole number may be written as 5.0."""
    for desc in ('{"retries": 3}', "null", '["a"]', "", "7"):
        assert read_arguments("create_card", CONTENT, {**_CARD, "desc": desc, "pos": None}, UTC) == {**_CARD, "desc": desc}
    read = read_arguments("create_card", CONTENT, {**_CARD, "due": "20270131", "pos": "top"}, UTC)
    assert (read["due"], read["pos"]) == (datetime(2027, 1, 31, tzinfo=UTC), "top")
    assert read_arguments("board_cards", FILTER, {"limit": 5.0, "fields": ["id"]}, UTC) == {"limit": 5, "fields": ["id"]}
    with pytest.raises(WrongArgumentError, match="me has no argument 'x'; it takes none"):
        read_arguments("me", (), {"x": 1}, UTC)


async def call(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    found = (await client.call_tool(name, arguments)).structured_content
    assert found is not None
    return dict(found)


async def test_tools_of_a_program_stand_beside_them(service: BoardService, tmp_path: Path) -> None:
    """A tool that is added to the server is called as usual, and an unknown one is named with the nearest."""
    async with service.session() as session:
        server = make_server(session, tmp_path / "l")

        @server.tool()
        async def double(number: int) -> dict[str, int]:
            """Double a number."""
            return {"number": number * 2}

        async with Client(server) as client:
            assert await call(client, "double", number=2) == {"number": 4}
            assert {"me", "double"} <= {tool.name for tool in (await client.list_tools()).tools}
            unknown = await call(client, "list_cards")
    assert (unknown["effect"], "Call one of me, board_lists" in unknown["next_step"]) == ("not sent", True)


async def test_no_result_holds_a_credential_that_the_agent_has_sent(service: BoardService, tmp_path: Path) -> None:
    """As a tool, an argument or a value: what equals the key or the token is not passed on."""
    async with service.session() as session, Client(make_server(session, tmp_path / "l")) as client:
        found = [
            await call(client, service.token),
            await call(client, "me", **{service.token: 1}),
            await call(client, "get_card", card_id=service.key),
        ]
    assert_no_secrets(found, secrets=[service.token, service.key])
    assert all("***" in one["error"] for one in found[:2])


async def test_a_fault_of_the_server_has_the_same_form(
    service: BoardService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text stays in the log, since it may hold anything. What the server is given wrongly is named."""
    monkeypatch.setattr("boardclient.integrations.mcp._server._MOST_KNOWN_FAILURES", 1)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("canary")

    async with service.session(retry=None) as session:
        async with Client(make_server(session, tmp_path / "l", settle=-1.0)) as client:
            for card_id in ("none", "neither"):
                assert (await call(client, "get_card", card_id=card_id))["effect"] == "rejected"
            created = await call(client, "create_card", board_id="b", list_id="l", **_CARD)
            assert (created["effect"], "settle" in created["error"]) == ("not sent", True)
        monkeypatch.setattr("boardclient.resources.Members.me", fail)
        async with Client(make_server(session, tmp_path / "l")) as client:
            result = await call(client, "me")
    assert (result["effect"], "RuntimeError" in result["error"], "canary" in str(result)) == ("unknown", True, False)
    assert "Tell the user" in result["next_step"]
    assert "canary" in caplog.text
