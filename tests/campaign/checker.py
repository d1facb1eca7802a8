"""What became of an import, by what the service holds and what each process said: neither the journal nor a report is believed.

In Jepsen's words: *lost* is a row reported as created without a card, or a row that nothing was said of; *duplicated* are cards
beyond the number of their rows; *unexpected* are cards of no row; *recovered* are cards of rows whose response was lost. Each
report is compared with the service as well. Nothing of the package is used here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeAlias

import attrs

Content: TypeAlias = tuple[str, str, str, datetime | None]
"""List, name, description without a marker, due date."""
_MARKED = re.compile(r"\[(\S+)\](?:\n\n(.+)\n\n\[\1\])?", re.DOTALL)
"""A description with its marker before and after it, whatever letters that has."""


def content_of_row(row: Mapping[str, Any]) -> Content:
    return row["list_id"], row["name"], row["desc"] or "", None if row["due"] is None else datetime.fromisoformat(row["due"])


def content_of_card(card: Any, *, is_marked: bool) -> Content:
    desc = card.desc
    if is_marked and (match := _MARKED.fullmatch(desc)):
        desc = match[2] or ""
    return card.list_id, card.name, desc, None if card.due is None else datetime.fromisoformat(card.due)


@attrs.define(kw_only=True)
class Findings:
    """What the checker found in one run, or the sum over several."""

    runs: int = 0
    kills: int = 0
    cut_off: int = 0
    """Journals whose creation was cut off, which the next process refuses: they are removed, and nothing may have been sent."""
    again: int = 0
    """Imports that ended with unknown rows although everything was as assumed, and were run once more."""
    posts: int = 0
    refused: int = 0
    unauthorised: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    recovered: int = 0
    unknown: int = 0
    untrue: list[str] = attrs.field(factory=list)

    def __iadd__(self, other: Findings) -> Self:
        for field in attrs.fields(Findings):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    @property
    def is_clean(self) -> bool:
        """Return whether nothing is lost, duplicated, unexpected or untrue."""
        return not (self.lost or self.duplicated or self.unexpected or self.untrue)


@attrs.frozen(kw_only=True)
class Process:
    """What one process said until its end, line by line, and how it ended."""

    lines: list[dict[str, Any]]
    status: int
    is_hung: bool

    @property
    def is_refused(self) -> bool:
        """Return whether it ended because a token was refused, or because the next renewal has to wait after that."""
        fatal = self.last.get("fatal", "")
        return fatal.startswith(("AuthenticationError", "CredentialError: the service refused a token as soon as it was new"))

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of rows."""
        return [line for line in self.lines if "index" in line]

    @property
    def last(self) -> dict[str, Any]:
        """The line of the report, or of the error that ended it."""
        return self.lines[-1] if self.lines and "index" not in self.lines[-1] else {}


@attrs.frozen(kw_only=True)
class Evidence:
    """What the checker goes by: the input, the service at its end, and what was said."""

    rows: Sequence[Mapping[str, Any]]
    cards: Mapping[str, Any]
    ours: frozenset[str]
    unanswered: frozenset[str]
    processes: Sequence[Process]
    is_marked: bool
    may_end: bool


def check(evidence: Evidence) -> Findings:
    """Compare what was said with what there is."""
    found = Findings(runs=1, kills=sum(process.status == -9 for process in evidence.processes))
    cards, is_marked = evidence.cards, evidence.is_marked
    contents = {identifier: content_of_card(cards[identifier], is_marked=is_marked) for identifier in evidence.ours}
    wanted = Counter(map(content_of_row, evidence.rows))
    present = Counter(contents.values())
    found.unexpected = sum(number for content, number in present.items() if content not in wanted)
    found.duplicated = sum(max(0, number - wanted[content]) for content, number in present.items() if content in wanted)
    if evidence.is_marked:
        marks = Counter(match[1] for identifier in evidence.ours if (match := _MARKED.fullmatch(evidence.cards[identifier].desc)))
        found.duplicated = max(found.duplicated, sum(number - 1 for number in marks.values()))
        found.unexpected += len(evidence.ours) - sum(marks.values())
    last = evidence.processes[-1]
    if last.status != 0 or "report" not in last.last:
        found.untrue.append(f"the last process ended with {last.status} and {last.last}")
        return found
    _check_states(evidence, last, contents, found)
    _check_earlier(evidence, contents, found)
    _check_report(evidence, last, found)
    return found


def _check_states(evidence: Evidence, last: Process, contents: Mapping[str, Content], found: Findings) -> None:
    """Each row is said to be something once, and is it."""
    said = Counter(result["index"] for result in last.results)
    found.lost += sum(not said[number] for number in range(len(evidence.rows)))
    found.untrue += [f"row {number} has {times} results" for number, times in said.items() if times > 1]
    claimed = Counter(result["card"] for result in last.results if result["card"] is not None)
    found.untrue += [f"card {card} is given to {times} rows" for card, times in claimed.items() if times > 1]
    done: Counter[Content] = Counter()
    for result in last.results:
        index, state, card = result["index"], result["state"], result["card"]
        content = content_of_row(evidence.rows[index])
        if state in {"created", "already"}:
            done[content] += 1
            if contents.get(card) != content:
                found.lost += 1
                found.untrue.append(f"row {index} is {state} as {card}, which is {contents.get(card, 'not there')}")
        elif state == "unknown":
            found.unknown += 1
        else:
            found.untrue.append(f"row {index} has failed, which no fault here makes it: {result['error']}")
    told = {result["card"] for process in evidence.processes for result in process.results if result["state"] == "created"}
    given = {card for card in claimed if card in evidence.ours}
    found.recovered = sum(card in evidence.unanswered or card not in told for card in given)


def _check_earlier(evidence: Evidence, contents: Mapping[str, Content], found: Findings) -> None:
    """What a process reported before it was killed is true as well, and later ones agree."""
    is_distinct = len(set(map(content_of_row, evidence.rows))) == len(evidence.rows) or evidence.is_marked
    cards: dict[int, str] = {}
    for process in evidence.processes:
        for result in process.results:
            index, card = result["index"], result["card"]
            if card is None:
                continue
            if contents.get(card) != content_of_row(evidence.rows[index]):
                there = contents.get(card, "not there")
                found.untrue.append(f"row {index} was once {result['state']} as {card}, which is {there}")
            if is_distinct and cards.setdefault(index, card) != card:
                found.untrue.append(f"row {index} was {cards[index]} once and {card} later")
        if process.is_hung or not (process.status in {0, -9} or (evidence.may_end and process.is_refused)):
            found.untrue.append(f"a process ended with {process.status} (hung: {process.is_hung}) and {process.last}")


def _check_report(evidence: Evidence, last: Process, found: Findings) -> None:
    """The sums are those of the results, and the audit is what the service holds."""
    states = Counter(result["state"] for result in last.results)
    report, audit = last.last["report"], last.last["audit"]
    found.untrue += [
        f"the report says {report[state]} {state}, the results {states[state]}"
        for state in ("created", "already", "failed", "unknown")
        if report[state] != states[state]
    ]
    if audit is None:
        return
    given = {result["card"] for result in last.results if result["card"] is not None}
    if audit["confirmed"] != len(given & evidence.cards.keys()):
        found.untrue.append(f"the audit says {audit['confirmed']} confirmed of {len(given)}")
    if audit["lost"] != len(given - evidence.cards.keys()):
        found.untrue.append(f"the audit says {audit['lost']} lost of {len(given)}")
    named = [*audit["duplicated"], *audit["unexpected"]]
    if not found.duplicated and not found.unexpected and not found.unknown and not (evidence.cards.keys() - evidence.ours):
        found.untrue += [f"the audit names {card}, and nothing is too much" for card in named]
    found.untrue += [f"the audit names {card}, which is a row's" for card in named if card in given]
