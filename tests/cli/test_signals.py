"""The effect of signals on commands, besides those on imports."""

import asyncio
import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable

import pytest

import boardclient
from boardclient.resources import Members
from boardclient.testing import BoardService

_BOTH = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), _BOTH)
def test_a_signal_ends_a_call(
    cli, board_service: BoardService, board, signals_on: Callable, number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    board_service.faults.add(board_service.faults.hang(commit=True), "cards.create")
    signals_on("cards.create", 1, number)
    result = cli("card", "create", "x", "--list", board.todo)
    assert result.code == code
    assert f"ended by {number.name}; the request in flight may or may not have been carried out" in result.err
    assert signal.getsignal(number) == before


class _Signals(io.BytesIO):
    """Rows on a pipe, before which a signal comes."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(b"name\nA\n")
        self._number = number

    def read(self, size: int | None = -1) -> bytes:
        if size:  # click asks with 0 whether these are bytes
            signal.raise_signal(self._number)
        return super().read(size)


@pytest.mark.parametrize(("number", "code"), _BOTH)
def test_a_signal_while_the_rows_are_read_is_an_exit_code(cli, board, monkeypatch, number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(_Signals(number)))
    result = cli("import", "-", "--board", board.board, "--list", board.todo, "--json")
    assert (result.code, result.err) == (code, f"boardclient: ended by {number.name}; nothing was sent\n")
    assert json.loads(result.out)["created"] == 0
    assert signal.getsignal(number) == before


def test_a_read_ended_by_a_signal_names_no_effect(cli, board_service: BoardService, signals_on: Callable) -> None:
    board_service.faults.add(board_service.faults.hang(), "members.me")
    signals_on("members.me", 1, signal.SIGINT)
    assert cli("whoami") == (130, "", "boardclient: ended by SIGINT\n")


def test_a_command_that_swallows_its_cancellation_counts_as_ended(cli, monkeypatch) -> None:
    async def me(members: object) -> boardclient.Member:
        signal.raise_signal(signal.SIGTERM)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return boardclient.Member("m1")

    monkeypatch.setattr(Members, "me", me)
    code, _, err = cli("whoami")
    assert code == 143
    assert err == "boardclient: ended by SIGTERM\n"


def test_a_cancellation_without_a_signal_is_no_success(cli, monkeypatch) -> None:
    async def me(members: object) -> boardclient.Member:
        raise asyncio.CancelledError

    monkeypatch.setattr(Members, "me", me)
    with pytest.raises(asyncio.CancelledError):
        cli("whoami")
