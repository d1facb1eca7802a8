"""What becomes of rows whose response was lost: found, sent again, or unknown. Runs over sockets, one card at a time."""

import asyncio
import html
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from bulk_helpers import World
from fault_helpers import Meanwhile

from boardclient import ApiError, AuthenticationError, BulkProgress, BulkReport, Card, CardDraft, CardResult
from boardclient.bulk import resolve
from boardclient.errors import JournalError
from boardclient.testing import faults


@attrs.define
class Losing:
    """A fault: the first responses to some rows do not come. With each is said whether its card is created."""

    world: World
    rows: list[tuple[str, bool]]

    async def play(self, stage: Any) -> None:
        row = next((row for row in self.rows if row[0] == self.world.sent[-1]), None)
        if row is None:
            await stage.reply_answer()
            return
        self.rows.remove(row)
        await faults.drop(commit=row[1]).play(stage)


@attrs.define
class GivingAgain:
    """A fault: a card is deleted just before another is created, which gets its identifier. The response may be lost."""

    world: World
    gone: str
    is_lost: bool = True

    async def play(self, stage: Any) -> None:
        cards, answer = self.world.service.rules.cards, stage.commit()
        made, gone = cards.pop(answer.body["id"]), record(self.world, self.gone)
        made.id = answer.body["id"] = gone.id
        cards[gone.id] = made
        await (faults.drop(commit=True).play(stage) if self.is_lost else stage.reply_answer())


@attrs.define
class Run:
    """What a run said, by the names of the rows."""

    results: dict[str, CardResult]
    report: BulkReport

    @property
    def states(self) -> dict[str, str]:
        return {name: result.state for name, result in self.results.items()}

    @property
    def audit(self) -> Any:
        assert self.report.audit is not None
        return self.report.audit

    def error(self, name: str) -> str:
        return str(self.results[name].error)


async def run(
    world: World,
    drafts: str | list[CardDraft],
    *,
    committed: str = "",
    lost: str = "",
    before_reading: Callable[[], object] | None = None,
    **options: Any,
) -> Run:
    """Run once. The responses to the rows in `committed` and `lost` do not come; those in `lost` create nothing.

    Something may happen before the board is read for rows in doubt.
    """
    if isinstance(drafts, str):
        drafts = [CardDraft(name, world.lists[0]) for name in drafts]
    names = [(draft.name.removeprefix("card "), draft.name in committed) for draft in drafts if draft.name in committed + lost]
    if names:
        world.service.faults.add(Losing(world, names), "cards.create")
    if before_reading is not None:
        reading = world.reads() + (1 if not world.reads() or options.get("journal", 0) is None else 0) + 1
        world.service.faults.add(Meanwhile(before_reading), "boards.cards", call=reading)
    async with world.run(drafts, **{"concurrency": 1, "journal": None, "settle": 0.0, **options}) as opened:
        results = [result async for result in opened]
    world.service.faults.clear()
    return Run({result.draft.name: result for result in results}, opened.report)


def record(world: World, name: str) -> Any:
    return next(card for card in world.service.rules.cards.values() if card.name == name)


def change(world: World, row: str, **fields: Any) -> Callable[[], None]:
    """Return what changes a card, as people do."""

    def act() -> None:
        made = record(world, row)
        for field, value in fields.items():
            setattr(made, field, value)

    return act


def list_with(world: World, **ways: Callable[[Any], Any]) -> None:
    """Let listings show fields in other ways; None leaves the field out."""

    def change(cards: list[Any]) -> list[Any]:
        shown = [{**card, **{field: way(card[field]) for field, way in ways.items()}} for card in cards]
        return [{field: value for field, value in card.items() if value is not None} for card in shown]

    world.list_as(change)


def name_in_response(world: World, row: str, card_id: Callable[[], str]) -> None:
    """Let the response to a row name another card."""
    world.service.rules.shape = lambda operation, body: (
        {**body, "id": card_id()} if operation == "cards.create" and body["name"] == row else body
    )


# --- found, absent, unknown


async def test_a_row_is_found_or_sent_again(world: World) -> None:
    """A card that exists is found, one that does not is sent again, and the audit is sound."""
    done = await run(world, "abcdef", committed="bd", lost="ce")
    assert set(done.states.values()) == {"created"}
    assert world.there == [*"abcdef"]
    assert (done.audit.confirmed, done.audit.recovered, done.audit.is_sound) == (6, 2, True)


@pytest.mark.parametrize(
    "way", [str.strip, html.escape, lambda text: html.escape(html.escape(text)), lambda text: text.replace("\r\n", "\n")]
)
async def test_a_row_is_found_however_blanks_and_escapes_are_shown(world: World, way: Callable[[str], str]) -> None:
    list_with(world, name=way, desc=way)
    drafts = [CardDraft(f" <{name}> & 'co'", world.lists[0], desc="one\r\ntwo ") for name in "abcd"]
    names = [draft.name for draft in drafts]
    done = await run(world, drafts, committed=names[1], lost=names[2])
    assert set(done.states.values()) == {"created"}
    assert world.there == sorted(names)


async def test_a_card_of_others_keeps_every_lost_row_unknown(world: World) -> None:
    """It could be any row's, renamed. Errors and audit name it; rows that are sent later can't own it."""
    done = await run(world, "abcdefg", lost="bc", committed="d", before_reading=lambda: world.add_card())
    stranger = record(world, "of others").id
    assert done.states == {**dict.fromkeys("adefg", "created"), **dict.fromkeys("bc", "unknown")}
    assert f"the card {stranger} may be this row's: it is no other row's" in done.error("b")
    assert [card.id for card in done.audit.unexpected] == [card.id for card in done.audit.resembling] == [stranger]
    assert [draft.name for draft in done.audit.unproven] == ["b", "c"]
    assert (done.audit.is_wrong, done.audit.is_sound) == (False, False)


@pytest.mark.parametrize("fields", [{"name": "renamed"}, {"list_id": "other"}, {"due": "2030-01-01T00:00:00Z"}, {"desc": "text"}])
async def test_a_card_that_people_have_changed_is_not_created_twice(world: World, fields: dict[str, str]) -> None:
    """A lost card that was renamed, moved, dated or described is the row's, or keeps it unknown. It is never sent again."""
    if "list_id" in fields:
        fields = {"list_id": world.lists[1]}
    drafts = [CardDraft(name, world.lists[0], desc="own", due=None) for name in "abcd"]
    done = await run(world, drafts, committed="b", before_reading=change(world, "b", **fields))
    assert done.states["b"] == ("created" if "due" in fields else "unknown")
    assert Counter(world.sent) == Counter("abcd")
    assert not done.audit.is_wrong


async def test_cards_of_others_beside_a_run_are_no_fault(world: World) -> None:
    done = await run(world, "abc", committed="b", before_reading=lambda: world.add_card())
    assert set(done.states.values()) == {"created"}
    assert [card.name for card in done.audit.unexpected] == ["of others"]
    assert done.audit.resembling == done.audit.duplicated == ()
    assert done.audit.is_sound


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_card_that_was_listed_before_a_row_was_sent_is_not_its_own(world: World, is_gone: bool) -> None:
    """The card of others keeps only the row unknown that was sent before the board was read. A later one is sent again.

    If the later one gets the identifier of that card, which is deleted, it is found.
    """
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    world.service.faults.add(GivingAgain(world, "of others") if is_gone else faults.drop(), "cards.create", call=4)
    world.service.faults.add(Meanwhile(lambda: world.add_card()), "boards.cards", call=2)
    known = asyncio.Event()

    async def rows() -> AsyncIterator[CardDraft]:
        for name in "ab":
            yield CardDraft(name, world.lists[0])
        await known.wait()
        for name in "cdef":
            yield CardDraft(name, world.lists[0])

    async with world.run(rows(), journal=None, settle=0.01, concurrency=1) as opened:
        states = {}
        async for result in opened:
            states[result.draft.name] = result.state
            if result.draft.name == "b":
                known.set()
    assert states == {**dict.fromkeys("acdef", "created"), "b": "unknown"}
    assert Counter(world.sent) == (Counter("abcdef") if is_gone else Counter("abcddef"))


@pytest.mark.parametrize("field", ["due", "desc"])
async def test_a_card_that_lacks_what_was_sent_is_a_rows_only_if_the_listing_leaves_it_out(world: World, field: str) -> None:
    """No other card shows the field, and no other row was sent with it: the card may be another's with the same name."""
    list_with(world, desc=lambda desc: desc or None)
    given: dict[str, Any] = {"due": datetime(2030, 1, 1, tzinfo=UTC)} if field == "due" else {"desc": "text"}
    drafts = [CardDraft(name, world.lists[0], **(given if name == "b" else {})) for name in "abcd"]
    done = await run(world, drafts, lost="b", before_reading=lambda: world.add_card("b"))
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}
    assert [card.name for card in done.audit.resembling] == ["b"]


async def test_a_field_that_the_listing_leaves_out_is_not_compared(world: World) -> None:
    """Cards of other rows that were sent with it show that."""
    list_with(world, due=lambda due: None)
    drafts = [CardDraft(name, world.lists[0], due=datetime(2030, 1, 1, tzinfo=UTC)) for name in "abcd"]
    done = await run(world, drafts, committed="b", lost="c")
    assert set(done.states.values()) == {"created"}
    assert world.there == [*"abcd"]


@pytest.mark.parametrize("marker", [True, lambda draft: f"row-{draft.name}"])
@pytest.mark.parametrize("are_renamed", [False, True])
async def test_a_description_with_the_markers_of_two_rows_belongs_to_the_one_with_its_name(
    world: World, marker: Any, are_renamed: bool
) -> None:
    """Someone pastes the description of a lost card under that of another. If both are renamed, a secret marker tells whose."""

    def paste() -> None:
        first, second = record(world, "b"), record(world, "c")
        first.desc = f"{second.desc}\n{first.desc}"
        if are_renamed:
            first.name, second.name = "one", "two"

    done = await run(world, "abcdef", committed="bc", before_reading=paste, marker=marker)
    cards = {name: result.card and result.card.id for name, result in done.results.items()}
    if are_renamed:
        assert done.states == {
            **dict.fromkeys("acdef", "created"),
            "b": "unknown",
            "c": "created" if marker is True else "unknown",
        }
    else:
        assert (cards["b"], cards["c"]) == (record(world, "b").id, record(world, "c").id)
    assert Counter(world.sent) == Counter("abcdef")
    assert not done.audit.is_wrong


# --- identifiers that are given again


@pytest.mark.parametrize("marker", [None, True])
@pytest.mark.parametrize("gone", ["a", "before"])
async def test_a_lost_card_with_the_identifier_of_a_deleted_one_is_not_created_twice(
    world: World, gone: str, marker: bool | None
) -> None:
    """The deleted one was a row's, or on the board before. A marker shows whose the card is now, also to a later run."""
    world.add_card("before")
    world.service.faults.add(GivingAgain(world, gone), "cards.create", call=3)
    done = await run(world, "abcdef", journal=world.path, marker=marker)
    assert done.states == {**dict.fromkeys("abdef", "created"), "c": "created" if marker else "unknown"}
    assert (done.audit.reused, done.audit.is_sound) == (int(gone == "a" and bool(marker)), gone == "before" and bool(marker))
    card = record(world, "c")
    if marker is None:
        assert f"the card {card.id} may be this row's" in done.error("c")
        assert [card.name for card in done.audit.resembling] == ["c"]
    later = await run(world, "abcdefgh", lost="g", journal=world.path, marker=marker)
    assert later.states == {
        **dict.fromkeys("abdef", "already"),
        "c": "already" if marker else "unknown",
        **dict.fromkeys("gh", "created"),
    }
    assert Counter(world.sent) == Counter("abcdefggh")


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("marker", [None, True])
async def test_a_response_that_names_a_card_that_was_there_before_confirms_nothing(
    world: World, journal: bool, marker: bool | None
) -> None:
    """The identifier may have been given again: a marker shows that. Otherwise the row may have no card of its own."""
    path = world.path if journal else None
    world.add_card("before")
    world.service.faults.add(GivingAgain(world, "before", is_lost=False), "cards.create", call=2)
    done = await run(world, "abc", journal=path, marker=marker)
    assert done.states == {"a": "created", "b": "created" if marker else "unknown", "c": "created"}
    assert (done.audit.is_wrong, done.audit.is_sound) == (False, bool(marker))


@pytest.mark.parametrize("marker", [None, True])
async def test_a_response_that_names_an_older_card_of_others_makes_no_row_created(world: World, marker: bool | None) -> None:
    """The row's own card is found, if there is one."""
    older = world.add_card("before")
    name_in_response(world, "b", lambda: older)
    done = await run(world, "abc", marker=marker)
    assert set(done.states.values()) == {"created"}
    assert done.results["b"].card is not None
    assert done.results["b"].card.id == record(world, "b").id
    assert Counter(world.sent) == Counter("abc")


async def test_a_row_whose_response_names_a_known_card_is_never_absent(world: World) -> None:
    """The service shows names in another way, so nothing shows whose card it is now. A person can say so."""
    list_with(world, name=lambda name: f"TICKET {name}")
    world.service.faults.add(GivingAgain(world, "a", is_lost=False), "cards.create", call=2)
    done = await run(world, "abcd", journal=world.path)
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}
    card_id = record(world, "b").id
    assert f"the card {card_id} may be this row's" in done.error("b")
    assert [card.id for card in done.audit.resembling] == [card_id]
    assert (done.audit.reused, done.audit.is_wrong) == (1, True)
    assert Counter(world.sent) == Counter("abcd")
    with pytest.raises(JournalError, match="is that of the row"):
        resolve(world.path, 1, card_id=record(world, "d").id)
    resolve(world.path, 1, card_id=card_id)


async def test_a_row_whose_response_names_a_card_that_is_gone_is_never_absent(world: World) -> None:
    """Two responses name one card, which is deleted before the board is read."""
    world.service.faults.add(GivingAgain(world, "a", is_lost=False), "cards.create", call=2)
    done = await run(world, "abcd", before_reading=lambda: world.service.rules.cards.pop(record(world, "b").id))
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}
    assert "named a card which is known as another" in done.error("b")


async def test_a_marker_of_the_caller_keeps_a_row_unknown_whose_identifier_was_given_again(world: World) -> None:
    """An import before it may have made the same marker, so it does not prove whose card it is, but the row is not sent again."""
    world.add_card("before")
    list_with(world, name=str.upper)
    world.service.faults.add(GivingAgain(world, "before"), "cards.create", call=2)
    done = await run(world, "abcd", marker=lambda draft: f"row-{draft.name}")
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}
    assert f"the card {record(world, 'b').id} may be this row's" in done.error("b")
    assert Counter(world.sent) == Counter("abcd")


async def test_rows_with_one_marker_are_unknown_if_a_card_with_a_known_identifier_shows_it(world: World) -> None:
    """It may be the card of either row. Neither is sent again."""
    world.add_card("before")
    list_with(world, name=str.upper)
    world.service.faults.add(GivingAgain(world, "before"), "cards.create", call=2)
    world.service.faults.add(faults.drop(), "cards.create", call=3)
    done = await run(world, "abcdef", marker=lambda draft: "both" if draft.name in "bc" else draft.name)
    assert done.states == {**dict.fromkeys("adef", "created"), **dict.fromkeys("bc", "unknown")}
    assert f"the card {record(world, 'b').id} may be this row's" in done.error("b")
    assert Counter(world.sent) == Counter("abcdef")


async def test_a_row_has_the_card_that_its_response_named_and_not_a_copy(world: World) -> None:
    """Someone copies a card that has the identifier of a deleted one. The audit names the copy."""
    world.add_card("before")

    def copy_it() -> None:
        made = record(world, "b")
        world.add_card(made.name, desc=made.desc)

    world.service.faults.add(GivingAgain(world, "before", is_lost=False), "cards.create", call=2)
    done = await run(world, "abcd", marker=True, before_reading=copy_it)
    assert set(done.states.values()) == {"created"}
    assert done.results["b"].card is not None
    assert done.results["b"].card.id == record(world, "b").id
    assert len(done.audit.duplicated) == 1


@pytest.mark.parametrize("marker", [None, True])
async def test_a_response_that_names_a_card_listed_as_that_of_others_confirms_nothing(world: World, marker: bool | None) -> None:
    """The board was read before the row was sent, so the card can't be the row's."""
    stranger: list[str] = []
    name_in_response(world, "d", lambda: stranger[0])
    done = await run(world, "abcd", committed="b", before_reading=lambda: stranger.append(world.add_card()), marker=marker)
    assert set(done.states.values()) == {"created"}
    assert done.results["d"].card is not None
    assert done.results["d"].card.id == record(world, "d").id


async def test_equal_cards_that_were_there_before_are_no_obstacle(world: World) -> None:
    """They look as they did: an absent row is sent again, and the card of another is found."""
    for name in "bc":
        world.add_card(name)
    done = await run(world, "abcd", committed="b", lost="c")
    assert set(done.states.values()) == {"created"}
    assert world.there == [*"abbccd"]
    assert done.audit.is_sound


async def test_a_known_card_that_was_changed_to_equal_a_lost_row_is_not_taken_for_its_own(world: World) -> None:
    """Nothing shows whether it has been changed, or deleted and its identifier given again."""
    world.add_card("before")
    done = await run(world, "abcd", lost="c", before_reading=change(world, "before", name="c"))
    assert done.states["c"] == "unknown"
    assert Counter(world.sent)["c"] == 1


# --- one card, one row


async def test_equal_rows_share_equal_cards(world: World) -> None:
    """Of four equal rows two are lost, one of them with its card."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    world.service.faults.add(faults.drop(), "cards.create", call=3)
    done = await run(world, "aaaaz")
    assert done.report.created == 5
    assert world.there == [*"aaaaz"]
    assert done.audit.is_sound


async def test_two_cards_that_equal_one_row_leave_it_unknown(world: World) -> None:
    done = await run(world, "abc", committed="b", before_reading=lambda: world.add_card("b"))
    assert done.states["b"] == "unknown"
    assert "nothing tells them apart" in done.error("b")
    assert {card.name for card in done.audit.resembling} == {"b"}
    assert len(done.audit.resembling) == 2
    assert done.audit.duplicated == ()


async def test_the_audit_names_the_cards_that_the_errors_name(world: World) -> None:
    """A card that equals an unknown row, and is listed only at the end, is unexpected, and no second card of an equal row."""
    world.service.faults.add(faults.drop(), "cards.create", call=3)
    world.service.faults.add(Meanwhile(lambda: world.add_card("a")), "boards.cards", call=3)
    done = await run(world, "aba")
    assert "no longer listing has proven" in done.error("a")
    assert [card.name for card in done.audit.unexpected] == ["a"]
    assert done.audit.resembling == done.audit.duplicated == ()


async def test_successes_that_name_no_card_are_no_outage(world: World) -> None:
    """The service accepts each row, and the board shows what it has made."""
    world.service.rules.shape = lambda operation, body: {} if operation == "cards.create" else body
    done = await run(world, [CardDraft(f"card {number}", world.lists[0]) for number in range(60)], concurrency=4)
    assert set(done.states.values()) == {"created"}
    assert (len(world.sent), done.audit.recovered, done.audit.is_sound) == (60, 60, True)


async def test_rows_that_differ_in_what_is_not_shown_are_not_confused(world: World) -> None:
    """The listing shows no dates. Of two rows with one name one exists: both are unknown."""
    list_with(world, due=lambda due: None)
    drafts = [CardDraft("a", world.lists[0]), *(CardDraft("b", world.lists[0], pos=pos) for pos in ("top", "bottom"))]
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    world.service.faults.add(faults.drop(), "cards.create", call=3)
    async with world.run([*drafts, CardDraft("z", world.lists[0])], concurrency=1, journal=None, settle=0.0) as opened:
        states = Counter([result.state async for result in opened])
    assert states == {"created": 2, "unknown": 2}
    assert world.there == ["a", "b", "z"]


async def test_an_equal_card_is_not_taken_where_a_list_is_renamed(world: World) -> None:
    """An automation renames the cards of a list. So an equal card belongs to others, and the renamed one may be the row's."""

    def rename() -> None:
        for made in world.service.rules.cards.values():
            made.name = f"TICKET {made.id}"
        world.add_card("b")

    done = await run(world, "abc", committed="b", before_reading=rename)
    assert done.states["b"] == "unknown"
    assert Counter(world.sent)["b"] == 1


async def test_a_second_card_of_a_row_is_not_taken_for_another_row(world: World) -> None:
    """A proxy repeats the request of a row. Its second card equals another, lost row in all that was sent for that."""
    drafts = [CardDraft("a", world.lists[0], desc="text"), CardDraft("a", world.lists[0]), CardDraft("z", world.lists[0])]
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    world.service.faults.add(Meanwhile(lambda: world.add_card("a", desc="text")), "boards.cards", call=2)
    async with world.run(drafts, concurrency=1, journal=None, settle=0.0) as opened:
        states = [result.state async for result in opened]
    assert Counter(states) == {"created": 2, "unknown": 1}


async def test_a_request_that_a_proxy_repeats_is_reported(world: World) -> None:
    """The second card equals what was sent for a row that has a card."""
    done = await run(world, "abc", committed="b", before_reading=lambda: world.add_card("a"))
    assert set(done.states.values()) == {"created"}
    assert [card.name for card in done.audit.duplicated] == ["a"]
    assert (done.audit.is_wrong, done.audit.is_sound) == (True, False)


@pytest.mark.parametrize(("text", "second"), [("TICKET {}", ["TICKET a"]), ("TICKET", [])])
async def test_a_repeated_request_is_reported_where_cards_are_renamed(world: World, text: str, second: list[str]) -> None:
    """An automation renames both cards alike. Where all cards look the same, that says nothing."""

    def act() -> None:
        world.add_card("a")
        for made in world.service.rules.cards.values():
            made.name = text.format(made.name)

    done = await run(world, "abc", journal=world.path, before_reading=act)
    assert [card.name for card in done.audit.duplicated] == second


async def test_a_card_that_others_made_like_a_confirmed_one_is_a_second_one(world: World) -> None:
    """Nothing tells it from a repeated request, also if no row was in doubt and the row is no sample."""
    drafts = [CardDraft(f"card {number}", world.lists[0]) for number in range(80)]
    done = await run(world, drafts, journal=world.path)
    world.add_card("card 40")
    record(world, "card 40").list_id = world.lists[1]  # and one of the two was moved since
    again = await run(world, drafts, journal=world.path)
    assert done.audit.is_sound
    assert [card.name for card in again.audit.duplicated] == ["card 40"]


async def test_a_card_that_is_listed_twice_is_one(world: World) -> None:
    """Overlapping pages behind a listing make no second row of a card, and no card too many of it."""
    world.list_as(lambda cards: [*cards, *cards])
    world.add_card()
    done = await run(world, "aaaz", committed="a", before_reading=lambda: world.add_card())
    assert done.report.created == 4
    assert (done.audit.confirmed, done.audit.duplicated, len(done.audit.unexpected)) == (4, (), 1)


# --- the listing


async def test_a_listing_that_lacks_confirmed_cards_proves_nothing(world: World) -> None:
    """It shows the oldest cards only."""
    world.list_as(lambda cards: cards[:2])
    done = await run(world, "abcdef", lost="b")
    assert done.states["b"] == "unknown"
    assert "cards that were confirmed: it is not complete" in done.error("b")
    assert Counter(world.sent)["b"] == 1
    assert done.audit.hidden == 3
    assert (done.audit.is_wrong, done.audit.is_sound) == (False, False)


async def test_a_listing_that_ends_at_its_length_proves_nothing(world: World) -> None:
    """It always shows three cards, whichever are the newest: nothing shows that a row's card does not exist."""
    world.add_card("before")
    world.list_as(lambda cards: cards[-3:])
    done = await run(world, "abc", committed="a")
    assert done.states["a"] in {"created", "unknown"}
    assert Counter(world.sent) == Counter("abc")


async def test_a_deleted_card_is_lost_and_proves_nothing_else(world: World) -> None:
    """It is read twice, since a proxy may say 404 to everything for a moment."""
    done = await run(world, "abcd", lost="c", before_reading=lambda: world.service.rules.cards.pop(record(world, "a").id))
    assert set(done.states.values()) == {"created"}
    assert world.there == [*"bcd"]
    assert (done.audit.lost, done.audit.hidden, done.audit.is_wrong) == (1, 0, True)


async def test_reading_deleted_cards_is_no_outage(world: World) -> None:
    """A 404 of a single card is what was asked: the run neither says that it waits nor pauses."""

    def delete() -> None:
        for name in "abc":
            world.service.rules.cards.pop(record(world, name).id)

    told = set()
    done = await run(world, "abcdef", lost="e", before_reading=delete, on_progress=lambda at: told.add(at.waiting_for))
    assert set(done.states.values()) == {"created"}
    assert done.audit.lost == 3
    assert "outage" not in told


async def test_a_deleted_card_does_not_explain_others_that_are_hidden(world: World) -> None:
    """Each confirmed card that is not listed must be deleted, or the listing proves nothing."""
    world.list_as(lambda cards: [card for card in cards if "hidden" not in card["name"]])
    drafts = [CardDraft(f"hidden {number}" if number in {40, 41} else f"{number}", world.lists[0]) for number in range(80)]
    done = await run(
        world, drafts, committed="hidden 41", before_reading=lambda: world.service.rules.cards.pop(record(world, "0").id)
    )
    assert done.states["hidden 41"] == "unknown"
    assert Counter(world.sent)["hidden 41"] == 1
    assert (done.audit.lost, done.audit.hidden) == (1, 1)


@pytest.mark.parametrize("fault", [faults.status(404), faults.status(500), faults.foreign_body(b"<html>", commit=False)])
async def test_a_card_that_cannot_be_read_for_a_moment_is_not_deleted(world: World, fault: Any) -> None:
    """The listing lacks a card that exists: it is not complete, whatever a proxy says first."""
    world.list_as(lambda cards: cards[1:])
    world.service.faults.add(fault, "cards.get", call=1)
    done = await run(world, "abcd", lost="c")
    assert done.states["c"] == "unknown"
    assert (done.audit.lost, done.audit.hidden) == (0, 1)


async def test_a_card_in_an_archived_list_is_no_obstacle(world: World) -> None:
    """It is not listed, and says nothing about the other lists. A row of that list may exist, and is unknown."""
    drafts = [
        CardDraft(name, world.lists[number]) for number, name in ((1, "a"), (0, "b"), (1, "c"), (0, "d"), (0, "e"), (1, "f"))
    ]

    def archive() -> None:
        world.service.rules.lists[world.lists[1]].closed = True

    lists = world.service.rules.lists
    world.list_as(lambda cards: [card for card in cards if not lists[card["idList"]].closed])
    done = await run(world, drafts, lost="bc", before_reading=archive)
    assert done.states == {**dict.fromkeys("abdef", "created"), "c": "unknown"}
    assert f"the list {world.lists[1]} was archived or removed" in done.error("c")
    assert (done.audit.lost, done.audit.hidden) == (0, 2)


async def test_a_list_of_which_nothing_is_listed_proves_nothing(world: World) -> None:
    """An automation archives what is added to a list. The listing of the others says nothing about it."""
    world.list_as(lambda cards: [card for card in cards if card["idList"] != world.lists[1]])
    drafts = [CardDraft(name, world.lists[number]) for number, name in ((0, "a"), (1, "b"), (0, "c"), (0, "d"))]
    done = await run(world, drafts, committed="b", lost="c")
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}
    assert Counter(world.sent)["b"] == 1


async def test_a_longer_listing_of_a_later_run_proves(world: World) -> None:
    """The last row of a run is lost, and nothing can prove it absent. The next run with more rows sends it again."""
    first = await run(world, "ab", lost="b", journal=world.path)
    assert first.states == {"a": "created", "b": "unknown"}
    again = await run(world, "ab", journal=world.path)
    assert again.states == {"a": "already", "b": "unknown"}
    assert again.audit.unproven
    last = await run(world, "abcd", journal=world.path)
    assert last.states == {"a": "already", "b": "created", "c": "created", "d": "created"}
    assert last.audit.is_sound
    assert world.there == [*"abcd"]


async def test_the_last_row_of_a_list_is_proven_absent_by_a_later_one_alone(world: World) -> None:
    """Rows of other lists say nothing: the service may show the first cards of its list only."""
    drafts = [CardDraft(name, world.lists[number]) for number, name in ((0, "a"), (1, "b"), (0, "c"), (1, "d"))]
    done = await run(world, drafts, lost="c", journal=world.path)
    assert done.states == {**dict.fromkeys("abd", "created"), "c": "unknown"}
    later = await run(world, [*drafts, CardDraft("e", world.lists[0])], journal=world.path)
    assert (later.states["c"], later.states["e"]) == ("created", "created")
    assert world.there == [*"abcde"]


async def test_a_list_that_is_cut_off_is_not_proven_by_another_that_grows(world: World) -> None:
    """The listing shows two cards of one list at most, and all of the other, which becomes longer."""

    def cut(cards: list[Any]) -> list[Any]:
        return [card for card in cards if card["idList"] == world.lists[0]][:2] + [
            card for card in cards if card["idList"] == world.lists[1]
        ]

    world.list_as(cut)
    drafts = [CardDraft(name, world.lists[name in "uvwxyz"]) for name in "abcduvwxyz"]
    done = await run(world, drafts, committed="cd")
    assert done.states == {**dict.fromkeys("abuvwxyz", "created"), **dict.fromkeys("cd", "unknown")}
    assert Counter(world.sent) == Counter("abcduvwxyz")


async def test_rows_of_earlier_runs_may_own_an_equal_card(world: World) -> None:
    """A row that is not in the input is in doubt too. An equal card may be either's."""
    drafts = [CardDraft("a", world.lists[0], pos=pos, reference=pos) for pos in ("top", "bottom")]
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    last = CardDraft("last", world.lists[0], reference="last")
    async with world.run([*drafts, last], unknown="reconcile", settle=0.0, concurrency=2) as opened:
        assert {result.draft: result.state async for result in opened} == {**dict.fromkeys(drafts, "unknown"), last: "created"}
    done = await run(world, [drafts[0], CardDraft("z", world.lists[0])], journal=world.path)
    assert done.states["a"] == "unknown"


async def test_a_listing_that_shows_no_lists_proves_too(world: World) -> None:
    """Growth in total counts. A second card is recognised all the same."""
    list_with(world, idList=lambda identifier: None)
    drafts = [CardDraft(f"card {number}", world.lists[0]) for number in range(80)]
    drafts[41] = drafts[40]
    done = await run(world, drafts, committed="card 2", before_reading=lambda: world.add_card("card 40"))
    assert done.states["card 2"] == "created"
    assert [card.name for card in done.audit.duplicated] == ["card 40"]


async def test_a_card_that_may_be_a_missing_one_under_another_identifier_proves_nothing(world: World) -> None:
    """The listing calls cards otherwise than the responses: of two equal rows one was lost, and one card is there."""
    world.list_as(lambda cards: [{**card, "id": f"board-{card['id']}"} for card in cards])
    rows = [CardDraft(name, world.lists[0], reference=str(number)) for number, name in enumerate(["same", "same", *"abcd"])]
    world.service.faults.add(faults.drop(), "cards.create", call=1)
    async with world.run(rows, journal=None, concurrency=1, settle=0.0) as opened:
        states = {result.draft.reference: result.state async for result in opened}
    assert states == {"0": "unknown", **dict.fromkeys("12345", "created")}
    assert world.there.count("same") == 1


async def test_a_confirmed_card_that_is_too_new_to_be_listed_is_waited_for(world: World, passing_time: Any) -> None:
    """The board is read once more when the last card must be listed, and the progress says until when."""
    reads, shown = 0, list[BulkProgress]()

    def late(cards: list[Any]) -> list[Any]:
        nonlocal reads
        reads += 1
        return cards[:-1] if reads == 4 else cards

    world.list_as(late)
    done = await run(world, "abcd", lost="b", settle=5.0, on_progress=shown.append)
    assert set(done.states.values()) == {"created"}
    assert (done.audit.hidden, done.audit.is_sound) == (0, True)
    waits = [progress.status.partition(" for ")[2] for progress in shown if progress.phase == "waiting"]
    assert waits[-1] == "cards that are not listed yet"


async def test_a_card_of_an_earlier_run_that_is_gone_is_not_waited_for(world: World) -> None:
    """People delete cards at any time: each later run that creates one would wait for as long as the service may take."""
    await run(world, "ab", journal=world.path)
    world.service.rules.cards.pop(record(world, "a").id)
    async with asyncio.timeout(60):
        again = await run(world, "abc", journal=world.path, settle=1000.0)
    assert (again.report.created, again.report.already, again.audit.lost) == (1, 2, 1)


async def test_a_row_in_doubt_of_an_earlier_run_that_is_sent_again_is_waited_for(world: World, passing_time: Any) -> None:
    """Its card is as new as those of the other rows of this run."""
    await run(world, "abc", lost="b", journal=world.path, unknown="report", settle=5.0)

    until = [float("inf")]
    world.list_as(lambda cards: [card for card in cards if card["name"] != "b" or passing_time.now >= until[0]])

    def note(progress: BulkProgress) -> None:
        if "b" in world.there:
            until[0] = min(until[0], passing_time.now + 3.0)

    again = await run(world, "abcde", journal=world.path, settle=5.0, on_progress=note)
    assert again.states["b"] == "created"
    assert (again.audit.confirmed, again.audit.hidden, again.audit.is_sound) == (5, 0, True)


@pytest.mark.parametrize("status", [500, 403])
async def test_a_card_that_cannot_be_read_may_be_there(world: World, status: int, passing_time: Any) -> None:
    """Only 404 shows that a card is deleted. It is lost if its row is in the input: otherwise the row was taken out with it."""
    await run(world, "a", journal=world.path)
    gone = record(world, "a").id
    world.service.rules.cards.pop(gone)
    world.service.faults.add(faults.status(status), "cards.get")
    drafts = [CardDraft(name, world.lists[0], reference=name) for name in "bcd"]
    async with world.run(drafts, settle=0.0, concurrency=1) as opened:
        report = await opened.wait()
    assert report.audit is not None
    assert (report.audit.lost, report.audit.hidden) == (0, 1)
    world.service.faults.clear()
    again = await run(world, drafts, journal=world.path)
    assert (again.audit.lost, again.audit.lost_cards, again.audit.hidden, again.audit.is_sound) == (0, (), 0, True)
    again = await run(world, [CardDraft("a", world.lists[0]), *drafts], journal=world.path)
    assert (again.audit.lost, again.audit.lost_cards, again.audit.hidden) == (1, (Card(gone),), 0)


async def test_credentials_that_are_refused_while_the_board_is_read_end_the_run(world: World) -> None:
    world.service.faults.add(faults.drop(), "cards.create", call=2)
    world.service.faults.add(faults.status(401), "boards.cards", call=2)
    async with world.run([CardDraft(name, world.lists[0]) for name in "abc"], journal=None, settle=0.0) as opened:
        with pytest.raises(AuthenticationError):
            await opened.wait()
    await run(world, "de", journal=world.path)
    world.service.rules.cards.pop(record(world, "d").id)
    world.service.faults.add(faults.status(401), "cards.get")
    again = await run(world, "de", journal=world.path)
    assert isinstance(again.report.audit_error, AuthenticationError)


# --- markers


async def test_markers_prove_whatever_people_and_automations_change(world: World) -> None:
    """Cards are renamed, moved and dated, and others add cards, equal ones too: each row has one card."""

    def act() -> None:
        for made in world.service.rules.cards.values():
            made.name, made.list_id, made.due = f"TICKET {made.id}", world.lists[1], "2030-01-01T00:00:00Z"
        world.add_card("of others")
        world.add_card("c", 0)

    done = await run(world, "abcdef", committed="bd", lost="ce", marker=True, before_reading=act)
    assert set(done.states.values()) == {"created"}
    made = [card for card in world.service.rules.cards.values() if "[bc" in card.desc]
    assert len(made) == 6
    assert len({card.desc for card in made}) == 6
    assert done.audit.is_sound
    assert len(done.audit.unexpected) == 2


@pytest.mark.parametrize("names", [None, "TICKET"])
async def test_a_marker_that_was_dropped_with_a_long_description_may_be_the_row_s(world: World, names: str | None) -> None:
    """A service may limit the length of descriptions, of which shorter samples show nothing."""
    list_with(world, desc=lambda desc: "" if len(desc) > 100 else desc)
    drafts = [CardDraft(name, world.lists[0], desc="y" * 200 if name == "b" else "text") for name in "abcd"]

    def act() -> None:
        for made in world.service.rules.cards.values() if names else ():
            made.name = f"{names} {made.id}"

    done = await run(world, drafts, committed="b", marker=True, before_reading=act)
    assert done.states["b"] == "unknown"
    assert Counter(world.sent)["b"] == 1


@pytest.mark.parametrize(
    ("name", "desc", "is_found"),
    [
        ("b", "see b", True),
        ("Ask", "[b]", False),
        ("Ask", "[B]\n\nanother text, cut o", False),
        ("Ask", "see [b]", False),
        ("B", "[b]\n\n[b]", False),
        ("Ask", "see b and c", False),
        ("Ask", "see [b] and c", False),
        ("Ask", "b", False),
    ],
)
async def test_a_marker_that_others_know_proves_together_with_the_name(
    world: World, name: str, desc: str, is_found: bool
) -> None:
    """Any card may mention it, in brackets and at an end too: a colleague's is not taken for the row's."""
    done = await run(
        world,
        "abcd",
        lost="b",
        marker=lambda draft: draft.name,
        before_reading=lambda: world.add_card(name, desc=desc),
    )
    assert done.states["b"] == ("created" if is_found else "unknown")
    assert [card.name for card in done.audit.resembling] == ([] if is_found else [name])
    assert Counter(world.sent)["b"] == 1


@pytest.mark.parametrize("names", [None, "TICKET"])
async def test_a_marker_that_was_replaced_by_another_description_may_be_the_rows(world: World, names: str | None) -> None:
    """The name shows it. Where names are changed as well, any card with a description may be the row's."""

    def act() -> None:
        record(world, "b").desc = "described by somebody"
        for made in world.service.rules.cards.values():
            made.name = f"{names} {made.id}" if names else made.name

    done = await run(world, "abcd", committed="b", marker=True, before_reading=act)
    assert done.states["b"] == "unknown"
    assert Counter(world.sent)["b"] == 1


async def test_names_that_are_changed_in_another_list_show_nothing(world: World) -> None:
    """The service cuts long names off, and people have replaced the marker of a card whose name is long."""
    list_with(world, name=lambda name: name[:3])
    drafts = [CardDraft(name, world.lists[number]) for name, number in (("a", 0), ("bbbbb", 0), ("ccccc", 1), ("d", 0))]
    done = await run(
        world, drafts, committed="bbbbb", marker=True, before_reading=change(world, "bbbbb", desc="described by somebody")
    )
    assert done.states["bbbbb"] == "unknown"
    assert Counter(world.sent)["bbbbb"] == 1


@pytest.mark.parametrize("pattern", [r"[0-9]+", r"[aeiou]+", r"\W+", r"[bc]", r"\w{12,}", r"\w+"])
async def test_what_masks_one_marker_masks_all(world: World, pattern: str) -> None:
    """An automation masks texts by what they say: numbers, vowels, long words. Each card shows its marker, or none does."""

    def act() -> None:
        for made in world.service.rules.cards.values():
            made.name, made.desc = "TICKET", re.sub(pattern, "*", made.desc)

    drafts = [CardDraft(f"{name} +49 170 123", world.lists[0]) for name in "abcdefgh"]
    done = await run(world, drafts, committed=drafts[1].name, marker=True, before_reading=act)
    assert Counter(world.sent) == Counter(draft.name for draft in drafts)
    assert done.states[drafts[1].name] == ("unknown" if pattern in {"[bc]", r"\w{12,}", r"\w+"} else "created")


async def test_markers_of_another_list_prove_nothing(world: World) -> None:
    """An automation takes the descriptions of one list away."""
    changed = {"desc": "", "name": "TICKET"}
    world.list_as(lambda cards: [{**card, **changed} if card["idList"] == world.lists[1] else card for card in cards])
    drafts = [CardDraft(name, world.lists[number]) for number, name in ((0, "a"), (1, "b"), (0, "c"), (0, "d"), (1, "e"))]
    done = await run(world, drafts, committed="b", lost="c", marker=True)
    assert done.states["b"] == "unknown"
    assert Counter(world.sent)["b"] == 1


async def test_a_sample_without_its_marker_makes_every_card_count(world: World) -> None:
    """If descriptions are not listed, or one was edited, a card without a marker may be a row's."""

    def act() -> None:
        record(world, "a").desc = "edited"
        world.add_card()

    done = await run(world, "abcd", lost="b", committed="c", marker=True, before_reading=act)
    assert done.states == {**dict.fromkeys("acd", "created"), "b": "unknown"}


async def test_rows_are_found_by_equality_if_no_description_is_listed(world: World) -> None:
    list_with(world, desc=lambda desc: None)
    done = await run(world, "abcd", committed="b", lost="c", marker=True)
    assert set(done.states.values()) == {"created"}
    assert world.there == [*"abcd"]


async def test_a_second_card_with_a_marker_is_reported(world: World) -> None:
    """Also if it was renamed, and its row was never in doubt. The row's own is the one with its name."""

    def act() -> None:
        world.add_card("of b", desc=record(world, "b").desc)
        world.add_card("renamed", desc=record(world, "a").desc)
        world.add_card("of another import", desc="[bcaaaaaaaaaaaaaaaa]")

    world.list_as(lambda cards: cards[::-1])
    done = await run(world, "abc", committed="b", marker=True, before_reading=act)
    assert done.results["b"].card is not None
    assert done.results["b"].card.name == "b"
    assert {card.name for card in done.audit.duplicated} == {"renamed", "of b"}
    assert [card.name for card in done.audit.unexpected] == ["of another import"]
    assert done.audit.is_wrong


async def test_a_response_that_names_the_card_of_a_lost_row_makes_no_second_card(world: World) -> None:
    """The marker shows whose card it is. The row that is reported with it may have none."""
    name_in_response(world, "b", lambda: str(record(world, "a").id))
    done = await run(world, "abcd", committed="a", marker=True)
    assert Counter(world.sent) == Counter("abcd")
    assert done.results["a"].card is not None
    assert done.results["a"].card.id == record(world, "a").id
    assert (done.audit.reused, [card.name for card in done.audit.duplicated]) == (1, ["b"])


async def test_rows_that_share_a_marker_are_clear_only_together(world: World) -> None:
    drafts = [CardDraft(name, world.lists[0]) for name in "abcd"]
    one = await run(world, drafts, committed="b", lost="c", marker=lambda draft: "bc" if draft.name in "bc" else draft.name)
    assert [one.states[name] for name in "abcd"] == ["created", "unknown", "unknown", "created"]
    assert "nothing tells them apart" in one.error("b")
    both = await run(
        world, [CardDraft(name, world.lists[0]) for name in "efgh"], committed="fg",
        marker=lambda draft: "fg" if draft.name in "fg" else draft.name,
    )  # fmt: skip
    assert set(both.states.values()) == {"created"}


async def test_cards_that_show_the_markers_of_others_are_one_row_s_each(world: World) -> None:
    """Descriptions may refer to other rows by their markers."""
    drafts = [CardDraft(name, world.lists[0], desc=f"see [m{other}]") for name, other in ("ab", "bc", "cb", "da")]
    done = await run(world, drafts, committed="bc", marker=lambda draft: f"m{draft.name}")
    assert set(done.states.values()) == {"created"}
    assert done.audit.is_sound


async def test_markers_of_rows_that_are_not_in_the_input_are_known(world: World) -> None:
    """A row of an earlier run that is in doubt has a card, which shows its marker: it is no other row's."""
    await run(world, "ab", committed="b", marker=True, journal=world.path, unknown="report")
    drafts = [CardDraft(name, world.lists[0], reference=name) for name in "cde"]
    done = await run(world, drafts, lost="d", marker=True, journal=world.path)
    assert done.states["d"] in {"created", "unknown"}
    assert Counter(world.there) == Counter("abcde" if done.states["d"] == "created" else "abce")


# --- reading the board

_FAULTS = {
    "a page": faults.foreign_body(b"<html>please wait</html>", commit=False),
    "null": faults.foreign_body(b"null", content_type="application/json", commit=False),
    "half a body": faults.truncated(),
    "another element": faults.foreign_body(b'[{"id": "c1"}, 7]', content_type="application/json", commit=False),
    "302": faults.redirect("https://login.example/", 302),
    "409": faults.status(409),
    "500": faults.status(500),
    "no response": faults.drop(),
}


@pytest.mark.parametrize("operation", ["boards.lists", "boards.cards"])
@pytest.mark.parametrize("fault", _FAULTS.values(), ids=[*_FAULTS])
async def test_the_board_is_read_with_patience(world: World, operation: str, fault: Any) -> None:
    """What passes is waited out: at the start, for rows in doubt, and in the end."""
    for call in (1, 3, 5):
        world.service.faults.add(fault, operation, call=call)
    done = await run(world, "abcd", committed="b", lost="c")
    assert set(done.states.values()) == {"created"}
    assert done.audit.is_sound


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("operation", ["boards.lists", "boards.cards"])
@pytest.mark.parametrize("call", [1, 2])
async def test_a_board_that_is_not_this_account_s_ends_a_run_at_once(
    world: World, operation: str, call: int, status: int
) -> None:
    """The address is wrong, or its access was taken away: that is no outage. The next run resumes the journal."""
    world.service.faults.add(faults.status(status), operation, call=call)
    with pytest.raises(ApiError) as caught:
        await run(world, "abc", committed="b", journal=world.path)
    assert (caught.value.status, len(world.service.calls_of(operation))) == (status, call)
    world.service.faults.clear()
    done = await run(world, "abc", journal=world.path)
    assert set(done.states.values()) <= {"already", "created"}
    assert world.there == [*"abc"]


@pytest.mark.parametrize("status", [403, 404])
async def test_a_wrong_board_ends_the_call_of_a_card_at_once(world: World, status: int) -> None:
    """Nothing was sent."""
    world.service.faults.add(faults.status(status), "boards.lists")
    with pytest.raises(ApiError, match="the card was not sent"):
        await world.session.cards.create("a", list_id=world.lists[0], board_id=world.board_id)
    assert (world.sent, len(world.service.calls_of("boards.lists"))) == ([], 1)


async def test_a_board_that_can_never_be_read_leaves_rows_unknown(world: World, passing_time: Any) -> None:
    """After a bounded time, the errors say why."""
    world.service.faults.add(faults.status(500), "boards.cards", call=range(2, 1000))
    done = await run(world, "abc", committed="b")
    assert done.states == {"a": "created", "b": "unknown", "c": "created"}
    assert "the board could not be read" in done.error("b")
    assert "500" in done.error("b")
    assert done.report.audit is None
    assert done.report.audit_error is not None
    assert any(re.match(r"the board was read \d+ times in", note) for note in done.report.audit_error.__notes__)


@pytest.mark.parametrize("committed", ["", "b"])
@pytest.mark.parametrize("marker", [None, True])
async def test_an_old_card_that_enters_a_cut_listing_again_is_no_lost_row_s(
    world: World, marker: bool | None, committed: str
) -> None:
    """People delete cards, and the newest ten show an old one that equals a lost row. Markers prove all the same."""
    world.add_card("b")
    others = [world.add_card(f"of others {number}") for number in range(10)]
    world.list_as(lambda cards: cards[-10:])

    def delete() -> None:
        for card_id in others[:5]:
            del world.service.rules.cards[card_id]

    done = await run(world, "abcde", lost="b", committed=committed, before_reading=delete, marker=marker)
    assert done.states == {**dict.fromkeys("acde", "created"), "b": "created" if marker else "unknown"}
    assert world.there.count("b") == 1 + (marker is True or bool(committed))


async def test_equality_proves_nothing_while_confirmed_cards_are_not_listed(world: World) -> None:
    """The listing is cut off now, so that a card which was not listed before may have been hidden then as well."""
    hidden: set[str] = set()
    world.list_as(lambda cards: [card for card in cards if card["name"] not in hidden])
    world.add_card("b")
    hidden.add("b")

    def swap() -> None:
        hidden.clear()
        hidden.add("a")

    done = await run(world, "abc", lost="b", before_reading=swap)
    assert done.states == {"a": "created", "b": "unknown", "c": "created"}
    assert [card.name for card in done.audit.resembling] == ["b"]


async def test_a_row_is_found_on_a_board_from_which_people_delete_cards(world: World) -> None:
    """The listing is longer all the same than before the run, which proves that it shows every card."""
    others = [world.add_card(f"of others {number}") for number in range(10)]

    def delete() -> None:
        del world.service.rules.cards[others[0]]

    done = await run(world, "abc", committed="b", before_reading=delete)
    assert set(done.states.values()) == {"created"}
    assert done.audit.is_sound


@pytest.mark.parametrize("has_journal", [False, True])
async def test_the_error_of_an_unknown_row_names_its_cause(world: World, has_journal: bool) -> None:
    """The status or what broke, also in later runs; and no advice to do what the run has done."""
    world.service.faults.add(faults.status(503), "cards.create", call=2)
    journal = world.path if has_journal else None
    for _ in range(3 if has_journal else 1):
        done = await run(world, "ab", journal=journal)
        words = done.error("b")
        assert words.startswith("POST /1/cards: status 503")
        assert words.count("whether the card exists is not known") == 1
        assert "check before" not in words
        assert "a next run" not in words


@pytest.mark.parametrize("marker", [None, True])
async def test_an_audit_accuses_no_card_that_the_error_of_an_unknown_row_names(world: World, marker: Any) -> None:
    """Two rows have one name, one the name only, and the service shows texts otherwise: it is the only card of the other row."""
    rows = [CardDraft("a", world.lists[0], reference="1"), CardDraft("a", world.lists[0], desc="text", reference="2")]
    world.list_as(lambda cards: [{**card, "desc": card["desc"].upper()[:3]} for card in cards])
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    done = await run(world, rows, journal=world.path, concurrency=1, marker=marker)
    assert done.report.unknown == 1
    assert {card.id for card in done.audit.resembling} != set()
    assert (done.audit.duplicated, done.audit.is_wrong) == ((), False)
