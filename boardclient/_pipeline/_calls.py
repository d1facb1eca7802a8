"""The options of a call, and the protocol of what makes it. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from boardclient._activities import PARENT, Activity, Instrument, new_call_id
from boardclient._operations import Request
from boardclient._pipeline._guards import AttemptLimiter
from boardclient.errors import Attempt, BoardClientError
from boardclient.logs import followers

if TYPE_CHECKING:
    from boardclient._pace import Limiter
    from boardclient.events import Event

T = TypeVar("T")


class CallWithdrawn(BoardClientError):  # noqa: N818 -- withdrawing is no failure
    """A bulk run withdrew a call that had not been sent. Never raised to applications."""


class FifoSemaphore:
    """A first-in, first-out semaphore whose size may change: `most` returns it."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._served = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until fewer than `most()` tasks have entered."""
        if not self._waiters and self._served < self._most():
            self._served += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Leave, and let waiting tasks enter."""
        self._served -= 1
        while self._waiters and self._served < self._most():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._served += 1
                waiter.set_result(None)


class ConnectionSlots(FifoSemaphore):
    """A slot for each connection of a pool, for bulk runs. Owned by the session.

    A row takes a slot before its deadline starts, so that waiting for a connection does not count towards the deadline.
    """

    def __init__(self, number: int) -> None:
        super().__init__(lambda: number)
        self.number = number
        self.wanted = 0
        """The largest number of requests that the open runs may have in flight together."""


@attrs.define(eq=False)
class CallOptions:
    """Options of one call that differ from its session's. The object may be reused after the call.

    Args:
        limiter: The limiter of the attempts, in place of the session's. None, the default, keeps the session's.
        is_of_run: If True, the retry policy repeats only what the service did not do: the bulk run decides about the rest, and
            about a response that asks for fewer requests. What a policy's `retry_error_callback` returns does not count. False by
            default.
        waits_count: Whether waiting for the limiter and for credentials counts towards the deadline. True by default.
        history: Receives the attempts of a call that succeeded. It stays empty if the first attempt succeeded, unless the call
            is observed.
    """

    limiter: AttemptLimiter | None = None
    is_of_run: bool = attrs.field(default=False, kw_only=True)
    waits_count: bool = attrs.field(default=True, kw_only=True)
    history: list[Attempt] = attrs.field(factory=list, kw_only=True)


class CallRunner(Protocol):
    """Makes calls, and gives bulk runs the options of the session that they need."""

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Make one call and return its value."""
        ...

    def withdraw(self, options: Collection[CallOptions]) -> None:
        """Withdraw the calls with these options that have not been sent."""
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


def begin_call(request: Request[Any], root: str, account: str | None, observers: Instrument | None) -> Activity:
    """Begin the activity of a call, and return it."""
    definition = request.definition
    return Activity(
        kind="call",
        operation=definition.name,
        instruments=instruments(observers),
        call_id=new_call_id(),
        account=account,
        parent=PARENT.get(),
        method=definition.method,
        path=request.path,
        root=root,
        template=None if definition.name == "request" else definition.path,
    ).begin()


def instruments(observers: Instrument | None) -> tuple[Instrument, ...]:
    """Return the instruments that are notified of an activity which begins now."""
    return followers() if observers is None else (*followers(), observers)
