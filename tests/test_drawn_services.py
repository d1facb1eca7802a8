"""Bulk runs over real sockets at services drawn by chance: no second card, and every report is true."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from drawn_services import TEXTS, DrawnWorld, ServiceKind, draw


@pytest.mark.parametrize("marker", [None, True])
@pytest.mark.parametrize("seed", range(25))
async def test_no_card_is_created_twice_whatever_services_and_people_do(seed: int, marker: bool | None) -> None:
    """Responses are lost, people change the cards, automations rename those of a list, and runs end in the middle.

    No row has two cards, none is lost, each that is reported with a card has that card, and the audit names no card of others as
    a second one.
    """
    outcome = await draw(seed, marker=marker)
    assert outcome.is_good, outcome


@pytest.mark.parametrize("marker", [None, True])
@pytest.mark.parametrize("seed", [*range(25, 45), 78, 120])
async def test_with_probes_too_no_card_is_created_twice_and_no_probe_is_forgotten(seed: int, marker: bool | None) -> None:
    """Responses to temporary cards are lost as well, and people change them. One that can't be deleted is named."""
    outcome = await draw(seed, marker=marker, probe=True)
    assert outcome.is_good, outcome


class Alone(DrawnWorld):
    """A service on which nobody else has cards."""

    def add_stranger(self) -> None:
        """Create no card."""


@pytest.mark.parametrize("seed", range(40))
async def test_with_probes_no_row_is_unknown_where_nobody_else_writes(seed: int) -> None:
    """The service lists what it has, as it was sent; half of the responses are lost, and runs end in the middle."""
    world = Alone(seed, marker=None, kind=ServiceKind(), probe=True)
    world.loss, world.meddling, world.strangers, world.deletions = 0.5, 0.0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        outcome = await world.run(Path(folder))
    assert outcome.is_good, outcome
    assert (outcome.unknown, outcome.stay) == (0, 0)


@pytest.mark.parametrize("marker", [None, True])
@pytest.mark.parametrize("seed", [33, 143, 197, 214, 275, 330])
async def test_identifiers_that_are_given_again_make_no_second_card(seed: int, marker: bool | None) -> None:
    """People delete cards during the runs, and new cards, lost ones too, get their identifiers."""
    outcome = await draw(seed, marker=marker)
    assert outcome.is_good, outcome


async def test_names_that_are_shown_in_part_prove_nothing() -> None:
    """A service changes letters, so that some names stay. A person has described a lost card, which shows no marker now."""
    assert (await draw(987, marker=True)).is_good


@pytest.mark.parametrize("name", TEXTS)
async def test_no_way_of_showing_names_makes_a_second_card(name: str) -> None:
    """An automation renames the cards of one list. With markers the rows of both are settled, if descriptions stay."""
    kind = ServiceKind(name=name, only=0)
    assert (await draw(1, marker=None, kind=kind)).is_good
    assert (await draw(2, marker=True, kind=kind)).is_good
