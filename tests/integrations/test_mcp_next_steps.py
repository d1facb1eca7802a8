"""The next step after each failure of each tool leads somewhere, in at most three calls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from boardclient import BoardClientError, Effect, JournalError, SessionClosedError
from boardclient.integrations.mcp import make_server
from boardclient.integrations.mcp._results import Advice, of_error
from boardclient.testing import BoardService, SeededBoard, faults

_TOOLS = {
    "me": ("members.me", ()),
    "board_lists": ("boards.lists", ("board_id",)),
    "board_cards": ("boards.cards", ("board_id",)),
    "get_card": ("cards.get", ("card_id",)),
    "create_card": ("cards.create", ("board_id", "list_id", "name", "reference")),
    "move_card": ("cards.move", ("card_id", "list_id")),
    "add_label": ("cards.add_label", ("card_id", "label_id")),
    "archive_list": ("lists.archive", ("list_id",)),
    "delete_card": ("cards.delete", ("card_id",)),
}
"""The operation of each tool, and the arguments that it needs."""
_FAILURES = {
    **{str(code): faults.status(code) for code in (400, 401, 403, 404, 409, 413, 422, 500, 503)},
    "429 in a while": faults.status(429, {"Retry-After": "3600"}),
    "moved": faults.redirect("https://elsewhere.example/"),
    "lost": faults.drop(),
    "lost and done": faults.drop(commit=True),
    "a page": faults.foreign_body(b"<html>"),
    "cut": faults.truncated(),
}
_ENDS = ("ell the user", "sk the user", "nothing is left to do")


class Agent:
    """Does what `next_step` says, and nothing else. It knows the right arguments."""

    def __init__(self, client: Client, right: Mapping[str, str]) -> None:
        self._client, self._right = client, right

    async def call(self, tool: str, **other: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, {name: self._right[name] for name in _TOOLS[tool][1]} | other)
        assert result.structured_content is not None
        return dict(result.structured_content)

    async def follow(self, tool: str, **other: Any) -> list[dict[str, Any]]:
        """Call a tool, and do what its result says until nothing is left to do. Return the results."""
        results = [await self.call(tool, **other)]
        while (step := results[-1]["next_step"]) and not any(end in step for end in _ENDS):
            assert len(results) < 3, results
            if "Repeat the call" in step:
                assert results[-1]["effect"] != "done"
                results.append(await self.call(tool, **other))
            elif "get_card" in step or "read the card" in step:
                results.append(await self.call("get_card"))
                break
            elif "board_lists" in step or "board_cards" in step:
                results.append(await self.call("board_lists"))
                results.append(await self.call(tool))
            else:
                assert "Correct the arguments" in step, results
                results.append(await self.call(tool))
        return results


@contextlib.asynccontextmanager
async def agent_of(service: BoardService, right: Mapping[str, str], ledger: Path, **options: Any) -> AsyncIterator[Agent]:
    async with (
        service.session(timeout=2, retry=None) as session,
        Client(make_server(session, ledger, settle=0.01, **options)) as client,
    ):
        yield Agent(client, right)


@pytest.fixture
def board(service: BoardService) -> SeededBoard:
    return service.seed({"To Do": ["Book the hall"], "Done": []})


@pytest.fixture
def right(board: SeededBoard) -> dict[str, str]:
    card_id = board.cards["Book the hall"]
    ids = {"board_id": board.id, "list_id": board.lists["Done"], "card_id": card_id, "label_id": "label-1"}
    return {**ids, "name": "Fix the login", "reference": "ticket-4711"}


@pytest.mark.parametrize("often", ["once", "always"])
@pytest.mark.parametrize("tool", _TOOLS)
async def test_what_is_to_be_done_ends(
    service: BoardService, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, often: str
) -> None:
    """Whatever the service does, once or always: an agent that takes the next step comes to a result or to the user."""
    monkeypatch.setattr("boardclient.integrations.mcp._server._ANSWER_SECONDS", 1.0)
    operation = _TOOLS[tool][0]
    async with service.session(timeout=0.8, retry=None) as session:
        for number, (name, fault) in enumerate(_FAILURES.items()):
            server = make_server(session, tmp_path / f"{number}.ledger", settle=0.01, allow_delete=True)
            async with Client(server) as client:
                agent = Agent(client, {**right, "reference": f"r{number}", "name": f"card {number}"})
                service.faults.add(fault, operation, times=1 if often == "once" else None)
                results = await agent.follow(tool)
                service.faults.clear()
                last = results[-1]
                assert all({"effect", "next_step"} <= {*one} for one in results), (name, results)
                assert last["effect"] == "done" or any(end in last["next_step"] for end in _ENDS), (name, results)
    names = [card.name for card in service.rules.cards.values()]
    assert len(names) == len({*names}), names


@pytest.mark.parametrize(
    ("tool", "wrong"),
    [
        ("create_card", {"list_id": "Done"}),
        ("create_card", {"board_id": "none"}),
        ("create_card", {"due": "tomorrow"}),
        ("create_card", {"name": "\u200b"}),
        ("create_card", {"labels": ["a"]}),
        ("move_card", {"list_id": "Done"}),
        ("move_card", {"card_id": "Book the hall"}),
        ("get_card", {"card_id": "a/b"}),
        ("add_label", {"card_id": "none"}),
        ("archive_list", {"list_id": "Done"}),
        ("delete_card", {"card_id": "none"}),
        ("board_cards", {"limit": -1}),
        ("board_cards", {"list_id": "Done"}),
    ],
)
async def test_wrong_arguments_can_be_corrected(
    service: BoardService, right: dict[str, str], tmp_path: Path, tool: str, wrong: dict[str, Any]
) -> None:
    """A name in place of an identifier, and what a tool does not take: what is to be done leads to the result."""
    async with agent_of(service, right, tmp_path / "l", allow_delete=True) as agent:
        results = await agent.follow(tool, **wrong)
    assert results[0]["effect"] in {"not sent", "rejected"}
    assert results[-1]["effect"] == "done" or any(end in results[-1]["next_step"] for end in _ENDS), results


async def test_a_list_without_cards_is_no_unknown_list(service: BoardService, right: dict[str, str], tmp_path: Path) -> None:
    """A filter by the name of a list finds nothing, and says why. One by an empty list finds nothing."""
    async with agent_of(service, right, tmp_path / "l") as agent:
        found = await agent.call("board_cards", list_id="Done")
        assert found["error"] == f"the list Done is not on the board {right['board_id']}"
        assert found["next_step"].startswith("Take list_id from board_lists: a name is not an identifier.")
        assert (await agent.call("board_cards", list_id=right["list_id"]))["cards"] == []


async def test_a_pause_is_no_fault_of_the_arguments(service: BoardService, right: dict[str, str], tmp_path: Path) -> None:
    """While the service accepts nothing, another creation is to be made again later: its list is not at fault."""
    service.faults.add(faults.status(429, {"Retry-After": "200"}), "cards.create")
    async with (
        service.session(timeout=0.2, retry=None) as session,
        Client(make_server(session, tmp_path / "l", settle=0.01)) as client,
    ):
        results = [await Agent(client, right).call("create_card", reference=str(number)) for number in range(3)]
    assert [one["next_step"].split(" after ")[0] for one in results] == ["Repeat the call with the same arguments"] * 3, results
    assert all(one["retry_at"] and "limiter=" not in one["error"] for one in results), results


async def test_another_card_under_a_reference_needs_another_reference(
    service: BoardService, right: dict[str, str], tmp_path: Path
) -> None:
    """A conflict says so, and a reference whose card was deleted leads to the user."""
    async with agent_of(service, right, tmp_path / "l") as agent:
        made = (await agent.call("create_card"))["card"]["id"]
        conflict = await agent.call("create_card", name="Another")
        assert "take a new reference" in conflict["next_step"]
        assert (await agent.call("create_card", name="Another", reference="other"))["effect"] == "done"
        del service.rules.cards[made]
        gone = await agent.call("create_card")
        assert "error" not in gone or "new reference" in gone["next_step"], gone


async def test_a_card_that_can_not_be_read_now_is_no_reason_for_another(
    service: BoardService, right: dict[str, str], tmp_path: Path
) -> None:
    """The tool gives its identifier, and says why the rest is not known."""
    async with agent_of(service, right, tmp_path / "l") as agent:
        made = (await agent.call("create_card"))["card"]["id"]
        service.faults.add(faults.status(403), "cards.get")
        found = await agent.call("create_card")
        assert (found["effect"], found["card"]) == ("done", {"id": made})
        assert "status 403" in found["problem"]
        assert "exists, but can't be read now" in found["next_step"]


def test_a_person_decides_between_candidates() -> None:
    """No further call of the agent can, and one that another call delays is made again."""
    error = BoardClientError("it may exist", Effect.UNKNOWN)
    error.candidates = ("c1",)
    advice = Advice(not_found="")
    assert "resolve it by the command that the error names. Tell the user" in of_error(error, advice, 1)["next_step"]
    held = JournalError("another worker has the row")
    held.retry_at = datetime(2027, 1, 2, tzinfo=UTC)
    assert of_error(held, advice, 1)["next_step"] == "Repeat the call with the same arguments after 2027-01-02T00:00:00+00:00."


def test_a_server_that_ends_is_not_called_again() -> None:
    """The user starts it again."""
    assert "Tell the user" in of_error(SessionClosedError("the session is closed"), Advice(not_found=""), 1)["next_step"]
