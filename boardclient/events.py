"""What observers receive: frozen values without any credential. No I/O.

An observer is a callable with one parameter, called in the task of the call, in the order of events; it should return soon.
What it raises is logged under `boardclient` and does not disturb the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import attrs

from boardclient.errors import Effect


@attrs.frozen(kw_only=True)
class RequestSent:
    """Tell that a request is about to be handed to the connection pool. `attempt` counts from 1 within a call."""

    operation: str
    method: str
    path: str
    attempt: int
    call_id: str = attrs.field(default="", eq=False)
    account: str | None = None


@attrs.frozen(kw_only=True)
class ResponseReceived:
    """Tell how an attempt ended.

    `status` is None where no whole response came; `why` says it in words. `headers` are those of the response, with `***` in
    place of credentials.
    """

    operation: str
    method: str
    path: str
    attempt: int
    status: int | None
    seconds: float
    effect: Effect
    why: str
    call_id: str = attrs.field(default="", eq=False)
    account: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)


AnswerReceived = ResponseReceived
"""The earlier name."""


@attrs.frozen(kw_only=True)
class RetryScheduled:
    """Tell that the policy repeats a call after a pause."""

    operation: str
    method: str
    path: str
    attempt: int
    pause_seconds: float
    why: str
    call_id: str = attrs.field(default="", eq=False)
    account: str | None = None


@attrs.frozen(kw_only=True)
class CredentialsRenewed:
    """Tell that new credentials replace those that the service refused with 401."""

    operation: str
    call_id: str = attrs.field(default="", eq=False)
    account: str | None = None


WaitReason: TypeAlias = Literal["outage", "consent", "retry-after", "settling"]
"""What a bulk run waits for.

"outage": nothing gets through to the service. "consent": the account's user has to sign in. "retry-after": the service asked for
a pause. "settling": the board is read once nothing that was sent can still be on its way.
"""


@attrs.frozen(kw_only=True)
class BulkProgress:
    """Tell how far a bulk run is. `rate` is created cards per second since its start, `already` what earlier runs did."""

    done: int
    created: int
    already: int = 0
    failed: int
    unknown: int
    rate: float
    seconds: float
    total: int | None = None
    waiting_for: WaitReason | None = None
    """What the run waits for, None while it goes on."""

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate the seconds left; None where the total or the rate is not known."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


Event: TypeAlias = RequestSent | ResponseReceived | RetryScheduled | CredentialsRenewed | BulkProgress
Observer: TypeAlias = Callable[[Event], object]
