"""What rich draws: boards and progress. Texts of the service or a file pass `escape` and are never markup."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Self, TextIO

from rich.cells import cell_len
from rich.color import ANSI_COLOR_NAMES
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from boardclient import BoardList, BulkProgress, Card
from boardclient.cli._output import escape, local, note, out_columns

_NARROWEST_LIST = 30
_FRAME = 6
"""The columns of a panel that its texts can't use: two borders, two blanks, the bullet and a blank."""
_LINE_SECONDS = 10.0
"""How often a run without a terminal prints a line."""


class _Lossy:
    """Writes to a stream and ignores its errors. A full disk must not end an import."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def draw(
    lists: Sequence[BoardList],
    cards: Sequence[Card],
    *,
    zone: tzinfo | None = None,
    cards_per_list: int | None = None,
    with_ids: bool = False,
) -> None:
    """Draw a board on the terminal: its lists side by side with their cards, in the service's order.

    Archived lists are marked, and due dates that have passed are red. Cards that name none of the lists get a panel of their own.

    Args:
        lists: The lists of the board (interface 4.5).
        cards: The cards of the board (interface 4.4).
        zone: The zone of the dates, by default that of this machine.
        cards_per_list: How many cards of a list to draw; the number of the others is shown. All by default.
        with_ids: Whether to draw the identifiers. False by default.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(board(lists, cards, width=console.width, zone=zone, cards_per_list=cards_per_list, with_ids=with_ids))


def board(
    lists: Sequence[BoardList],
    cards: Sequence[Card],
    *,
    width: int,
    zone: tzinfo | None = None,
    cards_per_list: int | None = None,
    with_ids: bool = False,
) -> RenderableType:
    """Return the drawing of a board, which is as wide as the terminal."""
    held: dict[str | None, list[Card]] = {item.id: [] for item in lists}
    stray: list[Card] = []
    for card in cards:
        held.get(card.list_id, stray).append(card)
    drawn = _Panels(zone, cards_per_list, with_ids)
    panels = [drawn.panel(item.name or item.id, held[item.id], item) for item in lists]
    if stray:
        panels.append(drawn.panel("(list not shown)", stray))
    if not panels:
        return Text("The board has no lists.")
    narrowest = _NARROWEST_LIST
    if with_ids:  # an identifier that is broken can't be copied
        narrowest = max(
            narrowest, _FRAME + max(cell_len(escape(found)) for found in (item.id for items in (lists, cards) for item in items))
        )
    return _side_by_side(panels, width, narrowest)


def _side_by_side(panels: Sequence[Panel], width: int, narrowest: int) -> Table:
    beside = max(1, min(len(panels), width // narrowest))
    table = Table.grid(expand=True)
    for _ in range(beside):
        table.add_column(ratio=1)
    for first in range(0, len(panels), beside):
        table.add_row(*panels[first : first + beside])
    return table


class _Panels:
    """Draws lists as panels, all with the same options."""

    def __init__(self, zone: tzinfo | None, limit: int | None, with_ids: bool) -> None:
        self._zone, self._limit, self._with_ids, self._now = zone, limit, with_ids, datetime.now(UTC)

    def panel(self, name: str, cards: Sequence[Card], card_list: BoardList | None = None) -> Panel:
        """Draw a list, or the cards that belong to no list."""
        is_archived = card_list is not None and card_list.closed is True
        title = Text(escape(name), style="dim" if is_archived else "bold")
        title.append(f" (archived, {len(cards)})" if is_archived else f" ({len(cards)})")
        shown = [self._card(card) for card in cards[: self._limit]] or [Text("no cards", style="dim")]
        if self._limit is not None and len(cards) > self._limit:
            shown.append(Text(f"… and {len(cards) - self._limit} more", style="dim"))
        if self._with_ids and card_list is not None:
            shown.insert(0, Text(escape(card_list.id), style="dim", overflow="ignore", no_wrap=True))
        return Panel(Group(*shown), title=title, border_style="dim" if is_archived else "")

    def _card(self, card: Card) -> RenderableType:
        """Draw a card: its name and labels, its due date on the right, its identifier below."""
        first = Table.grid(padding=(0, 1), expand=True)
        first.add_column(width=1)
        first.add_column(ratio=1, overflow="fold")
        first.add_column(justify="right", no_wrap=True)
        name = Text(escape(card.name or card.id))
        for text, style in _labels(card):
            name.append(f" ●{text}", style=style)
        due = Text("")
        if card.due is not None:
            due = Text(f"{local(card.due, self._zone):%Y-%m-%d}", style="red" if card.due < self._now else "dim")
        first.add_row("•", name, due)
        if not self._with_ids:
            return first
        return Group(first, Text(f"  {escape(card.id)}", style="dim", overflow="ignore", no_wrap=True))


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
    names = {item.id: item.name for item in lists}
    filled = {card.list_id for card in cards}
    for card in cards:
        due = "" if card.due is None else local(card.due, zone).isoformat()
        list_name = names.get(card.list_id or "") or ""
        out_columns(card.list_id or "", list_name, card.id, card.name or "", due)
    for item in lists:
        if item.id not in filled:
            out_columns(item.id, item.name or "", "", "", "")


class ProgressView:
    """Shows how far a run is, on standard error: a bar on a terminal, otherwise a line from time to time.

    A context manager; the bar is gone after it.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(file=_Lossy(sys.stderr), highlight=False, markup=False, emoji=False)  # type: ignore[arg-type]  # -- the rest is the stream's
        self._has_bar = self._console.is_terminal and not self._console.is_dumb_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._has_bar, expand=True)
        self._total = total
        self._task = self._bar.add_task("reading the board", total=total, pace="")
        self._printed_at, self._printed = time.monotonic(), ""

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def line(self, text: str, style: str = "") -> None:
        """Print a line above the bar, escaped and not wrapped."""
        self._console.print(Text(escape(text), style=style), soft_wrap=True)

    def update(self, progress: BulkProgress, *, stopping: bool = False) -> None:
        """Show the progress of a run."""
        phase, pace = phase_of(progress), pace_of(progress)
        shown = "stopping (a second signal stops at once)" if stopping else phase
        self._bar.update(self._task, description=shown, completed=progress.done, pace=pace)
        now = time.monotonic()
        is_new = phase.startswith("waiting") and phase != self._printed
        if not self._has_bar and (is_new or now - self._printed_at >= _LINE_SECONDS):
            self._printed_at, self._printed = now, phase
            note(f"{phase}: {progress.done:,} of {self._total:,}{pace and ', '}{pace}")


def phase_of(progress: BulkProgress) -> str:
    """Return what a run is doing, in words."""
    return f"{progress.status}{': boardclient login' if progress.waiting_for == 'consent' else ''}"


def pace_of(progress: BulkProgress) -> str:
    """Return a run's speed and remaining time in words, and how many rows are in doubt."""
    words = [f"{progress.rate:,.0f}/s"] if progress.rate else []
    seconds = progress.remaining_seconds
    if seconds is not None and progress.waiting_for is None:
        minutes, rest = divmod(round(seconds), 60)
        words.append(f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left")
    if progress.in_doubt and progress.phase != "waiting":
        words.append(f"{progress.in_doubt:,} in doubt")
    if progress.unknown:
        words.append(f"{progress.unknown:,} unknown")
    return ", ".join(words)
