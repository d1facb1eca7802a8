"""What a journal keeps of how a service shows cards: it helps to recognise cards, and proves nothing."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reconcile_helpers import Board, card, confirm, note, row, verdicts

from boardclient import Card
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger, MemoryLedger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._affixes import Affixes
from boardclient.bulk.reconciliation._kept_rules import FACT, KeptRules
from boardclient.bulk.reconciliation._likeness import DateRule, TextRule
from boardclient.bulk.reconciliation._reconciler import Reconciler
from boardclient.bulk.reconciliation._shown import Content, Shown

LONG = "a name that is longer than what the listing shows"


def numbered(identifier: str, name: str, number: int) -> Card:
    """Return a card whose name the service has numbered, and cut."""
    return card(identifier, f"BOARD-{number}: {name}")


async def opened(path: Path, board: Board, rows: list[Row]) -> tuple[JournalLedger, Reconciler]:
    """Begin a run with a journal, whose rows are sent."""
    ledger = await JournalLedger.open(path, {"board": "b1"}, 8)
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    await ledger.admit(rows)
    for one in rows:
        ledger.release(one)
    return ledger, reconciler


async def taught(path: Path, board: Board, shown: list[Card], names: list[str]) -> None:
    """Do a run whose cards are listed in some form, and are deleted after it."""
    rows = [row(200 + number, name) for number, name in enumerate(names)]
    ledger, reconciler = await opened(path, board, rows)
    for one, made in zip(rows, shown, strict=True):
        board.cards.append(made)
        note(ledger, one, made)
        reconciler.note_created(one, made.id)
    await reconciler.audit()
    await ledger.aclose()
    del board.cards[1:]


NAMES = [f"card {number}" for number in range(5)]


async def test_a_later_run_recognises_cards_without_any_of_its_own(tmp_path: Path) -> None:
    """Names are numbered, and all cards of the run that has seen it are deleted."""
    board, path = Board(card("before", "before")), tmp_path / "journal"
    await taught(path, board, [numbered(f"k{n}", name, n) for n, name in enumerate(NAMES)], NAMES)
    rows = [row(0, "a"), row(1, "b"), row(2, "c")]
    ledger, reconciler = await opened(path, board, rows)
    board.cards += [numbered("1", "a", 17), numbered("2", "b", 18), numbered("9", "of somebody else", 19)]
    assert verdicts(await reconciler.settle(rows)) == {0: "1", 1: "2", 2: "unknown"}
    await ledger.aclose()


async def test_a_later_run_recognises_cards_that_are_cut(tmp_path: Path) -> None:
    """An earlier run has seen where names are cut. Those of the later run are too short to show it."""
    board, path = Board(card("before", "before")), tmp_path / "journal"
    names = [f"{number} {LONG}" for number in range(5)]
    await taught(path, board, [card(f"k{n}", name[:24]) for n, name in enumerate(names)], names)
    rows = [row(0, f"7 {LONG}"), row(1, f"8 {LONG}")]
    ledger, reconciler = await opened(path, board, rows)
    await confirm(ledger, board, reconciler)
    board.cards.append(card("7", f"7 {LONG}"[:24]))
    assert verdicts(await reconciler.settle(rows)) == {0: "7", 1: "open"}
    await ledger.aclose()


async def test_rules_that_cards_contradict_are_dropped(tmp_path: Path) -> None:
    """The service no longer numbers names: a row is not taken for a card that another rule would make its own."""
    board, path = Board(card("before", "before")), tmp_path / "journal"
    await taught(path, board, [numbered(f"k{n}", name, n) for n, name in enumerate(NAMES)], NAMES)
    rows = [row(0, "a")]
    ledger, reconciler = await opened(path, board, rows)
    await confirm(ledger, board, reconciler)
    board.cards.append(card("9", "BOARD-9: a"))
    assert verdicts(await reconciler.settle(rows)) == {0: "open"}
    kept = KeptRules.load(ledger.facts[FACT])
    assert kept is not None
    assert (kept.shown.name, kept.samples) == (TextRule(level=0), 1)
    await ledger.aclose()


async def test_kept_rules_prove_of_no_row_that_it_is_absent(tmp_path: Path) -> None:
    """Without a card of the run, any card may be the row's: the service may show names in another way now."""
    board, path = Board(card("before", "before")), tmp_path / "journal"
    await taught(path, board, [card(f"k{n}", name) for n, name in enumerate(NAMES)], NAMES)
    rows = [row(0, "a")]
    ledger, reconciler = await opened(path, board, rows)
    board.cards.append(card("9", "its name in another language"))
    assert verdicts(await reconciler.settle(rows)) == {0: "unknown"}
    await ledger.aclose()


async def test_few_cards_do_not_replace_what_many_have_shown(ledger: Ledger) -> None:
    """Rules from many cards are kept as long as few later ones fit them."""
    board = Board(card("before", "before"))
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    known = KeptRules(shown=_shown(name=TextRule(level=1, cut=24), due=DateRule()), samples=100)
    await ledger.set_fact(FACT, known.dump())
    reconciler = board.reconciler(ledger)
    await reconciler.prepare(reads_cards=True)
    await confirm(ledger, board, reconciler)
    await reconciler.audit()
    assert KeptRules.load(ledger.facts[FACT]) == known


# --- the text


def _shown(**fields: Any) -> Shown:
    return attrs.evolve(Shown.learn([], ["name", "desc", "list_id", "due"]), is_learned=True, **fields)


@pytest.mark.parametrize(
    "kept",
    [
        KeptRules(shown=_shown(), samples=0),
        KeptRules(shown=_shown(name=TextRule(), due=DateRule((0, 3)), has_lists=False), samples=7),
        KeptRules(shown=_shown(name=TextRule(level=2, cut=9)), samples=7),
        KeptRules(shown=_shown(desc=TextRule(level=1, affixes=Affixes(("", None, "-"), ("",)))), samples=7),
    ],
)
def test_rules_come_back_from_their_text(kept: KeptRules) -> None:
    """All that is kept is in the text; nothing is a credential or the text of a card."""
    assert KeptRules.load(kept.dump()) == kept


def test_kinds_of_characters_are_not_kept() -> None:
    """Kinds of characters prove rows absent, which only cards of the same listing may."""
    seen = attrs.evolve(_shown().name, seen=frozenset({"a"}), longest=30)
    kept = KeptRules.of(_shown(name=seen), 3)
    assert kept.shown.name == TextRule(level=0)


GOOD = json.loads(KeptRules(shown=_shown(), samples=1).dump())


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "null", "[]", "{}", '"x"']
    + [
        json.dumps({**GOOD, **bad})
        for bad in (
            {"version": 2},
            {"samples": -1},
            {"samples": "1"},
            {"name": None},
            {"name": {"level": 99, "cut": None, "affixes": None}},
            {"name": {"level": 0, "cut": "x", "affixes": None}},
            {"name": {"level": 0, "cut": None, "affixes": [["a"]]}},
            {"name": {"level": 0, "cut": None, "affixes": ["a", "b"]}},
            {"name": {"level": 0, "cut": None, "affixes": [[1], ["b"]]}},
            {"due": [99]},
            {"due": 1},
        )
    ],
)
def test_a_text_that_cannot_be_read_says_nothing(text: str | None) -> None:
    """A text of another version, or a damaged one, is dropped: the run learns anew."""
    assert KeptRules.load(text) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(
    st.sampled_from([*GOOD]), inner) | st.lists(inner)))  # fmt: skip
def test_no_text_breaks_a_run(values: Any) -> None:
    """Whatever is read is a rule or nothing."""
    kept = KeptRules.load(json.dumps({**GOOD, **values} if isinstance(values, dict) else values))
    if kept is not None:
        kept.shown.plain(card("1", "BOARD-1: a"))
        assert kept.shown.fits([(Content("a", "", "l1", None), card("1", "a"))]) in {True, False}


async def test_a_ledger_in_memory_keeps_rules_for_the_run() -> None:
    """Later readings of the run know what earlier ones have shown."""
    ledger = MemoryLedger()
    await ledger.set_fact(FACT, "text")
    assert ledger.facts == {FACT: "text"}
