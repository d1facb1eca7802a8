"""The commands on many cards at once: import, export, and the import's journal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boardclient import AsyncSession
from boardclient.cli import _export, _journal, _rows
from boardclient.cli._import_view import ImportOptions, import_file
from boardclient.cli._rows import Format
from boardclient.cli._running import reported, with_session
from boardclient.cli._settings import Options
from boardclient.cli._signals import GracefulStop, run_until_signal

_FORMATS = {"csv": Format.CSV, "jsonl": Format.JSON_LINES}


def import_(
    options: Options,
    *,
    file: str,
    journal: str | None,
    delimiter: str,
    renamed: Sequence[str],
    left_out: Sequence[str],
    timezone: str | None,
    **others: Any,
) -> None:
    """Create a card for each row of a file, each exactly once."""
    graceful_stop = GracefulStop()
    with reported():
        layout = _rows.layout(delimiter=delimiter, renamed=renamed, left_out=left_out, timezone=timezone)
    wanted = ImportOptions(journal=Path(journal or f"{file}.journal"), layout=layout, **others)

    async def work(session: AsyncSession) -> None:
        await import_file(session, Path(file), wanted, graceful_stop)

    # Rows in flight are named one by one, so the final line only says how to resume.
    with_session(options, work, writes=False, graceful_stop=graceful_stop, when_stopped="the same command line resumes it")


def export(options: Options, *, board_id: str, form: str | None, output: str | None, with_archived: bool) -> None:
    """Write the cards of a board in the format that import reads."""
    path = None if output is None else Path(output)

    async def work(session: AsyncSession) -> None:
        await _export.export(session, wanted)

    with reported():
        chosen = _export.choose_format(None if form is None else _FORMATS[form], path)
    wanted = _export.ExportOptions(board_id=board_id, form=chosen, output=path, with_archived=with_archived)
    with_session(options, work, writes=False)


def journal_show(options: Options, *, file: str, as_json: bool) -> None:
    """Print a summary of a journal."""
    with reported():
        _journal.show(Path(file), as_json=as_json)


def journal_export(options: Options, *, file: str, states: Sequence[Any]) -> None:
    """Print the rows of a journal as JSON Lines."""
    with reported():
        run_until_signal(lambda: _journal.export(Path(file), states))
