"""The operations as tools for agents (extra `mcp`).

`boardclient mcp` serves them by the Model Context Protocol. A call that is tried again makes no second card: each creation has a
reference, and a ledger answers for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from boardclient import AsyncSession
from boardclient._base._environment import requires_extra

with requires_extra("mcp", "the server for agents"):
    from boardclient.integrations.mcp._calls import note_event
    from boardclient.integrations.mcp._server import CALL_SECONDS, BoardServer
    from boardclient.integrations.mcp._tools import Work, tools_of

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["make_server"]


def make_server(
    session: AsyncSession,
    ledger: str | os.PathLike[str],
    *,
    allow_delete: bool = False,
    settle: float | None = None,
    zone: tzinfo | None = None,
    secrets: Iterable[str] = (),
) -> MCPServer[Any]:
    """Return a server whose tools make calls of a session.

    Results are objects with `effect`, what was read or changed, and `next_step`. Errors are such objects too: `effect` says what
    the call may have done, `candidates` names the cards that may be the one that was asked for, `retry_at` from when on the call
    makes sense again, and `next_step` what to do. A tool answers within 45 seconds.

    Args:
        session: Makes the calls. It stays open, and is the caller's to close.
        ledger: Keeps the references of created cards: the path of a SQLite file, or the URL of a PostgreSQL database.
        allow_delete: Whether there are the tools whose effect nothing brings back, which delete cards and archive lists. False
            by default.
        settle: As in `cards.create`: a lost response is waited for so long, before the board is read.
        zone: The time zone of dates without an offset. None (default): that of the variable `BOARDCLIENT_TIMEZONE`, or of this
            machine.
        secrets: Texts that no result may hold, besides the key and the token of the session.
    """
    given, observers = session._pipeline.timeout, session._pipeline.observers
    view = session.with_options(
        timeout=CALL_SECONDS if given is None else min(given, CALL_SECONDS),
        observers=[note_event] if observers is None else [observers.notify, note_event],
    )
    tools = tools_of(Work(view, os.fspath(ledger), settle))
    return BoardServer(view, [tool for tool in tools if allow_delete or not tool.deletes], zone, [*secrets])
