"""Services of every kind that the interface allows, drawn by chance: how they show cards, what automations and people do.

    PYTHONPATH=tests python tests/drawn_services.py --count 1000 [--seed 0]

prints what became of the rows of so many services, by content and with markers, without and with probes.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import itertools
import json
import random
import re
import tempfile
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from boardclient import AsyncSession, BulkReport, CardDraft, CardResult
from boardclient.testing import BoardService

Text: TypeAlias = Callable[[str], "str | None"]
Date: TypeAlias = Callable[[datetime], "datetime | None"]


def _cut(length: int, end: str = "") -> Text:
    return lambda text: text if len(text) <= length else text[:length] + end


def _ascii(instead: str) -> Text:
    return lambda text: re.sub(r"[^\x00-\x7f]", instead, text)


def _form(form: str) -> Text:
    return lambda text: unicodedata.normalize(form, text)


def _each(pattern: str, change: Callable[[str], str]) -> Text:
    return lambda text: re.sub(pattern, lambda match: change(match.group()), text)


_WORDS: Final = {"card": "Karte", "row": "Zeile", "text": "Text", "long": "lang", "and": "und", "of": "von", "fine": "gut"}
_DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

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
    "masked words": _each(r"\b(card|row|text)\b", lambda word: "*" * len(word)),
    "masked numbers": _each(r"\d+", lambda number: "#" * len(number)),
    "masked codes": _each(r"\w{12,}", lambda word: f"{word[:4]}…{word[-2:]}"),
    "translated": _each(r"\w+", lambda word: _WORDS.get(word, word)),
    "emoji for words": _each(r"\b(card|text)\b", lambda word: "🃏"),
    "emoji at the end": lambda text: f"{text} 🚀",
    "issue keys": _each(r"\d+", lambda number: f"[PRJ-{number}](https://issues.example/PRJ-{number})"),
    "initials": lambda text: f"{text} ({''.join(word[:1] for word in text.split())[:3].upper()})",
    "sorted words": lambda text: " ".join(sorted(text.split())),
    "reversed words": lambda text: " ".join(reversed(text.split())),
    "without vowels": _each(r"[aeiou]", lambda vowel: ""),
    "shifted letters": lambda text: text.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")),
    "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
    "spelled numbers": _each(r"\d", lambda digit: f"{_DIGITS[int(digit)]} "),
    "digest": lambda text: f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}",
    "few digests": lambda text: f"ticket {zlib.crc32(text.encode('utf-8', 'replace')) % 7}",
    "first word": lambda text: (text.split() or [""])[0],
    "priority": lambda text: f"P{len(text) % 4} {text}",
    "assigned": lambda text: f"@{'bob' if len(text) % 2 else 'eve'} {text}",
    "dated": lambda text: f"{text} (2 Jan)",
    "typographic": lambda text: text.replace("-", "\u2013").replace("b", "\u2019b"),
    "next number": _each(r"\d+", lambda number: str(int(number) + 1)),
}  # fmt: skip


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
    "another zone": lambda due: due + timedelta(hours=2),
}


@attrs.frozen(kw_only=True)
class ServiceKind:
    """How a service shows the cards of a listing; `cap` is how many, `is_newest` which.

    `shows_answers` says that the response to a creation shows a card in the same way, otherwise as it was sent. A name that is
    left out is left out of listings alone. `only` is the number of the list whose cards an automation changes; None means that
    the service shows all cards in this way.
    """

    name: str = "as sent"
    desc: str = "as sent"
    due: str = "as sent"
    shows_lists: bool = True
    shows_answers: bool = False
    cap: int | None = None
    is_newest: bool = False
    only: int | None = None

    def shape(self, operation: str, body: Any) -> Any:
        """Show cards as this service does, in responses and in listings."""
        if operation == "cards.create":
            return self.show(body) if self.shows_answers and self.only is None else body
        if operation not in {"boards.cards", "cards.get"}:
            return body
        shown = [self.show(card) for card in (body if isinstance(body, list) else [body])]
        if not isinstance(body, list):
            return shown[0]
        if self.cap is None:
            return shown
        ordered = sorted(shown, key=lambda card: str(card["id"]))
        return ordered[-self.cap :] if self.is_newest else ordered[: self.cap]

    def show(self, card: Mapping[str, Any]) -> dict[str, Any]:
        """Show one card, in the names of the wire."""
        shown = dict(card)
        if self.only is None:
            shown |= {"name": TEXTS[self.name](card["name"]), "desc": TEXTS[self.desc](card["desc"])}
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
            return "as sent" if chance.random() < 0.4 else chance.choice([*ways])

        return cls(
            name=some(TEXTS),
            desc=some(TEXTS),
            due=some(DATES),
            shows_answers=chance.random() < 0.5,
            shows_lists=chance.random() < 0.8,
            cap=chance.choice([50, chance.randrange(1, 40)]) if is_capped else None,
            is_newest=chance.random() < 0.5,
            only=chance.choice([None, None, 0, 1]),
        )


DUE: Final = datetime(2027, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
_NAMES: Final = ("card {}",) * 12 + (
    "{} ", "{}  with  spaces", "Tom & Jerry {}", "<b>{}</b>", "[{}]", "é {}", "e\u0301 {}", "🎉 {}", "*{}*_",
    "call +49 170 {}{}{}", "{} which is a name so long that services cut it", "row {} and a text",
)  # fmt: skip


def draw_rows(chance: random.Random, lists: Iterable[str]) -> list[CardDraft]:
    """Draw rows: mostly plain ones, some of each kind that services change, some twice."""
    homes, rows, rate = [*lists], list[CardDraft](), chance.choice([0.0, 0.0, 0.2])
    for number in range(chance.randrange(2, 26)):
        name = (chance.choice(_NAMES) if rate else "card {}").format(number, number, number)
        desc = chance.choice([None, None, "", f"text of {number}", "a & b [x]"])
        due = chance.choice([None, None, DUE + timedelta(days=number), (DUE + timedelta(hours=number)).replace(microsecond=0)])
        rows.append(CardDraft(name, chance.choice(homes), desc=desc, due=due))
        if chance.random() < rate:
            rows.append(chance.choice(rows))
    return rows


def _without_marker(desc: str) -> str:
    """Return what was sent for a row without the two copies of its marker, whatever letters that has."""
    sent = re.fullmatch(r"\[(\S+)\](?:\n\n(.+)\n\n\[\1\])?", desc, re.DOTALL)
    assert sent is not None, desc
    return sent[2] or ""


@attrs.define
class Outcome:
    """What became of the rows of a drawn service, as they are and as the runs reported it."""

    rows: int = 0
    unknown: int = 0
    second: int = 0
    """Cards that were created for rows that had one."""
    lost: int = 0
    """Rows that are reported as created and have no card."""
    untrue: int = 0
    """Rows that are reported with the card of another row or of others."""
    silent: int = 0
    """Runs with one of these whose report says that all is well."""
    accused: int = 0
    """Runs in which all is well, and whose audit says that something is wrong."""
    disagreeing: int = 0
    """Runs whose audit names other cards than the errors of the rows."""
    failed: int = 0
    """Rows that were sent five times and were proven absent each time."""
    probes: int = 0
    """Temporary cards that were created."""
    stay: int = 0
    """Those of them that are on the board at the end, and that the last run names."""
    forgotten: int = 0
    """Those that no run names, though they can be recognised."""

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.second or self.lost or self.untrue or self.silent or self.accused or self.disagreeing or self.forgotten)

    def add(self, other: Outcome) -> None:
        """Add the counts of another one."""
        for field in attrs.fields(Outcome):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class DrawnWorld:
    """A drawn service with its people, and the runs of one input until the last one ended by itself."""

    def __init__(self, seed: int, *, marker: bool | None, kind: ServiceKind | None = None, probe: bool = False) -> None:
        self.chance = chance = random.Random(seed)
        drawn = ServiceKind.draw(chance, is_capped=chance.random() < 0.15)
        self.kind = drawn if kind is None else kind
        self.marker = marker
        self.probe = probe
        self.loss = chance.choice([0.05, 0.2, 0.5])
        self.meddling = chance.choice([0.0, 0.0, 0.3])
        self.strangers = chance.choice([0.0, 0.0, 0.1])
        self.deaths = chance.choice([0, 0, 1, 2])
        self.made: dict[str, Hashable] = {}
        """What was sent for each card that a row made."""
        self.gone: list[tuple[str, Hashable]] = []
        """The cards that a row made and people have deleted."""
        self.free: list[str] = []
        """The identifiers of deleted cards, which the service gives again."""
        self.probes: dict[str, str | None] = {}
        """The temporary cards of runs, with the marker by which one is known whose response did not come."""
        self.known: list[str] = []
        """The cards that people may delete: those of others, and those that were reported."""
        self.more = more = random.Random(f"deletions {seed}")  # so that the other services stay what they were
        self.deletions = more.choice([0.0] * 9 + [0.2])
        if self.deletions:  # without a marker only a card that is shown as it was sent tells whose it is
            self.meddling = 0.0
            self.kind = attrs.evolve(self.kind, desc="as sent", cap=None)
            if not marker:
                self.kind = attrs.evolve(self.kind, name="as sent", due="as sent")
        self.lists: list[str] = []

    async def play(self, stage: Any) -> None:
        """Carry out a creation or not, let automations and people change its card, and respond or not: a fault for services."""
        chance = self.chance
        is_lost = chance.random() < self.loss
        if is_lost and chance.random() < 0.5:
            stage.abort()
            return
        answer = stage.commit()
        if answer.status >= 300:
            await stage.reply_answer()
            return
        record = self.service.rules.cards[answer.body["id"]]
        if self.free:
            record.id = answer.body["id"] = self.give_again(record)
        is_probe = "temporary card" in record.name
        if is_probe:
            self.probes[record.id] = record.name.split()[0] if is_lost else None
        desc = _without_marker(record.desc) if self.marker else record.desc
        if not is_probe:
            self.made[record.id] = self.key(record.name, record.list_id, desc, record.due)
        if self.kind.only is not None and self.lists.index(record.list_id) == self.kind.only:
            record.name = TEXTS[self.kind.name](record.name) or "-"
            record.desc = TEXTS[self.kind.desc](record.desc) or ""
        if chance.random() < self.meddling * (1 if is_lost else 0.2):
            self.meddle(record)
        if chance.random() < self.strangers:
            self.add_stranger()
        if is_lost:
            stage.abort()
        else:
            await stage.reply_answer()
        if self.known and self.more.random() < self.deletions:
            self.delete(self.known.pop(self.more.randrange(len(self.known))))

    def delete(self, card_id: str) -> None:
        """Delete a card that is known, as people do."""
        del self.service.rules.cards[card_id]
        self.free.append(card_id)
        if card_id in self.made:
            self.gone.append((card_id, self.made.pop(card_id)))

    def give_again(self, record: Any) -> str:
        """Give a new card the identifier of a deleted one."""
        given = self.free.pop()
        cards = self.service.rules.cards
        cards[given] = cards.pop(record.id)
        return given

    def meddle(self, record: Any) -> None:
        """Change a card as people do: one thing or two."""
        for what in self.chance.sample(["move", "date", "describe", "append", "rename"], self.chance.choice([1, 1, 2])):
            match what:
                case "move":
                    record.list_id = self.chance.choice(self.lists)
                case "date":
                    record.due = "2031-05-06T00:00:00Z"
                case "describe" if not self.marker or record.name != "renamed by somebody":
                    record.desc = "described by somebody"
                case "append":
                    record.desc += "\n\nsaid somebody"
                case "rename" if not self.marker or record.desc != "described by somebody":
                    record.name = "renamed by somebody"

    def add_stranger(self) -> None:
        """Create a card on behalf of others."""
        number = len(self.service.rules.cards)
        body = {"name": self.chance.choice([f"of others {number}", f"card {number}"]), "idList": self.chance.choice(self.lists)}
        body |= {"desc": self.chance.choice(["", "of others"]), "key": self.service.key, "token": self.service.token}
        answer = self.service.rules.answer("POST", "/1/cards", {}, body)
        assert answer.status < 300, answer
        self.known.append(answer.body["id"])

    def key(self, name: str, list_id: str, desc: str | None, due: str | None) -> Hashable:
        """Return what was sent for a row."""
        return name, list_id, desc or "", None if due is None else datetime.fromisoformat(due)

    async def run(self, folder: Path) -> Outcome:
        """Run until a run ends by itself, and compare what it reports with what is."""
        async with BoardService(shape=self.kind.shape) as service, service.session(retry=None) as session:
            self.service = service
            board = await session.boards.create("Launch")
            self.lists = [(await session.lists.create(name, board_id=board.id)).id for name in ("one", "two")]
            for _ in range(self.chance.choice([0, 0, 3, 20])):
                self.add_stranger()
            drafts = draw_rows(self.chance, self.lists)
            service.faults.add(self, "cards.create")
            for process in range(self.deaths + 1):
                results = await self.process(session, board.id, drafts, folder / "journal", dies=process < self.deaths)
            return self.judge(drafts, results, self.report)

    async def process(
        self, session: AsyncSession, board_id: str, drafts: list[CardDraft], journal: Path, *, dies: bool
    ) -> dict[int, CardResult]:
        """Run once, to the end or until the block is left in the middle."""
        results: dict[int, CardResult] = {}
        async with session.cards.create_many(
            drafts,
            concurrency=self.chance.choice([1, 3]),
            board_id=board_id,
            settle=0.0,
            marker=self.marker,
            probe=self.probe,
            journal=journal if self.deaths or self.chance.random() < 0.5 else None,
        ) as run:
            ends_after = self.chance.randrange(1 + len(drafts)) if dies else len(drafts) + 1
            if not ends_after:
                return results
            async for result in run:
                results[result.index] = result
                if result.card is not None and result.state == "created":
                    self.known.append(result.card.id)
                if len(results) == ends_after:
                    break
        self.report: BulkReport = run.report
        return results

    def judge(self, drafts: list[CardDraft], results: Mapping[int, CardResult], report: BulkReport) -> Outcome:
        """Compare what was reported with what is."""
        keys = [
            self.key(draft.name, draft.list_id, draft.desc, None if draft.due is None else draft.due.isoformat())
            for draft in drafts
        ]
        made, wanted = [*self.made.items(), *self.gone], Counter(keys)
        created = Counter(key for _, key in made)
        found = Outcome(rows=len(drafts), unknown=sum(result.state == "unknown" for result in results.values()))
        # Of two equal cards with one identifier people have deleted the first, as if it were the other: nothing tells them apart.
        found.second = sum((Counter(key for _, key in {*made}) - wanted).values())
        reported = Counter(keys[index] for index, result in results.items() if result.state in {"created", "already"})
        found.lost = sum((reported - created).values())
        found.untrue = sum(
            result.card is not None and (result.card.id, keys[index]) not in made for index, result in results.items()
        )
        found.failed = sum(result.state == "failed" for result in results.values())
        assert all(self.probe and "sent 5 times" in str(result.error) for result in results.values() if result.state == "failed")
        self.count_probes(found, report)
        assert len(results) == len(drafts)
        audit = report.audit
        says_well = not found.unknown and (audit is None or audit.is_sound)
        found.silent = int(bool(found.second or found.lost or found.untrue) and says_well)
        if audit is not None and self.kind.cap is None:
            is_wrong = bool(audit.lost or audit.reused or audit.duplicated)
            equal = {key[0] for key in wanted if isinstance(key, tuple)}
            others = [card for card in self.service.rules.cards.values() if card.id not in self.made.keys() | self.probes]
            is_right = found.second or self.gone or any(card.name in equal for card in others)
            found.accused = int(is_wrong and not is_right)
        if audit is not None:
            named = {
                word.strip(",:") for result in results.values() if result.state == "unknown" for word in str(result.error).split()
            }
            unexpected = {card.id for card in (*audit.unexpected, *audit.duplicated)}
            resembling = {card.id for card in audit.resembling}
            found.disagreeing = int(not (named & unexpected <= resembling and (len(resembling) > 5 or resembling <= named)))
        return found

    def count_probes(self, found: Outcome, report: BulkReport) -> None:
        """Compare the temporary cards that are on the board with those that the last run names."""
        there, named = self.probes.keys() & self.service.rules.cards, {card.id for card in report.probes}
        found.probes, found.stay = len(self.probes), len(there & named)
        found.forgotten = len([card_id for card_id in there - named if self.is_recognisable(card_id)])

    def is_recognisable(self, card_id: str) -> bool:
        """Return False for a temporary card whose response was lost and whose marker is not listed."""
        card = self.service.rules.cards[card_id]
        shown, marker = self.kind.show({"name": card.name, "desc": card.desc}), self.probes[card_id]
        is_listed = self.kind.cap is None
        return marker is None or (is_listed and bool(re.search(rf"\b{marker}\b", json.dumps([*shown.values()]))))


async def draw(seed: int, *, marker: bool | None, kind: ServiceKind | None = None, probe: bool = False) -> Outcome:
    """Draw a service, run an input there, and say what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        return await DrawnWorld(seed, marker=marker, kind=kind, probe=probe).run(Path(folder))


def main() -> None:
    """Count what becomes of the rows of many services."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for marker, probe in itertools.product((None, True), (False, True)):
        total = Outcome()
        for seed in range(options.seed, options.seed + options.count):
            outcome = asyncio.run(draw(seed, marker=marker, probe=probe))
            if not outcome.is_good:
                print(json.dumps({"seed": seed, "marker": marker, "probe": probe, **attrs.asdict(outcome)}), flush=True)  # noqa: T201 -- a script
            total.add(outcome)
        print(json.dumps({"services": options.count, "marker": marker, "probe": probe, **attrs.asdict(total)}), flush=True)  # noqa: T201 -- a script


if __name__ == "__main__":
    main()
