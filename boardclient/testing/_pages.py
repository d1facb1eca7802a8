"""The HTML pages of boards and cards, at the addresses in their `url` fields. No I/O.

A page fetches its content every second and shows changes, such as the new cards of an import.
"""

from __future__ import annotations

from html import escape
from urllib.parse import unquote

from boardclient.testing._oauth import Answer, page
from boardclient.testing._rules import BoardRecord, BoardRules, CardRecord, ListRecord

_CARDS_SHOWN = 200
_UPDATE = """
let shown = "";
setInterval(async () => {
  if (document.hidden) return;
  try {
    const response = await fetch(location.pathname + "?content");
    const text = await response.text();
    if (text !== shown && response.status < 500) { document.getElementById("content").innerHTML = text; shown = text; }
  } catch { /* the service has stopped: keep the last content */ }
}, 1000);
"""


def is_page(method: str, path: str) -> bool:
    """Return True if a request asks for the page of a board or a card."""
    parts = path.split("/")
    return method == "GET" and len(parts) == 3 and parts[0] == "" and parts[1] in ("b", "c")


def show(rules: BoardRules, path: str, *, whole: bool) -> Answer:
    """Return a page, or only its content if `whole` is False."""
    _, kind, identifier = path.split("/")
    board, card = rules.boards.get(unquote(identifier)), rules.cards.get(unquote(identifier))
    if kind == "b" and board is not None:
        title, content = board.name, _board(rules, board)
    elif kind == "c" and card is not None:
        title, content = card.name, _card(rules, card)
    else:
        content = "<main class=card><h1>Not found</h1><p>The service has no such board or card.</p></main>"
        return Answer(404, page("Not found", content) if whole else content, "text/html")
    body = page(title, f"<div id=content>{content}</div>", _UPDATE) if whole else content
    return Answer(200, body, "text/html", {"Cache-Control": "no-store"})


def _board(rules: BoardRules, board: BoardRecord) -> str:
    cards: dict[str, list[CardRecord]] = {}
    for card in rules.cards_of(board.id):
        cards.setdefault(card.list_id, []).append(card)
    lists = "".join(_list(rules, record, cards.get(record.id, [])) for record in rules.lists_of(board.id))
    count = sum(map(len, cards.values()))
    return (
        f"<header><h1>{escape(board.name) or 'Untitled'}</h1><p class=quiet>{count} card{'s' * (count != 1)}</p></header>"
        f"<main class=lists>{lists or '<p class=quiet>This board has no lists.</p>'}</main>"
    )


def _list(rules: BoardRules, record: ListRecord, cards: list[CardRecord]) -> str:
    shown = "".join(
        f'<li><a href="{escape(rules.card_url(card.id))}">{escape(card.name) or "Untitled"}{_due(card)}</a></li>'
        for card in cards[:_CARDS_SHOWN]
    )
    if len(cards) > _CARDS_SHOWN:
        shown += f"<li class=quiet>and {len(cards) - _CARDS_SHOWN} more</li>"
    kind, mark = (" closed", " (archived)") if record.closed else ("", "")
    return (
        f'<section class="list{kind}"><h2><span>{escape(record.name) or "Untitled"}{mark}</span>'
        f"<span class=quiet>{len(cards)}</span></h2><ol>{shown}</ol></section>"
    )


def _due(card: CardRecord) -> str:
    return "" if card.due is None else f"<span class=due>due {escape(_readable(card.due))}</span>"


def _readable(due: str) -> str:
    """Return a date-time in a readable form, in the time zone of the text."""
    day, _, time = due.partition("T")
    return f"{day} {time.removesuffix(':00Z')}{' UTC' * time.endswith(':00Z')}".strip() if time.count(":") == 2 else due


def _card(rules: BoardRules, card: CardRecord) -> str:
    board, card_list = rules.boards[card.board_id], rules.lists[card.list_id]
    facts = {"List": card_list.name, "Due": _readable(card.due or ""), "Labels": ", ".join(card.labels), "ID": card.id}
    rows = "".join(
        f"<dt>{name}</dt><dd{' class=id' * (name == 'ID')}>{escape(value)}</dd>" for name, value in facts.items() if value
    )
    above = f'<a href="{escape(rules.board_url(board.id))}">{escape(board.name) or "Untitled"}</a>'
    return (
        f"<main class=card><p class=quiet>{above}</p><h1>{escape(card.name) or 'Untitled'}</h1>"
        f"<pre>{escape(card.desc)}</pre><dl>{rows}</dl></main>"
    )
