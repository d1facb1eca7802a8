"""The commands on what an import leaves behind: its journal (show, resolve, undo), and the ledger of several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._addresses import is_address
from boardclient.cli._app import FilePath, Group, WholeNumber, argument, json_option, option, yes_option
from boardclient.cli._files._row_numbers import NamedRow, RowNumbers, by_number, by_text, name_of, resolution_of
from boardclient.cli._output import CommandError, NotProvenError, first_lines, note, out, plural, quoted, show, show_all

if TYPE_CHECKING:
    from pathlib import Path

    from boardclient.bulk.journal import RowKey, UnknownRow
    from boardclient.bulk.undo import KeptCard, Undo
    from boardclient.cli._running import Client

commands = Group("journal")

_UNKNOWN = ("row", "name", "card", "card_name", "likeness", "suggested", "reason")
_CANDIDATES = 3


class _JournalPath(FilePath):
    """The path of a journal. That of the file whose rows it records is refused, and the journal named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = super().convert(value, param, ctx)
        beside = path.with_name(f"{path.name}.journal")
        if path.is_file() and beside.is_file():
            self.fail(f"this is the file of an import, whose journal is {beside}", param, ctx)
        return path


_journal = argument("FILE", type=_JournalPath(), help="The journal of an import.")
journal = commands.part("journal")


@journal.runs("show", "journal", needs="nothing")
async def journal_show(file: Path = _journal) -> Mapping[str, object]:
    """Show a summary of a journal, also while an import runs: its service and board, its runs, and its rows by state.

    \b
    States:
      done     the card exists
      failed   not created, with an error; the next run sends it again
      waiting  not sent
      logged   sent or about to be sent, result not known yet
      unknown  the card may exist or not
      undone   the card was deleted again; the next run sends the row

    rows is their sum, and rows_in_file is the number of rows in the file of the last run.

    Example:  boardclient journal show cards.csv.journal
    """
    from boardclient.bulk.journal import read_journal

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


class Resolving:
    """The options with which a person resolves rows.

    Attributes:
        row: A row to resolve: its reference, or the number of its row in the file, as import names it.
        number: The row to resolve is the one with this number in the file.
        position: The row to resolve is the one at this position among all rows, from 0.
        reference: The row to resolve is the one with this reference.
        card_id: The row has this card.
        absent: The row has no card. The next run sends it again.
        accept: Take all suggestions. Look at them first: they are made by resemblance.
    """

    row: str | None = argument("[ROW]", required=False)
    number: int | None = option("--row", type=WholeNumber(min=1), metavar="N")
    position: int | None = option(type=WholeNumber(min=0), metavar="N")
    reference: str | None = option(metavar="REFERENCE")
    card_id: str | None = option("--card", metavar="CARD_ID")
    absent: bool = option(is_flag=True)
    accept: bool = option(is_flag=True)
    fields: tuple[str, ...] | None = json_option(*_UNKNOWN)

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)
        named = [name for name in (self.row, self.number, self.position, self.reference) if name is not None]
        if len(named) > 1:
            raise click.UsageError("name the row once: ROW, --row, --position or --reference")
        if self.card_id is not None and is_address(self.card_id):
            raise click.UsageError("--card is an address: give the card's identifier alone, which ends at the next slash")
        # Without a row these would have to mean all of them, and each row has a card of its own.
        if not named and (self.card_id is not None or self.absent):
            raise click.UsageError("--card and --absent resolve one row: give ROW")
        if named and ((self.card_id is None) is not self.absent or self.accept):
            raise click.UsageError("give either --card or --absent for ROW")
        self.is_of_one = bool(named)

    def named(self, numbers: RowNumbers | None, is_reference: Callable[[str], bool]) -> NamedRow:
        """Return the row to resolve.

        Raises:
            UsageError: no row is meant, or one of two.
        """
        if self.number is not None:
            return by_number(self.number, numbers)
        if self.position is not None:
            return NamedRow(self.position, name_of(self.position, numbers), _row_of(self.position, numbers))
        if self.reference is not None:
            return NamedRow(self.reference, name_of(self.reference, numbers), self.reference)
        text = self.row or ""
        return by_text(text, numbers, is_reference=is_reference(text))


@journal.runs("resolve", options=Resolving, needs="nothing")
async def journal_resolve(chosen: Resolving, file: Path = _journal) -> None:
    """Show the rows whose cards may exist, beside the cards that may be theirs, or resolve rows.

    A row is named as import names it: by its reference or, without one, by its number in the file, where the header of CSV is row
    1. If ROW may be both, --reference or --row says which. A journal that no import has written has no numbers: --position names
    a row among all, from 0.

    The next run of the import continues from there. --accept shows the rows that it leaves unknown, with exit code 3.

    \b
    Examples:
      boardclient journal resolve cards.csv.journal
      boardclient journal resolve cards.csv.journal --accept
      boardclient journal resolve cards.csv.journal r-17 --card CARD_ID
      boardclient journal resolve cards.csv.journal 5 --absent
    """
    from boardclient.bulk.journal import accept_suggestions, read_row, read_unknown, resolve

    numbers = RowNumbers.read(file)
    if not chosen.is_of_one:
        _show_unknown((accept_suggestions if chosen.accept else read_unknown)(file), chosen, numbers)
        return
    named = chosen.named(numbers, lambda text: read_row(file, text) is not None)
    is_resolved_now = resolve(file, named.key, card_id=chosen.card_id, absent=chosen.absent)
    _show_resolved(named, chosen, read_row(file, named.key), is_resolved_now=is_resolved_now)


def _show_unknown(unknown: Sequence[UnknownRow], chosen: Resolving, numbers: RowNumbers | None = None) -> None:
    names = _UNKNOWN[:-1] if chosen.fields is None else _UNKNOWN  # the reason is a long sentence
    records = [{**record, "row": _row_of(item.row.key, numbers)} for item in unknown for record in _candidates(item)]
    show_all(records, names, chosen.fields)
    if chosen.accept and unknown:
        raise NotProvenError(f"{plural(len(unknown), 'row')} remain{'s' * (len(unknown) == 1)} unknown")


def _row_of(key: RowKey, numbers: RowNumbers | None) -> int | str:
    """Return a row as this command takes it: its reference, or its number in the file. Without numbers it is a position."""
    if isinstance(key, str):
        return key
    number = None if numbers is None else numbers.number_of(key)
    # As an option that can be copied into the next command line: a bare number would be read as that of the file.
    return f"--position {key}" if number is None else number


def _show_resolved(named: NamedRow, chosen: Resolving, row: UnknownRow | None = None, *, is_resolved_now: bool) -> None:
    """Print what a row has now. `row` has the cards that may be its own, as far as they are known."""
    card_id = chosen.card_id
    if chosen.fields is not None:
        show("", {"row": named.shown, "card": card_id}, chosen.fields)
        return
    if row is not None and card_id not in {None, *(card.card_id for card in row.candidates)}:
        note(f"{card_id} is none of the cards that may be the row's: look at the board", fg="yellow")
    out(resolution_of(named, None if row is None else row.row.content.name, card_id, is_resolved_now=is_resolved_now))


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


def _name_kept(kept: Sequence[KeptCard]) -> None:
    for text in first_lines("kept", [f"{quoted(one.card.name or '')} ({one.card.id}) {one.why}" for one in kept]):
        note(text)


def _kept_cards(work: Undo) -> list[dict[str, object]]:
    return [{"id": one.card.id, "name": one.card.name, "why": one.why} for one in work.kept]


def _show_plan(work: Undo, fields: Sequence[str] | None) -> None:
    """Print what an undo would do to each card."""
    planned: list[dict[str, object]] = [{"id": card_id, "name": name, "why": None} for card_id, name in work.planned]
    cards = [*planned, *_kept_cards(work)]
    if fields is not None:
        show("", {"to_delete": len(planned), "kept": len(work.kept), "gone": len(work.gone), "cards": cards}, fields)
        return
    for card in cards:
        card["plan"] = "delete" if card["why"] is None else f"keep: {card['why']}"
    show_all(cards, ("plan", "id", "name"))
    note(f"to delete: {len(planned):,}, to keep: {len(work.kept):,}, gone already: {len(work.gone):,}; nothing was deleted")


@commands.runs("undo", None, "to_delete", "deleted", "kept", "gone", "failed", "cards", writes=True)
async def undo(
    client: Client,
    fields: tuple[str, ...] | None,
    file: Path = _journal,
    preview: bool = option(is_flag=True),
    yes: bool = yes_option,
) -> None:
    """Delete the cards that an import has created, for good. It asks first.

    Only what people see as it was sent is deleted. Cards that were there before (--existing skip), those that were moved or
    changed since, and those that are archived, in an archived list or not listed are kept and named: each is read once more right
    before it is deleted. If it is ended, the same command line continues. No import can use the journal meanwhile. It remembers
    what was deleted: importing the file again creates these cards again.

    \b
    Examples:
      boardclient undo cards.csv.journal --preview
      boardclient undo cards.csv.journal

    Args:
        preview: Show each card that would be deleted or kept, and delete nothing.
    """
    from boardclient import JournalError
    from boardclient.bulk.journal import read_journal

    # Set before anything is sent: a signal may come at any time, and then says how to continue.
    client.stopping.hint = "the same command line does the rest"
    work = await client.session.cards.plan_undo(file)
    if preview:
        _show_plan(work, fields)
        return
    _name_kept(work.kept)
    # With nothing to delete there is nothing to ask.
    if work.unchanged:
        will_be_kept = f" {plural(len(work.kept), 'card')} will be kept." if work.kept else ""
        client.confirm(f"Delete {plural(len(work.unchanged), 'card')} for good?{will_be_kept}", yes=yes)
    kept_before = len(work.kept)
    try:
        await work.run()
    except JournalError as error:
        # Exit code 2 promises that nothing was changed. Once a deletion was begun, the same error has to say otherwise.
        if not work.has_begun:
            raise
        raise CommandError(str(error)) from None
    finally:
        # However it ends, or a user would not know what was deleted.
        _name_kept(work.kept[kept_before:])
        counts = {name: len(getattr(work, name)) for name in ("deleted", "kept", "gone", "failed")}
        show("undone", {**counts, "cards": None if fields is None else _kept_cards(work)}, fields)
    # They have no identifier, so that an undo can't delete them: only a person knows.
    if unknown := read_journal(file).counts["unknown"]:
        note(f"{plural(unknown, 'row')} may have a card that is left: boardclient journal resolve {file}", fg="yellow")
    for text in first_lines("failed", [f"{card_id}: {error}" for card_id, error in work.failed.items()]):
        note(text, fg="red")
    if work.failed:
        raise CommandError(f"{plural(len(work.failed), 'card')} could not be deleted; the same command line tries again")


_ledger = option(required=True, metavar="PATH_OR_URL", help="The ledger: a file, or postgresql://… without a password.")
_job = option(metavar="NAME", help="The job, if the ledger has several.")
_sums = ("rows", "done", "failed", "in_doubt")
ledger = commands.part("ledger")


@ledger.runs("status", None, *_sums, "parts", needs="nothing")
async def ledger_status(fields: tuple[str, ...] | None, ledger: str = _ledger, job: str | None = _job) -> None:
    """Show the progress of the whole and of each part: who holds it, its rate, and how many rows are in doubt.

    Example:  boardclient ledger status --ledger cards.csv.ledger
    """
    import attrs

    from boardclient.distributed import status

    parts = [attrs.asdict(part) for part in await status(ledger, name=job)]
    sums = {name: sum(part[name] for part in parts) for name in _sums}
    if fields is not None:
        show("", {**sums, "parts": parts}, fields)
        return
    out(f"{sums['done']:,} of {sums['rows']:,} done, {sums['failed']:,} failed, {sums['in_doubt']:,} in doubt")
    show_all(parts, tuple(parts[0] if parts else ()))


@ledger.runs("resolve", options=Resolving, needs="nothing")
async def ledger_resolve(chosen: Resolving, ledger: str = _ledger, job: str | None = _job) -> None:
    """Show the rows of an import by several workers whose cards may exist, or resolve one.

    A row is named by its reference or, without one, by its position among the rows of its board, with --position. --accept
    takes the cards that are suggested: look at them first, since they are suggested by resemblance.

    \b
    Examples:
      boardclient ledger resolve --ledger cards.csv.ledger
      boardclient ledger resolve --ledger cards.csv.ledger --accept
      boardclient ledger resolve --ledger cards.csv.ledger r-17 --card CARD_ID
      boardclient ledger resolve --ledger cards.csv.ledger --position 5 --absent
      boardclient ledger resolve --ledger cards.ledger ticket-4711 --absent
    """
    from boardclient.distributed import accept_suggestions, resolve, unknown_rows

    # Read before the row is named: whether a text is a reference shows among these.
    unknown = await (accept_suggestions if chosen.accept else unknown_rows)(ledger, name=job)
    if not chosen.is_of_one:
        _show_unknown(unknown, chosen)
        return
    named = chosen.named(None, lambda text: any(item.row.key == text for item in unknown))
    row = next((item for item in unknown if named.key in {item.row.key, item.row.seq - 1}), None)
    is_resolved_now = await resolve(ledger, named.key, card_id=chosen.card_id, absent=chosen.absent, name=job)
    _show_resolved(named, chosen, row, is_resolved_now=is_resolved_now)


@ledger.runs("drain", "the workers end once their requests are completed", needs="nothing")
async def ledger_drain(ledger: str = _ledger, job: str | None = _job) -> Mapping[str, object]:
    """Let the workers of an import end. Requests in flight are completed, and new calls are refused until ledger resume.

    Example:  boardclient ledger drain --ledger cards.csv.ledger
    """
    from boardclient.distributed import drain

    await drain(ledger, name=job)
    return {"draining": True}


@ledger.runs("resume", "its rows are sent again by the calls that bring them", needs="nothing")
async def ledger_resume(ledger: str = _ledger, job: str | None = _job) -> Mapping[str, object]:
    """Let an import that was drained take work again.

    Example:  boardclient ledger resume --ledger cards.csv.ledger
    """
    from boardclient.distributed import resume

    await resume(ledger, name=job)
    return {"draining": False}
