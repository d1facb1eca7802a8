"""Bulk runs over real sockets at services that show cards in other ways than they were sent."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from drawn_services import ServiceKind

from boardclient import CardDraft
from boardclient.testing import BoardService, faults

DUE = datetime(2027, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NAMES = ("card {}", "card {} ", "Tom & Jerry {}", "é🎉 {}", "card {} whose name is so long that services cut it")


@pytest.mark.parametrize("seed", range(30))
async def test_no_card_is_created_twice_whatever_the_listing_shows(seed: int, tmp_path: Path) -> None:
    """Responses are lost before and after the commit: what the run reports is true, and no row has two cards."""
    chance = random.Random(seed)
    kind = ServiceKind.draw(chance, is_capped=seed % 5 == 4)
    texts = [
        (
            chance.choice(NAMES[:1] * 6 + NAMES).format(number),
            chance.choice([None, f"text of {number}"]),
            chance.choice([None, DUE + timedelta(hours=number)]),
        )
        for number in range(24)
    ]
    async with BoardService(shape=kind.shape) as service, service.session() as session:
        board = await session.boards.create("Launch", default_lists=True)
        home = (await session.boards.lists(board.id))[0]
        for number in range(chance.choice([0, 3, 45])):
            await session.cards.create(f"of before {number}", list_id=home.id)
        known = set(service.rules.cards)
        before = len(service.calls_of("cards.create"))
        for call in range(1, 40):
            if chance.random() < 0.3:
                service.faults.add(faults.drop(commit=chance.random() < 0.5), "cards.create", call=before + call)
        drafts = [CardDraft(name, home.id, desc=desc, due=due) for name, desc, due in texts]
        async with session.cards.create_many(
            drafts,
            concurrency=3,
            board_id=board.id,
            settle=0,
            marker=chance.choice([None, True]),
            journal=tmp_path / "journal" if seed % 2 else None,
        ) as run:
            results = [result async for result in run]
    made = {identifier: card for identifier, card in service.rules.cards.items() if identifier not in known}
    assert max(Counter(card.name for card in made.values()).values()) == 1
    assert len(results) == len(drafts)
    for result in results:
        exists = any(card.name == result.draft.name for card in made.values())
        assert result.state in {"created", "unknown"}
        assert exists or result.state == "unknown", (kind, result)
        assert result.card is None or made[result.card.id].name == result.draft.name
    assert run.report.audit is None or not run.report.audit.duplicated or run.report.unknown
