"""The run of an import: check every row, send the drafts, count the results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias

import attrs

from boardclient import AsyncSession, BulkProgress, BulkReport, BulkRun, Card, CardDraft, CardResult, JournalError
from boardclient.bulk import BulkAudit, Content, EqualCards, journal_identity
from boardclient.bulk.journal import Rehearsal, RowAction, RowKey, adopt, read_journal, read_rows, rehearsed
from boardclient.cli import _rows
from boardclient.cli._drawing import ProgressView
from boardclient.cli._names import Finder, Names, of_lists
from boardclient.cli._output import (
    LINES,
    IncompleteError,
    NotProvenError,
    UsageError,
    first_lines,
    note,
    out,
    out_json,
    plural,
    quoted,
    show,
)
from boardclient.cli._running import Client, GracefulStop, in_steps, reported, with_session

if TYPE_CHECKING:
    from boardclient.integrations.dask import DaskRun

STATES = ("created", "already", "failed", "unknown")
_BATCH = 256
"""How many rows are planned together."""

RowPlan: TypeAlias = Literal["send", "again", "done", "doubtful"]
"""What a run does with a row: create the card; send again what failed; report that it exists; look for it."""


@attrs.frozen(kw_only=True)
class ImportOptions:
    """The options of `import`. Without a journal an import can't be resumed."""

    default_list: str | None = None
    journal: Path | None = None
    existing: str = "refuse"
    marker: bool = False
    preview: bool = False
    concurrency: int | None = None
    rate: float | None = None
    settle: float | None = None
    delimiter: str | None = None
    fields: tuple[str, ...] | None = None
    layout: _rows.Layout = _rows.Layout()
    engine: str | None = None
    workers: int | None = None
    parts: int | None = None
    scheduler: str | None = None
    ledger: str = ""


def run(
    *,
    file: str,
    board: str,
    journal: str | None,
    form: str | None,
    renamed: Sequence[str],
    left_out: Sequence[str],
    delimiter: str | None,
    date_format: str | None,
    zone: str | None,
    ledger: str | None,
    **others: object,
) -> None:
    """Create a card for each row of a file, each exactly once."""
    graceful_stop = GracefulStop()
    with reported(), contextlib.ExitStack() as opened:
        if delimiter is not None:
            _rows.check_delimiter(delimiter)
        layout = _rows.Layout(
            form=_format(file, form),
            columns=_rows.columns_of(renamed, left_out),
            zone=None if zone is None else _rows.zone_of(zone),
            date_format=date_format,
        )
        source = opened.enter_context(_opened(file))
        has_engine = others["engine"] is not None
        if not has_engine and (ledger or others["workers"] or others["parts"] or others["scheduler"]):
            raise UsageError("--workers, --parts, --scheduler and --ledger are those of --engine dask")
        if has_engine and (journal or others["rate"] or others["existing"] == "skip"):
            raise UsageError("--journal, --rate and --existing skip can't be used with --engine")
        default = None if file == "-" or not os.path.isfile(file) else f"{file}.journal"
        chosen = None if has_engine else journal or default
        path = None if chosen is None else Path(chosen)
        shared = ledger or f"{'import' if file == '-' else file}.ledger"
        options = ImportOptions(journal=path, delimiter=delimiter, layout=layout, ledger=shared, **others)  # type: ignore[arg-type]  # -- click has checked them

        async def work(client: Client) -> None:
            finder = Finder(client, board)
            with finder.advising():
                await import_file(client.session, source, finder.board_id(), options, graceful_stop, client)

        # Rows in flight are named one by one, so the final line only says how to resume.
        hint = "without a journal it can't be resumed" if path is None and not has_engine else "the same command line resumes it"
        with_session(work, graceful_stop=graceful_stop, when_stopped=hint)


def _format(file: str, form: str | None) -> _rows.Format:
    if form is not None:
        return {"csv": _rows.Format.CSV, "jsonl": _rows.Format.JSON_LINES}[form]
    is_stream = file == "-" or (os.path.exists(file) and not os.path.isfile(file))
    return _rows.Format.CSV if is_stream and not Path(file).suffix else _rows.format_of(Path(file))


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Open a file of rows. What can't be read twice, such as a pipe, is copied first.

    Raises:
        UsageError: it can't be read.
    """
    try:
        is_regular = file != "-" and Path(file).is_file()
        source: BinaryIO = sys.stdin.buffer if file == "-" else open(file, "rb")  # noqa: SIM115 -- closed below
        if not is_regular:
            with source:
                shutil.copyfileobj(source, copy := tempfile.TemporaryFile())  # noqa: SIM115 -- closed below
            source = copy
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    with source:
        yield source


async def import_file(
    session: AsyncSession,
    file: BinaryIO,
    board_id: str,
    options: ImportOptions | None = None,
    graceful_stop: GracefulStop | None = None,
    client: Client | None = None,
) -> None:
    """Import a file, show its progress, and print the counts however it ends.

    Raises:
        UsageError: the file, the list or the journal can't be used, or cards exist already. No card was created.
        IncompleteError: some rows failed, or the file changed.
        NotProvenError: some rows are unknown.
        BoardClientError: the lists could not be read, or the run as a whole failed.
    """
    options = options or ImportOptions()
    lists = of_lists(await session.boards.lists(board_id))
    try:
        default = None if options.default_list is None else lists.find(options.default_list)
    except ValueError as error:
        raise UsageError(f"--list: {error}") from None
    layout = _rows.recognise(file, options.layout, delimiter=options.delimiter)
    if layout.difference:
        note(f"the file is read as {layout.difference}")
    source = Source(file, layout, lists, default)
    identity = journal_identity(session.identity, board_id, options.marker or None)
    journal = options.journal if options.journal is not None and _is_there(options.journal) else None
    existing = Existing()
    is_known = journal is not None or (options.engine is not None and await _is_planned(options.ledger))
    if options.existing == "skip" or (options.existing == "refuse" and not is_known):
        own = set() if journal is None else {row.detail for row in read_rows(journal, "done")}
        existing = Existing([card for card in await session.boards.cards(board_id) if card.id not in own])
    with contextlib.ExitStack() as opened:
        decide = None if journal is None else opened.enter_context(rehearsed(journal, identity))
        plans = await check(source, decide, 0 if journal is None else read_journal(journal).rows, existing)
    if existing.rows and options.existing == "refuse":
        raise UsageError(
            f"{plural(len(existing.rows), 'row')} of {plans.total():,} equal cards that are on the board already;"
            " nothing was sent (--existing skip leaves them out, --existing create creates them again)",
            [
                f"row {row.number}: equals the card {quoted(card.name or '')} ({card.id})"
                for _, row, card in existing.rows[:LINES]
            ],
        )
    if existing.rows and plans["doubtful"]:
        raise UsageError(
            f"{plural(plans['doubtful'], 'row')} of an earlier run may have one of the cards that equal other rows; settle them"
            f" first: boardclient journal resolve {options.journal}"
        )
    if options.preview:
        _show_plan(plans, len(existing.rows), options, has_journal=journal is not None)
        return
    if existing.rows and options.journal is not None:
        adopt(options.journal, identity, [(_key_of(index, row.draft), row.draft, card.id) for index, row, card in existing.rows])
    left_out = frozenset(row.number for _, row, _ in existing.rows) if options.journal is None else frozenset[int]()
    total = plans.total() - len(left_out)
    await _Import(session, source, total, options, graceful_stop or GracefulStop(), board_id, client, left_out).run()


async def _is_planned(ledger: str) -> bool:
    """Return True if an import has used a ledger before."""
    from boardclient.distributed import status

    with contextlib.suppress(JournalError):
        return bool(await status(ledger))
    return False


@attrs.frozen
class Source:
    """An open file, and what is needed to read its rows. The caller that opened it closes it."""

    file: BinaryIO
    layout: _rows.Layout
    lists: Names
    default_list_id: str | None

    def rows(self) -> Iterator[_rows.FileRow | _rows.Problem]:
        """Yield the file's rows from its start."""
        return _rows.read(self.file, self.lists, self.default_list_id, self.layout)


class Existing:
    """The cards that were on the board before, and the rows that equal one of them. Each card stands for one row at most."""

    def __init__(self, cards: Sequence[Card] = ()) -> None:
        self._equal = EqualCards(cards)
        self._taken: set[str] = set()
        self._looked_at: Counter[Content] = Counter()
        self.rows: list[tuple[int, _rows.FileRow, Card]] = []

    def take(self, index: int, row: _rows.FileRow) -> None:
        """Note whether a row equals a card that no row before it equals."""
        content = Content.of(row.draft)
        cards = self._equal.to(content)
        while self._looked_at[content] < len(cards):
            card = cards[self._looked_at[content]]
            self._looked_at[content] += 1
            if card.id not in self._taken:
                self._taken.add(card.id)
                self.rows.append((index, row, card))
                return


def _key_of(index: int, draft: CardDraft) -> RowKey:
    """Return the key of a row in a journal."""
    return index if draft.reference is None else draft.reference


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # unlike Path.exists it does not raise without permission


async def check(source: Source, decide: Rehearsal | None, known: int, existing: Existing) -> Counter[RowPlan]:
    """Read the whole file, and count its rows by what a run would do with them.

    `decide` is the rehearsal with the journal, which knows `known` rows; None if there is no journal.

    Raises:
        UsageError: a row is wrong, or was sent with other content. It has a line for each kind of mistake.
    """
    plans: Counter[RowPlan] = Counter()
    problems, references = _rows.Problems(), References()
    batch: list[tuple[int, _rows.FileRow]] = []

    def plan() -> None:
        for (index, row), (seq, action, _) in zip(batch, _decisions(decide, batch, problems), strict=True):
            plans["again" if action == "send" and seq <= known else action] += 1
            if action == "send":
                existing.take(index, row)
        batch.clear()

    index = 0
    async for item in in_steps(source.rows()):
        if isinstance(item, _rows.Problem):
            problems.add(item)
            continue
        if item.draft.reference is not None:
            references.add(item.draft.reference)
        batch.append((index, item))
        index += 1
        if len(batch) == _BATCH:
            plan()
    plan()
    if suspects := references.suspects():
        async for problem in in_steps(_repeated_references(source.rows(), suspects)):
            if problem is not None:
                problems.add(problem)
    if problems.count:
        raise UsageError(f"the file has {plural(problems.count, 'mistake')}; nothing was sent", problems.lines(LINES))
    return plans


def _decisions(
    decide: Rehearsal | None, batch: Sequence[tuple[int, _rows.FileRow]], problems: _rows.Problems
) -> list[tuple[int, RowAction, str | None]]:
    """Return what a run would do with rows. Those that it would refuse are problems, unless their references come twice."""
    entries = [(_key_of(index, row.draft), row.draft) for index, row in batch]
    if decide is None:
        return [(sys.maxsize, "send", None)] * len(batch)
    try:
        return decide(entries)
    except JournalError:
        decisions: list[tuple[int, RowAction, str | None]] = []
    for (_, row), entry in zip(batch, entries, strict=True):  # to find which of them it is
        try:
            decisions += decide([entry])
        except JournalError as error:
            problems.add(_rows.Problem(row.number, None, str(error).partition(": ")[2]))
            decisions.append((sys.maxsize, "doubtful", None))
    return decisions


class References:
    """The hashes of a file's references, in eight bytes each. Owned by one check."""

    def __init__(self) -> None:
        # One bucket is sorted after the other, so that sorting needs little additional memory.
        self._buckets = [array("q") for _ in range(256)]

    def add(self, reference: str) -> None:
        """Add the reference of a row."""
        value = hash(reference)
        self._buckets[value % len(self._buckets)].append(value)

    def suspects(self) -> frozenset[int]:
        """Return the hashes that came more than once. Different references may share one."""
        return frozenset(value for bucket in self._buckets for value, other in pairwise(sorted(bucket)) if value == other)


def _repeated_references(
    rows: Iterable[_rows.FileRow | _rows.Problem], suspects: frozenset[int]
) -> Iterator[_rows.Problem | None]:
    """Yield for each row the problem of a repeated reference, or None."""
    first: dict[str, int] = {}
    for row in rows:
        problem = None
        if isinstance(row, _rows.FileRow) and (reference := row.draft.reference) is not None and hash(reference) in suspects:
            before = first.setdefault(reference, row.number)
            if before != row.number:
                problem = _rows.Problem(row.number, "reference", f"is also that of row {before}; each row needs its own")
        yield problem


def _show_plan(plans: Counter[RowPlan], skipped: int, options: ImportOptions, *, has_journal: bool) -> None:
    counts = {
        "would_create": plans["send"] + plans["again"] - skipped,
        "already": plans["done"] + skipped,
        "failed": plans["again"],
        "unknown": plans["doubtful"],
    }
    if options.fields is not None:
        out_json({"preview": True, **counts})
        return
    text = f"would create {counts['would_create']:,}"
    if has_journal:
        text += f" ({counts['failed']:,} of which an earlier run left), look for {counts['unknown']:,} in doubt"
    if counts["already"]:
        text += f", leave out {counts['already']:,} that exist"
    out(f"{text}; nothing was sent")


class _Rate:
    """A limiter that starts at most so many requests per second, evenly."""

    def __init__(self, rate: float) -> None:
        self._seconds, self._next_at = 1 / rate, 0.0

    async def __aenter__(self) -> None:
        now = asyncio.get_running_loop().time()
        start_at = max(self._next_at, now)
        self._next_at = start_at + self._seconds
        await asyncio.sleep(start_at - now)

    async def __aexit__(self, *error: object) -> None:
        return None


@attrs.define
class _Import:
    """One run. Its counts are complete once it has ended, however that was."""

    session: AsyncSession
    source: Source
    total: int
    options: ImportOptions
    graceful_stop: GracefulStop
    board_id: str
    client: Client | None = None
    left_out: frozenset[int] = frozenset()
    """The numbers of rows that are not passed on, since cards equal them. With a journal it knows them itself."""
    counts: Counter[str] = attrs.field(factory=Counter)
    stopped_by: str | None = None
    _begun: int = 0
    _under_way: dict[int, tuple[int, RowKey]] = attrs.field(factory=dict)
    _failed: list[dict[str, object]] = attrs.field(factory=list)
    _signing_in: asyncio.Task[None] | None = None
    _view: ProgressView = attrs.field(init=False)

    async def run(self) -> None:
        """Send the rows and print the counts.

        The file is read during the run. If it is no longer what `check` read, no further row is sent, and the cards in flight are
        completed.

        Raises:
            UsageError: the journal can't be used; nothing was sent.
            CommandError: some rows do not exist as exactly one card, or that is not proven.
            BoardClientError: the run as a whole failed.
        """
        self._view = ProgressView(self.total)
        run = self._bulk_run()
        try:
            with self._view:
                await self._follow(run)
        except UsageError:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._abandon()
            self._print_end(run.report)
            raise
        finally:
            if self._signing_in is not None:
                self._signing_in.cancel()
        self._print_end(run.report)
        if not self.graceful_stop.is_requested:
            self._check(run.report)

    def _bulk_run(self) -> BulkRun | DaskRun:
        options, session = self.options, self.session
        if options.engine is not None:
            return self._dask_run()
        if options.rate is not None:
            session = session.with_options(limiter=_Rate(options.rate))
        return session.cards.create_many(
            _Drafts(self),
            concurrency=options.concurrency,
            journal=options.journal,
            board_id=self.board_id,
            settle=options.settle,
            marker=options.marker or None,
            on_progress=self._show_progress,
        )

    def _dask_run(self) -> DaskRun:
        """Return the run of a cluster, whose workers get service and credentials from the environment."""
        from boardclient.integrations.dask import DaskRun

        options, client = self.options, self.client
        assert client is not None  # noqa: S101 -- only the demo has none, and it takes no engine
        values = {"BASE_URL": client.settings.base_url, "TOKEN": client.settings.token, "KEY": client.settings.key}
        if not values["TOKEN"] and not os.environ.get("BOARDCLIENT_TOKEN"):
            raise UsageError("--engine dask needs BOARDCLIENT_TOKEN: each worker reads its credentials from the environment")
        os.environ.update({f"BOARDCLIENT_{name}": value for name, value in values.items() if value})
        return DaskRun(
            _Drafts(self),
            self.board_id,
            options.ledger,
            parts=options.parts,
            marker=options.marker,
            settle=options.settle,
            workers=options.workers,
            scheduler=options.scheduler,
            concurrency=options.concurrency,
            on_progress=self._show_progress,
        )

    async def _follow(self, run: BulkRun | DaskRun) -> None:
        async with AsyncExitStack() as opened_run:
            try:
                await opened_run.enter_async_context(run)
            except JournalError as error:
                raise UsageError(str(error)) from None
            try:
                with self.graceful_stop.using(run.stop):
                    async for result in run:
                        self._count(result)
            except JournalError as error:
                raise IncompleteError(str(error)) from None
            finally:
                await opened_run.aclose()
                for result in run.take_ready() if isinstance(run, BulkRun) else ():  # results that came meanwhile count as well
                    self._count(result)

    def _show_progress(self, progress: BulkProgress) -> None:
        self._view.update(progress, stopping=self.graceful_stop.is_requested)
        client = self.client
        if progress.waiting_for == "consent" and self._signing_in is None and client is not None and client.can_sign_in:
            self._signing_in = asyncio.create_task(client.sign_in())

    def begin(self, index: int, row: _rows.FileRow) -> None:
        """Note that a row's draft was passed to the run."""
        self._under_way[index] = row.number, _key_of(index, row.draft)
        self._begun += 1

    def _count(self, result: CardResult) -> None:
        number, _ = self._under_way.pop(result.index)
        self.counts[result.state] += 1
        if result.state in {"failed", "unknown"}:
            self._name(number, result.state, str(result.error))

    def _name(self, row: int, state: str, why: str) -> None:
        """Print why a row has no card, or may have none."""
        self._view.line(f"row {row}: {state}: {why}", style="red" if state == "failed" else "yellow")
        if self.options.fields is not None:
            self._failed.append({"row": row, "state": state, "error": why})

    def _abandon(self) -> None:
        """Count the rows whose cards may exist after the run was cancelled: those in doubt, or all if that is not known."""
        journal, doubtful = self.options.journal, None
        if journal is not None and journal.exists():
            with contextlib.suppress(JournalError), closing(read_rows(journal, "logged", "unknown")) as rows:
                doubtful = {row.key for row in rows}
        for index, (number, key) in list(self._under_way.items()):
            if doubtful is None or key in doubtful:
                del self._under_way[index]
                self.counts["unknown"] += 1
                self._name(number, "unknown", "the import ended while the card was being created")

    def _check(self, report: BulkReport) -> None:
        audit, counts = report.audit, self.counts
        if self.stopped_by is not None:
            raise IncompleteError(self.stopped_by)
        if counts["failed"]:
            raise IncompleteError(f"{plural(counts['failed'], 'row')} failed; the same command line sends them again")
        if audit is not None and audit.is_wrong:
            raise IncompleteError("not every row has a card of its own, exactly once")
        if counts["unknown"]:
            raise NotProvenError(
                f"{plural(counts['unknown'], 'row')} may exist or not; the same command line looks again,"
                f" boardclient journal resolve {self.options.journal or 'JOURNAL'} settles them by hand"
            )
        if audit is not None and not audit.is_sound:
            raise NotProvenError("the board does not list every card, so lost and second ones are not ruled out")
        if report.audit_error is not None:
            raise NotProvenError("the board could not be read at the end, so lost and second cards are not ruled out")

    def _print_end(self, report: BulkReport) -> None:
        not_sent = max(0, self.total - self._begun) + len(self._under_way)
        if report.audit is not None:
            for text in audit_lines(report.audit):
                note(text, fg="red")
        if report.audit_error is not None:
            note(f"the board could not be read at the end: {report.audit_error}", fg="red")
        if self.options.fields is not None:
            show("", self._values(report, not_sent), self.options.fields)
            return
        shown = [state for state in STATES if state != "already" or self.counts[state]]
        text = ", ".join(f"{state} {self.counts[state]}" for state in shown)
        text += f", not sent {not_sent}" if not_sent else ""
        out(f"{text} in {report.seconds:.1f} s ({report.rate:.0f} cards/s, {report.requests} requests)")

    def _values(self, report: BulkReport, not_sent: int) -> dict[str, object]:
        values: dict[str, object] = {
            **{state: self.counts[state] for state in STATES},
            "not_sent": not_sent,
            "seconds": round(report.seconds, 3),
            "rate": round(report.rate, 3),
            "requests": report.requests,
            "rejected": report.rejected,
            "rows": self._failed,
        }
        if report.audit is not None:
            values["audit"] = {field.name: _named(getattr(report.audit, field.name)) for field in attrs.fields(BulkAudit)}
        if report.audit_error is not None:
            values["audit_error"] = str(report.audit_error)
        return values


def _named(value: object) -> object:
    """Return a value of an audit as JSON; cards and drafts by what names them."""
    if isinstance(value, tuple | list):
        return [_named(item) for item in value]
    if isinstance(value, Card):
        return {"id": value.id, "name": value.name}
    return {"reference": value.reference, "name": value.name} if isinstance(value, CardDraft) else value


def audit_lines(audit: BulkAudit) -> list[str]:
    """Return lines on what the board showed at the end. Cards of one kind are named up to a number."""
    found = []
    if audit.lost:
        found.append(f"lost: {audit.lost} of the confirmed cards are not on the board")
    if audit.hidden:
        found.append(f"hidden: {audit.hidden} of the confirmed cards are not listed, so the listing is incomplete")
    if audit.reused:
        found.append(
            f"reused: {audit.reused} rows were given the card of another row or an older one, and may have none of their own"
        )
    found += first_lines("duplicated", [f"{card.name!r} ({card.id}) is a second card of a row" for card in audit.duplicated])
    found += first_lines("resembling", [f"{card.name!r} ({card.id}) may be that of an unknown row" for card in audit.resembling])
    return found


@attrs.frozen
class _Drafts:
    """The drafts of a file, read lazily. There are as many as the check has counted."""

    owner: _Import

    def __len__(self) -> int:
        return self.owner.total

    def __iter__(self) -> Iterator[CardDraft]:
        owner, index = self.owner, 0
        try:
            for item in owner.source.rows():
                if isinstance(item, _rows.Problem):
                    owner.stopped_by = f"the file changed while it was imported: row {item.row}: {item.message}"
                    return
                if item.number in owner.left_out:
                    owner.counts["already"] += 1
                    continue
                if index == owner.total:
                    owner.stopped_by = f"the file changed while it was imported: row {item.number} was not there before"
                    return
                owner.begin(index, item)
                yield item.draft
                index += 1
        except OSError as error:
            owner.stopped_by = f"the file can no longer be read: {error.strerror}"
            return
        if index < owner.total:
            owner.stopped_by = f"the file changed while it was imported: it has {index} rows now and had {owner.total}"
