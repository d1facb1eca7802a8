"""What an import shows: a bar while it runs, each row that failed, the counts at its end."""

import json
from pathlib import Path
from typing import BinaryIO

import attrs

from boardclient import AsyncSession, BulkProgress
from boardclient.cli import _import, _render, _rows
from boardclient.cli._errors import IncompleteError


@attrs.frozen(kw_only=True)
class ImportOptions:
    """Hold what the caller of `import` asked for."""

    board_id: str
    default_list: str | None = None
    concurrency: int | None = None
    as_json: bool = False


async def import_file(session: AsyncSession, path: Path, options: ImportOptions) -> None:
    """Import a file, show how it goes, and print the counts however it ends.

    Raises:
        FileError, UsageError: the file or the list is wrong; nothing was sent.
        IncompleteError: some rows failed or are unknown, or the file changed.
        BoardClientError: the lists could not be read, or the run as a whole failed.
    """
    form = _rows.detect(path)
    with _import.opened(path) as file:
        await _import_open_file(session, file, form, options)


async def _import_open_file(session: AsyncSession, file: BinaryIO, form: _rows.Format, options: ImportOptions) -> None:
    source = await _import.prepare(session, file, form, options.board_id, options.default_list)
    rows = await _import.check(source)
    failed: list[_import.FailedRow] = []
    bar = _render.progress(_render.notes())

    def tell(row: _import.FailedRow) -> None:
        _render.line(bar.console, f"row {row.row}: {row.state}: {row.error}", style="red" if row.state == "failed" else "yellow")
        if options.as_json:
            failed.append(row)

    outcome = _import.Outcome(tell)
    try:
        with bar:
            task = bar.add_task("Importing", total=rows)

            def advance(progress: BulkProgress) -> None:
                bar.update(task, completed=progress.done)

            await _import.send(session, source, outcome, rows=rows, concurrency=options.concurrency, on_progress=advance)
    finally:
        _render.line(_render.output(), _as_json(outcome, failed) if options.as_json else _in_words(outcome))
    if outcome.stopped_by is not None:
        raise IncompleteError(outcome.stopped_by)
    if not outcome.is_complete:
        raise IncompleteError("not every row exists as a card; nothing was sent twice")


def _in_words(outcome: _import.Outcome) -> str:
    shown = [state for state in _import.STATES if state != "already" or outcome.counts[state]]
    text, report = ", ".join(f"{state} {outcome.counts[state]}" for state in shown), outcome.report
    if outcome.not_sent:
        text += f", not sent {outcome.not_sent}"
    return f"{text} in {report.seconds:.1f} s ({report.rate:.0f} cards/s, {report.requests} requests)"


def _as_json(outcome: _import.Outcome, failed: list[_import.FailedRow]) -> str:
    report = outcome.report
    return json.dumps(
        {
            **{state: outcome.counts[state] for state in _import.STATES},
            "not_sent": outcome.not_sent,
            "seconds": round(report.seconds, 3),
            "rate": round(report.rate, 3),
            "requests": report.requests,
            "rows": [attrs.asdict(row) for row in failed],
        }
    )
