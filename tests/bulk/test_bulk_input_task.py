"""An asynchronous input runs in one task: its context, its timeouts, and odd exceptions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from bulk_service import let_run
from input_helpers import Slow, draft, indices
from virtual_loop import Clock

from boardclient import CardDraft
from boardclient.bulk._life import Row
from boardclient.bulk._source import open_source

# --- one task for an asynchronous input


async def everything(source: Any) -> list[int]:
    """Take all rows, a few at a time, each from a task of its own, as the workers of a run do."""
    taken: list[int] = []
    while rows := await asyncio.create_task(source.take(2)):
        taken += indices(rows)
    return taken


async def test_one_task_runs_an_asynchronous_input() -> None:
    """One task runs all steps and the cleanup of an input, with its context variables, also where it is closed early."""
    seen: list[tuple[object, str]] = []
    variable: ContextVar[str] = ContextVar("variable", default="nothing")

    async def drafts() -> AsyncIterator[CardDraft]:
        variable.set("mine")
        try:
            for index in range(9):
                seen.append((asyncio.current_task(), variable.get()))
                await asyncio.sleep(0)
                yield draft(index)
        finally:
            await asyncio.sleep(0)
            seen.append((asyncio.current_task(), variable.get()))

    source = open_source(drafts(), Row)
    for _ in range(3):
        await asyncio.create_task(source.take(1))
    await asyncio.create_task(source.aclose())
    assert (len(seen), len(set(seen)), seen[0][1]) == (4, 1, "mine")


async def test_a_synchronous_input_keeps_its_context_variables() -> None:
    """The context variables of a synchronous input are the same at each step, whichever task takes the rows."""
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def drafts() -> Iterator[CardDraft]:
        for index in range(5):
            assert variable.get() == index
            variable.set(index + 1)
            yield draft(index)

    assert await everything(open_source(drafts(), Row)) == list(range(5))
    assert variable.get() == 0


async def test_a_timeout_inside_an_input() -> None:
    """`asyncio.timeout` inside a generator ends its block, and the input continues after it."""

    async def drafts() -> AsyncIterator[CardDraft]:
        for index in range(3):
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                yield draft(index)

    assert await everything(open_source(drafts(), Row)) == [0, 1, 2]


async def test_a_timeout_around_the_rows_of_an_input(loop_clock: Clock) -> None:
    """A timeout that passes while no row is wanted is the generator's, and an error of the input that is not caught."""

    async def drafts() -> AsyncIterator[CardDraft]:
        async with asyncio.timeout(10):
            for index in range(1000):
                yield draft(index)

    source = open_source(drafts(), Row)
    assert indices(await source.take(1)) == [0]
    loop_clock.advance(10)
    while not source._is_over:
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await source.take(1)
    await source.aclose()


async def test_an_input_may_continue_after_its_own_timeout(loop_clock: Clock) -> None:
    """What a generator yields after its own timeout is the next row; where it ends, the input ends."""

    async def drafts() -> AsyncIterator[CardDraft]:
        for index in range(2):
            try:
                async with asyncio.timeout(10):
                    yield draft(2 * index)
            except TimeoutError:
                yield draft(2 * index + 1)

    source = open_source(drafts(), Row)
    taken = []
    for _ in range(4):
        taken += indices(await source.take(1))
        await loop_clock.sleep(10)
    assert taken == [0, 1, 2, 3]
    assert await source.take(1) == []


class Cancelling:
    """An input that raises something odd after two rows, in one form or the other."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def generator(self) -> Iterator[CardDraft]:
        yield draft(0)
        yield draft(1)
        raise self.error

    async def agenerator(self) -> AsyncIterator[CardDraft]:
        yield draft(0)
        await asyncio.sleep(0)
        yield draft(1)
        raise self.error

    def iterator(self) -> Iterator[CardDraft]:
        outer, rows = self, [draft(1), draft(0)]

        class Rows:
            def __iter__(self) -> Iterator[CardDraft]:
                return self

            def __next__(self) -> CardDraft:
                if not rows:
                    raise outer.error
                return rows.pop()

        return Rows()

    def aiterator(self) -> AsyncIterator[CardDraft]:
        outer, rows = self, [draft(1), draft(0)]

        class Rows:
            def __aiter__(self) -> AsyncIterator[CardDraft]:
                return self

            async def __anext__(self) -> CardDraft:
                if not rows:
                    raise outer.error
                return rows.pop()

        return Rows()


@pytest.mark.parametrize("kind", ["generator", "agenerator", "iterator", "aiterator"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, StopAsyncIteration])
async def test_an_odd_exception_is_an_error(kind: str, error: type[BaseException]) -> None:
    """What would end a task or a loop in silence is a RuntimeError, after the rows before it."""
    if kind == "aiterator" and error is StopAsyncIteration:
        pytest.skip("it is the end of an asynchronous iterator")
    source = open_source(getattr(Cancelling(error()), kind)(), Row)
    taken = []
    with pytest.raises(RuntimeError):
        while rows := await source.take(1):
            taken += indices(rows)
    assert taken == [0, 1]
    await source.aclose()


@pytest.mark.parametrize("kind", ["generator", "iterator"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, StopAsyncIteration])
def test_an_odd_exception_is_an_error_of_a_row_that_is_taken_at_once(kind: str, error: type[BaseException]) -> None:
    """Rows that a worker takes without waiting end in the same RuntimeError."""
    source = open_source(getattr(Cancelling(error()), kind)(), Row)
    rows = [source.next_at_once(), source.next_at_once()]
    assert [row.index for row in rows if row is not None] == [0, 1]
    with pytest.raises(RuntimeError):
        source.next_at_once()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_of_an_input_leaves_the_loop(error: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit end the program, and do not stay in a task."""

    async def run() -> None:
        source = open_source(Cancelling(error()).agenerator(), Row)
        try:
            await everything(source)
        finally:
            await source.aclose()

    with pytest.raises(error):
        asyncio.run(run())


async def test_a_cancelled_input_ends_nothing_in_silence() -> None:
    """Whatever cancels the task of an input, the input has an error: a wait for a row never takes it for the end."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    taking = asyncio.create_task(source.take(1))
    for _ in range(2):
        await asyncio.sleep(0)
    source._task.cancel()
    with pytest.raises(RuntimeError, match="cancelled by something other"):
        await taking

    class Rows:
        def __aiter__(self) -> "Rows":
            return self

        async def __anext__(self) -> CardDraft:
            return draft(0)

    source = open_source(Rows(), Row)
    await source.take(1)
    source._task.cancel()
    with pytest.raises(RuntimeError, match="cancelled by something other"):
        await source.take(1)


async def test_a_cleanup_that_fails_is_raised() -> None:
    """What the cleanup of a generator raises is raised from closing it; a cancellation of its own is an error."""

    async def drafts(error: BaseException) -> AsyncIterator[CardDraft]:
        try:
            yield draft(0)
        finally:
            raise error

    for error, expected in ((OSError("gone"), OSError), (asyncio.CancelledError(), RuntimeError)):
        source = open_source(drafts(error), Row)
        await source.take(1)
        with pytest.raises(expected):
            await source.aclose()


async def test_a_cancellation_while_an_input_is_closed_is_passed_on() -> None:
    """A cleanup that hangs is cancelled with its caller; what it swallows is cancelled again."""
    ends = []

    async def drafts() -> AsyncIterator[CardDraft]:
        try:
            yield draft(0)
        finally:
            for _ in range(2):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                ends.append(True)

    source = open_source(drafts(), Row)
    await source.take(1)
    closing = asyncio.create_task(source.aclose())
    for _ in range(2):
        for _ in range(3):
            await asyncio.sleep(0)
        assert not closing.done()
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert len(ends) == 2


async def test_an_input_takes_no_row_that_is_not_requested() -> None:
    """Once a request got the rows that were available, those that come later are left to the next request."""
    slow = Slow()
    source = open_source(slow.drafts(), Row)
    slow.put(draft(0))
    assert indices(await source.take(5)) == [0]
    slow.put(draft(1), draft(2))
    await let_run()
    assert slow.rows.qsize() == 1  # the unfinished step has taken one
    await source.aclose()
