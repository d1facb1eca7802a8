"""What a journal promises to those who run an import again: through `create_many`, `resolve` and the file itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from earlier_journals import make_earlier
from hypothesis import given, settings
from hypothesis import strategies as st

from boardclient import AsyncSession, BulkReport, CardDraft, JournalError
from boardclient.bulk import resolve
from boardclient.bulk.journal import note_undone, read_journal, read_rows, read_unknown
from boardclient.testing import BoardService, faults
from boardclient.testing.faults import Stage

MOST_REFUSED = 4
"""More refusals of row after row would be an outage, which a run waits out."""


@attrs.define
class Trial:
    """A board of a real service, and a journal."""

    service: BoardService
    session: AsyncSession
    path: Path
    board_id: str
    list_id: str

    def drafts(self, names: str, *, prefix: str | None = None) -> list[CardDraft]:
        """Return a draft for each letter, with references if a prefix is given."""
        return [
            CardDraft(name, self.list_id, reference=None if prefix is None else f"{prefix}{index}")
            for index, name in enumerate(names)
        ]

    async def run(self, drafts: Sequence[CardDraft], **options: Any) -> tuple[list[str], BulkReport]:
        """Import drafts, and return their states in the order of the input."""
        options = {"board_id": self.board_id, "settle": 0.0, "journal": self.path, "concurrency": 1, **options}
        async with self.session.cards.create_many(drafts, **options) as run:
            results = [result async for result in run]
        return [result.state for result in sorted(results, key=lambda result: result.index)], run.report

    async def cards(self) -> Counter[str | None]:
        """Return how many cards of each name there are."""
        return Counter(card.name for card in await self.session.boards.cards(self.board_id))


@contextlib.asynccontextmanager
async def trial_at(path: Path) -> AsyncIterator[Trial]:
    async with BoardService() as service, service.session() as session:
        board = await session.boards.create("Board")
        board_list = await session.lists.create("To Do", board_id=board.id)
        assert board.id
        assert board_list.id
        yield Trial(service, session, path, board.id, board_list.id)


@pytest.fixture
async def trial(path: Path) -> AsyncIterator[Trial]:
    async with trial_at(path) as trial:
        yield trial


# --- the same rows again


async def test_a_file_that_gains_a_reference_column_is_recognised(trial: Trial) -> None:
    """Rows that were known by their positions are known by their content; equal rows share their cards."""
    await trial.run(trial.drafts("abab"))
    again = trial.drafts("ababa", prefix="r")
    assert (await trial.run(again))[0] == ["already"] * 4 + ["created"]
    assert (await trial.run(list(reversed(again))))[0] == ["already"] * 5
    assert await trial.cards() == Counter("abaab")


async def test_references_that_were_renamed_are_refused(trial: Trial) -> None:
    """The error names both references, and nothing is sent twice."""
    await trial.run(trial.drafts("ab", prefix="old-"))
    with pytest.raises(JournalError, match="reference 'new-0' has the content of the row with the reference 'old-0'"):
        await trial.run(trial.drafts("ab", prefix="new-"))
    with pytest.raises(JournalError, match=r"position 0 .* has the content of the row with the reference 'old-0'"):
        await trial.run(trial.drafts("ab"))
    assert await trial.cards() == Counter("ab")


async def test_an_equal_row_that_comes_later_is_a_row_of_its_own(trial: Trial) -> None:
    """A file may grow by a row that reads like another one."""
    drafts = trial.drafts("ab", prefix="r")
    await trial.run(drafts)
    assert (await trial.run([*drafts, attrs.evolve(drafts[0], reference="r2")]))[0] == ["already", "already", "created"]
    assert (await trial.run([*drafts, attrs.evolve(drafts[0], reference="r2")]))[0] == ["already"] * 3
    assert await trial.cards() == Counter("aab")


@attrs.frozen
class RefusedCapitals:
    """A fault: cards whose names are in upper case are refused."""

    service: BoardService

    async def play(self, stage: Stage) -> None:
        """Refuse the card, or create it."""
        if self.service.calls[-1].body["name"].isupper():
            await faults.status(400).play(stage)
        else:
            await stage.reply_answer()


async def refuse(trial: Trial, names: str) -> None:
    """Run an import twice whose rows in upper case are refused."""
    trial.service.faults.add(RefusedCapitals(trial.service), "cards.create")
    for done in ("created", "already"):
        states, _ = await trial.run(trial.drafts(names))
        assert states == ["failed" if name.isupper() else done for name in names]
    trial.service.faults.clear()


@pytest.mark.parametrize(
    ("names", "mended"),
    [
        ("Ab", "b"),
        ("aBcDef", "acef"),
        ("ABccd", "ccd"),
        ("aBc", "acc"),  # the mended row equals another one
        ("aBCd", "aCd"),
        ("aBc", "acbd"),
        ("aB", "a"),
    ],
)
async def test_failed_rows_may_be_taken_out_of_a_file_without_references(trial: Trial, names: str, mended: str) -> None:
    """The rows behind them have other positions then. They are known by their content, and not sent again."""
    await refuse(trial, names)
    states, _ = await trial.run(trial.drafts(mended))
    assert states.count("already") == sum(map(str.islower, names))
    assert await trial.cards() == Counter(mended)
    assert (await trial.run(trial.drafts(f"{mended}x")))[0] == [*["already"] * len(mended), "created"]
    undo = await trial.session.cards.plan_undo(trial.path)
    assert (len(undo.unchanged), undo.kept) == (len(mended) + 1, [])


async def test_equal_rows_that_were_created_in_another_order_keep_theirs(trial: Trial) -> None:
    """The second of them was created first. A failed row before both is taken out."""
    trial.service.faults.add(faults.status(400), "cards.create", call=2)
    trial.service.faults.add(RefusedCapitals(trial.service), "cards.create")
    assert (await trial.run(trial.drafts("Xaba")))[0] == ["failed", "failed", "created", "created"]
    assert (await trial.run(trial.drafts("Xaba")))[0] == ["failed", "created", "already", "already"]
    assert (await trial.run(trial.drafts("aba")))[0] == ["already"] * 3


@given(data=st.data())
@settings(max_examples=settings.default.max_examples * 40 // 100, deadline=None)
def test_however_a_file_with_failed_rows_is_mended_each_row_has_one_card(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Failed rows are kept, changed or taken out, and rows are added at the end. Batches don't matter."""
    names = data.draw(st.text("abXY", max_size=8).filter(lambda text: sum(map(str.isupper, text)) < MOST_REFUSED))
    mended = "".join(data.draw(st.sampled_from([name, "", "a", "Z"])) if name.isupper() else name for name in names)
    mended += data.draw(st.text("abc", max_size=3))

    async def mend() -> None:
        async with trial_at(tmp_path_factory.mktemp("mended") / "cards.journal") as trial:
            await refuse(trial, names)
            for states, more in (({"already", "created"}, ""), ({"already"}, ""), ({"already", "created"}, "ba")):
                found, _ = await trial.run(iter(trial.drafts(mended + more)))
                assert set(found) <= states
                assert await trial.cards() == Counter(mended + more)

    asyncio.run(mend())


@pytest.mark.parametrize("version", [4, 5])
async def test_a_journal_of_an_earlier_format_is_resumed_and_undone(trial: Trial, version: int) -> None:
    """One of format 4 does not say which fields the service has shown. A lost row is found by the marker that was sent."""
    drafts = trial.drafts("abcde", prefix="r")
    trial.service.faults.add(faults.drop(commit=True), "cards.create", call=3)
    for call in (2, 5):
        trial.service.faults.add(faults.status(400), "cards.create", call=call)
    await trial.run(drafts, unknown="report", marker=True)
    states, _ = await trial.run(drafts, unknown="report", marker=True)
    assert states == ["already", "created", "unknown", "already", "created"]
    make_earlier(trial.path, version)
    assert (await trial.session.cards.plan_undo(trial.path)).kept == []
    make_earlier(trial.path, version)
    assert read_journal(trial.path).counts["done"] == 4
    assert (await trial.run([*drafts, *trial.drafts("f")], marker=True))[0] == [*["already"] * 5, "created"]
    assert await trial.cards() == Counter("abcdef")


# --- settled by hand


async def left_unknown(trial: Trial, drafts: Sequence[CardDraft]) -> None:
    """Run an import whose second row was sent and got no response."""
    trial.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    states, _ = await trial.run(drafts, unknown="report")
    assert states == ["created", "unknown", *["created"] * (len(drafts) - 2)]


@pytest.mark.parametrize("prefix", [None, "r"])
async def test_a_row_is_settled_with_its_card(trial: Trial, prefix: str | None) -> None:
    """The next run reports it as already there."""
    drafts = trial.drafts("abc", prefix=prefix)
    await left_unknown(trial, drafts)
    (card,) = [card for card in await trial.session.boards.cards(trial.board_id) if card.name == "b"]
    key = 1 if prefix is None else "r1"
    assert [resolve(trial.path, key, card_id=card.id) for _ in range(2)] == [True, False]  # again is once
    assert (await trial.run(drafts))[0] == ["already"] * 3
    assert await trial.cards() == Counter("abc")


async def test_a_row_is_settled_as_absent(trial: Trial) -> None:
    """The next run sends it, at the word of the person who looked."""
    drafts = trial.drafts("ab")
    trial.service.faults.add(faults.drop(), "cards.create", call=2)
    assert (await trial.run(drafts, unknown="report"))[0] == ["created", "unknown"]
    resolve(trial.path, 1, absent=True)
    assert (await trial.run(drafts, unknown="report"))[0] == ["already", "created"]
    assert await trial.cards() == Counter("ab")


async def test_what_a_person_has_settled_is_corrected_by_the_same_call(trial: Trial) -> None:
    """A card that was mistyped gives way to the right one, which no later run calls a second card. What a run has done stays."""
    drafts = trial.drafts("abc")
    trial.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    assert (await trial.run(drafts, unknown="report"))[0] == ["created", "unknown", "created"]
    own = next(card.id for card in await trial.session.boards.cards(trial.board_id) if card.name == "b")
    assert [resolve(trial.path, 1, **told) for told in ({"card_id": "f" * 24}, {"absent": True}, {"card_id": own})] == [True] * 3
    states, report = await trial.run(drafts)
    assert states == ["already"] * 3
    assert report.audit is not None
    assert report.audit.unexpected == report.audit.duplicated == ()
    resolve(trial.path, 1, absent=True)
    await trial.session.cards.delete(own)
    assert (await trial.run(drafts))[0] == ["already", "created", "already"]
    with pytest.raises(JournalError, match=r"position 1 .* is done, not in doubt"):
        resolve(trial.path, 1, absent=True)


async def test_only_what_is_in_doubt_can_be_settled(trial: Trial) -> None:
    """A slip of the hand changes nothing."""
    drafts = trial.drafts("abc")
    await left_unknown(trial, drafts)
    first = next(row.detail for row in read_rows(trial.path) if row.key == 0)
    for row, options, why in (
        (7, {"absent": True}, "does not have the row at position 7"),
        ("r1", {"absent": True}, "does not have the row with the reference 'r1'"),
        (0, {"absent": True}, "position 0 .* is done, not in doubt"),
        (1, {"card_id": first}, f"the card {first} is that of the row at position 0"),
    ):
        with pytest.raises(JournalError, match=why):
            resolve(trial.path, row, **options)  # type: ignore[arg-type]  # -- a table of arguments
    for key in (True, 1.0):
        with pytest.raises(TypeError, match="row must be a reference"):
            resolve(trial.path, key, absent=True)  # type: ignore[arg-type]  # -- SQLite would find position 1
    with pytest.raises(JournalError, match="does not have"):
        resolve(trial.path, 2**64, absent=True)
    for options in ({}, {"card_id": "c", "absent": True}, {"card_id": "a/b"}):
        with pytest.raises(ValueError):
            resolve(trial.path, 1, **options)  # type: ignore[arg-type]  # -- a table of arguments
    assert [row.state for row in read_rows(trial.path)] == ["done", "unknown", "done"]


async def test_unknown_rows_are_listed_beside_the_cards_that_may_be_theirs(trial: Trial) -> None:
    """The most similar card is suggested, unless two are alike or none is similar."""
    others = [
        {"id": f"{number:024x}", "name": name, "desc": "", "url": "", "idList": trial.list_id}
        for number, name in enumerate(["Zebra", "Buy Bread", "Buy Bread"], 900)
    ]

    def shape(operation: str, body: Any) -> Any:
        if operation != "boards.cards" or not body:  # others add cards once there is one
            return body
        return [*({**card, "name": card["name"].replace("milk", "milk!")} for card in body), *others]

    trial.service.rules.shape = shape
    for call in (2, 3, 4):
        trial.service.faults.add(faults.drop(commit=call == 2), "cards.create", call=call)
    names = ["First", "Buy milk", "Buy bread", "Walk", "Last"]
    states, _ = await trial.run([CardDraft(name, trial.list_id) for name in names])
    assert states == ["created", *["unknown"] * 3, "created"]
    found = read_unknown(trial.path)
    assert [(one.row.content.name, one.candidates[0].content.name, len(one.candidates)) for one in found[:2]] == [
        ("Buy milk", "Buy milk!", 4),
        ("Buy bread", "Buy Bread", 4),
    ]
    assert [one.suggestion and one.suggestion.content.name for one in found] == ["Buy milk!", None, None]


async def test_a_card_is_suggested_for_the_row_that_it_resembles_most(trial: Trial) -> None:
    """A person who takes all suggestions gives no row the card of another, nor one that a row has meanwhile."""
    trial.service.rules.shape = lambda operation, body: (
        [{**card, "name": card["name"].title()} for card in body] if operation == "boards.cards" else body
    )
    for call in (2, 3):
        trial.service.faults.add(faults.drop(commit=call == 3), "cards.create", call=call)
    names = ["First", "call customer 1", "call customer 2", "Last"]
    states, _ = await trial.run([CardDraft(name, trial.list_id) for name in names])
    assert states == ["created", "unknown", "unknown", "created"]
    lost, made = read_unknown(trial.path)
    assert made.candidates[0].likeness > lost.candidates[0].likeness
    assert (lost.suggestion, made.suggestion) == (None, made.candidates[0])
    resolve(trial.path, made.row.key, card_id=made.candidates[0].card_id)
    (lost,) = read_unknown(trial.path)
    assert (len(lost.candidates), lost.suggestion) == (1, None)


# --- undone


async def test_undone_rows_are_sent_again(trial: Trial) -> None:
    """Cards are deleted and noted, in any order, as often as it takes; a later import creates them anew."""
    drafts = trial.drafts("abc", prefix="r")
    await trial.run(drafts)
    made = {row.key: row.detail for row in read_rows(trial.path, "done")}
    assert all(row.content.name in "abc" for row in read_rows(trial.path))
    first = made["r0"]
    assert first is not None
    await trial.session.cards.delete(first)
    for _ in range(2):
        note_undone(trial.path, [first, "unknown"])
    assert read_journal(trial.path).counts["undone"] == 1
    states, report = await trial.run(drafts)
    assert states == ["created", "already", "already"]
    assert report.audit is not None
    assert report.audit.lost == 0
    assert await trial.cards() == Counter("abc")


@pytest.mark.parametrize("marker", [None, True])
async def test_a_card_that_was_undone_is_never_a_row_s_again(trial: Trial, marker: bool | None) -> None:
    """The listing may still show it when the response of the row's next card is lost: the card bears the marker of the first."""
    drafts = trial.drafts("abc", prefix="r")
    await trial.run(drafts, marker=marker)
    before = dict(trial.service.rules.cards)
    for card_id in before:
        await trial.session.cards.delete(card_id)
    note_undone(trial.path, [*before])
    trial.service.rules.cards.update(before)  # what was deleted is listed again
    trial.service.faults.add(faults.drop(), "cards.create", call=len(trial.service.calls_of("cards.create")) + 2)
    states, report = await trial.run(drafts, marker=marker)
    assert states == ["created", "created" if marker else "unknown", "created"]
    assert [row.detail for row in read_rows(trial.path, "done") if row.detail in before] == []
    assert await trial.cards() == Counter("aabbcc" if marker else "aabcc")
    assert report.audit is not None
    assert report.audit.is_sound is (marker is True)
