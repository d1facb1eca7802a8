"""Undoing a bulk run from Python; tests/cli/test_undo.py has what may happen to its cards."""

import asyncio
import json
from collections import Counter

import pytest
from bulk_helpers import World

from boardclient import JournalError, NotFoundError, ServerError, SessionClosedError
from boardclient.bulk.journal import read_journal
from boardclient.testing.faults import Stage


async def test_what_a_run_has_created_is_deleted_and_can_be_created_again(world: World) -> None:
    """What was changed is kept with a reason, and nothing happens before `run`."""
    await world.finish(world.drafts(*range(6)))
    renamed, deleted, *_ = world.service.rules.cards.values()
    renamed.name = "another"
    await world.session.cards.delete(deleted.id)
    undo = await world.session.cards.plan_undo(world.path)
    assert [(kept.card.name, kept.why) for kept in undo.kept] == [("another", "was renamed")]
    assert (len(undo.unchanged), undo.gone, undo.deleted) == (4, [deleted.id], [])
    assert len(world.there) == 5
    await undo.run()
    assert repr(undo) == "<Undo 4 unchanged, 1 kept, 4 deleted>"
    assert sorted(undo.deleted) == sorted(undo.unchanged)
    assert (undo.failed, world.there) == ({}, ["another"])
    states, _ = await world.finish(world.drafts(*range(6)))
    assert Counter(states.values()) == {"created": 5, "already": 1}
    assert len(world.there) == 6


async def test_what_was_deleted_before_an_undo_ended_is_noted(world: World) -> None:
    """The session is closed in the middle; planned again, it does the rest."""
    await world.finish(world.drafts(*range(5)))
    world.service.faults.add(world.service.faults.hang(), "cards.delete", call=3)
    async with world.service.session() as session:
        undo = await session.cards.plan_undo(world.path)
        running = asyncio.create_task(undo.run())
        await world.service.received("cards.delete", 3)
        while len(undo.deleted) < 4:
            await asyncio.sleep(0)
    with pytest.raises(SessionClosedError):
        await running
    assert read_journal(world.path).counts["undone"] == 4
    undo = await world.session.cards.plan_undo(world.path)
    assert (len(undo.unchanged), undo.gone) == (1, [])


async def test_only_cards_that_two_reads_do_not_find_are_gone(world: World) -> None:
    """A listing may be cut off, and a proxy may respond with 404 for a while."""
    await world.finish(world.drafts(*range(6)))
    cards = list(world.service.rules.cards)
    listed = json.dumps([{"id": card_id, "name": f"card {n}"} for n, card_id in enumerate(cards[:2])]).encode()
    world.service.faults.add(world.service.faults.foreign_body(listed), "boards.cards")
    world.service.faults.add(world.service.faults.status(404), "cards.get", call=1)
    await world.session.cards.delete(cards[5])
    undo = await world.session.cards.plan_undo(world.path)
    assert (len(undo.unchanged), undo.gone, undo.kept) == (5, [cards[5]], [])
    world.service.faults.add(world.service.faults.status(404), "cards.get", call=len(world.service.calls_of("cards.get")) + 1)
    await undo.run()
    assert (len(undo.deleted), undo.failed, world.there) == (5, {}, [])


async def test_a_card_that_somebody_else_deletes_meanwhile_is_gone(world: World) -> None:
    """It is noted as the others are."""
    await world.finish(world.drafts(*range(2)))
    undo = await world.session.cards.plan_undo(world.path)
    gone = undo.unchanged[0]

    class Deleting:
        async def play(self, stage: Stage) -> None:
            world.service.rules.cards.pop(gone, None)
            await stage.reply_answer()

    world.service.faults.add(Deleting(), "cards.delete")
    await undo.run()
    assert (undo.gone, undo.deleted, undo.failed) == ([gone], undo.unchanged[1:], {})
    assert read_journal(world.path).counts["undone"] == 2


async def test_a_404_to_a_deletion_of_a_card_that_exists_is_an_error(world: World) -> None:
    await world.finish(world.drafts(0))
    world.service.faults.add(world.service.faults.status(404), "cards.delete")
    undo = await world.session.cards.plan_undo(world.path)
    await undo.run()
    assert isinstance(undo.failed[undo.unchanged[0]], NotFoundError)
    assert read_journal(world.path).counts["undone"] == 0


async def test_a_card_that_is_read_with_another_form_of_its_identifier_is_deleted(world: World) -> None:
    """What is asked for is the card, whatever its response calls it."""
    await world.finish(world.drafts(0))
    (card,) = world.service.rules.cards.values()
    body = json.dumps({"id": f"{card.id}-long", "name": card.name, "desc": card.desc, "idList": card.list_id}).encode()
    world.service.faults.add(world.service.faults.foreign_body(body), "cards.get")
    world.service.faults.add(world.service.faults.foreign_body(b"[]"), "boards.cards")
    undo = await world.session.cards.plan_undo(world.path)
    await undo.run()
    assert (undo.deleted, undo.failed, world.there) == ([card.id], {}, [])


async def test_a_cancelled_undo_notes_each_card_that_it_has_deleted(world: World) -> None:
    await world.finish(world.drafts(*range(9)))
    undo = await world.session.cards.plan_undo(world.path)
    running = asyncio.create_task(undo.run())
    while len(undo.deleted) < 4:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert read_journal(world.path).counts["undone"] == len(undo.deleted)


async def test_a_card_that_is_not_listed_and_shows_no_list_is_kept(world: World) -> None:
    """It may be on another board. Cards that show no lists at all are compared without."""
    await world.finish(world.drafts(*range(3)))
    cards = [{"id": card.id, "name": card.name, "desc": card.desc} for card in world.service.rules.cards.values()]
    shown = json.dumps(cards[:2]).encode()
    world.service.faults.add(world.service.faults.foreign_body(shown), "boards.cards")
    for number, card in enumerate((cards[2], *cards[:2]), 1):
        body = json.dumps(card).encode()
        world.service.faults.add(world.service.faults.foreign_body(body), "cards.get", call=number)
    undo = await world.session.cards.plan_undo(world.path)
    assert [(kept.card.id, kept.why) for kept in undo.kept] == [(cards[2]["id"], "is not listed any more")]
    await undo.run()
    assert sorted(undo.deleted) == sorted([cards[0]["id"], cards[1]["id"]])


async def test_a_card_that_is_not_listed_is_compared_as_one_that_is(world: World) -> None:
    """A listing that is cut off hides neither what was changed nor what was not."""
    await world.finish(world.drafts(*range(3)))
    renamed, *_ = world.service.rules.cards.values()
    renamed.name = "another"
    world.service.faults.add(world.service.faults.foreign_body(b"[]"), "boards.cards")
    undo = await world.session.cards.plan_undo(world.path)
    assert [(kept.card.name, kept.why) for kept in undo.kept] == [("another", "was renamed")]
    await undo.run()
    assert (len(undo.deleted), world.there) == (2, ["another"])


async def test_a_board_that_can_t_be_read_ends_the_plan(world: World) -> None:
    """Nothing is taken for gone if the reads of single cards fail."""
    await world.finish(world.drafts(0))
    world.service.faults.add(world.service.faults.foreign_body(b"[]"), "boards.cards")
    world.service.faults.add(world.service.faults.status(503), "cards.get")
    with pytest.raises(ServerError):
        await world.session.cards.plan_undo(world.path)


@pytest.mark.parametrize(("has_board", "words"), [(False, "names no board"), (True, "in use")])
async def test_an_undo_that_can_t_compare_is_refused(world: World, has_board: bool, words: str) -> None:
    """A journal that names no board, and one that a run is using."""
    run = world.run(world.drafts(1), board_id=world.board_id if has_board else None)
    async with run:
        await run.wait()
        if has_board:
            with pytest.raises(JournalError, match=words):
                await world.session.cards.plan_undo(world.path)
    if not has_board:
        with pytest.raises(JournalError, match=words):
            await world.session.cards.plan_undo(world.path)
