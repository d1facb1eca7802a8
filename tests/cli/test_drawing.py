"""Drawing: hostile text does not control the terminal, lists are side by side, markup is text."""

import json
import os
import re
import sys
from collections.abc import Callable

import click
import pytest
from import_helpers import Terminal

from boardclient.testing import BoardService

Draw = Callable[..., str]


@pytest.fixture
def shown(on_a_terminal, board_service: BoardService) -> Draw:
    """Draw a board of these lists and cards, without bold and dim letters."""

    def call(lists: list[dict[str, object]], cards: list[dict[str, object]], *, plain: bool = True, **options: object) -> str:
        for operation, body in (("boards.lists", lists), ("boards.cards", cards)):
            board_service.faults.add(board_service.faults.foreign_body(json.dumps(body).encode()), operation)
        try:
            text = on_a_terminal("board", "show", "b", **options)
            return click.unstyle(text) if plain else text
        finally:
            board_service.faults.clear()

    return call


TODO = {"id": "l1", "name": "To Do", "idBoard": "b"}


def test_a_board_is_as_wide_as_a_terminal_without_colours(shown: Draw, monkeypatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *descriptor: os.terminal_size((44, 24)))
    cards = [{"id": "c" * 24, "name": "a long name " * 9, "idList": "l1"}]
    text = shown([{**TODO, "name": "a long name " * 9}], cards, columns="", TERM="dumb")
    assert {len(line) for line in text.splitlines()} == {44}
    assert "c" * 24 in text
    assert "…" in text.splitlines()[0]


def test_a_board_is_drawn_in_columns_of_cards(shown: Draw) -> None:
    lists = [TODO, {"id": "l2", "name": "Old", "closed": True}, {"id": "l3"}]
    cards = [
        {"id": "c1", "name": "Write the plan", "idList": "l1", "due": "2027-03-04T00:00:00Z"},
        {"id": "c2", "idList": "l2"},
        {"id": "c3", "name": "Lost"},
    ]
    text = shown(lists, cards)
    first = text.splitlines()[0]
    assert "To Do (1)" in first
    assert "Old (archived, 1)" in first
    assert "l3 (0)" in first
    assert re.search(r"• Write the plan +2027-03-04", text)
    assert "• c2" in text
    assert "no cards" in text
    assert "(list not shown) (1)" in text


def test_markup_and_control_characters_of_the_service_are_escaped(shown: Draw) -> None:
    text = shown(
        [{**TODO, "name": "[red]List[/red]\x1b"}], [{"id": "c1", "name": "[bold]x[/] :smile: \x1b[2J\u202e", "idList": "l1"}]
    )
    assert "[red]List[/red]\\x1b" in text
    assert "[bold]x[/] :smile:" in text
    assert "\\x1b[2J\\u202e" in text
    assert "\x1b" not in text


def test_overdue_dates_are_red_labels_have_their_colours_and_identifiers_are_below(shown: Draw, monkeypatch) -> None:
    labels = [{"name": "urgent", "color": "green"}, {"color": "sky"}, {"name": 5, "color": None}, "x", {"color": 7}]
    cards = [{"id": f"c{year}", "name": "x", "idList": "l1", "due": f"{year}-01-01T00:00:00Z"} for year in (2020, 9998)]
    monkeypatch.delenv("NO_COLOR")
    text = shown([TODO], [*cards, {"id": "c3", "name": "x", "idList": "l1", "labels": labels}], plain=False, TERM="xterm")
    assert "\x1b[31moverdue 2020-01-01" in text
    assert "\x1b[31m9998" not in text
    assert "\x1b[32m ●urgent" in text
    assert "c2020" in text
    assert "l1" in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_an_identifier_is_never_broken_or_cut(shown: Draw, width: int) -> None:
    card_id, list_id = "c" * 45, "l" * 24
    lists = [{"id": f"{list_id}{number}", "name": "To Do"} for number in range(4)]
    lines = shown(lists, [{"id": card_id, "name": "n" * 200, "idList": f"{list_id}1"}], columns=width).splitlines()
    assert any(card_id in line for line in lines)
    assert all(any(item["id"] in line for line in lines) for item in lists)
    assert max(len(line) for line in lines) in range(width - 2, width + 1)


@pytest.mark.parametrize("width", [10, 30, 50])
def test_an_identifier_is_whole_where_no_frame_has_room(shown: Draw, width: int) -> None:
    """It has a line of its own, with nothing beside it."""
    lines = shown([{"id": "l" * 24, "name": "To Do"}], [{"id": "c" * 45, "name": "n" * 200, "idList": "l" * 24}], columns=width)
    assert {"l" * 24, "c" * 45} <= {line.rstrip() for line in lines.splitlines()}
    assert "│" not in lines


def test_a_plain_line_has_no_escape_sequence(on_a_terminal, board_service: BoardService, board, csv_file, monkeypatch) -> None:
    """On a terminal with colours, too: only what is bold or coloured has any."""
    monkeypatch.delenv("NO_COLOR")
    path = csv_file("name\nA\n")
    assert on_a_terminal("import", path, "--board", board.board, "--list", "Done").count("\x1b") == 0
    assert "\x1b" not in on_a_terminal("auth", "token")
    assert on_a_terminal("whoami").startswith("\x1b[1mmember\x1b[0m\n")


@pytest.mark.parametrize(("width", "beside"), [(20, 1), (65, 2), (200, 4)])
def test_lists_share_the_width_of_the_terminal(shown: Draw, width: int, beside: int) -> None:
    lines = shown([{"id": f"l{number}", "name": f"L{number}"} for number in range(4)], [], columns=width).splitlines()
    assert lines[0].count("╭") == beside
    assert {len(line) for line in lines} == {width // beside * beside}


NASTY = "a\x1b[31m\n\tb\r\x00\x7f\x80\x9b\u202e\u2066\u200f\u061c\u2028\u2029\ud800 — Zürich 日本語 👩‍🚀"
ESCAPED = "a\\x1b[31m\\x0a\\x09b\\x0d\\x00\\x7f\\x80\\x9b\\u202e\\u2066\\u200f\\u061c\\u2028\\u2029\ufffd — Zürich 日本語 👩‍🚀"


def test_a_record_is_drawn_on_a_terminal_and_has_tabs_in_a_pipe(cli, on_a_terminal: Draw, board_service: BoardService) -> None:
    """Each field that has a value is shown on a line, with control characters escaped."""
    card = {"id": "c1", "name": NASTY + "n" * 300, "due": "2027-01-01T00:00:00Z"}
    board_service.faults.add(board_service.faults.foreign_body(json.dumps(card).encode()), "cards.get")
    name = ESCAPED + "n" * 300
    drawn = f"card\n  id    c1\n  name  {name}\n  due   2027-01-01T00:00:00+00:00\n"
    assert on_a_terminal("card", "get", "c1") == drawn
    assert cli("card", "get", "c1").out == f"id\tc1\nname\t{name}\ndue\t2027-01-01T00:00:00+00:00\n"


@pytest.mark.parametrize(
    ("variables", "is_colored"), [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "", "TERM": "dumb"}, False)]
)
def test_colours_are_left_out_where_they_are_not_wanted(on_a_terminal: Draw, variables, is_colored: bool) -> None:
    text = on_a_terminal("whoami", **{"TERM": "xterm", **variables})
    assert ("\x1b[" in text) is is_colored


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1", "TERM": "xterm"}, {"NO_COLOR": "", "TERM": "dumb"}])
def test_errors_have_no_escape_sequences_where_colours_are_not_wanted(cli, monkeypatch, variables) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert cli("journal", "show", "none.journal").code == 2
    assert cli("card", "label", "c1").code == 2
    errors = sys.stderr.getvalue().splitlines()
    assert len(errors) == 3
    assert not [line for line in errors if "\x1b" in line]
