"""The options of `import`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import FilePath, Number, WholeNumber, argument, board_option, json_option, option, timezone_option
from boardclient.cli._output import UsageError

if TYPE_CHECKING:
    from pathlib import Path

RESULT = {
    "created": "cards that this import has created",
    "already": "rows whose cards an earlier import has created, or --existing skip has found",
    "failed": "rows that were refused",
    "unknown": "rows whose cards may exist or not",
    "not_reached": "rows that were not sent, null if the run did not begin",
    "seconds": "how long it took",
    "rate": "cards a second",
    "requests": "requests that create cards",
    "rejected": "of these, those that the service refused for their rate",
    "rows": "the rows without a card: row, key, state, error",
    "audit": "what the board showed at the end",
    "audit_error": "why the board could not be read at the end",
    "probes": "temporary cards that could not be deleted",
    "retry_at": "when the service accepts requests again, if it has said so",
}
"""The fields of the result, with what they say. The last three are there if there is something to say."""
PREVIEWED = {"preview": "true for a preview", "would_create": "cards that an import would create"}
"""Those of a preview, besides counts."""


def _renamed(value: str) -> tuple[str, str]:
    """Return a name in the file, and its column."""
    from boardclient.cli._files._layout import IMPORTED

    column, _, name = value.partition("=")
    if column not in IMPORTED or not name.strip():
        raise click.BadParameter(f"{value!r} must be COLUMN=NAME, where COLUMN is one of {', '.join(IMPORTED)}")
    return name.strip(), column


def _delimiter(value: str) -> str:
    """Return what separates cells. Few shells can express a tab."""
    mark = "\t" if value.lower() in {"\\t", "tab"} else value
    if len(mark) != 1 or mark in '"\r\n':
        raise click.BadParameter(f"{value!r} must be one character, such as ; or \\t for a tab, and no quote")
    return mark


def _encoding(value: str) -> str:
    from boardclient.cli._files._encodings import encoding_named

    return encoding_named(value)


class ImportOptions:
    """The options of `import`, each with its type for the run, and its declaration for the command line.

    Attributes:
        file: A file of CSV or JSON Lines; - is standard input.
        default_list: The list of rows that name none: an identifier or a name.
        journal: The file from which this import can be resumed.
        existing: With a new journal: what to do with rows that equal cards which are on the board already.
        marker: Put a code into each description. It proves whose card is whose where others change cards.
        probe: Prove by a temporary card, which is deleted, that lost rows are absent where no card of the import proves it.
        unordered: Let rows of a list overtake each other where connections are opened, which is faster there.
        preview: Show what would be done. Nothing is sent, and no journal is changed.
        concurrency: How many cards to create at a time.
        rate: The most requests per second.
        patience: How long to wait while nothing gets through, such as for a user to sign in.
        settle: How long the service may take to commit a request whose response was lost.
        renamed: Read COLUMN from column NAME. Repeatable.
        left_out: Ignore the file's column NAME; '*' all others. Repeatable.
        encoding: The file's encoding, as Python names it.
        delimiter: What separates the cells of CSV.
        no_header: The first row is a card. --map and --skip take the numbers of columns, from 1.
        skipped_lines: How many lines stand above the header.
        date_formats: A form of due dates as for strptime, such as %d.%m.%Y. Repeatable: they are tried in order.
        engine: Let several workers create the cards; needs the extra dask.
        workers: With --engine: the processes to start.
        parts: With --engine: how many parts to make.
        scheduler: With --engine: use this cluster instead of processes of this host.
        ledger: With --engine: what the workers share, a file or postgresql://… without a password.
    """

    file: str = argument("FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
    board: str | None = board_option("The board that gets the cards of rows that name none.")
    default_list: str | None = option("--list", metavar="LIST")
    journal: Path | None = option(
        type=FilePath(dir_okay=False), metavar="PATH", show_default="FILE.journal; none for standard input"
    )
    existing: str = option(type=click.Choice(["refuse", "skip", "create"]), default="refuse", show_default=True)
    marker: bool = option(is_flag=True)
    probe: bool = option("--probe/--no-probe", default=True, show_default=True)
    unordered: bool = option(is_flag=True)
    preview: bool = option(is_flag=True)
    concurrency: int | None = option(type=WholeNumber(min=1), metavar="N", show_default="adaptive")
    rate: float | None = option(type=Number(min=0, min_open=True), metavar="N", show_default="adaptive")
    patience: float | None = option(
        type=Number(min=0), metavar="SECONDS", show_default="without limit for a sign-in at a terminal, else 0; outages minutes"
    )
    settle: float | None = option(type=Number(min=0), metavar="SECONDS", show_default="twice the timeout, at least 10")
    renamed: Sequence[tuple[str, str]] = option("--map", type=_renamed, multiple=True, metavar="COLUMN=NAME")
    left_out: Sequence[str] = option("--skip", multiple=True, metavar="NAME")
    encoding: str | None = option(type=_encoding, metavar="NAME", show_default="UTF-8 or UTF-16")
    delimiter: str | None = option(type=_delimiter, metavar="CHAR", show_default="found by the first lines")
    no_header: bool = option(is_flag=True)
    skipped_lines: int = option("--skip-lines", type=WholeNumber(min=0), default=0, metavar="N")
    date_formats: Sequence[str] = option("--date-format", multiple=True, metavar="PATTERN", show_default="ISO 8601")
    zone: tzinfo | None = timezone_option
    engine: str | None = option(type=click.Choice(["dask"]))
    workers: int | None = option(type=WholeNumber(min=1), metavar="N", show_default="processors")
    parts: int | None = option(type=WholeNumber(min=1), metavar="N", show_default="5,000 rows each")
    scheduler: str | None = option(metavar="ADDRESS")
    ledger: str | None = option(metavar="PATH_OR_URL", show_default="FILE.ledger")
    fields: tuple[str, ...] | None = json_option(*RESULT, *PREVIEWED)
    has_begun: bool = False
    has_own_journal: bool = False
    """Whether the journal is the one that is named after the file."""
    retry_at: datetime | None = None

    def __init__(self, **given: Any) -> None:
        # As attributes that the class declares: type checkers know them, and click gives each of them.
        vars(self).update(given)

    def note_error(self, error: object) -> None:
        """Keep when the service accepts requests again, if an error says so."""
        moments = [self.retry_at, getattr(error, "retry_at", None)]
        # The latest: before that at least one of the services or accounts refuses again.
        self.retry_at = max(filter(None, moments), default=None)

    def check(self) -> None:
        """Check that the options fit together, and name the files that the run keeps beside its input.

        Raises:
            UsageError: they do not.
        """
        from boardclient.cli._files._date_formats import check_formats

        # First, as it needs neither the file nor the service.
        check_formats(self.date_formats, self.zone)
        if self.engine is None:
            self._check_run()
        # Several processes share a ledger, which a journal, and what rests on one, can't replace.
        elif self.journal or self.rate or self.existing == "skip":
            raise UsageError("--journal, --rate and --existing skip can't be used with --engine")
        else:
            self.ledger = self.ledger or f"{'import' if self.file == '-' else self.file}.ledger"

    def _check_run(self) -> None:
        if not self.board:
            raise UsageError("give --board")
        if self.ledger or self.workers or self.parts or self.scheduler:
            raise UsageError("--workers, --parts, --scheduler and --ledger are those of --engine dask")
        # A pipe, such as <(…), has a name too, which is another one each time: no journal could be found again.
        if self.journal is None and os.path.isfile(self.file):
            from pathlib import Path

            self.journal, self.has_own_journal = Path(f"{self.file}.journal"), True
        if self.existing == "skip" and self.journal is None:
            raise UsageError("--existing skip needs a journal: give --journal")
