"""A second run with the same journal: what is skipped, what is looked for, and what is refused."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from bulk_helpers import World, kept, names

from boardclient import BoardClientError, Card, Effect, JournalError, StaticCredentials
from boardclient.testing import BoardService, faults


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
    """After a run that ended, the existing card is "already", the other one is sent again; the rest is created."""
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
    assert {state for state, _ in kept(world.path).values()} == {"done", "waiting"}  # the one that was kept back


@pytest.mark.parametrize("has_board", [True, False])
@pytest.mark.parametrize("rows", [(9,), (9, *range(4)), (*range(4), 9)], ids=["gone", "later", "before"])
async def test_a_card_of_an_earlier_run_is_no_other_row_s(world: World, rows: tuple[int, ...], has_board: bool) -> None:
    """A service may answer a creation with a card that it takes for the same, wherever the input has the row of that card."""
    options: dict[str, Any] = {} if has_board else {"board_id": None}
    await world.finish(world.drafts(*range(4)), **options)
    older, *_ = world.service.rules.cards
    body = json.dumps({"id": older, "name": "card 9"}).encode()
    world.service.faults.add(faults.foreign_body(body), "cards.create", call=5)
    async with world.run(iter(world.drafts(*rows)), **options) as run:
        results = {result.draft.name: result async for result in run}
    new = results.pop("card 9")
    assert new.state == ("created" if has_board else "unknown")  # the board proves that the row has no card yet
    assert new.card is None or new.card.id != older
    assert {result.state for result in results.values()} <= {"already"}


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
            assert "the run ended before the response came" in str(error)
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
    """A run can reconcile what the last one reported, if the journal was begun with a baseline. New cards prove absence."""
    drafts = world.drafts(*range(4))
    await world.leave_in_doubt(drafts)
    states, _ = await world.finish(drafts, unknown="report")
    assert states == {"0": "unknown", "1": "unknown", "2": "created", "3": "created"}
    states, _ = await world.finish(drafts)
    assert states == {"0": "already", "1": "unknown", "2": "already", "3": "already"}  # no card is left that could prove it
    states, _ = await world.finish([*drafts, *world.drafts(4, 5)])
    assert states == {"0": "already", "1": "created", "2": "already", "3": "already", "4": "created", "5": "created"}
    assert world.there == names(range(6))


async def test_a_journal_begun_without_a_baseline_stays_unknown(world: World) -> None:
    """If the board was not read before the first row, content proves nothing, and nothing is sent again."""
    drafts = world.drafts(*range(3))
    await world.leave_in_doubt(drafts, unknown="report")
    async with world.run(drafts) as run:
        results = {result.index: result async for result in run}
    assert [results[index].state for index in range(3)] == ["unknown", "unknown", "created"]
    assert "give the next import a new journal and marker=True" in str(results[0].error)
    assert Counter(world.sent) == Counter("012")


@pytest.mark.parametrize("are_logged", [False, True])
async def test_cards_that_others_make_before_the_first_row_is_sent_are_no_row_s(world: World, are_logged: bool) -> None:
    """A first run was stopped, and what is there when a row is first sent was there before."""

    class Stopping:
        async def __aenter__(self) -> None:
            if are_logged and kept(world.path):
                run.stop()
                await asyncio.Event().wait()

        async def __aexit__(self, *error: object) -> None:
            return None

    drafts = world.drafts(*range(6))
    session = world.session.with_options(limiter=Stopping())
    run = session.cards.create_many(drafts, journal=world.path, board_id=world.board_id, settle=0.005)
    if not are_logged:
        run.stop()
    await run.wait()
    assert (bool(kept(world.path)), world.sent) == (are_logged, [])
    await world.session.cards.create(drafts[0].name, list_id=drafts[0].list_id, desc=drafts[0].desc)
    world.service.faults.add(world.service.faults.drop(), "cards.create", call=2)
    states, _ = await world.finish(drafts)
    assert set(states.values()) == {"created"}
    assert Counter(world.there) == Counter({"0": 2, **dict.fromkeys("12345", 1)})


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (None, True, r"cards known by 'what they say' \(now 'their marker'\)"),
        (lambda draft: draft.name.replace(" ", "-"), False, r"cards known by 'their marker' \(now 'what they say'\)"),
    ],
)
async def test_a_journal_without_markers_is_refused_with_them(world: World, first: Any, then: Any, message: str) -> None:
    """A journal begun with markers is refused without them, and vice versa: nothing is sent, and it stays usable."""
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
    """A row is identified by its reference at any position."""
    await world.finish(world.drafts(*range(8)))
    states, report = await world.finish(world.drafts(9, 7, 3, 0, 8, 1))
    assert states == {"9": "created", "8": "created", **dict.fromkeys("7301", "already")}
    assert report.requests == 2
    world.service.assert_no_duplicates()


async def test_without_references_rows_are_known_by_their_place(world: World) -> None:
    """The same input resumes; another order means other content, and ends the run before any of it is sent."""
    numbers = range(6)
    await world.finish(world.drafts(*numbers, reference=False))
    states, _ = await world.finish(world.drafts(*numbers, 6, reference=False))
    assert Counter(states.values()) == {"already": 6, "created": 1}
    async with world.run(world.drafts(1, 0, reference=False)) as run:
        with pytest.raises(JournalError, match=r"position 0 .* by an earlier run with another name and list: .*those behind it"):
            await run.wait()
    assert len(world.sent) == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "b"}, "name"),
        ({"desc": "b"}, "description"),
        ({"pos": "top"}, "position"),
        ({"due": datetime(2027, 1, 1, tzinfo=UTC), "name": "b"}, "name and due date"),
    ],
)
async def test_changed_content_ends_the_run(world: World, change: dict[str, Any], words: str) -> None:
    """A row that was sent may not change. The error names what has changed, and the results before it are returned."""
    drafts = world.drafts(*range(3))
    await world.finish(drafts)
    seen = []
    async with world.run([*drafts[:2], attrs.evolve(drafts[2], **change)], concurrency=1) as run:
        with pytest.raises(JournalError, match=f"'row 2' was sent by an earlier run with another {words}: "):
            async for result in run:
                seen.append(result.state)
    assert set(seen) <= {"already"}
    assert len(world.sent) == 3


async def test_a_reference_that_comes_twice_ends_the_run(world: World) -> None:
    """Two rows with one reference are refused."""
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
    """A journal belongs to the account, if the provider names it, and the service for which it was begun."""
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


async def test_a_board_that_cannot_be_read_at_the_start_frees_the_journal(world: World) -> None:
    """A run that can't begin raises why, sends nothing, and leaves the journal to the next."""
    world.service.faults.add(faults.status(401), "boards.lists")
    with pytest.raises(BoardClientError, match="401"):
        await world.run(world.drafts(0)).__aenter__()
    assert world.sent == []
    world.service.faults.clear()
    assert (await world.finish(world.drafts(0)))[0] == {"0": "created"}


async def test_identifiers_that_utf_8_cannot_encode_end_no_run(world: World) -> None:
    """A board may show cards with lone surrogates in their identifiers: each run ends, and nothing is sent again."""
    before = '{"id":"\\ud800","name":"Before","desc":""}'
    stranger = '{"id":"\\udc00","name":"\\udc00","desc":""}'
    faults_of = world.service.faults
    faults_of.add(faults.foreign_body(f"[{before}]".encode()), "boards.cards", call=1)
    faults_of.add(faults.foreign_body(f"[{before},{stranger}]".encode()), "boards.cards")
    faults_of.add(faults.drop(commit=True), "cards.create", call=1)
    for _ in range(2):
        states, report = await world.finish(world.drafts(0))
        assert states == {"0": "unknown"}
        (problem,) = report.problems
        assert isinstance(problem.error, BoardClientError)
        assert problem.error.effect is Effect.UNKNOWN
    assert len(world.sent) == 1
