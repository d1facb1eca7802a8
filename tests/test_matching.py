"""The content of cards, identifiers, markers, and which cards belong to which rows."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from drawn_services import DATES
from drawn_services import TEXTS as TEXT_WAYS
from hypothesis import given
from hypothesis import strategies as st

from boardclient import Card, CardDraft
from boardclient.bulk._content import digest
from boardclient.bulk.reconciliation import _matching
from boardclient.bulk.reconciliation._card_search import find_cards
from boardclient.bulk.reconciliation._likeness import DateRule, learn_dates, learn_text
from boardclient.bulk.reconciliation._listing import FIELDS, IdSet, Listing
from boardclient.bulk.reconciliation._markers import check_marker, markers, normal, secret_marker, with_marker
from boardclient.bulk.reconciliation._matching import MatchResult, match, resembling
from boardclient.bulk.reconciliation._shown import Content, Shown

DUE = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
ELSEWHERE = DUE.astimezone(timezone(timedelta(hours=5, minutes=30)))
DIGEST = "5107786f6189e2583031cae318fef99e"
MARKER = "bcipehlqicpyf3mcz4"


# --- content


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
    """A digest covers every field that is sent, separately, and not the reference."""
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


def test_digest_of_a_date_does_not_depend_on_its_class() -> None:
    """A later run may get the dates of its rows from another library."""

    class Written(datetime):
        def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
            return "the second of January"

    written = Written(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert digest(CardDraft("a", "list", due=written)) == digest(CardDraft("a", "list", due=DUE))


def test_digest_is_the_same_in_every_process() -> None:
    """A journal holds it: what it is must never change."""
    assert digest(CardDraft("näme", "list", desc="text", due=ELSEWHERE, pos="top")).hex() == DIGEST


# --- identifiers


@given(ids=st.lists(TEXTS), more=st.lists(TEXTS), asked=st.lists(TEXTS))
def test_an_id_set_is_a_set(ids: list[str], more: list[str], asked: list[str]) -> None:
    """An `IdSet` holds each identifier that was put in once, before and after look-ups."""
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
    """An `IdSet` keeps eight bytes for each identifier, and a look-up sees what was added after the last one."""
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
        assert re.fullmatch("bc[a-z2-7]{16}", marker)
        assert check_marker(marker) == marker


def test_secret_marker_never_changes() -> None:
    """A journal's next run, of a later version too, must recognise the cards of this one."""
    assert secret_marker(bytes(range(32)), 7) == MARKER


@pytest.mark.parametrize("text", ["a", "row-7", "bc:abc", "ü", "(7)", "#", "\\", "x" * 500])
def test_a_marker_of_the_callers_choice(text: str) -> None:
    """A text without spaces and brackets is one, and is found again."""
    assert check_marker(text) == text
    assert normal(text) in markers(with_marker("before", text))


@pytest.mark.parametrize("text", ["", " ", "a b", "a\n", "\ta", "a\u00a0b", "[a]", "a]", "[a", "a[b"])
def test_a_marker_that_could_not_be_found_again(text: str) -> None:
    """An empty marker and one with a space or a bracket are refused."""
    with pytest.raises(ValueError, match="without spaces and brackets"):
        check_marker(text)


@pytest.mark.parametrize("text", [None, 7, b"a", ["a"], True])
def test_a_marker_is_a_text(text: object) -> None:
    """Anything else is a TypeError that names its type."""
    with pytest.raises(TypeError, match=f"marker must return a string, not {type(text).__name__}"):
        check_marker(text)


def test_a_marker_is_at_both_ends_of_a_description() -> None:
    """A marker comes first and last, on lines of its own; without a description it is all there is."""
    assert with_marker("text", "m") == "[m]\n\ntext\n\n[m]"
    assert with_marker("", "m") == with_marker(None, "m") == "[m]"


@given(
    desc=st.none() | st.text(st.sampled_from("ab [](\n")),
    more=st.text(st.sampled_from("ab \n")),
    way=st.sampled_from([*TEXT_WAYS]),
)
def test_a_marker_is_found_again(desc: str | None, more: str, way: str) -> None:
    """Trimmed, escaped, cut, in capitals, with text around it: the marker is among those of the card."""
    marker = secret_marker(b"secret", 5)
    whole = with_marker(desc, marker)
    shown = TEXT_WAYS[way](whole)
    for changed in (shown, more + (shown or "") + more, "".join((shown or "").split())):
        assert (marker in markers(changed)) == (way not in {"left out", "always the same"})


def test_a_card_without_text_holds_no_marker() -> None:
    """A description that is not shown, and an empty one, hold none; words may be one."""
    assert markers(None) == markers("") == set()
    assert markers("[x] do [this thing](url)[y]") >= {"x", "do", "this", "thing", "y"}


# --- how a service shows texts


@pytest.mark.parametrize("way", sorted(set(TEXT_WAYS) - {"left out"}))
def test_how_texts_are_shown_is_learned(way: str) -> None:
    """From cards that are known it follows which others are rows', or that texts say nothing."""
    sent = [
        f"Card {number}: {kind}" for number in range(4) for kind in ("a & b ", "é🎉 [x]", "a text of more than thirty characters")
    ]
    rule = learn_text([(text, TEXT_WAYS[way](text)) for text in sent])
    if rule.is_usable:
        for text in ("Card 7: a & b ", "Card 8: é🎉 [x]", "Card 9: a text of more than thirty characters"):
            if rule.predicts(text):
                assert rule.form(text) == rule.form(rule.plain(TEXT_WAYS[way](text)) or "")
            assert rule.form(text) != rule.form("of somebody else")
    assert rule.is_usable == (way != "always the same")


def test_a_few_cards_that_people_have_changed_are_no_rule() -> None:
    """One in four may be other; more are a rule that texts say nothing."""
    pairs = [(f"card {number}", f"card {number}") for number in range(3)]
    assert learn_text([*pairs, ("card 9", "renamed")]).level == 0
    assert not learn_text([*pairs, ("card 9", "renamed"), ("card 8", None)]).is_usable


def test_a_text_that_is_longer_than_a_cut_is_no_cut() -> None:
    """If a longer text is shown whole, the shorter one was changed, not cut."""
    pairs = [("a text of some length", "a text of s")] + [(f"a text that is longer than others, {n}",) * 2 for n in range(5)]
    assert not learn_text(pairs).is_usable


def test_dots_that_mark_a_cut_count_to_the_length() -> None:
    """A service that shows 15 characters shows a text of 15 whole, and 12 of a longer one with three dots."""
    rule = learn_text([("a text of 15 ch", "a text of 15 ch"), ("a text beyond that", "a text beyon...")])
    assert (rule.is_usable, rule.cut) == (True, 12)


def test_texts_of_unseen_kinds_are_not_predicted() -> None:
    """What the service does to emoji is not known from plain texts, nor what it does to long ones."""
    rule = learn_text([("card 1", "card 1")])
    assert rule.predicts("card 2")
    assert not any(map(rule.predicts, ["card 🎉", "Card 2", "card 2 ", "card  2", "card 22", "http://x"]))
    assert rule.pieces("card 2") is None
    assert rule.pieces("card 🎉 2") == ["card", "2"]


@pytest.mark.parametrize("way", sorted(DATES))
def test_how_dates_are_shown_is_learned(way: str) -> None:
    """Dates are compared as far as the service shows them."""
    sent = [DUE + timedelta(days=number, seconds=37 * number, microseconds=678901 * number) for number in range(1, 9)]
    rule = learn_dates([(due, DATES[way](due)) for due in sent] + [(None, None)])
    assert rule.is_usable == (way != "left out")
    if rule.is_usable:
        assert rule.shown(DUE + timedelta(days=50, microseconds=400_000)) == DATES[way](
            DUE + timedelta(days=50, microseconds=400_000)
        )
        assert rule.shown(None) == "none"
        assert rule.possible(None) == {None}


def test_dates_that_were_not_sent_show_nothing() -> None:
    """A service that shows one by default, or in another zone, shows nothing to compare by."""
    assert learn_dates([(None, DUE)]) == DateRule()
    assert learn_dates([(DUE, DUE + timedelta(hours=5))]) == DateRule()
    assert DateRule().shown(DUE) is None


def test_dates_at_the_end_of_time() -> None:
    """There is nothing to round up to."""
    last = datetime.max.replace(tzinfo=UTC)
    assert learn_dates([(last, last)]).is_usable


# --- which cards are whose


def card(identifier: str, name: str | None = "a", desc: str = "", list_id: str = "l1", due: datetime | None = None) -> Card:
    return Card(identifier, name, desc, None, list_id, due)


def draft(name: str = "a", desc: str | None = None, due: datetime | None = None) -> CardDraft:
    return CardDraft(name, "l1", desc=desc, due=due)


def sorted_out(rows: list[CardDraft], cards: list[Card], known: list[CardDraft], fields: Any = FIELDS) -> MatchResult:
    """Match rows at a service that shows what it was sent, as these known rows show."""
    samples = [(Content.of(one), card("known", one.name, one.desc or "", due=one.due)) for one in known]
    return match([Content.of(row) for row in rows], [digest(row) for row in rows], cards, Shown.learn(samples, fields))


KNOWN = [
    draft(f"card {number}", f"text {number}", DUE + timedelta(hours=number, microseconds=5 * number)) for number in range(20)
]


def test_rows_of_equal_content_are_counted() -> None:
    """Which card is whose doesn't matter; as many rows are absent as cards are missing."""
    result = sorted_out([draft("card 5")] * 3, [card("1", "card 5"), card("2", "card 5")], KNOWN)
    assert {place: found.id for place, found in result.found.items()} == {0: "1", 1: "2"}
    assert result.absent == [2]


def test_rows_that_differ_in_what_is_not_shown_are_unclear() -> None:
    """If some of them exist, none may be sent again; if all do, all are found."""
    rows = [draft("card 5", due=DUE), draft("card 5")]
    fields = ("name", "desc", "list_id")
    one = sorted_out(rows, [card("1", "card 5")], KNOWN, fields)
    assert (one.found, one.absent, sorted(one.unclear)) == ({}, [], [0, 1])
    assert len(sorted_out(rows, [card("1", "card 5"), card("2", "card 5")], KNOWN, fields).found) == 2
    assert sorted_out(rows, [], KNOWN, fields).absent == [0, 1]


def test_rows_that_a_service_may_show_alike_are_unclear() -> None:
    """Whether it trims is not known: the card may be either row's. A date distinguishes them."""
    rows = [draft("card 5"), draft("card 5 ")]
    assert sorted(sorted_out(rows, [card("1", "card 5")], KNOWN).unclear) == [0, 1]
    assert sorted_out(rows, [card("1", "card 5"), card("2", "card 5")], KNOWN).found.keys() == {0, 1}
    dated = [
        draft("card 5", due=DUE),
        draft("card 5 ", due=DUE + timedelta(days=1)),
        draft("card 5 ", due=DUE + timedelta(days=2)),
    ]
    result = sorted_out(dated, [card("2", "card 5", due=DUE + timedelta(days=1))], KNOWN)
    assert {place: found.id for place, found in result.found.items()} == {1: "2"}
    assert result.absent == [0, 2]


def test_rows_of_equal_looks_and_a_card_of_another_date() -> None:
    """The card matches none of the rows as it is, but may be one whose date was changed."""
    rows = [draft("card 5", due=DUE), attrs.evolve(draft("card 5", due=DUE), pos="top")]
    result = sorted_out(rows, [card("1", "card 5", due=DUE + timedelta(days=1))], KNOWN)
    assert (result.found, result.absent, sorted(result.unclear)) == ({}, [], [0, 1])


def test_each_row_gets_a_card_of_its_own() -> None:
    """Where a row has several possible cards it leaves those to others which they need."""
    rows = [draft("a & b", "text 1"), draft("a & b", "text 2"), draft("a & b", "text 2")]
    cards = [card("1", "a b", "text 2"), card("2", "a b", "text 1"), card("3", "a b", "text 2")]
    result = sorted_out(rows, cards, KNOWN)
    assert {place: found.id for place, found in result.found.items()} == {0: "2", 1: "1", 2: "3"}


def test_a_path_of_rows_is_rearranged() -> None:
    """A card is given to the only row that can have it, and the others move on."""
    possible = {0: [card("1"), card("2")], 1: [card("1")], 2: [card("2"), card("3")], 3: [card("1")]}
    given_cards = _matching._matched([0, 1, 2, 3], possible)
    assert {place: one.id for place, one in given_cards.items()} == {0: "2", 1: "1", 2: "3"}


def test_too_many_pairs_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take minutes to find out is unclear."""
    monkeypatch.setattr(_matching, "_MOST_PAIRS", 3)
    rows = [draft("a & b"), draft("a & b "), draft("a &  b")]
    assert sorted(sorted_out(rows, [card("1", "a & b"), card("2", "a & b")], KNOWN).unclear) == [0, 1, 2]


def test_names_that_say_nothing_leave_it_to_descriptions() -> None:
    """A long one distinguishes rows; a short one does not, so any card may be the row's."""
    samples = [(Content.of(one), card("known", "always the same", one.desc or "")) for one in KNOWN]
    shown = Shown.learn(samples, FIELDS)
    rows = [draft("x", "text 5 and so on"), draft("y", "text"), draft("z", "text 6 and so on"), draft("v", "text 6 and so on")]
    cards = [card("1", "always the same", "text 5 and so on"), card("2", "always the same", "text 6 and so on")]
    result = match([Content.of(row) for row in rows], [digest(row) for row in rows], cards, shown)
    assert {place: found.id for place, found in result.found.items()} == {0: "1"}
    assert sorted(result.unclear) == [2, 3]
    assert result.absent == [1]
    undescribed = [attrs.evolve(card("3", "always the same"), desc=None)]
    assert match([Content.of(rows[0])], [digest(rows[0])], undescribed, shown).absent == [0]


def test_cards_without_a_name_may_be_any_row() -> None:
    """Where others show theirs; with no card left over all rows are absent."""
    assert sorted_out([draft("card 5")], [card("1", None)], KNOWN).unclear.keys() == {0}
    assert sorted_out([draft("card 5")], [], KNOWN).absent == [0]
    assert sorted_out([draft("card 5")], [card("1", None)], KNOWN, ("desc",)).unclear.keys() == {0}


def test_empty_looks_are_compared_by_what_they_are() -> None:
    """Texts without letters have nothing in common but that."""
    assert sorted_out([draft("🎉")], [card("1", "✓")], KNOWN).found == {}
    assert sorted_out([draft("🎉")], [card("1", "🎉")], KNOWN).found.keys() == {0}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a card that is cut", "a card that"),
        ("party 🎉 at ten", "party :tada: at ten"),
        ("A card", "a card"),
        ("a card", "A CARD!"),
        ("a\ncard", "a"),
        ("a 🎉 b 🎉 c", "a"),
        ("a 🎉 b 🎉 c", "a 🎉 b"),
        ("🎉 a", ""),
        ("see https://example.com/a?b=1 now", "see [link] now"),
        ("ask ann@example.com", "ask [email protected]"),
        ("a card", "a card (2)"),
        ("a card", "a card-12"),
    ],
)
def test_a_card_that_may_be_a_row_blocks_it(name: str, shown: str) -> None:
    """In another list it is not the row's for sure, and may have been moved."""
    result = sorted_out([draft(name)], [card("1", shown, list_id="l2")], [draft("b")])
    assert result.unclear == {0: "the card 1 may be the row's: it may be shown in another form, or have been changed"}


def test_pieces_are_not_looked_for_in_too_many_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of them may be the row then."""
    assert sorted_out([draft("party 🎉")], [card("1", "other")], KNOWN).absent == [0]
    monkeypatch.setattr(_matching, "_MOST_LOOKS", 0)
    assert sorted_out([draft("party 🎉")], [card("1", "other")], KNOWN).unclear.keys() == {0}


def test_without_a_known_card_any_other_may_be_the_row() -> None:
    """A service may put anything into names, which only known cards show to be otherwise; the exact card is the row's still."""
    result = sorted_out([draft("card 5"), draft("card 6")], [card("1", "BOARD-7: card 5"), card("2", "card 6")], [])
    assert (result.found.keys(), result.unclear.keys(), result.absent) == ({1}, {0}, [])


def test_resembling_cards() -> None:
    """Cards resemble a row if their name may be the row's, whole or cut, or is not shown."""
    cards = [card("1", "a name, cut…"), card("2", "A name, cut here!"), card("3", "other"), card("4", None)]
    assert [one.id for one in resembling(cards, ["a name, cut here"])] == ["1", "2", "4"]
    assert resembling(cards, []) == []


# --- listings


def listing_of(cards: list[Card], baseline: list[str] | None, confirmed: list[str]) -> Listing:
    listing = Listing(None if baseline is None else IdSet(baseline), IdSet(confirmed), {"c1": None})
    for one in cards:
        listing.add(one)
    return listing


def test_a_listing_sorts_cards() -> None:
    """Cards of the baseline, confirmed cards and cards of unknown origin count once each."""
    cards = [card("b"), card("c1"), card("c2"), card("x", desc="text"), card("y", "other")]
    listing = listing_of([*cards, *cards], ["b", "gone"], ["c1", "c2", "c3"])
    assert [one.id for one in listing.unaccounted] == ["x", "y"]
    assert (listing.count, listing.confirmed, listing.missing) == (5, 2, 1)
    assert listing.shows_baseline
    assert listing.samples.keys() == {"c1"}
    assert listing.fields == {"name", "desc", "list_id"}
    assert [one.id for one in listing.copies()] == []
    assert [one.id for one in listing_of([card("c1"), card("x")], [], ["c1"]).copies()] == ["x"]
    bare = attrs.evolve(card("x"), desc=None)  # some responses leave out what is empty
    assert [one.id for one in listing_of([card("c1"), bare], [], ["c1"]).copies()] == ["x"]


@pytest.mark.parametrize(
    ("cards", "baseline", "confirmed", "recognised", "why"),
    [
        (["c1", "x"], ["b"], ["c1"], 0, None),
        (["c1"], [], ["c1", "c2"], 0, None),
        (["b"], ["b"], ["c1"], 0, "no card was confirmed yet"),
        (["b"], ["b"], [], 0, "no card was confirmed yet"),
        ([], ["b"], [], 0, "no card was confirmed yet"),
        (["b"], ["b"], [], 1, "no card was confirmed yet"),
        ([], None, [], 0, "no card was confirmed yet"),
        ([], [], [], 0, None),
        (["x"], [], [], 1, None),
        (["x"], [], [], 0, "no card was confirmed yet"),
    ],
)
def test_when_a_listing_is_evidence(
    cards: list[str], baseline: list[str] | None, confirmed: list[str], recognised: int, why: str | None
) -> None:
    """A confirmed card is listed; or the board was empty before, and all that it shows was recognised."""
    said = listing_of([card(identifier) for identifier in cards], baseline, confirmed).lacks_evidence(recognised)
    assert (said is None) if why is None else (why in str(said))


@pytest.mark.parametrize(
    ("before", "after", "has_grown"),
    [
        ("", "", False),
        ("", "1", True),
        ("1", "1", False),
        ("1", "11", True),
        ("1", "12", False),  # each list may show one card only
        ("1", "122", True),
        ("2", "22", True),
        ("122", "1222", True),  # the longest list shows more than list 1 did
        ("1122", "11222", True),
        ("11", "22222", True),
        ("112", "11", False),  # some were deleted
        ("-", "--", True),  # lists are not shown
        ("--", "-", False),
    ],
)
def test_when_a_listing_has_grown(before: str, after: str, *, has_grown: bool) -> None:
    """A listing has grown if it shows more cards in total, and in some list more than before."""
    earlier, later = (
        listing_of([Card(str(place), "a", list_id=None if of == "-" else of) for place, of in enumerate(lists)], [], [])
        for lists in (before, after)
    )
    assert later.has_grown(earlier.extent("1")) is has_grown


_PLACED = st.lists(st.tuples(st.sampled_from("123"), st.integers(0, 9)), max_size=12)
"""The cards of a board: their lists, and a number by which the service may sort them."""


@given(
    before=_PLACED,
    created=_PLACED,
    deleted=st.sets(st.integers(0, 23)),
    total=st.integers(1, 12),
    of_list=st.integers(1, 6),
    order=st.sampled_from(["oldest", "newest", "any"]),
    own=st.tuples(st.sampled_from("123"), st.integers(0, 9)),
    data=st.data(),
)
def test_a_card_that_exists_is_never_proven_absent(
    before: list[tuple[str, int]],
    created: list[tuple[str, int]],
    deleted: set[int],
    total: int,
    of_list: int,
    order: str,
    own: tuple[str, int],
    data: st.DataObject,
) -> None:
    """However a listing is limited, in total and for each list: if neither shows a card, the later one has not grown."""
    place = data.draw(st.integers(0, len(before)))
    board = [*before[:place], own, *before[place:], *created]

    def listed(count: int, gone: set[int]) -> Listing:
        cards = [(index, *board[index]) for index in range(count) if index == place or index not in gone]
        if order == "newest":
            cards.reverse()
        elif order == "any":
            cards.sort(key=lambda one: one[2])
        shown, lengths = list[Card](), Counter[str]()
        for index, list_id, _ in cards:
            lengths[list_id] += 1
            if lengths[list_id] <= of_list and len(shown) < total:
                shown.append(card(str(index), list_id=list_id))
        return listing_of(shown, [], [])

    earlier, later = listed(len(before) + 1, set()), listed(len(board), deleted)
    ids = {one.id for listing in (earlier, later) for one in listing.unaccounted}
    if str(place) not in ids:
        assert not later.has_grown(earlier.extent(own[0]))


def test_cards_are_kept_without_undocumented_fields() -> None:
    """The undocumented fields of a million cards are not kept."""
    assert listing_of([Card("1", "a", extra={"big": "x"})], [], []).unaccounted[0].extra == {}


# --- finding one card


def test_finding_prefers_what_is_exact() -> None:
    """All that are exactly what the draft says, and besides them those that may be it."""
    wanted = draft("card", "text", DUE)
    exact = card("1", "card", "text", due=ELSEWHERE)
    cards = [exact, card("2", "Card", "text", due=DUE), card("3", "card", "text"), card("4", "another", "other", due=DUE)]
    found = find_cards(wanted, cards)
    assert (found, found.is_exact, found.doubt) == ([exact], True, None)
    assert [one.id for one in found.alike] == ["2", "3"]
    assert find_cards(wanted, cards[1:]) == found.alike
    assert not find_cards(wanted, cards[1:]).is_exact
    assert find_cards(draft("nothing like it"), cards) == []


@pytest.mark.parametrize(
    ("shown", "is_alike"),
    [
        ("Card one (imported)", True),
        ("BOARD-7: card-one", True),
        ("<p>card one</p> 10:15", True),
        ("card onerous", False),
        ("one card", False),
        ("", False),
    ],
)
def test_finding_a_card_whose_name_has_other_words_around_it(shown: str, is_alike: bool) -> None:
    """Services add numbers, dates and notes. Nothing else on the board shows whether this one does."""
    found = find_cards(draft("card one"), [card("1", shown, list_id="l2")])
    assert (len(found), found.is_exact) == (is_alike, False)


def test_finding_reports_what_it_does_not_know() -> None:
    """A listing without names, or of a round number of cards, may hold the card although it is not found."""
    nameless = find_cards(draft("card", "text of it"), [card("1", None, "text of it")])
    assert (nameless, nameless.doubt) == ([card("1", None, "text of it")], "the listing shows no names")
    cut = find_cards(draft("card"), [card(f"o{number}", "other") for number in range(50)])
    assert (cut, cut.doubt) == ([], "the listing shows exactly 50 cards, which may be all that it ever shows")
    assert find_cards(draft("card"), []).doubt is None
    bare = find_cards(draft("card"), [Card("1")])
    assert (bare, bare.is_exact) == ([Card("1")], False)


def test_rows_that_cannot_all_have_a_card_are_not_given_those_of_others() -> None:
    """Of rows that share a card, and cannot each have one of their own, none is found, however many cards there are."""
    possible = {"one": "A", "two": "A", "three": "ABC"}
    shown: Any = SimpleNamespace(may_be=lambda row, card: card.id in possible[row])
    rows: Any = [*possible]
    group = _matching._Group(rows, rows, shown, [0, 1, 2], [Card(card_id) for card_id in "ABC"])
    result = MatchResult()
    _matching._assign_possible(group, result)
    assert (result.found, {*result.unclear}) == ({}, {0, 1, 2})
