"""Cards in doubt: what is reported, looked for and sent again, and what never."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from bulk_helpers import LOST, REFUSED, Memory, Moments, World, kept, names
from bulk_service import let_run
from virtual_loop import virtually

from boardclient import (
    AuthenticationError,
    BadRequestError,
    BulkRun,
    Card,
    CardDraft,
    CardResult,
    Effect,
    TransportError,
)
from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions
from boardclient.bulk import _doubts
from boardclient.bulk._doubts import Doubts
from boardclient.bulk._options import make_options
from boardclient.bulk._rows import Row
from boardclient.testing import faults


async def test_a_card_in_doubt_is_looked_for(world: World) -> None:
    """After lost responses the board shows which cards exist: those are created, the others are sent again; each exists once."""
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


async def test_of_many_equal_rows_as_many_cards_exist(world: World) -> None:
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
    memory.script = {"b": [LOST], "d": [LOST]}
    results = await memory.results("abcdef", settle=60.0)
    assert {result.state for result in results} == {"created"}
    assert [len(memory.times(name)) for name in "abcdef"] == [1, 2, 1, 2, 1, 1]
    ended = memory.times("d")[0] + 7.0
    assert memory.read_at[1] == ended + 60.0  # after the baseline
    assert memory.times("b")[1] >= ended + 60.0


async def test_settle_counts_from_the_opening_for_earlier_runs(moments: Moments, path: Path) -> None:
    """The run that sent a row has ended when the journal is opened. Only then the waiting begins."""
    memory = Memory(moments)
    memory.script = {"a": ["hang"]}
    async with memory.run("a", journal=path):
        while not memory.sent:
            await asyncio.sleep(0)
    opened = moments.now = moments.now + 5000.0
    memory = Memory(moments)
    await memory.results("ab", journal=path, settle=33.0)
    assert memory.read_at[0] >= opened + 33.0
    assert memory.times("a")[0] >= memory.read_at[0]


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_card_sent_by_this_run_is_created_by_it(names: str, moments: Moments, path: Path) -> None:
    """A row of an earlier run that was absent and is resent counts for this run, also if it is found without a response."""
    memory = Memory(moments)
    memory.script = {"a": ["hang"]}
    async with memory.run("a", journal=path):
        while not memory.sent:
            await asyncio.sleep(0)
    memory.script = {"a": ["swallowed"]}
    results = await memory.results(names, journal=path)
    assert {result.state for result in results} == {"created"}
    assert all(result.card in memory.cards for result in results)
    assert sorted(card.name or "" for card in memory.cards) == [*names]


async def test_a_service_that_changes_texts_gets_no_duplicates(moments: Moments) -> None:
    """The content of responses does not matter: the listing shows which cards are of unknown origin, and there are none."""

    class Trimming(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            made = await super().call(request, options)
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
    """Results of cards that were in doubt count as untaken: the input continues once they are taken."""
    monkeypatch.setattr(_doubts, "_MOST_ROWS", 5)
    memory = Memory(moments)
    memory.script = {name: [LOST] for name in "abcdeghijk"}
    pulled = []

    def source() -> Iterator[CardDraft]:
        for name in "abcdefghijklmnopqrst":
            pulled.append(name)
            yield CardDraft(name, "list")

    memory.cards.append(Card("known", "known", "", None, "list"))
    rows = source()
    plan = make_options(memory, rows, concurrency=1, journal=None, board_id="board", unknown=None, marker=None, settle=0.0)
    async with BulkRun(memory, rows, plan, []) as run:
        await let_run()
        before = len(pulled)
        untaken = run.report.created
        assert {name for name, _ in memory.sent if len(memory.times(name)) == 2} == {*"abcde"}
        assert (before, untaken) == (13, 7)  # f and l are created too, and m is kept back
        for taken in range(1, 11):
            await anext(run)
            await let_run()
            assert len(pulled) == before + max(0, taken - 5)


async def test_more_rows_in_doubt_than_are_kept(moments: Moments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the end of the input the board is read as well, whenever too many are in doubt."""
    monkeypatch.setattr(_doubts, "_MOST_ROWS", 10)
    doubtful = []

    class Watching(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            if request.operation == "boards.cards":
                doubts = None if run._open is None else run._open._doubts
                doubtful.append(0 if doubts is None else len(doubts.rows) - doubts.open)
            return await super().call(request, options)

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


async def test_a_card_that_is_proven_absent_five_times_fails(moments: Moments) -> None:
    """Each time another card is created after it. It is known not to exist, and the error says why the last request failed."""
    taken: asyncio.Queue[CardResult] = asyncio.Queue()

    async def source() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", "list")
        for name in "bcdefghijk":
            yield CardDraft(name, "list")
            await taken.get()

    memory = Memory(moments)
    memory.script = {"a": [LOST] * 9}
    rows = source()
    plan = make_options(memory, rows, concurrency=1, journal=None, board_id="board", unknown=None, marker=None, settle=60.0)
    results = {}
    async with BulkRun(memory, rows, plan, []) as run:
        async for result in run:
            results[result.draft.name] = result
            taken.put_nowait(result)
    assert {result.state for name, result in results.items() if name != "a"} == {"created"}
    error = results["a"].error
    assert error is not None
    assert (results["a"].state, error.effect) == ("failed", Effect.REJECTED)
    assert str(error) == "sent 5 times, and not on the board: lost on its way"
    assert len(memory.times("a")) == 5
    assert sorted(card.name or "" for card in memory.cards) == [*"bcdefghijk"]
    assert run.report.audit is not None
    assert run.report.audit.is_sound


async def test_a_board_that_proves_nothing_leaves_cards_unknown(moments: Moments) -> None:
    """Where cards of others are there and none of the run's is confirmed, nothing is sent again."""

    class Busy(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            if request.operation == "cards.create" and not self.cards:
                self.cards.append(Card("other", "c", "", None, "list"))
            return await super().call(request, options)

    memory = Busy(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"]}
    async with memory.run("ab") as run:
        results = {result.draft.name: result async for result in run}
    assert {name: result.state for name, result in results.items()} == {"a": "unknown", "b": "created"}
    assert "the card other may be its own" in str(results["a"].error)
    assert len(memory.sent) == 2
    assert run.report.audit is not None
    assert [card.id for card in run.report.audit.unexpected] == ["other"]


async def test_a_board_that_cannot_be_read_leaves_cards_unknown(moments: Moments) -> None:
    """The run ends all the same: rows in doubt are unknown, and there is no audit."""
    memory = Memory(moments)
    memory.script = {"a": [LOST]}
    async with memory.run("ab") as run:
        assert (await anext(run)).draft.name == "b"
        memory.unreadable = TransportError("reset")
        states = {result.draft.name: result.state async for result in run}
    assert states == {"a": "unknown"}
    assert run.report.audit is None
    assert run.report.audit_error is memory.unreadable


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
    async with memory.run("abc", journal=path) as run:
        memory.unreadable = AuthenticationError("401", 401)
        with pytest.raises(AuthenticationError):
            async for result in run:
                states[result.draft.name] = result.state
    assert states == {"a": "unknown", "b": "created"}
    assert kept(path) == {0: ("unknown", LOST.message), 1: ("done", "id 2"), 2: ("waiting", "not sent")}
    memory.unreadable = None
    states = {result.draft.name: result.state for result in await memory.results("abc", journal=path)}
    assert states == {"a": "already", "b": "already", "c": "created"}
    assert len(memory.sent) == 3


async def test_a_run_without_doubts_and_without_a_journal_reads_the_board_once(moments: Moments) -> None:
    """The audit reads the whole board, so it is left to runs that had cards in doubt, or have a journal."""
    memory = Memory(moments)
    async with memory.run("ab") as run:
        assert (await run.wait()).audit is None
    assert len(memory.read_at) == 1


async def test_a_fault_while_the_board_is_audited_is_raised(moments: Moments) -> None:
    """The cards are settled and their results returned; errors that are not the service's are raised to the owner of the run."""

    class Faulty(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            if request.operation == "boards.cards" and len(self.read_at) == 3:
                raise ZeroDivisionError
            return await super().call(request, options)

    memory = Faulty(moments)
    memory.script = {"a": [LOST]}
    seen = []
    async with memory.run("ab") as run:
        with pytest.raises(ZeroDivisionError):
            async for result in run:
                seen.append((result.draft.name, result.state))
    assert seen == [("b", "created"), ("a", "created")]


@pytest.mark.parametrize(
    ("lost", "states"), [("a", ["unknown", "unknown"]), ("ab", ["unknown", "unknown"]), ("", ["created"] * 2)]
)
async def test_rows_that_the_board_shows_alike_are_not_sent_again(
    moments: Moments, path: Path, lost: str, states: list[str]
) -> None:
    """Of rows that differ only in what it never shows nothing is sent again, unless none of them exists."""

    class Dateless(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            made = await super().call(request, options)
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
        assert all("which nothing tells apart" in str(found[name].error) for name in "ab")
    assert len(memory.times("weekly")) == (4 if not lost else 2)
    assert Counter(card.due for card in memory.cards if card.name == "weekly") == Counter(
        draft.due for draft in drafts if lost != "a" or draft.reference == "a"
    )


async def test_report_sends_at_most_once(moments: Moments) -> None:
    """A card in doubt is unknown at once, and the cards of the board are not read."""
    memory = Memory(moments)
    memory.script = {"a": [LOST], "b": ["swallowed"], "c": [BadRequestError("400", 400)]}
    results = await memory.results("abcd", unknown="report")
    assert [(result.draft.name, result.state) for result in results] == [
        ("a", "unknown"), ("b", "unknown"), ("c", "failed"), ("d", "created"),
    ]  # fmt: skip
    assert len(memory.sent) == 4
    assert memory.read_at == []


async def test_resend_sends_at_least_once(moments: Moments) -> None:
    """A card in doubt is sent again after growing pauses, at most five times, while others continue."""
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
    """A card that was sent and waits to be sent again may exist: stopping gives and logs it as unknown."""
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


@pytest.mark.parametrize("unknown", ["resend"])
async def test_refusals_do_not_count_for_cards_in_doubt(moments: Moments, unknown: str) -> None:
    """A card that got a 429 four times and then lost once is sent again, as any other."""
    memory = Memory(moments)
    memory.script = {"a": [REFUSED] * 4 + [LOST]}
    results = {result.draft.name: result.state for result in await memory.results("abc", unknown=unknown)}
    assert results == dict.fromkeys("abc", "created")


async def test_a_service_that_changes_dates_gets_no_duplicates(moments: Moments) -> None:
    """Where a response shows another date than was sent, absence proves nothing."""
    due = datetime(2027, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

    class Truncating(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            try:
                made = await super().call(request, options)
            finally:
                self.cards = [attrs.evolve(card, due=card.due and card.due.replace(microsecond=0)) for card in self.cards]
            return self.cards[-1] if isinstance(made, Card) else made

    memory = Truncating(moments)
    memory.script = {"b": ["swallowed"]}
    await memory.results([CardDraft(name, "list", due=due) for name in "ab"])
    assert len(memory.cards) == 2


@virtually
async def test_rows_of_an_earlier_run_do_not_prolong_the_wait() -> None:
    """The wait before the board is read begins with the run, and anew with each row in doubt that this run has sent."""
    loop, options = asyncio.get_running_loop(), SimpleNamespace(unknown="reconcile", settle_seconds=60.0)
    doubts = Doubts(cast("Any", options), cast("Any", None), cast("Any", None), [])
    await asyncio.sleep(50.0)
    earlier, sent = Row(0, CardDraft("a", "list")), Row(1, CardDraft("b", "list"))
    doubts.add(earlier, LOST)
    assert (doubts.settle_seconds, earlier.doubted_at) == (10.0, Row.doubted_at)
    sent.sends = 1
    doubts.add(sent, LOST)
    assert (doubts.settle_seconds, sent.doubted_at) == (60.0, loop.time())


async def test_a_card_that_is_absent_and_then_refused_has_failed(moments: Moments) -> None:
    """Once the board has shown that a card was not created, the refusal of its next request counts."""
    memory = Memory(moments)
    memory.script = {"b": [LOST, BadRequestError("400", 400)]}
    results = await memory.results("abc")
    assert {result.draft.name: result.state for result in results} == {"a": "created", "b": "failed", "c": "created"}


async def test_no_row_is_kept_back_while_the_input_is_waited_for(moments: Moments) -> None:
    """The input may wait for the results of the rows that were in doubt: all of them are sent again."""

    async def source() -> AsyncIterator[CardDraft]:
        for name in "wabc":
            yield CardDraft(name, "list")
        await asyncio.Event().wait()

    memory = Memory(moments)
    memory.script = {name: [LOST] for name in "abc"}
    rows = source()
    plan = make_options(memory, rows, concurrency=1, journal=None, board_id="board", unknown=None, marker=None, settle=60.0)
    async with BulkRun(memory, rows, plan, []) as run:
        taken: list[CardResult] = []
        for _ in range(5):
            await let_run()
            taken += run.take_ready()
        assert sorted(result.draft.name for result in taken) == [*"abcw"]
