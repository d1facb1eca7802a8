"""The numbers of a session, as `session.stats()` returns them."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class SessionStats:
    """The numbers of a session and its views since it was created.

    Args:
        calls: How many calls have sent a request.
        attempts: How many requests were sent or attempted for them.
        retries: How many of these the retry policy began. Those after a renewal are not among them.
        renewals: How often calls got new credentials, also from another worker.
        in_flight: How many calls are running.
        pool_open: How many connections are open.
        pool_idle: How many open connections no request uses.
        pool_waiting: How many requests wait for a connection.
        max_connections: The most connections at a time.
        pace: The requests per second that the session's `Pace` allows. None without a `Pace`, and while it limits no rate.
        transport: What sends the requests: "DirectTransport" or "ClientSessionTransport".
    """

    calls: int
    attempts: int
    retries: int
    renewals: int
    in_flight: int
    pool_open: int
    pool_idle: int
    pool_waiting: int
    max_connections: int
    pace: float | None
    transport: str
