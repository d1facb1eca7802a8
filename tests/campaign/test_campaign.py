"""Imports that are killed and run again create each card once; and the checker sees it where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import campaign
import pytest
from campaign import PLACES, PROBE_POINTS, READ_POINTS, SEND_POINTS, SMALL, Crew, Importer, Scale
from checker import Findings
from kinds import ABLATIONS, KINDS

pytestmark = pytest.mark.xdist_group("campaign")  # one worker runs them three at a time
Look = Callable[[str], Findings]
ROWS = 40
SCALE = Scale(delay=0.05, settle=0.4)
LONGEST_KILL_SECONDS = 1.0

SENDS = [f"{point} {place}" for point in SEND_POINTS for place in PLACES]
READS = [f"{point} {place}" for point in READ_POINTS for place in ("baseline", "1", "2")]
PROBES = [f"probe {marker} {point}" for marker in ("content", "marker") for point in PROBE_POINTS]
RANDOM = [f"{[*KINDS][seed % len(KINDS)]} {seed}" for seed in range(1, 23)]

ABLATED_ROWS = {"no-journal": 500}


def _work(case: str) -> Callable[[Importer], Findings]:
    """Say what a case is: a crash point and where, a kind and a seed, or an ablation."""
    name, _, where = case.partition(" ")
    if name in SMALL:
        return lambda importer: campaign.crash_at("send:before", "first", 8, 1, SCALE, importer, SMALL[name])
    if name == "probe" and ":" in where:
        kind, _, point = where.partition(" ")
        marker = True if kind == "marker" else None
        return lambda importer: campaign.crash_at_probe(point, 8, SCALE, importer, marker=marker)
    if ":" in name:
        return lambda importer: campaign.crash_at(name, where, ROWS, 1, SCALE, importer)
    kind, rows = {**KINDS, **ABLATIONS}[name], ABLATED_ROWS.get(name, ROWS)
    return lambda importer: campaign.kill_at_random(kind, rows, int(where or 1), SCALE, importer, LONGEST_KILL_SECONDS)


@pytest.fixture(scope="module")
def look(request: pytest.FixtureRequest) -> Iterator[Look]:
    """Give what was found in a case; those of all chosen tests are run beforehand, three at a time, for most of it is waiting."""
    chosen = [item.callspec.params["case"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]  # -- all have one
    with Crew(3) as crew:
        found = {case: crew.submit(_work(case)) for case in chosen}
        yield lambda case: found[case].result()


@pytest.mark.parametrize("case", [*SENDS, *READS])
def test_a_crash_loses_and_repeats_no_card(case: str, look: Look) -> None:
    """A process dies at a creation, or while it reads the board: before its first row, or after another one died."""
    found = look(case)

    assert found.is_clean, found
    assert (found.kills, found.cut_off) == (1 if case in SENDS or "baseline" in case else 2, 0)


@pytest.mark.parametrize("case", SMALL)
def test_a_listing_that_proves_nothing_sends_nothing_again(case: str, look: Look) -> None:
    """No card was confirmed, and the board was not empty: rows are unknown rather than sent twice."""
    found = look(case)

    assert (found.duplicated, found.unexpected, found.untrue) == (0, 0, [])
    assert found.unknown > 0


@pytest.mark.parametrize("case", PROBES)
def test_a_crash_leaves_no_probe_and_no_row_unknown(case: str, look: Look) -> None:
    """A process dies at each step of the temporary card: the next one finds and deletes it, and settles the lost row."""
    found = look(case)

    assert found.is_clean, found
    assert (found.kills, found.unknown) == (1, 0)


@pytest.mark.parametrize("case", RANDOM)
def test_random_kills_cost_nothing(case: str, look: Look) -> None:
    """Imports that are killed at random moments, under any kind of failure, lose and repeat no card.

    Rows may be unknown: the last process may have none left whose card would make a listing longer.
    """
    found = look(case)

    assert found.is_clean, f"campaign.py --runs 1 --rows {ROWS} --kind/--seed {case}: {found}"


@pytest.mark.parametrize("case", ["no-journal", "resend"])
def test_the_checker_sees_second_cards(case: str, look: Look) -> None:
    """Without a journal the next process creates cards again, and so does a run that asks for it."""
    found = look(case)

    assert found.duplicated > 0
    assert found.lost == 0


@pytest.mark.parametrize("case", ["foreign"])
def test_the_checker_finds_losses_where_another_writer_adds_equal_cards(case: str, look: Look) -> None:
    """Equal cards of another writer are taken for the rows, and the checker finds the rows that are lost."""
    assert look(case).lost > 0
