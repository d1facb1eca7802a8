"""The kinds of imports of a campaign: those that have to come out right, and those that show that the checker can see."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

STORM: Mapping[str, float] = {
    "dropped-after": 0.05,
    "dropped-before": 0.05,
    "bad-gateway": 0.02,
    "late": 0.04,
    "late-dropped": 0.03,
    "truncated": 0.01,
}

_MILD: Mapping[str, float] = {"dropped-after": 0.01, "dropped-before": 0.005, "late-dropped": 0.005}
"""Where more fails, a pace slows down so much that a run takes minutes."""


def every(**numbers: int) -> Callable[[int], str | None]:
    """Make a script: each fault at every so-many-th call."""
    return lambda post: next((what.replace("_", "-") for what, every in numbers.items() if post % every == 0), None)


@attrs.frozen(kw_only=True)
class Kind:
    """How a run is made up. `rows` is "distinct", "twins" (each content five times) or "equal" (one content).

    `foreign` adds cards of others like the requested ones, `neighbour` one other card of others after a crash.
    `limit` is the service's, in cards per second and at once: it answers 429, with and without Retry-After. `dies_at` is a crash
    point that the first process meets instead of random kills. `may_end` says whether a process may end because a token was
    refused twice, so that the import is run once more. `is_sound` says whether the stated assumptions hold, so that nothing may
    be lost, duplicated or unexpected.
    """

    rows: str = "distinct"
    marker: bool | None = None
    probe: bool = False
    unknown: str | None = None
    rates: Mapping[str, float] = STORM
    script: Callable[[int], str | None] | None = None
    journal: bool = True
    reference: bool = False
    is_async: bool = False
    concurrency: Sequence[int | None] = (4, 16, 50)
    limit: tuple[float, int] | None = None
    expiries: int = 1
    baseline: int = 0
    kills: Sequence[int] = (1, 2, 3, 4, 5)
    dies_at: tuple[str, str] | None = None
    settle: float | None = None
    foreign: bool = False
    neighbour: bool = False
    may_end: bool = False
    is_sound: bool = True


KINDS: Mapping[str, Kind] = {
    "content": Kind(),
    "marker": Kind(marker=True),
    "twins": Kind(rows="twins", baseline=8),
    "equal": Kind(rows="equal", baseline=7),
    "equal-marker": Kind(rows="equal", marker=True),
    "references": Kind(rows="twins", reference=True, is_async=True),
    "late": Kind(rates={"late": 0.3, "late-dropped": 0.1}),
    "expiries": Kind(expiries=5, concurrency=(4, 8, 16)),
    "refusals": Kind(expiries=8, may_end=True),
    "limited": Kind(rates=_MILD, limit=(300.0, 30)),
    "paced": Kind(rates=_MILD, concurrency=(None,), limit=(200.0, 20)),
    "calm": Kind(rates={}, expiries=0, limit=(400.0, 40), kills=(5,)),
    "report": Kind(unknown="report"),
    "probe": Kind(probe=True),
    "probe-marker": Kind(probe=True, marker=True),
}
"""Those under which the assumptions hold."""

ABLATIONS: Mapping[str, Kind] = {
    "no-journal": Kind(journal=False, rates={}, expiries=0, kills=(1,), dies_at=("send:answered", "middle"), is_sound=False),
    "foreign": Kind(script=every(foreign=10), foreign=True, expiries=0, kills=(0,), is_sound=False),
    "resend": Kind(unknown="resend", script=every(dropped_after=10), expiries=0, kills=(0,), is_sound=False),
}
"""Those under which one of them does not, or the caller chose otherwise: they show that the checker can see it."""


def make_rows(kind: Kind, count: int, lists: Sequence[str], chance: random.Random) -> list[dict[str, Any]]:
    """Make the rows of the input, as the importer reads them."""
    rows = []
    for number in range(count):
        content = {"distinct": number, "twins": number // 5, "equal": 0}[kind.rows]
        draw = random.Random(content * 7919 + 13)
        due = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(days=draw.randrange(300))
        rows.append(
            {
                "name": f"card {content}: {draw.choice('aä✓ ')}",
                "list_id": lists[draw.randrange(len(lists))],
                "desc": draw.choice([None, "", f"text of {content}\nin two lines", "[brackets] in it"]),
                "due": draw.choice([None, due.isoformat()]),
                "reference": f"row-{number}" if kind.reference else None,
            }
        )
    if kind.rows == "twins":
        chance.shuffle(rows)
    return rows
