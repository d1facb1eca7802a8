"""What resources and bulk runs need of a session, and what a call that is part of a bulk run brings along."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

import attrs

from boardclient._messages import Request
from boardclient.errors import Attempt
from boardclient.events import Event

T = TypeVar("T")


class Turns(AbstractAsyncContextManager[object, "bool | None"], Protocol):
    """What the attempts of a bulk run wait for: a limiter that is told of answers."""

    @property
    def needs_every_result(self) -> bool:
        """Tell whether it is to hear of successes too, and not of refusals alone."""
        ...

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Take note of an answer: `status` is None where none came, times are in seconds."""
        ...


@attrs.define
class CallOptions:
    """A call as part of a bulk run: its attempts wait for their turn, and `history` takes those that it made.

    Waiting for a turn, or for credentials, doesn't count for its deadline, and what was answered with 429 is not repeated: that
    is the pace's affair. `history` stays empty where the first attempt sufficed; whoever empties it may use the object for the
    next call.
    """

    turns: Turns | None = None
    history: list[Attempt] = attrs.field(factory=list)

    @property
    def skips_limiter(self) -> bool:
        """Tell whether it need not wait for a turn."""
        return self.turns is None or not self.turns.needs_every_result


class CallRunner(Protocol):
    """What makes calls, and tells what bulk runs go by."""

    async def call(self, request: Request[T], options: CallOptions | None = None) -> T:
        """Sign, send, renew and retry the request, and return the value of its answer."""
        ...

    @property
    def is_observed(self) -> bool:
        """Tell whether anybody observes the calls."""
        ...

    def notify(self, event: Event) -> None:
        """Hand an event to the observers."""
        ...

    @property
    def timeout(self) -> float | None:
        """The seconds that a call has, None where there is no deadline."""
        ...

    @property
    def max_connections(self) -> int:
        """How many requests can be under way at a time."""
        ...

    @property
    def limiter(self) -> object:
        """What limits all calls, None where nothing does."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """Which service and account the calls go to, without any credential."""
        ...
