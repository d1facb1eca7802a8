"""A journal that crashes at any moment agrees with a dictionary that doesn't."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from journal_helpers import ALL, IDENTITY, Sending, crash, entry

from boardclient import JournalError
from boardclient.bulk.journal import _file
from boardclient.bulk.journal._format import Entry, RowDecision, RowKey, RowOutcome, RowState

# Crashes


class Memory:
    """What the file has to remember: a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, tuple[int, bytes, RowState, str | None]] = {}
        self.met: set[RowKey] = set()
        self.baseline: set[str] | None = None

    def admit(self, batch: Sequence[Entry]) -> list[RowDecision] | None:
        keys = [key for key, _ in batch]
        if len(set(keys)) < len(keys) or self.met & set(keys):
            return None
        for key, digest in batch:
            if key in self.rows and self.rows[key][1] != digest and self.rows[key][2] not in ("failed", "waiting"):
                return None
        self.met |= set(keys)
        return [self._admit_one(key, digest) for key, digest in batch]

    def _admit_one(self, key: RowKey, digest: bytes) -> RowDecision:
        seq, known, state, detail = self.rows.get(key, (len(self.rows) + 1, digest, "waiting", None))
        if state == "waiting" or (state == "failed" and known != digest):
            self.rows[key] = (seq, digest, "logged", None)
            return RowDecision(seq, "send")
        return RowDecision(seq, "doubtful" if state in ("logged", "unknown") else state, detail)


class JournalMachine(RuleBasedStateMachine):
    """Drive a file and a dictionary alike, through crashes and reopenings."""

    keys = st.sampled_from([*range(8), *"abcdefgh", "5", ""])

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "cards.journal"
        self.memory = Memory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_file, "_RECENT", 4)  # so that every key goes through the index soon,
        self.patch.setattr(_file, "_INDEXED_PER_ENTRY", 1)  # and in several steps
        self.journal = Sending.open(self.path, IDENTITY)

    @initialize(ids=st.none() | st.sets(st.sampled_from("abc")))
    def look_at_the_board(self, ids: set[str] | None) -> None:
        if ids is not None:
            self.journal.set_baseline(ids)
        self.memory.baseline = ids

    def _outcomes(self, drawn: list[tuple[RowKey, Any, str | None]]) -> list[RowOutcome]:
        """Record what is drawn in the dictionary, and return it for the file."""
        outcomes = []
        for key, state, detail in drawn:
            if key in self.memory.rows:
                seq, digest, *_ = self.memory.rows[key]
                self.memory.rows[key] = (seq, digest, state, detail)
                outcomes.append((seq, state, detail))
        return outcomes

    ended = st.tuples(keys, st.sampled_from(["done", "failed", "waiting", "unknown"]), st.none() | st.text(max_size=3))

    @rule(
        batch=st.lists(st.tuples(keys, st.sampled_from(["one", "one", "one", "two"])), max_size=5, unique_by=lambda row: row[0]),
        drawn=st.lists(ended, max_size=3),
    )
    def admit(self, batch: list[tuple[RowKey, str]], drawn: list[tuple[RowKey, Any, str | None]]) -> None:
        rows = [entry(key, content) for key, content in batch]
        outcomes = self._outcomes(drawn)
        expected = self.memory.admit(rows)
        if expected is None:
            with pytest.raises(JournalError):
                self.journal.admit(rows, outcomes)
        else:
            assert self.journal.admit(rows, outcomes) == expected

    @rule(drawn=st.lists(ended, max_size=4))
    def record(self, drawn: list[tuple[RowKey, Any, str | None]]) -> None:
        self.journal.record(self._outcomes(drawn))

    @rule()
    def end_and_resume(self) -> None:
        self.journal.close()
        self._resume()

    @rule()
    def crash_and_resume(self) -> None:
        self.path, crashed = crash(self.path), self.journal
        crashed.close()
        self._resume()

    def _resume(self) -> None:
        run = self.journal._run
        self.journal = Sending.open(self.path, IDENTITY)
        assert self.journal._run == run + 1
        self.memory.met = set()

    @invariant()
    def file_and_dictionary_agree(self) -> None:
        held = {row.key: (row.seq, row.digest, row.state, row.detail) for row in self.journal.rows(ALL)}
        assert held == self.memory.rows
        known = self.memory.baseline
        assert self.journal.baseline == (None if known is None else len(known))
        assert set(self.journal.baseline_ids()) == (known or set())

    def teardown(self) -> None:
        self.journal.close()
        self.patch.undo()
        self.folder.cleanup()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
