"""Rows of tables as drafts: what `csv.DictReader` and a data frame give is taken as it is."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas
import pytest

from boardclient import CardDraft
from boardclient.distributed import import_batch, open_job, plan
from boardclient.testing import BoardService


@pytest.mark.parametrize("source", ["csv", "data frame"])
async def test_rows_of_tables_are_drafts(service: BoardService, source: str) -> None:
    """Rows of csv.DictReader and of a data frame are created as they are. What has no value is not given."""
    board = service.seed({"To Do": []})
    todo = board.lists["To Do"]
    lines = ["name,list_id,due,reference", f"Ada,{todo},2027-01-31T17:00:00+01:00,r1", f"Alan,{todo},,r2"]
    rows: Any = csv.DictReader(lines)
    if source == "data frame":
        frame = pandas.DataFrame([*rows])
        frame["due"] = pandas.to_datetime(frame["due"].replace("", None), utc=True)
        rows = frame.to_dict("records")
    async with service.session() as session:
        report = await session.cards.create_many(rows, board_id=board.id).wait()
    assert report.created == 2
    assert [(card.name, card.due) for card in service.rules.cards.values()] == [("Ada", "2027-01-31T16:00:00Z"), ("Alan", None)]
    assert CardDraft.from_dict({"name": "n", "list_id": "l", "due": pandas.NaT, "desc": pandas.NA}) == CardDraft("n", "l")


@pytest.mark.parametrize("kind", ["DataFrame", "dict"])
async def test_what_yields_names_is_no_rows(service: BoardService, tmp_path: Path, kind: str) -> None:
    """A data frame yields its columns and a mapping its keys: each is refused, and the message says where rows are."""
    board = service.seed({"To Do": []})
    row = {"name": "Ada", "list_id": board.lists["To Do"]}
    given: Any = pandas.DataFrame([row]) if kind == "DataFrame" else row
    words = rf"must yield rows, and a {kind} yields names: those of a data frame are frame\.to_dict\('records'\)$"
    async with service.session() as session:
        with pytest.raises(TypeError, match=f"^drafts {words}"):
            session.cards.create_many(given)
        with pytest.raises(TypeError, match=f"^rows {words}"):
            await plan(given, board.id, tmp_path / "ledger")
        job = await open_job(board.id, tmp_path / "ledger")
        with pytest.raises(TypeError, match=f"^rows {words}"):
            await import_batch(job, "key", given, session=session)
    assert service.rules.cards == {}
