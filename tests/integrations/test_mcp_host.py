"""`boardclient mcp` under hosts that send anything, give up, and end it: by raw messages over its input and output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp_host import LARGE, SECONDS, Host, result_of
from waiting import until

from boardclient.integrations.mcp._stdio import _lines, read_message
from boardclient.testing import BoardService, SeededBoard, faults


@pytest.fixture
def board(service: BoardService) -> SeededBoard:
    return service.seed({"To Do": ["Book the hall"], "Done": []})


def card_of(board: SeededBoard, **more: object) -> dict[str, Any]:
    return {"board_id": board.id, "list_id": board.lists["To Do"], "name": "Fix the login", "reference": "ticket-4711", **more}


def told(data: dict[str, Any]) -> tuple[object, bool, bool]:
    return data["effect"], bool(data["error"]), bool(data["next_step"])


async def test_a_request_that_can_t_be_read_has_a_response(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """Half of a character, lines that are no JSON, huge ones and odd ids get the documented object, and the server continues."""
    async with Host.started(service, tmp_path) as host:
        for name in ("cut \ud83d", "\udc00 cut"):
            result = await host.tool("create_card", **card_of(board, name=name))
            assert told(result) == ("not sent", True, True)
            assert result["error"].startswith("name holds half of a character")
        request = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "me", "arguments": {}}}
        cut = json.dumps(
            {**request, "params": {"name": "create_card", "arguments": card_of(board, desc="é")}}, ensure_ascii=False
        )
        await host.send(cut.encode("latin-1") + b"\n")  # no UTF-8
        assert result_of(await host.answer(77))["error"].startswith("desc holds half of a character")
        for line, code, request_id in (
            (b'{"jsonrpc": "2.0", "id": 78, "method"', -32700, None),
            (b"\xff\xfe\x00", -32700, None),
            (b"[" * 200_000, -32700, None),
            (json.dumps([request]).encode(), -32600, None),
            (b'"text"', -32600, None),
            (json.dumps({**request, "id": None}).encode(), -32600, None),
            (json.dumps({**request, "id": 1.5}).encode(), -32600, None),
            (json.dumps({**request, "id": "\ud83d"}).encode(), -32600, None),
            (json.dumps({**request, "jsonrpc": "1.0"}).encode(), -32600, 77),
            (json.dumps({**request, "method": "\ud83d"}).encode(), -32600, 77),
            (b"x" * (LARGE // 2 + 70_000), -32600, None),
        ):
            await host.send(line + b"\n")
            response = await host.receive()
            assert (response["id"], response["error"]["code"]) == (request_id, code), line[:80]
            assert told(response["error"]["data"]) == ("not sent", True, True)
        for params in (
            {"name": 7, "arguments": {}},
            {"name": "me", "arguments": ["x"]},
            {"arguments": {}},
            {"name": "me", "arguments": "x"},
        ):
            assert told(result_of(await host.call("tools/call", **params))) == ("not sent", True, True)
        assert "did you mean create_card" in (await host.tool("create_cards"))["error"]
        await host.send(b"\n  \r\n")
        assert (await host.tool("me"))["effect"] == "done"
        assert await host.end() == 0
        assert await host.errors() == ""
    assert len(service.rules.cards) == 1


async def test_calls_at_once_have_their_own_results(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """Requests that come together, in halves of lines, and with the same reference make one card for each reference."""
    async with Host.started(service, tmp_path, "--settle", "0.2") as host:
        lines = b"".join(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": f"call {number}",
                    "method": "tools/call",
                    "params": {"name": "create_card", "arguments": card_of(board, reference=f"r{number % 5}")},
                }
            ).encode()
            + b"\n"
            for number in range(20)
        )
        for start in range(0, len(lines), 1000):
            await host.send(lines[start : start + 1000])
        results = [result_of(await host.answer(f"call {number}")) for number in range(20)]
    assert {result["effect"] for result in results} == {"done"}, results
    assert [result["card"]["id"] for result in results[:5]] * 4 == [result["card"]["id"] for result in results]
    assert len(service.rules.cards) == 6


async def test_a_call_that_its_host_cancels_is_continued_by_the_next(
    service: BoardService, board: SeededBoard, tmp_path: Path
) -> None:
    """A host gives up, cancels and calls again: the cancelled call has no response, and there is one card."""
    service.faults.add(faults.hang(commit=True), "cards.create", times=1)
    async with Host.started(service, tmp_path, "--settle", "0.2") as host:
        given_up = await host.begin_tool("create_card", **card_of(board))
        await service.received("cards.create")
        await host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": given_up}})
        result = await host.tool("create_card", **card_of(board))
        assert result["effect"] == "done", result
        assert not [message for message in host.received if message.get("id") == given_up]
    assert len(service.rules.cards) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_in_a_call(
    service: BoardService, board: SeededBoard, tmp_path: Path, number: signal.Signals
) -> None:
    """The first signal ends it while the input is open, also in a call. The next server knows what was sent, and continues."""
    service.faults.add(faults.hang(commit=True), "cards.create", times=1)
    async with Host.started(service, tmp_path, "--settle", "0.2") as host:
        await host.begin_tool("create_card", **card_of(board))
        await service.received("cards.create")
        host.process.send_signal(number)
        assert await host.end(closes=False) == 128 + number
    async with Host.started(service, tmp_path, "--settle", "0.2") as host:
        assert (await host.tool("create_card", **card_of(board)))["effect"] == "done"
    assert len(service.rules.cards) == 2


async def test_the_result_of_a_call_at_its_end_is_kept(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """The response that comes within a moment of a signal is in the ledger, and reaches the host."""
    service.faults.add(faults.delay_answer(0.1), "cards.create", times=1)
    async with Host.started(service, tmp_path) as host:
        call = await host.begin_tool("create_card", **card_of(board))
        await service.received("cards.create")
        host.process.send_signal(signal.SIGTERM)
        made = result_of(await host.answer(call))
        assert await host.end(closes=False) == 143
    calls = len(service.calls)
    async with Host.started(service, tmp_path) as host:
        assert (await host.tool("create_card", **card_of(board)))["card"]["id"] == made["card"]["id"]
    assert "boards.cards" not in {call.operation for call in service.calls[calls:]}


async def test_the_end_of_the_input_ends_the_server_after_its_calls(
    service: BoardService, board: SeededBoard, tmp_path: Path
) -> None:
    """What was asked for before the input ended is answered, a last line without an end too. A call that hangs is cancelled."""
    async with Host.started(service, tmp_path) as host:
        await host.send(json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "me"}}).encode())
        assert host.process.stdin is not None
        host.process.stdin.close()
        assert result_of(await host.answer(9))["effect"] == "done"
        assert await host.end() == 0
    service.faults.add(faults.hang(), "members.me", times=1)
    async with Host.started(service, tmp_path) as host:
        await host.begin_tool("me")
        await service.received("members.me")
        assert await host.end() == 0


async def test_a_host_that_is_gone_ends_the_server(service: BoardService, tmp_path: Path) -> None:
    """Nobody reads the output any more: the server ends by itself, though the input is open."""
    async with Host.started(service, tmp_path) as host:
        transport: Any = host.process._transport  # type: ignore[attr-defined]  # -- the one way to close a pipe that is read
        transport.get_pipe_transport(1).close()
        await host.begin_tool("me")
        assert await asyncio.wait_for(host.process.wait(), SECONDS) == 0


async def test_a_host_that_does_not_read_holds_up_no_signal(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """Results that nobody takes fill the pipe. A signal ends the server all the same."""
    service.rules.cards[board.cards["Book the hall"]].name = "x" * 2**20
    async with Host.started(service, tmp_path) as host:
        transport: Any = host.process._transport  # type: ignore[attr-defined]  # -- as above
        transport.get_pipe_transport(1).pause_reading()
        for _ in range(4):
            await host.begin_tool("board_cards", board_id=board.id)
        await service.received("boards.cards")
        host.process.send_signal(signal.SIGTERM)
        await until(lambda: host.process.returncode is not None, pause=0.01)  # `wait` waits for the end of the output as well
        transport.get_pipe_transport(1).resume_reading()
        assert host.process.returncode == 143


async def test_a_host_that_asks_for_progress_hears_of_it(service: BoardService, board: SeededBoard, tmp_path: Path) -> None:
    """A call that takes a while says so each second, if the host has given a token."""
    service.faults.add(faults.delay_answer(2.5), "members.me", times=1)
    async with Host.started(service, tmp_path) as host:
        call = await host.begin("tools/call", name="me", arguments={}, _meta={"progressToken": "p"})
        assert result_of(await host.answer(call))["effect"] == "done"
        told = [one["params"] for one in host.received if one.get("method") == "notifications/progress"]
    assert told
    assert {one["progressToken"] for one in told} == {"p"}


def test_a_line_is_a_message_or_has_a_response() -> None:
    """Notifications and responses are passed on, and an empty line is nothing."""
    assert read_message(b"") is None
    for line in (b'{"jsonrpc":"2.0","method":"notifications/x"}', b'{"jsonrpc":"2.0","id":1,"result":{}}\r\n'):
        assert not isinstance(read_message(line), dict | None)


def test_a_last_line_that_is_too_long_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a response as one in the middle has, though no line end follows."""
    monkeypatch.setattr("boardclient.integrations.mcp._stdio._LONGEST_LINE", 4)
    reader, writer = os.pipe()
    os.write(writer, b"abc\nabcdef\nabcdef")
    os.close(writer)
    assert [*_lines(reader)] == [b"abc", None, None]
    os.close(reader)
