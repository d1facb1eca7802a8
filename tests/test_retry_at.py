"""`error.retry_at` is what the service has asked for, whatever the call was, and whichever error says it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import attrs
import pytest
from virtual_loop import Clock

from boardclient import AsyncSession, BoardClientError, BulkRun, CardDraft, ConsentRequired, CredentialError, DeadlineError
from boardclient.integrations.asgi import Problem
from boardclient.testing import BoardService, SeededBoard, faults

HOUR = 3600


@attrs.frozen
class Scene:
    """A service with a board of one list, and a session that tries each call once."""

    service: BoardService
    session: AsyncSession
    board: SeededBoard

    @property
    def list_id(self) -> str:
        return self.board.lists["To Do"]

    async def create_many(self, **options: Any) -> None:
        run: BulkRun = self.session.cards.create_many(
            [CardDraft("card", self.list_id)], board_id=self.board.id, settle=0.0, **options
        )
        (await run.wait()).raise_for_problems()

    async def map(self) -> None:
        async for result in self.session.map(self.session.cards.get, ["c"]):
            if result.error is not None:
                raise result.error

    async def with_oauth(self) -> None:
        async with self.service.session(self.service.oauth_credentials()) as session:
            for _ in range(2):  # a second call, in the cool-down, has the failure of the first one
                with pytest.raises(CredentialError) as caught:
                    await session.members.me()
                assert HOUR - 60 < seconds_until(caught.value) <= HOUR
        raise caught.value


def seconds_until(error: BaseException) -> float:
    assert isinstance(error, BoardClientError)
    assert error.retry_at is not None, error
    return (error.retry_at - datetime.now(UTC)).total_seconds()


CALLS: dict[str, tuple[str, Callable[[Scene], Awaitable[object]]]] = {
    "boards.create": ("boards.create", lambda scene: scene.session.boards.create("b")),
    "boards.lists": ("boards.lists", lambda scene: scene.session.boards.lists("b")),
    "boards.cards": ("boards.cards", lambda scene: scene.session.boards.cards("b")),
    "lists.create": ("lists.create", lambda scene: scene.session.lists.create("l", board_id="b")),
    "lists.archive": ("lists.archive", lambda scene: scene.session.lists.archive("l")),
    "cards.create": ("cards.create", lambda scene: scene.session.cards.create("c", list_id="l")),
    "cards.get": ("cards.get", lambda scene: scene.session.cards.get("c")),
    "cards.move": ("cards.move", lambda scene: scene.session.cards.move("c", list_id="l")),
    "cards.add_label": ("cards.add_label", lambda scene: scene.session.cards.add_label("c", "l")),
    "cards.delete": ("cards.delete", lambda scene: scene.session.cards.delete("c")),
    "members.me": ("members.me", lambda scene: scene.session.members.me()),
    "a list that is looked for": (
        "boards.lists",
        lambda scene: scene.session.lists.create("l", board_id=scene.board.id, unknown="reconcile"),
    ),
    "a card that is looked for": (
        "boards.cards",
        lambda scene: scene.session.cards.create("c", list_id=scene.list_id, board_id=scene.board.id),
    ),
    "a row": ("cards.create", Scene.create_many),
    "the board of a run": ("boards.lists", Scene.create_many),
    "map": ("cards.get", Scene.map),
    "the token exchange": ("token.exchange", Scene.with_oauth),
}


@pytest.fixture
async def scene(board_service: BoardService) -> Any:
    async with board_service.session(retry=None) as session:
        yield Scene(board_service, session, board_service.seed({"To Do": []}))


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("name", CALLS)
async def test_an_error_says_when_the_service_accepts_requests_again(scene: Scene, name: str, status: int, form: str) -> None:
    """With each operation, and what calls several."""
    operation, call = CALLS[name]
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=HOUR), usegmt=True)
    scene.service.faults.add(faults.status(status, {"Retry-After": str(HOUR) if form == "seconds" else moment}), operation)
    with pytest.raises((BoardClientError, ExceptionGroup)) as caught:
        await call(scene)
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert HOUR - 60 < seconds_until(error) <= HOUR


async def test_rows_say_when_the_board_can_be_read_again(scene: Scene, tmp_path: Any) -> None:
    """Those that are in doubt, and those that were refused and are not sent again without that look."""
    later = faults.status(503, {"Retry-After": str(HOUR)})
    scene.service.faults.add(faults.drop(), "cards.create", call=1)
    scene.service.faults.add(later, "boards.cards", call=2)
    with pytest.raises(ExceptionGroup) as lost:
        await scene.create_many()
    scene.service.faults.clear()
    scene.service.faults.add(faults.status(400), "cards.create")
    with pytest.raises(ExceptionGroup):
        await scene.create_many(journal=tmp_path / "j")
    scene.service.faults.clear()
    scene.service.faults.add(later, "boards.cards")
    with pytest.raises(ExceptionGroup) as refused:
        await scene.create_many(journal=tmp_path / "j")
    for caught in (lost, refused):
        assert HOUR - 60 < seconds_until(caught.value.exceptions[0]) <= HOUR


@pytest.mark.parametrize("held_seconds", [None, 90.0, "soon"])
async def test_a_call_that_waited_for_a_pace_says_how_long_that_holds(
    board_service: BoardService, loop_clock: Clock, held_seconds: Any
) -> None:
    """Refusals of other calls hold it. Of limiters that do not say so, the end is not known."""

    class Held:
        def __init__(self) -> None:
            self.held_seconds = held_seconds

        async def __aenter__(self) -> None:
            loop_clock.advance(30)
            await asyncio.Event().wait()

        async def __aexit__(self, *error: object) -> None: ...

    async with board_service.session(limiter=Held(), timeout=30) as session:
        with pytest.raises(DeadlineError) as caught:
            await session.members.me()
    if held_seconds == 90.0:
        assert 60 < seconds_until(caught.value) <= 90
    else:
        assert caught.value.retry_at is None


def test_the_response_of_a_web_application_says_when_to_try_again() -> None:
    """Whatever error says it, but for one that wants the user to sign in."""
    failure, unknown, consent = CredentialError("no token"), CredentialError("no token"), ConsentRequired("sign in")
    failure.retry_at = consent.retry_at = datetime.now(UTC) + timedelta(seconds=HOUR)
    (header,) = Problem.of(failure).headers
    assert header[0] == "Retry-After"
    assert HOUR - 60 < int(header[1]) <= HOUR
    assert not any("Retry-After" in header for error in (unknown, consent) for header in Problem.of(error).headers)
