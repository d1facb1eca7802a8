"""How many modules and functions of the package one call passes: what a reader follows to understand it."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import boardclient
from boardclient.testing import BoardService

_ROOT = f"{Path(boardclient.__file__).parent}/"


async def walk(call: Callable[[], Awaitable[object]]) -> set[tuple[str, str]]:
    """Make a call, and return the modules and the functions that it passes, without those of the embedded service."""
    passed: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(_ROOT) and not code.co_filename.startswith(f"{_ROOT}testing")
        if event == "call" and is_ours and not code.co_name.startswith(("<", "__del__")):
            passed.add((code.co_filename.removeprefix(_ROOT), code.co_qualname))

    profiler = sys.getprofile()
    sys.setprofile(note)
    try:
        await call()
    finally:
        sys.setprofile(profiler)
    return passed


def modules(passed: set[tuple[str, str]]) -> list[str]:
    """Return the names of the modules, sorted, so that a failure names them."""
    return sorted({module for module, _ in passed})


async def test_a_card_passes_few_modules(service: BoardService) -> None:
    """Creating a card with static credentials passes at most 15 modules and 32 functions."""
    list_id = service.seed({"Inbox": []}).lists["Inbox"]
    async with service.session() as session:
        await session.cards.create("n", list_id=list_id)
        passed = await walk(lambda: session.cards.create("n", list_id=list_id))
    assert len(modules(passed)) <= 15, modules(passed)
    assert len(passed) <= 32, sorted(passed)


async def test_a_renewal_passes_few_modules(service: BoardService) -> None:
    """Creating a card with a token that has expired passes at most 32 modules, the renewal and the second request included."""
    list_id = service.seed({"Inbox": []}).lists["Inbox"]
    async with service.session(service.oauth_credentials()) as session:
        await session.cards.create("n", list_id=list_id)
        service.rules.expire_tokens()
        passed = await walk(lambda: session.cards.create("n", list_id=list_id))
    assert ("credentials/_renewal.py", "Renewal.run") in passed
    assert len(modules(passed)) <= 32, modules(passed)
