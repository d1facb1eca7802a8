"""The run of an import: check every row, send the drafts, count the results."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeAlias, TypeVar, cast

import attrs
import click

from boardclient import (
    AsyncSession,
    BulkProgress,
    BulkReport,
    BulkRun,
    Card,
    CardDraft,
    CardResult,
    ConsentRequired,
    JournalError,
)
from boardclient.bulk import BulkAudit, Content, EqualCards, journal_identity
from boardclient.bulk.journal import Rehearsal, RowKey, adopt, read_journal, read_rows, rehearsed
from boardclient.cli import _rows
from boardclient.cli._drawing import ProgressView
from boardclient.cli._errors import CommandError, NoCredentialsError, NotProvenError, UsageError
from boardclient.cli._names import of_lists
from boardclient.cli._output import LINES, first_lines, key_name, note, out, plural, quoted, show
from boardclient.cli._running import Client, in_steps, run_with_session

if TYPE_CHECKING:
    from boardclient.integrations.dask import DaskRun

_Rows: TypeAlias = Iterator[_rows.FileRow | _rows.Problem]

T = TypeVar("T")

STATES = ("created", "already", "failed", "unknown")


@attrs.frozen(kw_only=True)
class ImportOptions:
    """The options of `import`."""

    file: str = "-"
    board: str = ""
    default_list: str | None = None
    journal: Path | None = None
    existing: str = "refuse"
    marker: bool = False
    preview: bool = False
    concurrency: int | None = None
    rate: float | None = None
    settle: float | None = None
    renamed: Sequence[tuple[str, str]] = ()
    left_out: Sequence[str] = ()
    date_format: str | None = None
    zone: tzinfo | None = None
    engine: str | None = None
    workers: int | None = None
    parts: int | None = None
    scheduler: str | None = None
    ledger: str | None = None
    fields: tuple[str, ...] | None = None

    def checked(self) -> ImportOptions:
        """Return the options with the files that the run keeps beside its input.

        Raises:
            UsageError: the options do not fit together.
        """
        if self.engine is not None:
            if self.journal or self.rate or self.existing == "skip":
                raise UsageError("--journal, --rate and --existing skip can't be used with --engine")
            return attrs.evolve(self, ledger=self.ledger or f"{'import' if self.file == '-' else self.file}.ledger")
        if not self.board:
            raise UsageError("give --board")
        if self.ledger or self.workers or self.parts or self.scheduler:
            raise UsageError("--workers, --parts, --scheduler and --ledger are those of --engine dask")
        journal = self.journal or (Path(f"{self.file}.journal") if os.path.isfile(self.file) else None)
        if self.existing == "skip" and journal is None:
            raise UsageError("--existing skip needs a journal: give --journal")
        return attrs.evolve(self, journal=journal)


def run(options: ImportOptions) -> None:
    """Create a card for each row of a file, each exactly once."""
    options = options.checked()
    is_resumable = options.journal is not None or options.engine is not None
    with _copied(options.file) as file:

        async def work(client: Client) -> None:
            client.stopping.hint = "the same command line resumes it" if is_resumable else "without a journal it can't be resumed"
            await import_file(client, file, options)

        run_with_session(work, board=options.board)


@contextlib.contextmanager
def _copied(file: str) -> Iterator[BinaryIO]:
    """Give a copy of a file of rows: it is read several times, and must not change meanwhile."""
    with tempfile.TemporaryFile() as copy:
        with click.open_file(file, "rb") as source:
            shutil.copyfileobj(source, copy)
        yield cast("BinaryIO", copy)


async def import_file(client: Client, file: BinaryIO, options: ImportOptions) -> None:
    """Import a file, show its progress, and print the counts however it ends.

    Raises:
        UsageError: the file, the list or the journal can't be used, or cards exist already. No card was created.
        CommandError: some rows failed.
        NotProvenError: some rows are unknown.
        BoardClientError: the lists could not be read, or the run as a whole failed.
    """
    session = client.session
    columns = {**dict.fromkeys(map(str.strip, options.left_out)), **dict(options.renamed)}
    given = _rows.Layout(
        columns=columns,
        zone=options.zone,
        date_format=options.date_format,
        default_list=options.default_list,
        has_places=options.engine is not None,
    )
    layout = _rows.recognise(file, given)
    if layout.difference:
        note(f"the file is read as {layout.difference}")
    named = [*([None] if options.board else []), *(_rows.named_boards(file, layout) if layout.has_places else ())]
    boards = {name: await _board(client, name) for name in named}
    rows = partial(_rows.read, file, boards, layout)
    identity = journal_identity(session.identity, boards[None].board_id if options.board else "", options.marker or None)
    journal = options.journal if options.journal is not None and _is_there(options.journal) else None
    existing = Existing(await _cards_before(session, {board.board_id for board in boards.values()}, journal, options))
    with ExitStack() as opened:
        decided = journal or Path(opened.enter_context(tempfile.TemporaryDirectory())) / "journal"
        decide = opened.enter_context(rehearsed(decided, identity))
        plans, places = await check(rows(), decide, 0 if journal is None else read_journal(journal).rows, existing)
    _settle_existing(existing, plans, options)
    if options.preview:
        counts = {
            "would_create": plans["send"] + plans["again"] - len(existing.rows),
            "already": plans["done"] + len(existing.rows),
            "failed": plans["again"],
            "unknown": plans["doubtful"],
        }
        show("nothing was sent", {"preview": True, **counts}, options.fields)
        return
    if existing.rows and options.journal is not None:
        rows_of_cards = [(_key_of(index, row.draft), row.draft, card.id) for index, row, card in existing.rows]
        adopt(options.journal, identity, rows_of_cards, before=[card.id for card in existing.cards])
    await _Import(client, rows, places, options).run()


async def _board(client: Client, name: str | None) -> _rows.Board:
    """Find a board, and read its lists. They are read with the credentials of this command, whatever account rows name."""
    board_id = client.board_id(name)
    return _rows.Board(board_id, of_lists(await client.session.boards.lists(board_id)))


def _settle_existing(existing: Existing, plans: Counter[str], options: ImportOptions) -> None:
    """Refuse rows that equal cards which were there before, unless they can be left out.

    Raises:
        UsageError: they can't. No card was created.
    """
    if not existing.rows:
        return
    if options.existing == "refuse":
        raise UsageError(
            f"{plural(len(existing.rows), 'row')} of {plans.total():,} equal cards that are on the board already;"
            " nothing was sent (--existing skip leaves them out, --existing create creates them again)",
            [
                f"row {row.number}: equals the card {quoted(card.name or '')} ({card.id})"
                for _, row, card in existing.rows[:LINES]
            ],
        )
    if existing.unclear:
        raise UsageError(
            f"{plural(existing.unclear, 'row')} equal cards but for a description or a date, which no card on the board shows;"
            " nothing was sent (take the rows out of the file, or create them with --existing create)"
        )
    if plans["doubtful"]:
        raise UsageError(
            f"{plural(plans['doubtful'], 'row')} of an earlier run may have one of the cards that equal other rows; settle them"
            f" first: boardclient journal resolve {options.journal}"
        )


async def _cards_before(
    session: AsyncSession, board_ids: Iterable[str], journal: Path | None, options: ImportOptions
) -> list[Card]:
    """Return the cards that the rows are compared with: those on the boards, but for those of earlier runs."""
    is_new = journal is None and (options.ledger is None or not await _is_planned(options.ledger))
    if options.existing == "create" or (options.existing == "refuse" and not is_new):
        return []
    own = set() if journal is None else {row.detail for row in read_rows(journal, "done")}
    return [card for board_id in board_ids for card in await session.boards.cards(board_id) if card.id not in own]


async def _is_planned(ledger: str) -> bool:
    """Return True if an import has used a ledger before."""
    from boardclient.distributed import status

    with contextlib.suppress(JournalError):
        return bool(await status(ledger))
    return False


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # unlike Path.exists it does not raise without permission


class Existing:
    """The cards that were on the board before, and the rows that equal one of them. Each card stands for one row at most."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self.cards = cards
        self._equal = EqualCards(cards)
        self._same = EqualCards(cards, {"name", "desc", "due"})
        self._taken: set[str] = set()
        self.rows: list[tuple[int, _rows.FileRow, Card]] = []
        self.unclear = 0
        """How many of these rows have a description or a date, while their card has none and no other shows one."""

    def take(self, index: int, row: _rows.FileRow) -> None:
        """Note whether a row equals a card that no row before it equals."""
        content = Content.of(row.draft)
        free = (card for card in self._equal.to(content) if card.id not in self._taken)
        if (card := next(free, None)) is not None:
            self._taken.add(card.id)
            self.rows.append((index, row, card))
            self.unclear += card not in self._same.to(content)


def _key_of(index: int, draft: CardDraft) -> RowKey:
    """Return the key of a row in a journal."""
    return index if draft.reference is None else draft.reference


async def check(rows: _Rows, decide: Rehearsal, known: int, existing: Existing) -> tuple[Counter[str], Counter[_rows.Place]]:
    """Read the whole file, and count its rows by what a run would do with them, and by where their cards belong.

    The counts are "send", "again" for what an earlier run left, "done" and "doubtful". `known` rows are in the journal.

    Raises:
        UsageError: a row is wrong, or was sent with other content. It has a line for each kind of mistake.
    """
    plans: Counter[str] = Counter()
    places: Counter[_rows.Place] = Counter()
    problems, index = _rows.Problems(), 0
    async for row in in_steps(rows):
        if isinstance(row, _rows.Problem):
            problems.add(row)
            continue
        try:
            ((seq, action, _),) = decide([(_key_of(index, row.draft), row.draft)])
        except JournalError as error:
            problems.add(_rows.Problem(row.number, None, str(error).partition(": ")[2]))
        else:
            places[row.place] += 1
            plans["again" if action == "send" and seq <= known else action] += 1
            if action == "send":
                existing.take(index, row)
        index += 1
    if problems.count:
        raise UsageError(f"the file has {plural(problems.count, 'mistake')}; nothing was sent", problems.lines(LINES))
    return plans, places


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


@attrs.frozen
class _Sized(Generic[T]):
    """Items that are made once, and their number."""

    count: int
    items: Iterator[T]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        return self.items


@attrs.define
class _Import:
    """One run, and the rows that it sends. Its counts are complete once it has ended, however that was."""

    client: Client
    rows: Callable[[], _Rows]
    places: Counter[_rows.Place]
    options: ImportOptions
    _begun: int = 0
    _abandoned: int = 0
    _under_way: dict[int, tuple[int, RowKey]] = attrs.field(factory=dict)
    _failed: list[dict[str, object]] = attrs.field(factory=list)
    _view: ProgressView = attrs.field(init=False)
    _run: BulkRun | DaskRun | None = None

    @property
    def total(self) -> int:
        """The number of rows."""
        return self.places.total()

    async def run(self) -> None:
        """Send the rows and print the counts.

        Raises:
            UsageError: the journal can't be used; nothing was sent.
            CommandError: some rows do not exist as exactly one card, or that is not proven.
            BoardClientError: the run as a whole failed.
        """
        self._view = ProgressView(self.total)
        try:
            with self._view:
                await self._follow()
        except UsageError:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._abandon()
            self._print_end(self._report)
            raise
        self._print_end(self._report)
        if not self.client.stopping.is_requested:
            self._check(self._report)

    @property
    def _report(self) -> BulkReport:
        return BulkReport() if self._run is None else self._run.report

    async def _begun_run(self) -> BulkRun | DaskRun:
        options, session = self.options, self.client.session
        if options.engine is not None and self.total:
            return await self._dask_run()
        if options.rate is not None:
            session = session.with_options(limiter=_Rate(options.rate))
        return session.cards.create_many(
            _Sized(self.total, (row.draft for row in self._taken())),
            concurrency=options.concurrency,
            journal=options.journal,
            board_id=next((board_id for board_id, _ in self.places), None),
            settle=options.settle,
            marker=options.marker or None,
            on_progress=self._show_progress,
        )

    async def _dask_run(self) -> DaskRun:
        """Plan the jobs, and return the run of a cluster, whose workers get service and credentials from the environment."""
        from boardclient.distributed import plan_many
        from boardclient.integrations.dask import DaskRun

        options = self.options
        needed = ["token"] * any(account is None for _, account in self.places)
        needed += ["client_id", "client_secret", "redirect_uri", "auth_url"] * any(account for _, account in self.places)
        values = {name: getattr(self.client.settings, name) for name in ("base_url", "key", *needed)}
        variables = {name: f"BOARDCLIENT_{name.upper()}" for name in values}
        for name in needed:
            if values[name] is None:
                raise UsageError(f"--engine dask needs {variables[name]}: each worker reads its credentials from the environment")
        os.environ.update({variables[name]: value for name, value in values.items() if value is not None})
        jobs = await plan_many(
            _Sized(self.total, ((*row.place, row.draft) for row in self._taken())),
            options.ledger or "",
            parts=options.parts,
            marker=options.marker,
            settle=options.settle,
        )
        return DaskRun(
            jobs,
            workers=options.workers,
            scheduler=options.scheduler,
            concurrency=options.concurrency,
            on_progress=self._show_progress,
        )

    async def _follow(self) -> None:
        is_begun = False
        of_accounts = (ConsentRequired,) if self.options.engine else ()  # those that rows name
        try:
            self._run = run = await self._begun_run()
            async with run:
                is_begun = True
                self.client.stopping.stop = run.stop
                async for result in run:
                    self._count(result)
        except JournalError as error:
            raise (CommandError if is_begun else UsageError)(str(error)) from None
        except of_accounts as error:
            raise NoCredentialsError(f"{error}; then the same command line resumes it") from None
        finally:
            for result in self._run.take_ready() if isinstance(self._run, BulkRun) else ():  # those that came meanwhile
                self._count(result)

    def _show_progress(self, progress: BulkProgress) -> None:
        self._view.update(progress, stopping=self.client.stopping.is_requested)

    def _taken(self) -> Iterator[_rows.FileRow]:
        """Yield the rows of the file to the run. Their results are numbered by board and account."""
        numbers = dict(zip(self.places, itertools.accumulate(self.places.values(), initial=0), strict=False))
        for row in cast("Iterator[_rows.FileRow]", self.rows()):  # the check has found no problem
            self._under_way[numbers[row.place]] = row.number, _key_of(self._begun, row.draft)
            numbers[row.place] += 1
            self._begun += 1
            yield row

    def _count(self, result: CardResult) -> None:
        number, key = self._under_way.pop(result.index)
        if result.state in {"failed", "unknown"}:
            self._name(number, key, result.state, str(result.error))

    def _name(self, row: int, key: RowKey, state: str, why: str) -> None:
        """Print why a row has no card, or may have none. An unknown row is also named as `journal resolve` takes it."""
        place = f"row {row} ({key_name(key)})" if state == "unknown" else f"row {row}"
        note(f"{place}: {state}: {why}", fg="red" if state == "failed" else "yellow")  # rich puts it above the bar
        if self.options.fields is not None:
            self._failed.append({"row": row, "key": key, "state": state, "error": why})

    def _abandon(self) -> None:
        """Count the rows whose cards may exist after the run was cancelled: those in doubt, or all if that is not known."""
        doubtful = {key for _, key in self._under_way.values()}
        if self.options.journal is not None:
            with contextlib.suppress(JournalError):
                doubtful &= {row.key for row in read_rows(self.options.journal, "logged", "unknown")}
        self._abandoned = len(doubtful)

    def _check(self, report: BulkReport) -> None:
        audit = report.audit
        is_resumable = self.options.journal is not None or self.options.ledger is not None
        if report.failed:
            again = "; the same command line sends them again" if is_resumable else ""
            raise CommandError(f"{plural(report.failed, 'row')} failed{again}")
        if audit is not None and audit.is_wrong:
            raise CommandError("not every row has a card of its own, exactly once")
        if report.unknown:
            again = "the same command line looks again" if is_resumable else "look at the board, since no journal was kept"
            if self.options.journal is not None:
                again += f", boardclient journal resolve {self.options.journal} settles them by hand"
            raise NotProvenError(f"{plural(report.unknown, 'row')} may exist or not; {again}")
        if audit is not None and not audit.is_sound:
            raise NotProvenError("the board does not list every card, so lost and second ones are not ruled out")
        if report.audit_error is not None:
            raise NotProvenError("the board could not be read at the end, so lost and second cards are not ruled out")

    def _print_end(self, report: BulkReport) -> None:
        for text in [] if report.audit is None else _audit_lines(report.audit):
            note(text, fg="red")
        if report.audit_error is not None:
            note(f"the board could not be read at the end: {report.audit_error}", fg="red")
        counts = {state: getattr(report, state) for state in STATES}
        counts["unknown"] += self._abandoned
        not_sent = self.total - self._begun + len(self._under_way) - self._abandoned
        if self.options.fields is not None:
            values = {**counts, "not_sent": not_sent, "rows": self._failed}
            values |= {name: getattr(report, name) for name in ("seconds", "rate", "requests", "rejected")}
            if report.audit is not None:
                values["audit"] = {field.name: _named(getattr(report.audit, field.name)) for field in attrs.fields(BulkAudit)}
            if report.audit_error is not None:
                values["audit_error"] = str(report.audit_error)
            show("", values, self.options.fields)
            return
        text = ", ".join(f"{state} {count}" for state, count in counts.items() if count or state != "already")
        text += f", not sent {not_sent}" if not_sent else ""
        out(f"{text} in {report.seconds:.1f} s ({report.rate:.0f} cards/s, {report.requests} requests)")


def _named(value: object) -> object:
    """Return a value of an audit as JSON; cards and drafts by what names them."""
    if isinstance(value, tuple | list):
        return [_named(item) for item in value]
    if isinstance(value, Card):
        return {"id": value.id, "name": value.name}
    return {"reference": value.reference, "name": value.name} if isinstance(value, CardDraft) else value


def _audit_lines(audit: BulkAudit) -> list[str]:
    """Return lines on what the board showed at the end. Cards of one kind are named up to a number."""
    counts = {
        "lost": f"{audit.lost} of the confirmed cards are not on the board",
        "hidden": f"{audit.hidden} of the confirmed cards are not listed, so the listing is incomplete",
        "reused": f"{audit.reused} rows were given the card of another row, and may have none of their own",
    }
    return [
        *(f"{name}: {words}" for name, words in counts.items() if getattr(audit, name)),
        *first_lines("duplicated", [f"{card.name!r} ({card.id}) is a second card of a row" for card in audit.duplicated]),
        *first_lines("resembling", [f"{card.name!r} ({card.id}) may be that of an unknown row" for card in audit.resembling]),
    ]
