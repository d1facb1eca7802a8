"""The command `import`: its options, and what is checked before anything is sent. `_importing` has the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from boardclient import AsyncSession, Card, JournalError
from boardclient.bulk import Content, EqualCards, journal_identity
from boardclient.bulk.journal import Rehearsal, adopt, is_new, read_journal, read_rows, rehearsed
from boardclient.cli import _rows
from boardclient.cli._app import Group, Number, WholeNumber, board_option, json_option, timezone_option
from boardclient.cli._encodings import named
from boardclient.cli._errors import UsageError
from boardclient.cli._importing import ImportOptions, ImportRun, key_of
from boardclient.cli._layout import IMPORTED, Layout, Problem, problem_lines, recognise
from boardclient.cli._names import Names, of_lists
from boardclient.cli._output import LINES, local, note, plural, quoted, show, show_all
from boardclient.cli._running import Client, run_with_session

commands = Group("import")

_SAMPLE = 5
"""How many rows a preview shows."""
_ROWS_PER_STEP = 500

RESULT = ("created", "already", "failed", "unknown", "not_reached", "seconds", "rate", "requests", "rejected", "rows", "audit")
"""The fields of the result. `audit_error` joins them if the board could not be read at the end, and `probes` if some stay."""


def _renamed(value: str) -> tuple[str, str]:
    """Return a name in the file, and its column."""
    column, _, name = value.partition("=")
    if column not in IMPORTED or not name.strip():
        raise click.BadParameter(f"{value!r} must be COLUMN=NAME, where COLUMN is one of {', '.join(IMPORTED)}")
    return name.strip(), column


@commands.command("import")
@click.argument(
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="A file of CSV or JSON Lines; - is standard input.",
)
@board_option("The board that gets the cards of rows that name none.")
@click.option("--list", "default_list", metavar="LIST", help="The list of rows that name none: an identifier or a name.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="The file from which this import can be resumed.",
    show_default="FILE.journal; none for standard input",
)
@click.option(
    "--existing",
    type=click.Choice(["refuse", "skip", "create"]),
    default="refuse",
    show_default=True,
    help="With a new journal: what to do with rows that equal cards which are on the board already.",
)
@click.option(
    "--marker", is_flag=True, help="Put a code into each description. It proves whose card is whose where others change cards."
)
@click.option(
    "--probe",
    is_flag=True,
    help="Prove by a temporary card, which is deleted, that lost rows are absent which no card of the import can prove absent.",
)
@click.option("--preview", is_flag=True, help="Show what would be done. Nothing is sent, and no journal is changed.")
@click.option(
    "--concurrency", type=WholeNumber(min=1), metavar="N", help="How many cards to create at a time.", show_default="adaptive"
)
@click.option(
    "--rate", type=Number(min=0, min_open=True), metavar="N", help="The most requests per second.", show_default="adaptive"
)
@click.option(
    "--settle",
    type=Number(min=0),
    metavar="SECONDS",
    help="How long the service may take to commit a request whose response was lost.",
    show_default="twice the timeout, at least 10",
)
@click.option(
    "--map", "renamed", type=_renamed, multiple=True, metavar="COLUMN=NAME", help="Read COLUMN from column NAME. Repeatable."
)
@click.option(
    "--skip", "left_out", multiple=True, metavar="NAME", help="Ignore the file's column NAME; '*' all others. Repeatable."
)
@click.option(
    "--encoding", type=named, metavar="NAME", help="The encoding of the file, as Python names it.", show_default="UTF-8 or UTF-16"
)
@click.option(
    "--date-format", metavar="FORMAT", help="The form of due dates as for strptime, such as %d.%m.%Y.", show_default="ISO 8601"
)
@timezone_option
@click.option("--engine", type=click.Choice(["dask"]), help="Let several workers create the cards; needs the extra dask.")
@click.option(
    "--workers", type=WholeNumber(min=1), metavar="N", help="With --engine: the processes to start.", show_default="processors"
)
@click.option(
    "--parts", type=WholeNumber(min=1), metavar="N", help="With --engine: how many parts to make.", show_default="5,000 rows each"
)
@click.option("--scheduler", metavar="ADDRESS", help="With --engine: use this cluster instead of processes of this host.")
@click.option(
    "--ledger",
    metavar="PATH_OR_URL",
    help="With --engine: what the workers share, a file or postgresql://… without a password.",
    show_default="FILE.ledger",
)
@json_option(*RESULT, "preview", "would_create")
def import_(**options: Any) -> None:
    """Create a card for each row of a CSV or JSON Lines file, each exactly once.

    What spreadsheets write is recognised: commas, semicolons or tabs, UTF-8 or UTF-16. A file in another encoding needs
    --encoding: without it, the first names are shown as likely ones would read them, and nothing is sent.

    \b
    Columns, in any order:
      name       required
      desc       the description
      due        a date or date-time, without an offset in --timezone
      pos        top or bottom
      list       an identifier, or the name of an open list
      reference  your own identifier of the row, never sent
      board      with --engine: an identifier, or a name that is known here
      account    with --engine: whose token in the ledger creates the card
    An empty cell, a missing one and null are not sent.

    Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line. Every
    row is checked before the first card is created. If a response is lost, the card is looked up on the board, and sent again
    only if it is proven not to be there. With --probe this is proven for the last rows of a list as well.

    The result of each row is kept in a journal beside the file. However an import ended, the same command line resumes it and
    creates no card twice. A row is identified by its reference or, without one, by its position. Failed rows may be changed or
    taken out of the file, and rows added at its end; with references anywhere. boardclient undo deletes what an import has
    created.

    After the first SIGINT or SIGTERM the cards in flight are completed. The second stops at once.

    \b
    Exit codes:
      0         every row exists exactly once
      1         rows failed or were not sent, or have two cards or none any more
      2         bad usage, file or journal, or rows equal cards that existed;
                no card was created
      3         nothing failed, but some rows are not proven to exist
      4         no credentials, or the service refuses them
      130, 143  ended by SIGINT, SIGTERM; the counts so far are printed

    \b
    Examples:
      boardclient import cards.csv --board Roadmap --preview
      boardclient import cards.csv --board Roadmap --marker
      boardclient import tasks.csv --board Roadmap --list "To Do" \\
        --map name=Title --skip '*' --date-format %d.%m.%Y --encoding windows-1252
      psql -c "copy (select name from tasks) to stdout csv header" |
        boardclient import - --board Roadmap --list "To Do"
    """
    chosen = ImportOptions(**options).checked()
    is_resumable = chosen.journal is not None or chosen.engine is not None
    with _copied(chosen.file) as file:

        async def work(client: Client) -> None:
            client.stopping.hint = "the same command line resumes it" if is_resumable else "without a journal it can't be resumed"
            await import_file(client, file, chosen)

        run_with_session(work, board=chosen.board)


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
    given = Layout(
        encoding=options.encoding,
        columns={**dict.fromkeys(options.left_out), **dict(options.renamed)},
        zone=options.zone,
        date_format=options.date_format,
        default_list=options.default_list,
        has_places=options.engine is not None,
    )
    layout = recognise(file, given)
    if layout.difference:
        note(f"the file is read as {layout.difference}")
    named = [*([None] if options.board else []), *(_rows.named_boards(file, layout) if layout.has_places else ())]
    boards = {name: await _board(client, name) for name in named}
    rows = partial(_rows.read, file, boards, layout)
    identity = journal_identity(session.identity, boards[None].board_id if options.board else "", options.marker or None)
    # unlike Path.exists it does not raise without permission
    journal = options.journal if options.journal is not None and os.path.exists(options.journal) else None  # noqa: ASYNC240 -- fast
    plan = Plan(await _cards_before(session, {board.board_id for board in boards.values()}, journal, options))
    with ExitStack() as opened:
        decided = journal or Path(opened.enter_context(tempfile.TemporaryDirectory())) / "journal"
        await plan.read(rows(), opened.enter_context(rehearsed(decided, identity)))
    plan.check_existing(options)
    if options.preview:
        failed = 0 if journal is None else read_journal(journal).counts["failed"]
        _show_preview(plan, failed, {board.board_id: board.lists for board in boards.values()}, options)
        return
    if plan.existing and options.journal is not None:
        rows_of_cards = [(key_of(index, row.draft), row.draft, card.id) for index, row, card in plan.existing]
        adopt(options.journal, identity, rows_of_cards, before=[card.id for card in plan.cards])
    await ImportRun(client, rows, plan.places, options).run()


async def _board(client: Client, name: str | None) -> _rows.Board:
    """Find a board, and read its lists. They are read with the credentials of this command, whatever account rows name."""
    board_id = client.board_id(name)
    return _rows.Board(board_id, of_lists(await client.session.boards.lists(board_id)))


async def _cards_before(
    session: AsyncSession, board_ids: Iterable[str], journal: Path | None, options: ImportOptions
) -> list[Card]:
    """Return the cards that the rows are compared with: those on the boards, but for those of earlier runs."""
    is_first = is_new(journal) if journal is not None else options.ledger is None or not await _is_planned(options.ledger)
    if options.existing == "create" or (options.existing == "refuse" and not is_first):
        return []
    own = set() if journal is None else {row.detail for row in read_rows(journal, "done")}
    return [card for board_id in board_ids for card in await session.boards.cards(board_id) if card.id not in own]


async def _is_planned(ledger: str) -> bool:
    """Return True if an import has used a ledger before."""
    from boardclient.distributed import status

    with contextlib.suppress(JournalError):
        return bool(await status(ledger))
    return False


class Plan:
    """What a run would do with the rows of a file, and which of them equal cards that were there before.

    Each of these `cards` stands for one row at most.
    """

    def __init__(self, cards: Sequence[Card]) -> None:
        self.cards = cards
        self.actions: Counter[str] = Counter()
        """How many rows are to be sent ("send"), "done" or "in doubt"."""
        self.places: Counter[_rows.Place] = Counter()
        self.existing: list[tuple[int, _rows.FileRow, Card]] = []
        self.sample: list[_rows.FileRow] = []
        """The first rows that would create cards."""
        self._equal = EqualCards(cards)
        self._same = EqualCards(cards, {"name", "desc", "due"})
        self._taken: set[str] = set()
        self._unclear = 0
        """How many rows have a description or a date, while their card has none and no other shows one."""

    async def read(self, rows: _rows.Rows, decide: Rehearsal) -> None:
        """Read the whole file.

        Raises:
            UsageError: a row is wrong, or was sent with other content. It has a line for each kind of mistake.
        """
        problems: list[Problem] = []
        index = 0
        for number, row in enumerate(rows):
            if number % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)  # the event loop handles signals
            if isinstance(row, Problem):
                problems.append(row)
                continue
            try:
                ((_, action, _),) = decide([(key_of(index, row.draft), row.draft)])
            except JournalError as error:
                problems.append(Problem(row.number, None, str(error).partition(": ")[2]))
            else:
                self.places[row.place] += 1
                self.actions[action] += 1
                if action == "send":
                    self._compare(index, row)
            index += 1
        if problems:
            mistakes = plural(len(problems), "mistake")
            raise UsageError(f"the file has {mistakes}; nothing was sent", problem_lines(problems))

    def _compare(self, index: int, row: _rows.FileRow) -> None:
        """Note whether a row equals a card that no row before it equals."""
        content = Content.of(row.draft)
        card = next((card for card in self._equal.to(content) if card.id not in self._taken), None)
        if card is not None:
            self._taken.add(card.id)
            self.existing.append((index, row, card))
            self._unclear += card not in self._same.to(content)
        elif len(self.sample) < _SAMPLE:
            self.sample.append(row)

    def check_existing(self, options: ImportOptions) -> None:
        """Refuse rows that equal cards which were there before, unless they can be left out.

        Raises:
            UsageError: they can't. No card was created.
        """
        if not self.existing:
            return
        if options.existing == "refuse":
            raise UsageError(
                f"{plural(len(self.existing), 'row')} of {self.actions.total():,} equal cards that are on the board already;"
                " nothing was sent (--existing skip leaves them out, --existing create creates them again)",
                [
                    f"row {row.number}: equals the card {quoted(card.name or '')} ({card.id})"
                    for _, row, card in self.existing[:LINES]
                ],
            )
        if self._unclear:
            raise UsageError(
                f"{plural(self._unclear, 'row')} equal cards but for a description or a date, which no card on the board shows;"
                " nothing was sent (take the rows out of the file, or create them with --existing create)"
            )
        if doubtful := self.actions["in doubt"]:
            raise UsageError(
                f"{plural(doubtful, 'row')} of an earlier run may have one of the cards that equal other rows; settle them"
                f" first: boardclient journal resolve {options.journal}"
            )


def _show_preview(plan: Plan, failed: int, lists: Mapping[str, Names], options: ImportOptions) -> None:
    """Print what would be done, and the first rows as they would be sent."""
    counts = {
        "would_create": plan.actions["send"] - len(plan.existing),
        "already": plan.actions["done"] + len(plan.existing),
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
            for row in plan.sample
        ]
        show_all(sample, ("row", "name", "list", "due", "desc"))
