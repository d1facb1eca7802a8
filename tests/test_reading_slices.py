"""Long responses are read slice by slice, in small steps, while other tasks run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs
import pytest
from reading_helpers import board
from virtual_loop import Clock

from boardclient import AsyncSession, DeadlineError, DecodeError, Effect, StaticCredentials
from boardclient._interface import _fields, _listings
from boardclient._interface import _operations as ops
from boardclient._transport._values import RawResponse
from boardclient.models import Card

IDS = [f"c{number}" for number in range(1000)]


def parts_of(body: bytes, part_bytes: int = 16 * 2**10) -> list[list[str]]:
    """Return the identifiers of the cards of each part that is read in one step."""
    with mock.patch.object(_listings, "_PART_BYTES", part_bytes):
        return [[card.id for card in part.models] for part in _listings._Reader(Card, body).parts()]


def in_order(parts: list[list[str]]) -> list[str]:
    return [identifier for part in parts for identifier in part]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n ", " : ")])
def test_a_long_array_is_cut_into_small_parts(separators: tuple[str, str]) -> None:
    """Parts hold about 16 KiB, whatever the white space and however much looks like the end of a card."""
    parts = parts_of(json.dumps(json.loads(board(1000)), separators=separators).encode())
    assert in_order(parts) == IDS
    assert max(map(len, parts)) < 40


def test_a_long_array_of_numbers_is_refused_at_the_first() -> None:
    """The first element of an array without objects is named."""
    body = b"[" + b",".join([b"1"] * 100_000) + b"]"
    with pytest.raises(DecodeError) as caught:
        _listings.cards(body)
    assert caught.value.path == "[0]"
    for broken in (body[:-1], body + b"x", body[:-1] + b",]", body[:-1] + b',"\xff"]'):
        with pytest.raises(DecodeError, match="not JSON"):
            _listings.cards(broken)
    with pytest.raises(DecodeError, match=r"at \[0\]"):
        _listings.cards(body[:-1] + b',"\\ud800"]')


def test_one_odd_escape_leaves_a_board_readable() -> None:
    """A surrogate without its partner in one of thousands of cards is that card's affair, and is read as U+FFFD."""
    body = (
        board(5000).replace(b'"id": "c2500", "name": "n"', b'"id": "c2500", "name": "\\ud83d"').replace(b'"l"', b'"\\ud800"', 9)
    )
    cards = _listings.cards(body)
    assert [card.id for card in cards] == [f"c{number}" for number in range(5000)]
    assert (cards[2500].name, cards[0].extra["labels"][0]["id"]) == ("\ufffd", "\ufffd")  # type: ignore[index,call-overload]  # -- as sent


def test_a_malformed_undocumented_field_is_an_error_in_extra() -> None:
    """Text that the models do not need is looked at when it is asked for, and is an error there."""
    card = _fields.card(b'{"id":"c","name":"n","x":' + b"[" * 500 + b"]" * 500 + b"}")
    assert card.name == "n"
    unreadable = mock.patch.multiple(
        _fields, _decode=mock.Mock(side_effect=ValueError), value_at=mock.Mock(side_effect=ValueError)
    )
    with unreadable, pytest.raises(DecodeError):
        card.extra  # noqa: B018 -- reading it is the point


@pytest.mark.parametrize("alike", [1, 250, 1000])
def test_elements_need_not_begin_as_the_first_one_does(alike: int) -> None:
    """Parts stay small where only some elements have the second name of the first one: a response may leave fields out."""
    body = b"[" + b",".join(
        b'{"id":"%d",%s"name":"n"}' % (number, b"" if number % alike else b'"due":null,') for number in range(1000)
    ) + b"]"  # fmt: skip
    parts = parts_of(body, 1000)
    assert in_order(parts) == [str(number) for number in range(1000)]
    assert max(map(len, parts)) < 120


def test_elements_may_begin_in_other_ways() -> None:
    """Where no boundary is found, elements are decoded one after another in parts as small, and cards are the same."""
    body = b"[" + b",".join(b'{"%d":1,"id":"c%d","x":"%s"}' % (number, number, b"x" * 90) for number in range(1000)) + b"]"
    assert [card.id for card in _listings.cards(body)] == IDS
    with pytest.raises(DecodeError) as caught:
        _listings.cards(body[:-1] + b",7]")
    assert caught.value.path == "[1000]"
    with pytest.raises(DecodeError, match="not JSON"):
        _listings.cards(body[:-1] + b",]")
    assert max(map(len, parts_of(body))) < 200


@pytest.mark.parametrize("encode", [_listings.encode, mock.Mock(side_effect=ValueError)])
def test_a_whole_number_of_any_size_is_read(encode: Any) -> None:
    """Beside half of an emoji it is in `extra` as it was sent, whether msgspec can write it again or not."""
    with mock.patch.object(_listings, "encode", encode):
        card, other = _listings.cards(b'[{"id":"c1","name":"\\ud83d","x":%d},{"id":"c2"}%s]' % (10**30, b" " * 2**15))
    assert (card.name, card.extra["x"], other.id) == ("\ufffd", 10**30, "c2")


LONG = 6 * 2**20
ENDLESS = {
    "a name": b'[{"id":"' + b"x" * LONG,
    "halves of emoji": b'[{"id":"c","name":"' + b"\\ud83d" * (LONG // 6),
    "backslashes": b'["' + b"\\\\" * (LONG // 2),
    "a number": b'[{"id":"c","pos":' + b"9" * LONG,
    "a number alone": b"[" + b"9" * LONG,
    "an inner array": b'[{"id":"c","x":[' + b'"",' * (LONG // 3),
}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("before", [b"", b'{"id":"b"},'])
def test_one_element_has_a_bound(body: bytes, before: bytes) -> None:
    """An element of more than 4 MiB is named, and not decoded, since that would be one long step."""
    number = 1 if before else 0
    with pytest.raises(DecodeError, match=rf"^\[{number}\] of the response is longer than 4 MiB") as caught:
        _listings.cards(b"[" + before + body[1:] + b'"}]')
    assert caught.value.path == f"[{number}]"


def test_a_long_element_within_the_bound_is_read() -> None:
    """A card with a description of a million characters is one of the list, also as escapes that msgspec refuses."""
    text = "\u00fc" * 500_000
    for escaped in (json.dumps(text)[1:-1], json.dumps(text)[1:-1] + "\\ud83d"):
        first, second = _listings.cards(b'[{"id":"c1","desc":"%s"},{"id":"c2"}]' % escaped.encode())
        assert (first.desc, second.id) == (text + "\ufffd" * escaped.endswith("\\ud83d"), "c2")


class Answering:
    """A pool that answers everything with one body at once."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def send(self, *_: Any, **options: Any) -> RawResponse:
        return RawResponse(200, {}, self.body)


def answering(session: AsyncSession, body: bytes) -> Any:
    return mock.patch.object(session._parts.transport, "send", Answering(body).send)


async def test_other_tasks_run_while_a_long_response_is_read() -> None:
    """Another task runs after each slice, and a short response is read at once. A wrong element is named in either."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example") as session:
        counting = asyncio.create_task(count())
        with answering(session, b'[{"id":"c1"}]'):
            assert await session.boards.cards("b1") == [Card("c1")]
        assert turns == 0
        with answering(session, board(2000)):
            assert len(await session.boards.cards("b1")) == 2000
            assert turns > 8
            assert len(await session.boards.lists("b1")) == 2000
        with (
            answering(session, board(2000)[:-1] + b",3]"),
            pytest.raises(DecodeError, match=r"^GET /1/boards/b1/cards") as caught,
        ):
            await session.boards.cards("b1")
        counting.cancel()
    assert (caught.value.path, caught.value.__context__) == ("[2000]", None)
    assert [(attempt.status, attempt.effect) for attempt in caught.value.attempts] == [(200, Effect.DONE)]


BROKEN = {
    "text": b"x",
    "a brace": b"[x",
    "text of a page": b"<html>",
    "a form feed": b" \f [",
    "a NaN": b'[{"id":"c","pos":NaN},',
    "a byte that is no UTF-8": b'[{"id":"\xff"},',
    "a colon too many": b'[{"id"::"c"},',
    "no comma": b'[{"id":"c"}{"id":"d"},',
}


@pytest.mark.parametrize("beginning", BROKEN.values(), ids=BROKEN)
def test_what_is_no_json_is_refused_at_its_beginning(beginning: bytes) -> None:
    """Of a body that is not JSON nothing is read after the part that shows it, however long the rest is."""
    for rest in (b"x" * 2**20, b'{"id":"c"},' * 10**5):
        taken: list[int] = []
        with mock.patch.object(_listings._Reader, "parts", _counted(_listings._Reader.parts, taken)):  # noqa: SIM117 -- two thoughts
            with pytest.raises(DecodeError, match="not JSON"):
                _listings.cards(beginning + rest)
        assert len(taken) < 3


def test_brackets_without_end_are_an_error() -> None:
    """How deep Python's decoder goes depends on its version. Beyond that a body counts as no JSON."""
    with pytest.raises(DecodeError):
        _listings.cards(b"[" * 2**20)


def _counted(parts: Any, taken: list[int]) -> Any:
    def counted(reader: Any) -> Iterator[Any]:
        for part in parts(reader):
            taken.append(1)
            yield part

    return counted


@pytest.mark.parametrize(
    "body", [b" " * 2**22, b"[" + b"\n" * 2**22 + b"]", b'[{"id":"c"}' + b"\t" * 2**22, b"[ ]" + b" " * 2**22]
)
def test_blanks_are_skipped_in_steps(body: bytes) -> None:
    """White space may be anywhere between what it separates, as long as it is, and is skipped part by part."""
    slices: list[list[Card]] = []
    with contextlib.suppress(DecodeError):
        slices.extend(_listings.slices_of_cards(body))
    assert len(slices) >= 2


@pytest.mark.full
async def test_what_was_read_is_freed_in_steps_after_an_error() -> None:
    """A listing that turns out to be no JSON at its end leaves cards to free, between which other tasks run."""

    def cards() -> int:
        return sum(type(one) is Card for one in gc.get_objects())

    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example") as session:
        gc.collect()
        others = cards()
        body = b"[" + b'{"id":"c","name":"n"},' * 60_000 + b'{"id":"d","pos":NaN}]'
        with answering(session, body), pytest.raises(DecodeError, match="not JSON"):
            await session.boards.cards("b1")
        left = [cards()]
        while left[-1] > others:
            await asyncio.sleep(0)
            left.append(cards())
    assert len(left) > 3


async def test_a_deadline_covers_reading_a_long_response(loop_clock: Clock) -> None:
    """The deadline covers reading too: the call is not reported as unsent, and the attempt is in the history."""

    def endless(body: bytes) -> Iterator[list[Card]]:
        while True:
            loop_clock.advance(1)
            yield []

    request = attrs.evolve(ops.BOARD_CARDS, slices=endless).request("b1")
    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example", timeout=30) as session:
        with answering(session, board(1000)), pytest.raises(DeadlineError) as caught:
            await session._pipeline.call(request)
    assert caught.value.effect is Effect.UNKNOWN
    assert [attempt.effect for attempt in caught.value.attempts] == [Effect.UNKNOWN]


def test_no_boundary_is_looked_for_for_ever() -> None:
    """After some candidates within an inner array the end of the element is found by decoding it."""
    inner = b",".join(b'"x%d":[{"id":"i","name":"n"},{"id":"j","name":"n"}]' % number for number in range(200))
    body = b'[{"id":"c1","name":"n",' + inner + b'},{"id":"c2","name":"n"}]'
    with mock.patch.multiple(_listings, _PART_BYTES=64, _CUTS_TRIED=3):
        assert [card.id for card in _listings.cards(body)] == ["c1", "c2"]
