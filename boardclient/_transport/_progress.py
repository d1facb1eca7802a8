"""How far one request is, as the transport reports it. No I/O."""

from __future__ import annotations

from typing import Literal

from boardclient.errors import Effect

Stage = Literal["idle", "handed", "connect", "write", "send", "receive"]


class Progress:
    """How far one request is. The transport writes it, and the context of a call extends it.

    It is read when a cancellation or a deadline ends the request, since then nothing is returned.
    """

    stage: Stage = "idle"
    """"idle" outside the transport, "handed" where a lent session doesn't report, then "connect", "write" (in the next
    turn of the event loop), "send", "receive"."""

    @property
    def effect_under_way(self) -> Effect:
        """What the request may have done if it ends here."""
        return Effect.NOT_SENT if self.stage in {"idle", "connect", "write"} else Effect.UNKNOWN
