"""Drawing: hostile text does not control the terminal, lists are side by side, markup is text."""

import io
import re
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console

from boardclient import BoardList, BulkProgress, Card
from boardclient.cli import _drawing, _output


def drawn(lists: list[BoardList], cards: list[Card], **options: int) -> str:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False, emoji=False)
    console.print(_drawing.board(lists, cards, width=200, **options))
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
    assert _output.escape(text) == escaped


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_record_is_drawn_on_a_terminal_and_has_tabs_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field that has a value is shown, escaped."""
    record = {"id": "c1", "desc": None, "name": "[b]\t" + "n" * 300, "due": datetime(2027, 1, 1, tzinfo=UTC)}
    drawn = f"card\\x1b\n  id    c1\n  name  [b]\\x09{'n' * 300}\n  due   2027-01-01T00:00:00+00:00\n"
    piped = f"id\tc1\nname\t[b]\\x09{'n' * 300}\ndue\t2027-01-01T00:00:00+00:00\n"
    for stream, expected in [(Terminal(), drawn), (io.StringIO(), piped)]:
        monkeypatch.setattr(sys, "stdout", stream)
        _output.show("card\x1b", record)
        assert stream.getvalue() == expected


@pytest.mark.parametrize(
    ("name", "value", "is_colored"), [("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch, name, value, is_colored) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    _output.show("card", {"id": "c1"})
    assert ("\x1b[" in sys.stdout.getvalue()) is is_colored


@pytest.mark.parametrize(
    ("total", "rate", "unknown", "text"),
    [
        (None, 2.0, 0, "2/s"),
        (100, 0.0, 0, ""),
        (100, 2.0, 0, "2/s, 0:00:45 left"),
        (100_010, 9.6, 3, "10/s, 2:53:37 left, 3 unknown"),
    ],
)
def test_the_pace_is_shown_with_the_remaining_time(total: int | None, rate: float, unknown: int, text: str) -> None:
    progress = BulkProgress(done=10, created=10, failed=0, unknown=unknown, rate=rate, seconds=5, total=total)
    assert _drawing.pace_of(progress) == text


def test_a_run_that_waits_for_consent_names_the_command_for_it() -> None:
    progress = BulkProgress(done=1, created=1, failed=0, unknown=0, rate=1.0, seconds=5, waiting_for="consent")
    assert _drawing.phase_of(progress).endswith("sign in: boardclient login")


def test_without_a_terminal_a_line_says_how_far_a_run_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """When it begins to wait, and otherwise from time to time."""
    clock = [0.0]
    monkeypatch.setattr(_drawing.time, "monotonic", lambda: clock[0])
    with _drawing.ProgressView(2_000) as view:
        for at, waiting in [(1.0, None), (2.0, "outage"), (3.0, "outage"), (4.0, None), (12.5, None), (13.0, None)]:
            clock[0] = at
            view.update(
                BulkProgress(
                    done=1_000, created=9, failed=0, unknown=0, in_doubt=1, rate=5.0, seconds=5, total=2_000, waiting_for=waiting
                )
            )
    assert capsys.readouterr().err.splitlines() == [
        "waiting for the service, one request is tried at a time: 1,000 of 2,000, 5/s, 1 in doubt",
        "creating: 1,000 of 2,000, 5/s, 0:03:20 left, 1 in doubt",
    ]


def test_overdue_dates_are_red_labels_have_their_colours_and_identifiers_are_below() -> None:
    labels = [{"name": "urgent", "color": "green"}, {"color": "sky"}, {"name": 5, "color": None}, "x", {"color": 7}]
    cards = [Card(f"c{year}", "x", list_id="l1", due=datetime(year, 1, 1, tzinfo=UTC)) for year in (2020, 9998)]
    cards.append(Card("c3", "x", list_id="l1", extra={"labels": labels}))
    console = Console(file=io.StringIO(), width=100, force_terminal=True, no_color=False, color_system="standard")
    console.print(_drawing.board([BoardList("l1", "To Do")], cards, width=100, with_ids=True, zone=UTC))
    text = console.file.getvalue()
    assert "\x1b[31m2020-01-01" in text
    assert "\x1b[31m9998" not in text
    assert "\x1b[32m ●urgent" in text
    assert "c2020" in text
    assert "l1" in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_an_identifier_is_never_broken_or_cut(width: int) -> None:
    card_id, list_id = "c" * 45, "l" * 24
    console = Console(file=io.StringIO(), width=width, color_system=None)
    lists = [BoardList(f"{list_id}{number}", "To Do") for number in range(4)]
    cards = [Card(card_id, "n" * 200, list_id=f"{list_id}1")]
    console.print(_drawing.board(lists, cards, width=width, with_ids=True))
    lines = console.file.getvalue().splitlines()
    assert any(card_id in line for line in lines)
    assert all(any(item.id in line for line in lines) for item in lists)
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "beside"), [(20, 1), (65, 2), (200, 4)])
def test_lists_share_the_width_of_the_terminal(width: int, beside: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(_drawing.board([BoardList(f"l{number}", f"L{number}") for number in range(4)], [], width=width))
    lines = console.file.getvalue().splitlines()
    assert lines[0].count("╭") == beside
    assert {len(line) for line in lines} == {width}
