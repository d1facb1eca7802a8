"""Undocumented fields are read on first use, and cards keep no more bytes than they need."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
import pytest
from reading_helpers import board

from boardclient import DecodeError, _wire
from boardclient.models import Card

RAW = b'{"id":"c1","name":"n","pos":true,"labels":[{"id":"l"}],"due":null,"extra":1}'
EXTRA = {"pos": True, "labels": [{"id": "l"}], "extra": 1}


def slot(card: Card) -> Any:
    return vars(Card)["extra"].fset.__self__.__get__(card)


def is_read(card: Card) -> bool:
    return type(slot(card)) is dict


def test_extra_is_read_on_first_use_and_then_kept() -> None:
    """The fields are read at the first access, the bytes are let go, and every later access gives the same mapping."""
    card = _wire.card(RAW)
    assert not is_read(card)
    first = card.extra
    assert type(first) is dict
    assert first == EXTRA
    assert card.extra is first
    assert slot(card) is first


def test_cards_of_an_array_share_its_text() -> None:
    """Each card has its own fields, in whatever order they are asked for, and the text is split once."""
    body = b"[" + b",".join(b'{"id":"c%d","n":%d}' % (number, number) for number in range(20)) + b"]"
    cards = _wire.cards(body)
    with mock.patch.object(_wire, "_split", wraps=_wire._split) as split:
        assert [card.extra for card in cards[::-1]] == [{"n": number} for number in range(20)][::-1]
    assert split.call_count == 1


def test_extra_is_read_where_little_of_the_stack_is_left() -> None:
    """Where less is left than when the cards were read, msgspec may refuse the text, and perhaps the standard library too."""
    (card,) = _wire.cards(b'[{"id":"c1","n":1}]')
    refused = mock.Mock(side_effect=RecursionError)
    nothing = mock.patch.multiple(_wire, _split=refused, _decode=refused, _standard=mock.Mock(decode=refused))
    with nothing, pytest.raises(DecodeError) as caught:
        card.extra  # noqa: B018 -- reading it is the point
    assert caught.value.__context__ is None
    with mock.patch.object(_wire, "_split", refused):
        assert card.extra == {"n": 1}


def test_looking_at_a_card_does_not_read_extra() -> None:
    """Comparison, hash and repr leave out `extra`, read or not."""
    card = _wire.card(RAW)
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
        card = _wire.card(RAW)
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
    for card in _wire.cards(b"[" + b",".join([RAW] * 50) + b"]"):
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


def test_one_kept_card_does_not_hold_the_body() -> None:
    """A kept card whose `extra` was not read keeps a few kilobytes of a body of two megabytes."""
    tracemalloc.start()
    try:
        body = board(2000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        size = len(body)
        kept = _wire.cards(body)[1000]
        del body
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before + size
    finally:
        tracemalloc.stop()
    assert size > 2_000_000
    assert held < 50_000
    assert len(kept.extra["text"]) == 300  # type: ignore[arg-type]  # -- a string


def test_the_garbage_collector_does_not_track_extra_that_was_not_read() -> None:
    """After the first collection nothing of a card but the card itself is tracked."""
    cards = [_wire.card(RAW), *_wire.cards(b"[" + RAW + b"]"), *_wire.cards(b'[{"id":"c1","n":1}]')]
    gc.collect()
    assert [gc.is_tracked(slot(card)) for card in cards] == [False] * 3


def test_many_cards_hold_little_more_than_their_bytes() -> None:
    """A board whose `extra` is not read takes less than twice its body."""
    body = board(1000)
    gc.collect()
    tracemalloc.start()
    try:
        cards = _wire.cards(body)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cards) == 1000
    assert held < 2 * len(body)
