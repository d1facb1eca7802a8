"""How far one request is, as the transport reports it. No I/O."""

from __future__ import annotations

from typing import Literal

from boardclient.errors import Effect

Stage = Literal["idle", "handed", "connect", "write", "send", "receive"]


class Progress:
    """How far one request is. The transport sets it; `CallContext` extends it.

    It is read after a cancellation or a deadline has ended the request, since nothing is returned then.
    """

    stage: Stage = "idle"
    """"idle" outside the transport, "handed" to a session that may not report its progress, "connect" until there is a
    connection, "write" until the next iteration of the event loop writes the request, "send", "receive"."""
    http_version: tuple[int, int] | None = None
    """The HTTP version of the last response, such as (1, 1)."""

    @property
    def effect_under_way(self) -> Effect:
        """What the request may have done if it ends here."""
        return Effect.NOT_SENT if self.stage in {"idle", "connect", "write"} else Effect.UNKNOWN
