"""BoardSessions: one session for each event loop an application runs in, whatever the order and the tasks."""

from __future__ import annotations

import asyncio

import pytest
from web_apps import MakeSignIn

from boardclient import AsyncSession, StaticCredentials
from boardclient.integrations.asgi import BoardSessions
from boardclient.web import SignIn


class Made:
    """Makes sessions, and remembers them."""

    def __init__(self) -> None:
        self.sessions: list[AsyncSession] = []

    def new(self) -> AsyncSession:
        self.sessions.append(AsyncSession(StaticCredentials("t", "k"), "https://boards.example"))
        return self.sessions[-1]

    @property
    def states(self) -> list[str]:
        return ["open" if "open" in repr(session) else "closed" for session in self.sessions]


async def test_opened_in_one_task_and_closed_in_another() -> None:
    """A server may end an application in another task than the one that started it."""
    made = Made()
    boards = BoardSessions(made.new)
    await asyncio.create_task(boards.open())
    assert boards.session is made.sessions[0]
    assert not boards.has_sign_in
    await asyncio.create_task(boards.aclose())
    assert made.states == ["closed"]
    await boards.aclose()
    with pytest.raises(RuntimeError, match="lifespan has not run"):
        _ = boards.session


async def test_parts_that_start_at_once_share_a_session() -> None:
    """A second start waits for the function that makes the session, and the last end closes it."""
    made = Made()

    async def make() -> AsyncSession:
        await asyncio.sleep(0)
        return made.new()

    boards = BoardSessions(make)
    await asyncio.gather(boards.open(), boards.open())
    await boards.aclose()
    assert made.states == ["open"]
    await boards.aclose()
    assert made.states == ["closed"]


async def test_each_event_loop_has_a_session_of_its_own() -> None:
    """A test client's loop never uses the session of another."""
    made = Made()
    boards = BoardSessions(made.new)

    async def elsewhere() -> AsyncSession:
        with pytest.raises(RuntimeError, match="lifespan has not run"):
            _ = boards.session
        async with boards.running():
            return boards.session

    async with boards.running():
        other = await asyncio.to_thread(asyncio.run, elsewhere())
        assert other is not boards.session
        assert made.states == ["open", "closed"]
        with pytest.raises(RuntimeError, match="make the function async"):
            await asyncio.to_thread(lambda: boards.session)


async def test_a_session_alone_cannot_sign_a_user_in() -> None:
    """A request that needs a sign-in gets an error without one."""
    boards = BoardSessions(Made().new)
    async with boards.running():
        with pytest.raises(RuntimeError, match="not a SignIn"):
            _ = boards.sign_in


@pytest.mark.parametrize(
    ("options", "name"), [({"login_path": "/in"}, "login_path"), ({"callback_path": "/back"}, "redirect_uri")]
)
async def test_routes_that_the_sign_in_does_not_lead_to_are_refused(make: MakeSignIn, options: dict[str, str], name: str) -> None:
    """A wrong path shows at the start, not when the first user comes back."""
    made: list[SignIn] = []

    def kept() -> SignIn:
        made.append(make())
        return made[-1]

    boards = BoardSessions(kept, **options)
    with pytest.raises(ValueError, match=f"the sign-in's {name} leads to"):
        await boards.open()
    assert "closed" in repr(made[0].session)


def test_a_session_instead_of_a_function_is_refused() -> None:
    """Each start makes its own, in its own event loop."""
    with pytest.raises(TypeError, match="make must be a function"):
        BoardSessions(object())  # type: ignore[arg-type]  # -- wrong on purpose
