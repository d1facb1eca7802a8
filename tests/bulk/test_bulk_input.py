"""The input of a bulk run: numbered, lazy, a few rows at a time. Its errors come after its rows, and generators are closed."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_helpers import KINDS, Slow, draft, every_kind, given_as, indices

from boardclient import CardDraft
from boardclient.bulk._life import Row
from boardclient.bulk._source import open_source


@every_kind
async def test_rows_come_in_batches(kind: str) -> None:
    """A batch has as many rows as requested, numbered on; the last has the rest, and then there are none."""
    given, source = given_as(kind, [draft(index) for index in range(7)])
    batches = [indices(await source.take(most)) for most in (3, 1, 2, 5, 5, 5)]
    assert batches == [[0, 1, 2], [3], [4, 5], [6], [], []]
    assert given.pulled == list(range(7))


@every_kind
async def test_the_input_is_read_only_as_far_as_needed(kind: str) -> None:
    """The input is not touched before the first row is wanted, and not beyond those that are."""
    given, source = given_as(kind, [draft(index) for index in range(100)])
    assert given.pulled == []
    await source.take(4)
    await source.take(1)
    await asyncio.sleep(0)
    assert given.pulled == [0, 1, 2, 3, 4]


@every_kind
async def test_an_empty_input(kind: str) -> None:
    """No drafts give no rows."""
    _, source = given_as(kind, [])
    assert await source.take(3) == []
    await source.aclose()


@every_kind
async def test_an_error_comes_after_the_rows_before_it(kind: str) -> None:
    """The rows before an error are returned first; then the error is raised, each time."""
    _, source = given_as(kind, [draft(0), draft(1), OSError("the disk is gone")])
    assert indices(await source.take(5)) == [0, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            await source.take(5)


@every_kind
async def test_an_error_at_once(kind: str) -> None:
    """An input that fails at its first row raises at once."""
    _, source = given_as(kind, [OSError("no such file")])
    with pytest.raises(OSError, match="no such file"):
        await source.take(2)


@every_kind
@pytest.mark.parametrize("wrong", ["text", 3, ("name", "list"), {"name": "a"}])
async def test_a_wrong_type_names_its_place(kind: str, wrong: object) -> None:
    """A draft that is not a CardDraft is a TypeError with its position and type, after the rows before it."""
    _, source = given_as(kind, [draft(0), draft(1), wrong, draft(3)])
    assert indices(await source.take(4)) == [0, 1]
    with pytest.raises(TypeError, match=rf"draft 2 must be a CardDraft, not {type(wrong).__name__}"):
        await source.take(4)


@pytest.mark.parametrize("kind", ["generator", "iterable"])
async def test_none_is_a_wrong_type(kind: str) -> None:
    """None among the drafts is no end of the input."""
    _, source = given_as(kind, [draft(0), None, draft(2)])
    assert indices(await source.take(4)) == [0]
    with pytest.raises(TypeError, match="draft 1 must be a CardDraft, not NoneType"):
        await source.take(4)


@pytest.mark.parametrize("kind", ["asynchronous generator", "asynchronous iterable"])
async def test_none_of_an_asynchronous_input_is_a_wrong_type(kind: str) -> None:
    """None among the drafts is no end of an asynchronous input either."""
    _, source = given_as(kind, [draft(0), None, draft(2)])
    assert indices(await source.take(1)) == [0]
    with pytest.raises(TypeError, match="draft 1 must be a CardDraft, not NoneType"):
        await source.take(4)


@pytest.mark.parametrize("kind", ["generator", "asynchronous generator"])
async def test_generators_are_closed(kind: str) -> None:
    """A generator that was begun is closed once, and gives nothing afterwards."""
    given, source = given_as(kind, [draft(index) for index in range(9)])
    await source.take(2)
    assert given.closed == 0
    await source.aclose()
    assert given.closed == 1
    assert await source.take(2) == []


@pytest.mark.parametrize("kind", ["generator", "asynchronous generator"])
async def test_generators_never_begun_are_closed(kind: str) -> None:
    """A generator that was never iterated runs none of its code, and can't be started afterwards."""
    given, source = given_as(kind, [draft(0)])
    await source.aclose()
    assert (given.pulled, given.closed) == ([], 0)
    assert await source.take(1) == []


async def test_other_inputs_are_left_alone() -> None:
    """A run does not close a list."""
    source = open_source([draft(0)], Row)
    await source.take(1)
    await source.aclose()
    assert await source.take(1) == []


class Unbegun:
    """An asynchronous input that is no generator."""

    def __aiter__(self) -> AsyncIterator[CardDraft]:
        raise AssertionError("it was begun")


async def test_an_input_that_was_not_begun_is_not_begun_to_be_closed() -> None:
    """An iterable has nothing to close before its first row."""
    source = open_source(Unbegun(), Row)
    await source.aclose()
    assert await source.take(1) == []


async def test_a_generator_that_ends_when_it_is_cancelled_has_ended() -> None:
    """A cancellation by others between two rows may be the generator's end; the rows before it are kept."""

    async def drafts() -> AsyncIterator[CardDraft]:
        with contextlib.suppress(asyncio.CancelledError):
            yield draft(0)

    source = open_source(drafts(), Row)
    before = asyncio.all_tasks()
    assert indices(await source.take(1)) == [0]
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    assert await source.take(1) == []
    await source.aclose()


async def test_a_slow_input_gives_the_rows_that_are_ready() -> None:
    """One waits for the first row only; what comes later is the next batch's, in order, nothing lost or twice."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0), draft(1))
    assert indices(await source.take(5)) == [0, 1]
    taking = asyncio.create_task(source.take(5))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not taking.done()
    slow.put(draft(2))
    assert indices(await taking) == [2]
    slow.put(draft(3), draft(4), draft(5))
    assert indices(await source.take(2)) == [3, 4]
    slow.put(None)
    assert indices(await source.take(5)) == [5]
    assert await source.take(5) == []


async def test_an_error_of_a_slow_input() -> None:
    """An error of a step that was begun ahead is raised to the task that asks next."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0))
    assert indices(await source.take(5)) == [0]
    slow.put(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await source.take(5)
    assert slow.closed


async def test_an_error_of_a_slow_input_behind_a_row() -> None:
    """An error right behind a row waits until the row was taken."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0), OSError("gone"))
    assert indices(await source.take(5)) == [0]
    with pytest.raises(OSError, match="gone"):
        await source.take(5)


async def test_closing_with_a_step_pending() -> None:
    """A step that was begun ahead is no obstacle to closing the generator."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0))
    assert indices(await source.take(2)) == [0]
    await source.aclose()
    assert slow.closed


async def test_closing_after_a_step_failed_leaves_no_complaint() -> None:
    """A run that is left before it came to an error of its input does not need to know of it."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0))
    assert indices(await source.take(2)) == [0]
    slow.put(OSError("gone"))
    for _ in range(5):
        await asyncio.sleep(0)
    await source.aclose()
    del source
    gc.collect()
    assert complaints == []


async def test_cancelled_while_waiting_for_a_row() -> None:
    """Cancelling the consumer while the input waits cancels the step, and the generator can be closed."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    for begin in ([draft(0)], []):
        slow.put(*begin)
        if begin:
            assert indices(await source.take(2)) == [0]
    taking = asyncio.create_task(source.take(2))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await source.aclose()
    assert slow.closed


async def test_an_asynchronous_iterator_of_its_own_is_not_closed() -> None:
    """An asynchronous input that is not a generator is not closed."""

    class Rows:
        closed = False

        def __aiter__(self) -> "Rows":
            return self

        async def __anext__(self) -> CardDraft:
            return draft(0)

        async def aclose(self) -> None:
            self.closed = True

    rows = Rows()
    source = open_source(rows, Row)
    assert indices(await source.take(3)) == [0, 1, 2]
    await source.aclose()
    assert not rows.closed


@given(
    number=st.integers(0, 30), sizes=st.lists(st.integers(1, 9), min_size=35, max_size=35), kind=st.sampled_from(sorted(KINDS))
)
def test_every_row_once_and_in_order(number: int, sizes: list[int], kind: str) -> None:
    """Whatever the sizes of the batches, each draft is one row with its number."""

    async def run() -> list[Row]:
        _, source = given_as(kind, [draft(index) for index in range(number)])
        return [row for size in sizes for row in await source.take(size)]

    rows = asyncio.run(run())
    assert indices(rows) == list(range(number))
    assert [row.draft for row in rows] == [draft(index) for index in range(number)]


def test_a_row_is_known_by_its_reference_or_its_number() -> None:
    """The reference counts where there is one, an empty one too; a new row is to be sent."""
    assert Row(3, draft(0)).key == 3
    assert Row(3, draft(0, "r")).key == "r"
    assert Row(3, draft(0, "")).key == ""
    row = Row(4, draft(0))
    assert (row.seq, row.action, row.sends, row.is_earlier) == (4, "send", 0, False)


async def test_the_iterator_is_made_with_the_first_row() -> None:
    """What opens a file in its `__iter__` does so when the first row is wanted, once."""
    asked = []

    class Rows:
        def __iter__(self) -> Iterator[CardDraft]:
            asked.append(True)
            return iter([draft(0), draft(1)])

    source = open_source(Rows(), Row)
    assert asked == []
    await source.take(1)
    await source.take(1)
    assert asked == [True]
