"""Rows that the service refused though it created their cards: what the board shows counts more than the status."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from bulk_helpers import World, kept

from boardclient import ApiError, AuthenticationError, CardDraft, CardResult
from boardclient.bulk.journal import read_rows
from boardclient.testing import faults


@attrs.define
class Refusing:
    """A fault: the first requests for some rows are refused. With each is said whether its card is created all the same."""

    world: World
    rows: dict[str, bool]
    status: int = 409

    async def play(self, stage: Any) -> None:
        name = self.world.sent[-1]
        if name in self.rows:
            await faults.status(self.status, commit=self.rows.pop(name)).play(stage)
        else:
            await stage.reply_answer()


async def run(world: World, drafts: Any, *, status: int = 409, refused: str = "", kept_out: str = "", **options: Any) -> Any:
    """Run once. The cards of rows in `refused` are created and refused, those in `kept_out` refused alone."""
    rows = {**dict.fromkeys(refused, True), **dict.fromkeys(kept_out, False)}
    if isinstance(drafts, str):
        drafts = [CardDraft(name, world.lists[0], reference=name) for name in drafts]
    world.service.faults.add(Refusing(world, rows, status), "cards.create")
    async with world.run(drafts, **{"concurrency": 1, "settle": 0.0, **options}) as opened:
        results: dict[str, CardResult] = {result.draft.name: result async for result in opened}
    world.service.faults.clear()
    return results, opened.report


def hide(world: World, *names: str) -> None:
    """Let listings lack some cards, as those of a service do that lists them late."""
    world.list_as(lambda cards: [card for card in cards if card["name"] not in names])


@pytest.mark.parametrize("status", [307, 400, 404, 409, 422])
@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("marker", [None, True, lambda draft: f"m{draft.name}"])
async def test_a_refused_row_whose_card_is_listed_is_created(world: World, marker: Any, has_journal: bool, status: int) -> None:
    """It has its card then, is not sent again, and nothing is wrong."""
    options = {"marker": marker, "journal": world.path if has_journal else None, "status": status}
    results, report = await run(world, "abcd", refused="bd", **options)
    assert {name: result.state for name, result in results.items()} == dict.fromkeys("abcd", "created")
    assert {world.service.rules.cards[result.card.id].name for result in results.values()} == {*"abcd"}
    assert report.audit.is_sound
    assert (report.audit.confirmed, report.audit.recovered, report.audit.unexpected) == (4, 2, ())
    if has_journal:
        results, report = await run(world, "abcd", **options)
        assert {result.state for result in results.values()} == {"already"}
    assert world.there == [*"abcd"]


@pytest.mark.parametrize("marker", [None, True])
async def test_a_refused_row_without_a_card_fails_and_is_sent_again(world: World, marker: Any) -> None:
    """Cards of others and of equal rows are not its card."""
    rows = [CardDraft(name, world.lists[0], reference=f"{index}") for index, name in enumerate("abcbd")]
    results, report = await run(world, rows, kept_out="c", marker=marker)
    assert {name for name, result in results.items() if result.state == "failed"} == {"c"}
    assert report.audit.is_sound
    world.add_card("of others")
    results, _ = await run(world, rows, marker=marker)
    assert {name: result.state for name, result in results.items()} == {**dict.fromkeys("abd", "already"), "c": "created"}
    assert world.there == [*"abbcd", "of others"]


async def test_a_refused_row_that_several_cards_equal_is_unknown(world: World) -> None:
    """The error and the audit name them. The row is settled as every other unknown one, and never sent again by itself."""
    rows = [CardDraft("a", world.lists[0]), CardDraft("b", world.lists[0]), CardDraft("c", world.lists[0])]

    async def copied() -> AsyncIterator[CardDraft]:
        for row in rows:
            yield row
        world.add_card("b")

    results, report = await run(world, copied(), refused="b")
    assert results["b"].state == "unknown"
    assert results["b"].error.effect.value == "unknown"
    named = {card.id for card in world.service.rules.cards.values() if card.name == "b"}
    assert {card.id for card in report.audit.resembling} == named
    assert all(card_id in str(results["b"].error) for card_id in named)
    assert [draft.name for draft in report.audit.unproven] == ["b"]
    results, _ = await run(world, rows)
    assert results["b"].state == "unknown"
    assert world.there == [*"abbc"]


@pytest.mark.parametrize("marker", [None, True])
async def test_the_board_is_read_before_a_refused_row_of_an_earlier_run_is_sent_again(world: World, marker: Any) -> None:
    """The card may have been listed since."""
    hide(world, "b")
    results, _ = await run(world, "abcd", refused="b", marker=marker)
    assert results["b"].state == "failed"
    hide(world)
    results, report = await run(world, "abcde", kept_out="c", marker=marker)
    assert {name: result.state for name, result in results.items()} == {**dict.fromkeys("abcd", "already"), "e": "created"}
    assert report.audit.is_sound
    assert world.there == [*"abcde"]


async def test_the_marker_of_a_row_stays_known_however_often_it_is_sent(world: World) -> None:
    """A card of the first of three requests is the row's, whatever its name is by now."""
    hide(world, "b", "renamed")
    for _ in range(2):
        results, _ = await run(world, "abc", refused="b", marker=True)
        assert results["b"].state == "failed"
        world.service.rules.cards = {key: card for key, card in world.service.rules.cards.items() if card.name != "renamed"} | {
            key: attrs.evolve(card, name="renamed") for key, card in world.service.rules.cards.items() if card.name == "b"
        }
    first = min(key for key, card in world.service.rules.cards.items() if card.name == "renamed")
    hide(world)
    (marker,) = [row.marker for row in read_rows(world.path) if row.key == "b"]
    assert all(marker in card.desc for card in world.service.rules.cards.values() if card.name == "renamed")
    results, _ = await run(world, "abc", marker=True)
    assert results["b"].state in {"already", "unknown"}
    assert first in world.service.rules.cards
    assert world.sent.count("b") == 2


async def test_refused_rows_are_not_sent_again_while_the_board_can_t_be_read(world: World, passing_time: Any) -> None:
    """They have failed, and the error says why they were not sent."""
    await run(world, "abc", kept_out="b")
    reads, sent = world.reads(), len(world.sent)
    world.service.faults.add(faults.status(500), "boards.cards", call=range(reads + 1, reads + 1000))
    results, report = await run(world, "abc")
    assert (results["b"].state, len(world.sent)) == ("failed", sent)
    assert "is not sent again while the board can't be read" in str(results["b"].error)
    assert report.audit is None
    results, _ = await run(world, "abc")
    assert results["b"].state == "created"


async def test_refused_credentials_end_a_run_before_it_sends_refused_rows_again(world: World) -> None:
    """They are left to the next run."""
    await run(world, "abc", kept_out="b")
    world.service.faults.add(faults.status(401), "boards.cards", call=world.reads() + 1)
    with pytest.raises(AuthenticationError):
        await run(world, "abc")
    assert kept(world.path)["b"][0] == "failed"
    assert world.there == ["a", "c"]


async def test_refused_rows_have_a_result_while_the_input_waits(world: World) -> None:
    """An input may wait for the results of its rows."""
    failed = asyncio.Event()

    async def rows() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", world.lists[0])
        yield CardDraft("b", world.lists[0])
        async with asyncio.timeout(60):
            await failed.wait()
        yield CardDraft("c", world.lists[0])

    world.service.faults.add(Refusing(world, {"a": False}), "cards.create")
    async with world.run(rows(), concurrency=1, settle=0.0) as opened:
        async for result in opened:
            if result.state == "failed":
                failed.set()
    assert (opened.report.created, opened.report.failed) == (2, 1)


async def test_only_so_many_refused_rows_wait_for_their_results(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the board is read for them, so that memory stays flat."""
    monkeypatch.setattr("boardclient.bulk._engine._places._MOST_REFUSED", 3)
    names = "abcdefghijklmnop"
    results, report = await run(world, names, kept_out="bdfhjln", refused="ai")
    states = {name: result.state for name, result in results.items()}
    assert states == {**dict.fromkeys("acegikmop", "created"), **dict.fromkeys("bdfhjln", "failed")}
    assert list(states).index("b") < 8
    assert report.audit.is_sound
    results, _ = await run(world, names)
    assert {name for name, result in results.items() if result.state == "created"} == {*"bdfhjln"}
    assert world.there == [*names]


async def test_a_single_card_that_was_refused_and_is_listed_is_returned(world: World) -> None:
    """`cards.create` with a board believes the board as well."""
    world.service.faults.add(faults.status(409, commit=True), "cards.create", times=1)
    card = await world.session.cards.create("party", list_id=world.lists[0], board_id=world.board_id, settle=0.0)
    assert [*world.service.rules.cards] == [card.id]


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("marker", [None, True])
async def test_a_login_page_in_place_of_every_response_makes_no_second_card(
    world: World, marker: Any, is_done: bool, passing_time: Any
) -> None:
    """The run waits, reads the board with patience, and ends with what is true. The same rows are finished by the next run."""
    page = faults.status(302, headers={"Location": "https://login.example/"}, commit=is_done)
    names, options = "abcdefghijkl", {"marker": marker}
    world.service.faults.add(page, "cards.create", call=range(3, 1000))
    world.service.faults.add(faults.redirect("https://login.example/", 302), "boards.cards", call=range(2, 1000))
    rows = [CardDraft(name, world.lists[0], reference=name) for name in names]
    async with world.run(rows, concurrency=2, settle=0.0, **options) as opened:
        with pytest.raises(ApiError, match=r"nothing was accepted for too long.*left to the next"):
            await opened.wait()
    assert opened.report.failed == 0
    assert opened.report.created == 2
    world.service.faults.clear()
    results, report = await run(world, names, **options)
    assert {result.state for result in results.values()} == {"already", "created"}
    assert report.audit.is_sound
    assert world.there == [*names]


@pytest.mark.parametrize("marker", [None, True])
@pytest.mark.parametrize("number", [12, 40])
async def test_rows_that_are_refused_after_their_commit_have_one_card_each(
    world: World, marker: Any, number: int, passing_time: Any
) -> None:
    """In an outage other rows are tried, and what was refused is sent again only if the board lacks it: here it has all cards."""
    loop, names = asyncio.get_running_loop(), [f"card {number}" for number in range(number)]
    until = loop.time() + 25.0

    class Firewall:
        async def play(self, stage: Any) -> None:
            if loop.time() < until and len(world.sent) > 2:
                await faults.status(403, commit=True).play(stage)
            else:
                await stage.reply_answer()

    world.service.faults.add(Firewall(), "cards.create")
    rows = [CardDraft(name, world.lists[0], reference=name) for name in names]
    async with world.run(rows, concurrency=4, settle=0.0, marker=marker) as run:
        report = await run.wait()
    assert world.there == sorted(name.removeprefix("card ") for name in names)
    assert (report.created, report.failed, report.unknown) == (number, 0, 0)
    assert report.audit.is_sound
    assert len(world.sent) == number


@pytest.mark.parametrize("marker", [None, True])
async def test_rows_that_are_refused_in_an_outage_are_created_after_it(world: World, marker: Any, passing_time: Any) -> None:
    """One listing at its end shows which of them have cards. The others are sent again, with the markers that they had."""
    loop, names = asyncio.get_running_loop(), [f"card {number}" for number in range(30)]
    until = loop.time() + 10.0

    class Firewall:
        async def play(self, stage: Any) -> None:
            if loop.time() < until and len(world.sent) > 2:
                await faults.status(403, commit=len(world.sent) % 2 == 0).play(stage)
            else:
                await stage.reply_answer()

    world.service.faults.add(Firewall(), "cards.create")
    rows = [CardDraft(name, world.lists[0], reference=name) for name in names]
    async with world.run(rows, concurrency=4, settle=0.0, marker=marker) as run:
        report = await run.wait()
    assert world.there == sorted(name.removeprefix("card ") for name in names)
    assert (report.created, report.failed, report.unknown) == (30, 0, 0)
    assert report.audit.is_sound
    assert not marker or len({row.marker for row in read_rows(world.path)}) == 30
