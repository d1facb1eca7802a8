"""Which cards equal what was sent for a row."""

import html
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import Card, CardDraft
from boardclient.bulk._content import Content, EqualCards, IdSet, digest, markers, normal, probe_marker, probe_number, with_marker

DUE = datetime(2027, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TEXTS = st.text(st.characters(exclude_characters="&;\r", exclude_categories=["Cs"]), max_size=12)


def card(name: str | None = "Tea", list_id: str | None = "l1", desc: str | None = "", due: datetime | None = None) -> Card:
    return Card("c1", name, desc, None, list_id, due)


def equal(draft: CardDraft, *cards: Card) -> int:
    """Return how many of the cards of a listing equal what was sent."""
    return len(EqualCards(cards).to(Content.of(draft)))


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (" Tea\t", "Tea"),
        ("Tea\r\nhot\rnow", "Tea\nhot\nnow"),
        ("Tea & <milk>", "Tea &amp; &lt;milk&gt;"),
        ("Tea & milk", "Tea &amp;amp; milk"),
        ("&lt;Tea&gt;", "<Tea>"),
        ("Cafe\u0301", "Caf\u00e9"),
        ("it's", "it&#x27;s"),
    ],
)
def test_texts_are_equal_but_for_blanks_line_ends_escapes_and_composition(sent: str, shown: str) -> None:
    assert equal(CardDraft(sent, "l1"), card(shown))
    assert equal(CardDraft("Tea", "l1", desc=sent), card(desc=shown))


@pytest.mark.parametrize(
    "shown", ["tea", "Te a", "Tea!", "Tea 2", "Te", "Teé", "\uff34ea", "", None, "Tea\u200b", "T\u2026", "Tea\n\nx"]
)
def test_no_other_name_is_equal(shown: str | None) -> None:
    assert not equal(CardDraft("Tea", "l1"), card(shown))


@pytest.mark.parametrize(
    ("draft", "other", "is_equal"),
    [
        ({"desc": "hot"}, {"desc": "cold"}, False),
        ({"desc": "hot"}, {"desc": ""}, False),
        ({"desc": ""}, {"desc": None}, True),
        ({}, {"desc": "described by the service"}, True),
        ({"due": DUE}, {"due": DUE.replace(microsecond=0)}, True),
        ({"due": DUE.astimezone(timezone(timedelta(hours=9)))}, {"due": DUE}, True),
        ({"due": DUE}, {"due": DUE + timedelta(seconds=1)}, False),
        ({"due": DUE}, {"due": None}, False),
        ({}, {"due": DUE}, True),
        ({}, {"list_id": "l2"}, False),
        ({}, {"list_id": None}, False),
    ],
)
def test_each_field_that_was_sent_must_be_shown_as_it_was_sent(draft: Any, other: Any, is_equal: bool) -> None:
    """The listing shows all fields: another card has them."""
    everything = card("other", desc="text", due=DUE)
    assert equal(CardDraft("Tea", "l1", **draft), attrs.evolve(card(), **other), everything) == is_equal


@pytest.mark.parametrize("field", ["list_id", "desc", "due"])
def test_a_field_that_the_listing_never_shows_is_not_compared(field: str) -> None:
    draft = CardDraft("Tea", "l1", desc="hot", due=DUE)
    shown = card(desc="hot", due=DUE)
    assert equal(draft, attrs.evolve(shown, **{field: None}), attrs.evolve(shown, name="other", **{field: None}))
    assert not equal(draft, attrs.evolve(shown, **{field: None}), attrs.evolve(shown, name="other"))


def test_without_names_no_card_equals_a_row() -> None:
    assert not equal(CardDraft("Tea", "l1"), card(None))


@given(first=TEXTS, second=TEXTS)
def test_texts_without_escapes_are_equal_only_if_their_composed_forms_are(first: str, second: str) -> None:
    are_equal = unicodedata.normalize("NFC", first).strip() == unicodedata.normalize("NFC", second).strip()
    assert equal(CardDraft("Tea", "l1", desc=first), card(desc=second), card("other", desc="x")) == are_equal


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_every_text_is_equal_to_itself(text: str) -> None:
    assert equal(CardDraft("Tea", "l1", desc=text), card(desc=text), card("other", desc="x"))


def test_dates_at_the_ends_of_time_are_compared() -> None:
    for due in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert equal(CardDraft("Tea", "l1", due=due), card(due=due))


def test_rows_that_differ_in_anything_sent_have_different_digests() -> None:
    rows = [
        CardDraft("a", "l1"),
        CardDraft("a ", "l1"),
        CardDraft("a", "l2"),
        CardDraft("a", "l1", desc=""),
        CardDraft("a", "l1", pos="top"),
        CardDraft("a", "l1", pos="17"),
        CardDraft("a", "l1", pos=17),
        CardDraft("a", "l1", pos=17.5),
        CardDraft("a", "l1", due=DUE),
        CardDraft("a", "l1", due=DUE.replace(microsecond=0)),
    ]
    assert len({digest(row) for row in rows}) == len(rows)
    assert digest(attrs.evolve(rows[0], reference="other")) == digest(rows[0])


def test_a_set_of_identifiers_knows_each_of_many() -> None:
    """Beyond 65,536 it keeps hashes, in a table that grows."""
    names = [f"c{number}" for number in range(300_000)]
    ids = IdSet([*names, "c0", "c299999"])
    assert (len(ids), ids.repeated) == (300_000, 2)
    assert all(name in ids for name in names[::1000])
    assert "c300000" not in ids


USUAL = ["&amp;", "&lt;", "&gt;", "&#39;", "&#x27;", "&quot;", "& ", "&;", "a"]
ESCAPES = [*USUAL, "&eacute;", "&AMP;", "&amp", "&lt", "&", "amp;", "#", "&#0;"]


@given(st.lists(st.sampled_from(USUAL), max_size=6).map("".join) | st.lists(st.sampled_from(ESCAPES), max_size=6).map("".join))
def test_escapes_are_undone_as_html_defines_them(text: str) -> None:
    """A text equals what `html.unescape` makes of it up to three times, whichever way is the fast one for it."""
    undone = text
    for _ in range(3):
        undone = html.unescape(undone)
    assert normal(text) == undone.strip()


def test_a_long_text_is_compared_whole_and_has_its_markers_at_its_ends() -> None:
    """A megabyte that differs in its middle is another text. Its markers stand at its ends, where they are looked for."""
    long = "a & b\r\n" * 150_000
    assert equal(CardDraft("n", "l1", desc=long), card("n", desc=long.replace("&", "&amp;").replace("\r", "")))
    assert not equal(CardDraft("n", "l1", desc=long), card("n", desc=f"{long[:500_000]}x{long[500_000:]}"))
    assert markers(with_marker(long, "bcd")) >= {"bcd"}
    assert markers(with_marker(long, "bcd")[:-100]) >= {"bcd"}
    assert markers(with_marker(long, "bcd")[100:]) >= {"bcd"}


def test_only_the_whole_marker_of_a_probe_is_one() -> None:
    """What was cut off, is of another job, or was typed by a person, is no temporary card that may be deleted."""
    marker = probe_marker(b"secret", 7)
    assert probe_number(b"secret", marker) == 7
    others = [marker[:12], marker[:8] + "aeiouy" + marker[14:], marker[:-1] + "z", probe_marker(b"other", 7), ""]
    assert [probe_number(b"secret", word) for word in others] == [None] * 5
