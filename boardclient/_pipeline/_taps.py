"""Hooks through which recorders and replays get the requests of all pools.

`testing`, which must not import the transport, imports them from here. While no tap is open, requests bypass this module.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import attrs

from boardclient._transport import Progress, RawResponse, Settings, TransportFailure, TransportResult
from boardclient._transport._pool import Pool

__all__ = ["Go", "PoolRequest", "RawResponse", "Tap", "TransportFailure", "TransportResult", "close_tap", "open_tap"]


@attrs.frozen(kw_only=True)
class PoolRequest:
    """One request as a pool gets it: signed, with its credentials.

    Args:
        pool: the pool, which a session shares with its views.
        settings: how the pool's requests leave.
        progress: how far the request is.
        headers: what is sent with this request only.
    """

    pool: Pool
    settings: Settings = attrs.field(repr=False)
    method: str
    url: str = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)
    content_type: str
    progress: Progress
    headers: Mapping[str, str] = attrs.field(repr=False)


Go: TypeAlias = Callable[[PoolRequest], Awaitable[TransportResult]]
Tap: TypeAlias = Callable[[PoolRequest, Go], Awaitable[TransportResult]]
"""Gets each request of every pool, and the function that sends it. It must raise nothing but a cancellation."""

_taps: Final[list[Tap]] = []
_lock: Final = threading.Lock()


def open_tap(tap: Tap) -> None:
    """Have the requests of all pools pass through a tap until it is closed."""
    with _lock:
        _taps.append(tap)
        Pool.relay = staticmethod(_send_through_taps)


def close_tap(tap: Tap) -> None:
    """Close a tap that is open. Requests in flight still pass through it."""
    with _lock:
        _taps.remove(tap)
        if not _taps:
            Pool.relay = None


def _send_through_taps(
    pool: Pool,
    method: str,
    url: str,
    body: bytes | None,
    progress: Progress,
    content_type: str,
    headers: Mapping[str, str] | None,
) -> Awaitable[TransportResult]:
    go: Go = _go_on
    for tap in _taps:
        go = partial(tap, go=go)  # type: ignore[call-arg]  # -- a tap's parameters have no names for type checkers
    return go(
        PoolRequest(
            pool=pool,
            settings=pool.settings,
            method=method,
            url=url,
            body=body,
            content_type=content_type,
            progress=progress,
            headers=headers or {},
        )
    )


def _go_on(request: PoolRequest) -> Awaitable[TransportResult]:
    return request.pool.send(
        request.method,
        request.url,
        request.body,
        request.progress,
        request.content_type,
        headers=request.headers or None,
        is_relayed=True,
    )
