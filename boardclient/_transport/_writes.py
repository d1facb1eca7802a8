"""Writes the requests of one iteration of the event loop together.

Python code runs slower right after a system call, so the calls of many tasks are faster without system calls in between.
"""

from __future__ import annotations

import asyncio

from boardclient._transport._connections import Protocol
from boardclient._transport._values import Progress


class Writes:
    """The requests to write once the other callbacks of this iteration have run. Owned by its `DirectTransport`.

    A request is not written if its call is cancelled, or its connection ends, before that.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Protocol, bytes, Progress]] = []

    def add(self, protocol: Protocol, wire: bytes, progress: Progress) -> None:
        """Write a request in the next iteration. Its stage is "write" until then."""
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
            if protocol.has_ended():  # nothing is sent: the call ends with NOT_SENT
                transport.abort()
                continue
            progress.stage = "send"
            try:
                protocol.write(wire)
            except Exception:  # a foreign transport may raise: the other requests must still be written
                transport.abort()


def is_given_up(protocol: Protocol) -> bool:
    """Return True if the task that waits for the response was cancelled.

    The task itself runs only in the next iteration.
    """
    waiter = protocol._waiter
    return waiter is not None and waiter.cancelled()
