"""The worlds in which bulk runs are tested: a service over sockets, a service in memory, and time that is the test's."""

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from bulk_service import Core

from boardclient import (
    AsyncSession,
    BoardClientError,
    BulkReport,
    BulkRun,
    Card,
    CardDraft,
    CardResult,
    RateLimitError,
    TransportError,
)
from boardclient.bulk.journal import read_rows
from boardclient.models import BoardList
from boardclient.testing import BoardService, faults


@attrs.define
class World:
    """A board with two lists, a session, and a journal that need not exist yet."""

    service: BoardService
    session: AsyncSession
    path: Path
    board_id: str
    lists: list[str]

    def drafts(self, *numbers: int, reference: bool = True) -> list[CardDraft]:
        return [
            CardDraft(f"card {number}", self.lists[number % 2], desc="text", reference=f"row {number}" if reference else None)
            for number in numbers
        ]

    def run(self, drafts: Any, **options: Any) -> BulkRun:
        given = {"journal": self.path, "board_id": self.board_id, "settle": 0.005, "concurrency": 2, "probe": False}
        return self.session.cards.create_many(drafts, **{**given, **options})

    async def finish(self, drafts: Any, **options: Any) -> tuple[dict[str, str], BulkReport]:
        """Run to the end, and give the state of each card by its name, and the report."""
        async with self.run(drafts, **options) as run:
            states = {result.draft.name.removeprefix("card "): result.state async for result in run}
        return states, run.report

    async def leave_in_doubt(self, drafts: list[CardDraft], **options: Any) -> None:
        """Leave a run while the first two of its cards are in flight: the first was created, the second not.

        The last row of each list is kept back, and left to the next run.
        """
        first = len(self.sent) + 1
        self.service.faults.add(faults.hang(commit=True), "cards.create", call=first)
        self.service.faults.add(faults.hang(), "cards.create", call=first + 1)
        last = [CardDraft(f"card kept back in {list_id}", list_id, reference=list_id) for list_id in self.lists]
        async with self.run(iter([*drafts[:2], *last]), **options):
            await self.service.received("cards.create", first + 1)
        self.service.faults.clear()
        assert sorted(state for state, _ in kept(self.path).values()) == ["unknown", "unknown", "waiting", "waiting"]

    @property
    def sent(self) -> list[str]:
        bodies = [call.body for call in self.service.calls_of("cards.create")]
        return [body["name"].removeprefix("card ") for body in bodies if isinstance(body, dict)]

    @property
    def there(self) -> list[str]:
        return sorted(card.name.removeprefix("card ") for card in self.service.rules.cards.values())

    def reads(self) -> int:
        return len(self.service.calls_of("boards.cards"))

    def add_card(self, name: str = "of others", number: int = 0, **fields: Any) -> str:
        """Create a card on behalf of others, and return its identifier."""
        body = {"name": name, "idList": self.lists[number], "key": self.service.key, "token": self.service.token, **fields}
        answer: Any = self.service.rules.answer("POST", "/1/cards", {}, body)
        return str(answer.body["id"])

    def list_as(self, change: Callable[[list[Any]], list[Any]]) -> None:
        """Let listings of the board show what a function makes of its cards."""
        self.service.rules.shape = lambda operation, body: change(body) if operation == "boards.cards" else body


def kept(path: Path) -> dict[int | str, tuple[str, str | None]]:
    """Give what a journal holds of each row."""
    return {row.key: (row.state, row.detail) for row in read_rows(path)}


def names(numbers: Iterable[int]) -> list[str]:
    return sorted(str(number) for number in numbers)


class Moments:
    """The time of the running loop, which passes without waiting once all tasks wait. Threads are given a moment before that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.now = 1000.0
        if monkeypatch is None:
            return
        loop: Any = asyncio.get_running_loop()
        select = loop._selector.select

        def pass_time(timeout: float | None = None) -> Any:
            events = select(0 if timeout == 0 else 0.002 if timeout is not None else None)
            if not events and timeout is not None:
                self.now += timeout
            return events

        monkeypatch.setattr(loop._selector, "select", pass_time)
        monkeypatch.setattr(loop, "time", lambda: self.now)


LOST = TransportError("lost on its way", "send")


REFUSED = RateLimitError("429", 429, retry_after=30.0)


class Memory(Core):
    """A service in memory. `script` says, by name, what happens to a card each time it is sent; after that it is created.

    An error is raised and nothing is created; "swallowed" creates the card and loses the response, "hang" never responds.
    """

    max_connections = 4

    def __init__(self, moments: Moments | None = None, seconds: float | None = None, timeout: float | None = None) -> None:
        super().__init__(timeout)
        self.cards: list[Card] = []
        self.script: dict[str, list[BaseException | str]] = {}
        self.sent: list[tuple[str, float]] = []
        self.read_at: list[float] = []
        self.moments = moments or Moments()
        self.seconds = (0.0 if moments is None else 1.0) if seconds is None else seconds
        self.unreadable: BoardClientError | None = None
        self.made = 0

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0)
        if request.operation.name == "boards.lists":
            return [BoardList("list")]
        if request.operation.name == "boards.cards":
            self.read_at.append(asyncio.get_running_loop().time())
            if self.unreadable is not None:
                raise self.unreadable
            return iter([[*self.cards]])
        fields = json.loads(request.body or b"")
        self.sent.append((fields["name"], asyncio.get_running_loop().time()))
        planned = self.script.get(fields["name"])
        what = planned.pop(0) if planned else "created"
        await asyncio.sleep(self.seconds)
        if isinstance(what, BaseException):
            raise what
        if what == "hang":
            await asyncio.Event().wait()
        self.made += 1
        due = datetime.fromisoformat(fields["due"]) if "due" in fields else None
        card = Card(f"id {self.made}", fields["name"], fields.get("desc", ""), None, fields["idList"], due)
        self.cards.append(card)
        if what == "swallowed":
            raise LOST
        return card

    def run(self, names: Iterable[str | CardDraft], listener: Any = None, **options: Any) -> BulkRun:
        drafts = [name if isinstance(name, CardDraft) else CardDraft(name, "list") for name in names]
        given: dict[str, Any] = {"concurrency": 1, "board_id": "board", "settle": 60.0, "probe": False}
        return self.open_run(drafts, *([] if listener is None else [listener]), **{**given, **options})

    async def results(self, names: Iterable[str | CardDraft], **options: Any) -> list[CardResult]:
        async with self.run(names, **options) as run:
            return [result async for result in run]

    def times(self, name: str) -> list[float]:
        return [at for sent, at in self.sent if sent == name]
