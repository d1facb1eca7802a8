"""The commands on what an import leaves behind: its journal (show, resolve, undo), and the ledger of several workers."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import attrs
import click

from boardclient import AsyncSession, BoardClientError, Card, CardDraft, JournalError, NotFoundError
from boardclient.bulk import Content
from boardclient.bulk.journal import UnknownRow, note_undone, read_journal, read_rows, read_unknown, resolve
from boardclient.cli._app import Group, json_option, yes_option
from boardclient.cli._output import (
    LINES,
    IncompleteError,
    NotProvenError,
    UsageError,
    first_lines,
    note,
    out,
    out_columns,
    out_json,
    plural,
    quoted,
    show,
)
from boardclient.cli._running import confirm, in_steps, reported, run_until_signal, with_session

commands = Group("journal")

_UNKNOWN = ("row", "name", "reason", "suggestion", "cards")
_UNDONE = ("deleted", "kept", "gone", "failed", "cards")
_CANDIDATES = 3
_BATCH = 64
"""How many cards are deleted before the journal notes it."""
_IN_FLIGHT = 8
_MARKED = re.compile(r"\[[^\s\[\]]+\](?:\s+(.*?)\s+\[[^\s\[\]]+\])?", re.DOTALL)
"""A description with the marker of its row before and behind what the row says."""

_journal_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE", help="The journal of an import.")


@commands.group("journal")
def journal() -> None:
    """Show the journal of an import, and settle its unknown rows."""


@journal.command("show")
@_journal_argument
@json_option()
def journal_show(file: Path, fields: tuple[str, ...] | None) -> None:
    """Show a summary of a journal, also while an import runs: its service and board, its runs, and its rows by state.

    \b
    States:
      done     the card exists
      failed   refused; the next run sends it again
      waiting  not sent, or refused for a temporary reason
      logged   sent or about to be sent, result not known yet
      unknown  the card may exist or not
      undone   the card was deleted again; the next run sends the row

    Example:  boardclient journal show cards.csv.journal
    """
    with reported():
        summary = read_journal(file)
    record: dict[str, object] = {
        "path": str(summary.path),
        **{name.replace(" ", "_"): value for name, value in summary.identity.items()},
        "created_at": summary.created_at.astimezone(),
        "runs": summary.runs,
        "rows": summary.rows,
        **{str(state): count for state, count in summary.counts.items()},
    }
    show("journal", record, fields)


@journal.command("resolve")
@_journal_argument
@click.argument("row", required=False, metavar="[ROW]", help="A row to settle: its reference, or its position from 0.")
@click.option("--card", "card_id", metavar="CARD_ID", help="ROW has this card.")
@click.option("--absent", is_flag=True, help="ROW has no card. The next run sends it again.")
@click.option("--accept", is_flag=True, help="Take all suggestions. Look at them first: they are made by resemblance.")
@json_option(*_UNKNOWN)
def journal_resolve(
    file: Path, row: str | None, card_id: str | None, absent: bool, accept: bool, fields: tuple[str, ...] | None
) -> None:
    """Show the rows whose cards may exist, beside the cards that may be theirs, or settle rows by hand.

    The next run of the import continues from there. Exit code 3 if --accept leaves rows unknown.

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
    with reported():
        unknown = read_unknown(file)
        if row is not None:
            key = row if not row.isdecimal() or any(item.row.key == row for item in unknown) else int(row)
            resolve(file, key, card_id=card_id, absent=absent)
            return
        left = 0
        for item in unknown:
            suggestion = item.suggestion
            record = {
                "row": item.row.key,
                "name": item.row.content.name,
                "reason": item.row.detail,
                "suggestion": None if suggestion is None else suggestion.card_id,
                "cards": [
                    {"id": card.card_id, "name": card.content.name, "likeness": round(card.likeness, 2)}
                    for card in item.candidates[:_CANDIDATES]
                ],
            }
            if accept:
                left += not _accepted(file, item)
            elif fields is not None:
                out_json({name: record[name] for name in fields or _UNKNOWN})
            else:
                _print_unknown(item)
        if left:
            raise NotProvenError(f"{plural(left, 'row')} of {len(unknown)} remain unknown")


def _accepted(file: Path, item: UnknownRow) -> bool:
    """Settle a row by its suggestion. Return False if there is none, or if the card is another row's."""
    if item.suggestion is None:
        note(f"row {item.row.key!r} ({quoted(item.row.content.name)}): no suggestion")
        return False
    try:
        resolve(file, item.row.key, card_id=item.suggestion.card_id)
    except JournalError as error:
        note(str(error))
        return False
    out(f"row {item.row.key!r} ({quoted(item.row.content.name)}) has the card {item.suggestion.card_id}")
    return True


def _print_unknown(item: UnknownRow) -> None:
    """Print a row and the cards that may be its: for a person, or with tabs into a pipe."""
    if not sys.stdout.isatty():
        for card in item.candidates[:_CANDIDATES] or [None]:
            values = ("", "", "") if card is None else (card.card_id, card.content.name, f"{card.likeness:.2f}")
            out_columns(str(item.row.key), item.row.content.name, *values)
        return
    out(f"row {item.row.key!r}: {quoted(item.row.content.name)}", bold=True)
    for card in item.candidates[:_CANDIDATES]:
        mark = "suggested" if card is item.suggestion else ""
        out(f"  {card.card_id}  {card.likeness:4.0%}  {quoted(card.content.name)}  {mark}")
    if not item.candidates:
        out("  no card that may be its is known: look at the board, then --absent or --card")


@commands.command("undo")
@_journal_argument
@yes_option
@json_option(*_UNDONE)
def undo(file: Path, yes: bool, fields: tuple[str, ...] | None) -> None:
    """Delete the cards that an import has created, for good. It asks first.

    Cards that were moved or changed since are kept and named. If it is ended, the same command line continues. The journal
    remembers what was deleted: importing the file again creates these cards again.

    Example:  boardclient undo cards.csv.journal
    """
    with_session(
        lambda client: _undo(client.session, file, fields, yes=yes),
        writes=True,
        when_stopped="the same command line does the rest",
    )


@attrs.define
class _Plan:
    """What to do with the cards of an import."""

    delete: list[str] = attrs.field(factory=list)
    kept: list[tuple[Card, str]] = attrs.field(factory=list)
    gone: list[str] = attrs.field(factory=list)


async def _undo(session: AsyncSession, path: Path, fields: tuple[str, ...] | None, *, yes: bool) -> None:
    """Delete the cards that the rows of a journal have, and note it there.

    Raises:
        UsageError: the journal is that of another service, or the user said no.
        JournalError: the journal is in use or can't be used.
        IncompleteError: some cards could not be deleted.
        BoardClientError: the board could not be read.
    """
    identity = read_journal(path).identity
    if identity.get("service") != session.identity["service"]:
        raise UsageError(f"{path} is the journal of {identity.get('service')}; give --base-url")
    note_undone(path, ())  # raises while a run uses the journal
    plan = await _plan(
        path, await session.boards.cards(identity["board"]), is_marked=identity["cards known by"] == "their marker"
    )
    for text in first_lines("kept", [f"{quoted(card.name or '')} ({card.id}) {why}" for card, why in plan.kept]):
        note(text)
    if plan.delete:
        kept = f" {plural(len(plan.kept), 'card')} that changed since will be kept." if plan.kept else ""
        confirm(f"Delete {plural(len(plan.delete), 'card')} for good?{kept}", yes=yes)
    note_undone(path, plan.gone)
    failures: list[str] = []
    for start in range(0, len(plan.delete), _BATCH):
        failures += await _deleted(session, plan.delete[start : start + _BATCH], path)
    counts = {
        "deleted": len(plan.delete) - len(failures),
        "kept": len(plan.kept),
        "gone": len(plan.gone),
        "failed": len(failures),
    }
    if fields is not None:
        cards = [{"id": card.id, "name": card.name, "why": why} for card, why in plan.kept]
        show("", {**counts, "cards": cards}, fields)
    else:
        out(", ".join(f"{name} {count:,}" for name, count in counts.items() if count or name == "deleted"))
    for text in failures[:LINES]:
        note(text, fg="red")
    if failures:
        raise IncompleteError(f"{plural(len(failures), 'card')} could not be deleted; the same command line tries again")


async def _plan(path: Path, cards: Sequence[Card], *, is_marked: bool) -> _Plan:
    """Compare each row's card with what was sent for it."""
    plan, by_id = _Plan(), {card.id: card for card in cards}
    shown = {name for name in ("list_id", "desc", "due") if any(getattr(card, name) is not None for card in cards)}
    async for row in in_steps(read_rows(path, "done")):
        card = by_id.get(row.detail or "")
        if card is None:
            plan.gone.append(row.detail or "")
        elif change := _change(card, row.content, shown, is_marked=is_marked):
            plan.kept.append((card, change))
        else:
            plan.delete.append(card.id)
    return plan


def _change(card: Card, sent: Content, shown: Collection[str], *, is_marked: bool) -> str:
    """Return what was changed on a card, "" if nothing was."""
    desc = card.desc or ""
    if is_marked and (marked := _MARKED.fullmatch(desc.strip())):
        desc = marked[1] or ""
    now = Content.of(CardDraft(card.name or "", card.list_id or "", desc=desc, due=card.due))
    changes = {
        "was renamed": now.name != sent.name,
        "was moved": "list_id" in shown and now.list_id != sent.list_id,
        "has another description": "desc" in shown and now.desc != (sent.desc or ""),
        "has another due date": "due" in shown and now.due != sent.due,
    }
    return " and ".join(words for words, is_so in changes.items() if is_so)


async def _deleted(session: AsyncSession, card_ids: Sequence[str], path: Path) -> list[str]:
    """Delete some cards, and note those that are gone in the journal. Return why others are not."""
    places = asyncio.Semaphore(_IN_FLIGHT)
    gone: list[str] = []
    failures: list[str] = []

    async def delete(card_id: str) -> None:
        async with places:
            try:
                await session.cards.delete(card_id)
            except NotFoundError:
                pass
            except BoardClientError as error:
                failures.append(f"{card_id}: {error}")
                return
            gone.append(card_id)

    try:
        async with asyncio.TaskGroup() as tasks:
            for card_id in card_ids:
                tasks.create_task(delete(card_id))
    finally:
        note_undone(path, gone)
    return failures


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
def ledger_status(ledger: str, job: str | None, fields: tuple[str, ...] | None) -> None:
    """Show the progress of the whole and of each part: who holds it, its rate, and how many rows are in doubt.

    Part -1 is run last, and settles the rows in doubt of all others.

    Example:  boardclient ledger status --ledger cards.csv.ledger
    """
    from boardclient.distributed import status

    async def work() -> None:
        found = await status(ledger, name=job)
        names = ("rows", "done", "failed", "in_doubt")
        sums = {name: sum(getattr(part, name) for part in found) for name in names}
        values = [
            {
                "part": part.part,
                "state": part.state,
                "owner": part.owner,
                **{name: getattr(part, name) for name in names},
                "rate": round(part.rate, 1),
            }
            for part in found
        ]
        if fields is not None:
            record = {**sums, "parts": values}
            out_json({name: record[name] for name in fields} if fields else record)
            return
        out(f"{sums['done']:,} of {sums['rows']:,} done, {sums['failed']:,} failed, {sums['in_doubt']:,} in doubt")
        for value in values:
            out_columns(*("" if one is None else str(one) for one in value.values()))

    with reported():
        run_until_signal(work)


@ledger.command("drain")
@_ledger_option
@_job_option
@json_option()
def ledger_drain(ledger: str, job: str | None, fields: tuple[str, ...] | None) -> None:
    """Let the workers of an import end. Requests in flight are completed, and the same import resumes it.

    Example:  boardclient ledger drain --ledger cards.csv.ledger
    """
    from boardclient.distributed import drain

    async def work() -> None:
        await drain(ledger, name=job)
        if fields is None:
            out("the workers end once their requests are completed")
        else:
            out_json({"draining": True})

    with reported():
        run_until_signal(work)
