"""What the tests of reconciliation share: a board, ledgers, and rows in doubt."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bulk_service import Core

from boardclient import (
    BoardClientError,
    Card,
    CardDraft,
    Effect,
    NotFoundError,
)
from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._reconciler import Reconciler, RowFinding
from boardclient.models import BoardList


class Board(Core):
    """A caller that knows one board; `asked` are the operations that were called.

    `hidden` are cards that exist and are not listed. `card_error` is raised when a card is read.
    """

    identity: Mapping[str, str] = {"service": "https://boards.example"}

    def __init__(self, *cards: Card, lists: Iterable[str] = ("l1", "l2")) -> None:
        super().__init__()
        self.cards = [*cards]
        self.hidden: list[Card] = []
        self.lists = [BoardList(identifier) for identifier in lists]
        self.asked: list[str] = []
        self.error: BoardClientError | None = None
        self.card_error: BoardClientError | None = None
        self.witnesses = 0

    async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
        self.asked.append(request.operation)
        assert options is None  # a listing waits for the limiter as any call
        if self.error is not None:
            raise self.error
        if request.operation == "cards.get":
            return self._card(request.path.removeprefix("/1/cards/"))
        assert request.path.startswith("/1/boards/b1/")
        return {"boards.lists": lambda: self.lists, "boards.cards": lambda: iter([self.cards])}[request.operation]()

    def _card(self, card_id: str) -> Card:
        if self.card_error is not None:
            raise self.card_error
        for card in [*self.cards, *self.hidden]:
            if card.id == card_id:
                return card
        raise NotFoundError("404", 404)

    def reconciler(self, ledger: Ledger, marking: Any = None, board_id: str | None = "b1") -> Reconciler:
        return Reconciler(self, board_id, ledger, marking)


def row(index: int, name: str = "a", list_id: str = "l1", **fields: Any) -> Row:
    return Row(index, CardDraft(name, list_id, **fields))


def card(identifier: str, name: str = "a", desc: str = "", list_id: str | None = "l1") -> Card:
    return Card(identifier, name, desc, None, list_id)


def marker_of(reconciler: Reconciler, row: Row) -> str:
    """Give the marker that is sent with a row."""
    reconciler.description(row)
    assert row.marker is not None
    return row.marker


def note(ledger: Ledger, row: Row, made: Card) -> None:
    """Let the ledger know of a card that was created."""
    ledger.settle(row, "created", made)


async def leave_in_flight(path: Path, sent: Row) -> None:
    """Begin a journal with a run that ended while a row was in flight."""
    ledger = await JournalLedger.open(path, {}, 8)
    await ledger.admit([sent])
    ledger.release(sent)
    await ledger.aclose()


DUE = datetime(2027, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


async def confirm(ledger: Ledger, board: Board, reconciler: Reconciler, list_id: str = "l1") -> None:
    """Put a confirmed card on the board, created after all others. The first is called w0."""
    witness = row(100 + board.witnesses, "confirmed", list_id, due=DUE)
    made = Card(f"w{board.witnesses}", "confirmed", reconciler.description(witness), None, list_id)
    board.witnesses += 1
    await ledger.admit([witness])
    board.cards.append(made)
    note(ledger, witness, made)
    reconciler.note_created(witness, made.id)


async def begun(ledger: Ledger, board: Board, rows: list[Row], marking: Any = None) -> Reconciler:
    """Give a reconciler with rows in doubt, of which nothing is on the board yet, and a confirmed card."""
    reconciler = board.reconciler(ledger, marking)
    await reconciler.prepare(reads_cards=True)
    await ledger.admit(rows)
    await confirm(ledger, board, reconciler)
    return reconciler


async def settled(ledger: Ledger, board: Board, reconciler: Reconciler, rows: list[Row]) -> list[RowFinding]:
    """Settle rows, and those that are not listed once more after a card was created."""
    findings = await reconciler.settle(rows)
    for finding in findings:
        if finding.card is not None:
            note(ledger, finding.row, finding.card)
    await confirm(ledger, board, reconciler)
    left = [finding.row for finding in findings if finding.is_open]
    return [finding for finding in findings if not finding.is_open] + await reconciler.settle(left)


def verdicts(findings: Iterable[Any]) -> dict[int, str]:
    """Say of each row which card it is, or that it is absent or unknown."""
    found = {}
    for row, made, error, is_open in findings:
        found[row.index] = made.id if made is not None else "open" if is_open else "absent" if error is None else "unknown"
        assert error is None or error.effect is Effect.UNKNOWN
    return found
