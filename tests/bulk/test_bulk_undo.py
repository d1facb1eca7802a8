"""Undoing a bulk run from Python; tests/cli/test_undo.py has what may happen to its cards."""

import asyncio
import json
import math
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from bulk_helpers import World
from fault_helpers import Meanwhile
from waiting import until

from boardclient import AuthenticationError, JournalError, NotFoundError, ServerError, SessionClosedError
from boardclient.bulk.journal import read_journal, read_unknown
from boardclient.testing import faults
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
        await until(lambda: len(undo.deleted) >= 4, running)
    with pytest.raises(SessionClosedError):
        await running
    assert read_journal(world.path).counts["undone"] == 4
    undo = await world.session.cards.plan_undo(world.path)
    assert (len(undo.unchanged), undo.gone) == (1, [])


async def test_only_cards_that_two_reads_do_not_find_are_gone(world: World) -> None:
    """A listing may be cut off, whose cards are kept, and a proxy may respond with 404 for a while."""
    await world.finish(world.drafts(*range(6)))
    cards = sorted(world.service.rules.cards)
    world.list_as(lambda listed: [card for card in listed if card["id"] in cards[:2]])
    world.service.faults.add(world.service.faults.status(404), "cards.get", call=1)
    await world.session.cards.delete(cards[5])
    undo = await world.session.cards.plan_undo(world.path)
    assert (sorted(undo.unchanged), undo.gone) == (cards[:2], [cards[5]])
    assert sorted((kept.card.id, kept.why) for kept in undo.kept) == [(card, "is not listed any more") for card in cards[2:5]]
    world.service.faults.add(world.service.faults.status(404), "cards.get", call=len(world.service.calls_of("cards.get")) + 1)
    await undo.run()
    assert (len(undo.deleted), undo.failed, len(world.there)) == (2, {}, 3)


HIDDEN = {
    "card": "is archived",
    "card that does not show it": "is not listed any more",
    "list": "is in an archived list",
    "list that is not listed": "is in a list that the board does not show",
}


def hide(world: World, what: str, card_id: str, list_id: str) -> None:
    """Let the service respond as one does on which a person has archived a card, or a list."""

    def shape(operation: str, body: Any) -> Any:
        if what == "card" and operation in {"boards.cards", "cards.get"}:
            cards = [{**card, "closed": card["id"] == card_id} for card in (body if isinstance(body, list) else [body])]
            return cards if isinstance(body, list) else cards[0]
        if what == "card that does not show it" and operation == "boards.cards":
            return [card for card in body if card["id"] != card_id]
        if what == "list that is not listed" and operation == "boards.lists":
            return [item for item in body if item["id"] != list_id]
        if what == "list" and operation == "boards.lists":
            return [{**item, "closed": item["id"] == list_id} for item in body]
        return body

    world.service.rules.shape = shape


@pytest.mark.parametrize("when", ["before the plan", "before the run"])
@pytest.mark.parametrize("what", HIDDEN)
async def test_cards_that_nobody_sees_are_kept(world: World, when: str, what: str) -> None:
    """They are archived, or their list is, and are named with that reason, also if it has happened after the plan."""
    await world.finish(world.drafts(*range(6)))
    cards = {card.id: card.list_id for card in world.service.rules.cards.values()}
    hidden, hidden_list = next(iter(cards.items()))
    if when == "before the plan":
        hide(world, what, hidden, hidden_list)
    undo = await world.session.cards.plan_undo(world.path)
    hide(world, what, hidden, hidden_list)
    await undo.run()
    kept = {card for card in cards if (cards[card] == hidden_list if what.startswith("list") else card == hidden)}
    assert {one.card.id: one.why for one in undo.kept} == dict.fromkeys(kept, HIDDEN[what])
    assert sorted(undo.deleted) == sorted(cards.keys() - kept)


@pytest.mark.parametrize("what", HIDDEN)
async def test_cards_that_are_archived_while_others_are_deleted_are_kept(world: World, what: str) -> None:
    """The board is read again and again, also for a card that does not show that it is archived."""
    await world.finish(world.drafts(*range(70)))
    async with world.service.session(max_connections=1) as session:
        undo = await session.cards.plan_undo(world.path)
        last = world.service.rules.cards[undo.unchanged[-1]]
        world.service.faults.add(Meanwhile(lambda: hide(world, what, last.id, last.list_id)), "cards.delete", call=1)
        await undo.run()
    assert (last.id, HIDDEN[what]) in [(one.card.id, one.why) for one in undo.kept]
    assert last.id in world.service.rules.cards


async def test_a_card_that_somebody_else_deletes_meanwhile_is_gone(world: World) -> None:
    """It is noted as the others are."""
    await world.finish(world.drafts(*range(2)))
    undo = await world.session.cards.plan_undo(world.path)
    gone = undo.unchanged[0]
    world.service.faults.add(Meanwhile(lambda: world.service.rules.cards.pop(gone, None)), "cards.delete")
    await undo.run()
    assert (undo.gone, undo.deleted, undo.failed) == ([gone], undo.unchanged[1:], {})
    assert read_journal(world.path).counts["undone"] == 2


@pytest.mark.parametrize("before_plan", [True, False])
@pytest.mark.parametrize("field", ["desc", "due"])
async def test_cards_from_which_a_person_has_removed_a_field_are_kept(world: World, before_plan: bool, field: str) -> None:
    """Also if it was removed from all, before the plan or while its question waits. Fields without a value are null."""
    world.service.rules.shape = lambda _, body: (
        [{**card, "desc": card["desc"] or None} for card in body]
        if isinstance(body, list) and body and "desc" in body[0]
        else {**body, "desc": body.get("desc") or None}
        if isinstance(body, dict)
        else body
    )
    drafts = [attrs.evolve(draft, due=datetime(2030, 1, 1, tzinfo=UTC)) for draft in world.drafts(*range(4))]
    await world.finish(drafts)
    undo = None if before_plan else await world.session.cards.plan_undo(world.path)
    for card in world.service.rules.cards.values():
        setattr(card, field, "" if field == "desc" else None)
    undo = undo or await world.session.cards.plan_undo(world.path)
    assert len(undo.unchanged) == (0 if before_plan else 4)
    await undo.run()
    why = "has another description" if field == "desc" else "has another due date"
    assert ([kept.why for kept in undo.kept], undo.deleted, len(world.there)) == ([why] * 4, [], 4)


async def test_cards_whose_listing_leaves_out_a_field_are_read_one_by_one(world: World) -> None:
    """What the service has shown before is compared wherever it shows it. A 404 to a card that is listed proves nothing."""
    await world.finish(world.drafts(*range(3)))
    first, second, _ = world.service.rules.cards.values()
    first.desc = "other"
    world.list_as(lambda cards: [{**card, "desc": None} for card in cards])
    gone = Gone(second.id, reads=2)
    world.service.faults.add(gone, "cards.get")
    undo = await world.session.cards.plan_undo(world.path)
    assert gone.reads == 0
    assert (len(undo.unchanged), [kept.why for kept in undo.kept], undo.gone) == (2, ["has another description"], [])
    await undo.run()
    assert (len(undo.deleted), len(world.there)) == (2, 1)


@attrs.define
class Gone:
    """A fault: some reads, or all, of one card or of each say that there is none."""

    card_id: str = ""
    reads: float = math.inf

    async def play(self, stage: Stage) -> None:
        if self.reads and stage.request.path.endswith(self.card_id):
            self.reads -= 1
            await faults.status(404).play(stage)
        else:
            await stage.reply_answer()


@pytest.mark.parametrize("operation", ["cards.get", "cards.delete"])
async def test_cards_that_the_board_lists_are_not_gone_whatever_their_reads_say(world: World, operation: str) -> None:
    """They have an error, and a later run makes no second ones."""
    await world.finish(world.drafts(*range(4)))
    undo = await world.session.cards.plan_undo(world.path)
    world.service.faults.add(Gone(), operation)
    if operation == "cards.delete":
        world.service.faults.add(EverySecond(), "cards.get")
    await undo.run()
    assert (undo.gone, undo.deleted, sorted(undo.failed)) == ([], [], sorted(undo.unchanged))
    assert all("lists" in str(error) for error in undo.failed.values())
    world.service.faults.clear()
    states, _ = await world.finish(world.drafts(*range(4)))
    assert (Counter(states.values()), len(world.there)) == ({"already": 4}, 4)


@pytest.mark.parametrize("status", [401, 503])
async def test_cards_that_can_t_be_found_have_the_error_of_a_board_that_can_t_be_read(world: World, status: int) -> None:
    """What was deleted is noted all the same. Refused credentials end the undo."""
    await world.finish(world.drafts(*range(3)))
    undo = await world.session.cards.plan_undo(world.path)
    first = undo.unchanged[0]
    world.service.faults.add(Gone(first), "cards.get")
    world.service.faults.add(faults.status(status), "boards.cards", call=[world.reads() + number for number in range(2, 20)])
    if status == 401:
        with pytest.raises(AuthenticationError):
            await undo.run()
    else:
        await undo.run()
        assert isinstance(undo.failed[first], ServerError)
    assert (undo.gone, len(undo.deleted), read_journal(world.path).counts["undone"]) == ([], 2, 2)


@attrs.define
class EverySecond:
    """A fault: each card can be read once."""

    seen: set[str] = attrs.field(factory=set)

    async def play(self, stage: Stage) -> None:
        if stage.request.path in self.seen:
            await faults.status(404).play(stage)
        else:
            self.seen.add(stage.request.path)
            await stage.reply_answer()


# --- the journal


async def test_no_run_can_use_the_journal_while_cards_are_deleted(world: World) -> None:
    """It would count cards as there that are being deleted."""
    await world.finish(world.drafts(*range(6)))
    undo = await world.session.cards.plan_undo(world.path)
    refused: list[str] = []

    class ThenImport:
        async def play(self, stage: Stage) -> None:
            with pytest.raises(JournalError) as caught:
                await world.finish(world.drafts(*range(6)))
            refused.append(str(caught.value))
            await stage.reply_answer()

    world.service.faults.add(ThenImport(), "cards.delete", call=3)
    await undo.run()
    assert ["is in use by another run" in words for words in refused] == [True]
    assert (len(undo.deleted), world.there) == (6, [])


def lose(path: Path, way: str) -> None:
    """Take its journal from a process that sleeps."""
    lock = path.with_name(f"{path.name}-lock")
    if way == "lock removed":
        lock.unlink()
    elif way == "lock made anew":
        lock.unlink()
        resolved = read_unknown(path)  # what a person does meanwhile
        assert lock.exists()
        assert resolved is not None
    else:
        path.rename(path.with_name("moved"))
        if way == "journal replaced":
            shutil.copy(path.with_name("moved"), path)


LOSSES = ("lock removed", "lock made anew", "journal moved", "journal replaced")


@pytest.mark.parametrize("way", LOSSES)
async def test_an_undo_that_has_lost_its_journal_deletes_nothing_more(world: World, way: str) -> None:
    """Another process may have it: it was suspended, and its lock removed."""
    await world.finish(world.drafts(*range(9)))
    async with world.service.session(max_connections=1) as session:
        undo = await session.cards.plan_undo(world.path)
        world.service.faults.add(Meanwhile(lambda: lose(world.path, way)), "cards.delete", call=3)
        with pytest.raises(JournalError, match="moved, removed or replaced"):
            await undo.run()
    assert len(world.service.calls_of("cards.delete")) == 3


@pytest.mark.parametrize("way", LOSSES)
async def test_a_deletion_that_waits_is_not_sent_once_the_journal_is_lost(world: World, way: str) -> None:
    """It is looked at right before the request is written, whatever its call has waited for."""
    await world.finish(world.drafts(0))

    class Limiter:
        async def __aenter__(self) -> None:
            if len(world.service.calls_of("cards.get")) == 1 and world.path.exists():
                lose(world.path, way)

        async def __aexit__(self, *error: object) -> None:
            return None

    undo = await world.session.with_options(limiter=Limiter(), retry=None).cards.plan_undo(world.path)
    with pytest.raises(JournalError, match="moved, removed or replaced"):
        await undo.run()
    assert world.service.calls_of("cards.delete") == []


@pytest.mark.parametrize("way", LOSSES)
async def test_a_run_that_has_lost_its_journal_sends_nothing_more(world: World, way: str) -> None:
    """The next one finds out about what was sent."""
    world.service.faults.add(Meanwhile(lambda: lose(world.path, way)), "cards.create", call=3)
    with pytest.raises(JournalError, match=r"moved, removed or replaced"):
        await world.finish(world.drafts(*range(40)), concurrency=1)
    assert len(world.sent) == 3
    world.service.faults.clear()
    if way.startswith("journal"):
        world.path.with_name("moved").rename(world.path)
    states, _ = await world.finish(world.drafts(*range(40)))
    assert set(states.values()) == {"already", "created"}
    assert len(world.there) == len(set(world.there)) == 40


async def test_an_undo_with_another_journal_than_planned_is_refused(world: World) -> None:
    await world.finish(world.drafts(*range(2)))
    undo = await world.session.cards.plan_undo(world.path)
    for path in (world.path, world.path.with_name(f"{world.path.name}-lock")):
        path.unlink()
    await world.finish(world.drafts(*range(2)))
    with pytest.raises(JournalError, match="was replaced after the plan was made"):
        await undo.run()
    assert len(world.there) == 4


# --- errors


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
    undo = await world.session.cards.plan_undo(world.path)
    await undo.run()
    assert (undo.deleted, undo.failed, world.there) == ([card.id], {}, [])


async def test_a_cancelled_undo_notes_each_card_that_it_has_deleted(world: World) -> None:
    """The deletions in flight are completed."""
    await world.finish(world.drafts(*range(9)))
    undo = await world.session.cards.plan_undo(world.path)
    running = asyncio.create_task(undo.run())
    await until(lambda: len(undo.deleted) >= 4, running)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert read_journal(world.path).counts["undone"] == len(undo.deleted) == 9 - len(world.there)


async def test_a_card_whose_marker_a_person_has_removed_is_kept(world: World) -> None:
    """Also where the marker was its whole description. At a service that removes all markers, nothing was changed."""
    await world.finish([attrs.evolve(draft, desc=None) for draft in world.drafts(*range(3))], marker=True)
    changed, *others = world.service.rules.cards.values()
    changed.desc = ""
    undo = await world.session.cards.plan_undo(world.path)
    assert [(kept.card.id, kept.why) for kept in undo.kept] == [(changed.id, "has another description")]
    for card in others:
        card.desc = ""
    undo = await world.session.cards.plan_undo(world.path)
    assert (len(undo.unchanged), undo.kept) == (3, [])


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


async def test_a_card_that_is_shown_without_a_name_is_kept_as_that(world: World) -> None:
    """It can't be compared. Nobody has renamed it."""
    await world.finish(world.drafts(*range(2)))
    world.list_as(lambda listed: [{**card, "name": None} for card in listed])
    undo = await world.session.cards.plan_undo(world.path)
    assert [kept.why for kept in undo.kept] == ["is shown without a name"] * 2


async def test_a_card_that_is_not_listed_is_kept_with_all_that_was_changed(world: World) -> None:
    """An undo can't tell an archived card from one that a listing leaves out, and deletes neither."""
    await world.finish(world.drafts(*range(3)))
    renamed, *_ = world.service.rules.cards.values()
    renamed.name = "another"
    world.list_as(lambda listed: [])
    undo = await world.session.cards.plan_undo(world.path)
    assert [(kept.card.name, kept.why) for kept in undo.kept] == [
        ("another", "is not listed any more and was renamed"),
        ("card 1", "is not listed any more"),
        ("card 2", "is not listed any more"),
    ]
    await undo.run()
    assert (undo.deleted, len(world.there)) == ([], 3)


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
