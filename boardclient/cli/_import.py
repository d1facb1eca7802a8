"""The run of an import: check every row, send the drafts, count the results. Nothing is printed here."""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import attrs

from boardclient import AsyncSession, BulkProgress, BulkReport, BulkRun, CardDraft, CardResult, JournalError
from boardclient.bulk.journal import RowKey
from boardclient.cli import _rows
from boardclient.cli._errors import FileError, UsageError
from boardclient.cli._import_journal import Earlier, RowPlan, doubtful_keys, key_of
from boardclient.cli._references import References, repeated_references
from boardclient.cli._signals import GracefulStop, in_steps

_PROBLEMS_SHOWN = 20
_CHANGED = "was sent by an earlier run with other content: give a changed row a new reference, or put the content back"

STATES = ("created", "already", "failed", "unknown")


@attrs.frozen(kw_only=True)
class SendOptions:
    """The options of sending `rows` rows. Without a journal the run can't be resumed."""

    rows: int
    board_id: str
    journal: Path | None = None
    concurrency: int | None = None
    settle: float | None = None


@attrs.frozen(kw_only=True)
class Source:
    """An open file, and what is needed to read its rows. The caller that opened it closes it."""

    file: BinaryIO
    form: _rows.Format
    lists: _rows.ListIndex
    default_list_id: str | None
    layout: _rows.Layout = _rows.PLAIN

    def rows(self) -> Iterator[_rows.FileRow | _rows.Problem]:
        """Yield the file's rows from its start."""
        return _rows.read(self.file, self.form, self.lists, self.default_list_id, self.layout)


@attrs.frozen
class FailedRow:
    """A row that failed, or whose card may or may not exist."""

    row: int
    state: str
    error: str


@attrs.define
class ImportOutcome:
    """The counts of one import, which are complete once it has ended."""

    on_failed_row: Callable[[FailedRow], None]
    counts: Counter[str] = attrs.field(factory=Counter)
    report: BulkReport = attrs.field(factory=BulkReport)
    stopped_by: str | None = None
    not_sent: int = 0
    _begun: int = 0
    _under_way: dict[int, tuple[int, RowKey]] = attrs.field(factory=dict)

    def begin(self, index: int, row: _rows.FileRow) -> None:
        """Note that a row's draft was passed to the run."""
        self._under_way[index] = row.number, key_of(index, row.draft)
        self._begun += 1

    def settle(self, result: CardResult) -> None:
        """Count the result of a draft."""
        row, _ = self._under_way.pop(result.index)
        self.counts[result.state] += 1
        if result.state in {"failed", "unknown"}:
            self.on_failed_row(FailedRow(row, result.state, str(result.error)))

    def abandon(self, doubtful: Container[RowKey] | None) -> None:
        """Count the rows whose cards may exist after the run was cancelled.

        They are those in `doubtful`, or all without a result if it is None.
        """
        for index, (row, key) in list(self._under_way.items()):
            if doubtful is None or key in doubtful:
                del self._under_way[index]
                self.counts["unknown"] += 1
                self.on_failed_row(FailedRow(row, "unknown", "the import ended while the card was being created"))

    def close(self, rows: int) -> None:
        """Count the rows without a result as not sent. `rows` is the number of rows in the file."""
        self.not_sent = max(0, rows - self._begun) + len(self._under_way)
        self._under_way.clear()

    @property
    def is_complete(self) -> bool:
        """Whether every row of the file exists as a card, exactly once."""
        audit = self.report.audit
        is_sound = self.report.audit_error is None and (audit is None or audit.is_sound)
        return self.stopped_by is None and not self.counts["failed"] and not self.counts["unknown"] and is_sound


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of rows.

    Raises:
        FileError: it can't be read, or is not a regular file.
    """
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path}: is not a regular file, which it must be since it is read twice")
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    with file:
        yield file


async def prepare(
    session: AsyncSession,
    file: BinaryIO,
    form: _rows.Format,
    board_id: str,
    default_list: str | None,
    layout: _rows.Layout = _rows.PLAIN,
) -> Source:
    """Read the board's lists once (section 4.5) and find the default list among them.

    Raises:
        UsageError: the default list is not on the board.
        BoardClientError: the lists could not be read.
    """
    lists = _rows.ListIndex(await session.boards.lists(board_id))
    try:
        default_list_id = None if default_list is None else lists.find(default_list)
    except ValueError as error:
        raise UsageError(f"--list: {error}") from None
    return Source(file=file, form=form, lists=lists, default_list_id=default_list_id, layout=layout)


async def check(source: Source, earlier: Earlier) -> Counter[RowPlan]:
    """Read the whole file, and count its rows by what earlier runs did with them.

    Raises:
        FileError: a row is wrong, or was sent with other content. It has the first 20 problems.
    """
    plans: Counter[RowPlan] = Counter()
    problems: list[str] = []
    references = References()
    index = 0
    async for item in in_steps(source.rows()):
        if isinstance(item, _rows.Problem):
            _add_problem(problems, item)
            continue
        planned = earlier.plan_for(index, item.draft)
        if planned == "changed":
            _add_problem(problems, _rows.Problem(item.number, None, _CHANGED))
        if item.draft.reference is not None:
            references.add(item.draft.reference)
        plans[planned] += 1
        index += 1
    if suspects := references.suspects():
        async for problem in in_steps(repeated_references(source.rows(), suspects)):
            if problem is not None:
                _add_problem(problems, problem)
    if problems:
        raise FileError(f"the file has {len(problems)} problem{'s' if len(problems) > 1 else ''}; nothing was sent", problems)
    return plans


def _add_problem(problems: list[str], problem: _rows.Problem) -> None:
    problems.append(str(problem))
    if len(problems) == _PROBLEMS_SHOWN:
        raise FileError(f"the file has at least {_PROBLEMS_SHOWN} problems; nothing was sent", problems)


async def send(
    session: AsyncSession,
    source: Source,
    outcome: ImportOutcome,
    options: SendOptions,
    *,
    graceful_stop: GracefulStop,
    on_progress: Callable[[BulkProgress], None] | None = None,
) -> None:
    """Create a card for each row, and count the results in `outcome`.

    The counts are complete even if the import is interrupted. The file is read during the run. If it is no longer what `check`
    read, no further row is sent, the cards in flight are completed, and `outcome.stopped_by` says why. After a request to stop,
    no further card is sent.

    Raises:
        UsageError: the journal can't be used; nothing was sent.
        BoardClientError: the run as a whole failed.
    """
    run = session.cards.create_many(
        _Drafts(source, outcome, options.rows),
        concurrency=options.concurrency,
        journal=options.journal,
        board_id=options.board_id,
        settle=options.settle,
        on_progress=on_progress,
    )
    try:
        await _follow(run, outcome, graceful_stop)
    except asyncio.CancelledError:
        outcome.abandon(_doubtful_keys(options.journal))
        raise
    finally:
        outcome.report = run.report
        outcome.close(options.rows)


async def _follow(run: BulkRun, outcome: ImportOutcome, graceful_stop: GracefulStop) -> None:
    async with AsyncExitStack() as opened_run:
        try:
            await opened_run.enter_async_context(run)
        except JournalError as error:
            raise UsageError(str(error)) from None
        try:
            with graceful_stop.using(run.stop):
                async for result in run:
                    outcome.settle(result)
        finally:
            await opened_run.aclose()
            for result in run.take_ready():  # results that came meanwhile count as well
                outcome.settle(result)


def _doubtful_keys(journal: Path | None) -> Container[RowKey] | None:
    try:
        return None if journal is None or not journal.exists() else doubtful_keys(journal)
    except JournalError:
        return None


@attrs.frozen
class _Drafts:
    """The drafts of a file, read lazily. There are as many as the check has counted."""

    source: Source
    outcome: ImportOutcome
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[CardDraft]:
        outcome, index = self.outcome, 0
        try:
            for item in self.source.rows():
                if isinstance(item, _rows.Problem):
                    outcome.stopped_by = f"the file changed while it was imported: {item}"
                    return
                if index == self.rows:
                    outcome.stopped_by = f"the file changed while it was imported: row {item.number} was not there before"
                    return
                outcome.begin(index, item)
                yield item.draft
                index += 1
        except OSError as error:
            outcome.stopped_by = f"the file can no longer be read: {error.strerror}"
            return
        if index < self.rows:
            outcome.stopped_by = f"the file changed while it was imported: it has {index} rows now and had {self.rows}"
