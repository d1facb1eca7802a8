"""The command `demo`: a tour of the client with an embedded service."""

import asyncio
from importlib.resources import as_file, files

from rich.console import Console

from boardclient import AsyncSession, AuthorizationRequest, Board
from boardclient.cli import _render, _settings
from boardclient.cli._import_view import ImportOptions, import_file
from boardclient.cli._running import reported
from boardclient.cli._signals import run_until_signal
from boardclient.cli._text import out
from boardclient.events import Event, ResponseReceived
from boardclient.testing import BoardService

_URGENT = "label-urgent"
_CARDS_SHOWN = 6
_CARDS_UNTIL_EXPIRY = 25


class _Consent:
    """Stands for an application whose user consents at once."""

    def __init__(self, service: BoardService) -> None:
        self.asked = 0
        self._service = service
        self._created = 0

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Return an authorization code."""
        self.asked += 1
        return self._service.new_code()

    def expire_midway(self, event: Event) -> None:
        """Expire all tokens once some cards of the import were created."""
        if isinstance(event, ResponseReceived) and event.operation == "cards.create" and event.status == 200:
            self._created += 1
            if self._created == _CARDS_UNTIL_EXPIRY:
                self._service.rules.expire_tokens()


def demo(options: _settings.Options) -> None:
    """Run the tour."""
    with reported():
        run_until_signal(_demo)


async def _demo() -> None:
    """Fill a board from the shipped file, change it and draw it.

    The token expires during the import.
    """
    console = _render.output()
    async with BoardService(port=0) as service:
        consent = _Consent(service)
        credentials = service.oauth_credentials(authorize=consent.authorize)
        async with service.session(credentials, observers=[consent.expire_midway]) as session:
            await _tour(console, service, session, consent)


async def _tour(console: Console, service: BoardService, session: AsyncSession, consent: _Consent) -> None:
    out(f"An embedded service runs at {service.base_url}; it is gone when this ends.")
    board = await session.boards.create("Demo", default_lists=True)
    await session.lists.create("Icebox", board_id=board.id, pos="bottom")
    out(f"Board {board.name} ({board.id}) has four lists. Importing the shipped cards:")
    with as_file(files("boardclient.cli") / "data" / "cards.csv") as path:
        asked = consent.asked
        await import_file(session, path, ImportOptions(board_id=board.id))
    out(
        f"After {_CARDS_UNTIL_EXPIRY} cards the access token expired. For all requests that met a 401 the application was asked"
        f" for {consent.asked - asked} new code{'s' * (consent.asked - asked != 1)}.",
    )
    for text in await _change(session, board):
        out(text)
    lists, cards = await session.boards.lists(board.id), await session.boards.cards(board.id)
    console.print(_render.board(lists, cards, width=console.width, cards_per_list=_CARDS_SHOWN))


async def _change(session: AsyncSession, board: Board) -> list[str]:
    """Move, label and delete some cards, archive a list, and return what was done."""
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
