"""Write the requests of one turn of the event loop together. The Python of many calls runs without system calls in between."""

from __future__ import annotations

import asyncio

from boardclient._transport._progress import Progress
from boardclient._transport._protocol import Protocol


class Writes:
    """The requests to be written once the other callbacks of this turn have run.

    A request whose call is cancelled before, or whose connection ends, is never written. Owned by its `DirectTransport`.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Protocol, bytes, Progress]] = []

    def add(self, protocol: Protocol, wire: bytes, progress: Progress) -> None:
        """Have a request written after this turn. The caller waits for the response, and its stage is "write" until then."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        progress.stage = "write"
        self._waiting.append((protocol, wire, progress))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for protocol, wire, progress in waiting:
            transport = protocol.transport
            if transport is None or transport.is_closing() or is_given_up(protocol):
                continue
            if protocol.has_ended():  # in the meantime: nothing is sent, and the call learns that it was not
                transport.abort()
                continue
            progress.stage = "send"
            try:
                transport.write(wire)
            except Exception:  # of a transport that is not asyncio's; the others must be written
                transport.abort()


def is_given_up(protocol: Protocol) -> bool:
    """Return True if the task that waits for a response was cancelled. It learns that after this turn of the loop."""
    waiter = protocol._waiter
    return waiter is not None and waiter.cancelled()
