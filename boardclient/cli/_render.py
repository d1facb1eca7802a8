"""What rich draws: boards and progress bars. Texts of the service or a file pass `escape` and are never markup."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from boardclient import BoardList, BulkProgress, Card
from boardclient.cli._text import escape
from boardclient.events import WaitReason

_WAITING: Mapping[WaitReason, str] = {
    "outage": "waiting until the service can be reached again",
    "consent": "waiting for the user to sign in",
    "retry-after": "waiting as long as the service asked for",
    "settling": "waiting to see which lost requests were carried out",
}
_NARROWEST_LIST = 30
_WIDEST_LIST = 60


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


def output() -> Console:
    """Return a console on the current standard output."""
    return Console(highlight=False, markup=False, emoji=False)


def notes() -> Console:
    """Return a console on the current standard error."""
    return Console(file=_Lossy(sys.stderr), highlight=False, markup=False, emoji=False)  # type: ignore[arg-type]  # -- the rest is the stream's


def line(console: Console, text: str, style: str = "") -> None:
    """Print one line, escaped and not wrapped."""
    console.print(Text(escape(text), style=style), soft_wrap=True)


def board(
    lists: Sequence[BoardList],
    cards: Sequence[Card],
    *,
    width: int,
    cards_per_list: int | None = None,
    with_ids: bool = False,
    now: datetime | None = None,
) -> RenderableType:
    """Draw a board's lists side by side with their cards, in the service's order.

    Archived lists are marked, and due dates before `now` are red. Cards that name none of the lists get a panel of their own.

    Args:
        lists: The lists of the board (section 4.5).
        cards: The cards of the board (section 4.4).
        width: The number of columns of the terminal, which the lists share.
        cards_per_list: How many cards of a list to draw; the number of the others is shown. All by default.
        with_ids: Whether to draw the identifiers. False by default.
        now: The time before which a due date is red. By default the time of the call.
    """
    held: dict[str | None, list[Card]] = {item.id: [] for item in lists}
    stray: list[Card] = []
    for card in cards:
        held.get(card.list_id, stray).append(card)
    draw = _Panels(cards_per_list, with_ids, now or datetime.now(UTC))
    panels = [draw.panel(item.name or item.id, held[item.id], item) for item in lists]
    if stray:
        panels.append(draw.panel("(list not shown)", stray))
    return _side_by_side(panels, width) if panels else Text("The board has no lists.")


def _side_by_side(panels: Sequence[Panel], width: int) -> Table:
    beside = max(1, min(len(panels), width // _NARROWEST_LIST))
    each = min(_WIDEST_LIST, width // beside)
    table = Table.grid()
    for _ in range(beside):
        table.add_column(width=each)
    for first in range(0, len(panels), beside):
        table.add_row(*panels[first : first + beside])
    return table


class _Panels:
    """Draws lists as panels, all with the same options."""

    def __init__(self, limit: int | None, with_ids: bool, now: datetime) -> None:
        self._limit, self._with_ids, self._now = limit, with_ids, now

    def panel(self, name: str, cards: Sequence[Card], card_list: BoardList | None = None) -> Panel:
        """Draw a list, or the cards that belong to no list."""
        is_archived = card_list is not None and card_list.closed is True
        title = Text(escape(name), style="dim" if is_archived else "bold")
        title.append(f" (archived, {len(cards)})" if is_archived else f" ({len(cards)})")
        shown = [self._card(card) for card in cards[: self._limit]] or [Text("no cards", style="dim")]
        if self._limit is not None and len(cards) > self._limit:
            shown.append(Text(f"… and {len(cards) - self._limit} more", style="dim"))
        subtitle = Text(escape(card_list.id), style="dim") if self._with_ids and card_list is not None else None
        return Panel(Group(*shown), title=title, subtitle=subtitle, border_style="dim" if is_archived else "")

    def _card(self, card: Card) -> RenderableType:
        """Draw a card: its name, its due date on the right, its identifier below."""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(width=1)
        row.add_column(ratio=1, overflow="fold")
        row.add_column(justify="right", no_wrap=True)
        name = Text(escape(card.name or card.id))
        if self._with_ids:
            name.append(f"\n{escape(card.id)}", style="dim")
        due = Text("")
        if card.due is not None:
            due = Text(f"{card.due:%Y-%m-%d}", style="red" if card.due < self._now else "dim")
        row.add_row("•", name, due)
        return row


def progress(console: Console) -> Progress:
    """Return a progress bar that is drawn on a terminal only, and removed at its end.

    Its tasks have a field `pace`.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def pace(progress: BulkProgress) -> str:
    """Return a run's speed and remaining time as text, or why the run waits."""
    if progress.waiting_for is not None:
        return _WAITING[progress.waiting_for]
    text, seconds = f"{progress.rate:.0f} cards/s", progress.remaining_seconds
    if seconds is None:
        return text
    minutes, seconds = divmod(round(seconds), 60)
    return f"{text}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
