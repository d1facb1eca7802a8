"""The work of the command `undo`: delete the cards that an import has created and nobody has changed since."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import attrs

from boardclient import AsyncSession, BoardClientError, Card, CardDraft, NotFoundError
from boardclient.bulk import Content
from boardclient.bulk.journal import note_undone, read_journal, read_rows
from boardclient.cli._output import IncompleteError, UsageError, note, out, plural, quoted, show
from boardclient.cli._running import confirm, in_steps

_LINES = 20
_BATCH = 64
"""How many cards are deleted before the journal notes it."""
_IN_FLIGHT = 8
_MARKED = re.compile(r"\[[^\s\[\]]+\](?:\s+(.*?)\s+\[[^\s\[\]]+\])?", re.DOTALL)
"""A description with the marker of its row before and behind what the row says."""


@attrs.define
class _Plan:
    """What to do with the cards of an import."""

    delete: list[str] = attrs.field(factory=list)
    kept: list[tuple[Card, str]] = attrs.field(factory=list)
    gone: list[str] = attrs.field(factory=list)


async def undo(session: AsyncSession, path: Path, fields: tuple[str, ...] | None, *, yes: bool) -> None:
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
    for card, why in plan.kept[:_LINES]:
        note(f"kept: {quoted(card.name or '')} ({card.id}) {why}")
    if len(plan.kept) > _LINES:
        note(f"kept: and {len(plan.kept) - _LINES:,} more")
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
    for text in failures[:_LINES]:
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
