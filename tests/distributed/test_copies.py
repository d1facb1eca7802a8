"""An older copy of a ledger, which does not have all cards that the job has made."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import pytest
from batch_world import World, counts
from batch_world import world as world

from boardclient import JournalError
from boardclient.distributed import reconcile
from boardclient.store._database import Database
from boardclient.testing import faults

pytestmark = pytest.mark.parametrize("ledger", ["file"], indirect=True)


async def copied(world: World) -> Path:
    """Copy a ledger that no process uses."""
    database = Database(world.ledger)
    await database.read("PRAGMA wal_checkpoint(TRUNCATE)")
    await database.aclose()
    return Path(shutil.copy(world.ledger, f"{world.ledger}.copy"))


def put_back(world: World, older: Path) -> None:
    for end in ("-wal", "-shm"):
        Path(world.ledger + end).unlink(missing_ok=True)
    older.replace(world.ledger)


@pytest.mark.parametrize("is_abandoned", [True, False])
async def test_cards_that_an_older_copy_of_the_ledger_does_not_have_are_named(world: World, is_abandoned: bool) -> None:
    """Reconciling stops before anything is sent, also if a worker has left rows. Without these cards it continues."""
    job, rows = await world.open(), world.drafts(20)
    if is_abandoned:
        await world.interrupt(job, "a", rows, sent=10)
    else:
        await world.deliver(job, "a", rows[:10])
    known = set(world.service.rules.cards)
    older = await copied(world)
    await world.deliver(job, "a", rows)
    put_back(world, older)
    cards = world.service.rules.cards
    # The copy knows of a row that was refused, and looks for its card.
    new = sorted(one for one in cards.keys() - known if not is_abandoned or cards[one].name != "card 10")
    sent = world.sent
    for _ in range(2):
        with pytest.raises(JournalError, match=f"shows {len(new)} cards of this job that the ledger does not have") as caught:
            await reconcile(job, session=world.session)
        assert list(caught.value.candidates) == new
        for error in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
            assert (str(error), error.candidates) == (str(caught.value), caught.value.candidates)
        assert all(card_id in str(caught.value) for card_id in new)
    assert world.sent == sent
    for card_id in new:
        del world.service.rules.cards[card_id]
    await world.deliver(job, "a", rows)
    assert counts(await reconcile(job, session=world.session)) == (20, 0, 0, 0)


async def test_the_cards_of_rows_in_doubt_are_not_taken_for_those_of_a_newer_ledger(world: World) -> None:
    """A copy has the rows that were logged when it was made. Refused ones are looked for as well."""
    job, rows = await world.open(), world.drafts(3)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    world.service.faults.add(faults.status(400, commit=True), "cards.create", call=2)
    await world.deliver(job, "a", rows, concurrency=1)
    older = await copied(world)
    assert counts(await reconcile(job, session=world.session)) == (3, 0, 0, 0)
    put_back(world, older)
    assert counts(await reconcile(job, session=world.session)) == (3, 0, 0, 0)
    assert world.sent == 3


async def test_a_process_does_not_continue_with_an_older_copy(world: World) -> None:
    """A process that has used the newer file delivers nothing before the board shows no card that the copy does not have."""
    job, rows = await world.open(), world.drafts(6)
    await world.deliver(job, "a", rows[:2])
    older = await copied(world)
    await world.deliver(job, "b", rows[2:])
    put_back(world, older)
    for _ in range(2):
        with pytest.raises(JournalError, match="shows 4 cards of this job that the ledger does not have"):
            await world.deliver(job, "b", rows[2:])
    with pytest.raises(JournalError, match="shows 4 cards of this job"):
        await world.create("card 2", "card 2")
    assert world.sent == 6
    for card in [card for card in world.service.rules.cards.values() if card.name not in {"card 0", "card 1"}]:
        del world.service.rules.cards[card.id]
    reads = len(world.service.calls_of("boards.cards"))
    for _ in range(2):
        assert counts(await world.deliver(job, "b", rows[2:])) in {(4, 0, 0, 0), (0, 4, 0, 0)}
    assert len(world.service.calls_of("boards.cards")) == reads + 1  # once


async def test_a_process_does_not_continue_with_another_ledger(world: World) -> None:
    """It knows nothing of the cards that the first one has, so that they would be created again."""
    card = await world.create("Fix the login", "ticket 1")
    aside = await copied(world)
    for end in ("", "-wal", "-shm"):
        Path(world.ledger + end).unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(JournalError, match="was emptied or replaced while it was in use: nothing more is sent"):
            await world.create("Fix the login", "ticket 1")
    put_back(world, aside)
    assert (await world.create("Fix the login", "ticket 1")).id == card.id
    assert world.sent == 1


async def test_a_copy_without_markers_is_taken_as_it_is(world: World) -> None:
    """Nothing tells the cards of the job from those of others."""
    job, rows = await world.open(marker=False), world.drafts(2)
    await world.deliver(job, "a", rows)
    put_back(world, await copied(world))
    assert counts(await world.deliver(job, "a", rows)) == (0, 2, 0, 0)
