"""How many modules and functions of the package one call passes: what a reader follows to understand it."""

import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import boardclient
from boardclient import BulkReport, CardDraft
from boardclient.testing import BoardService, faults

_ROOT = f"{Path(boardclient.__file__).parent}/"
_DESIGN = Path(__file__).parent.parent / "docs" / "design"


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


async def card(service: BoardService) -> set[tuple[str, str]]:
    """Create a card with static credentials."""
    list_id = service.seed({"Inbox": []}).lists["Inbox"]
    async with service.session() as session:
        await session.cards.create("n", list_id=list_id)
        return await walk(lambda: session.cards.create("n", list_id=list_id))


async def renewal(service: BoardService) -> set[tuple[str, str]]:
    """Create a card with a token that has expired, the renewal and the second request included."""
    list_id = service.seed({"Inbox": []}).lists["Inbox"]
    async with service.session(service.oauth_credentials()) as session:
        await session.cards.create("n", list_id=list_id)
        service.rules.expire_tokens()
        return await walk(lambda: session.cards.create("n", list_id=list_id))


async def lost_row(service: BoardService) -> set[tuple[str, str]]:
    """Create a row in bulk whose response is lost, and whose card is then found on the board."""
    board = service.seed({"Inbox": []})
    reports: list[BulkReport] = []
    async with service.session() as session:

        async def create() -> None:
            drafts = [CardDraft(f"Row {len(reports)}", board.lists["Inbox"])]
            reports.append(await session.cards.create_many(drafts, board_id=board.id, settle=0.1).wait())

        await create()
        service.faults.add(faults.drop(commit=True), "cards.create", times=1)
        passed = await walk(create)
    assert [report.created for report in reports] == [1, 1]
    return passed


_SECTIONS = [
    section.partition("\n") for page in _DESIGN.glob("*.md") for section in page.read_text(encoding="utf-8").split("\n## ")
]


def unnamed(passed: set[tuple[str, str]], *titles: str) -> list[str]:
    """Return the modules that the blocks of these sections of the design pages do not name."""
    blocks = [text.split("\n```")[1] for title, _, text in _SECTIONS if title in titles and "\n```" in text]
    named = {word.rpartition("/")[2] for block in blocks for word in re.findall(r"[\w/]+", block)}
    return [module for module in modules(passed) if Path(module.removesuffix("/__init__.py")).stem not in named]


async def test_a_card_passes_few_modules(service: BoardService) -> None:
    """Creating a card passes at most 11 modules and 44 functions, 10 of which the parser of the response calls.

    The page on the pipeline names them.
    """
    passed = await card(service)
    assert len(modules(passed)) <= 11, modules(passed)
    assert len(passed) <= 44, sorted(passed)
    assert unnamed(passed, "A card") == []


async def test_a_renewal_passes_few_modules(service: BoardService) -> None:
    """A card whose token has expired passes at most 21 modules, which the page on the pipeline names."""
    ordinary = await card(service)
    passed = await renewal(service)
    assert {*modules(passed)} > {*modules(ordinary)}
    assert len(modules(passed)) <= 21, modules(passed)
    assert unnamed(passed, "A card", "A renewal") == []


async def test_a_lost_row_passes_few_modules(service: BoardService, passing_time: object) -> None:
    """A row whose response is lost passes at most 32 modules, until its card is found. The pages name them."""
    passed = await lost_row(service)
    assert len(modules(passed)) <= 32, modules(passed)
    assert unnamed(passed, "A card", "A renewal", "A lost row") == []
