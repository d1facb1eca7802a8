"""The run of an import: it sends the rows, names those without a card, and counts."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import attrs

from boardclient import (
    BoardClientError,
    BulkProgress,
    BulkReport,
    BulkRun,
    Card,
    CardDraft,
    CardResult,
    ConsentRequired,
    JournalError,
)
from boardclient._base._environment import reason_of
from boardclient.bulk import BulkAudit
from boardclient.bulk.journal import RowKey, read_rows
from boardclient.cli._commands._import_options import ImportOptions
from boardclient.cli._drawing import ProgressView
from boardclient.cli._files import _rows
from boardclient.cli._files._row_numbers import RowNumbers, name_of
from boardclient.cli._output import (
    CommandError,
    NoCredentialsError,
    NotProvenError,
    UsageError,
    first_lines,
    in_words,
    note,
    out,
    plural,
    show,
)
from boardclient.cli._running import Client
from boardclient.credentials._profiles import VARIABLES

if TYPE_CHECKING:
    from boardclient.integrations.dask import DaskRun


STATES = ("created", "already", "failed", "unknown")


class _Rate:
    """A limiter that starts at most so many requests per second, evenly."""

    def __init__(self, rate: float) -> None:
        self._seconds, self._next_at = 1 / rate, 0.0

    async def __aenter__(self) -> None:
        now = asyncio.get_running_loop().time()
        # Not in bursts after a pause: what was not used is not made up for.
        start_at = max(self._next_at, now)
        self._next_at = start_at + self._seconds
        await asyncio.sleep(start_at - now)

    async def __aexit__(self, *error: object) -> None:
        return None


@attrs.frozen
class _Sized:
    """Items that are made once, and their number."""

    count: int
    items: Iterator[Any]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return self.items


def show_nothing_sent(options: ImportOptions) -> None:
    """Print the counts with `--json`, of an import that has ended before its run began."""
    if options.fields is not None and not options.preview and not options.has_begun:
        show("", _values(BulkReport(), None, [], options.retry_at), options.fields)


@attrs.define
class ImportRun:
    """One run, and the rows that it sends. Its counts are complete once it has ended, however that was."""

    client: Client
    rows: Callable[[], _rows.Rows]
    places: Counter[_rows.Place]
    options: ImportOptions
    numbers: RowNumbers
    _under_way: dict[int, tuple[int, RowKey]] = attrs.field(factory=dict)
    _failed: list[dict[str, object]] = attrs.field(factory=list)
    _view: ProgressView = attrs.field(init=False)
    _needs_sign_in: bool = False
    _run: BulkRun | DaskRun | None = None

    async def run(self) -> None:
        """Send the rows and print the counts.

        Raises:
            UsageError: the journal can't be used; nothing was sent.
            CommandError: some rows do not exist as exactly one card, or that is not proven.
            BoardClientError: the run as a whole failed.
        """
        self._view, self.options.has_begun = ProgressView(self.places.total()), True
        try:
            with self._view:
                await self._follow()
        except BaseException as error:
            self.options.note_error(error)
            # With --json a program reads the counts, also those of a run that has sent nothing.
            if self.options.fields is not None or not isinstance(error, UsageError):
                self._print_end(self._report)
            raise
        self._print_end(self._report)
        if not self.client.stopping.received:
            # A signal explains the end better than what the run waited for by then.
            self._check_waited()
            self._check(self._report)

    @property
    def _report(self) -> BulkReport:
        return BulkReport() if self._run is None else self._run.report

    async def _begun_run(self) -> BulkRun | DaskRun:
        options, session = self.options, self.client.session
        if options.engine is not None and self.places.total():
            return await self._dask_run()
        if options.rate is not None:
            session = session.with_options(limiter=_Rate(options.rate))
        return session.cards.create_many(
            _Sized(self.places.total(), (row.draft for row in self._taken())),
            concurrency=options.concurrency,
            journal=options.journal,
            board_id=next((board_id for board_id, _ in self.places), None),
            settle=options.settle,
            marker=options.marker or None,
            probe=options.probe and bool(self.places),
            ordered=not options.unordered,
            patience=options.patience,
            on_progress=self._show_progress,
        )

    async def _dask_run(self) -> DaskRun:
        """Plan the jobs, and return the run of a cluster, whose workers get service and credentials from the environment."""
        from boardclient.distributed import plan_many
        from boardclient.integrations.dask import DaskRun

        options = self.options
        needed = ["token"] * any(account is None for _, account in self.places)
        needed += ["client_id", "client_secret", "redirect_uri", "auth_url"] * any(account for _, account in self.places)
        found = self.client.settings.variables("base_url", "key", *needed)
        for name in needed:
            if VARIABLES[name] not in found:
                raise UsageError(f"--engine dask needs {VARIABLES[name]}: each worker reads its credentials from the environment")
        # A cluster on this machine inherits them, and no credential passes through the scheduler.
        os.environ.update(found)
        jobs = await plan_many(
            _Sized(self.places.total(), ((*row.place, row.draft) for row in self._taken())),
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
            probe=options.probe,
            on_progress=self._show_progress,
        )

    def _keep_numbers(self) -> None:
        """Keep the numbers of the rows for `journal resolve`, which takes positions without them."""
        try:
            if self.options.journal is not None:
                self.numbers.write(self.options.journal)
        except OSError as error:
            note(f"the numbers of rows can't be kept beside the journal ({reason_of(error)}): name rows by their positions there")

    async def _follow(self) -> None:
        is_begun = False
        of_accounts = (ConsentRequired,) if self.options.engine else ()  # those that rows name
        try:
            self._run = run = await self._begun_run()
            async with run:
                is_begun = True
                self._keep_numbers()
                self.client.stopping.stop = run.stop
                async for result in run:
                    self._count(result)
        except JournalError as error:
            # Before the run has begun nothing was sent, which the exit code 2 says.
            raise (CommandError if is_begun else UsageError)(str(error)) from None
        except BoardClientError as error:
            if isinstance(self._run, BulkRun) and self._run.ended_waiting is not None:
                return  # `_check_waited` says so, once the counts are printed
            if not isinstance(error, of_accounts):
                raise
            raise NoCredentialsError(f"{error}; then the same command line resumes it") from None
        finally:
            for result in self._run.take_ready() if isinstance(self._run, BulkRun) else ():  # those that came meanwhile
                self._count(result)

    def _show_progress(self, progress: BulkProgress) -> None:
        # In a pipe or a scheduled job nobody will sign in, so that waiting for it would not end.
        is_alone = not (sys.stdin.isatty() or sys.stderr.isatty())
        if progress.waiting_for == "consent" and self.options.patience is None and is_alone and isinstance(self._run, BulkRun):
            self._needs_sign_in = True
            self._run.stop()
        self._view.update(progress, stopping=bool(self.client.stopping.received))

    def _check_waited(self) -> None:
        """Raise an error if the run has waited for too long.

        Raises:
            NoCredentialsError: the user has to sign in.
            CommandError: nothing else got through.
        """
        waited = self._run.ended_waiting if isinstance(self._run, BulkRun) else None
        if self._needs_sign_in or (waited is not None and waited.waiting_for == "consent"):
            raise NoCredentialsError(
                "the service refuses the token: run boardclient login; then the same command line resumes it"
            )
        if waited is not None:
            raise CommandError(f"{waited.status} for longer than --patience; the same command line resumes it")

    def _taken(self) -> Iterator[_rows.FileRow]:
        """Yield the rows of the file to the run. Their results are numbered by board and account, and so are their positions."""
        first = dict(zip(self.places, itertools.accumulate(self.places.values(), initial=0), strict=False))
        positions = dict.fromkeys(self.places, 0)
        for row in cast("Iterator[_rows.FileRow]", self.rows()):  # the check has found no problem
            position, reference = positions[row.place], row.draft.reference
            self._under_way[first[row.place] + position] = row.number, position if reference is None else reference
            positions[row.place] += 1
            yield row

    def _count(self, result: CardResult) -> None:
        """Print why a row has no card, or may have none. An unknown row is also named as `ledger resolve` takes it."""
        # Removed at once, so that memory holds only the rows under way, and not the file.
        row, key = self._under_way.pop(result.index)
        if result.error is not None:
            color, place = "red", f"row {row}"
            if self.options.engine is None and isinstance(key, int):
                key = row
            if result.state == "unknown":
                color = "yellow"
                place += (
                    f" (reference {key!r})" if isinstance(key, str) else f" (--position {key})" if self.options.engine else ""
                )
            error = in_words(result.error)
            self.options.note_error(result.error)
            note(f"{place}: {result.state}: {error}", fg=color)  # rich puts it above the bar
            self._failed.append({"row": row, "key": key, "state": result.state, "error": error})

    def _not_reached(self, report: BulkReport) -> int:
        return self.places.total() - sum(int(getattr(report, state)) for state in STATES)

    def _check(self, report: BulkReport) -> None:
        audit = report.audit
        is_resumable = self.options.journal is not None or self.options.ledger is not None
        # In the order of what a person has to do: mend rows, send the rest, look at the board, wait.
        if report.failed:
            again = "; the same command line sends failed rows again" if is_resumable else ""
            raise CommandError(f"{plural(report.failed, 'row')} failed{again}")
        if not_reached := self._not_reached(report):
            raise CommandError(f"{plural(not_reached, 'row')} not sent; the same command line sends them")
        if audit is not None and audit.is_wrong:
            raise CommandError("some rows have no card any more, or more than one: see above")
        if report.unknown:
            again = "the same command line looks again" if is_resumable else "look at the board, since no journal was kept"
            if self.options.journal is not None and not self.options.probe:
                again += ", without --no-probe it proves more"
            if self.options.journal is not None:
                again += f", boardclient journal resolve {self.options.journal} resolves them"
            raise NotProvenError(f"{plural(report.unknown, 'row')} may exist or not; {again}")
        if audit is not None and not audit.is_sound:
            raise NotProvenError("the board does not list every card, so lost and second ones are not ruled out")
        if report.audit_error is not None:
            raise NotProvenError("the board could not be read at the end, so lost and second cards are not ruled out")

    def _print_end(self, report: BulkReport) -> None:
        if report.audit is not None:
            for text in _audit_lines(report.audit, self._keys_of_lost(report.audit)):
                note(text, fg="red")
        if report.audit_error is not None:
            note(f"the board could not be read at the end: {in_words(report.audit_error)}", fg="red")
        for probe in report.probes:
            note(f"probe: the temporary card {probe.name!r} ({probe.id}) is still on the board: delete it by hand", fg="yellow")
        self.options.note_error(report.audit_error)
        values = _values(report, self._not_reached(report), self._failed, self.options.retry_at)
        if self.options.fields is not None:
            show("", values, self.options.fields)
            return
        text = ", ".join(f"{state} {values[state]}" for state in STATES if values[state] or state != "already")
        text += f", not reached {values['not_reached']}" if values["not_reached"] else ""
        out(f"{text} in {report.seconds:.1f} s ({report.rate:.0f} cards/s, {plural(report.requests, 'request')})")

    def _keys_of_lost(self, audit: BulkAudit) -> dict[str | None, str]:
        """Return words for the rows of lost cards, by card, as far as a journal knows them."""
        # Reading the whole journal is worth it only for cards that are lost.
        if not audit.lost or self.options.journal is None:
            return {}
        return {row.detail: f" of {name_of(row.key, self.numbers)}" for row in read_rows(self.options.journal, "done")}


def _values(
    report: BulkReport, not_reached: int | None, rows: Sequence[Mapping[str, object]], retry_at: datetime | None
) -> dict[str, object]:
    """Return the result for JSON. `rows` are those without a card."""
    values = {name: getattr(report, name) for name in (*STATES, "seconds", "rate", "requests", "rejected")}
    audit = report.audit and {one.name: _named(getattr(report.audit, one.name)) for one in attrs.fields(BulkAudit)}
    error = report.audit_error and in_words(report.audit_error)
    left = {"audit": audit, "audit_error": error, "probes": _named(report.probes)}
    left["retry_at"] = retry_at and retry_at.isoformat(timespec="seconds")
    return {**values, "not_reached": not_reached, "rows": rows, **{name: value for name, value in left.items() if value}}


def _named(value: object) -> object:
    """Return a value of an audit as JSON; cards and drafts by what names them."""
    if isinstance(value, tuple | list):
        return [_named(item) for item in value]
    if isinstance(value, Card):
        return {"id": value.id, "name": value.name}
    return {"reference": value.reference, "name": value.name} if isinstance(value, CardDraft) else value


def _audit_lines(audit: BulkAudit, keys: Mapping[str | None, str]) -> list[str]:
    """Return lines on what the board showed at the end. `keys` are words for the rows of lost cards, as far as they are known."""
    counts = {
        "hidden": f"{audit.hidden} of the confirmed cards are not listed, so the listing is incomplete",
        "reused": f"{audit.reused} rows were given the card of another row, and may have none of their own",
    }
    return [
        *first_lines("lost", [f"the card {card.id}{keys.get(card.id, '')} was deleted" for card in audit.lost_cards]),
        *(f"{name}: {words}" for name, words in counts.items() if getattr(audit, name)),
        *first_lines("duplicated", [f"{card.name!r} ({card.id}) is a second card of a row" for card in audit.duplicated]),
        *first_lines("resembling", [f"{card.name!r} ({card.id}) may be that of an unknown row" for card in audit.resembling]),
    ]
