"""A tool answers before its host gives up, whatever the service and the options say, and the next call continues."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from waiting import until

from boardclient.events import BulkProgress, Event
from boardclient.integrations.mcp import make_server
from boardclient.testing import BoardService, SeededBoard, faults

_CREATE = {"name": "Fix the login", "reference": "ticket-4711"}


@pytest.fixture
def board(service: BoardService) -> SeededBoard:
    return service.seed({"To Do": ["Book the hall"]})


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a host wait for a moment in place of a minute."""
    for name, seconds in {"_ANSWER_SECONDS": 0.6, "_PROGRESS_SECONDS": 0.1, "CALL_SECONDS": 0.3}.items():
        monkeypatch.setattr(f"boardclient.integrations.mcp._server.{name}", seconds)
    monkeypatch.setattr("boardclient.integrations.mcp.CALL_SECONDS", 0.3)


async def call(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    result = (await client.call_tool(name, arguments)).structured_content
    assert result is not None
    return dict(result)


async def test_a_creation_that_takes_longer_is_continued_by_the_next_call(
    service: BoardService, board: SeededBoard, tmp_path: Path
) -> None:
    """A lost response is waited for longer than a host waits: the result says until when, and the next call has the card."""
    service.faults.add(faults.drop(commit=True), "cards.create", times=1)
    arguments = {"board_id": board.id, "list_id": board.lists["To Do"], **_CREATE}
    events: list[Event] = []
    async with (
        service.session(timeout=30, retry=None, observers=[events.append]) as session,
        Client(make_server(session, tmp_path / "l", settle=1.5)) as client,
    ):
        results: list[dict[str, Any]] = []
        while not results or "card" not in results[-1]:
            results.append(await call(client, "create_card", **arguments))
        assert results[-1]["card"]["name"] == "Fix the login"
    waiting = [result for result in results if result.get("retry_at")]
    assert {result["effect"] for result in results[:-1]} == {"unknown"}
    assert "waiting until" in waiting[0]["error"]
    assert "Repeat the call with the same arguments" in results[0]["next_step"]
    assert [call.operation for call in service.calls].count("cards.create") == 1
    assert len(service.rules.cards) == 2
    assert any(isinstance(event, BulkProgress) for event in events)


async def test_a_pause_that_the_service_asks_for_is_named(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """`Retry-After` of an hour: the call is answered in time, with the moment from which on it makes sense again."""
    service.faults.add(faults.status(429, {"Retry-After": "3600"}))
    arguments = {"board_id": board.id, "list_id": board.lists["To Do"], **_CREATE}
    async with service.session(retry=None) as session, Client(make_server(session, tmp_path / "l")) as client:
        for name, given in (("create_card", arguments), ("me", {})):
            results = [await call(client, name, **given) for _ in range(3)]
            moment = datetime.fromisoformat(results[0]["retry_at"])
            assert abs(moment - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)
            assert "Repeat the call" in results[0]["next_step"]
            assert "Tell the user" in results[2]["next_step"]


async def test_each_tool_is_answered_in_time(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """A service that never responds: the deadline is no later than the host's patience, whatever that of the session is."""
    service.faults.add(faults.hang())
    async with service.session(timeout=None, retry=None) as session, Client(make_server(session, tmp_path / "l")) as client:
        for name, given in (
            ("me", {}),
            ("board_cards", {"board_id": board.id}),
            ("move_card", {"card_id": "c", "list_id": "l"}),
            ("add_label", {"card_id": "c", "label_id": "l"}),
        ):
            result = await asyncio.wait_for(call(client, name, **given), 20)
            assert (result["effect"], "no response" in result["error"] or "0.3 s" in result["error"]) == ("unknown", True), result


async def test_a_tool_that_nothing_ends_is_answered_all_the_same(
    service: BoardService, board: SeededBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has a clock of its own. What may have been done, and must not be repeated, is to be looked for."""
    monkeypatch.setattr("boardclient.integrations.mcp.CALL_SECONDS", 600.0)
    service.faults.add(faults.hang())
    seen: list[tuple[float, float | None, str | None]] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with service.session(timeout=None, retry=None) as session, Client(make_server(session, tmp_path / "l")) as client:
        done = await client.call_tool("me", {}, progress_callback=progressed)
        assert done.structured_content is not None
        assert done.structured_content["next_step"] == "Repeat the call with the same arguments."
        label = await call(client, "add_label", card_id="c", label_id="l")
        assert (label["effect"], "get_card" in label["next_step"]) == ("unknown", True)
    assert {message for *_, message in seen} == {"waiting for the service"}


async def test_a_call_that_its_host_cancels_ends(service: BoardService, tmp_path: Path) -> None:
    """Nobody waits for its result any more: it is not continued behind the host's back."""
    service.faults.add(faults.hang())
    async with service.session(timeout=None, retry=None) as session:
        given_up = asyncio.create_task(make_server(session, tmp_path / "l").call_tool("me", {}))
        await until(lambda: service.calls)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await until(lambda: not any("boardclient tool" in task.get_name() for task in asyncio.all_tasks()))
