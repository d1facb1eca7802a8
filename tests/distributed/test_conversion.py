"""A ledger of an earlier version is used as it is: its rows are those that they were."""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
from batch_world import open_board

from boardclient import AsyncSession, CardDraft, JournalError
from boardclient.bulk._content import secret_marker, with_marker
from boardclient.distributed import Job, import_batch, import_part, open_job, plan, reconcile, report, status
from boardclient.distributed._batches import digest_rows
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.testing import BoardService

_SECRET = b"0123456789abcdef0123456789abcdef"
_FORMAT_2 = (
    "CREATE TABLE boardclient_format (format INTEGER PRIMARY KEY)",
    (
        "CREATE TABLE boardclient_jobs (job TEXT PRIMARY KEY, digest TEXT, board_id TEXT NOT NULL, account TEXT, audit TEXT,"
        " options TEXT NOT NULL, secret {bytes} NOT NULL, identity TEXT, baseline {bytes}, is_draining BOOLEAN NOT NULL)"
    ),
    (
        "CREATE TABLE boardclient_parts (job TEXT NOT NULL, part INTEGER NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL,"
        " first BIGINT NOT NULL, size INTEGER NOT NULL, rows {bytes} NOT NULL, state TEXT DEFAULT 'open' NOT NULL,"
        " epoch INTEGER DEFAULT 0 NOT NULL, stalls INTEGER DEFAULT 0 NOT NULL, owner TEXT, lease_until {float} DEFAULT 0,"
        " done BIGINT DEFAULT 0 NOT NULL, failed BIGINT DEFAULT 0 NOT NULL, in_doubt BIGINT DEFAULT 0 NOT NULL,"
        " requests BIGINT DEFAULT 0 NOT NULL, rejected BIGINT DEFAULT 0 NOT NULL, seconds {float} DEFAULT 0 NOT NULL,"
        " began_at {float}, ended_at {float}, PRIMARY KEY (job, part), UNIQUE (job, key))"
    ),
    (
        "CREATE TABLE boardclient_events (id {id}, job TEXT NOT NULL, part INTEGER NOT NULL, epoch INTEGER NOT NULL,"
        " number INTEGER NOT NULL, outcomes TEXT NOT NULL, sent TEXT NOT NULL, UNIQUE (job, part, epoch, number))"
    ),
    (
        "CREATE TABLE boardclient_probes (job TEXT NOT NULL, number INTEGER NOT NULL, list_id TEXT NOT NULL, card_id TEXT,"
        " is_over BOOLEAN NOT NULL, PRIMARY KEY (job, number))"
    ),
)


@attrs.define
class World:
    """A service with a board, a session, and a ledger of format 2."""

    service: BoardService
    session: AsyncSession
    board_id: str
    list_id: str
    ledger: str

    async def change(self, work: Any) -> None:
        async with contextlib.aclosing(Database(self.ledger)) as database:
            await database.change(work)

    def drafts(self, names: str) -> list[CardDraft]:
        return [CardDraft(name, self.list_id) for name in names]

    def add_job(self, connection: Connection, name: str, *, digest: str | None = None) -> None:
        connection.run(
            "INSERT INTO boardclient_jobs (job, digest, board_id, options, secret, is_draining) VALUES (?, ?, ?, ?, ?, ?)",
            name,
            digest,
            self.board_id,
            json.dumps({"marker": digest is None, "settle": 0.2}),
            _SECRET,
            False,
        )

    def add_part(
        self, connection: Connection, job: str, part: int, key: str, first: int, rows: Sequence[CardDraft], **more: Any
    ) -> None:
        values = [[row.name, row.list_id, row.desc, None, row.pos, row.reference] for row in rows]
        columns = {"state": "open", "epoch": 0, "lease_until": 0.0, **more}
        connection.run(
            "INSERT INTO boardclient_parts (job, part, key, digest, first, size, rows, state, epoch, lease_until, owner)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            job,
            part,
            key,
            digest_rows(rows).hexdigest(),
            first,
            len(rows),
            zlib.compress(json.dumps(values).encode(), 1),
            *(columns[name] for name in ("state", "epoch", "lease_until")),
            "old worker",
        )

    def add_event(self, connection: Connection, job: str, part: int, outcomes: list[list[object]], sent: list[int]) -> None:
        statement = "INSERT INTO boardclient_events (job, part, epoch, number, outcomes, sent) VALUES (?, ?, 1, ?, ?, ?)"
        number = connection.value("SELECT count(*) FROM boardclient_events")
        connection.run(statement, job, part, number, json.dumps(outcomes), json.dumps(sent))


@pytest.fixture
async def world(ledger: str) -> AsyncIterator[World]:
    async with open_board() as place:
        made = World(*place, ledger)

        def make(connection: Connection) -> None:
            for statement in _FORMAT_2:
                connection.run(statement)
            connection.run("INSERT INTO boardclient_format (format) VALUES (2)")

        if "://" not in ledger:
            open(ledger, "x").close()
        await made.change(make)
        yield made


async def test_batches_of_an_earlier_version_are_resumed(world: World) -> None:
    """What has a card is not sent again, a row in doubt is found by its marker of then, and a reference has its one card."""
    job, rows = f"batches for board {world.board_id}", world.drafts("abcd")
    first = await world.session.cards.create("a", list_id=world.list_id, desc=with_marker(None, secret_marker(_SECRET, 1)))
    await world.session.cards.create("c", list_id=world.list_id, desc=with_marker(None, secret_marker(_SECRET, 3)))
    single = await world.session.cards.create("e", list_id=world.list_id, desc=with_marker(None, secret_marker(_SECRET, 5)))

    def fill(connection: Connection) -> None:
        world.add_job(connection, job)
        connection.run("UPDATE boardclient_jobs SET baseline = ?", zlib.compress(b"[]"))
        world.add_part(connection, job, -1, "", 0, [])
        world.add_part(connection, job, 0, "first", 0, rows, epoch=1)
        world.add_event(connection, job, 0, [], [1, 2, 3])
        world.add_event(connection, job, 0, [[1, "done", first.id], [2, "failed", "refused"]], [])
        world.add_part(connection, job, 1, "ticket-1", 4, world.drafts("e"), epoch=1, state="done")
        world.add_event(connection, job, 1, [[5, "done", single.id]], [])

    await world.change(fill)
    opened = await open_job(world.board_id, world.ledger, settle=0.2)
    assert opened.name == job
    assert [(part.key, part.done, part.failed, part.in_doubt) for part in await status(opened)] == [
        ("first", 1, 1, 1),
        ("ticket-1", 1, 0, 0),
    ]
    card = await world.session.cards.create(
        "e", list_id=world.list_id, board_id=world.board_id, reference="ticket-1", ledger=world.ledger, settle=0.2
    )
    assert card.id == single.id
    found = await import_batch(opened, "first", rows, session=world.session)
    assert (found.created, found.already, found.failed, found.unknown) == (2, 1, 0, 1)
    settled = await reconcile(opened, session=world.session)
    assert (settled.created, settled.already, settled.failed, settled.unknown) == (2, 3, 0, 0)
    names = Counter(card.name for card in await world.session.boards.cards(world.board_id))
    assert names == Counter("abcde")


async def test_a_planned_job_of_an_earlier_version_is_completed(world: World) -> None:
    """By its stored job, or planned again: the rows that were kept for its end are those of the last part."""
    name, rows = f"board {world.board_id}", world.drafts("abcdefghijkl")

    def fill(connection: Connection) -> None:
        world.add_job(connection, name, digest=digest_rows(rows).hexdigest())
        world.add_part(connection, name, 0, "0", 0, rows[:4], state="done")
        world.add_event(connection, name, 0, [[seq, "done", f"c{seq}"] for seq in range(1, 5)], [])
        world.add_part(connection, name, -1, "-1", 4, rows[4:])

    await world.change(fill)
    job = Job(ledger=world.ledger, name=name, board_id=world.board_id, parts=(0,), rows=12, since=7)
    await import_part(job, -1, session=world.session)
    assert (await report(job)).created == 12
    again = await plan(rows, world.board_id, world.ledger, settle=0.2)
    assert (again.parts, again.already) == ((0,), 12)
    assert len(world.service.calls_of("cards.create")) == 8


async def test_a_ledger_that_an_old_worker_uses_is_not_converted(world: World) -> None:
    """Once its lease has ended it is, and the old worker finds its tables no more."""

    def fill(connection: Connection) -> None:
        world.add_job(connection, "job")
        world.add_part(connection, "job", 0, "a", 0, world.drafts("a"), epoch=1, lease_until=time.time() + 30)

    await world.change(fill)
    with pytest.raises(JournalError, match="old worker of an earlier boardclient holds part 0 of 'job'"):
        await status(world.ledger)
    await world.change(lambda connection: connection.run("UPDATE boardclient_parts SET lease_until = 0"))
    assert [part.key for part in await status(world.ledger)] == ["a"]
    with pytest.raises(JournalError, match="boardclient_events"):
        await world.change(lambda connection: world.add_event(connection, "job", 0, [], [1]))


@pytest.mark.parametrize(
    "damage",
    ["UPDATE boardclient_events SET outcomes = 'x'", "UPDATE boardclient_parts SET rows = (SELECT secret FROM boardclient_jobs)"],
)
async def test_a_damaged_ledger_is_not_converted(world: World, damage: str) -> None:
    """It stays as it is, and the message names what is damaged."""

    def fill(connection: Connection) -> None:
        world.add_job(connection, "job")
        world.add_part(connection, "job", 0, "a", 0, world.drafts("a"), epoch=1)
        world.add_event(connection, "job", 0, [], [1])
        connection.run(damage)

    await world.change(fill)
    with pytest.raises(JournalError, match="is damaged"):
        await status(world.ledger)
    await world.change(lambda connection: connection.run("UPDATE boardclient_format SET format = 1"))
    with pytest.raises(JournalError, match="has format 1, not"):
        await status(world.ledger)
