"""The options of one call, and what resources and bulk runs need to make calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from boardclient._activities import Activity
from boardclient._messages import Request
from boardclient._pace import Limiter
from boardclient._pipeline._places import Places
from boardclient.errors import Attempt
from boardclient.events import Event

if TYPE_CHECKING:
    from boardclient._pipeline._in_flight import CallContext

T = TypeVar("T")


@attrs.define
class CallOptions:
    """What one call does otherwise than its session. Once a call has ended, the object may serve the next one.

    Args:
        limiter: the limiter of the attempts, in place of the session's.
        leaves_throttling: do not retry a response that asks for fewer requests; the caller sends the row again itself.
        waits_count: whether waiting for the limiter and for credentials counts for the deadline.
        history: takes the attempts of a call that succeeded; empty where the first attempt sufficed and no one asked for it.
        context: the call that is under way with these options, None between calls.
        activity: the call as instruments see it, None where nothing follows it.
    """

    limiter: Limiter | None = None
    leaves_throttling: bool = attrs.field(default=False, kw_only=True)
    waits_count: bool = attrs.field(default=True, kw_only=True)
    history: list[Attempt] = attrs.field(factory=list, kw_only=True)
    context: CallContext | None = attrs.field(default=None, kw_only=True, repr=False)
    activity: Activity | None = attrs.field(default=None, kw_only=True, repr=False)


class CallRunner(Protocol):
    """What makes calls, and the facts that bulk runs go by."""

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call and return the value of its response."""
        ...

    @property
    def is_observed(self) -> bool:
        """Whether anyone observes the calls."""
        ...

    def notify(self, event: Event) -> None:
        """Pass an event to the observers."""
        ...

    @property
    def timeout(self) -> float | None:
        """The deadline of a call in seconds, None for none."""
        ...

    @property
    def max_connections(self) -> int:
        """How many requests can be under way at a time."""
        ...

    @property
    def places(self) -> Places:
        """The connections as bulk runs share them out."""
        ...

    @property
    def limiter(self) -> Limiter | None:
        """The limiter of all calls, None for none."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """Which service and account the calls go to, without any credential."""
        ...
