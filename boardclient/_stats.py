"""What a session has done and is doing, in numbers. No I/O."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class SessionStats:
    """A session's numbers since its beginning, those of its views included.

    Args:
        calls: how many calls have sent a request.
        attempts: how many requests were sent for them, or tried.
        retries: how many of these repeat one that failed.
        renewals: how often credentials were renewed.
        in_flight: how many calls are under way.
        pool_open: how many connections are open.
        pool_idle: how many of them no request uses.
        pool_waiting: how many requests wait for a connection.
        max_connections: how many requests can be in flight at a time.
        pace: the requests per second that the session's `Pace` allows, None without one and while it limits no rate.
        transport: what requests take: "DirectTransport", "ClientSessionTransport".
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
