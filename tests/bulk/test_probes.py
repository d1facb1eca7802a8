"""Rows that no card of their run can prove absent, and the temporary cards that `probe=True` creates for them and deletes."""

import asyncio
import inspect
import re
from typing import Any

import attrs
import pytest
from bulk_helpers import World
from fault_helpers import Meanwhile

from boardclient import CardDraft
from boardclient.bulk.journal import read_journal, read_rows
from boardclient.testing import faults
from boardclient.testing.faults import Stage

CODE = re.compile(r"bc[b-t]{16}")


@attrs.define
class Scene:
    """A fault for all creations: what becomes of each row and of each probe, one after another; after that they are created.

    "lost" loses the request, "swallowed" the response, a number is a status, a function is called with the new card, and a
    coroutine function plays the fault itself.
    """

    world: World
    rows: dict[str, list[Any]] = attrs.field(factory=dict)
    probes: list[Any] = attrs.field(factory=list)
    sent: list[str] = attrs.field(factory=list)

    async def play(self, stage: Stage) -> None:
        name = self.world.sent[-1]
        self.sent.append("probe" if CODE.search(name) else name)
        planned = self.probes if CODE.search(name) else self.rows.get(name, [])
        what = planned.pop(0) if planned else None
        if what == "lost":
            stage.abort()
        elif isinstance(what, int):
            await stage.reply(what)
        elif inspect.iscoroutinefunction(what):
            await what(stage)
        else:
            answer = stage.commit()
            if callable(what):
                what(self.world.service.rules.cards[answer.body["id"]])
            if what == "swallowed":
                stage.abort()
            else:
                await stage.reply_answer()


@pytest.fixture
def scene(world: World) -> Scene:
    made = Scene(world)
    world.service.faults.add(made, "cards.create")
    return made


def drafts(world: World, names: str) -> list[CardDraft]:
    return [CardDraft(name, world.lists[0]) for name in names]


async def run(world: World, names: str | list[CardDraft], **options: Any) -> tuple[dict[str, str], Any]:
    """Run once with probes, and return the states of the rows and the report."""
    given = drafts(world, names) if isinstance(names, str) else names
    return await world.finish(given, **{"concurrency": 1, "settle": 0.0, "probe": True, "journal": None, **options})


def probes(world: World) -> list[Any]:
    """Return the probes that are on the board."""
    return [card for card in world.service.rules.cards.values() if CODE.search(card.name + card.desc)]


def deleted(world: World) -> int:
    return len(world.service.calls_of("cards.delete"))


# --- what they prove


async def test_a_lost_row_that_is_alone_is_proven_absent_and_sent_again(world: World, scene: Scene) -> None:
    """A temporary card at the end of its list makes the next listing longer. It is deleted, and counts nowhere."""
    scene.rows = {"a": ["lost"]}
    states, report = await run(world, "a")
    assert (states, scene.sent, world.there) == ({"a": "created"}, ["a", "probe", "a"], ["a"])
    assert (report.created, report.unknown, report.probes, report.requests) == (1, 0, (), 3)
    assert report.audit.is_sound
    assert (report.audit.confirmed, report.audit.unexpected, report.audit.duplicated) == (1, (), ())
    assert deleted(world) == 1
    body: Any = world.service.calls_of("cards.create")[1].body
    assert (body["pos"], body["idList"]) == ("bottom", world.lists[0])
    assert CODE.search(body["name"])[0] in body["desc"]  # type: ignore[index]  # -- the scene has found it


async def test_without_probes_the_same_row_stays_unknown(world: World, scene: Scene) -> None:
    """Nothing else makes a listing longer."""
    scene.rows = {"a": ["lost"]}
    states, report = await run(world, "a", probe=False)
    assert (states, scene.sent, report.probes) == ({"a": "unknown"}, ["a"], ())


async def test_a_single_card_is_sent_again(world: World, scene: Scene) -> None:
    """The temporary card is gone when the call returns."""
    scene.rows = {"a": ["lost", "lost"]}
    card = await world.session.cards.create("a", list_id=world.lists[0], board_id=world.board_id, settle=0.0, probe=True)
    assert (card.id, scene.sent, world.there) == (
        next(iter(world.service.rules.cards)),
        ["a", "probe", "a", "probe", "a"],
        ["a"],
    )


async def test_a_single_card_that_exists_is_found(world: World, scene: Scene) -> None:
    """No temporary card is needed."""
    scene.rows = {"a": ["swallowed"]}
    await world.session.cards.create("a", list_id=world.lists[0], board_id=world.board_id, settle=0.0, probe=True)
    assert (scene.sent, world.there) == (["a"], ["a"])


async def test_no_probe_is_sent_where_a_row_proves_the_same(world: World, scene: Scene) -> None:
    """The last row of the list makes the listing longer."""
    scene.rows = {"a": ["lost"]}
    states, _ = await run(world, "abc")
    assert (set(states.values()), "probe" in scene.sent, world.there) == ({"created"}, False, [*"abc"])


async def test_each_list_with_an_open_row_gets_a_probe(world: World, scene: Scene) -> None:
    """A list may be cut off by itself."""
    scene.rows = {"card 1": ["lost"], "card 2": ["lost"]}
    scene.rows = {name.removeprefix("card "): what for name, what in scene.rows.items()}
    states, report = await run(world, world.drafts(1, 2))
    assert (states, report.audit.is_sound) == ({"1": "created", "2": "created"}, True)
    bodies: list[Any] = [call.body for call in world.service.calls_of("cards.create")]
    assert {body["idList"] for body in bodies if CODE.search(body["name"])} == {*world.lists}
    assert (scene.sent.count("probe"), deleted(world), world.there) == (2, 2, ["1", "2"])


async def test_a_row_that_is_lost_again_and_again_fails_at_last(world: World, scene: Scene) -> None:
    """It is proven absent each time, and not known to be anywhere."""
    scene.rows = {"a": ["lost"] * 5}
    states, report = await run(world, "a")
    assert (states, world.there, report.probes) == ({"a": "failed"}, [], ())


@pytest.mark.parametrize("cut", [slice(2), slice(-1, None)])
async def test_a_listing_that_is_cut_off_proves_nothing(world: World, scene: Scene, cut: slice) -> None:
    """The probe is listed in place of another card, or not at all. The row may exist, and is not sent again."""
    for name in "xy":
        await world.session.cards.create(name, list_id=world.lists[0])
    world.list_as(lambda cards: sorted(cards, key=lambda card: str(card["id"]))[cut])
    scene.rows = {"a": ["swallowed"], "b": ["lost"]}
    states, report = await run(world, "ab")
    assert (states["b"], report.probes) == ("unknown", ())
    assert (world.there, scene.sent.count("a"), deleted(world)) == (["a", "x", "y"], 1, scene.sent.count("probe"))


async def test_an_automation_that_spares_the_probe_proves_nothing_for_rows(world: World, scene: Scene) -> None:
    """It renames the rows of the list. A card that equals a lost row is other people's, and the probe is no sample."""

    def rename(card: Any) -> None:
        card.name = f"renamed {card.name}"

    def add_equal(card: Any) -> None:
        rename(card)
        world.add_card("b")

    scene.rows = {"a": [rename], "b": ["lost"], "c": [add_equal]}
    states, _ = await run(world, "abc")
    assert states == {"a": "created", "b": "unknown", "c": "created"}


async def test_with_secret_markers_cards_of_others_leave_no_row_unknown(world: World, scene: Scene) -> None:
    """The probe shows that the board lists the markers of the list. Only then does a card without one belong to others."""
    world.service.faults.add(Meanwhile(world.add_card), "boards.cards", call=2)
    scene.rows = {"a": ["lost"]}
    states, report = await run(world, "a", marker=True)
    assert (states, world.there) == ({"a": "created"}, ["a", "of others"])
    assert [card.name for card in report.audit.unexpected] == ["of others"]


async def test_a_card_that_is_equal_is_believed_once_the_probe_makes_the_listing_longer(world: World, scene: Scene) -> None:
    """People have deleted a card: as many are listed as before, and if the listing is cut off, an old card could be shown."""
    for name in "xy":
        await world.session.cards.create(name, list_id=world.lists[0])
    first = next(iter(world.service.rules.cards))
    world.service.faults.add(Meanwhile(lambda: world.service.rules.cards.pop(first)), "boards.cards", call=2)
    scene.rows = {"a": ["swallowed"]}
    states, report = await run(world, "a")
    assert (states, world.there, report.audit.is_sound) == ({"a": "created"}, ["a", "y"], True)
    assert scene.sent[2:] == ["a", "probe"]


async def test_the_probe_shows_that_a_board_lists_no_lists(world: World, scene: Scene) -> None:
    """Without any card of the run that is listed, a card without a list may be in another one."""
    world.list_as(lambda cards: [{name: value for name, value in card.items() if name != "idList"} for card in cards])
    scene.rows = {"a": ["swallowed"]}
    states, _ = await run(world, "a")
    assert (states, world.there, scene.sent) == ({"a": "created"}, ["a"], ["a", "probe"])


async def test_cards_that_no_probe_can_tell_apart_are_named(world: World, scene: Scene) -> None:
    """No probe was created, so it stays unknown whose the card of others is."""
    world.service.faults.add(Meanwhile(world.add_card), "boards.cards", call=2)
    scene.rows, scene.probes = {"a": ["lost"]}, [400]
    states, report = await run(world, "a", marker=True)
    (other,) = world.service.rules.cards.values()
    assert (states, [card.id for card in report.audit.resembling]) == ({"a": "unknown"}, [other.id])
    assert f"the card {other.id} may be this row's: it is no other row's" in str(report.problems[0].error)


async def test_the_probe_says_nothing_about_markers_of_the_caller(world: World, scene: Scene) -> None:
    """They have another shape: a service that drops them may show the probe's."""
    world.service.faults.add(Meanwhile(lambda: world.add_card("b")), "boards.cards", call=2)
    scene.rows = {"a": ["lost"]}
    states, _ = await run(world, "a", marker=lambda draft: f"T-{draft.name}")
    assert states == {"a": "unknown"}


# --- a probe that fails itself


async def test_a_probe_whose_response_is_lost_is_found_and_deleted(world: World, scene: Scene) -> None:
    """It is recognised by its marker, and proves what it would have proven."""
    scene.rows, scene.probes = {"a": ["lost"]}, ["swallowed"]
    states, report = await run(world, "a")
    assert (states, world.there, scene.sent.count("probe")) == ({"a": "created"}, ["a"], 1)
    assert (report.probes, report.audit.is_sound, report.audit.unexpected) == ((), True, ())


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_lost_probe_with_the_identifier_of_a_deleted_card_is_found(world: World, scene: Scene, is_left: bool) -> None:
    """People delete the card of a row, and its identifier is given again. A run that is left leaves the probe to the next."""

    async def lose_with_known_id(stage: Stage) -> None:
        cards = world.service.rules.cards
        (gone,) = [one for one in cards.values() if one.name == "a"]
        card = cards.pop(stage.commit().body["id"])
        card.id = gone.id
        cards[gone.id] = card
        stage.abort()

    scene.rows, scene.probes = {"b": ["lost"]}, [lose_with_known_id]
    created = "created"
    if is_left:
        async with world.run(drafts(world, "ab"), concurrency=1, settle=0.0, probe=True) as opened:
            async for result in opened:
                if result.draft.name == "b":
                    break
        assert deleted(world) == 0
        created = "already"
    states, report = await run(world, "ab", journal=world.path)
    assert (states, world.there, report.probes) == ({"a": created, "b": created}, ["b"], ())
    assert (report.audit.duplicated, report.audit.unexpected) == ((), ())
    assert (report.audit.lost, report.audit.reused) == ((0, 1) if is_left else (1, 0))


async def test_a_probe_that_is_lost_is_followed_by_another(world: World, scene: Scene) -> None:
    """Nothing of it is left."""
    scene.rows, scene.probes = {"a": ["lost"]}, ["lost", "lost"]
    states, report = await run(world, "a")
    assert (states, world.there, scene.sent.count("probe"), deleted(world)) == ({"a": "created"}, ["a"], 3, 1)
    assert report.probes == ()


async def test_after_five_lost_probes_the_row_is_unknown(world: World, scene: Scene) -> None:
    """The run ends."""
    scene.rows, scene.probes = {"a": ["lost"]}, ["lost"] * 5
    states, report = await run(world, "a")
    assert (states, world.there, scene.sent) == ({"a": "unknown"}, [], ["a", *["probe"] * 5])
    assert "no longer listing has proven" in str(report.problems[0].error)


async def test_a_service_that_refuses_the_probe_is_asked_once(world: World, scene: Scene) -> None:
    """The row is unknown, as without it; a row of another list is settled."""
    scene.rows, scene.probes = {"1": ["lost"], "2": ["lost"]}, [400]
    states, _ = await run(world, world.drafts(1, 2))
    assert (sorted(states.values()), scene.sent.count("probe"), deleted(world)) == (["created", "unknown"], 2, 1)


async def test_a_probe_that_is_refused_and_created_is_found_and_deleted(world: World, scene: Scene) -> None:
    """A service may have done what it refused. The probe proves what it would have proven."""

    async def refuse(stage: Stage) -> None:
        stage.commit()
        await stage.reply(400)

    scene.rows, scene.probes = {"a": ["lost"]}, [refuse]
    states, report = await run(world, "a")
    assert (states, scene.sent, world.there) == ({"a": "created"}, ["a", "probe", "a"], ["a"])
    assert (probes(world), report.probes, report.audit.unexpected) == ([], (), ())


async def test_a_probe_that_is_too_new_to_be_listed_is_waited_for(world: World, scene: Scene, passing_time: Any) -> None:
    """The board shows cards three seconds late."""
    made: dict[str, float] = {}

    def is_listed(card: Any) -> bool:
        return bool(made.setdefault(card["id"], passing_time.now) + 3.0 <= passing_time.now)

    world.list_as(lambda cards: [*filter(is_listed, cards)])
    scene.rows = {"a": ["lost"]}
    states, _ = await run(world, "a", settle=5.0)
    assert (states, scene.sent, world.there) == ({"a": "created"}, ["a", "probe", "a"], ["a"])


async def test_a_probe_counts_as_no_card_of_another_response(world: World, scene: Scene) -> None:
    """A response to a row that names it, though it is deleted, leaves the row in doubt."""
    named: list[str] = []

    async def name_the_probe(stage: Stage) -> None:
        stage.commit()
        await stage.reply(200, b'{"id": "%s"}' % named[0].encode())

    scene.rows, scene.probes = {"a": ["lost", name_the_probe]}, [lambda card: named.append(card.id)]
    states, report = await run(world, "a")
    assert (states, world.there, report.audit.reused) == ({"a": "created"}, ["a"], 0)


async def test_a_response_to_the_probe_that_names_a_row_s_card_is_not_believed(world: World, scene: Scene) -> None:
    """The card is never deleted, and the probe is found by its marker."""
    (first,) = [(await world.session.cards.create("x", list_id=world.lists[0])).id]

    async def name_the_first(stage: Stage) -> None:
        stage.commit()
        await stage.reply(200, b'{"id": "%s"}' % first.encode())

    scene.rows, scene.probes = {"a": ["lost"]}, [name_the_first]
    states, report = await run(world, "a")
    assert (states, world.there, report.probes) == ({"a": "created"}, ["a", "x"], ())


# --- its deletion


@pytest.mark.parametrize("fault", [faults.drop(), faults.drop(commit=True), faults.status(503)])
async def test_a_deletion_whose_response_is_lost_is_done(world: World, scene: Scene, fault: Any) -> None:
    """It is repeated, and what does not exist any more is deleted."""
    scene.rows = {"a": ["lost"]}
    world.service.faults.add(fault, "cards.delete", call=1)
    states, report = await run(world, "a")
    assert (states, world.there, report.probes) == ({"a": "created"}, ["a"], ())


async def test_a_probe_that_others_delete_is_gone(world: World, scene: Scene) -> None:
    """It has proven nothing then, and another one follows."""
    scene.rows, scene.probes = {"a": ["lost"]}, [lambda card: world.service.rules.cards.pop(card.id)]
    states, report = await run(world, "a")
    assert (states, world.there, scene.sent.count("probe"), report.probes) == ({"a": "created"}, ["a"], 2, ())


async def test_a_probe_that_can_t_be_deleted_is_named_and_deleted_by_the_next_run(
    world: World, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The report and a warning name it. It is no fault of the rows."""
    scene.rows = {"a": ["lost"]}
    world.service.faults.add(faults.status(403), "cards.delete")
    states, report = await run(world, "a", journal=world.path)
    (left,) = probes(world)
    assert (states, [card.id for card in report.probes], report.audit.is_sound) == ({"a": "created"}, [left.id], True)
    assert (report.audit.unexpected, CODE.search(report.probes[0].name) is not None) == ((), True)
    assert f"the temporary card {left.id} was not deleted" in caplog.text
    world.service.faults.clear()
    states, report = await run(world, "a", journal=world.path, probe=False)
    assert (states, world.there, report.probes) == ({"a": "already"}, ["a"], ())
    assert report.audit.is_sound


async def test_a_proxy_that_finds_no_card_for_a_while_hides_no_probe(world: World, scene: Scene) -> None:
    """A 404 counts if it comes again once the lists can be read."""
    scene.rows = {"a": ["lost"]}
    world.service.faults.add(faults.status(404), "cards.get", call=1)
    _, report = await run(world, "a")
    assert [card.id for card in report.probes] == [card.id for card in probes(world)] != []


# --- people


async def test_a_probe_that_people_have_renamed_is_theirs(world: World, scene: Scene) -> None:
    """It has proven what it had to, is not deleted, and is named. No row takes it for its own."""

    def rename(card: Any) -> None:
        card.name = "taken over"

    scene.rows, scene.probes = {"a": ["lost"]}, [rename]
    states, report = await run(world, "a", journal=world.path)
    assert (states, world.there, deleted(world)) == ({"a": "created"}, ["a", "taken over"], 0)
    assert [card.id for card in report.probes] == [card.id for card in probes(world)]
    assert (report.audit.is_sound, report.audit.duplicated, report.audit.unexpected) == (True, (), ())
    states, report = await run(world, "a", journal=world.path)
    assert (states, world.there, len(report.probes)) == ({"a": "already"}, ["a", "taken over"], 1)


@pytest.mark.parametrize("marker", [None, True])
async def test_a_copy_of_the_probe_is_a_card_of_others(world: World, scene: Scene, marker: bool | None) -> None:
    """It is not deleted, keeps no row unknown, and is no second card of a row."""
    scene.rows, scene.probes = {"a": ["lost"]}, [lambda card: world.add_card(card.name, desc=card.desc)]
    states, report = await run(world, "a", marker=marker)
    (left,) = probes(world) if marker is None else [card for card in probes(world) if card.name != "a"]
    assert (states, deleted(world), report.probes) == ({"a": "created"}, 1, ())
    assert ([card.id for card in report.audit.unexpected], report.audit.is_sound) == ([left.id], True)


async def test_a_probe_that_can_t_be_told_from_its_copy_stays(world: World, scene: Scene) -> None:
    """Its response was lost. Both are named, none is deleted, and another probe proves the row absent."""

    async def copy_and_lose(stage: Stage) -> None:
        card: Any = stage.commit().body
        world.add_card(card["name"], desc=card["desc"])
        stage.abort()

    scene.rows, scene.probes = {"a": ["lost"]}, [copy_and_lose]
    states, report = await run(world, "a")
    assert (states, deleted(world)) == ({"a": "created"}, 1)
    assert {card.id for card in report.probes} == {card.id for card in probes(world)}
    assert len(report.probes) == 2


@pytest.mark.parametrize("shows_answers", [False, True])
async def test_a_probe_whose_name_the_service_changes_is_deleted(world: World, scene: Scene, shows_answers: bool) -> None:
    """The listing, or the response, has shown it so. A name of which the marker is left is the probe's."""

    def shape(operation: str, body: Any) -> Any:
        if operation == "cards.create" and not shows_answers:
            return body
        shown = [{**card, "name": f"{card['name']} (2 Jan)"} if "desc" in card else card for card in [*_many(body)]]
        return shown if isinstance(body, list) else shown[0]

    scene.rows = {"a": ["lost"]}
    world.service.rules.shape = shape
    states, report = await run(world, "a")
    assert (states, world.there, report.probes) == ({"a": "created"}, ["a"], ())


def _many(body: Any) -> list[Any]:
    return body if isinstance(body, list) else [body]


# --- ends


async def test_a_probe_is_in_the_journal_before_it_is_sent(world: World, scene: Scene) -> None:
    """A run that is left while the probe is under way leaves it to the next one, which finds and deletes it."""
    scene.rows = {"a": ["lost"]}
    world.service.faults.clear()
    world.service.faults.add(scene, "cards.create", call=1)
    world.service.faults.add(faults.hang(commit=True), "cards.create", call=2)
    async with world.run(drafts(world, "a"), concurrency=1, settle=0.0, probe=True):
        await world.service.received("cards.create", 2)
    (left,) = probes(world)
    assert [row.state for row in read_rows(world.path)] == ["unknown"]
    assert (read_journal(world.path).rows, read_journal(world.path).counts["unknown"]) == (1, 1)
    world.service.faults.clear()
    states, report = await run(world, "a", journal=world.path)
    assert (states, world.there, report.probes) == ({"a": "created"}, ["a"], ())
    assert left.id not in world.service.rules.cards


async def test_a_probe_that_was_never_sent_costs_the_next_run_nothing(world: World, scene: Scene) -> None:
    """The run ended after the probe was logged."""
    runs: list[Any] = []

    async def stop_and_refuse(stage: Stage) -> None:
        runs[0].stop()
        await stage.reply(429)

    scene.rows, scene.probes = {"a": ["lost"]}, [stop_and_refuse]
    async with world.run(drafts(world, "a"), concurrency=1, settle=0.0, probe=True) as opened:
        runs.append(opened)
        assert [result.state async for result in opened] == ["unknown"]
    world.service.faults.clear()
    states, report = await run(world, "a", journal=world.path)
    assert (states, world.there, report.probes) == ({"a": "created"}, ["a"], ())


async def test_undo_leaves_a_probe_out(world: World, scene: Scene) -> None:
    """It is neither deleted with the cards of rows, nor among those that are kept."""
    scene.rows = {"a": ["lost"]}
    world.service.faults.add(faults.status(403), "cards.delete")
    await run(world, "a", journal=world.path)
    world.service.faults.clear()
    undo = await world.session.cards.plan_undo(world.path)
    assert (len(undo.unchanged), undo.kept, undo.gone) == (1, [], [])


@pytest.mark.parametrize("has_journal", [False, True])
async def test_a_run_that_is_stopped_deletes_its_probes(world: World, scene: Scene, has_journal: bool) -> None:
    """Nothing is sent any more but that."""
    runs: list[Any] = []
    scene.rows, scene.probes = {"a": ["lost"]}, [lambda card: runs[0].stop()]
    async with world.run(
        drafts(world, "a"), concurrency=1, settle=0.0, probe=True, journal=world.path if has_journal else None
    ) as opened:
        runs.append(opened)
        assert [result.state async for result in opened] == ["unknown"]
        report = opened.report
    assert (world.there, report.probes, scene.sent) == ([], (), ["a", "probe"])


async def test_a_stopped_run_names_the_probe_that_it_could_not_delete(world: World, scene: Scene) -> None:
    """It tries once, and does not wait."""
    runs: list[Any] = []
    scene.rows, scene.probes = {"a": ["lost"]}, [lambda card: runs[0].stop()]
    world.service.faults.add(faults.status(404), "cards.get")
    async with world.run(drafts(world, "a"), concurrency=1, settle=0.0, probe=True) as opened:
        runs.append(opened)
        assert [result.state async for result in opened] == ["unknown"]
        assert [card.id for card in opened.report.probes] == [card.id for card in probes(world)]


async def test_leaving_a_run_without_a_journal_deletes_its_probes(world: World, scene: Scene) -> None:
    """No later run knows of them."""
    scene.rows = {"a": ["lost"]}
    async with world.run(drafts(world, "a"), concurrency=1, settle=0.0, probe=True, journal=None) as opened:
        assert (await anext(opened)).state == "created"
    assert (world.there, deleted(world)) == (["a"], 1)


async def test_leaving_a_run_while_its_probe_is_under_way_is_logged(
    world: World, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a journal no later run knows of it. A probe that a listing has not shown is not there."""
    scene.rows, scene.probes = {"a": ["lost"]}, ["lost"]
    world.service.faults.clear()
    world.service.faults.add(scene, "cards.create", call=1)
    world.service.faults.add(scene, "cards.create", call=2)
    world.service.faults.add(faults.hang(commit=True), "cards.create", call=3)
    async with world.run(drafts(world, "a"), concurrency=1, settle=0.0, probe=True, journal=None):
        await world.service.received("cards.create", 3)
    (left,) = probes(world)
    assert [text for text in caplog.messages if "temporary card" in text] == [
        f"the temporary card {left.name!r} may be on the board: the response to its request did not come"
    ]


async def test_a_run_that_waits_for_more_rows_has_no_probe_on_the_board(world: World, scene: Scene) -> None:
    """An input that may take hours leaves it there no longer than it is needed."""
    more = asyncio.Event()

    async def rows() -> Any:
        yield CardDraft("a", world.lists[0])
        await more.wait()
        yield CardDraft("b", world.lists[0])

    scene.rows = {"a": ["lost"]}
    async with world.run(rows(), concurrency=1, settle=0.0, probe=True, journal=None) as opened:
        assert (await anext(opened)).draft.name == "a"
        await world.service.received("cards.delete", 1)
        assert (scene.sent, world.there) == (["a", "probe", "a"], ["a"])
        more.set()
        assert [result.draft.name async for result in opened] == ["b"]


# --- options


async def test_an_option_that_is_no_choice_is_refused(world: World) -> None:
    """Nothing is sent."""
    words = "probe must be True or False, not int"
    with pytest.raises(TypeError, match=words):
        world.session.cards.create_many([], board_id="b", probe=1)  # type: ignore[arg-type]  # -- that is the case
    with pytest.raises(TypeError, match=words):
        await world.session.cards.create("a", list_id=world.lists[0], board_id="b", probe=1)  # type: ignore[arg-type]  # -- the same
    assert world.sent == []


@pytest.mark.parametrize("unknown", ["report", None])
async def test_no_probe_is_sent_where_the_board_is_not_read(world: World, scene: Scene, unknown: Any) -> None:
    """A lost row is reported."""
    scene.rows = {"a": ["lost"]}
    board_id = None if unknown is None else world.board_id
    states, _ = await world.finish(drafts(world, "a"), journal=None, board_id=board_id, unknown=unknown)
    assert (states, scene.sent) == ({"a": "unknown"}, ["a"])


async def test_probes_are_the_rule(world: World, scene: Scene) -> None:
    """Without an option, a lost card that is not listed is created."""
    scene.rows = {"a": ["lost"], "b": ["lost"]}
    report = await world.session.cards.create_many(drafts(world, "a"), board_id=world.board_id, settle=0.0)
    await world.session.cards.create("b", list_id=world.lists[0], board_id=world.board_id, settle=0.0)
    assert (report.created, world.there, probes(world)) == (1, ["a", "b"], [])


# --- how many


@pytest.mark.full
@pytest.mark.parametrize("number", [1, 12])
async def test_a_listing_that_is_cut_off_gets_one_probe(world: World, scene: Scene, number: int) -> None:
    """It shows the probe and is no longer: another one would be sent in vain."""
    for name in "xy":
        await world.session.cards.create(name, list_id=world.lists[0])
    world.list_as(lambda cards: sorted(cards, key=lambda card: str(card["id"]))[-2:])
    names = [f"row {index}" for index in range(number)]
    scene.rows = {name: ["lost"] for name in names}
    states, report = await run(world, [CardDraft(name, world.lists[0]) for name in names])
    assert (set(states.values()), scene.sent.count("probe"), report.probes) == ({"unknown"}, 1, ())


async def test_a_board_that_has_shrunk_gets_a_second_probe(world: World, scene: Scene) -> None:
    """People delete cards between the two listings, so that the later one is shorter though it shows the probe."""
    others = [world.add_card(f"of others {number}") for number in range(3)]

    def delete() -> None:
        for card_id in others:
            world.service.rules.cards.pop(card_id)

    world.service.faults.add(Meanwhile(delete), "boards.cards", call=3)
    scene.rows = {"a": ["lost"]}
    states, _ = await run(world, "a")
    assert (states, scene.sent, world.there) == ({"a": "created"}, ["a", "probe", "probe", "a"], ["a"])


async def test_a_list_that_is_archived_gets_no_probe(world: World, scene: Scene) -> None:
    """Its cards may not be listed."""

    async def archive_and_lose(stage: Stage) -> None:
        world.service.rules.lists[world.lists[0]].closed = True
        stage.abort()

    scene.rows = {"a": [archive_and_lose]}
    states, _ = await run(world, "a")
    assert (states, scene.sent) == ({"a": "unknown"}, ["a"])


async def test_no_probe_is_sent_while_one_of_the_job_can_t_be_deleted(world: World, scene: Scene) -> None:
    """Each night would leave another one on the board."""
    world.service.faults.add(faults.status(403), "cards.delete")
    scene.rows = {"a": ["lost"], "b": ["lost"]}
    await run(world, "a", journal=world.path)
    states, report = await run(world, "ab", journal=world.path)
    assert (states, scene.sent.count("probe")) == ({"a": "already", "b": "unknown"}, 1)
    assert [card.id for card in report.probes] == [card.id for card in probes(world)] != []


async def test_a_probe_of_an_earlier_run_is_deleted_before_another_is_sent(world: World, scene: Scene) -> None:
    """It would make the listing longer in which the next one is looked for."""
    world.service.faults.add(faults.status(403), "cards.delete", times=1)
    scene.rows = {"a": ["lost"], "b": ["lost"]}
    await run(world, "a", journal=world.path)
    assert len(probes(world)) == 1
    states, report = await run(world, "ab", journal=world.path)
    assert (states, world.there, report.probes) == ({"a": "already", "b": "created"}, ["a", "b"], ())


@pytest.mark.parametrize(
    ("shown", "hides_of_one"),
    [
        pytest.param(None, False, id="none in listings"),
        pytest.param(None, True, id="none"),
        pytest.param("", False, id="empty"),
        pytest.param("a/b", False, id="no identifier"),
    ],
)
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_probe_of_an_earlier_run_is_known_whatever_list_is_shown_for_it(
    world: World, scene: Scene, shown: str | None, hides_of_one: bool, is_deleted: bool
) -> None:
    """It is deleted, so that rows are settled as on any board, or named."""

    def show(card: Any) -> Any:
        return {name: value for name, value in {**card, "idList": shown}.items() if value is not None}

    def shape(operation: str, body: Any) -> Any:
        if operation == "boards.cards":
            return [show(card) for card in body]
        return show(body) if operation == "cards.get" and hides_of_one else body

    world.service.rules.shape = shape
    world.service.faults.add(faults.status(403), "cards.delete", times=1 if is_deleted else None)
    scene.rows = {"a": ["lost"], "b": ["lost"]}
    await run(world, "a", journal=world.path)
    (left,) = probes(world)
    states, report = await run(world, "ab", journal=world.path)
    if is_deleted:
        assert (states, world.there, report.probes) == ({"a": "already", "b": "created"}, ["a", "b"], ())
    else:
        assert (states, [(card.id, card.list_id) for card in report.probes]) == (
            {"a": "already", "b": "unknown"},
            [(left.id, shown)],
        )


@pytest.mark.parametrize("has_row_of_its_name", [False, True])
async def test_the_probe_of_another_import_keeps_no_row_unknown(world: World, scene: Scene, has_row_of_its_name: bool) -> None:
    """A card with its name and its text is nobody's, unless a row in doubt has the name, which it equals."""
    name = "bcbcdfghjklmnpqrstbcdf temporary card, deleted soon"
    text = "boardclient has created this card to see that the board lists every card, and deletes it again."
    marker = name.split()[0]

    async def lose(stage: Stage) -> None:
        world.add_card(name, desc=f"[{marker}]\n\n{text}\n\n[{marker}]")
        stage.abort()

    row = name if has_row_of_its_name else "a"
    scene.rows, scene.probes = {row: [lose]}, [lose] if has_row_of_its_name else []
    states, report = await run(world, [CardDraft(row, world.lists[0])])
    assert (states, report.probes) == ({row: "created"}, ())
    assert world.there == [name] if has_row_of_its_name else sorted(["a", name])
