"""Journals of formats 4 and 5, which had tables of their own. Readers see them as those of today, and a writer converts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from boardclient.store._connection import Connection
from boardclient.store._tables import dump_ids

EARLIER: Final = frozenset({4, 5})
"""The formats that can be converted: one of format 4 does not say which fields the service has shown."""
_OLD: Final = ("meta", "rows", "outcomes", "resembling", "baseline", "first_numbers", "probes")
_VALUE: Final = "(SELECT value FROM main.meta WHERE name = '{0}') AS {0}"
_VALUES: Final = ("identity", "secret", "created_at", "inode", "path", "baseline", "total", "shown", "runs")
_FIRST: Final = "(SELECT nullif(first, f.seq) FROM main.first_numbers AS f WHERE f.seq = r.seq)"
_VIEWS: Final = {
    "jobs": (
        "1 AS job, 'journal' AS name, coalesce(json_extract(identity, '$.board'), '') AS board_id, identity, secret,"
        " json_object('created_at', created_at, 'inode', inode, 'path', path, 'baseline', baseline, 'total', total,"
        " 'shown', coalesce(shown, '')) AS options, runs AS owner FROM (SELECT {meta})"
    ),
    "parts": "0 AS part, 1 AS job, 'journal' AS key, '' AS digest, 0 AS size, 4294967296 AS logged, NULL AS in_doubt",
    "rows": "seq, 1 AS job, key AS ref, content, {first} AS marker FROM main.rows AS r",
    # Of one table, since SQLite would compute a join anew for each page of rows.
    "outcomes": (
        "seq, 1 AS job, state, coalesce(detail, '') AS detail, CASE WHEN state = 'done' AND detail IN"
        " (SELECT card_id FROM main.baseline) THEN 0 ELSE (SELECT run FROM main.rows AS r WHERE r.seq = o.seq) END AS at,"
        " (SELECT cards FROM main.resembling AS s WHERE s.seq = o.seq) AS resembling FROM main.outcomes AS o"
    ),
}
"""Each table of today, made of those of earlier formats."""


def show_as_this_format(connection: Connection) -> None:
    """Give a connection the tables of today as views of those that a journal of an earlier format has."""
    has_first_numbers = connection.value("SELECT 1 FROM main.sqlite_master WHERE name = 'first_numbers'")
    for name, columns in _VIEWS.items():
        text = columns.replace("{first}", _FIRST if has_first_numbers else "NULL").replace(
            "{meta}", ", ".join(map(_VALUE.format, _VALUES))
        )
        connection.run(f"CREATE TEMP VIEW boardclient_{name} AS SELECT {text}")


def convert(connection: Connection, statements: Sequence[str]) -> None:
    """Convert a journal within a transaction. Every row keeps its number and that of its marker.

    Processes of earlier versions fail after it, since they do not find their tables.
    """
    _remove_views(connection)
    for statement in statements:
        connection.run(statement)
    show_as_this_format(connection)
    for name in _VIEWS:
        columns = ", ".join(row.name for row in connection.fetch(f"PRAGMA temp.table_info(boardclient_{name})"))
        connection.run(f"INSERT INTO main.boardclient_{name} ({columns}) SELECT {columns} FROM temp.boardclient_{name}")  # noqa: S608 -- names of tables and columns
    _remove_views(connection)
    before = [row.card_id for row in connection.fetch("SELECT card_id FROM main.baseline")]
    connection.run("UPDATE boardclient_jobs SET baseline = ?", dump_ids(before))
    for name in _OLD:
        connection.run(f"DROP TABLE IF EXISTS main.{name}")


def _remove_views(connection: Connection) -> None:
    for name in _VIEWS:
        connection.run(f"DROP VIEW temp.boardclient_{name}")
