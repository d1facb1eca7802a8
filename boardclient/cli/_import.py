"""The run of an import: check every row, then send the drafts, then count; what is drawn is the caller's affair."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import attrs

from boardclient import AsyncSession, BulkProgress, BulkReport, CardDraft, CardResult
from boardclient.cli import _rows
from boardclient.cli._errors import FileError, UsageError

_PROBLEMS_SHOWN = 20
_ROWS_PER_BREATH = 500

STATES = ("created", "already", "failed", "unknown")


@attrs.frozen(kw_only=True)
class Source:
    """Hold an open file and what its rows are read against; its opener closes it."""

    file: BinaryIO
    form: _rows.Format
    lists: _rows.ListIndex
    default_list_id: str | None

    def rows(self) -> Iterator[_rows.Row | _rows.Problem]:
        """Yield the file's rows from its start."""
        return _rows.read(self.file, self.form, self.lists, self.default_list_id)


@attrs.frozen
class FailedRow:
    """Name a row that does not certainly exist as a card, and why."""

    row: int
    state: str
    error: str


@attrs.define
class Outcome:
    """Count what became of the rows of one import; complete once it has ended."""

    on_failed_row: Callable[[FailedRow], None]
    counts: Counter[str] = attrs.field(factory=Counter)
    report: BulkReport = attrs.field(factory=BulkReport)
    stopped_by: str | None = None
    not_sent: int = 0
    _begun: int = 0
    _under_way: dict[int, int] = attrs.field(factory=dict)

    def begin(self, index: int, row: int) -> None:
        """Note that a row's draft was handed out."""
        self._under_way[index] = row
        self._begun += 1

    def settle(self, result: CardResult) -> None:
        """Note what became of a draft."""
        row = self._under_way.pop(result.index)
        self.counts[result.state] += 1
        if result.state in {"failed", "unknown"}:
            self.on_failed_row(FailedRow(row, result.state, str(result.error)))

    def abandon(self, rows: int) -> None:
        """Note that no more results come for a file of `rows` rows.

        What is still under way may exist or not; what was not handed out was not sent.
        """
        self.not_sent = max(0, rows - self._begun)
        for row in self._under_way.values():
            self.counts["unknown"] += 1
            self.on_failed_row(FailedRow(row, "unknown", "the import ended while the card was being created"))
        self._under_way.clear()

    @property
    def is_complete(self) -> bool:
        """Whether every row of the file exists as a card."""
        return self.stopped_by is None and not self.counts["failed"] and not self.counts["unknown"]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of rows.

    Raises:
        FileError: it can't be read, or is not a regular file.
    """
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path}: is not a regular file (it is read twice)")
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    with file:
        yield file


async def prepare(session: AsyncSession, file: BinaryIO, form: _rows.Format, board_id: str, default_list: str | None) -> Source:
    """Read the board's lists once (section 4.5) and find the default list among them.

    Raises:
        UsageError: the default list is none of the board's.
        BoardClientError: the lists could not be read.
    """
    lists = _rows.ListIndex(await session.boards.lists(board_id))
    try:
        default_list_id = None if default_list is None else lists.find(default_list)
    except ValueError as error:
        raise UsageError(f"--list: {error}") from None
    return Source(file=file, form=form, lists=lists, default_list_id=default_list_id)


async def check(source: Source) -> int:
    """Read the whole file, keep nothing of it, and return how many rows it has.

    Raises:
        FileError: a row is wrong; it holds the first 20 problems.
    """
    rows, problems = 0, list[str]()
    for number, item in enumerate(source.rows()):
        if number % _ROWS_PER_BREATH == 0:
            await asyncio.sleep(0)
        if isinstance(item, _rows.Row):
            rows += 1
        else:
            problems.append(str(item))
        if len(problems) == _PROBLEMS_SHOWN:
            raise FileError(f"the file has {_PROBLEMS_SHOWN} problems or more; nothing was sent", problems)
    if problems:
        raise FileError(f"the file has {len(problems)} problem{'s' if len(problems) > 1 else ''}; nothing was sent", problems)
    return rows


async def send(
    session: AsyncSession,
    source: Source,
    outcome: Outcome,
    *,
    rows: int,
    concurrency: int | None = None,
    on_progress: Callable[[BulkProgress], None] | None = None,
) -> None:
    """Create a card for each row and count into `outcome`, interrupted or not.

    The file is read as the run goes. A file that is no longer what `check` saw stops the hand-out; what is under way is awaited,
    and `outcome.stopped_by` says why.
    """
    run = session.cards.create_many(_drafts(source, outcome, rows), concurrency=concurrency, on_progress=on_progress)
    try:
        async with run:
            try:
                async for result in run:
                    outcome.settle(result)
            except asyncio.CancelledError:
                for result in run.take_ready():
                    outcome.settle(result)
                raise
    finally:
        outcome.report = run.report
        outcome.abandon(rows)


def _drafts(source: Source, outcome: Outcome, rows: int) -> Iterator[CardDraft]:
    index = 0
    try:
        for item in source.rows():
            if isinstance(item, _rows.Problem):
                outcome.stopped_by = f"the file changed while it was imported: {item}"
                return
            if index == rows:
                outcome.stopped_by = f"the file changed while it was imported: row {item.number} was not there before"
                return
            outcome.begin(index, item.number)
            yield item.draft
            index += 1
    except OSError as error:
        outcome.stopped_by = f"the file can't be read any more: {error.strerror}"
        return
    if index < rows:
        outcome.stopped_by = f"the file changed while it was imported: it has {index} rows now and had {rows}"
