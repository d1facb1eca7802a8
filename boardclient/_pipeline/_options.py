"""The options of one call, and the protocol of what makes calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from boardclient._activities import Activity
from boardclient._operations import Request
from boardclient._pipeline._guards import AttemptLimiter
from boardclient._pipeline._slots import ConnectionSlots
from boardclient.errors import Attempt

if TYPE_CHECKING:
    from boardclient._pace import Limiter
    from boardclient.events import Event

T = TypeVar("T")


@attrs.define(eq=False)
class CallOptions:
    """Options of one call that differ from its session's. The object may be reused after the call.

    Args:
        limiter: The limiter of the attempts, in place of the session's. None, the default, keeps the session's.
        leaves_throttling: If True, a response that asks for fewer requests is not retried: the bulk run sends the row again.
            False by default.
        waits_count: Whether waiting for the limiter and for credentials counts towards the deadline. True by default.
        history: Receives the attempts of a call that succeeded. It stays empty if the first attempt succeeded, unless the call
            is observed.
        activity: The call as instruments see it, or None if it is not observed.
    """

    limiter: AttemptLimiter | None = None
    leaves_throttling: bool = attrs.field(default=False, kw_only=True)
    waits_count: bool = attrs.field(default=True, kw_only=True)
    history: list[Attempt] = attrs.field(factory=list, kw_only=True)
    activity: Activity | None = attrs.field(default=None, kw_only=True, repr=False)


class CallRunner(Protocol):
    """Makes calls, and gives bulk runs the options of the session that they need."""

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call and return its value."""
        ...

    def withdraw(self, options: Collection[CallOptions]) -> None:
        """Withdraw the calls with these options that have not been sent.

        They wait for the limiter, for a pause or for a connection.
        """
        ...

    @property
    def is_observed(self) -> bool:
        """Whether the session has observers."""
        ...

    def notify(self, event: Event) -> None:
        """Pass an event to the observers."""
        ...

    @property
    def timeout(self) -> float | None:
        """The deadline of a call in seconds, or None."""
        ...

    @property
    def max_connections(self) -> int:
        """How many requests can be in flight at a time."""
        ...

    @property
    def slots(self) -> ConnectionSlots:
        """The connection slots that bulk runs share."""
        ...

    @property
    def limiter(self) -> Limiter | None:
        """The session's limiter, or None."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """The service and the account that calls are made for, without credentials."""
        ...
