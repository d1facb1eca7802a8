"""Journals as earlier versions wrote them, made of those of today."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from pathlib import Path

_FORMAT_5 = """
CREATE TABLE first_numbers (seq INTEGER PRIMARY KEY, first INTEGER NOT NULL);
CREATE TABLE probes (number INTEGER PRIMARY KEY, list_id TEXT NOT NULL, card_id TEXT, is_over INTEGER NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE rows (seq INTEGER PRIMARY KEY, key NOT NULL UNIQUE, content TEXT NOT NULL, run INTEGER NOT NULL);
CREATE TABLE outcomes (
  seq INTEGER PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('done', 'failed', 'waiting', 'unknown', 'undone')),
  detail TEXT
);
CREATE TABLE resembling (seq INTEGER PRIMARY KEY, cards TEXT NOT NULL);
CREATE TABLE baseline (card_id TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO first_numbers SELECT seq, marker FROM boardclient_rows WHERE marker IS NOT NULL;
INSERT INTO rows SELECT r.seq, ref, content, coalesce(at, owner + 0) FROM boardclient_rows AS r
  LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq JOIN boardclient_jobs;
INSERT INTO outcomes SELECT o.seq, state, detail FROM boardclient_outcomes AS o JOIN boardclient_rows AS r ON r.seq = o.seq;
INSERT INTO resembling SELECT seq, resembling FROM boardclient_outcomes WHERE resembling IS NOT NULL;
INSERT OR IGNORE INTO baseline SELECT detail FROM boardclient_outcomes WHERE state = 'undone';
INSERT INTO meta SELECT 'runs', owner + 0 FROM boardclient_jobs;
INSERT INTO meta SELECT 'identity', identity FROM boardclient_jobs;
INSERT INTO meta SELECT 'secret', secret FROM boardclient_jobs;
INSERT INTO meta SELECT key, value FROM boardclient_jobs, json_each(options);
DROP TABLE boardclient_jobs;
DROP TABLE boardclient_parts;
DROP TABLE boardclient_rows;
DROP TABLE boardclient_outcomes;
PRAGMA user_version = 5;
"""
_FORMAT_4 = "DELETE FROM meta WHERE name = 'shown'; DROP TABLE probes; PRAGMA user_version = 4;"


def make_earlier(path: Path, version: int) -> None:
    """Turn a journal of today into one of an earlier format."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ((stored,),) = connection.execute("SELECT baseline FROM boardclient_jobs").fetchall()
        connection.executescript(_FORMAT_5)
        before = [] if stored is None else json.loads(zlib.decompress(stored))
        connection.executemany("INSERT OR IGNORE INTO baseline VALUES (?)", [(card_id,) for card_id in before])
        if version == 4:
            connection.executescript(_FORMAT_4)
            if connection.execute("SELECT 1 FROM first_numbers").fetchone() is None:  # as before there were any
                connection.execute("DROP TABLE first_numbers")
