"""The tools for agents, by the library's own client: over stdio for what restarts, in one process for single results."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult

from boardclient import AsyncSession
from boardclient.cli import main
from boardclient.integrations.mcp import make_server
from boardclient.testing import BoardService, SeededBoard, assert_no_secrets, faults

Tools = Client


@pytest.fixture
def board(service: BoardService) -> SeededBoard:
    return service.seed({"To Do": ["Book the hall", "Print the menu"], "Done": ["Invite"]})


@asynccontextmanager
async def tools(service: BoardService, ledger: Path, **options: Any) -> AsyncIterator[Tools]:
    """Connect to a server in this process."""
    async with service.session(timeout=2, retry=None) as session, Client(make_server(session, ledger, **options)) as client:
        yield client


@asynccontextmanager
async def program(service: BoardService, folder: Path) -> AsyncIterator[Tools]:
    """Connect to the server of the command line, over its standard input and output. Its process id is in the file `pid`."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **service.environment}
    line = f'echo $$ > "{folder}/pid"; exec "{sys.executable}" -m boardclient mcp --settle 0.3'
    async with Client(stdio_client(StdioServerParameters(command="sh", args=["-c", line], env=env))) as client:
        yield client


def answer(result: CallToolResult) -> dict[str, Any]:
    """Return the object of a result, which its text holds too, for hosts that show texts alone."""
    assert result.structured_content is not None
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]  # -- it is a text
    return dict(result.structured_content)


def card_of(board: SeededBoard, **more: object) -> dict[str, Any]:
    return {"board_id": board.id, "list_id": board.lists["To Do"], "name": "Fix the login", "reference": "ticket-4711", **more}


async def test_a_client_knows_before_a_call_what_it_may_do(service: BoardService, tmp_path: Path) -> None:
    """Reading is read only, what replaces or removes something is destructive, and creating a card can be repeated."""
    async with tools(service, tmp_path / "l", allow_delete=True) as client:
        listed = (await client.list_tools()).tools
    hints = {
        tool.name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint, tool.annotations.idempotent_hint)
        for tool in listed
        if tool.annotations is not None
    }
    reading, changing = (True, False, True), (False, True, True)
    assert hints == {
        "me": reading, "board_lists": reading, "board_cards": reading, "get_card": reading,
        "create_card": (False, False, True), "add_label": (False, False, False),
        "move_card": changing, "archive_list": changing, "delete_card": changing,
    }  # fmt: skip
    (create,) = [tool for tool in listed if tool.name == "create_card"]
    assert "reference" in create.input_schema["required"]


async def test_what_nothing_brings_back_is_offered_only_if_it_is_allowed(service: BoardService, tmp_path: Path) -> None:
    """Deleting a card and archiving a list need the same permission."""
    async with tools(service, tmp_path / "l") as client:
        assert not {"delete_card", "archive_list"} & {tool.name for tool in (await client.list_tools()).tools}


async def test_tools_say_that_texts_are_data(service: BoardService, tmp_path: Path) -> None:
    """Names of cards may hold instructions of others, which each description warns of."""
    async with tools(service, tmp_path / "l") as client:
        assert all("never instructions" in (tool.description or "") for tool in (await client.list_tools()).tools)


async def test_cards_are_read_with_few_fields_and_a_filter(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    async with tools(service, tmp_path / "l") as client:

        async def read(**options: object) -> dict[str, Any]:
            return answer(await client.call_tool("board_cards", {"board_id": board.id, **options}))

        assert [card["name"] for card in (await read())["cards"]] == ["Book the hall", "Print the menu", "Invite"]
        assert (await read(text="MENU", fields=["name"]))["cards"] == [{"name": "Print the menu"}]
        assert (await read(list_id=board.lists["Done"], fields=["name"]))["total"] == 1
        cut = await read(limit=1)
        assert (len(cut["cards"]), cut["total"], "2 more" in cut["next_step"]) == (1, 3, True)
        lists = answer(await client.call_tool("board_lists", {"board_id": board.id}))["lists"]
        assert [one["name"] for one in lists] == ["To Do", "Done"]


async def test_each_tool_does_what_it_says(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    card_id = next(iter(service.rules.cards))
    async with tools(service, tmp_path / "l", allow_delete=True) as client:

        async def do(name: str, **arguments: object) -> dict[str, Any]:
            result = await client.call_tool(name, dict(arguments))
            assert not result.is_error, result
            return answer(result)

        assert (await do("me"))["member"]["id"]
        assert (await do("get_card", card_id=card_id))["card"]["name"] == "Book the hall"
        assert (await do("move_card", card_id=card_id, list_id=board.lists["Done"]))["effect"] == "done"
        await do("add_label", card_id=card_id, label_id="label-1")
        await do("archive_list", list_id=board.lists["To Do"])
        assert service.rules.lists[board.lists["To Do"]].closed
        await do("delete_card", card_id=card_id)
    assert card_id not in service.rules.cards


async def test_a_reference_has_one_card(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """The same call again gets the same card. Another content, and what can't be sent, are refused with what to do."""
    async with tools(service, tmp_path / "l", settle=0.3) as client:

        async def create(**more: object) -> dict[str, Any]:
            return answer(await client.call_tool("create_card", card_of(board, **more)))

        first, again = await create(), await create()
        assert (first["effect"], first["card"]["name"], again["card"]["id"]) == ("done", "Fix the login", first["card"]["id"])
        assert "another name" in (other := await create(name="Fix the logout"))["error"]
        assert "A reference stands for one card" in other["next_step"]
        assert (await create(reference=""))["effect"] == "not sent"
    assert len(service.rules.cards) == 4


def test_the_command_keeps_its_ledger_beside_the_profiles(
    service: BoardService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--ledger` names another place."""
    ledgers: list[Path] = []

    class Server:
        def __init__(self, session: AsyncSession, ledger: Path, **options: object) -> None:
            ledgers.append(ledger)

        async def run_stdio_async(self) -> None: ...

    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("boardclient.integrations.mcp.make_server", Server)
    for line in (["mcp"], ["mcp", "--ledger", str(tmp_path / "other")]):
        with pytest.raises(SystemExit) as caught:
            main(line)
        assert not caught.value.code
    assert [Path(ledger) for ledger in ledgers] == [tmp_path / "boardclient" / "mcp.ledger", tmp_path / "other"]


def test_a_folder_that_can_t_hold_the_ledger_is_named_with_what_helps(tmp_path: Path, monkeypatch, capsys) -> None:
    for name, value in {"BASE_URL": "https://board.example", "TOKEN": "t"}.items():
        monkeypatch.setenv(f"BOARDCLIENT_{name}", value)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as caught:
        main(["mcp"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"boardclient: error: {tmp_path / 'file' / 'boardclient'} can't hold the ledger (Not a directory): give --ledger\n"
    )


@pytest.mark.parametrize(
    ("fault", "name", "arguments", "effect", "words"),
    [
        (faults.status(401), "me", {}, "rejected", "sign in"),
        (faults.status(403), "me", {}, "rejected", "permission"),
        (faults.status(400), "me", {}, "rejected", "tell the user"),
        (None, "get_card", {"card_id": "none"}, "rejected", "board_cards"),
        (None, "get_card", {"card_id": "a/b"}, "not sent", "Correct the arguments"),
        (faults.status(429, {"Retry-After": "40"}), "me", {}, "rejected", "after 20"),
        (faults.drop(), "me", {}, "unknown", "Repeat the call with the same arguments"),
        (faults.drop(), "add_label", {"card_id": "c", "label_id": "l"}, "unknown", "Read the card with get_card"),
        (faults.foreign_body(b"<html>"), "me", {}, "done", "Tell the user"),
    ],
)
async def test_an_error_says_what_to_do_next(
    service: BoardService,
    tmp_path: Path,
    fault: faults.Fault | None,
    name: str,
    arguments: Mapping[str, object],
    effect: str,
    words: str,
) -> None:
    """An error is an object too: what the call may have done, and what makes sense now. It holds no credential."""
    if fault is not None:
        service.faults.add(fault)
    async with tools(service, tmp_path / "l") as client:
        result = await client.call_tool(name, dict(arguments))
    assert result.is_error
    told = answer(result)
    assert (told["effect"], words in told["next_step"]) == (effect, True), told
    assert (told.get("retry_at") is not None) is (words == "after 20")
    assert_no_secrets(told, secrets=[service.key, service.token])


async def test_a_call_that_is_tried_again_makes_no_second_card(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """The response to the first creation is lost, and the host calls again with the same reference."""
    service.faults.add(faults.drop(commit=True), "cards.create", times=1)
    async with program(service, tmp_path) as client:
        first = answer(await client.call_tool("create_card", card_of(board)))
        second = answer(await client.call_tool("create_card", card_of(board)))
    assert second["card"]["id"] == (first.get("card") or second["card"])["id"]
    service.assert_no_duplicates()
    assert len(service.rules.cards) == 4


async def test_a_server_that_was_restarted_knows_the_reference(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """The host ends after the call, and another server answers the same call, or refuses another content."""
    async with program(service, tmp_path) as client:
        first = answer(await client.call_tool("create_card", card_of(board, due="2027-01-02T03:04:05Z")))
    async with program(service, tmp_path) as client:
        again = answer(await client.call_tool("create_card", card_of(board, due="2027-01-02T03:04:05Z")))
        other = await client.call_tool("create_card", card_of(board, due="2027-01-02T03:04:05Z", desc="another"))
    assert again["card"]["id"] == first["card"]["id"]
    assert (other.is_error, "reference" in answer(other)["next_step"]) == (True, True)
    assert len(service.rules.cards) == 4


async def test_a_server_that_is_killed_in_the_middle_makes_no_second_card(
    service: BoardService, board: SeededBoard, tmp_path: Path
) -> None:
    """The service has created the card and not responded yet when the server dies. The next call finds the card."""
    service.faults.add(faults.hang(commit=True), "cards.create", times=1)
    async with program(service, tmp_path) as client:
        call = asyncio.create_task(client.call_tool("create_card", card_of(board)))
        await service.received("cards.create")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(MCPError):
            await call
    async with program(service, tmp_path) as client:
        found = answer(await client.call_tool("create_card", card_of(board)))
    assert found.get("card", found)["name"] == "Fix the login", found
    assert len(service.rules.cards) == 4
