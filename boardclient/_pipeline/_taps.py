"""The hook through which recorders get the requests of all pools.

`testing`, which must not import the transport, imports it from here. While no tap is open, requests bypass this module.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import attrs

from boardclient._transport import Progress, RawResponse, TransportFailure, TransportResult
from boardclient._transport._pool import RELAYS, Pool

__all__ = ["RawResponse", "Tap", "TappedRequest", "TransportFailure", "close_tap", "open_tap"]


@attrs.define(kw_only=True, eq=False, repr=False)
class TappedRequest:
    """One request as it is sent, with its credentials, and its outcome: None in flight and after a cancellation."""

    pool: Pool
    method: str
    url: str
    body: bytes | None
    content_type: str
    started: float
    seconds: float = 0.0
    outcome: TransportResult | None = None


Tap: TypeAlias = Callable[[TappedRequest], object]
"""Gets each request of every pool when it is sent. It must not raise."""

_taps: Final[list[Tap]] = []


def open_tap(tap: Tap) -> None:
    """Have a tap get the requests of all pools until it is closed."""
    _taps.append(tap)
    RELAYS[:] = [_send_with_taps]


def close_tap(tap: Tap) -> None:
    """Close a tap that is open."""
    _taps.remove(tap)
    if not _taps:
        RELAYS.clear()


def _send_with_taps(
    pool: Pool,
    method: str,
    url: str,
    body: bytes | None,
    progress: Progress,
    content_type: str,
    headers: Mapping[str, str] | None,
) -> Awaitable[TransportResult]:
    request = TappedRequest(pool=pool, method=method, url=url, body=body, content_type=content_type, started=time.time())
    for tap in [*_taps]:
        tap(request)
    return _observed(request, pool.send(method, url, body, progress, content_type, headers=headers, is_relayed=True))


async def _observed(request: TappedRequest, sent: Awaitable[TransportResult]) -> TransportResult:
    # The frame of a cancelled call is in its traceback: it holds the request, which shows nothing, and no credential.
    began = time.perf_counter()
    try:
        request.outcome = outcome = await sent
    finally:
        request.seconds = time.perf_counter() - began
    return outcome
