"""Imports that are killed and run again create each card once; and the checker sees it where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import campaign
import pytest
from campaign import PLACES, READING_POINTS, SMALL, THRESHOLD_POINTS, Crew, Importer, Scale
from checker import Findings
from kinds import ABLATIONS, KINDS, SERVICES

pytestmark = pytest.mark.xdist_group("campaign")  # one worker runs them three at a time
Look = Callable[[str], Findings]
ROWS = 40
"""With the cards that were there before, fewer than 50: a listing of exactly 50 may be cut off, and leaves rows unknown."""
SCALE = Scale(delay=0.05, settle=0.4)
LONGEST_KILL_SECONDS = 1.0

CRASHES = [f"{point} {place}" for point in THRESHOLD_POINTS for place in PLACES]
READING_CRASHES = [f"{point} {PLACES[number % 3]}" for number, point in enumerate(READING_POINTS)]
RANDOM = [f"{[*KINDS][seed % len(KINDS)]} {seed}" for seed in range(1, 21)]

ABLATED_ROWS = {"no-journal": 500, "capped": 200}


def _work(case: str) -> Callable[[Importer], Findings]:
    """Say what a case is: a crash point and where, a kind and a seed, or an ablation."""
    name, _, where = case.partition(" ")
    if name in ABLATIONS:
        rows = ABLATED_ROWS.get(name, ROWS)
        return lambda importer: campaign.kill_at_random(ABLATIONS[name], rows, 1, SCALE, importer, LONGEST_KILL_SECONDS)
    if name in SMALL:
        return lambda importer: campaign.crash_at("send:before", "first", 8, 1, SCALE, importer, SMALL[name])
    service, _, seed = case.rpartition(" ")
    if service in SERVICES:
        return lambda importer: campaign.kill_at_random(SERVICES[service], ROWS, int(seed), SCALE, importer, LONGEST_KILL_SECONDS)
    if name in KINDS:
        return lambda importer: campaign.kill_at_random(KINDS[name], ROWS, int(where), SCALE, importer, LONGEST_KILL_SECONDS)
    return lambda importer: campaign.crash_at(name, where, ROWS, 1, SCALE, importer)


@pytest.fixture(scope="module")
def look(request: pytest.FixtureRequest) -> Iterator[Look]:
    """Give what was found in a case; those of all chosen tests are run beforehand, three at a time, for most of it is waiting."""
    chosen = [item.callspec.params["case"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]  # -- all have one
    with Crew(3) as crew:
        found = {case: crew.submit(_work(case)) for case in chosen}
        yield lambda case: found[case].result()


@pytest.mark.parametrize("case", CRASHES)
def test_a_crash_within_a_batch_loses_and_repeats_no_card(case: str, look: Look) -> None:
    """A process that dies while a batch is logged, sent or confirmed loses and repeats no card."""
    found = look(case)

    assert found.is_clean, found
    assert found.kills == 1


@pytest.mark.parametrize("case", READING_CRASHES)
def test_a_crash_in_a_reading_after_a_crash_costs_nothing(case: str, look: Look) -> None:
    """A second process that dies while it reads the board loses and repeats no card."""
    found = look(case)

    assert found.is_clean, found
    assert found.kills == 2


@pytest.mark.parametrize(
    "case",
    [
        "journal:empty first",
        "baseline:before first",
        "baseline:after first",
    ],
)
def test_a_crash_before_the_first_row_costs_nothing(case: str, look: Look) -> None:
    """A process that dies before its first row leaves a journal that the next one can use."""
    found = look(case)

    assert found.is_clean, found
    assert (found.kills, found.cut_off) == (1, 0)


@pytest.mark.parametrize("case", ["small", "small-marker", "small-neighbour"])
def test_a_listing_that_proves_nothing_sends_nothing_again(case: str, look: Look) -> None:
    """No card was confirmed, and the board was not empty: rows are unknown rather than sent twice."""
    found = look(case)

    assert (found.duplicated, found.unexpected, found.untrue) == (0, 0, [])
    assert found.unknown > 0


@pytest.mark.parametrize("case", RANDOM)
def test_random_kills_cost_nothing(case: str, look: Look) -> None:
    """Imports that are killed at random moments, under any kind of failure, lose and repeat no card.

    Rows may be unknown: the last process may have none left whose card would make a listing longer.
    """
    found = look(case)

    assert found.is_clean, f"campaign.py --runs 1 --rows {ROWS} --kind/--seed {case}: {found}"


@pytest.mark.parametrize(
    "case", ["name trimmed 1", "name cut 2", "name left out marker 3", "desc escaped marker 4", "due days 5"]
)
def test_services_that_change_texts_and_dates_lose_and_repeat_no_card(case: str, look: Look) -> None:
    """Killed imports into services that change texts and dates lose and repeat no card."""
    found = look(case)

    assert found.is_clean, found


@pytest.mark.parametrize("case", ["no-journal"])
def test_the_checker_sees_duplicates_of_an_import_without_a_journal(case: str, look: Look) -> None:
    """Without a journal the next process creates cards again, and the checker finds them."""
    found = look(case)

    assert found.duplicated > 0
    assert found.lost == 0


@pytest.mark.parametrize("case", ["capped"])
def test_a_listing_that_is_cut_off_leaves_rows_unknown_and_duplicates_none(case: str, look: Look) -> None:
    """Where the board lists only some of its cards, rows in doubt are unknown and not sent again."""
    found = look(case)

    assert found.is_clean, found
    assert found.unknown > 0


@pytest.mark.parametrize("case", ["foreign"])
def test_the_checker_finds_losses_where_another_writer_adds_equal_cards(case: str, look: Look) -> None:
    """Equal cards of another writer are taken for the rows, and the checker finds the rows that are lost."""
    assert look(case).lost > 0


@pytest.mark.parametrize("case", ["foreign-marker"])
def test_with_markers_equal_cards_of_another_writer_are_not_taken_for_rows(case: str, look: Look) -> None:
    """With markers, equal cards of another writer are not taken for the rows."""
    found = look(case)

    assert found.is_clean, found
    assert found.unknown == 0


@pytest.mark.parametrize("case", ["resend"])
def test_the_checker_sees_duplicates_of_sending_again(case: str, look: Look) -> None:
    """With unknown="resend" cards are created again, and the checker finds them."""
    found = look(case)

    assert found.duplicated > 0
    assert found.lost == 0


@pytest.mark.parametrize("case", ["report-only"])
def test_reporting_leaves_rows_unknown_and_duplicates_none(case: str, look: Look) -> None:
    """With unknown="report" rows in doubt are unknown and not sent again."""
    found = look(case)

    assert found.is_clean, found
    assert found.unknown > 0
