"""What rich draws: boards and progress. Texts of the service or a file pass `escape` and are never markup."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self

from rich.cells import cell_len
from rich.color import ANSI_COLOR_NAMES
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from boardclient import BoardList, BulkProgress, Card
from boardclient.cli._output import escape, local, note, out_columns

_NARROWEST_LIST = 30
_FRAME = 6
"""The columns of a panel that its texts can't use: two borders, two blanks, the bullet and a blank."""
_BAR_SECONDS = 0.1
_SLOW = 10.0
"""Cards per second, below which tenths are shown."""
_NOT_KNOWN = "-:--:--"
_LINE_SECONDS = 10.0
"""How often a run without a terminal prints a line."""


def draw(
    lists: Sequence[BoardList], cards: Sequence[Card], *, zone: tzinfo | None = None, cards_per_list: int | None = None
) -> None:
    """Draw a board on the terminal: its lists side by side with their cards, in the service's order.

    Archived lists are marked, and due dates that have passed are red. Cards that name none of the lists get a panel of their own.

    Args:
        lists: The lists of the board (interface 4.5).
        cards: The cards of the board (interface 4.4).
        zone: The zone of the dates, by default that of this machine.
        cards_per_list: How many cards of a list to draw; the number of the others is shown. All by default.
    """
    held: dict[str | None, list[Card]] = {item.id: [] for item in lists}
    stray: list[Card] = []
    for card in cards:
        held.get(card.list_id, stray).append(card)
    # rich takes a terminal of the type "dumb" for one of 80 columns, unless both are given.
    width, height = shutil.get_terminal_size()
    # An identifier that is broken or cut can't be copied: on a narrow terminal it has no frame around it.
    longest = max((cell_len(escape(item.id)) for items in (lists, cards) for item in items), default=0)
    is_framed = width >= _FRAME + longest
    console = Console(width=max(width, longest), height=height, highlight=False, markup=False, emoji=False)
    draw_list = functools.partial(_list, zone=zone, limit=cards_per_list, is_framed=is_framed)
    drawn = [draw_list(item.name or item.id, held[item.id], item) for item in lists]
    if stray:
        drawn.append(draw_list("(list not shown)", stray, None))
    beside = max(1, min(len(drawn), console.width // max(_NARROWEST_LIST, _FRAME + longest)))
    console.print(Columns(drawn, padding=0, width=console.width // beside) if drawn else "The board has no lists.")


def _list(
    name: str, cards: Sequence[Card], card_list: BoardList | None, *, zone: tzinfo | None, limit: int | None, is_framed: bool
) -> RenderableType:
    """Draw a list, or the cards that belong to none."""
    is_archived = card_list is not None and card_list.closed is True
    title = Text(escape(name), style="dim" if is_archived else "bold", overflow="ellipsis")
    title.append(f" (archived, {len(cards)})" if is_archived else f" ({len(cards)})")
    indent = "  " * is_framed
    shown: list[RenderableType] = [_card(card, zone, indent) for card in cards[:limit]] or [Text("no cards", style="dim")]
    if len(cards) > len(shown):
        shown.append(Text(f"… and {len(cards) - len(shown):,} more", style="dim"))
    if card_list is not None:
        shown.insert(0, Text(escape(card_list.id), style="dim", overflow="ignore", no_wrap=True))
    return Panel(Group(*shown), title=title, border_style="dim" if is_archived else "") if is_framed else Group(title, *shown, "")


def _card(card: Card, zone: tzinfo | None, indent: str) -> RenderableType:
    name = Text(escape(card.name or card.id))
    for label, style in _labels(card):
        name.append(f" ●{label}", style=style)
    due = Text()
    if card.due is not None:
        is_late = card.due < datetime.now(UTC)
        due = Text(f"{'overdue ' * is_late}{local(card.due, zone):%Y-%m-%d}", style="red" if is_late else "dim")
    first = Table.grid(padding=(0, 1), expand=True)
    first.add_column(width=1)
    first.add_column(ratio=1, overflow="fold")
    first.add_column(justify="right", no_wrap=True)
    first.add_row("•", name, due)
    return Group(first, Text(f"{indent}{escape(card.id)}", style="dim", overflow="ignore", no_wrap=True))


def _labels(card: Card) -> list[tuple[str, str]]:
    """Return the names and styles of a card's labels, as far as it shows any. The interface documents none of this (2.4)."""
    labels = card.extra.get("labels")
    found: list[tuple[str, str]] = []
    for label in labels if isinstance(labels, list) else ():
        if isinstance(label, dict) and isinstance(color := label.get("color") or "", str):
            name = label.get("name")
            found.append((escape(name) if isinstance(name, str) else "", color if color in ANSI_COLOR_NAMES else "dim"))
    return found


def print_lines(lists: Sequence[BoardList], cards: Sequence[Card], *, zone: tzinfo | None = None) -> None:
    """Print a line for each card, separated by tabs: list, its name, card, its name, due date."""
    names = {item.id: item.name or "" for item in lists}
    for card in cards:
        due = "" if card.due is None else local(card.due, zone).isoformat()
        out_columns(card.list_id or "", names.get(card.list_id or "", ""), card.id, card.name or "", due)
    filled = {card.list_id for card in cards}
    for item in lists:
        if item.id not in filled:
            out_columns(item.id, item.name or "", "", "", "")


class ProgressView:
    """Shows how far a run is, on standard error: a bar on a terminal, otherwise a line from time to time.

    A context manager; the bar is gone after it.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        # A terminal without cursor movements would get each step of the bar as another line.
        self._has_bar = self._console.is_terminal and not self._console.is_dumb_terminal
        # On a narrow terminal the bar shrinks, then the words are broken. Numbers are neither broken nor cut.
        numbers = TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[pace]}", table_column=Column(no_wrap=True))
        columns = TextColumn("{task.description}", table_column=Column()), BarColumn(None, table_column=Column(ratio=1)), numbers
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._has_bar, expand=True)
        self._total = total
        self._task = self._bar.add_task("reading the board", total=total, pace=_pace(0.0, None))
        self._printed_at, self._printed = time.monotonic(), ""
        self._drawn: tuple[float, str] = (-_BAR_SECONDS, "")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, progress: BulkProgress, *, stopping: bool = False) -> None:
        """Show the progress of a run."""
        phase = f"{progress.status}{': boardclient login' if progress.waiting_for == 'consent' else ''}"
        now = time.monotonic()
        if self._has_bar:
            shown = "stopping (a second signal stops at once)" if stopping else phase
            # Results come by the thousand in a second, and drawing each of them would slow the run down.
            if shown != self._drawn[1] or now - self._drawn[0] >= _BAR_SECONDS or progress.done == self._total:
                self._drawn = now, shown
                self._bar.update(self._task, description=shown, completed=progress.done, pace=_pace_of(progress))
        elif now - self._printed_at >= _LINE_SECONDS or (phase.startswith("waiting") and phase != self._printed):
            self._printed_at, self._printed = now, phase
            note(f"{phase}: {progress.done:,} of {self._total:,}, {_pace_of(progress)}".replace(f", {_NOT_KNOWN} left", ""))


def _pace_of(progress: BulkProgress) -> str:
    """Return a run's speed and remaining time in words, and how many rows are in doubt."""
    words = [_pace(progress.rate, progress.remaining_seconds if progress.waiting_for is None else None)]
    if progress.in_doubt and progress.phase != "waiting":
        words.append(f"{progress.in_doubt:,} in doubt")
    if progress.unknown:
        words.append(f"{progress.unknown:,} unknown")
    return ", ".join(words)


def _pace(rate: float, seconds: float | None) -> str:
    left = _NOT_KNOWN if seconds is None else timedelta(seconds=round(seconds))
    return f"{rate:,.{0 if rate >= _SLOW or not rate else 1}f}/s, {left} left"
