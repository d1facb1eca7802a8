"""What ends a bulk run with an error, after the results that there are."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_service import Service, drafts

from boardclient import AsyncSession, AuthenticationError, BulkProgress, CardDraft


async def test_input_that_swallows_its_end_sends_nothing_more() -> None:
    """Drafts that an input yields after it was closed are not sent."""

    async def source() -> AsyncIterator[CardDraft]:
        yield CardDraft("refused", "list")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield CardDraft("too late", "list")

    service = Service()
    service.errors["refused"] = AuthenticationError("401", 401)
    async with service.run(source(), 2) as run:
        with pytest.raises(AuthenticationError):
            await run.wait()
    assert service.begun == ["refused"]


async def test_a_cancelled_error_from_a_creation_loses_no_card() -> None:
    """A card whose creation raises CancelledError on its own ends the run with an error instead of vanishing."""
    service = Service()
    service.errors["card 2"] = asyncio.CancelledError()
    async with service.run(drafts("list", 10), 1) as run:
        seen = []
        with pytest.raises(RuntimeError, match="cancelled by something other"):
            async for result in run:
                seen.append((result.index, result.state))
    assert seen == [(0, "created"), (1, "created"), (2, "unknown")]


class Quit(BaseException):
    """An exception that is no `Exception`, as those of `pytest.fail` and `sys.exit` are."""


class QuittingLimiter:
    """A limiter that can't be entered more often than so many times."""

    def __init__(self, times: int = 0) -> None:
        self.times = times

    async def __aenter__(self) -> None:
        self.times -= 1
        if self.times < 0:
            raise Quit

    async def __aexit__(self, *arguments: object) -> None: ...


def quit_now(*arguments: object) -> Any:
    raise Quit


def quitting_rows(list_id: str) -> Iterator[CardDraft]:
    yield from drafts(list_id, 3)
    raise Quit


async def quitting_arows(list_id: str) -> AsyncIterator[CardDraft]:
    for draft in quitting_rows(list_id):
        yield draft


@pytest.mark.parametrize("has_journal", [False, True])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("place", ["on_progress", "marker", "input", "asynchronous input", "limiter"])
async def test_whatever_the_application_raises_ends_the_run(
    place: str, concurrency: int, has_journal: bool, session: AsyncSession, list_id: str, path: Path
) -> None:
    """What the code of an application raises ends the run and is raised, also if it is no `Exception`."""
    sources: dict[str, Any] = {"input": quitting_rows(list_id), "asynchronous input": quitting_arows(list_id)}
    options: dict[str, Any] = {"on_progress": {"on_progress": quit_now}, "marker": {"marker": quit_now}}.get(place, {})
    view = session.with_options(limiter=QuittingLimiter()) if place == "limiter" else session
    rows = sources.get(place, drafts(list_id, 10))
    journal = path if has_journal else None
    async with view.cards.create_many(rows, concurrency=concurrency, journal=journal, **options) as run:
        with pytest.raises(Quit):
            async with asyncio.timeout(60):
                await run.wait()
    assert session.stats().in_flight == 0


async def test_a_listener_that_raises_a_cancellation_is_named() -> None:
    """A CancelledError of `on_progress` ends the run with an error, which does not cancel the task of its owner."""

    def cancel(progress: BulkProgress) -> None:
        raise asyncio.CancelledError

    async with Service().run(drafts("list", 5), 1, cancel) as run:
        with pytest.raises(RuntimeError, match="on_progress raised CancelledError"):
            await run.wait()
    assert run.report.created == 1
