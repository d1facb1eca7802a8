"""Services of every kind that the interface allows, drawn by chance: how they show cards, and what people do to them."""

from __future__ import annotations

import html
import random
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

Text: TypeAlias = Callable[[str], "str | None"]
Date: TypeAlias = Callable[[datetime], "datetime | None"]


def _cut(length: int, end: str = "") -> Text:
    return lambda text: text if len(text) <= length else text[:length] + end


def _ascii(instead: str) -> Text:
    return lambda text: re.sub(r"[^\x00-\x7f]", instead, text)


def _form(form: str) -> Text:
    return lambda text: unicodedata.normalize(form, text)


TEXTS: Final[Mapping[str, Text]] = {
    "as sent": lambda text: text,
    "trimmed": str.strip,
    "right trimmed": str.rstrip,
    "one line": lambda text: " ".join(text.split()),
    "lower": str.lower,
    "upper": str.upper,
    "title": str.title,
    "capitalised": lambda text: text[:1].upper() + text[1:],
    "escaped": html.escape,
    "escaped twice": lambda text: html.escape(html.escape(text)),
    "cut": _cut(24),
    "cut with dots": _cut(24, "..."),
    "cut with ellipsis": _cut(30, "…"),
    "trimmed and cut": lambda text: text.strip()[:28],
    "escaped and cut": lambda text: html.escape(text)[:32],
    "NFC": _form("NFC"),
    "NFD": _form("NFD"),
    "NFKC": _form("NFKC"),
    "without control characters": lambda text: "".join(char for char in text if unicodedata.category(char) != "Cc"),
    "without others than ASCII": _ascii(""),
    "questions for others than ASCII": _ascii("?"),
    "named emoji": lambda text: text.replace("🎉", ":tada:").replace("✓", ":check:"),
    "without brackets": lambda text: re.sub(r"[\[\]()]", "", text),
    "without punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
    "escaped by backslashes": lambda text: re.sub(r"([\[\]_*#])", r"\\\1", text),
    "paragraphs": lambda text: f"<p>{html.escape(text)}</p>" if text else "",
    "numbered": lambda text: f"BOARD-{len(text)}: {text}",
    "always the same": lambda text: "card",
    "left out": lambda text: None,
}


def _floor(unit: timedelta) -> Date:
    return lambda due: due - (due - due.replace(hour=0, minute=0, second=0, microsecond=0)) % unit


DATES: Final[Mapping[str, Date]] = {
    "as sent": lambda due: due,
    "milliseconds": _floor(timedelta(milliseconds=1)),
    "seconds": _floor(timedelta(seconds=1)),
    "nearest second": lambda due: _floor(timedelta(seconds=1))(due + timedelta(milliseconds=500)),
    "minutes": _floor(timedelta(minutes=1)),
    "days": _floor(timedelta(days=1)),
    "left out": lambda due: None,
}

RECOGNISABLE: Final = frozenset(TEXTS) - {"cut", "cut with dots", "cut with ellipsis", "trimmed and cut", "escaped and cut"} - {
    "paragraphs", "numbered", "always the same", "left out",
}  # fmt: skip
"""Ways of showing names that leave what tells them from those of others."""


@attrs.frozen(kw_only=True)
class ServiceKind:
    """How a service shows the cards of a listing; `cap` is how many, `is_newest` which.

    `shows_answers` says that the response to a creation shows a card in the same way, otherwise as it was sent. A name that is
    left out is left out of listings alone.
    """

    name: str = "as sent"
    desc: str = "as sent"
    due: str = "as sent"
    shows_lists: bool = True
    shows_answers: bool = False
    cap: int | None = None
    is_newest: bool = False

    def shape(self, operation: str, body: Any) -> Any:
        """Show cards as this service does, in responses and in listings."""
        if operation == "cards.create":
            return self.show(body) if self.shows_answers else body
        if operation != "boards.cards":
            return body
        shown = [self.show(card) for card in body]
        if self.cap is None:
            return shown
        ordered = sorted(shown, key=lambda card: str(card["id"]))
        return ordered[-self.cap :] if self.is_newest else ordered[: self.cap]

    def show(self, card: Mapping[str, Any]) -> dict[str, Any]:
        """Show one card, in the names of the wire."""
        shown = {**card, "name": TEXTS[self.name](card["name"]), "desc": TEXTS[self.desc](card["desc"])}
        if shown.get("due") is not None:
            due = DATES[self.due](datetime.fromisoformat(shown["due"]))
            shown["due"] = None if due is None else due.isoformat()
        if not self.shows_lists:
            shown.pop("idList", None)
        return {name: value for name, value in shown.items() if value is not None or name == "due"}

    @classmethod
    def draw(cls, chance: random.Random, *, is_capped: bool = False) -> ServiceKind:
        """Draw a kind; each field is as sent about as often as not."""

        def some(ways: Mapping[str, object]) -> str:
            return "as sent" if chance.random() < 0.3 else chance.choice([*ways])

        return cls(
            name=some(TEXTS),
            desc=some(TEXTS),
            due=some(DATES),
            shows_answers=chance.random() < 0.5,
            shows_lists=chance.random() < 0.8,
            cap=chance.choice([50, chance.randrange(1, 40)]) if is_capped else None,
            is_newest=chance.random() < 0.5,
        )
