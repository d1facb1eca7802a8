"""The input of a bulk run: read lazily and once. Its errors come after its rows, and generators run as they expect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from bulk_service import Service, let_run
from virtual_loop import virtually

from boardclient import BulkRun, CardDraft


def draft(index: int) -> CardDraft:
    return CardDraft(f"card {index}", "list")


class Input:
    """Rows in each form that an input may have. An exception among them is raised. `pulled` counts those that were asked for."""

    def __init__(self, *rows: object) -> None:
        self.rows = rows
        self.pulled = self.closed = 0
        self.may_go_on = asyncio.Event()
        """Waited for by `slow` after each row."""

    def _next(self, row: object) -> Any:
        self.pulled += 1
        if isinstance(row, BaseException):
            raise row
        return row

    def generator(self) -> Iterator[Any]:
        try:
            for row in self.rows:
                yield self._next(row)
        finally:
            self.closed += 1

    async def agenerator(self) -> AsyncIterator[Any]:
        try:
            for row in self.rows:
                await asyncio.sleep(0)
                yield self._next(row)
        finally:
            await asyncio.sleep(0)
            self.closed += 1

    async def slow(self) -> AsyncIterator[Any]:
        async with contextlib.aclosing(self.agenerator()) as rows:  # type: ignore[type-var]  # -- it is a generator
            async for row in rows:
                yield row
                await self.may_go_on.wait()

    def iterator(self) -> Any:
        outer = self

        class Rows:
            index = -1

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Any:
                self.index += 1
                if self.index == len(outer.rows):
                    raise StopIteration
                return outer._next(outer.rows[self.index])

        return Rows()

    def aiterator(self) -> Any:
        rows = self.iterator()

        class Rows:
            def __aiter__(self) -> Any:
                return self

            async def __anext__(self) -> Any:
                try:
                    return next(rows)
                except StopIteration:
                    raise StopAsyncIteration from None

        return Rows()


KINDS: dict[str, Callable[[Input], Any]] = {
    "generator": Input.generator,
    "asynchronous generator": Input.agenerator,
    "iterator": Input.iterator,
    "asynchronous iterator": Input.aiterator,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
generators = pytest.mark.parametrize("kind", ["generator", "asynchronous generator"])


async def outcome(run: BulkRun) -> tuple[list[int], BaseException | None]:
    """Return the rows that have results, and what the run raises."""
    indices = []
    try:
        async with run:
            async for result in run:
                indices.append(result.index)
    except Exception as error:
        return sorted(indices), error
    return sorted(indices), None


@every_kind
@pytest.mark.parametrize("number", [0, 2, 20])
async def test_an_error_comes_after_the_rows_before_it(kind: str, number: int) -> None:
    """The rows before an error are created, then it is raised. Nothing is asked for after it."""
    source = Input(*map(draft, range(number)), OSError("the disk is gone"), draft(number))
    indices, error = await outcome(Service().run(KINDS[kind](source), 3))
    assert (indices, str(error)) == ([*range(number)], "the disk is gone")
    assert source.pulled == number + 1


@every_kind
@pytest.mark.parametrize("wrong", ["text", 3, None, ("name", "list"), b"name"])
async def test_a_wrong_type_names_its_place(kind: str, wrong: object) -> None:
    """What is neither a CardDraft nor a mapping is a TypeError with its position, after the rows before it. None is no end."""
    indices, error = await outcome(Service().run(KINDS[kind](Input(draft(0), draft(1), wrong, draft(3))), 4))
    assert indices == [0, 1]
    assert isinstance(error, TypeError)
    assert str(error) == f"draft 2 must be a CardDraft or a mapping of its fields, not {type(wrong).__name__}"


@every_kind
async def test_mappings_are_taken_as_drafts(kind: str) -> None:
    """Rows of csv.DictReader and of a data frame are read by `CardDraft.from_dict`. What is wrong has the position of its row."""
    rows = {"name": "a", "list_id": "l", "due": "2027-01-02T03:04:05Z"}, {"name": "b", "list_id": "l", "due": float("nan")}
    service = Service()
    indices, error = await outcome(service.run(KINDS[kind](Input(*rows, {"name": "c", "list_id": "l", "duedate": "x"})), 4))
    assert indices == [0, 1]
    assert str(error) == (
        "draft 2: a draft has no field 'duedate' (did you mean due?); its fields are name, list_id, desc, due, pos, reference"
    )


@every_kind
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, StopAsyncIteration])
async def test_an_odd_exception_is_an_error(kind: str, error: type[BaseException]) -> None:
    """What would end a task or a loop in silence is a RuntimeError, after the rows before it."""
    indices, raised = await outcome(Service().run(KINDS[kind](Input(draft(0), draft(1), error())), 1))
    if kind == "asynchronous iterator" and error is StopAsyncIteration:  # the usual end of one
        assert (indices, raised) == ([0, 1], None)
    else:
        assert indices == [0, 1]
        assert isinstance(raised, RuntimeError)
        assert isinstance(raised.__cause__, error | RuntimeError)  # generators turn a stop into a RuntimeError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@generators
def test_an_exit_of_an_input_leaves_the_loop(kind: str, error: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit end the program, and do not stay in a task."""

    async def run() -> None:
        await Service().run(KINDS[kind](Input(draft(0), error())), 1).wait()

    with pytest.raises(error):
        asyncio.run(run())


@generators
async def test_generators_are_closed(kind: str) -> None:
    """A generator that was begun is closed when the run is left. One that was not begun runs none of its code."""
    source, service = Input(*map(draft, range(99))), Service()
    async with service.run(KINDS[kind](source), 1) as run:
        await anext(run)
        assert source.closed == 0
    assert source.closed == 1
    source = Input(draft(0))
    stopped = service.run(KINDS[kind](source), 1)
    stopped.stop()
    assert (await stopped.wait()).created == 0
    assert (source.pulled, source.closed) == (0, 0)


async def test_an_asynchronous_input_that_was_not_begun_is_not_begun_to_be_closed() -> None:
    """An iterable has nothing to close before its first row."""

    class Unbegun:
        def __aiter__(self) -> AsyncIterator[CardDraft]:
            raise AssertionError("it was begun")

    run = Service().run(Unbegun(), 1)
    run.stop()
    assert await outcome(run) == ([], None)


@pytest.mark.parametrize("steps", range(6))
async def test_a_run_that_is_stopped_at_once_just_ends(steps: int) -> None:
    """Whether or not the input was begun, it has no error of its own."""
    source = Input(*map(draft, range(9)))
    async with Service(waits=True).run(source.agenerator(), 1) as run:
        for _ in range(steps):
            await asyncio.sleep(0)
        run.stop()
    assert (run.report.created, len(source.rows) > source.pulled) == (0, True)


async def test_a_slow_input_holds_up_no_row_that_it_has_yielded() -> None:
    """A row is sent when it comes, without waiting for the next. Leaving the run ends the step that is running."""
    source = Input(*map(draft, range(3)))
    async with Service().run(source.slow(), 4) as run:
        assert (await anext(run)).index == 0
        await let_run()
        assert (source.pulled, run.progress.done) == (1, 1)
        source.may_go_on.set()
        assert (await anext(run)).index == 1
        source.may_go_on.clear()
    assert source.closed == 1


# --- one task for an asynchronous input


@virtually
async def test_timeouts_of_an_input_are_its_own() -> None:
    """`asyncio.timeout` in a generator ends its block. One that is not caught is an error of the input."""

    async def drafts() -> AsyncIterator[CardDraft]:
        for index in range(3):
            try:
                async with asyncio.timeout(10.0):
                    if index:
                        yield draft(10 * index)
                    await asyncio.Event().wait()
            except TimeoutError:
                yield draft(index)
        async with asyncio.timeout(0.0):
            await asyncio.Event().wait()

    indices, error = await outcome(Service().run(drafts(), 1))
    assert indices == [0, 1, 2, 3, 4]
    assert isinstance(error, TimeoutError)


class Endless:
    """An asynchronous input without an end, which knows the task that runs it. `ends` if it ends with its cancellation."""

    task: Any = None

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.index = -1

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> CardDraft:
        self.task = asyncio.current_task()
        self.index += 1
        return draft(self.index)

    async def generator(self, *, waits: bool) -> AsyncIterator[CardDraft]:
        with contextlib.suppress(asyncio.CancelledError) if self.ends else contextlib.nullcontext():
            async for row in self:
                yield row
                if waits:
                    await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["between two rows", "within a step", "an iterator"])
@pytest.mark.parametrize("ends", [True, False])
async def test_a_cancelled_input_ends_nothing_in_silence(how: str, ends: bool) -> None:
    """A cancellation by others is a RuntimeError of the run, or the end of a generator whose step ends with it."""
    source, service = Endless(ends=ends), Service(waits=True)
    rows = source if how == "an iterator" else source.generator(waits=how == "within a step")
    async with service.run(rows, 1) as run:
        await let_run()
        source.task.cancel()
        await let_run()
        service.may_end.set()
        is_end = ends and how == "within a step"
        with contextlib.nullcontext() if is_end else pytest.raises(RuntimeError, match="cancelled by something other"):
            await run.wait()
    assert run.report.created == len(service.begun) > 0


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()])
async def test_a_cleanup_that_fails_is_raised(error: BaseException) -> None:
    """What the cleanup of a generator raises is raised when the run is left. A cancellation of its own is an error."""

    async def drafts() -> AsyncIterator[CardDraft]:
        try:
            while True:
                yield draft(0)
        finally:
            raise error

    with pytest.raises((OSError, RuntimeError)):
        async with Service().run(drafts(), 1) as run:
            await anext(run)


async def test_an_input_that_swallows_its_cancellation_is_ended() -> None:
    """It waits for its next row when the run is left. It is cancelled, continues, and is cancelled again."""
    ends, waits = [], asyncio.Event()

    async def drafts() -> AsyncIterator[CardDraft]:
        try:
            for number in range(10):
                if number > 0:
                    waits.set()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
                yield draft(number)
        finally:
            ends.append(number)

    async with Service().run(drafts(), 1) as run:
        await anext(run)
        await waits.wait()
    assert ends == [1]


async def test_a_cancellation_while_an_input_is_closed_is_passed_on() -> None:
    """A cleanup that hangs is cancelled with the task that leaves the run. What it swallows is cancelled again."""
    ends = []

    async def drafts() -> AsyncIterator[CardDraft]:
        try:
            while True:
                yield draft(0)
        finally:
            for _ in range(2):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                ends.append(True)

    async def leave() -> None:
        async with Service().run(drafts(), 1) as run:
            await anext(run)

    leaving = asyncio.create_task(leave())
    for _ in range(2):
        await let_run()
        assert not leaving.done()
        leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert len(ends) == 2
