"""Which cards are whose: by content, by marker, and when a listing proves nothing."""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import Card, CardDraft
from boardclient.bulk._matching import (
    Content,
    IdSet,
    Listing,
    Verdict,
    check_marker,
    digest,
    markers,
    matching,
    secret_marker,
    with_marker,
)

DUE = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
ELSEWHERE = DUE.astimezone(timezone(timedelta(hours=5, minutes=30)))
SHOWN = ("desc", "list_id", "due")
DIGEST = "5107786f6189e2583031cae318fef99e"
MARKER = "bc:ipehlqicpyf3mcz4"


# --- content


def test_content_of_a_draft_is_that_of_its_card() -> None:
    """A draft and the card made of it compare equal, whatever the zone of the date, the position and the reference."""
    draft = CardDraft("name", "list", desc="text", due=ELSEWHERE, pos="top", reference="r")
    card = Card("1", "name", "text", "https://x", "list", DUE, 3.5, extra={"idLabels": []})
    assert Content.of(draft) == Content.of(card) == Content("name", "text", "list", DUE)
    assert hash(Content.of(draft).shown(SHOWN)) == hash(Content.of(card).shown(SHOWN))


@pytest.mark.parametrize("desc", [None, ""])
def test_no_description_and_an_empty_one_are_alike(desc: str | None) -> None:
    """The service may show an absent description as an empty one, or not at all."""
    assert Content.of(CardDraft("name", "list", desc=desc)) == Content("name", None, "list", None)
    assert Content.of(Card("1", "name", desc, list_id="list")) == Content("name", None, "list", None)


@pytest.mark.parametrize(
    "other",
    [
        CardDraft("Name", "list", desc="text", due=DUE),
        CardDraft("name ", "list", desc="text", due=DUE),
        CardDraft("name", "List", desc="text", due=DUE),
        CardDraft("name", "list", desc="text\n", due=DUE),
        CardDraft("name", "list", due=DUE),
        CardDraft("name", "list", desc="text", due=DUE + timedelta(microseconds=1)),
        CardDraft("name", "list", desc="text"),
    ],
)
def test_content_differs(other: CardDraft) -> None:
    """Each field counts, to the letter."""
    assert Content.of(other) != Content.of(CardDraft("name", "list", desc="text", due=DUE))


def test_shown_compares_the_name_and_what_is_shown() -> None:
    """What a listing does not show is no difference; which field a value stands for is one."""
    one, two = Content("a", "text", "list", DUE), Content("a", "other", "list", None)
    assert one.shown(("list_id",)) == two.shown(("list_id",)) == ("a", "list")
    assert one.shown(SHOWN) != two.shown(SHOWN)
    assert one.shown(()) == ("a",)


TEXTS = st.text(st.sampled_from("a1:-\n"), max_size=4)
DRAFTS = st.builds(
    CardDraft,
    TEXTS,
    st.text(st.sampled_from("a1:-"), min_size=1, max_size=3),
    desc=st.none() | TEXTS,
    due=st.none() | st.sampled_from([DUE, ELSEWHERE, DUE + timedelta(seconds=1)]),
    pos=st.none() | TEXTS,
    reference=st.none() | TEXTS,
)


def sent(draft: CardDraft) -> tuple[object, ...]:
    return draft.name, draft.list_id, draft.desc, draft.due, draft.pos


@given(one=DRAFTS, two=DRAFTS)
def test_digests_are_equal_where_the_same_is_sent(one: CardDraft, two: CardDraft) -> None:
    """A digest stands for all that is sent, no field runs into the next, and the reference is none of them."""
    assert (digest(one) == digest(two)) == (sent(one) == sent(two))


@pytest.mark.parametrize(
    "change",
    [{"name": "b"}, {"list_id": "k"}, {"desc": ""}, {"desc": "-"}, {"due": DUE}, {"pos": "top"}, {"pos": ""}],
)
def test_digest_changes_with_each_field(change: dict[str, Any]) -> None:
    """An absent field and an empty one are two things to send; sixteen bytes in any case."""
    draft = CardDraft("a", "list")
    assert digest(draft) != digest(attrs.evolve(draft, **change))
    assert len(digest(draft)) == 16


def test_digest_of_one_moment_is_one() -> None:
    """The zone in which a date is given does not change what is sent, nor does the reference."""
    assert digest(CardDraft("a", "list", due=ELSEWHERE, reference="r")) == digest(CardDraft("a", "list", due=DUE))


def test_digest_is_the_same_in_every_process() -> None:
    """A journal holds it: what it is must never change."""
    assert digest(CardDraft("näme", "list", desc="text", due=ELSEWHERE, pos="top")).hex() == DIGEST


# --- identifiers


@given(ids=st.lists(TEXTS), more=st.lists(TEXTS), asked=st.lists(TEXTS))
def test_an_id_set_is_a_set(ids: list[str], more: list[str], asked: list[str]) -> None:
    """It holds what was put in, before and after it was asked, each once, in places of their own."""
    held = IdSet(ids)
    assert len(held) == len(set(ids))
    assert [identifier in held for identifier in asked] == [identifier in set(ids) for identifier in asked]
    for identifier in more:
        held.add(identifier)
    both = {*ids, *more}
    assert [identifier in held for identifier in [*asked, *both]] == [identifier in both for identifier in [*asked, *both]]
    assert len(held) == len(both)
    assert {held.find(identifier) for identifier in both} == set(range(len(both)))


def test_an_id_set_is_small() -> None:
    """It keeps eight bytes for each identifier, and adding after a look-up is seen by the next one."""
    held = IdSet()
    assert "a" not in held
    assert held.find("a") is None
    held.add("a")
    held.add("a")
    assert "a" in held
    assert len(held) == 1
    assert held._hashes.itemsize == 8


# --- markers


def test_secret_markers_are_the_same_for_the_same_row() -> None:
    """Secret and number make the marker, which the next one's does not resemble."""
    seqs = [*range(300), 10**6, 10**12]
    made = [secret_marker(b"secret", seq) for seq in seqs]
    assert made == [secret_marker(b"secret", seq) for seq in seqs]
    assert len(set(made)) == len(seqs)
    assert set(made).isdisjoint(secret_marker(b"another", seq) for seq in seqs)
    for marker in made:
        assert re.fullmatch("bc:[a-z2-7]{16}", marker)
        assert check_marker(marker) == marker


def test_secret_marker_never_changes() -> None:
    """A journal's next run, of a later version too, must recognise the cards of this one."""
    assert secret_marker(bytes(range(32)), 7) == MARKER


@pytest.mark.parametrize("text", ["a", "row-7", "bc:abc", "ü", "(7)", "#", "\\", "x" * 500])
def test_a_marker_of_the_callers_choice(text: str) -> None:
    """A text without spaces and brackets is one, and is found again."""
    assert check_marker(text) == text
    assert markers(Card("1", "a", with_marker("before", text))) == [text]


@pytest.mark.parametrize("text", ["", " ", "a b", "a\n", "\ta", "a\u00a0b", "[a]", "a]", "[a", "a[b"])
def test_a_marker_that_could_not_be_found_again(text: str) -> None:
    """What holds a space or a bracket, or nothing, is refused."""
    with pytest.raises(ValueError, match="without spaces and brackets"):
        check_marker(text)


@pytest.mark.parametrize("text", [None, 7, b"a", ["a"], True])
def test_a_marker_is_a_text(text: object) -> None:
    """Anything else is a TypeError that names its type."""
    with pytest.raises(TypeError, match=f"marker must return a string, not {type(text).__name__}"):
        check_marker(text)


def test_a_marker_stands_on_a_line_of_its_own() -> None:
    """It comes after the description, with a line between; without a description it is all there is."""
    assert with_marker("text", "m") == "text\n\n[m]"
    assert with_marker("", "m") == with_marker(None, "m") == "[m]"


@given(desc=st.none() | st.text(st.sampled_from("ab [](\n")), more=st.text(st.sampled_from("ab \n")))
def test_a_marker_is_found_again(desc: str | None, more: str) -> None:
    """Trimmed, with its lines joined, with text around it: the marker is among those of the card."""
    marker = secret_marker(b"secret", 5)
    whole = with_marker(desc, marker)
    for changed in (whole, whole.strip(), " ".join(whole.split()), whole.replace("\n", ""), more + whole + more, whole.upper()):
        assert (marker in markers(Card("1", "a", changed))) == (changed != whole.upper())


def test_brackets_of_the_text_are_no_harm() -> None:
    """What else stands in brackets may look like a marker, and is none that anybody asks for."""
    assert markers(Card("1", "a", "[x] do [this thing](url)[y][[z]]")) == ["x", "y", "z"]
    assert markers(Card("1", "a")) == markers(Card("1", "a", "")) == []


# --- listings


def content_key(listing: Listing) -> Any:
    return lambda card: (Content.of(card).shown(listing.shown),)


def compare(listing: Listing, rows: Sequence[CardDraft]) -> Verdict:
    wholes = [Content.of(row) for row in rows]
    return listing.compare([whole.shown(listing.shown) for whole in wholes], content_key(listing), wholes)


def card_of(draft: CardDraft, identifier: str) -> Card:
    return Card(identifier, draft.name, draft.desc or "", f"https://x/{identifier}", draft.list_id, draft.due)


# Few values, so that many rows are alike.
ROWS = st.builds(
    CardDraft,
    st.sampled_from("ab"),
    st.sampled_from(["l1", "l2"]),
    desc=st.sampled_from([None, "", "text"]),
    due=st.sampled_from([None, DUE]),
)
FOREIGN = st.builds(CardDraft, st.just("foreign"), st.just("l1"), due=st.sampled_from([None, DUE]))
WITNESS = Card("witness", "w", "text", None, "l1", DUE)
"""A confirmed card that shows that the listing shows every field."""


@st.composite
def boards(draw: st.DrawFn) -> tuple[list[CardDraft], list[bool], list[Card], list[Card], list[Card], list[Card]]:
    """Draw rows in doubt, which of them were created, and the cards: theirs, of the baseline, confirmed, of others."""
    rows = draw(st.lists(ROWS, max_size=12))
    created = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    theirs = [card_of(row, f"row {index}") for index, row in enumerate(rows) if created[index]]
    alike = st.sampled_from(rows) | ROWS if rows else ROWS
    baseline = [card_of(row, f"baseline {index}") for index, row in enumerate(draw(st.lists(alike | FOREIGN, max_size=6)))]
    confirmed = [card_of(row, f"confirmed {index}") for index, row in enumerate(draw(st.lists(alike, max_size=6)))]
    foreign = [card_of(row, f"foreign {index}") for index, row in enumerate(draw(st.lists(FOREIGN, max_size=4)))]
    return rows, created, theirs, baseline, confirmed, foreign


def listing_of(cards: Sequence[Card], baseline: Sequence[Card], confirmed: Sequence[Card]) -> Listing:
    listing = Listing(IdSet(card.id for card in baseline), IdSet(card.id for card in confirmed))
    for card in cards:
        listing.add(card)
    return listing


@given(board=boards(), data=st.data())
def test_a_complete_listing_tells_exactly_what_was_created(board: Any, data: st.DataObject) -> None:
    """Of each content as many rows are found as were created, each with a card of its own that was a row's."""
    rows, created, theirs, baseline, confirmed, foreign = board
    confirmed = [*confirmed, WITNESS]
    cards = data.draw(st.permutations([*theirs, *baseline, *confirmed, *foreign]))
    listing = listing_of(cards, baseline, confirmed)
    assert listing.shown == SHOWN
    verdict = compare(listing, rows)
    assert verdict.proves_nothing is None
    assert verdict.missing == 0
    assert sorted([*verdict.found, *verdict.absent]) == list(range(len(rows)))
    assert verdict.unclear == []
    assert {card.id for card in verdict.found.values()} == {card.id for card in theirs}
    assert len(verdict.found) == len(theirs)
    for place, card in verdict.found.items():
        assert Content.of(card) == Content.of(rows[place])
    assert Counter(Content.of(rows[place]) for place in verdict.absent) == Counter(
        Content.of(row) for row, is_created in zip(rows, created, strict=True) if not is_created
    )
    assert {card.id for card in verdict.unexpected} == {card.id for card in foreign}


@given(board=boards(), data=st.data())
def test_whatever_a_listing_lacks_no_card_is_given_twice(board: Any, data: st.DataObject) -> None:
    """Incomplete, with foreign cards of equal content: one row per card, none of the known ones; and doubts are told."""
    rows, _, theirs, baseline, confirmed, foreign = board
    alike = st.sampled_from(rows) if rows else ROWS
    equal = [card_of(row, f"equal {index}") for index, row in enumerate(data.draw(st.lists(alike, max_size=4)))]
    every = [*theirs, *baseline, *confirmed, *foreign, *equal]
    cards = data.draw(st.lists(st.sampled_from(every), unique_by=lambda card: card.id) if every else st.just([]))
    listing = listing_of(cards, baseline, confirmed)
    verdict = compare(listing, rows)
    assert sorted([*verdict.found, *verdict.absent, *verdict.unclear]) == list(range(len(rows)))
    given_ids = [card.id for card in verdict.found.values()]
    assert len(set(given_ids)) == len(given_ids)
    assert {card.id.split()[0] for card in verdict.found.values()} <= {"row", "equal"}
    key = content_key(listing)
    for place, card in verdict.found.items():
        assert key(card) == (Content.of(rows[place]).shown(listing.shown),)
    unclear = {Content.of(rows[place]).shown(listing.shown) for place in verdict.unclear}
    nobodys = {card.id: key(card)[0] for card in cards if card.id.split()[0] not in {"baseline", "confirmed"}}
    told = {*given_ids, *(card.id for card in verdict.unexpected)}
    assert told <= set(nobodys)
    assert {nobodys[identifier] for identifier in set(nobodys) - told} == unclear
    missing = len(confirmed) - sum(card.id.startswith("confirmed") for card in cards)
    assert verdict.missing == missing
    lacks_baseline = sum(card.id.startswith("baseline") for card in cards) < len(baseline)
    is_doubted = missing > 0 or (not confirmed and (bool(verdict.unexpected) or lacks_baseline))
    assert (verdict.proves_nothing is not None) == is_doubted


@given(board=boards(), data=st.data())
def test_what_a_listing_never_shows_is_not_compared(board: Any, data: st.DataObject) -> None:
    """Where no card shows a field, rows are compared by the others, and as many are found as there are cards."""
    rows, _, theirs, baseline, confirmed, foreign = board
    hidden = data.draw(st.lists(st.sampled_from(SHOWN), unique=True))
    confirmed = [*confirmed, WITNESS]
    cards = [attrs.evolve(card, **dict.fromkeys(hidden)) for card in [*theirs, *baseline, *confirmed, *foreign]]
    listing = listing_of(cards, baseline, confirmed)
    assert listing.shown == tuple(field for field in SHOWN if field not in hidden)
    verdict = compare(listing, rows)
    assert verdict.proves_nothing is None
    key = content_key(listing)
    contents: dict[Hashable, list[Content]] = {}
    for row in rows:
        contents.setdefault(Content.of(row).shown(listing.shown), []).append(Content.of(row))
    there = Counter(key(card)[0] for card in theirs)
    for shown, alike in contents.items():
        is_clear = len(set(alike)) == 1 or there[shown] in {0, len(alike)}
        found = [card for card in verdict.found.values() if key(card)[0] == shown]
        assert len(found) == (there[shown] if is_clear else 0)
        unclear = sum(Content.of(rows[place]).shown(listing.shown) == shown for place in verdict.unclear)
        assert unclear == (0 if is_clear else len(alike))
    assert {card.id for card in verdict.found.values()} <= {card.id for card in theirs}
    assert {card.id for card in verdict.unexpected} == {card.id for card in foreign}


@pytest.mark.parametrize("dues", [(DUE, None), (DUE, DUE + timedelta(days=1))])
def test_rows_told_apart_by_what_is_not_shown(dues: tuple[Any, Any]) -> None:
    """Which of two rows a card is that does not show where they differ is not known: neither may be sent again."""
    rows = [CardDraft("weekly", "list", due=due) for due in dues]
    cards = [
        attrs.evolve(WITNESS, due=None),
        Card("1", "weekly", "", None, "list", None),
        Card("2", "weekly", "", None, "list", None),
    ]
    none, one, two = (compare(listing_of(cards[:number], [], [WITNESS]), rows) for number in (1, 2, 3))
    assert (none.found, none.absent, none.unclear) == ({}, [0, 1], [])
    assert (one.found, one.absent, one.unclear) == ({}, [], [0, 1])
    assert one.unexpected == []
    assert (sorted(card.id for card in two.found.values()), two.absent, two.unclear) == (["1", "2"], [], [])
    equal = compare(listing_of(cards[:2], [], [WITNESS]), [rows[0], rows[0]])
    assert (list(equal.found), equal.absent, equal.unclear) == ([0], [1], [])


def test_a_card_listed_twice_is_one_card() -> None:
    """Overlapping pages behind a listing make no second card of one."""
    row = CardDraft("a", "list")
    verdict = compare(listing_of([card_of(row, "1"), card_of(row, "1")], [], []), [row, row])
    assert list(verdict.found) == [0]
    assert (verdict.absent, verdict.unexpected) == ([1], [])


def test_a_listing_that_lacks_a_confirmed_card_proves_nothing() -> None:
    """The message counts them, and what is found is found all the same."""
    confirmed = [card_of(CardDraft("c", "list"), f"c{index}") for index in range(3)]
    row = CardDraft("a", "list")
    verdict = compare(listing_of([confirmed[1], card_of(row, "1")], [], confirmed), [row, row])
    assert list(verdict.found) == [0]
    assert verdict.absent == [1]
    assert verdict.missing == 2
    assert verdict.proves_nothing == "the listing lacks 2 of 3 cards that were confirmed: it is not complete"


def test_cards_of_unknown_origin_prove_nothing_before_a_confirmed_one() -> None:
    """Without a confirmed card nothing shows that the listing is whole, unless it holds what it should and nothing else."""
    row, other = CardDraft("a", "list"), card_of(CardDraft("b", "list"), "2")
    assert "unknown origin" in str(compare(listing_of([other], [], []), [row]).proves_nothing)
    assert "there before" in str(compare(listing_of([], [other], []), [row]).proves_nothing)
    assert compare(listing_of([other], [other], []), [row]).proves_nothing is None
    assert compare(listing_of([], [], []), [row]).proves_nothing is None
    assert compare(listing_of([other, card_of(row, "1")], [], [card_of(row, "1")]), [row]).proves_nothing is None
    assert compare(listing_of([card_of(row, "1")], [other], [card_of(row, "1")]), [row]).proves_nothing is None


def test_cards_without_a_name_prove_nothing() -> None:
    """A card that does not show its name could be anybody's; known ones need none."""
    row = CardDraft("a", "list")
    known, before, nameless = Card("1"), Card("2"), Card("3", None, "text", None, "list")
    assert compare(listing_of([known, before], [before], [known]), [row]).proves_nothing is None
    verdict = compare(listing_of([known, before, nameless], [before], [known]), [row])
    assert verdict.absent == [0]
    assert verdict.proves_nothing == "the listing shows 1 cards without a name"
    assert verdict.unexpected == []


def test_a_card_that_is_confirmed_and_was_there_before_is_confirmed() -> None:
    """Confirmed counts first."""
    card = card_of(CardDraft("a", "list"), "1")
    verdict = compare(listing_of([card], [card], [card]), [])
    assert (verdict.missing, verdict.proves_nothing, verdict.unexpected) == (0, None, [])


def test_a_card_with_several_keys_goes_where_it_is_wanted() -> None:
    """A card whose description holds several markers is a row's whose marker is among them; each marker one card."""
    listing = listing_of([Card("1", "a", "[x][m1]"), Card("2", "b", "[m2]"), Card("3", "c", "[m2]"), Card("4", "d")], [], [])
    wanted: list[Hashable] = ["m2", "m1", "m3"]
    verdict = listing.compare(wanted, markers)
    assert {place: card.id for place, card in verdict.found.items()} == {0: "2", 1: "1"}
    assert verdict.absent == [2]
    assert [card.id for card in verdict.unexpected] == ["3", "4"]


def test_cards_are_kept_without_what_nobody_compares() -> None:
    """The undocumented fields of a million cards are not kept."""
    verdict = compare(listing_of([Card("1", "a", extra={"big": "x"})], [], []), [CardDraft("a", "list")])
    assert verdict.found[0].extra == {}


def test_matching_finds_equal_cards_in_the_order_of_the_board() -> None:
    """All that are exactly what the draft says, those without a name never."""
    draft = CardDraft("a", "list", desc="text", due=DUE)
    cards = [
        card_of(draft, "1"),
        card_of(attrs.evolve(draft, desc="other"), "2"),
        Card("3", None, "text", None, "list", DUE),
        card_of(attrs.evolve(draft, due=ELSEWHERE, pos="top"), "4"),
        card_of(attrs.evolve(draft, list_id="another"), "5"),
        card_of(attrs.evolve(draft, due=None), "6"),
        card_of(attrs.evolve(draft, name="A"), "7"),
    ]
    assert [card.id for card in matching(draft, iter(cards))] == ["1", "4"]
    assert matching(draft, []) == []
    assert matching(CardDraft("", "list"), [Card("8", None, None, None, "list"), Card("9", "", "", None, "list")]) == [
        Card("9", "", "", None, "list")
    ]


def test_matching_compares_what_is_shown() -> None:
    """A listing of bare names is compared by the names; the cards come as they were, with what else they hold."""
    draft = CardDraft("a", "list", desc="text", due=DUE)
    cards = [Card("1", "a", extra={"idShort": 1}), Card("2", "b"), Card("3", "a")]
    found = matching(draft, cards)
    assert [card.id for card in found] == ["1", "3"]
    assert found[0].extra == {"idShort": 1}
    assert [card.id for card in matching(draft, [*cards, Card("4", "x", list_id="list")])] == []
