"""The embedded service on the command line: a tour that needs no other service, and the service alone."""

import asyncio
import shlex
from importlib.resources import as_file, files

from boardclient import AsyncSession, Board
from boardclient.cli import _render, _settings
from boardclient.cli._import_view import ImportOptions, import_file
from boardclient.testing import BoardService

_URGENT = "label-urgent"
_CARDS_SHOWN = 6


async def demo() -> None:
    """Fill a board of an own service from the shipped file, change it, draw it."""
    console = _render.output()
    async with BoardService(port=0) as service, service.session() as session:
        _render.line(console, f"An embedded service runs at {service.base_url}; it is gone when this ends.")
        board = await session.boards.create("Demo", default_lists=True)
        await session.lists.create("Icebox", board_id=board.id, pos="bottom")
        _render.line(console, f"Board {board.name} ({board.id}) has four lists. Importing the shipped cards:")
        with as_file(files("boardclient.cli") / "data" / "cards.csv") as path:
            await import_file(session, path, ImportOptions(board_id=board.id))
        for text in await _change(session, board):
            _render.line(console, text)
        lists, cards = await session.boards.lists(board.id), await session.boards.cards(board.id)
        console.print(_render.board(lists, cards, cards_per_list=_CARDS_SHOWN))


async def _change(session: AsyncSession, board: Board) -> list[str]:
    """Move, label, delete and archive a few things, and tell what was done."""
    list_ids = {item.name: item.id for item in await session.boards.lists(board.id)}
    cards = await session.boards.cards(board.id)
    waiting = [card for card in cards if card.list_id == list_ids["To Do"]]
    moved, labelled, deleted = waiting[:5], waiting[5:8], waiting[8]
    await asyncio.gather(*(session.cards.move(card.id, list_id=list_ids["Doing"]) for card in moved))
    await asyncio.gather(*(session.cards.add_label(card.id, _URGENT) for card in labelled))
    await session.cards.delete(deleted.id)
    await session.lists.archive(list_ids["Icebox"])
    return [
        f"Moved {len(moved)} cards from To Do to Doing.",
        f"Labelled {len(labelled)} cards as {_URGENT}.",
        f"Deleted the card {deleted.name!r}.",
        "Archived the list Icebox.",
    ]


async def serve(port: int) -> None:
    """Run a service until cancelled, and print the environment that it needs.

    Its credentials are made for this run and open nothing else, so they may be printed.

    Raises:
        OSError: the port is taken.
    """
    async with BoardService(port=port) as service:
        values = {
            _settings.BASE_URL: service.base_url,
            _settings.AUTH_URL: service.auth_url,
            _settings.KEY: service.key,
            _settings.TOKEN: service.token,
        }
        for name, value in values.items():
            print(f"export {name}={shlex.quote(value)}")
        print(end="", flush=True)
        _render.line(_render.notes(), "Serving until SIGINT or SIGTERM. Set the environment above in another terminal.")
        await asyncio.Event().wait()
