"""How many requests at a time a run without a limit is found to need."""

from __future__ import annotations

import pytest

from boardclient._pace import Growth


def grown(limit: float, seconds: float, most: int = 100, latency: float = 0.05) -> list[int]:
    """Return the places after each look, at a service that responds to each in `latency` and to at most so many a second."""
    growth, ended, seen = Growth(most), 0.0, []
    for look in range(int(seconds / 0.02)):
        seen.append(growth.look(look * 0.02, int(ended)))
        ended += 0.02 * min(limit, growth.places / latency)
    return seen


def test_a_fast_service_gets_all_places() -> None:
    """While more at a time make a run faster, there are more."""
    seen = grown(1e9, 8.0)
    assert (seen[0], seen[-1]) == (16, 100)
    assert seen == sorted(seen)


@pytest.mark.parametrize("most", [1, 10])
def test_there_are_no_more_than_asked_for(most: int) -> None:
    """A pool of few connections is all that is used."""
    assert set(grown(1e9, 2.0, most=most)) == {most}


def test_a_service_that_is_no_faster_gets_hardly_more() -> None:
    """Where more at a time only wait, growth rests, ever longer."""
    seen = grown(200.0, 20.0)
    assert seen[-1] <= 50
    assert seen[-1] - seen[len(seen) // 2] <= seen[len(seen) // 2] - 16
