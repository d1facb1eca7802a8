"""What is drawn on the terminal; every text of the service or a file passes `escape` and is never read as markup."""

import unicodedata
from collections.abc import Mapping, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from boardclient import BoardList, BulkProgress, Card

# Marks, embeddings, overrides and isolates: what makes a terminal show text in another order than it has.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_LIST_WIDTH = 34


def escape(text: str) -> str:
    r"""Write out control characters: a text is one line and steers no terminal.

    Written out are C0 (tab and newline among them), DEL, C1, line and paragraph separators, bidirectional controls, and halves of
    surrogate pairs, as `\x1b` or `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character in _BIDI or unicodedata.category(character) in _CONTROL_CATEGORIES:
        return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    return character


def output() -> Console:
    """Return a console on standard output, as that is now."""
    return Console(highlight=False, markup=False, emoji=False)


def notes() -> Console:
    """Return a console on standard error, as that is now."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def line(console: Console, text: str, style: str = "") -> None:
    """Print one line, escaped and never wrapped."""
    console.print(Text(escape(text), style=style), soft_wrap=True)


def details(console: Console, title: str, fields: Mapping[str, object]) -> None:
    """Print a title and below it one line for each field that has a value."""
    line(console, title, style="bold")
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if value is not None:
            text = Text(f"  {name:<{width}}  ", style="dim")
            text.append(escape(str(value)), style="not dim")
            console.print(text, soft_wrap=True)


def card_fields(card: Card) -> dict[str, object]:
    """Return what is known of a card, by the names that the command line uses."""
    return {
        "id": card.id,
        "name": card.name,
        "desc": card.desc,
        "url": card.url,
        "list": card.list_id,
        "due": None if card.due is None else card.due.isoformat(),
        "pos": card.pos,
    }


def board(lists: Sequence[BoardList], cards: Sequence[Card], *, cards_per_list: int | None = None) -> RenderableType:
    """Draw a board's lists side by side with their cards, in the service's order.

    Archived lists are marked; beyond `cards_per_list` cards are only counted. Cards whose answer names none of the lists get a
    panel of their own.
    """
    held: dict[str | None, list[Card]] = {item.id: [] for item in lists}
    stray: list[Card] = []
    for card in cards:
        held.get(card.list_id, stray).append(card)
    panels = [_panel(item.name or item.id, held[item.id], cards_per_list, archived=item.closed is True) for item in lists]
    if stray:
        panels.append(_panel("(list not told)", stray, cards_per_list))
    return Columns(panels, padding=(0, 1)) if panels else Text("The board has no lists.")


def _panel(name: str, cards: Sequence[Card], limit: int | None, *, archived: bool = False) -> Panel:
    title = Text(escape(name), style="dim" if archived else "bold")
    title.append(f" (archived, {len(cards)})" if archived else f" ({len(cards)})")
    shown = list(map(_card_line, cards[:limit])) or [Text("no cards", style="dim")]
    if limit is not None and len(cards) > limit:
        shown.append(Text(f"… and {len(cards) - limit} more", style="dim"))
    return Panel(Group(*shown), title=title, width=_LIST_WIDTH, border_style="dim" if archived else "")


def _card_line(card: Card) -> Text:
    text = Text("• ")
    text.append(escape(card.name or card.id))
    if card.due is not None:
        text.append(f" {card.due:%Y-%m-%d}", style="dim")
    return text


def progress(console: Console) -> Progress:
    """Return a bar that is drawn on a terminal only and leaves nothing behind; its tasks have a field `pace`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def pace(progress: BulkProgress) -> str:
    """Say how fast a run is and how long it takes until its end, as far as that is known."""
    text, seconds = f"{progress.rate:.0f} cards/s", progress.remaining_seconds
    if seconds is None:
        return text
    minutes, seconds = divmod(round(seconds), 60)
    return f"{text}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
