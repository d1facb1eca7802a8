"""The commands on what an import leaves behind: its journal (show, resolve, undo), and the ledger of several workers."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import click

from boardclient import AsyncSession, AuthenticationError, Card, CardDraft, CredentialError, NotFoundError
from boardclient.bulk import Content
from boardclient.bulk.journal import JournalRow, UnknownRow, note_undone, read_journal, read_rows, read_unknown, resolve
from boardclient.cli._app import Group, json_option, yes_option
from boardclient.cli._errors import CommandError, NotProvenError, UsageError
from boardclient.cli._output import LINES, first_lines, key_name, note, out, plural, quoted, show, show_all
from boardclient.cli._running import Client, confirm, in_steps, prints, runs

commands = Group("journal")

_UNKNOWN = ("row", "name", "card", "card_name", "likeness", "suggested", "reason")
_UNDONE = ("deleted", "kept", "gone", "failed", "cards")
_CANDIDATES = 3
_BATCH = 64
"""How many cards are deleted before the journal notes it."""
_MARKED = re.compile(r"\[([^\s\[\]]+)\](?:\s+(.*?)\s+\[\1\])?", re.DOTALL | re.IGNORECASE)
"""A description with the marker of its row before and behind what the row says."""

_journal_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE", help="The journal of an import.")


@commands.group("journal")
def journal() -> None:
    """Show the journal of an import, and settle its unknown rows."""


@journal.command("show")
@_journal_argument
@prints("journal", needs="nothing")
async def journal_show(file: Path) -> Mapping[str, object]:
    """Show a summary of a journal, also while an import runs: its service and board, its runs, and its rows by state.

    \b
    States:
      done     the card exists
      failed   refused; the next run sends it again
      waiting  not sent, or refused for a temporary reason
      logged   sent or about to be sent, result not known yet
      unknown  the card may exist or not
      undone   the card was deleted again; the next run sends the row
    rows is their sum, and rows_in_file is the number of rows in the file of the last run.

    Example:  boardclient journal show cards.csv.journal
    """
    summary = read_journal(file)
    return {
        "path": str(summary.path),
        **{name.replace(" ", "_"): value for name, value in summary.identity.items()},
        "created_at": summary.created_at.astimezone().isoformat(),
        "runs": summary.runs,
        "rows_in_file": summary.total,
        "rows": summary.rows,
        **{str(state): count for state, count in summary.counts.items()},
    }


@journal.command("resolve")
@_journal_argument
@click.argument(
    "row", required=False, metavar="[ROW]", help="A row to settle: its reference or its position, as import names it."
)
@click.option("--card", "card_id", metavar="CARD_ID", help="ROW has this card.")
@click.option("--absent", is_flag=True, help="ROW has no card. The next run sends it again.")
@click.option("--accept", is_flag=True, help="Take all suggestions. Look at them first: they are made by resemblance.")
@json_option(*_UNKNOWN)
@runs(needs="nothing")
async def journal_resolve(
    file: Path, row: str | None, card_id: str | None, absent: bool, accept: bool, fields: tuple[str, ...] | None
) -> None:
    """Show the rows whose cards may exist, beside the cards that may be theirs, or settle rows by hand.

    A row is named by its reference or, without one, by its position: the first row of the file that is not empty has position 0.
    Import names an unknown row by its row in the file and, in parentheses, by what this command takes.

    The next run of the import continues from there. --accept shows the rows that it leaves unknown, with exit code 3.

    \b
    Examples:
      boardclient journal resolve cards.csv.journal
      boardclient journal resolve cards.csv.journal --accept
      boardclient journal resolve cards.csv.journal r-17 --card CARD_ID
      boardclient journal resolve cards.csv.journal 5 --absent
    """
    if row is None and (card_id is not None or absent):
        raise click.UsageError("--card and --absent settle one row: give ROW")
    if row is not None and ((card_id is None) is not absent or accept):
        raise click.UsageError("ROW needs either --card or --absent")
    unknown = read_unknown(file)
    if row is not None:
        key = row if not row.isdecimal() or any(item.row.key == row for item in unknown) else int(row)
        resolve(file, key, card_id=card_id, absent=absent)
        if fields is not None:
            show("", {"row": key, "card": card_id}, fields)
            return
        if card_id not in {None, *(card.card_id for item in unknown if item.row.key == key for card in item.candidates)}:
            note(f"{card_id} is none of the cards that may be its own: look at the board", fg="yellow")
        out(f"{key_name(key)} has {'no card: the next import sends it' if card_id is None else f'the card {card_id}'}")
        return
    if accept:
        taken = {item.detail for item in read_rows(file, "done")}
        for item in unknown:
            if item.suggestion is not None and item.suggestion.card_id not in taken:  # a card is that of one row
                resolve(file, item.row.key, card_id=item.suggestion.card_id)
                taken.add(item.suggestion.card_id)
        unknown = read_unknown(file)
    names = _UNKNOWN[:-1] if fields is None else _UNKNOWN  # the reason is a long sentence
    show_all([record for item in unknown for record in _candidates(item)], names, fields)
    if accept and unknown:
        raise NotProvenError(f"{plural(len(unknown), 'row')} remain{'s' * (len(unknown) == 1)} unknown")


def _candidates(item: UnknownRow) -> list[dict[str, object]]:
    """Return a record for each card that may be a row's, or one without a card."""
    row: dict[str, object] = {"row": item.row.key, "name": item.row.content.name, "reason": item.row.detail}
    return [
        {
            **row,
            "card": card.card_id,
            "card_name": card.content.name,
            "likeness": round(card.likeness, 2),
            "suggested": card is item.suggestion,
        }
        for card in item.candidates[:_CANDIDATES]
    ] or [row]


@attrs.define
class _Undo:
    """The cards of an import, compared with what was sent for them: as they are listed, and each before it is deleted."""

    session: AsyncSession
    delete: dict[str, JournalRow] = attrs.field(factory=dict)
    """The rows of the cards that are as they were, by the cards' identifiers."""
    kept: list[tuple[Card, str]] = attrs.field(factory=list)
    gone: list[str] = attrs.field(factory=list)
    _listed: set[str] = attrs.field(factory=set)
    _read: set[str] = attrs.field(factory=set)
    """The fields that cards show in the listing, and when they are read one by one."""

    async def plan(self, rows: Iterable[JournalRow], cards: Sequence[Card]) -> None:
        """Compare each row's card with what was sent for it."""
        by_id = {card.id: card for card in cards}
        for card in cards:
            _add_shown(card, self._listed)
        known = [row async for row in in_steps(rows)]
        sent = Counter(field for row in known if row.detail in by_id for field in ("desc", "due") if getattr(row.content, field))
        # A card is no evidence about itself: only others that were sent with a field show that the listing leaves it out.
        self._listed |= {field for field, number in sent.items() if number == 1}
        for row in known:
            card_id = row.detail or ""
            if card_id not in by_id:
                self.gone.append(card_id)
            elif row.run == 0:
                self.kept.append((by_id[card_id], "was there before the import"))
            elif self._is_unchanged(by_id[card_id], row, self._listed):
                self.delete[card_id] = row

    async def remove(self, card_id: str) -> None:
        """Delete a card, unless it was changed meanwhile.

        Raises:
            BoardClientError: it could not be read or deleted.
        """
        with contextlib.suppress(NotFoundError):
            card = await self.session.cards.get(card_id)
            _add_shown(card, self._read)
            if not self._is_unchanged(card, self.delete[card_id], self._read):
                return
            await self.session.cards.delete(card_id)
        self.gone.append(card_id)

    def _is_unchanged(self, card: Card, row: JournalRow, shown: set[str]) -> bool:
        """Return True if nothing was changed on a card. Otherwise note that it is kept, and why."""
        desc, sent = card.desc or "", row.content
        if (marked := _MARKED.fullmatch(desc.strip())) and marked[1].casefold() == row.marker:
            desc = marked[2] or ""
        now = Content.of(CardDraft(card.name or "", card.list_id or "", desc=desc, due=card.due))
        changes = {
            "was renamed": now.name != sent.name,
            "was moved": "list_id" in shown and now.list_id != sent.list_id,
            "has another description": "desc" in shown and now.desc != (sent.desc or ""),
            "has another due date": "due" in shown and now.due != sent.due,
        }
        if any(changes.values()):
            self.kept.append((card, " and ".join(words for words, is_so in changes.items() if is_so)))
        return not any(changes.values())


def _add_shown(card: Card, fields: set[str]) -> None:
    fields.update(name for name in ("list_id", "desc", "due") if getattr(card, name) is not None)


def _name_kept(kept: Sequence[tuple[Card, str]]) -> None:
    for text in first_lines("kept", [f"{quoted(card.name or '')} ({card.id}) {why}" for card, why in kept]):
        note(text)


@commands.command("undo")
@_journal_argument
@yes_option
@json_option(*_UNDONE)
@runs(writes=True)
async def undo(client: Client, file: Path, yes: bool, fields: tuple[str, ...] | None) -> None:
    """Delete the cards that an import has created, for good. It asks first.

    Cards that were there before (--existing skip), and those that were moved or changed since, are kept and named: each is read
    once more right before it is deleted. If it is ended, the same command line continues. The journal remembers what was deleted:
    importing the file again creates these cards again.

    Example:  boardclient undo cards.csv.journal
    """
    client.stopping.hint = "the same command line does the rest"
    summary = read_journal(file)
    identity = summary.identity
    if identity.get("service") != client.session.identity["service"]:
        raise UsageError(f"{file} is the journal of {identity.get('service')}; give --base-url")
    note_undone(file, ())  # raises while a run uses the journal
    work = _Undo(client.session)
    await work.plan(read_rows(file, "done"), await client.session.boards.cards(identity["board"]))
    _name_kept(work.kept)
    if work.delete:
        kept = f" {plural(len(work.kept), 'card')} will be kept." if work.kept else ""
        confirm(f"Delete {plural(len(work.delete), 'card')} for good?{kept}", yes=yes)
    kept_before, gone, noted, failures = len(work.kept), len(work.gone), 0, list[str]()
    try:
        async with contextlib.aclosing(client.session.map(work.remove, work.delete)) as results:
            async for result in results:
                if isinstance(result.error, AuthenticationError | CredentialError):
                    raise result.error
                if result.error is not None:
                    failures.append(f"{result.item}: {result.error}")
                if len(work.gone) >= noted + _BATCH:
                    note_undone(file, work.gone[noted:])
                    noted = len(work.gone)
    finally:
        note_undone(file, work.gone[noted:])
    _name_kept(work.kept[kept_before:])
    counts = {"deleted": len(work.gone) - gone, "kept": len(work.kept), "gone": gone, "failed": len(failures)}
    cards = None if fields is None else [{"id": card.id, "name": card.name, "why": why} for card, why in work.kept]
    show("undone", {**counts, "cards": cards}, fields)
    if unknown := summary.counts.get("unknown", 0):
        note(f"{plural(unknown, 'row')} may have a card that is left: boardclient journal resolve {file}", fg="yellow")
    for text in failures[:LINES]:
        note(text, fg="red")
    if failures:
        raise CommandError(f"{plural(len(failures), 'card')} could not be deleted; the same command line tries again")


_ledger_option = click.option(
    "--ledger", required=True, metavar="PATH_OR_URL", help="The ledger: a file, or postgresql://… without a password."
)
_job_option = click.option("--job", metavar="NAME", help="The job, if the ledger has several.")


@commands.group("ledger")
def ledger() -> None:
    """Show how far an import by several workers is, or let its workers end."""


@ledger.command("status")
@_ledger_option
@_job_option
@json_option("rows", "done", "failed", "in_doubt", "parts")
@runs(needs="nothing")
async def ledger_status(ledger: str, job: str | None, fields: tuple[str, ...] | None) -> None:
    """Show the progress of the whole and of each part: who holds it, its rate, and how many rows are in doubt.

    Part -1 is run last, and settles the rows in doubt of all others.

    Example:  boardclient ledger status --ledger cards.csv.ledger
    """
    from boardclient.distributed import status

    parts = [attrs.asdict(part) for part in await status(ledger, name=job)]
    sums = {name: sum(part[name] for part in parts) for name in ("rows", "done", "failed", "in_doubt")}
    if fields is not None:
        show("", {**sums, "parts": parts}, fields)
        return
    out(f"{sums['done']:,} of {sums['rows']:,} done, {sums['failed']:,} failed, {sums['in_doubt']:,} in doubt")
    show_all(parts, tuple(parts[0] if parts else ()))


@ledger.command("drain")
@_ledger_option
@_job_option
@prints("the workers end once their requests are completed", needs="nothing")
async def ledger_drain(ledger: str, job: str | None) -> Mapping[str, object]:
    """Let the workers of an import end. Requests in flight are completed, and the same import resumes it.

    Example:  boardclient ledger drain --ledger cards.csv.ledger
    """
    from boardclient.distributed import drain

    await drain(ledger, name=job)
    return {"draining": True}
