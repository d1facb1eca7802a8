"""Undocumented fields are read on first use, and cards keep no more bytes than they need."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from reading_helpers import board

from boardclient import Card, Response

RAW = b'{"id":"c1","name":"n","pos":true,"labels":[{"id":"l"}],"due":null,"extra":1}'
EXTRA = {"pos": True, "labels": [{"id": "l"}], "extra": 1}


def card_of(body: bytes) -> Card:
    return Response(200, {}, body).read(Card)


def cards_of(body: bytes) -> list[Card]:
    return Response(200, {}, body).read(list[Card])


def slot(card: Card) -> Any:
    return vars(Card)["extra"].fset.__self__.__get__(card)


def is_read(card: Card) -> bool:
    return type(slot(card)) is dict


def test_extra_is_read_on_first_use_and_then_kept() -> None:
    """The fields are read at the first access, the bytes are let go, and every later access gives the same mapping."""
    card = card_of(RAW)
    assert not is_read(card)
    first = card.extra
    assert type(first) is dict
    assert first == EXTRA
    assert card.extra is first
    assert slot(card) is first


def test_cards_of_an_array_have_their_own_extra() -> None:
    """Each card of an array has its own fields, in whatever order they are asked for."""
    body = b"[" + b",".join(b'{"id":"c%d","n":%d}' % (number, number) for number in range(20)) + b"]"
    assert [card.extra for card in cards_of(body)[::-1]] == [{"n": number} for number in range(20)][::-1]


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud83d", "\ufffd"),
        (r"cut \uDE00\uD83Dx", "cut \ufffd\ufffdx"),
        (r"\ud83d\ud83d\ude00", "\ufffd\N{GRINNING FACE}"),
        (r"\ud83d\ude00\\ud83d\\\ud83d", "\N{GRINNING FACE}\\ud83d\\\ufffd"),
    ],
)
def test_half_an_emoji_is_read_as_a_replacement_character(escaped: str, text: str) -> None:
    """What was read of a surrogate without its partner can be encoded, in each field, in names, and as JSON."""
    body = f'{{"id":"c","name":"{escaped}","labels":[{{"{escaped}":"{escaped}"}}],"n":1}}'.encode()
    card, (listed,) = card_of(body), cards_of(b"[" + body + b"]")
    assert card == listed == Card("c", text)
    assert card.extra == listed.extra == {"labels": [{text: text}], "n": 1}
    assert Response(200, {}, body).json() == {"id": "c", "name": text, **card.extra}
    assert text.encode().decode() == text


def test_looking_at_a_card_does_not_read_extra() -> None:
    """Comparison, hash and repr leave out `extra`, read or not."""
    card = card_of(RAW)
    assert card == Card("c1", "n")
    assert hash(card) == hash(Card("c1", "n"))
    assert repr(card) == repr(Card("c1", "n"))
    assert not is_read(card)


@pytest.mark.parametrize(
    "way",
    [
        copy.copy,
        copy.deepcopy,
        lambda card: pickle.loads(pickle.dumps(card)),
        lambda card: attrs.evolve(card, name="n"),
        lambda card: Card(**attrs.asdict(card)),
        lambda card: Card(**attrs.asdict(card, recurse=False)),
    ],
)
def test_a_card_travels_with_its_extra(way: Callable[[Card], Card]) -> None:
    """Copies, pickles, `evolve` and `asdict` hold the fields themselves, whether they had been read or not."""
    for read_before in (False, True):
        card = card_of(RAW)
        if read_before:
            assert card.extra == EXTRA
        again = way(card)
        assert (again, slot(again)) == (card, EXTRA)
        assert card.extra == EXTRA


def test_a_card_built_by_hand_has_the_extra_it_was_given() -> None:
    """A given mapping is kept as it is, a card without one has its own empty one, and none can be changed."""
    given_: dict[str, Any] = {"a": 1}
    assert Card("c", extra=given_).extra is given_
    assert Card("c").extra == {}
    assert Card("c").extra is not Card("d").extra
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Card("c").extra = {}  # type: ignore[misc]  # -- that it can't be set is the point
    assert Card.extra is vars(Card)["extra"]


def test_threads_that_read_at_once_get_all_fields() -> None:
    """Threads that meet an unread `extra` all see the whole of it."""
    for card in cards_of(b"[" + b",".join([RAW] * 50) + b"]"):
        seen: list[object] = []
        together = threading.Barrier(4)

        def read(card: Card = card, seen: list[object] = seen, together: threading.Barrier = together) -> None:
            together.wait()
            seen.append(card.extra)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [EXTRA] * 4


# --- memory


@pytest.mark.full
def test_one_kept_card_does_not_hold_the_body() -> None:
    """A kept card whose `extra` was not read keeps a few kilobytes of a body of two megabytes."""
    tracemalloc.start()
    try:
        body = board(2000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        size = len(body)
        kept = cards_of(body)[1000]
        del body
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before + size
    finally:
        tracemalloc.stop()
    assert size > 2_000_000
    assert held < 50_000
    assert len(kept.extra["text"]) == 300  # type: ignore[arg-type]  # -- a string
