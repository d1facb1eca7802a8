"""Drawing: hostile text does not control the terminal, lists are side by side, markup is text."""

import io
import re
from datetime import UTC, datetime
from typing import get_args

import pytest
from rich.console import Console

from boardclient import BoardList, BulkProgress, Card
from boardclient.cli import _render, _text
from boardclient.events import WaitReason


def drawn(lists: list[BoardList], cards: list[Card], **options: int) -> str:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False, emoji=False)
    console.print(_render.board(lists, cards, width=200, **options))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain — Zürich 日本語 👩‍🚀", "plain — Zürich 日本語 👩‍🚀"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("a\nb\tc\rd\x00", "a\\x0ab\\x09c\\x0dd\\x00"),
        ("\x7f\x80\x9b", "\\x7f\\x80\\x9b"),
        ("\u202eevil\u2066\u200f\u061c", "\\u202eevil\\u2066\\u200f\\u061c"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, escaped: str) -> None:
    assert _text.escape(text) == escaped


def test_a_board_is_drawn_in_columns_of_cards() -> None:
    lists = [BoardList("l1", "To Do"), BoardList("l2", "Old", closed=True), BoardList("l3", None)]
    cards = [
        Card("c1", "Write the plan", list_id="l1", due=datetime(2027, 3, 4, tzinfo=UTC)),
        Card("c2", None, list_id="l2"),
        Card("c3", "Lost"),
    ]
    text = drawn(lists, cards)
    first = text.splitlines()[0]
    assert "To Do (1)" in first
    assert "Old (archived, 1)" in first
    assert "l3 (0)" in first
    assert re.search(r"• Write the plan +2027-03-04", text)
    assert "• c2" in text
    assert "no cards" in text
    assert "(list not shown) (1)" in text


def test_a_board_without_lists_says_so() -> None:
    assert drawn([], []) == "The board has no lists.\n"


def test_cards_beyond_a_limit_are_only_counted() -> None:
    text = drawn([BoardList("l1", "To Do")], [Card(f"c{n}", f"Card {n}", list_id="l1") for n in range(5)], cards_per_list=2)
    assert "Card 1" in text
    assert "Card 2" not in text
    assert "… and 3 more" in text
    assert "more" not in drawn([BoardList("l1", "To Do")], [Card("c1", "A", list_id="l1")], cards_per_list=2)


def test_markup_and_control_characters_of_the_service_are_escaped() -> None:
    text = drawn([BoardList("l1", "[red]List[/red]\x1b")], [Card("c1", "[bold]x[/] :smile: \x1b[2J\u202e", list_id="l1")])
    assert "[red]List[/red]\\x1b" in text
    assert "[bold]x[/] :smile:" in text
    assert "\\x1b[2J\\u202e" in text
    assert "\x1b" not in text


def test_a_line_has_its_colour_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", _environ={})
    _render.line(console, "row 2: failed", style="red")
    assert console.file.getvalue() == "\x1b[31mrow 2: failed\x1b[0m\n"


def test_details_show_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The details of a card show each field that has a value, escaped."""
    _text.details("card\x1b", {"id": "c1", "desc": None, "name": "[b]" + "n" * 300})
    assert capsys.readouterr().out == f"card\\x1b\n  id    c1\n  name  [b]{'n' * 300}\n"


def test_details_without_fields_are_a_title(capsys: pytest.CaptureFixture[str]) -> None:
    """The details of a card without fields are its title."""
    _text.details("nothing", {})
    assert capsys.readouterr().out == "nothing\n"


def test_the_bar_is_drawn_on_a_terminal_only() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
        with _render.progress(console) as bar:
            bar.add_task("Importing", total=2, completed=1, pace="3 cards/s")
        assert ("Importing" in console.file.getvalue()) is terminal


@pytest.mark.parametrize(
    ("total", "rate", "text"),
    [
        (None, 2.0, "2 cards/s"),
        (100, 0.0, "0 cards/s"),
        (100, 2.0, "2 cards/s, 0:00:45 left"),
        (100_010, 9.6, "10 cards/s, 2:53:37 left"),
    ],
)
def test_the_pace_is_shown_with_the_remaining_time(total: int | None, rate: float, text: str) -> None:
    progress = BulkProgress(done=10, created=10, failed=0, unknown=0, rate=rate, seconds=5, total=total)
    assert _render.pace(progress) == text


@pytest.mark.parametrize("reason", get_args(WaitReason))
def test_the_reason_why_a_run_waits_is_shown(reason: str) -> None:
    progress = BulkProgress(done=10, created=10, failed=0, unknown=0, rate=1.0, seconds=5, total=None, waiting_for=reason)
    assert _render.pace(progress).startswith("waiting ")


def test_overdue_dates_are_red_and_identifiers_are_printed_below() -> None:
    cards = [Card(f"c{year}", "x", list_id="l1", due=datetime(year, 1, 1, tzinfo=UTC)) for year in (2026, 2028)]
    console = Console(file=io.StringIO(), width=100, force_terminal=True, no_color=False, color_system="standard")
    now = datetime(2027, 1, 1, tzinfo=UTC)
    console.print(_render.board([BoardList("l1", "To Do")], cards, width=100, with_ids=True, now=now))
    text = console.file.getvalue()
    assert "\x1b[31m2026-01-01" in text
    assert "\x1b[31m2028" not in text
    assert "c2026" in text
    assert "l1" in text


@pytest.mark.parametrize(("width", "beside"), [(20, 1), (65, 2), (200, 4)])
def test_lists_share_the_width_of_the_terminal(width: int, beside: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(_render.board([BoardList(f"l{number}", f"L{number}") for number in range(4)], [], width=width))
    lines = console.file.getvalue().splitlines()
    assert lines[0].count("╭") == beside
    assert max(map(len, lines)) <= width
