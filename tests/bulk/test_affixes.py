"""What services put around names, such as numbers, and what they do to HTML tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reconcile_helpers import Board, begun, card, note, row, settled, verdicts

from boardclient import Card
from boardclient.bulk._ledger import Ledger
from boardclient.bulk.reconciliation._affixes import Affixes, learn_affixes
from boardclient.bulk.reconciliation._likeness import TextRule, learn_text, untagged
from boardclient.bulk.reconciliation._matching import match
from boardclient.bulk.reconciliation._shown import Content, Shown

NAMES = [f"card {number}" for number in range(6)]
WAYS = {
    "BOARD-12: name": lambda number, name: f"BOARD-{number}: {name}",
    "#12 name": lambda number, name: f"#{number} {name}",
    "name (12)": lambda number, name: f"{name} ({number})",
    "[inbox] name - 2f": lambda number, name: f"[inbox] {name} - {number:02x}f",
    "a different word each": lambda number, name: f"{'abcdef'[number]}: {name}",
}


def content(name: str, desc: str = "") -> Content:
    return Content(name, desc, "l1", None)


@pytest.mark.parametrize("way", [*WAYS])
def test_what_stands_around_names_is_learned(way: str) -> None:
    """Names are then compared without it, in the tidy form."""
    rule = learn_text([(name, WAYS[way](number, name)) for number, name in enumerate(NAMES)])
    assert rule.is_usable
    assert rule.level == 1
    assert rule.plain(WAYS[way](5, "Tom & Jerry")) == "tom & jerry"
    assert rule.plain("renamed") is None
    assert (rule.plain(None), rule.plain("")) == (None, "")


@pytest.mark.parametrize(
    "pairs",
    [
        [(name, f"{number}{name}") for number, name in enumerate(NAMES)],  # where the number ends is not known
        [(name, f"{name}{number}") for number, name in enumerate(NAMES)],
        [(name, f"card of {number}") for number, name in enumerate("uvwxyz")],
        [(name, "x" * 100 + f" {name}") for name in NAMES],
        [("", "#1 "), ("", "#2 ")],
        [("a", "a" * 20), ("a", "a" * 30)],
        [("card 1", "#1 card 1"), ("card 2", "two"), ("card 3", "three")],
    ],
)
def test_other_texts_have_no_affixes(pairs: list[tuple[str, str]]) -> None:
    """Then names say nothing."""
    assert learn_affixes(pairs, len(pairs) / 4) is None


@given(
    names=st.lists(st.text(st.sampled_from("ab 1-:#é"), min_size=1, max_size=6), min_size=1, max_size=6),
    before=st.text(st.sampled_from("ab1 -:#"), max_size=5),
    after=st.text(st.sampled_from("ab1 -:#"), max_size=5),
)
def test_what_is_learned_fits_most(names: list[str], before: str, after: str) -> None:
    """Whatever the names look like: all but a quarter have the affixes."""
    pairs = [(name, f"{before}{name}{after}") for name in names]
    affixes = learn_affixes(pairs, len(pairs) / 4)
    if affixes is not None:
        stripped = [affixes.strip(shown) for _, shown in pairs]
        assert stripped.count(None) * 4 <= len(pairs)
        assert all(text in shown for text, (_, shown) in zip(stripped, pairs, strict=True) if text is not None)


def test_an_empty_text_loses_the_space_beside_it() -> None:
    """What is shown of an empty description is the number alone."""
    assert Affixes(("", "no", ". ", None, ": "), ("",)).strip("no. 7:") == ""
    assert Affixes(("",), (" (", None, ")")).strip("(7)") == ""


def test_a_card_without_the_affix_may_be_any_rows() -> None:
    """One sample does not show what stands around others, so no card of another form proves a row absent."""
    shown = Shown.learn([(content("card 1"), card("k", "LIST: card 1"))], ["name", "desc", "list_id"])
    result = match([content("card 2")], ["2"], [card("1", "OTHER LIST: card 2")], shown)
    assert list(result.unclear) == [0]
    assert match([content("card 2")], ["2"], [card("1", "LIST: card 2")], shown).found[0].name == "LIST: card 2"
    assert match([content("card 2")], ["2"], [card("1", "LIST: card 3")], shown).absent == [0]


def test_a_description_without_the_affix_may_be_any_rows() -> None:
    """The same where only descriptions tell cards apart."""
    texts = [f"text of {number}, long enough" for number in range(6)]
    samples = [
        (content(name, text), card("k", "card", f"#{number}: {text}"))
        for number, (name, text) in enumerate(zip(NAMES, texts, strict=True))
    ]
    shown = Shown.learn(samples, ["name", "desc", "list_id"])
    assert not shown.name.is_usable
    for desc, expected in (
        ("odd: text of 9, long enough", "unclear"),
        ("#9: text of 8, long enough", "absent"),
        ("#9: text of 9, long enough", "found"),
    ):
        result = match([content("a", "text of 9, long enough")], ["a"], [card("1", "card", desc)], shown)
        assert [bool(result.found), bool(result.absent), bool(result.unclear)] == [
            expected == name for name in ("found", "absent", "unclear")
        ]


def test_texts_are_learned_from_those_that_say_something() -> None:
    """Most descriptions are empty; the others are shown in paragraphs, or replaced."""
    empty = [("", "")] * 9
    tagged = learn_text([*empty, *((f"text {n}", f"<p>text {n}</p>") for n in range(3))])
    assert (tagged.level, tagged.form("text 7"), tagged.affixes) == (3, tagged.form("<p>text 7</p>"), None)
    assert not learn_text([*empty, *((f"text {n}", "see there") for n in range(3))]).is_usable
    assert learn_text(empty).level == 0


def test_html_tags_may_be_taken_away() -> None:
    """A card that shows a name without its tags may be the row's, whatever else is taken away with them."""
    assert untagged("<b>Card</b> 5 &lt;3") == "card53"
    rule = TextRule(level=0)
    assert rule.pieces("<b>é 5</b>") == ["", "", "5", ""]
    shown = Shown.learn([(content("card 1"), card("k", "card 1"))], ["name", "desc", "list_id"])
    for name in ("5", "é 5", "b 5 b"):
        assert not match([content("<b>é 5</b>")], ["5"], [card("1", name)], shown).absent


# --- the audit


def made(number: int, name: str, identifier: str) -> Card:
    return card(identifier, f"BOARD-{number}: {name}")


async def test_second_cards_are_seen_where_names_are_numbered(ledger: Ledger) -> None:
    """Each card has a number of its own, also the one that a proxy made by repeating a request."""
    board = Board(card("before", "BOARD-0: z"))
    rows = [row(number, name) for number, name in enumerate(NAMES)]
    reconciler = await begun(ledger, board, [])
    await ledger.admit(rows)
    for number, one in enumerate(rows):
        board.cards.append(made(2 * number, one.draft.name, f"c{number}"))
        note(ledger, one, board.cards[-1])
        reconciler.note_created(one, f"c{number}")
    board.cards += [made(99, NAMES[3], "copy"), made(98, "of somebody else", "other")]
    audit = await reconciler.audit()
    assert [one.id for one in audit.duplicated] == ["copy"]
    assert ([one.id for one in audit.unexpected], audit.resembling, audit.hint) == (["other"], (), None)


async def test_cards_that_look_alike_are_named_with_a_hint(ledger: Ledger) -> None:
    """Where names are replaced, a second card looks like one of others, unless its description is a row's."""
    board = Board()
    rows = [row(number, name, desc=f"a long text {number}" if number % 2 else None) for number, name in enumerate(NAMES)]
    reconciler = await begun(ledger, board, [])
    await ledger.admit(rows)
    for number, one in enumerate(rows):
        board.cards.append(card(f"c{number}", f"T{number}", one.draft.desc or ""))
        note(ledger, one, board.cards[-1])
        reconciler.note_created(one, f"c{number}")
    board.cards += [card("copy", "T98", "a long text 1"), card("open", "T99"), card("other", "T97", "of somebody else")]
    audit = await reconciler.audit()
    assert [one.id for one in audit.duplicated] == ["copy"]
    assert [one.id for one in audit.unexpected] == ["open", "other"]
    assert [one.id for one in audit.resembling] == ["open"]
    assert "a proxy" in str(audit.hint)
    assert not audit.is_sound


async def test_rows_in_doubt_are_found_where_names_are_numbered(ledger: Ledger) -> None:
    """Others are sent again, and cards of others stay theirs."""
    board = Board(made(0, "z", "before"))
    rows = [row(number, name) for number, name in enumerate(NAMES)]
    doubted = [row(20, "lost"), row(21, "found"), row(22, "lost too")]
    reconciler = await begun(ledger, board, doubted)
    await ledger.admit(rows)
    for number, one in enumerate(rows):
        board.cards.append(made(2 * number, one.draft.name, f"c{number}"))
        note(ledger, one, board.cards[-1])
        reconciler.note_created(one, f"c{number}")
    board.cards += [made(33, "found", "f"), made(34, "of somebody else", "other")]
    assert verdicts(await settled(ledger, board, reconciler, doubted)) == {20: "absent", 21: "f", 22: "absent"}
