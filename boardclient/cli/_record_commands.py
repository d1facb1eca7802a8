"""The commands that make one or two calls and print a record."""

import datetime
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from boardclient import AsyncSession, Board, BoardList, Card, Member
from boardclient.cli import _rows, _text
from boardclient.cli._errors import UsageError
from boardclient.cli._running import with_session
from boardclient.cli._settings import Options

_NAMES = {"board_id": "board", "list_id": "list"}
"""The names of fields on the terminal that differ from the models', to match the options."""


def _record(model: Board | BoardList | Card | Member) -> dict[str, Any]:
    """Return a model's fields as JSON values.

    A member also has all fields that the service sent, since the interface documents none (2.5).
    """
    names = [field.name for field in attrs.fields(type(model)) if field.name != "extra"]
    values = {name: _value(getattr(model, name)) for name in names}
    if not isinstance(model, Member):
        return values
    return {**values, **{name: value for name, value in model.extra.items() if name not in values}}


def _value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return attrs.asdict(value, filter=lambda field, _: field.name != "extra") if attrs.has(type(value)) else value


def _show(title: str, record: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        _text.out_json(record)
    else:
        plain = {_NAMES.get(name, name): value for name, value in record.items() if not isinstance(value, list | dict)}
        _text.details(title, plain)


def _call(
    options: Options,
    title: str,
    work: Callable[[AsyncSession], Awaitable[Board | BoardList | Card | Member | Mapping[str, str]]],
    *,
    as_json: bool,
    writes: bool = True,
) -> None:
    """Make a call, and print the record that it returns."""

    async def called(session: AsyncSession) -> None:
        found = await work(session)
        _show(title, found if isinstance(found, Mapping) else _record(found), as_json=as_json)

    with_session(options, called, writes=writes)


def whoami(options: Options, *, as_json: bool) -> None:
    """Show the member whose token is used (section 4.11)."""
    _call(options, "member", lambda session: session.members.me(), as_json=as_json, writes=False)


def board_create(options: Options, *, name: str, default_lists: bool | None, organization: str | None, as_json: bool) -> None:
    """Create a board (section 4.1)."""

    async def work(session: AsyncSession) -> Board:
        return await session.boards.create(name, default_lists=default_lists, organization_id=organization)

    _call(options, "board created", work, as_json=as_json)


def board_show(options: Options, *, board_id: str, as_json: bool) -> None:
    """Show a board's lists and cards (sections 4.4 and 4.5)."""

    async def work(session: AsyncSession) -> None:
        lists, cards = await session.boards.lists(board_id), await session.boards.cards(board_id)
        if as_json:
            _text.out_json({"id": board_id, "lists": [*map(_record, lists)], "cards": [*map(_record, cards)]})
            return
        from boardclient.cli import _render

        console = _render.output()
        console.print(_render.board(lists, cards, width=console.width, with_ids=True))

    with_session(options, work, writes=False)


def list_create(options: Options, *, name: str, board_id: str, pos: str | None, as_json: bool) -> None:
    """Create a list on a board (section 4.2)."""
    _call(options, "list created", lambda session: session.lists.create(name, board_id=board_id, pos=pos), as_json=as_json)


def list_archive(options: Options, *, list_id: str, as_json: bool) -> None:
    """Archive a list (section 4.9)."""
    _call(options, "list archived", lambda session: session.lists.archive(list_id), as_json=as_json)


def card_create(
    options: Options,
    *,
    name: str,
    list_id: str,
    desc: str | None,
    due: str | None,
    timezone: str | None,
    pos: str | None,
    as_json: bool,
) -> None:
    """Create a card in a list (section 4.3)."""

    async def work(session: AsyncSession) -> Card:
        zone = None if timezone is None else _rows.zone_of(timezone)
        try:
            due_at = None if due is None else _rows.parse_due(due, zone)
        except ValueError as error:
            raise UsageError(f"--due: {error}") from None
        return await session.cards.create(name, list_id=list_id, desc=desc, due=due_at, pos=pos)

    _call(options, "card created", work, as_json=as_json)


def card_get(options: Options, *, card_id: str, as_json: bool) -> None:
    """Show a card (section 4.6)."""
    _call(options, "card", lambda session: session.cards.get(card_id), as_json=as_json, writes=False)


def card_delete(options: Options, *, card_id: str, as_json: bool) -> None:
    """Delete a card (section 4.10)."""

    async def work(session: AsyncSession) -> Mapping[str, str]:
        await session.cards.delete(card_id)
        return {"id": card_id}

    _call(options, "card deleted", work, as_json=as_json)


def card_move(options: Options, *, card_id: str, list_id: str, as_json: bool) -> None:
    """Move a card to another list (section 4.7)."""

    async def work(session: AsyncSession) -> Mapping[str, str]:
        await session.cards.move(card_id, list_id=list_id)
        return {"id": card_id, "list_id": list_id}

    _call(options, "card moved", work, as_json=as_json)


def card_label(options: Options, *, card_id: str, label_id: str, as_json: bool) -> None:
    """Attach a label to a card (section 4.8)."""

    async def work(session: AsyncSession) -> Mapping[str, str]:
        await session.cards.add_label(card_id, label_id)
        return {"id": card_id, "label": label_id}

    _call(options, "label attached", work, as_json=as_json)
