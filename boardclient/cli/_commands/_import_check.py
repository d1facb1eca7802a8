"""What is checked before an import sends anything. `_import_run` sends the rows."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import hashlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs
import click

from boardclient import AsyncSession, Card, JournalError
from boardclient._base._environment import reason_of
from boardclient.bulk.journal import is_new, read_journal
from boardclient.bulk.plan import Plan, planned_run
from boardclient.cli._commands._import_options import ImportOptions
from boardclient.cli._commands._import_run import ImportRun
from boardclient.cli._files import _rows
from boardclient.cli._files._layout import Layout, Problem, problem_lines
from boardclient.cli._files._recognise import recognise
from boardclient.cli._files._row_numbers import RowNumbers
from boardclient.cli._names import Names, of_lists
from boardclient.cli._output import LINES, UsageError, local, note, plural, quoted, show, show_all
from boardclient.cli._running import Client, end_by_signal, handled_by

_SAMPLE = 5
"""How many rows a preview shows."""
_ROWS_PER_STEP = 500
_CHANGED = "was sent by an earlier run with another "
"""What a plan says of a row that was sent with other content."""
_POSITION = re.compile(r"^the row at position \d+ (?:\(from 0\) )?")
_OTHER_FILE = "this journal is of another file: give each run a journal of its own (--journal)"
_PART_BYTES = 2**20


@contextlib.contextmanager
def copied(name: str) -> Iterator[BinaryIO]:
    """Give a copy of a file of rows: it is read several times, and must not change meanwhile."""
    with ExitStack() as opened:
        with _temporary_files():
            copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 -- it is closed below
            opened.callback(_discard, copy)
            with handled_by(end_by_signal):  # standard input may take its time
                copy.writelines(_parts_of(name))
            copy.flush()
        yield copy


def _parts_of(file: str) -> Iterator[bytes]:
    """Yield the bytes of a file.

    Raises:
        UsageError: it can't be read.
    """
    try:
        with click.open_file(file, "rb") as source:
            while part := source.read(_PART_BYTES):
                yield part
    except OSError as error:
        name = "standard input" if file == "-" else file
        raise UsageError(f"{name} can't be read ({reason_of(error)}); nothing was sent") from None


def _discard(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # what could not be written can't be written now either
        file.close()


@contextlib.contextmanager
def _temporary_files(journal: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Let errors of temporary files name their folder. If `journal` returns None, the journal is one of these files.

    It is asked after an error, since another import may have created the journal meanwhile.

    Raises:
        UsageError: one can't be written.
    """
    try:
        yield
    except (OSError, JournalError) as error:
        # A journal on a temporary copy fails with a `JournalError`, whose cause says what is wrong with the disk.
        cause = error if isinstance(error, OSError) else error.__cause__
        if cause is None or (cause is not error and journal() is not None):  # the journal is refused, or can't be written
            raise
        why = reason_of(cause) if isinstance(cause, OSError) else str(cause)
        raise UsageError(
            f"temporary files can't be written in {tempfile.tempdir or 'any folder'} ({why}): free some disk space there, or set"
            " TMPDIR to another folder; nothing was sent"
        ) from None


async def import_file(client: Client, file: BinaryIO, options: ImportOptions) -> None:
    """Import a file, show its progress, and print the counts however it ends.

    Raises:
        UsageError: the file, the list or the journal can't be used, or cards exist already. No card was created.
        CommandError: some rows failed.
        NotProvenError: some rows are unknown.
        BoardClientError: the lists could not be read, or the run as a whole failed.
    """
    is_resumable = options.journal is not None or options.engine is not None
    client.stopping.hint = "the same command line resumes it" if is_resumable else "without a journal it can't be resumed"
    # Before any request: a file that can't be read needs no service.
    layout = recognise(file, _layout_of(options))
    if layout.difference:
        note(f"the file is read as {layout.difference}")
    named = [*([None] if options.board else []), *(_rows.named_boards(file, layout) if layout.has_places else ())]
    boards = {name: await _board(client, name) for name in named}
    rows = partial(_rows.read, file, boards, layout)
    plan, checked = await _checked(client, rows, boards, options)
    # Read again with the journal of its own: what is done and in doubt is another thing there.
    if checked.is_of_another_file:
        options.journal = _journal_of_its_own(file, options)
        plan, checked = await _checked(client, rows, boards, options)
    checked.check_problems()
    if not checked.places:
        note("the file has no rows")
    checked.check_existing(options)
    if options.preview:
        journal = _existing_journal(options)
        failed = 0 if journal is None else read_journal(journal).counts["failed"]
        _show_preview(checked, failed, {board.board_id: board.lists for board in boards.values()}, options)
        return
    # After all checks: a journal that notes cards as done must not be that of a file that is refused.
    if plan.existing and options.journal is not None:
        with _temporary_files(lambda: options.journal):
            plan.adopt()
    await ImportRun(client, rows, checked.places, options, numbers=checked.numbers).run()


def _existing_journal(options: ImportOptions) -> Path | None:
    # unlike Path.exists it does not raise without permission
    return options.journal if options.journal is not None and os.path.exists(options.journal) else None


async def _checked(
    client: Client, rows: Callable[[], _rows.Rows], boards: Mapping[str | None, _rows.ImportBoard], options: ImportOptions
) -> tuple[Plan, _Checked]:
    """Read the whole file, and plan its rows with the journal."""
    journal = _existing_journal(options)
    cards = await _cards_before(client.session, {board.board_id for board in boards.values()}, journal, options)
    board_id = boards[None].board_id if options.board else None
    with (
        _temporary_files(partial(_existing_journal, options)),
        planned_run(options.journal, client.session.identity, cards, board_id=board_id, marker=options.marker) as plan,
    ):
        checked = _Checked(plan)
        await checked.read(rows())
    return plan, checked


def _journal_of_its_own(file: BinaryIO, options: ImportOptions) -> Path:
    """Return the journal of a file that is another one than before, under the same name.

    It has the digest of the file in its name, so that the same command line finds it again. No import of another file with this
    name is left unfinished by that: its journal is named after a file that is gone.

    Raises:
        UsageError: one is unfinished, or the user has named the journal.
    """
    journal = options.journal
    assert journal is not None  # noqa: S101 -- else there is none that could be of another file
    if not options.has_own_journal:
        raise UsageError(f"{journal}: {_OTHER_FILE}; nothing was sent")
    # The check has read to the end.
    file.seek(0)
    digest = hashlib.file_digest(cast("Any", file), "sha256").hexdigest()[:12]
    own = journal.with_name(f"{Path(options.file).name}.{digest}.journal")
    # Any unfinished one counts: cards of its lost rows could be taken for those of this file.
    for other in [journal, *journal.parent.glob(f"{glob.escape(Path(options.file).name)}.*.journal")]:
        counts = read_journal(other).counts
        if other != own and (left := sum(counts.values()) - counts["done"] - counts["undone"]):
            raise UsageError(
                f"{other}: {_OTHER_FILE}; {plural(left, 'row')} of that one must be resolved first; nothing was sent"
            )
    note(f"{journal} is of another file: the journal of this one is {own}")
    return own


def _layout_of(options: ImportOptions) -> Layout:
    return Layout(
        encoding=options.encoding,
        columns={**dict.fromkeys(options.left_out), **dict(options.renamed)},
        zone=options.zone,
        delimiter=options.delimiter,
        has_header=not options.no_header,
        skipped_lines=options.skipped_lines,
        date_formats=options.date_formats,
        default_list=options.default_list,
        has_places=options.engine is not None,
    )


async def _board(client: Client, name: str | None) -> _rows.ImportBoard:
    """Find a board, and read its lists. They are read with the credentials of this command, whatever account rows name."""
    board_id = client.board_id(name)
    return _rows.ImportBoard(board_id, of_lists(await client.session.boards.lists(board_id)))


async def _cards_before(
    session: AsyncSession, board_ids: Iterable[str], journal: Path | None, options: ImportOptions
) -> list[Card]:
    """Return the cards that the rows are compared with: those on the boards, if they are compared at all."""
    # A run that continues finds its own cards on the board, which are no reason to refuse its rows.
    is_first = is_new(journal) if journal is not None else options.ledger is None or not await _is_planned(options.ledger)
    if options.existing == "create" or (options.existing == "refuse" and not is_first):
        return []
    return [card for board_id in board_ids for card in await session.boards.cards(board_id)]


async def _is_planned(ledger: str) -> bool:
    """Return True if an import has used a ledger before."""
    from boardclient.distributed import status

    with contextlib.suppress(JournalError):
        return bool(await status(ledger))
    return False


@attrs.define
class _Checked:
    """The rows of a file that can be imported. `sample` has the first ones that would create cards."""

    plan: Plan
    places: Counter[_rows.Place] = attrs.field(factory=Counter)
    equal: list[str] = attrs.field(factory=list)
    """A line for each row that equals a card."""
    problems: list[Problem] = attrs.field(factory=list)
    changed: int = 0
    """How many rows without a reference were sent with other content."""
    sample: list[_rows.FileRow] = attrs.field(factory=list)
    numbers: RowNumbers = attrs.field(factory=RowNumbers)

    async def read(self, rows: _rows.Rows) -> None:
        """Read the whole file, and keep what is wrong with rows, or was sent with other content."""
        for number, row in enumerate(rows):
            if number % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)  # the event loop handles signals
            if isinstance(row, Problem):
                self.problems.append(row)
                continue
            try:
                action, card = self.plan.add(row.draft)
            except JournalError as error:
                text = _POSITION.sub("", str(error).partition(": ")[2])  # its number in the file says which row it is
                self.problems.append(Problem(row.number, None, text))
                self.changed += row.draft.reference is None and _CHANGED in text
                continue
            self.places[row.place] += 1
            self.numbers.add(row.number)
            if card is not None:
                self.equal.append(f"row {row.number}: equals the card {quoted(card.name or '')} ({card.id})")
            elif action == "send" and len(self.sample) < _SAMPLE:
                self.sample.append(row)

    @property
    def is_of_another_file(self) -> bool:
        """Whether the journal has rows in the places of these, and none that equals one."""
        known = self.plan.actions["done"] + self.plan.actions["in doubt"]
        return 0 < self.changed == len(self.problems) and not known

    def check_problems(self) -> None:
        """Refuse a file with mistakes.

        Raises:
            UsageError: a row is wrong, or was sent with other content. It has a line for each kind of mistake.
        """
        if self.problems:
            other = f" (if it is another file than before: {_OTHER_FILE})" if self.changed else ""
            message = f"the file has {plural(len(self.problems), 'mistake')}; nothing was sent{other}"
            raise UsageError(message, problem_lines(self.problems))

    def check_existing(self, options: ImportOptions) -> None:
        """Refuse rows that equal cards which were there before, unless they can be left out.

        Raises:
            UsageError: they can't. No card was created.
        """
        if not self.equal:
            return
        if options.existing == "refuse":
            raise UsageError(
                f"{plural(self.plan.existing, 'row')} of {self.plan.actions.total():,} equal cards that are on the board already;"
                " nothing was sent (--existing skip leaves them out, --existing create creates them again)",
                self.equal[:LINES],
            )
        if unclear := self.plan.unclear:
            raise UsageError(
                f"{plural(unclear, 'row')} equal cards but for a description or a date, which no card on the board shows;"
                " nothing was sent (take the rows out of the file, or create them with --existing create)"
            )
        if doubtful := self.plan.actions["in doubt"]:
            raise UsageError(
                f"{plural(doubtful, 'row')} of an earlier run may have one of the cards that equal other rows; resolve them"
                f" first: boardclient journal resolve {options.journal}"
            )


def _show_preview(checked: _Checked, failed: int, lists: Mapping[str, Names], options: ImportOptions) -> None:
    """Print what would be done, and the first rows as they would be sent."""
    plan = checked.plan
    counts = {
        "would_create": plan.actions["send"] - plan.existing,
        "already": plan.actions["done"] + plan.existing,
        "failed": failed,
        "unknown": plan.actions["in doubt"],
    }
    show("nothing was sent", {"preview": True, **counts}, options.fields)
    if options.fields is None:
        sample = [
            {
                "row": row.number,
                "name": row.draft.name,
                "list": lists[row.place[0]].name_of(row.draft.list_id),
                "due": row.draft.due and local(row.draft.due, options.zone).isoformat(),
                "desc": row.draft.desc and quoted(row.draft.desc),
            }
            for row in checked.sample
        ]
        show_all(sample, ("row", "name", "list", "due", "desc"))
