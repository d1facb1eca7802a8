"""The output of an import: a progress bar, the failed rows, the final counts."""

from collections import Counter
from pathlib import Path

import attrs

from boardclient import AsyncSession, BulkProgress, Card, JournalError
from boardclient.bulk import BulkAudit, journal_identity
from boardclient.bulk.journal import was_used
from boardclient.cli import _import, _render, _rows
from boardclient.cli._errors import FileError, IncompleteError, UsageError
from boardclient.cli._import_journal import RowPlan, read_earlier
from boardclient.cli._signals import GracefulStop
from boardclient.cli._text import note, out, out_json


@attrs.frozen(kw_only=True)
class ImportOptions:
    """The options of `import`. Without a journal an import can't be resumed."""

    board_id: str
    default_list: str | None = None
    journal: Path | None = None
    concurrency: int | None = None
    settle: float | None = None
    is_dry_run: bool = False
    as_json: bool = False
    layout: _rows.Layout = _rows.PLAIN


async def import_file(
    session: AsyncSession, path: Path, options: ImportOptions, graceful_stop: GracefulStop | None = None
) -> None:
    """Import a file, show its progress, and print the counts however it ends.

    Raises:
        FileError: the file or the journal can't be used. No card was created.
        UsageError: the list or the journal can't be used. No card was created.
        IncompleteError: some rows failed or are unknown, or the file changed.
        BoardClientError: the lists could not be read, or the run as a whole failed.
    """
    form = _rows.detect(path)
    with _import.opened(path) as file:
        source = await _import.prepare(session, file, form, options.board_id, options.default_list, options.layout)
        try:
            earlier = await read_earlier(options.journal, journal_identity(session.identity, options.board_id))
        except JournalError as error:
            raise FileError(str(error)) from None
        if not earlier.exists and options.journal is not None and was_used(options.journal):
            note(f"{options.journal} is gone, though an import has used it: its rows are created again unless you put it back")
        plans = await _import.check(source, earlier)
        if options.is_dry_run:
            _show_plan(plans, options, has_journal=earlier.exists)
        else:
            await _send(session, source, plans.total(), options, graceful_stop or GracefulStop())


def _show_plan(plans: Counter[RowPlan], options: ImportOptions, *, has_journal: bool) -> None:
    counts = {
        "would_create": plans["new"],
        "already": plans["done"],
        "failed": plans["failed"],
        "unknown": plans["doubtful"],
    }
    if options.as_json:
        out_json({"dry_run": True, **counts})
        return
    text = f"would create {counts['would_create']}"
    if has_journal:
        text += f", already {counts['already']}, failed for good {counts['failed']}, to be looked for {counts['unknown']}"
        text += f" (by {options.journal})"
    out(f"{text}; nothing was sent")


async def _send(
    session: AsyncSession, source: _import.Source, rows: int, options: ImportOptions, graceful_stop: GracefulStop
) -> None:
    failed: list[_import.FailedRow] = []
    bar = _render.progress(_render.notes())

    def report(row: _import.FailedRow) -> None:
        _render.line(bar.console, f"row {row.row}: {row.state}: {row.error}", style="red" if row.state == "failed" else "yellow")
        if options.as_json:
            failed.append(row)

    outcome = _import.ImportOutcome(report)
    send_options = _import.SendOptions(
        rows=rows,
        board_id=options.board_id,
        journal=options.journal,
        concurrency=options.concurrency,
        settle=options.settle,
    )
    try:
        with bar:
            task = bar.add_task("Importing", total=rows, pace="")

            def advance(progress: BulkProgress) -> None:
                bar.update(task, completed=progress.done, pace=_render.pace(progress))

            graceful_stop.on_request = lambda: bar.update(task, description="Stopping (a second signal stops at once)")
            await _import.send(session, source, outcome, send_options, graceful_stop=graceful_stop, on_progress=advance)
    except UsageError:
        raise
    except BaseException:
        _show_end(outcome, failed, as_json=options.as_json)
        raise
    _show_end(outcome, failed, as_json=options.as_json)
    _check_complete(outcome, graceful_stop)


def _check_complete(outcome: _import.ImportOutcome, graceful_stop: GracefulStop) -> None:
    """Check that a finished import created every row. If a signal stopped it, the signal is reported instead.

    Raises:
        IncompleteError: some rows do not exist as exactly one card, or the file changed.
    """
    if outcome.stopped_by is not None:
        raise IncompleteError(outcome.stopped_by)
    if not graceful_stop.is_requested and not outcome.is_complete:
        raise IncompleteError("not every row exists as a card exactly once")


def _show_end(outcome: _import.ImportOutcome, failed: list[_import.FailedRow], *, as_json: bool) -> None:
    audit = outcome.report.audit
    for text in [] if audit is None else _audit_lines(audit):
        note(text, fg="red")
    if outcome.report.audit_error is not None:
        note(f"the board could not be read at the end, so duplicates are not ruled out: {outcome.report.audit_error}", fg="red")
    if as_json:
        out_json(_as_json(outcome, failed))
    else:
        out(_in_words(outcome))


def _audit_lines(audit: BulkAudit) -> list[str]:
    """Return a line for each fault that the board showed at the end."""
    found = []
    if audit.lost:
        found.append(f"lost: {audit.lost} of the confirmed cards are not on the board")
    if audit.hidden:
        found.append(f"hidden: {audit.hidden} of the confirmed cards are not listed, so the listing is incomplete")
    if audit.reused:
        found.append(
            f"reused: {audit.reused} rows were given the card of another row or an older one, and may have none of their own"
        )
    found += [f"unproven: {draft.name!r} was sent again without proof, and may exist more than once" for draft in audit.unproven]
    found += [f"duplicated: {card.name!r} ({card.id}) looks like a second card of a row" for card in audit.duplicated]
    alike = {card.id for card in audit.resembling}
    for card in audit.unexpected:
        text = "may belong to a row" if card.id in alike else "belongs to no row, and was not there before"
        found.append(f"unexpected: {card.name!r} ({card.id}) {text}")
    if audit.hint is not None:
        found.append(f"hint: {audit.hint}")
    return found


def _in_words(outcome: _import.ImportOutcome) -> str:
    shown = [state for state in _import.STATES if state != "already" or outcome.counts[state]]
    text, report = ", ".join(f"{state} {outcome.counts[state]}" for state in shown), outcome.report
    if outcome.not_sent:
        text += f", not sent {outcome.not_sent}"
    return f"{text} in {report.seconds:.1f} s ({report.rate:.0f} cards/s, {report.requests} requests)"


def _as_json(outcome: _import.ImportOutcome, failed: list[_import.FailedRow]) -> dict[str, object]:
    report = outcome.report
    values: dict[str, object] = {
        **{state: outcome.counts[state] for state in _import.STATES},
        "not_sent": outcome.not_sent,
        "seconds": round(report.seconds, 3),
        "rate": round(report.rate, 3),
        "requests": report.requests,
        "rejected": report.rejected,
        "rows": [attrs.asdict(row) for row in failed],
    }
    if report.audit is not None:
        values["audit"] = _audit_values(report.audit)
    if report.audit_error is not None:
        values["audit_error"] = str(report.audit_error)
    return values


def _audit_values(audit: BulkAudit) -> dict[str, object]:
    def named(cards: tuple[Card, ...]) -> list[dict[str, str | None]]:
        return [{"id": card.id, "name": card.name} for card in cards]

    return {
        "confirmed": audit.confirmed,
        "recovered": audit.recovered,
        "lost": audit.lost,
        "hidden": audit.hidden,
        "reused": audit.reused,
        "duplicated": named(audit.duplicated),
        "unexpected": named(audit.unexpected),
        "resembling": named(audit.resembling),
        "unproven": [{"reference": draft.reference, "name": draft.name} for draft in audit.unproven],
        "hint": audit.hint,
    }
