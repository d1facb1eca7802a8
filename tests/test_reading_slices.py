"""Long responses are read slice by slice, in small steps, while other tasks run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs
import pytest
from reading_helpers import board
from virtual_loop import Clock

from boardclient import AsyncSession, DeadlineError, DecodeError, Effect, StaticCredentials, _convert, _json
from boardclient import _operations as ops
from boardclient._transport import RawResponse
from boardclient.models import Card

IDS = [f"c{number}" for number in range(1000)]


def parts_of(body: bytes, read: Any = _json._split) -> list[list[bytes]]:
    """Split an array, and return the texts of the elements of each part."""
    return [[bytes(piece) for piece in [*part.values, *part.texts]] for part in _json.split_array(body, read)]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n ", " : ")])
def test_a_long_array_is_cut_into_small_parts(separators: tuple[str, str]) -> None:
    """Parts stay small whatever the white space, and inner arrays and strings that look like a seam don't break an element."""
    body = json.dumps(json.loads(board(1000)), separators=separators).encode()
    parts = parts_of(body)
    assert [json.loads(piece)["id"] for part in parts for piece in part] == [f"c{number}" for number in range(1000)]
    assert max(sum(len(piece) for piece in part) for part in parts) < 2 * _json.PART_BYTES
    slices = [len(values) for values in _convert.slices_of_cards(body)]
    assert (sum(slices), max(slices) <= 256) == (1000, True)


def test_an_array_without_a_cut_to_be_found_is_walked_in_small_parts() -> None:
    """Where inner arrays look like seams time and again the elements are found one by one, and parts stay small."""
    inner = b'"x":[{"id":"1","x":1},{"id":"2","x":2}],' * 3 + b'"z":"' + b"]" * 500 + b'"'
    with mock.patch.multiple(_json, PART_BYTES=800, _CUTS_TRIED=0, _REST_ELEMENTS=0):
        parts = parts_of(b"[" + b",".join(b'{"id":"%d",%s}' % (number, inner) for number in range(9)) + b"]")
    assert [json.loads(piece)["id"] for part in parts for piece in part] == [*"012345678"]
    assert max(len(part) for part in parts) < 3


@pytest.mark.parametrize("last", [b'{"id":"b","x":"' + b"y" * 90 + b'"}', b'{"id":"b","x":"\\ud800"}', b"7" * 9, b"7" * 90])
def test_an_array_that_is_walked_may_end_in_any_element(last: bytes) -> None:
    """The last element may be longer than a part, odd, or a number that a part cuts."""
    with mock.patch.multiple(_json, PART_BYTES=12, _CUTS_TRIED=0, _REST_ELEMENTS=0):
        parts = parts_of(b'[{"id":"a"},77777,{"id":"c"},' + last + b"]")
    assert [piece for part in parts for piece in part] == [b'{"id":"a"}', b"77777", b'{"id":"c"}', last]


@pytest.mark.parametrize(
    "more", ['"x": [' + ",".join(['{"id": "i"}'] * 60_000) + "]", ",".join(f'"f{n}": {n}' for n in range(60_000))]
)
def test_a_few_large_cards_are_not_read_by_the_standard_library(more: str) -> None:
    """A card of a megabyte is split off by msgspec: the standard library holds the loop for a tenth of a second."""
    body = ("[" + ",".join(f'{{"id": "c{number}", {more}}}' for number in range(2)) + "]").encode()
    with mock.patch.object(_json, "_scan", side_effect=AssertionError):
        assert [card.id for card in _convert.cards(body)] == ["c0", "c1"]


@pytest.mark.parametrize("space", [0, 300_000])
def test_a_long_empty_array_has_no_cards(space: int) -> None:
    """White space makes an empty array as long as one that is cut."""
    assert _convert.cards(b"[" + b" " * space + b"]\n") == []


def test_a_long_array_of_numbers_is_refused_at_the_first() -> None:
    """An array without objects is walked to its end, and its first element named."""
    body = b"[" + b",".join([b"1"] * 500) + b"]"
    with mock.patch.object(_json, "PART_BYTES", 100), pytest.raises(DecodeError) as caught:
        _convert.cards(body)
    assert caught.value.path == "[0]"


def test_cards_full_of_objects_that_begin_alike_are_read_in_small_parts() -> None:
    """Inner objects that begin as a card does, hundreds in each card, make no part much longer than a few cards."""
    inner = [{"id": "i", "name": "n", "due": None} for _ in range(300)]
    body = json.dumps([{"id": str(n), "name": "n", "items": inner, "more": [inner]} for n in range(200)]).encode()
    parts = parts_of(body)
    assert [json.loads(piece)["id"] for part in parts for piece in part] == [*map(str, range(200))]
    assert max(sum(len(piece) for piece in part) for part in parts) < 4 * _json.PART_BYTES


def test_one_odd_escape_leaves_a_board_readable() -> None:
    """A surrogate without its partner in one of thousands of cards is that card's affair, read as the standard library does."""
    body = (
        board(5000).replace(b'"id": "c2500", "name": "n"', b'"id": "c2500", "name": "\\ud83d"').replace(b'"l"', b'"\\ud800"', 9)
    )
    cards = _convert.cards(body)
    assert [card.id for card in cards] == [f"c{number}" for number in range(5000)]
    assert (cards[2500].name, cards[0].extra["labels"][0]["id"]) == ("\ud83d", "\ud800")  # type: ignore[index,call-overload]  # -- as sent


def test_a_malformed_undocumented_field_is_an_error_in_extra() -> None:
    """Text that the models do not need is looked at when it is asked for, and is an error there."""
    card = _convert.card(b'{"id":"c","name":"n","x":' + b"[" * 500 + b"]" * 500 + b"}")
    assert card.name == "n"
    unreadable = mock.patch.multiple(
        _json, _decode=mock.Mock(side_effect=ValueError), _standard=mock.Mock(**{"decode.side_effect": ValueError})
    )
    with unreadable, pytest.raises(DecodeError):
        card.extra  # noqa: B018 -- reading it is the point


def test_inner_objects_with_an_id_are_not_taken_for_elements() -> None:
    """Each part is cut at the first attempt, though there are inner arrays of objects that begin with an id too."""
    labels = b'"labels":[{"id":"k","colour":"red"},{"id":"l","colour":"blue"},{"id":"m","colour":"red"}]'
    body = b"[" + b",".join(b'{"id":"%d" , "name":"n",%s}' % (number, labels) for number in range(500)) + b"]"
    read = mock.Mock(wraps=_json._split)
    with mock.patch.object(_json, "PART_BYTES", 1000):
        parts = parts_of(body, read)
    assert [json.loads(piece)["id"] for part in parts for piece in part] == [str(number) for number in range(500)]
    assert len(parts) == read.call_count > 40


@pytest.mark.parametrize("first", [b'{"id":7,"name":"n"}', b'{"id":"\\"","name":"n"}', b'{"id":"c"}'])
def test_elements_are_found_by_one_name_where_two_can_not_be_seen(first: bytes) -> None:
    """Where the first element begins with no plain string, or ends there, its first name alone finds the next ones."""
    with mock.patch.object(_json, "PART_BYTES", 100):
        parts = parts_of(b"[" + b",".join([first] * 50) + b"]")
    assert [piece for part in parts for piece in part] == [first] * 50
    assert len(parts) > 3


@pytest.mark.parametrize("alike", [1, 250, 1000])
def test_elements_need_not_begin_as_the_first_one_does(alike: int) -> None:
    """Parts stay small where only some elements have the second name of the first one: a response may leave fields out."""
    body = b"[" + b",".join(
        b'{"id":"%d",%s"name":"n"}' % (number, b"" if number % alike else b'"due":null,') for number in range(1000)
    ) + b"]"  # fmt: skip
    with mock.patch.object(_json, "PART_BYTES", 1000):
        parts = parts_of(body)
    assert [json.loads(piece)["id"] for part in parts for piece in part] == [str(number) for number in range(1000)]
    assert max(sum(len(piece) for piece in part) for part in parts) < 2500


def test_slices_are_read_one_by_one() -> None:
    """Later slices are not read in advance; a wrong type is reported at the end, and broken JSON before it."""
    good = board(1000)[:-1]
    slices = _convert.slices_of_cards(good + b',{"id":7}]')
    assert len(next(slices)) > 0
    with pytest.raises(DecodeError) as caught:
        read = [len(values) for values in slices]
    assert caught.value.path == "[1000].id"
    for end, words in ((b"]", r"at \[0\]\.id"), (b',{"id":NaN}]', "not JSON")):
        read = []
        with pytest.raises(DecodeError, match=words):
            for values in _convert.slices_of_cards(b'[{"id":7},' + good[1:] + end):
                read.append(len(values))
        assert sum(read) == 0
        assert len(read) > len(good) // (2 * _json.PART_BYTES * _convert.SLICE_PARTS)  # other tasks run while the rest is checked


def test_steps_give_what_one_reading_gives() -> None:
    """A long list is read in steps, and value or error are those of one reading."""

    def steps(operation: ops.Operation[Any], answer: RawResponse) -> tuple[int, Any]:
        assert operation.read_in_steps is not None
        running = operation.read_in_steps(answer)
        for number in range(1000):
            try:
                next(running)
            except StopIteration as end:
                return number, end.value
            except DecodeError as error:
                return number, error
        raise AssertionError

    long = board(1000)
    for operation in (ops.BOARD_CARDS, ops.BOARD_LISTS):
        whole = RawResponse(200, {}, long)
        number, values = steps(operation, whole)
        assert (number > 3, values) == (True, operation.read(whole, "b"))
        number, error = steps(operation, RawResponse(200, {}, long[:-1] + b",3]"))
        assert (type(error), error.path) == (DecodeError, "[1000]")
        shown = ops.unreadable(operation.request("b"), error, whole)
        assert (shown.path, shown.__context__, shown.__traceback__) == ("[1000]", None, None)
        assert str(shown).startswith("GET /1/boards/b/")


class Answering:
    """A pool that answers everything with one body at once."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def send(self, *_: Any, **options: Any) -> RawResponse:
        return RawResponse(200, {}, self.body)


def answering(session: AsyncSession, body: bytes) -> Any:
    return mock.patch.object(session._core.pool, "send", Answering(body).send)


async def test_other_tasks_run_while_a_long_response_is_read() -> None:
    """Another task runs after each slice, and a short response is read at once."""
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
        counting.cancel()
    assert turns > 8


async def test_a_deadline_covers_reading_a_long_response(loop_clock: Clock) -> None:
    """The deadline covers reading too: the call is not reported as unsent, and the attempt is in the history."""

    def endless(body: bytes) -> Iterator[None]:
        while True:
            loop_clock.advance(1)
            yield

    request = attrs.evolve(ops.BOARD_CARDS, read_in_steps=endless).request("b1")
    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example", timeout=30) as session:
        with answering(session, board(1000)), pytest.raises(DeadlineError) as caught:
            await session._pipeline.call(request)
    assert caught.value.effect is Effect.UNKNOWN
    assert [attempt.effect for attempt in caught.value.attempts] == [Effect.UNKNOWN]
