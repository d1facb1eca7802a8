"""How rows are stored in a ledger: in batches with keys. A batch is stored once, and so is each reference of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from boardclient.bulk._life import FIXED
from boardclient.distributed._leases import COMMIT_SIZE, Lease, lease_of
from boardclient.errors import JournalError
from boardclient.models import CardDraft, DraftLike, as_draft, check_yields_rows
from boardclient.store._connection import Connection
from boardclient.store._rows import (
    PLACES,
    StoredRow,
    differing_field,
    digest_rows,
    dump_content,
    first_of,
    note_delivery,
    open_part,
    rows_by_number,
    rows_by_reference,
    rows_of,
)
from boardclient.store._tables import MOST_BYTES

_ROW: Final = (("seq", int), ("job", int), ("ref", str), ("content", str))
"""The states of rows whose cards exist or may exist, so that their content stays."""
_MOST_NAMED: Final = 10


def check_text(text: object, name: str) -> str:
    """Check that both kinds of database can store a name, a key or a reference.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty or too long, or holds a NUL or half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, not {type(text).__name__}")
    # PostgreSQL stores no NUL, and UTF-8 has no surrogates: https://www.postgresql.org/docs/current/datatype-character.html.
    if not text or "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"{name} must not be empty, and can't hold NUL or half of a surrogate pair")
    # A character has at most four bytes, so only long texts have to be encoded to be measured.
    if len(text) > MOST_BYTES // 4 and len(text.encode()) > MOST_BYTES:
        raise ValueError(f"{name} has more than {MOST_BYTES:,} bytes, which no index takes: use a digest of it")
    return text


def check_rows(rows: Iterable[DraftLike]) -> list[CardDraft]:
    """Check rows and their references.

    Raises:
        TypeError: one is not a draft, and none can be made of it.
        ValueError: a reference comes twice, or a value can't be stored.
    """
    check_yields_rows(rows, "rows")
    drafts: list[CardDraft] = []
    seen: set[str] = set()
    for index, row in enumerate(rows):
        draft = as_draft(row, f"row {index}")
        if draft.reference is not None:
            reference = check_text(draft.reference, f"the reference of row {index}")
            if reference in seen:
                raise ValueError(f"the reference {reference!r} comes twice: give each row one of its own")
            seen.add(reference)
        drafts.append(draft)
    return drafts


def key_of(drafts: Sequence[CardDraft]) -> str:
    """Return the key of rows that are identified by their references alone.

    Raises:
        ValueError: a row has none.
    """
    references = [draft.reference for draft in drafts]
    if None in references:
        raise ValueError("without a key each row needs a reference: give the batch a key, or each row a reference")
    return f"rows {digest_rows(drafts).hexdigest()}"


@attrs.frozen
class Batch:
    """A batch in a ledger.

    Attributes:
        part: The number of its part, None if other batches delivered all of its rows first.
        rows: The delivered rows, in order. Rows that other batches delivered first belong to their parts.
        lease: The right to send the rows of its part, if the part is new and was taken at once.
    """

    part: int | None
    rows: tuple[StoredRow, ...]
    lease: Lease | None = None


class RowsHeldError(JournalError):
    """Another worker holds rows whose content is to be replaced."""


def store_batch(
    connection: Connection,
    job: int,
    key: str,
    drafts: Sequence[CardDraft],
    *,
    owner: str | None = None,
    seconds: float = 0.0,
    since: float | None = None,
) -> Batch:
    """Store a batch within a transaction, or find its stored rows.

    A row whose reference the job has is not stored again. The content of rows that were not sent, or were refused, is replaced.
    With an `owner` a new part is taken for some seconds, and its first rows are logged. `since` is when the job's rows were
    announced, among which these are counted.

    Raises:
        JournalError: a row whose card may exist has other content, or the key has other rows. Roll the transaction back.
        RowsHeldError: another worker holds a row that is to be replaced.
    """
    digest, lease = digest_rows(drafts).hexdigest(), None
    references = sorted((draft.reference for draft in drafts if draft.reference is not None), key=str.encode)
    new = _new_rows(connection, job, drafts, references)
    part = connection.one("SELECT * FROM boardclient_parts WHERE job = ? AND key = ? {for update}", job, key)
    if part is None and new:
        # A row without a reference is identified by its position in the batch.
        places = new if len(references) < len(drafts) else range(len(new))
        part = _add_part(connection, job, key, digest, len(new), places[-1] + 1, owner, seconds)
        first = first_of(part.part)
        _fill_part(connection, part, places, [drafts[index] for index in new])
        lease = None if owner is None else lease_of(job, part, seconds)
    elif part is not None:
        first = first_of(part.part)
        if part.digest != digest:
            _extend(connection, part, digest, drafts, new)
        elif part.owner == owner is not None:  # the end of an earlier transaction was lost
            lease = lease_of(job, part, seconds)
    else:
        first = 0
    batch = Batch(None if part is None else part.part, _stored_rows_of(connection, job, first, drafts, references), lease)
    if since is not None:
        note_delivery(connection, job, key, digest, since, batch.rows)
    return _correct(connection, batch, drafts)


def _add_part(
    connection: Connection, job: int, key: str, digest: str, size: int, places: int, owner: str | None, seconds: float
) -> Any:
    """Add a part. With an owner it is taken, and as many of its rows are logged as one commit has."""
    if owner is None:
        statement = "INSERT INTO boardclient_parts (job, key, digest, size) VALUES (?, ?, ?, ?) RETURNING *"
        return connection.one(statement, job, key, digest, size)
    return connection.one(
        "INSERT INTO boardclient_parts (job, key, digest, size, logged, epoch, owner, lease, lease_until, began_at)"
        " VALUES (?, ?, ?, ?, ?, 1, ?, ?, {clock} + ?, {clock}) RETURNING *",
        job,
        key,
        digest,
        size,
        min(COMMIT_SIZE, places),
        owner,
        seconds,
        seconds,
    )


def _add_rows(connection: Connection, job: int, places: Mapping[int, CardDraft]) -> int:
    """Store rows by their numbers, and return how many were new: another batch may store some of them at the same moment."""
    values = [(seq, job, draft.reference, dump_content(draft)) for seq, draft in places.items()]
    values.sort(key=lambda row: (row[2] or "").encode())  # in one order, or two batches could wait for each other
    return len(connection.insert("INSERT INTO boardclient_rows", _ROW, values, "ON CONFLICT DO NOTHING RETURNING seq"))


def _extend(connection: Connection, part: Any, digest: str, drafts: Sequence[CardDraft], new: Sequence[int]) -> None:
    """Accept other rows for a key: any rows if all have references, otherwise the same number in the same places.

    Raises:
        JournalError: they are other rows.
    """
    stored, first, added = rows_of(connection, part.part), first_of(part.part), 0
    if all(row.ref is not None for row in stored) and all(draft.reference is not None for draft in drafts):
        free = stored[-1].seq + 1 if stored else first
        added = _add_rows(connection, part.job, {free + number: drafts[index] for number, index in enumerate(new)})
    else:
        given = {first + index: draft.reference for index, draft in enumerate(drafts)}
        if len(drafts) != len(stored) or any(row.ref != given.get(row.seq) for row in stored):
            raise JournalError(
                f"the ledger has other rows for {part.key!r}: {len(stored)} of them, and not these {len(drafts)}."
                " Give other rows a key of their own, or each row a reference"
            )
    connection.run("UPDATE boardclient_parts SET digest = ?, size = size + ? WHERE part = ?", digest, added, part.part)
    if added:
        open_part(connection, part.part)


def _new_rows(connection: Connection, job: int, drafts: Sequence[CardDraft], references: list[str]) -> list[int]:
    """Return the indexes of the drafts that the job may not have: those without a reference, or with a new one."""
    known = {row.ref for row in rows_by_reference(connection, job, references)}
    return [index for index, draft in enumerate(drafts) if draft.reference is None or draft.reference not in known]


def _fill_part(connection: Connection, part: Any, places: Iterable[int], drafts: Sequence[CardDraft]) -> None:
    """Store the rows of a new part, each in its place."""
    first = first_of(part.part)
    added = _add_rows(connection, part.job, {first + place: draft for place, draft in zip(places, drafts, strict=True)})
    # Fewer than the part was made for: another batch has brought some of their references at the same moment.
    if added != len(drafts):
        connection.run("UPDATE boardclient_parts SET size = ? WHERE part = ?", added, part.part)


def _stored_rows_of(
    connection: Connection, job: int, first: int, drafts: Sequence[CardDraft], references: list[str]
) -> tuple[StoredRow, ...]:
    """Return the stored rows, in the order of the drafts."""
    by_reference = {row.ref: row for row in rows_by_reference(connection, job, references)}
    numbers = [first + index for index, draft in enumerate(drafts) if draft.reference is None]
    by_number = {row.seq: row for row in rows_by_number(connection, numbers)}
    found = [
        by_number.get(first + index) if draft.reference is None else by_reference.get(draft.reference)
        for index, draft in enumerate(drafts)
    ]
    rows = tuple(row for row in found if row is not None)
    if len(rows) < len(found):
        raise JournalError("rows of the ledger are gone: put back a copy of it, and reconcile the job before anything else")
    return rows


def _correct(connection: Connection, batch: Batch, drafts: Sequence[CardDraft]) -> Batch:
    """Replace the content of rows that were never created, and return the batch with it.

    Raises:
        JournalError: rows that exist, or may exist, have other content.
        RowsHeldError: another worker holds some of them.
    """
    refused: list[str] = []
    changed: dict[int, str] = {}
    for index, (row, draft) in enumerate(zip(batch.rows, drafts, strict=True)):
        content = dump_content(draft)
        if row.content == content or (field := differing_field(row.content, content)) is None:
            continue
        if row.state in FIXED:
            name = f"row {index}" if row.ref is None else f"the reference {row.ref!r}"
            refused.append(f"{name} has another {field}")
        else:
            changed[row.seq] = content
    if refused:
        more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        raise JournalError(
            f"cards exist, or may exist, with other content: {', '.join(refused[:_MOST_NAMED])}{more}. Nothing was stored:"
            " give a changed row a reference or a key of its own, or deliver it as it was"
        )
    if not changed:
        return batch
    _take_from_others(connection, changed)
    for seq, content in sorted(changed.items()):
        connection.run("UPDATE boardclient_rows SET content = ? WHERE seq = ?", content, seq)
    rows = (row._replace(content=changed.get(row.seq, row.content)) for row in batch.rows)
    return attrs.evolve(batch, rows=tuple(rows))


def _take_from_others(connection: Connection, numbers: Iterable[int]) -> None:
    """Take rows from workers that were suspended for longer than their leases, which would send the old content.

    Raises:
        RowsHeldError: another worker holds some of them, or has sent them in the meantime.
    """
    parts = sorted({seq // PLACES for seq in numbers})
    statement = "SELECT part FROM boardclient_parts WHERE part {in ?} AND NOT {held} ORDER BY part {for update}"
    free = [found.part for found in connection.fetch(statement, parts)]
    rows = rows_by_number(connection, [*numbers])  # again, now that nobody else sends them
    if free != parts or any(row.state in FIXED for row in rows):
        raise RowsHeldError("another worker sends rows whose content is to be replaced: deliver them again when it has ended")
    taken = "UPDATE boardclient_parts SET epoch = epoch + 1, owner = NULL, lease_until = 0 WHERE part {in ?}"
    connection.run(taken, parts)
