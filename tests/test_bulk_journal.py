"""Bulk runs that can be resumed, and cards in doubt: what is sent again, what never, and what the journal and the report say."""

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from boardclient import (
    AsyncSession,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    BulkProgress,
    BulkReport,
    BulkRun,
    Card,
    CardDraft,
    CardResult,
    Effect,
    JournalError,
    Pace,
    RateLimitError,
    StaticCredentials,
    TransportError,
)
from boardclient._messages import Request
from boardclient._pipeline._options import CallOptions
from boardclient._pipeline._places import Places
from boardclient.bulk import _backlog, _doubts, _hold, _open_run, _reader, _reconcile, _sender
from boardclient.bulk._options import make_options
from boardclient.bulk.journal import _format
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._view import read_rows
from boardclient.models import BoardList
from boardclient.testing import BoardService, faults


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cards.journal"


@pytest.fixture
async def session(service: BoardService) -> AsyncIterator[AsyncSession]:
    async with service.session(retry=None) as opened:
        yield opened


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
        given = {"journal": self.path, "board_id": self.board_id, "settle": 0.005, "concurrency": 2}
        return self.session.cards.create_many(drafts, **{**given, **options})

    async def finish(self, drafts: Any, **options: Any) -> tuple[dict[str, str], BulkReport]:
        """Run to the end, and give the state of each card by its name, and the report."""
        async with self.run(drafts, **options) as run:
            states = {result.draft.name.removeprefix("card "): result.state async for result in run}
        return states, run.report

    async def leave_in_doubt(self, drafts: list[CardDraft], **options: Any) -> None:
        """Leave a run while the first two of its cards are under way: the first was created, the second not."""
        first = len(self.sent) + 1
        self.service.faults.add(faults.hang(commit=True), "cards.create", call=first)
        self.service.faults.add(faults.hang(), "cards.create", call=first + 1)
        async with self.run(iter(drafts[:2]), **options):
            await self.service.received("cards.create", first + 1)
        self.service.faults.clear()
        assert {state for state, _ in kept(self.path).values()} == {"logged"}

    @property
    def sent(self) -> list[str]:
        bodies = [call.body for call in self.service.calls_of("cards.create")]
        return [body["name"].removeprefix("card ") for body in bodies if isinstance(body, dict)]

    @property
    def there(self) -> list[str]:
        return sorted(card.name.removeprefix("card ") for card in self.service.rules.cards.values())

    def reads(self) -> int:
        return len(self.service.calls_of("boards.cards"))


@pytest.fixture
async def world(service: BoardService, session: AsyncSession, path: Path) -> World:
    board = await session.boards.create("Board")
    lists = [(await session.lists.create(name, board_id=board.id)).id for name in ("one", "two")]
    return World(service, session, path, board.id, lists)


def kept(path: Path) -> dict[int | str, tuple[str, str | None]]:
    """Give what a journal holds of each row."""
    return {row.key: (row.state, row.detail) for row in read_rows(path)}


def names(numbers: Iterable[int]) -> list[str]:
    return sorted(str(number) for number in numbers)


class Moments:
    """`asyncio` as the run sees it, whose time is the test's; a timer rings when the test, or everybody waiting, lets it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.timers: list[Timer] = []
        self.rings_at_once = True

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_running_loop(self) -> "Moments":
        return self

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
        self.now += max(0.0, seconds)
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> "Timer":
        timer = Timer(seconds, self.now + seconds, callback, arguments)
        self.timers.append(timer)
        if self.rings_at_once:
            asyncio.get_running_loop().call_soon(self.ring, timer)
        return timer

    def ring(self, timer: "Timer") -> None:
        if not timer.is_cancelled:
            self.now = max(self.now, timer.due)
            timer.callback(*timer.arguments)


@attrs.define
class Timer:
    seconds: float
    due: float
    callback: Callable[..., object]
    arguments: tuple[object, ...]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    time = Moments()
    for module in (_backlog, _doubts, _hold, _open_run, _reader, _reconcile, _sender):
        monkeypatch.setattr(module, "asyncio", time)
    return time


LOST = TransportError("lost on its way", "send")
REFUSED = RateLimitError("429", 429, retry_after=30.0)


class Memory:
    """A service in memory: `script` says, by name, what happens to a card each time it is sent; afterwards it is created.

    An error is raised and nothing is created; "swallowed" creates the card and loses the answer, "hang" never answers.
    """

    timeout: float | None = 30.0
    max_connections = 4
    places = Places(4)
    limiter: object = None
    is_observed = False
    identity: Mapping[str, str] = {}

    def __init__(self, moments: Moments | None = None, seconds: float = 1.0) -> None:
        self.cards: list[Card] = []
        self.script: dict[str, list[BaseException | str]] = {}
        self.sent: list[tuple[str, float]] = []
        self.read_at: list[float] = []
        self.moments = moments or Moments()
        self.seconds = seconds
        self.unreadable: BoardClientError | None = None
        self.made = 0

    def notify(self, event: object) -> None: ...

    async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
        await asyncio.sleep(0)
        if request.operation == "boards.lists":
            return [BoardList("list")]
        if request.operation == "boards.cards":
            self.read_at.append(self.moments.now)
            if self.unreadable is not None:
                raise self.unreadable
            return iter([[*self.cards]])
        fields = json.loads(request.body or b"")
        self.sent.append((fields["name"], self.moments.now))
        self.moments.now += self.seconds
        planned = self.script.get(fields["name"])
        what = planned.pop(0) if planned else "created"
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
        given: dict[str, Any] = {
            "concurrency": 1, "journal": None, "board_id": "board", "unknown": None, "marker": None, "settle": 60.0,
        }  # fmt: skip
        plan = make_options(self, drafts, **{**given, **options})
        return BulkRun(self, drafts, plan, [] if listener is None else [listener])

    async def results(self, names: Iterable[str | CardDraft], **options: Any) -> list[CardResult]:
        async with self.run(names, **options) as run:
            return [result async for result in run]

    def times(self, name: str) -> list[float]:
        return [at for sent, at in self.sent if sent == name]


async def let_run() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


# --- resuming


async def test_a_second_run_skips_what_is_done(world: World) -> None:
    """What a run did is "already" in the next, with the card's id and without a request; what is new is created."""
    assert (await world.finish(world.drafts(*range(10))))[0] == dict.fromkeys(names(range(10)), "created")
    ids = {card.name: card.id for card in world.service.rules.cards.values()}
    async with world.run(world.drafts(*range(12))) as run:
        results = [result async for result in run]
    states = Counter(result.state for result in results)
    assert states == {"already": 10, "created": 2}
    for result in results:
        assert result.card is not None
        assert result.state == "created" or result.card == Card(ids[result.draft.name])
    assert sorted(result.index for result in results) == list(range(12))
    assert len(world.sent) == 12
    report = run.report
    assert (report.created, report.already, report.requests) == (2, 10, 2)
    assert report.rate == pytest.approx(2 / report.seconds)
    world.service.assert_no_duplicates()


async def test_resuming_after_leaving_early(world: World) -> None:
    """Leaving the block anywhere and running again, as often as it takes, creates each card once."""
    drafts = world.drafts(*range(40))
    for taken in (0, 1, 7, 13):
        async with world.run(iter(drafts), concurrency=3) as run:
            for _ in range(taken):
                assert (await anext(run)).state in {"created", "already"}
    states, report = await world.finish(drafts, concurrency=3)
    assert set(states) == set(names(range(40)))
    assert set(states.values()) <= {"created", "already"}
    assert report.unknown == report.failed == 0
    assert world.there == names(range(40))
    world.service.assert_no_duplicates()


@pytest.mark.parametrize("marker", [None, True])
async def test_rows_in_doubt_of_an_earlier_run_are_reconciled(world: World, marker: Any) -> None:
    """Of a run that ended, the card that is there is "already", the other is sent again and "created"; the rest goes on."""
    drafts = world.drafts(*range(6))
    await world.leave_in_doubt(drafts, marker=marker)
    if marker:  # without a confirmed card, or an empty board, a listing proves nothing
        drafts = drafts[2:] + drafts[:2]
    states, report = await world.finish(drafts, marker=marker)
    assert states.pop("0") == "already"
    assert states == dict.fromkeys(names(range(1, 6)), "created")
    assert (report.already, report.created, report.unknown, report.requests) == (1, 5, 0, 5)
    assert world.there == names(range(6))
    assert report.audit is not None
    assert (report.audit.recovered, report.audit.lost, report.audit.confirmed) == (1, 0, 6)
    assert report.audit.duplicated == report.audit.unexpected == ()
    assert {state for state, _ in kept(world.path).values()} == {"done"}


async def test_rows_in_doubt_of_an_earlier_run_are_reported(world: World) -> None:
    """With "report" nothing that may exist is sent again, in this run or the next; the error says so."""
    drafts = world.drafts(*range(4))
    await world.leave_in_doubt(drafts, unknown="report")
    for rest in ("created", "already"):
        async with world.run(drafts, unknown="report") as run:
            results = {result.index: result async for result in run}
        assert [results[index].state for index in range(4)] == ["unknown", "unknown", rest, rest]
        for index in (0, 1):
            error = results[index].error
            assert error is not None
            assert error.effect is Effect.UNKNOWN
            assert "an earlier run has sent it" in str(error)
        assert run.report.audit is None
    assert Counter(world.sent) == Counter("0123")
    assert world.there == ["0", "2", "3"]
    assert world.reads() == 0


async def test_rows_in_doubt_of_an_earlier_run_are_sent_again(world: World) -> None:
    """With "resend" each is sent at least once more, whatever is there."""
    drafts = world.drafts(*range(3))
    await world.leave_in_doubt(drafts, unknown="resend")
    states, report = await world.finish(drafts, unknown="resend")
    assert states == dict.fromkeys("012", "created")
    assert Counter(world.sent) == Counter("001 12".replace(" ", ""))
    assert (report.created, report.requests) == (3, 3)
    assert world.there == ["0", "0", "1", "2"]
    assert world.reads() == 0


async def test_reported_rows_may_be_reconciled_later(world: World) -> None:
    """What one run reported the next may look for: the journal was begun with a baseline, or knows why not."""
    drafts = world.drafts(*range(4))
    await world.leave_in_doubt(drafts)
    states, _ = await world.finish(drafts, unknown="report")
    assert states == {"0": "unknown", "1": "unknown", "2": "created", "3": "created"}
    states, _ = await world.finish(drafts)
    assert states == {"0": "already", "1": "created", "2": "already", "3": "already"}
    assert world.there == names(range(4))


async def test_a_journal_begun_without_a_baseline_stays_unknown(world: World) -> None:
    """Where nobody looked at the board before the first row, content says nothing: nothing is sent again."""
    drafts = world.drafts(*range(3))
    await world.leave_in_doubt(drafts, unknown="report")
    async with world.run(drafts) as run:
        results = {result.index: result async for result in run}
    assert [results[index].state for index in range(3)] == ["unknown", "unknown", "created"]
    assert "give the next import a new journal and marker=True" in str(results[0].error)
    assert Counter(world.sent) == Counter("012")


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (None, True, r"cards known by 'what they say' \(now 'their marker'\)"),
        (lambda draft: draft.name.replace(" ", "-"), False, r"cards known by 'their marker' \(now 'what they say'\)"),
    ],
)
async def test_another_way_to_know_cards_is_refused(world: World, first: Any, then: Any, message: str) -> None:
    """Rows sent without markers can't be found by them, nor the other way round: nothing is sent, and the first way goes on."""
    drafts = world.drafts(*range(4))
    await world.leave_in_doubt(drafts, marker=first, unknown="report")
    with pytest.raises(JournalError, match=f"belongs to another import: {message}"):
        await world.run(drafts, marker=then).__aenter__()
    assert world.sent == ["0", "1"]
    states, _ = await world.finish(drafts, marker=first, unknown="report")
    assert states == {"0": "unknown", "1": "unknown", "2": "created", "3": "created"}


async def test_markers_of_one_kind_serve_another(world: World) -> None:
    """Whether markers are the run's or the caller's, the journal only knows that there are some."""
    await world.finish(world.drafts(0), marker=True)
    states, _ = await world.finish(world.drafts(0, 1), marker=lambda draft: draft.name.replace(" ", "-"))
    assert states == {"0": "already", "1": "created"}


async def test_the_order_may_change_where_rows_have_references(world: World) -> None:
    """A row is known by its reference wherever it stands."""
    await world.finish(world.drafts(*range(8)))
    states, report = await world.finish(world.drafts(9, 7, 3, 0, 8, 1))
    assert states == {"9": "created", "8": "created", **dict.fromkeys("7301", "already")}
    assert report.requests == 2
    world.service.assert_no_duplicates()


async def test_without_references_rows_are_known_by_their_place(world: World) -> None:
    """The same input goes on; another order is another content, and ends the run before anything of it is sent."""
    numbers = range(6)
    await world.finish(world.drafts(*numbers, reference=False))
    states, _ = await world.finish(world.drafts(*numbers, 6, reference=False))
    assert Counter(states.values()) == {"already": 6, "created": 1}
    async with world.run(world.drafts(1, 0, reference=False)) as run:
        with pytest.raises(JournalError, match=r"row at position 0 .* was sent by an earlier run with other content"):
            await run.wait()
    assert len(world.sent) == 7


@pytest.mark.parametrize("change", [{"name": "b"}, {"desc": "b"}, {"pos": "top"}, {"due": datetime(2027, 1, 1, tzinfo=UTC)}])
async def test_changed_content_ends_the_run(world: World, change: dict[str, Any]) -> None:
    """A row that was sent may not change; the results before it are handed out."""
    drafts = world.drafts(*range(3))
    await world.finish(drafts)
    seen = []
    async with world.run([*drafts[:2], attrs.evolve(drafts[2], **change)], concurrency=1) as run:
        with pytest.raises(JournalError, match="'row 2' was sent by an earlier run with other content"):
            async for result in run:
                seen.append(result.state)
    assert set(seen) <= {"already"}
    assert len(world.sent) == 3


async def test_a_reference_that_comes_twice_ends_the_run(world: World) -> None:
    """Two rows of one reference can't be told apart."""
    async with world.run(world.drafts(0, 1, 0)) as run:
        with pytest.raises(JournalError, match="'row 0' comes twice"):
            await run.wait()
    assert len(world.there) == len(world.sent) <= 2


async def test_another_board_is_refused(world: World) -> None:
    """A journal serves the board that it was begun for, and is left as it was."""
    await world.finish(world.drafts(0))
    other = await world.session.boards.create("Other")
    for board_id in (other.id, None):
        with pytest.raises(JournalError, match="belongs to another import: board"):
            await world.run(world.drafts(1), board_id=board_id).__aenter__()
    assert world.sent == ["0"]
    assert (await world.finish(world.drafts(0)))[0] == {"0": "already"}


class Account:
    """A provider that says whose token it gives."""

    def __init__(self, token: str, account: object) -> None:
        self.credentials = StaticCredentials(token)
        self.account = account

    async def acquire(self, exchange: Any) -> Any:
        return await self.credentials.acquire(exchange)

    async def renew(self, rejected: Any, exchange: Any) -> Any:
        return await self.credentials.renew(rejected, exchange)


async def test_another_account_is_refused(world: World) -> None:
    """A journal serves the account that it was begun for, where the provider tells it; another service is another too."""
    token = world.service.token
    for account, is_refused in (("ann", False), ("bob", True), (None, True), (7, True), ("ann", False)):
        async with world.service.session(Account(token, account)) as session:
            run = attrs.evolve(world, session=session).finish(world.drafts(0))
            if is_refused:
                with pytest.raises(JournalError, match="belongs to another import: account 'ann'"):
                    await run
            else:
                await run
    async with BoardService() as another, another.session(Account(another.token, "ann")) as session:
        with pytest.raises(JournalError, match="belongs to another import: service"):
            await attrs.evolve(world, session=session).finish(world.drafts(0))
    assert world.sent == ["0"]


async def test_another_oauth_account_is_refused(world: World) -> None:
    """The provider of the package tells its account."""
    async with world.service.session(world.service.oauth_credentials(account="ann")) as session:
        await attrs.evolve(world, session=session).finish(world.drafts(0))
    async with world.service.session(world.service.oauth_credentials(account="bob")) as session:
        with pytest.raises(JournalError, match="account 'ann'"):
            await attrs.evolve(world, session=session).finish(world.drafts(0))


async def test_a_journal_serves_one_run_at_a_time(world: World) -> None:
    """A second run is refused while the first is under way, and the first is not disturbed."""
    async with world.run(world.drafts(*range(6))) as run:
        await anext(run)
        with pytest.raises(JournalError, match="is in use by another run"):
            await world.run(world.drafts(7)).__aenter__()
        await run.wait()
    assert world.there == names(range(6))
    assert (await world.finish(world.drafts(*range(6))))[1].already == 6


async def test_a_board_that_cannot_be_read_at_the_start_frees_the_journal(world: World) -> None:
    """A run that can't begin raises why, sends nothing, and leaves the journal to the next."""
    world.service.faults.add(faults.status(500), "boards.lists", times=1)
    with pytest.raises(BoardClientError, match="500"):
        await world.run(world.drafts(0)).__aenter__()
    assert world.sent == []
    assert (await world.finish(world.drafts(0)))[0] == {"0": "created"}


# --- refusals, and what ends a run


async def test_rows_refused_for_good_are_not_sent_again(world: World) -> None:
    """The next run reports them as failed, with the reason, without a request; changed, they are sent again."""
    world.service.faults.add(faults.status(400, body=b"no such thing"), "cards.create", call=1)
    drafts = world.drafts(0, 1)
    assert (await world.finish(drafts, concurrency=1))[0] == {"0": "failed", "1": "created"}
    async with world.run(drafts, concurrency=1) as run:
        first, second = [result async for result in run]
    assert (first.state, second.state) == ("failed", "already")
    assert first.error is not None
    assert first.error.effect is Effect.REJECTED
    assert str(first.error).startswith("refused in an earlier run: POST /1/cards: status 400")
    assert world.sent == ["0", "1"]
    changed = attrs.evolve(drafts[0], desc="better")
    assert (await world.finish([changed, drafts[1]]))[0] == {"0": "created", "1": "already"}


async def test_rows_refused_for_good_are_never_sent_again(world: World) -> None:
    """However many runs follow."""
    world.service.faults.add(faults.status(400), "cards.create", times=1)
    for _ in range(3):
        assert (await world.finish(world.drafts(0)))[0] == {"0": "failed"}
        assert kept(world.path)["row 0"][0] == "failed"
    assert world.sent == ["0"]


async def test_the_reason_of_a_doubt_does_not_grow(world: World) -> None:
    """Reporting it again and again leaves the journal's text as it was."""
    drafts = world.drafts(0, 1)
    await world.leave_in_doubt(drafts, unknown="report")
    details = []
    for _ in range(3):
        await world.finish(drafts, unknown="report")
        details.append(kept(world.path)["row 0"])
    assert details[1] == details[2]


@pytest.mark.parametrize("status", [401, 403, 408, 425])
async def test_rows_refused_for_a_passing_reason_are_sent_again(world: World, status: int) -> None:
    """What may pass without a change of the row is tried by the next run."""
    world.service.faults.add(faults.status(status), "cards.create", times=1)
    drafts = world.drafts(0, 1)
    options = {"concurrency": 1, "unknown": "report"}
    if status == 401:
        with pytest.raises(AuthenticationError):
            await world.finish(drafts, **options)
    else:
        states, _ = await world.finish(drafts, **options)
        assert states == {"0": "unknown" if status == 408 else "failed", "1": "created"}
    states, _ = await world.finish(drafts, **options)
    assert states["0"] == ("unknown" if status == 408 else "created")  # of a 408 nobody knows whether it was done


async def test_rows_that_never_left_are_sent_by_the_next_run(world: World) -> None:
    """A service that could not be reached was sent nothing: no doubt remains."""
    port = world.service.port
    await world.service.stop()
    states, report = await world.finish(world.drafts(0, 1), board_id=None)
    assert states == {"0": "failed", "1": "failed"}
    assert report.requests == 0
    assert {state for state, _ in kept(world.path).values()} == {"waiting"}
    await world.service.start()
    assert world.service.port == port
    states, _ = await world.finish(world.drafts(0, 1), board_id=None)
    assert states == {"0": "created", "1": "created"}


async def test_a_fatal_401_leaves_a_resumable_journal(world: World) -> None:
    """The run ends at once; with good credentials the next one goes on, and each card is created once."""
    world.service.faults.add(faults.status(401), "cards.create", call=range(6, 1000))
    drafts = world.drafts(*range(20))
    seen = []
    async with world.run(drafts, concurrency=3) as run:
        with pytest.raises(AuthenticationError):
            async for result in run:
                seen.append(result.state)
    assert Counter(seen)["created"] == 5
    assert set(seen) == {"created", "failed"}
    assert {state for state, _ in kept(world.path).values()} == {"done", "waiting"}
    world.service.faults.clear()
    states, report = await world.finish(drafts)
    assert (report.already, report.created) == (5, 15)
    assert len(states) == 20
    assert world.there == names(range(20))


async def test_stopping_begins_no_further_card(world: World) -> None:
    """Those in flight come to their end; every row on record is done or to be sent; the next run does the rest."""
    drafts = world.drafts(*range(60))
    results = []
    async with world.run(iter(drafts), concurrency=4) as run:
        async for result in run:
            results.append(result)
            if len(results) == 10:
                under_way = len(world.sent)
                run.stop()
                run.stop()
        assert len(results) == run.report.created == run.progress.done
    run.stop()
    assert len(results) == len(world.sent) <= under_way + 4 < 60
    states = Counter(state for state, _ in kept(world.path).values())
    assert states["done"] == len(results)
    assert set(states) <= {"done", "waiting"}
    _, report = await world.finish(drafts)
    assert (report.already, report.created) == (len(results), 60 - len(results))
    assert world.there == names(range(60))
    assert report.audit is not None
    assert report.audit.is_sound


async def test_stopping_reports_rows_in_doubt() -> None:
    """While the run waits until the board may be read, stopping ends it at once: what is in doubt is unknown."""
    memory = Memory()
    memory.script = {"a": [LOST], "c": ["swallowed"]}
    async with memory.run("abc", settle=1000.0) as run:
        assert (await anext(run)).draft.name == "b"
        await let_run()
        run.stop()
        results = {result.draft.name: result async for result in run}
    assert {name: result.state for name, result in results.items()} == {"a": "unknown", "c": "unknown"}
    assert results["a"].error is LOST
    assert len(memory.read_at) == 1
    assert (run.report.created, run.report.unknown) == (1, 2)


async def test_a_failing_listener_while_a_run_stops() -> None:
    """The result that it was told of is handed out, and what it raised is raised."""

    def fail(progress: BulkProgress) -> None:
        if progress.unknown:
            raise ZeroDivisionError

    memory = Memory()
    memory.script = {"a": [LOST]}
    async with memory.run("ab", fail, settle=1000.0) as run:
        assert (await anext(run)).draft.name == "b"
        run.stop()
        assert (await anext(run)).state == "unknown"
        with pytest.raises(ZeroDivisionError):
            await run.wait()


async def test_stopping_withdraws_what_waits_to_be_sent(path: Path) -> None:
    """A row that is on record and was not sent is no row in doubt, while the block still runs and after."""

    class Stopping(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            if request.operation == "cards.create":
                run.stop()
            return await super().call(request, bulk)

    memory = Stopping()
    run = memory.run("abc", journal=path)
    async with run:
        assert [result.draft.name async for result in run] == ["a"]
        assert set(kept(path)) == {0, 1, 2}
    assert [state for state, _ in kept(path).values()] == ["done", "waiting", "waiting"]


async def test_stopping_before_anything(path: Path) -> None:
    """A run that is stopped at once ends without a card; before and after its block, stopping does nothing."""
    memory = Memory()
    run = memory.run("abc")
    run.stop()
    async with run:
        run.stop()
        assert await run.wait() == BulkReport()
    run.stop()
    assert memory.sent == []


async def test_stopping_while_the_board_is_read_for_the_first_time() -> None:
    """A signal may come before the block was entered."""

    class Slow(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            if request.operation == "boards.lists":
                run.stop()
            return await super().call(request, bulk)

    memory = Slow()
    run = memory.run("abc")
    async with run:
        await run.wait()
    assert memory.sent == []


async def test_a_journal_that_is_full_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No card is sent that the journal does not hold; the error comes after the last result; then it goes on."""
    admit, calls = JournalFile.admit, []

    def failing(self: JournalFile, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:
            raise JournalError("the disk is full: make room and run again")
        return admit(self, *arguments)

    drafts = world.drafts(*range(900))
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(JournalFile, "admit", failing)
        async with world.run(drafts) as run:
            with pytest.raises(JournalError, match="the disk is full"):
                async for result in run:
                    seen.append(result.state)
    assert seen == ["created"] * len(world.sent)
    assert 0 < len(seen) < 900
    assert {state for state, _ in kept(world.path).values()} <= {"done", "waiting", "logged"}  # a note may be lost, no row
    _, report = await world.finish(drafts)
    assert report.already == len(seen)
    assert world.there == names(range(900))


async def test_notes_that_cannot_be_written_are_an_error_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are handed out; leaving the block says that the next run will find rows in doubt, which it resolves."""

    def failing(self: JournalFile, *arguments: Any) -> Any:
        raise JournalError("the disk is full")

    drafts = world.drafts(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(JournalFile, "record", failing)
        with pytest.raises(JournalError, match="the disk is full"):
            await world.finish(drafts)
    states, _ = await world.finish(drafts)
    assert states == {"0": "already", "1": "already"}
    world.service.assert_no_duplicates()


async def test_an_input_that_fails_leaves_a_resumable_journal(world: World) -> None:
    """What was read before it is created or left for the next run; nothing is in doubt."""

    def source() -> Any:
        yield from world.drafts(*range(7))
        raise OSError("the disk is gone")

    async with world.run(source()) as run:
        with pytest.raises(OSError, match="the disk is gone"):
            await run.wait()
    assert {state for state, _ in kept(world.path).values()} <= {"done", "waiting"}
    await world.finish(world.drafts(*range(9)))
    assert world.there == names(range(9))


@pytest.mark.parametrize("has_journal", [True, False])
async def test_a_slow_input_takes_no_place_for_good(has_journal: bool, path: Path) -> None:
    """Whether rows come one by one, at once, or are in doubt: in the end every place among those under way is free again."""

    async def source() -> AsyncIterator[CardDraft]:
        for index in range(12):
            for _ in range(index % 4):
                await asyncio.sleep(0)
            yield CardDraft(f"card {index}", "list")

    memory = Memory()
    memory.script = {"card 3": [LOST, LOST], "card 7": ["swallowed"], "card 8": [BadRequestError("400", 400)]}
    rows = source()
    plan = make_options(
        memory, rows, concurrency=3, journal=path if has_journal else None,
        board_id="board", unknown=None, marker=None, settle=0.0,
    )  # fmt: skip
    async with BulkRun(memory, rows, plan, []) as run:
        report = await run.wait()
        assert run._open._backlog.room == 2 * 3
    assert (report.created, report.failed) == (11, 1)


async def test_a_list_of_another_board_is_not_sent(world: World) -> None:
    """A draft whose list is not on the board fails without a request; with its list in place the next run sends it."""
    other = await world.session.boards.create("Other")
    elsewhere = (await world.session.lists.create("elsewhere", board_id=other.id)).id
    stray = CardDraft("card stray", elsewhere, reference="stray")
    async with world.run([stray, *world.drafts(0)], concurrency=1) as run:
        first, second = [result async for result in run]
    assert (first.state, second.state) == ("failed", "created")
    assert first.error is not None
    assert first.error.effect is Effect.NOT_SENT
    assert f"the list {elsewhere} is not on the board" in str(first.error)
    assert world.sent == ["0"]
    assert kept(world.path)["stray"][0] == "waiting"
    states, _ = await world.finish([attrs.evolve(stray, list_id=world.lists[0])])
    assert states == {"stray": "created"}


# --- cards in doubt within a run


async def test_a_card_in_doubt_is_looked_for(world: World) -> None:
    """Of lost answers the board tells which cards exist: those are created, the others are sent again; each exists once."""
    await world.session.cards.create("card 3", list_id=world.lists[1], desc="text")  # as if by hand, before
    first = len(world.sent) + 1
    for number, fault in {
        0: faults.drop(commit=True),
        3: faults.drop(),
        5: faults.status(503),
        7: faults.foreign_body(b"{}"),
        8: faults.truncated(),
    }.items():
        world.service.faults.add(fault, "cards.create", call=first + number)
    async with world.run(world.drafts(*range(12)), journal=None, concurrency=1) as run:
        results = [result async for result in run]
    assert {result.state for result in results} == {"created"}
    assert sorted(result.index for result in results) == list(range(12))
    for result in results:
        assert result.card is not None
        assert world.service.rules.cards[result.card.id].name == result.draft.name
    assert len({result.card.id for result in results if result.card}) == 12
    assert Counter(world.there) == Counter([*names(range(12)), "3"])
    report = run.report
    assert (report.created, report.unknown, report.requests) == (12, 0, 14)
    assert report.audit is not None
    assert (report.audit.confirmed, report.audit.recovered, report.audit.lost) == (12, 3, 0)
    assert report.audit.duplicated == report.audit.unexpected == ()


async def test_many_equal_rows_are_told_apart_by_their_number(world: World) -> None:
    """Of thirty equal rows as many exist in the end."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=range(2, 1000, 5))
    world.service.faults.add(faults.drop(), "cards.create", call=range(3, 25, 5))
    drafts = [CardDraft("card x", world.lists[0]) for _ in range(30)]
    async with world.run(drafts, journal=None) as run:
        assert (await run.wait()).created == 30
    assert len(world.there) == 30


async def test_settle_is_kept(moments: Moments) -> None:
    """The board is read, and a card sent again, no earlier than `settle` seconds after the last one in doubt was sent."""
    memory = Memory(moments, seconds=7.0)
    memory.script = {"b": [LOST], "d": [LOST, LOST]}
    results = await memory.results("abcdef", settle=60.0)
    assert {result.state for result in results} == {"created"}
    assert [len(memory.times(name)) for name in "abcdef"] == [1, 2, 1, 3, 1, 1]
    ended = memory.times("d")[0] + 7.0
    assert memory.read_at[1] == ended + 60.0  # after the baseline
    assert memory.times("b")[1] >= ended + 60.0
    assert memory.times("d")[2] == memory.times("d")[1] + 7.0 + 60.0
    assert moments.slept == [60.0 - 14.0, 60.0]


async def test_settle_counts_from_the_opening_for_earlier_runs(moments: Moments, path: Path) -> None:
    """Whoever sent a row of an earlier run has ended when the journal is opened: only then the waiting begins."""
    memory = Memory(moments)
    memory.script = {"a": ["hang"]}
    async with memory.run("a", journal=path):
        while not memory.sent:
            await asyncio.sleep(0)
    opened = moments.now = moments.now + 5000.0
    memory = Memory(moments)
    (result,) = await memory.results("a", journal=path, settle=33.0)
    assert result.state == "created"
    assert memory.read_at[0] >= opened + 33.0
    assert memory.times("a") == [memory.read_at[0]]


async def test_a_card_sent_by_this_run_is_created_by_it(moments: Moments, path: Path) -> None:
    """A row of an earlier run that was absent and is sent again counts for this run, also where it is found without an answer."""
    memory = Memory(moments)
    memory.script = {"a": ["hang"]}
    async with memory.run("a", journal=path):
        while not memory.sent:
            await asyncio.sleep(0)
    memory.script = {"a": ["swallowed"]}
    (result,) = await memory.results("a", journal=path)
    assert result.state == "created"
    assert result.card == memory.cards[0]
    assert [card.name for card in memory.cards] == ["a"]


async def test_a_service_that_changes_texts_gets_no_duplicates(moments: Moments) -> None:
    """What answers show is no matter: the listing tells which cards nobody has accounted for, and there is none."""

    class Trimming(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            made = await super().call(request, bulk)
            return attrs.evolve(made, desc=made.desc.strip()) if isinstance(made, Card) else made

    memory = Trimming(moments)
    memory.script = {"b": [LOST]}
    drafts = [CardDraft(name, "list", desc="text\n") for name in "abc"]
    results = {result.draft.name: result for result in await memory.results(drafts)}
    assert [results[name].state for name in "abc"] == ["created", "created", "created"]
    assert sorted(card.name or "" for card in memory.cards) == ["a", "b", "c"]
    assert len(memory.sent) == 4


async def test_the_default_settle_is_twice_the_timeout(moments: Moments) -> None:
    """At least ten seconds; a minute where calls have no deadline."""
    for timeout, expected in ((30.0, 60.0), (2.0, 10.0), (None, 60.0)):
        memory = Memory(moments)
        memory.timeout = timeout
        memory.script = {"a": [LOST]}
        moments.slept.clear()
        await memory.results("a", settle=None)
        assert moments.slept == [expected]


async def test_results_of_rows_in_doubt_press_back(moments: Moments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of cards that were in doubt count among those that wait: the input goes on once they were taken."""
    monkeypatch.setattr(_doubts, "_MOST_ROWS", 5)
    memory = Memory(moments)
    memory.script = {name: [LOST] for name in "abcde"}
    pulled = []

    def source() -> Iterator[CardDraft]:
        for name in "abcdefghij":
            pulled.append(name)
            yield CardDraft(name, "list")

    memory.cards.append(Card("known", "known", "", None, "list"))
    rows = source()
    plan = make_options(memory, rows, concurrency=1, journal=None, board_id="board", unknown=None, marker=None, settle=0.0)
    async with BulkRun(memory, rows, plan, []) as run:
        await let_run()
        assert (len(pulled), run.report.created) == (6, 6)  # one was taken meanwhile
        for taken in range(1, 8):
            await anext(run)
            await let_run()
            assert len(pulled) == 6 + max(0, taken - 4)


async def test_more_rows_in_doubt_than_are_kept(moments: Moments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the end of the input the board is read as well, whenever too many are in doubt."""
    monkeypatch.setattr(_doubts, "_MOST_ROWS", 10)
    doubtful = []

    class Watching(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            if request.operation == "boards.cards":
                doubtful.append(0 if run._open is None else len(run._open._doubts.rows))
            return await super().call(request, bulk)

    memory = Watching(moments)
    memory.script = {f"card {index}": ["swallowed" if index % 2 else LOST] for index in range(35)}
    run = memory.run([f"card {index}" for index in range(40)], concurrency=2)
    async with run:
        report = await run.wait()
    assert report.created == 40
    assert sorted(card.name or "" for card in memory.cards) == sorted(f"card {index}" for index in range(40))
    assert (doubtful[0], doubtful[-1]) == (0, 0)  # before the first row, and the audit
    assert all(10 <= count <= 14 for count in doubtful[1:4])  # the rows that were taken meanwhile come on top
    assert report.audit is not None
    assert (report.audit.recovered, report.audit.lost) == (17, 0)


async def test_a_card_is_sent_five_times_at_most(moments: Moments) -> None:
    """A card that is lost each time, and never found, was proven not to be done: it fails, and says what was last in its way."""
    memory = Memory(moments)
    memory.script = {"a": [LOST] * 9}
    results = {result.draft.name: result for result in await memory.results("ab")}
    assert results["b"].state == "created"
    error = results["a"].error
    assert error is not None
    assert (results["a"].state, error.effect) == ("failed", Effect.REJECTED)
    assert str(error) == "sent 5 times, and not on the board: lost on its way"
    assert len(memory.times("a")) == 5


async def test_a_board_that_proves_nothing_leaves_cards_unknown(moments: Moments) -> None:
    """Where cards of others are there and none of the run's is confirmed, nothing is sent again."""

    class Busy(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            if request.operation == "cards.create" and not self.cards:
                self.cards.append(Card("other", "c", "", None, "list"))
            return await super().call(request, bulk)

    memory = Busy(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"]}
    async with memory.run("ab") as run:
        results = {result.draft.name: result async for result in run}
    assert {name: result.state for name, result in results.items()} == {"a": "unknown", "b": "created"}
    assert "the card other may be it" in str(results["a"].error)
    assert len(memory.sent) == 2
    assert run.report.audit is not None
    assert [card.id for card in run.report.audit.unexpected] == ["other"]


async def test_a_board_that_cannot_be_read_leaves_cards_unknown(moments: Moments) -> None:
    """The run comes to its end all the same: what is in doubt is unknown, and there is no audit."""
    memory = Memory(moments)
    memory.script = {"a": [LOST]}
    async with memory.run("ab") as run:
        assert (await anext(run)).draft.name == "b"
        memory.unreadable = TransportError("reset")
        states = {result.draft.name: result.state async for result in run}
    assert states == {"a": "unknown"}
    assert run.report.audit is None


async def test_a_board_that_cannot_be_read_sends_nothing_again(moments: Moments) -> None:
    """The result of the card in doubt says why it is unknown, whatever else is raised."""
    memory = Memory(moments)
    memory.script = {"a": [LOST]}
    async with memory.run("ab") as run:
        assert (await anext(run)).draft.name == "b"
        memory.unreadable = TransportError("reset")
        result = await anext(run)
    assert result.state == "unknown"
    assert "the board could not be read: reset" in str(result.error)
    assert len(memory.times("a")) == 1


async def test_refused_credentials_end_the_run_while_the_board_is_read(moments: Moments, path: Path) -> None:
    """What ends a run when a card is sent ends it when the board is read: the card in doubt is unknown, and the 401 is raised."""
    memory = Memory(moments)
    memory.script = {"a": ["swallowed"]}
    states = {}
    async with memory.run("ab", journal=path) as run:
        memory.unreadable = AuthenticationError("401", 401)
        with pytest.raises(AuthenticationError):
            async for result in run:
                states[result.draft.name] = result.state
    assert states == {"a": "unknown", "b": "created"}
    assert kept(path) == {0: ("unknown", LOST.message), 1: ("done", "id 2")}
    memory.unreadable = None
    states = {result.draft.name: result.state for result in await memory.results("ab", journal=path)}
    assert states == {"a": "already", "b": "already"}
    assert len(memory.sent) == 2


async def test_a_fault_while_the_board_is_audited_is_raised(moments: Moments) -> None:
    """The cards are settled and handed out; what is no error of the service is for the owner of the run."""

    class Faulty(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            if request.operation == "boards.cards" and len(self.read_at) == 2:
                raise ZeroDivisionError
            return await super().call(request, bulk)

    memory = Faulty(moments)
    memory.script = {"a": [LOST]}
    seen = []
    async with memory.run("ab") as run:
        with pytest.raises(ZeroDivisionError):
            async for result in run:
                seen.append((result.draft.name, result.state))
    assert seen == [("b", "created"), ("a", "created")]


@pytest.mark.parametrize(
    ("lost", "states"), [("a", ["unknown", "unknown"]), ("ab", ["created", "created"]), ("", ["created"] * 2)]
)
async def test_rows_that_the_board_does_not_tell_apart(moments: Moments, path: Path, lost: str, states: list[str]) -> None:
    """Of rows that differ only in what it never shows nothing is sent again, unless all or none of them exist."""

    class Dateless(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            made = await super().call(request, bulk)
            if request.operation != "boards.cards":
                return made
            return iter([[attrs.evolve(card, due=None) for card in cards] for cards in made])

    memory = Dateless(moments)
    drafts = [
        CardDraft("weekly", "list", due=datetime(2027, 1, day, tzinfo=UTC), reference=name) for day, name in ((1, "a"), (8, "b"))
    ]
    memory.script = {"weekly": ["swallowed" if name in lost else LOST for name in "ab"]}
    results = await memory.results([*drafts, "other"], journal=path)
    found = {result.draft.reference: result for result in results}
    assert [found[name].state for name in "ab"] == states
    if "unknown" in states:
        assert all("the board shows no difference" in str(found[name].error) for name in "ab")
    assert len(memory.times("weekly")) == (4 if not lost else 2)
    assert Counter(card.due for card in memory.cards if card.name == "weekly") == Counter(
        draft.due for draft in drafts if lost != "a" or draft.reference == "a"
    )


async def test_report_sends_at_most_once(moments: Moments) -> None:
    """A card in doubt is unknown at once; nobody reads the cards of the board."""
    memory = Memory(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"], "c": [BadRequestError("400", 400)]}
    results = await memory.results("abcd", unknown="report")
    assert [(result.draft.name, result.state) for result in results] == [
        ("a", "unknown"), ("b", "unknown"), ("c", "failed"), ("d", "created"),
    ]  # fmt: skip
    assert len(memory.sent) == 4
    assert memory.read_at == []


async def test_resend_sends_at_least_once(moments: Moments) -> None:
    """A card in doubt is sent again after growing pauses, while others go on, five times at most."""
    memory = Memory(moments)
    memory.script = {"a": [LOST, "swallowed"], "b": [LOST] * 9}
    results = await memory.results("abcd", unknown="resend")
    assert {result.draft.name: result.state for result in results} == {
        "a": "created", "b": "unknown", "c": "created", "d": "created",
    }  # fmt: skip
    assert [len(memory.times(name)) for name in "abcd"] == [3, 5, 1, 1]
    pauses = Counter(timer.seconds for timer in moments.timers)
    assert pauses == {0.5: 2, 1.0: 2, 2.0: 1, 4.0: 1}
    assert Counter(card.name for card in memory.cards)["a"] == 2
    assert memory.read_at == []


async def test_stopping_keeps_the_doubt_of_a_card_that_waits_to_be_resent(moments: Moments, path: Path) -> None:
    """It was sent and may exist: its result is unknown, and so it is on record."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": ["swallowed"]}
    async with memory.run("ab", unknown="resend", journal=path) as run:
        assert (await anext(run)).draft.name == "b"
        run.stop()
        states = {result.draft.name: result.state async for result in run}
    assert (states, kept(path)[0][0]) == ({"a": "unknown"}, "unknown")


async def test_leaving_keeps_the_doubt_of_a_card_that_waits_to_be_resent(moments: Moments, path: Path) -> None:
    """A next run that sends at most once does not send it."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": ["swallowed"]}
    async with memory.run("ab", unknown="resend", journal=path) as run:
        await anext(run)
    await memory.results("ab", unknown="report", journal=path)
    assert len(memory.times("a")) == 1


async def test_leaving_keeps_the_doubt_of_an_earlier_run(moments: Moments, path: Path) -> None:
    """A run that is left before it sent a row again knows no more of it than before."""
    memory = Memory(moments)
    memory.script = {"a": ["swallowed"]}
    await memory.results("a", unknown="report", journal=path)
    async with memory.run("a", unknown="resend", journal=path) as run:
        while run._open._backlog._ready.empty():
            await asyncio.sleep(0)
    await memory.results("a", unknown="report", journal=path)
    assert len(memory.times("a")) == 1


async def test_a_faulty_marker_keeps_the_doubt_of_an_earlier_run(moments: Moments, path: Path) -> None:
    """A row that could not be sent again may exist as before."""
    memory = Memory(moments)
    memory.script = {"a": ["swallowed"]}
    await memory.results("a", unknown="report", journal=path, marker=lambda draft: "m")
    with pytest.raises(ValueError, match="marker must return"):
        await memory.results("a", unknown="resend", journal=path, marker=lambda draft: "")
    await memory.results("a", unknown="report", journal=path, marker=lambda draft: "m")
    assert len(memory.times("a")) == 1


async def test_refusals_do_not_count_for_cards_in_doubt(moments: Moments) -> None:
    """A card that was answered with 429 four times and then lost once is sent again, as any other."""
    memory = Memory(moments)
    memory.script = {"a": [REFUSED] * 4 + [LOST]}
    results = {result.draft.name: result.state for result in await memory.results("ab")}
    assert results == {"a": "created", "b": "created"}


async def test_a_service_that_changes_dates_gets_no_duplicates(moments: Moments) -> None:
    """Where an answer shows another date than was sent, absence proves nothing."""
    due = datetime(2027, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

    class Truncating(Memory):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            try:
                made = await super().call(request, bulk)
            finally:
                self.cards = [attrs.evolve(card, due=card.due and card.due.replace(microsecond=0)) for card in self.cards]
            return self.cards[-1] if isinstance(made, Card) else made

    memory = Truncating(moments)
    memory.script = {"b": ["swallowed"]}
    await memory.results([CardDraft(name, "list", due=due) for name in "ab"])
    assert len(memory.cards) == 2


# --- markers


async def test_markers_stand_in_the_description(world: World) -> None:
    """What the service gets is the description with the marker; the result shows the draft as it was given."""
    async with world.run(world.drafts(0), marker=lambda draft: f"no:{draft.reference}".replace(" ", "-")) as run:
        (result,) = [result async for result in run]
    assert result.draft == world.drafts(0)[0]
    (card,) = world.service.rules.cards.values()
    assert card.desc == "[no:row-0]\n\ntext\n\n[no:row-0]"
    assert world.reads() == 2  # what was there before, and in the end


async def test_by_marker_foreign_cards_of_equal_content_are_no_harm(world: World) -> None:
    """Somebody else adds the same cards meanwhile, and the service trims: each row exists once, recognised by its marker."""
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=range(3, 1000, 4))
    world.service.faults.add(faults.drop(), "cards.create", call=range(4, 20, 4))
    async with world.run(world.drafts(*range(16)), marker=True) as run:
        for number in range(16):
            world.service.rules.answer(
                "POST", "/1/cards", {}, {
                    "name": f"card {number}", "desc": "text", "idList": world.lists[number % 2],
                    "key": world.service.key, "token": world.service.token,
                },
            )  # fmt: skip
        report = await run.wait()
    assert (report.created, report.unknown) == (16, 0)
    assert Counter(Counter(world.there).values()) == {2: 16}
    assert sum("[bc" in card.desc for card in world.service.rules.cards.values()) == 16
    assert report.audit is not None
    assert report.audit.duplicated == ()


@pytest.mark.parametrize("made", [None, "", "a b", KeyError("mine")])
async def test_a_marker_that_is_none_ends_the_run(world: World, made: Any) -> None:
    """What the function does wrong is raised from the iteration; nothing of the row was sent."""

    def mark(draft: CardDraft) -> str:
        if isinstance(made, Exception):
            raise made
        return made

    async with world.run(world.drafts(0, 1), marker=mark) as run:
        with pytest.raises((TypeError, ValueError, KeyError)):
            await run.wait()
    assert world.sent == []


async def test_a_row_whose_marker_cannot_be_made_is_in_no_doubt(world: World) -> None:
    """Nothing was sent, and the journal says so."""
    async with world.run(world.drafts(0), marker=lambda draft: "") as run:
        with pytest.raises(ValueError, match="marker"):
            await run.wait()
    assert kept(world.path)["row 0"][0] == "waiting"


async def test_rows_of_one_reference_are_told_apart_without_a_journal(moments: Moments) -> None:
    """Two rows with the same reference either have markers of their own, or are refused as a journal does."""
    memory = Memory(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"]}
    await memory.results(
        [CardDraft("w", "list"), *(CardDraft(name, "list", reference="r") for name in "ab")], marker=True, unknown="reconcile"
    )
    assert sorted(card.name or "" for card in memory.cards) in (["a", "b", "w"], ["w"])


async def test_a_marker_that_is_another_each_time_makes_no_duplicate(moments: Moments) -> None:
    """What was sent is looked for, not what the function would say now."""
    numbers = iter(range(1000))
    memory = Memory(moments)
    memory.script = {"b": ["swallowed"]}
    await memory.results("ab", marker=lambda draft: f"m{next(numbers)}")
    assert len(memory.cards) == 2


@pytest.mark.parametrize("answer", [BadRequestError("400", 400), RateLimitError("429", 429, retry_after=3600.0)])
async def test_a_refusal_says_nothing_of_an_earlier_sending(moments: Moments, answer: BoardClientError) -> None:
    """A card in doubt that is sent again by the caller's choice, and then refused, is in doubt as before."""
    memory = Memory(moments)
    memory.script = {"a": ["swallowed", answer]}
    (result,) = await memory.results("a", unknown="resend")
    assert (result.state, len(memory.times("a"))) == ("unknown", 2)
    assert len(memory.cards) == 1
    assert result.error is not None
    assert result.error.__notes__[-1] == f"sent again: {answer}"


async def test_a_marker_may_be_an_object_that_is_empty(moments: Moments) -> None:
    """What is called for a marker is called, whatever else it is: a collection that is empty at first, say."""

    class Markers(list[str]):
        def __call__(self, draft: CardDraft) -> str:
            self.append(f"m-{draft.name}")
            return self[-1]

    memory, made = Memory(moments), Markers()
    memory.script = {"a": ["swallowed"]}
    results = await memory.results(["a", "b"], marker=made)
    assert {result.state for result in results} == {"created"}
    assert sorted(made) == ["m-a", "m-b"]
    assert sorted(card.desc or "" for card in memory.cards) == ["[m-a]", "[m-b]"]


async def test_one_marker_for_two_rows_makes_no_duplicate(moments: Moments) -> None:
    """Rows that share a marker, and no more, are unknown unless all or none of them exist."""
    memory = Memory(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"]}
    results = await memory.results(["w", "a", "b"], marker=lambda draft: "w" if draft.name == "w" else "same")
    assert {result.draft.name: result.state for result in results} == {"w": "created", "a": "unknown", "b": "unknown"}
    assert sorted(card.name or "" for card in memory.cards) == ["b", "w"]


async def test_rows_of_two_positions_are_two_rows(moments: Moments) -> None:
    """Of a card that was found nobody knows at which position it was to be: neither row is sent again."""
    memory = Memory(moments)
    memory.script = {"a": [LOST, "swallowed"]}
    results = await memory.results(["w", CardDraft("a", "list", pos="top"), CardDraft("a", "list", pos="bottom")])
    assert sorted(result.state for result in results) == ["created", "unknown", "unknown"]
    assert len(memory.times("a")) == 2


# --- the service's limit


async def test_a_refused_card_waits_as_long_as_it_was_told(moments: Moments) -> None:
    """Retry-After is the refused card's; the others go on meanwhile, and the run waits for it."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"b": [REFUSED]}
    async with memory.run("abcdef") as run:
        taken = [(await anext(run)).draft.name for _ in range(5)]
        assert taken == list("acdef")
        await let_run()
        assert run.take_ready() == []
        (timer,) = moments.timers
        assert timer.seconds == 30.0
        assert len(memory.times("b")) == 1
        moments.ring(timer)
        assert [result.draft.name async for result in run] == ["b"]
    assert memory.times("b")[1] >= memory.times("b")[0] + 30.0


async def test_a_refusal_without_a_time_is_the_pace_alone(moments: Moments) -> None:
    """Without Retry-After the card asks for its next turn at once."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError("429", 429)] * 3}
    (result,) = await memory.results("a")
    assert result.state == "created"
    assert [timer.seconds for timer in moments.timers] == [0.0] * 3


async def test_a_card_that_is_refused_for_too_long_fails(moments: Moments) -> None:
    """A card that would have to wait for more than five minutes since its first refusal fails; others are not concerned."""
    memory = Memory(moments)
    memory.script = {"a": [RateLimitError(f"429 {number}", 429, retry_after=80.0) for number in range(20)]}
    results = {result.draft.name: result for result in await memory.results("ab")}
    assert results["b"].state == "created"
    assert (results["a"].state, str(results["a"].error)) == ("failed", "429 3")
    first, *_, last = memory.times("a")
    assert len(memory.times("a")) == 4
    assert 240.0 <= last - first < 300.0


async def test_a_run_that_is_left_forgets_its_timers(moments: Moments, path: Path) -> None:
    """A refused card that waits is on record as not done, and no timer stays behind."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": [REFUSED]}
    async with memory.run("ab", journal=path) as run:
        await anext(run)
    assert [timer.is_cancelled for timer in moments.timers] == [True]
    assert kept(path)[0][0] == "waiting"


async def test_a_refused_card_of_a_run_that_stops_is_to_be_sent(moments: Moments, path: Path) -> None:
    """It was not done: the next run sends it."""
    moments.rings_at_once = False
    memory = Memory(moments)
    memory.script = {"a": [REFUSED]}
    async with memory.run("ab", journal=path) as run:
        await anext(run)
        run.stop()
        await run.wait()
    assert kept(path)[0][0] == "waiting"
    states = {result.draft.name: result.state for result in await memory.results("ab", journal=path)}
    assert states == {"a": "created", "b": "already"}
    assert len(memory.cards) == 2


async def test_a_pace_that_sessions_share_is_the_run_s(world: World) -> None:
    """A Pace as the session's limiter is told by the run, which makes none of its own; refused cards are sent again."""
    pace = Pace(start_rate=10_000.0)
    world.service.faults.add(faults.status(429), "cards.create", call=range(3, 6))
    async with world.service.session(limiter=pace) as session:
        run = attrs.evolve(world, session=session).run(world.drafts(*range(20)))
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (20, 23, 3)
    assert pace.limit is not None
    assert pace.in_flight == 0
    world.service.assert_no_duplicates()


async def test_a_fixed_number_of_workers_comes_through_a_limit(world: World) -> None:
    """Refused now and then, a run with a concurrency of its own creates each card once."""
    world.service.faults.add(faults.status(429, headers={"Retry-After": "0"}), "cards.create", call=range(4, 7))
    _, report = await world.finish(world.drafts(*range(20)), concurrency=8)
    assert (report.created, report.rejected, report.requests) == (20, 3, 23)
    world.service.assert_no_duplicates()


# --- what is told, and what is not


async def test_progress_of_a_resumed_run(world: World) -> None:
    """Each result is told once, with all states; a card in doubt is told when it is settled."""
    told: list[BulkProgress] = []
    world.service.faults.add(faults.status(400), "cards.create", call=1)
    drafts = world.drafts(*range(3))
    await world.finish(drafts, concurrency=1)
    world.service.faults.clear()
    world.service.faults.add(faults.status(500), "cards.create", call=4)
    drafts += world.drafts(3, 4)
    async with world.run(drafts, concurrency=1, unknown="report", on_progress=told.append) as run:
        await run.wait()
        assert run.progress == told[-1]
    assert [(one.done, one.already, one.failed, one.unknown, one.created, one.total) for one in told] == [
        (1, 0, 1, 0, 0, 5),
        (2, 1, 1, 0, 0, 5),
        (3, 2, 1, 0, 0, 5),
        (4, 2, 1, 1, 0, 5),
        (5, 2, 1, 1, 1, 5),
    ]
    report = run.report
    assert (report.created, report.already, report.failed, report.unknown, report.requests) == (1, 2, 1, 1, 2)


@pytest.mark.parametrize("how", ["already", "not on the board"])
async def test_a_failing_listener_ends_a_run_that_sends_nothing(how: str, moments: Moments, path: Path) -> None:
    """What `on_progress` raises is raised from the iteration, also where the row needs not be sent."""

    def fail(progress: BulkProgress) -> None:
        raise ZeroDivisionError

    memory = Memory(moments)
    drafts = [CardDraft(name, "list" if how == "already" else "another") for name in "ab"]
    await memory.results(drafts, journal=path)
    async with memory.run(drafts, fail, journal=path) as run:
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(1.0):
                await run.wait()


async def test_a_failing_listener_loses_no_card_that_was_sent(moments: Moments, path: Path) -> None:
    """Cards that are under way when it fails have their results, and are on record; the first error is raised."""

    def fail(progress: BulkProgress) -> None:
        raise ZeroDivisionError(progress.done)

    memory = Memory(moments)
    seen = []
    async with memory.run("abcdefgh", fail, journal=path, concurrency=3) as run:
        with pytest.raises(ZeroDivisionError, match="1"):
            async for result in run:
                seen.append(result.draft.name)
        assert run.report.created == len(seen)
    assert sorted(seen) == sorted(card.name or "" for card in memory.cards)
    assert {state for state, _ in kept(path).values()} <= {"done", "waiting"}
    report = Counter(result.state for result in await memory.results("abcdefgh", journal=path))
    assert report == {"already": len(seen), "created": 8 - len(seen)}


async def test_a_failing_listener_loses_no_card_in_doubt(moments: Moments) -> None:
    """Each card that was sent has a result, also where telling of one fails."""

    def fail(progress: BulkProgress) -> None:
        if progress.done == 2:
            raise ZeroDivisionError

    memory = Memory(moments)
    memory.script = {name: ["swallowed"] for name in "abc"}
    seen = []
    async with memory.run("abcd", fail) as run:
        with pytest.raises(ZeroDivisionError):
            async for result in run:
                seen.append(result.draft.name)
    assert sorted(seen) == ["a", "b", "c", "d"]


async def test_a_journal_that_fails_while_cards_are_settled_ends_the_run(
    moments: Moments, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card in doubt is unknown and is not sent again; the error of the journal is raised."""

    def failing(*arguments: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    memory = Memory(moments)
    memory.script = {"b": [LOST]}
    seen = {}
    with monkeypatch.context() as patch, pytest.raises(JournalError, match="disk I/O error"):
        async with memory.run("ab", journal=path) as run:
            patch.setattr(_format, "select_rows", failing)
            async for result in run:
                seen[result.draft.name] = result.state
    assert seen == {"a": "created", "b": "unknown"}
    assert len(memory.times("b")) == 1


@pytest.mark.parametrize("marker", [None, True])
async def test_nothing_secret_is_in_the_journal(world: World, marker: Any) -> None:
    """Neither key nor token, whatever the service throws back, stands in the file or beside it, during the run or after."""
    secrets = [world.service.token, world.service.key]
    echo = " and ".join(secrets).encode()
    for call, status in ((1, 400), (2, 500), (3, 403)):
        world.service.faults.add(faults.status(status, body=echo), "cards.create", call=call)
    found = []

    def look() -> None:
        for file in world.path.parent.iterdir():
            content = file.read_bytes()
            found.extend(secret for secret in secrets if secret.encode() in content or secret[-20:-2].encode() in content)

    async with world.run(world.drafts(*range(8)), marker=marker, unknown="report") as run:
        async for result in run:
            look()
            assert all(secret not in str(result.error) for secret in secrets)
    look()
    assert found == []
    assert b"card 1" not in world.path.read_bytes()  # nor what the cards say
    assert {state for state, _ in kept(world.path).values()} == {"done", "failed", "waiting", "unknown"}


async def test_a_journal_may_be_named_by_a_string(world: World) -> None:
    """A path is a string or a Path."""
    await world.finish(world.drafts(0), journal=str(world.path))
    assert (await world.finish(world.drafts(0)))[0] == {"0": "already"}


# --- giving the journal back


async def test_a_cancelled_run_gives_its_journal_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cancellation leaves the block, the next run can have the journal, however often it was cancelled."""
    closing, may_close = threading.Event(), threading.Event()
    close = JournalFile.close

    def slow(self: JournalFile) -> None:
        closing.set()
        may_close.wait()
        close(self)

    monkeypatch.setattr(JournalFile, "close", slow)

    async def consume() -> None:
        async with world.run(world.drafts(*range(9))):
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await world.service.received("cards.create", 1)
    task.cancel()
    while not closing.is_set():
        await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await let_run()
        assert not task.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    states, report = await world.finish(world.drafts(*range(9)))
    assert (len(states), report.created + report.already) == (9, 9)
    world.service.assert_no_duplicates()


async def test_cancelled_while_the_journal_is_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that was opened for a run that is cancelled meanwhile is given back before the cancellation leaves."""
    opening, may_open = threading.Event(), threading.Event()
    open_file = JournalFile.open.__func__  # type: ignore[attr-defined]  # -- a class method has it

    def slow(cls: type[JournalFile], *arguments: Any) -> JournalFile:
        opening.set()
        may_open.wait()
        return open_file(cls, *arguments)

    monkeypatch.setattr(JournalFile, "open", classmethod(slow))
    task = asyncio.create_task(world.run(world.drafts(0)).wait())
    while not opening.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await let_run()
    may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await world.run(world.drafts(0)).wait()).created == 1


async def test_an_input_that_hangs_keeps_no_journal(world: World) -> None:
    """The journal is given back before the cleanup of the input, which takes its time."""
    may_end = asyncio.Event()

    async def source() -> AsyncIterator[CardDraft]:
        try:
            for draft in world.drafts(*range(600)):
                yield draft
        finally:
            await may_end.wait()

    async def first() -> None:
        async with world.run(source()) as run:
            await anext(run)

    leaving = asyncio.create_task(first())
    await world.service.received("cards.create", 2)
    while (await asyncio.gather(world.run(world.drafts(*range(600))).wait(), return_exceptions=True))[
        0
    ].__class__ is JournalError:
        await asyncio.sleep(0)
    assert not leaving.done()
    may_end.set()
    await leaving
    assert sorted(world.there) == names(range(600))


async def test_rows_are_logged_ahead_of_the_workers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would wait for each commit gets more rows with the next; a slow consumer still holds the sending up."""
    admit, sizes = JournalFile.admit, []

    def counted(self: JournalFile, entries: Any, *arguments: Any) -> Any:
        sizes.append(len(entries))
        return admit(self, entries, *arguments)

    monkeypatch.setattr(JournalFile, "admit", counted)
    memory = Memory()
    names = [f"card {n}" for n in range(1200)]
    async with memory.run(names, journal=path, concurrency=1) as run:
        while len(memory.sent) < 1:
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(memory.sent) <= 2
        await run.wait()
    assert [name for name, _ in memory.sent] == names
    assert max(sizes) == 256
    assert len(sizes) <= 40
