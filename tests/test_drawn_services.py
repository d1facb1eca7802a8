"""Reconciliation at services drawn by chance: no card twice, none said to exist that doesn't, one a row where it can be known."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from drawn_services import DATES, RECOGNISABLE, TEXTS, ServiceKind
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boardclient import Card, CardDraft, NotFoundError
from boardclient._operations import Request
from boardclient.bulk._ledger import MemoryLedger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._reconciler import Reconciler
from boardclient.models import BoardList

DUE = datetime(2027, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LISTS = ("l1", "l2")


@attrs.define
class Made:
    """A card of the service; `row` is the number of the row that made it, None for a card of others."""

    id: str
    name: str
    desc: str
    list_id: str
    due: datetime | None
    row: int | None
    is_changed: bool = False


class Service:
    """A service in memory, and the people who use it too."""

    def __init__(self, kind: ServiceKind) -> None:
        self.kind = kind
        self.cards: list[Made] = []
        self.every: dict[str, Made] = {}

    def create(self, name: str, list_id: str, desc: str | None, due: datetime | None, row: int | None) -> Made:
        made = Made(f"c{len(self.every)}", name, desc or "", list_id, due, row)
        self.every[made.id] = made
        self.cards.append(made)
        return made

    def show(self, made: Made) -> Card:
        kind = self.kind
        return Card(
            made.id,
            TEXTS[kind.name](made.name),
            TEXTS[kind.desc](made.desc),
            None,
            made.list_id if kind.shows_lists else None,
            None if made.due is None else DATES[kind.due](made.due),
        )

    async def call(self, request: Request[Any]) -> Any:
        if request.operation == "boards.lists":
            return [BoardList(identifier) for identifier in LISTS]
        if request.operation == "cards.get":
            made = self.every[request.path.removeprefix("/1/cards/")]
            if made not in self.cards:
                raise NotFoundError("404", 404)
            return self.show(made)
        shown = self.cards
        if self.kind.cap is not None:
            shown = shown[-self.kind.cap :] if self.kind.is_newest else shown[: self.kind.cap]
        return iter([[self.show(made) for made in shown]])


def draw_rows(chance: random.Random) -> list[CardDraft]:
    """Draw rows: mostly plain ones, some of each kind that services change, some twice."""
    special = [
        "{} ", " {}", "{}  with  spaces", "{}\twith a tab", "Tom & Jerry {}", "<b>{}</b>", "[{}]", "é {}", "e\u0301 {}", "ﬁne {}",
        "🎉 {}", "✓{}", "{} which is a name so long that services cut it", "UPPER {}", "{}\x07", "карточка {}", "*{}*_",
    ]  # fmt: skip
    count, rate = chance.randrange(1, 40), chance.choice([0.0, 0.1, 0.5])
    rows: list[CardDraft] = []
    for number in range(count):
        name = f"card {number}" if chance.random() > rate else chance.choice(special).format(number)
        desc = chance.choice([None, "", "text", f"text of {number}, which is long enough to be cut somewhere", "a & b [x]"])
        due = chance.choice([None, DUE + timedelta(days=number), (DUE + timedelta(hours=number)).replace(microsecond=0)])
        rows.append(CardDraft(name, chance.choice(LISTS), desc=desc, due=due))
        if chance.random() < 0.1:
            again = chance.choice(rows)
            rows.append(attrs.evolve(again, due=chance.choice([again.due, DUE])))
    return rows


class Run:
    """Runs of one input until nothing is in doubt, or nothing more can be known."""

    def __init__(
        self, seed: int, *, is_capped: bool = False, meddling: float = 0.0, strangers: float = 0.0, is_fickle: bool = False
    ) -> None:
        self.chance = chance = random.Random(seed)
        self.service = Service(ServiceKind.draw(chance, is_capped=is_capped))
        self.rows = draw_rows(chance)
        self.marking = chance.choice([None, True])
        self.loss = chance.choice([0.05, 0.3, 0.9])
        self.meddling, self.strangers, self.is_fickle = meddling, strangers, is_fickle
        self.kinds: dict[int, ServiceKind] = {}
        self.ledger = MemoryLedger()
        self.states: dict[int, tuple[str, str | None]] = {}
        self.reasons: list[str] = []
        self.unproven: set[str] = set()
        for number in range(chance.randrange(60) if is_capped else chance.choice([0, 0, 3, 20])):
            self.stranger(f"before {number}")

    def stranger(self, text: str) -> None:
        """Create a card on behalf of others."""
        self.service.create(f"of somebody else, {text}", self.chance.choice(LISTS), None, None, None)

    def meddle(self) -> None:
        """Rename, move or delete a card on behalf of others."""
        if self.service.cards and self.chance.random() < self.meddling:
            made = self.chance.choice(self.service.cards)
            made.is_changed = True
            match self.chance.choice(["rename", "move", "delete", "describe"]):
                case "rename":
                    made.name = "renamed by somebody"
                case "move":
                    made.list_id = self.chance.choice(LISTS)
                case "describe":
                    made.desc = "described by somebody"
                case "delete":
                    self.service.cards.remove(made)

    def forget(self) -> None:
        """Let the service show cards in another way, and people delete those of rows that are known, between two runs."""
        kind = ServiceKind.draw(self.chance)
        self.service.kind = attrs.evolve(kind, cap=self.service.kind.cap, is_newest=self.service.kind.is_newest)
        if self.chance.random() < 0.5:
            known = {card_id for _, card_id in self.states.values()}
            self.service.cards = [made for made in self.service.cards if made.id not in known]

    async def run(self) -> None:
        pending = [Row(index, draft) for index, draft in enumerate(self.rows)]
        for row in pending:
            row.seq = row.index
        baseline_is_read = False
        doubtful: list[Row] = []
        processes = self.chance.choice([1, 1, 2, 3])
        for process in range(processes):
            if process and self.is_fickle:
                self.forget()
            reconciler = Reconciler(self.service, "b", self.ledger, self.marking)
            if not baseline_is_read:
                await reconciler.prepare(reads_cards=True)
                baseline_is_read = True
            else:
                reconciler._board._baseline = await self.ledger.baseline()
            for index, (state, card_id) in self.states.items():
                if state == "created":
                    reconciler.note_known(pending[index], card_id or "")
            for row in pending:
                if row.index not in self.states and row not in doubtful:
                    if process < processes - 1 and self.chance.random() < 0.03:
                        break  # killed
                    self.send(row, reconciler, doubtful)
            rounds = 0
            while doubtful and rounds < 40:
                rounds += 1
                rows, doubtful = doubtful, []
                again: list[Row] = []
                for row, card, error, is_open in await reconciler.settle(rows):
                    if is_open:
                        doubtful.append(row)
                    elif card is not None:
                        self.confirm(row, card)
                    elif error is not None or row.sends > 30:
                        self.states[row.index] = "unknown", None
                        self.reasons.append(str(error))
                    else:
                        again.append(row)
                if doubtful and not again:
                    again = await self.without_proof(reconciler, doubtful)
                for row in again:
                    self.send(row, reconciler, doubtful)
            self.audit = await reconciler.audit()
            self.unproven |= {repr(draft) for draft in self.audit.unproven}
            doubtful += [pending[index] for index, (state, _) in self.states.items() if state == "unknown"]
            for row in doubtful:
                self.states.pop(row.index, None)
        for row in doubtful:
            self.states[row.index] = "unknown", None

    async def without_proof(self, reconciler: Reconciler, doubtful: list[Row]) -> list[Row]:
        """Choose the one row in doubt to send again as the run does, or record that all are unknown."""
        chosen = reconciler.choose(doubtful)
        if isinstance(chosen, Row):
            await reconciler.note_unproven(chosen)
            doubtful.remove(chosen)
            return [chosen]
        for row, _, error, _ in reconciler.give_up(doubtful, chosen):
            self.states[row.index] = "unknown", None
            self.reasons.append(str(error))
        doubtful.clear()
        return []

    def send(self, row: Row, reconciler: Reconciler, doubtful: list[Row]) -> None:
        draft = row.draft
        self.meddle()
        if self.chance.random() < self.strangers:
            self.stranger(f"{len(self.service.every)}")
        is_lost = self.chance.random() < self.loss
        row.sends += 1
        row.doubted_at = asyncio.get_running_loop().time()
        if is_lost and self.chance.random() < 0.5:
            doubtful.append(row)
            return
        made = self.service.create(draft.name, draft.list_id, reconciler.description(row), draft.due, row.index)
        if is_lost:
            doubtful.append(row)
        else:
            reconciler.note_created(row, made.id)
            self.confirm(row, Card(made.id))

    def confirm(self, row: Row, card: Card) -> None:
        self.states[row.index] = "created", card.id
        self.kinds[row.index] = self.service.kind
        self.ledger.settle(row, "created", card)

    # --- what became of it

    def look(self, made: Made | CardDraft, kind: ServiceKind) -> Hashable:
        """Return all that a service shows of a card, without markers."""
        due = None if made.due is None else DATES[kind.due](made.due)
        return TEXTS[kind.name](made.name), made.list_id, due

    @property
    def created(self) -> Counter[str]:
        """How many cards were made of each content."""
        return Counter(repr(self.rows[made.row]) for made in self.service.every.values() if made.row is not None)

    @property
    def duplicated(self) -> set[str]:
        """The contents sent again although their cards were there; but for those that people have changed, who knows."""
        changed = {repr(self.rows[made.row]) for made in self.service.every.values() if made.is_changed and made.row is not None}
        return {content for content, count in (self.created - Counter(map(repr, self.rows))).items() if count} - changed

    @property
    def untrue(self) -> list[int]:
        """The rows that are reported as created with a card of others, or without one."""
        found = []
        for index, (state, card_id) in self.states.items():
            made = self.service.every.get(card_id or "")
            row = None if made is None or made.row is None else self.rows[made.row]
            if state != "created":
                continue
            kind = self.kinds[index]
            if row is None or self.look(row, kind) != self.look(self.rows[index], kind):
                found.append(index)
        return found

    @property
    def lost(self) -> set[str]:
        """The contents of which there are fewer cards than rows."""
        return set(Counter(map(repr, self.rows)) - self.created)


def ran(seed: int, **options: Any) -> Run:
    """Draw a service and an input, and run it to the end."""
    run = Run(seed, **options)
    asyncio.run(run.run())
    return run


SEEDS = st.integers(0, 2**32)
EXAMPLES = settings(max_examples=200, deadline=None)


@EXAMPLES
@given(
    seed=SEEDS,
    is_capped=st.booleans(),
    meddling=st.sampled_from([0.0, 0.05]),
    strangers=st.sampled_from([0.0, 0.1]),
    is_fickle=st.booleans(),
)
@example(seed=234, is_capped=False, meddling=0.0, strangers=0.0, is_fickle=False)  # one name for all, and nothing confirmed
@example(seed=227, is_capped=False, meddling=0.0, strangers=0.0, is_fickle=False)  # puts a number before names
@example(seed=661, is_capped=False, meddling=0.0, strangers=0.1, is_fickle=False)  # a stranger's card looks like a row's
def test_no_card_is_created_twice_or_reported_although_it_does_not_exist(
    seed: int, is_capped: bool, meddling: float, strangers: float, is_fickle: bool
) -> None:
    """Whatever a service shows, however often runs are killed, and whatever others do meanwhile.

    That holds too if the service shows cards in another way in the next run, so that what was learned is wrong.

    Only where the listing ends at a number that is no usual page size, one row of a run may be, and its audit names it.
    """
    run = ran(seed, is_capped=is_capped, meddling=meddling, strangers=strangers, is_fickle=is_fickle)

    assert run.duplicated <= (set() if run.service.kind.cap in {None, 50} else run.unproven)
    assert not run.untrue
    assert {state for state, _ in run.states.values()} <= {"created", "unknown"}
    assert {index for index in range(len(run.rows)) if repr(run.rows[index]) in run.lost} <= {
        index for index, (state, _) in run.states.items() if state == "unknown"
    } | {index for index, row in enumerate(run.rows) if run.rows.count(row) > 1}


@EXAMPLES
@given(seed=SEEDS)
def test_each_row_has_one_card_if_the_listing_is_complete(seed: int) -> None:
    """A complete listing of plain names, shown in any recognisable way, among cards of others: nothing stays unknown."""
    run = Run(seed, strangers=0.1)
    run.rows = [CardDraft(f"card {number}", LISTS[number % 2], desc="text", due=DUE) for number in range(len(run.rows) + 4)]
    run.loss = 0.2
    kind = run.service.kind
    run.service.kind = attrs.evolve(kind, name=kind.name if kind.name in RECOGNISABLE else "as sent")
    run.service.create("row of before", "l1", None, None, None)
    asyncio.run(run.run())

    assert not run.duplicated
    if not any("exactly 50 cards" in why or "no card was confirmed" in why or "without proof" in why for why in run.reasons):
        assert not run.lost
        assert {state for state, _ in run.states.values()} == {"created"}
