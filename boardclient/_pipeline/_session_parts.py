"""What a session and its views share, and how a session is closed."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from boardclient._base._activities import PARENT, SOURCES, Activity, Instrument, followers
from boardclient._base._fifo import FifoSemaphore
from boardclient._interface._operations import check_proxy, check_root, check_url, host_of, words_of
from boardclient._interface._responses import Response, response_of, status_of
from boardclient._pipeline._calls import InFlightCalls
from boardclient._pipeline._stats import SessionStats
from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import FORM_TYPE, SUCCESSES, RawResponse, TransportResult, TransportSettings
from boardclient.credentials import Credentials
from boardclient.errors import SessionClosedError, TransportError
from boardclient.models import check_seconds

T = TypeVar("T")


class ConnectionSlots(FifoSemaphore):
    """A slot for each connection of a pool, which a row of a bulk run takes before its deadline starts."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda: number)
        self.number = number
        self.wanted = 0
        """The largest number of requests that the open runs may have in flight together."""


class SessionParts:
    """What a session and its views share: the pool and the calls in flight. It is the `Exchange` that providers use."""

    def __init__(
        self,
        base_url: str,
        settings: TransportSettings,
        transport: TransportChoice,
        timeout: float | None,
        limiter: object,
        observers: Instrument | None,
    ) -> None:
        self.base_url: str = check_root(base_url, "base_url", allow_insecure=settings.allow_insecure)
        check_proxy(settings.proxy, self.base_url, allow_insecure=settings.allow_insecure)
        self.host: str = host_of(self.base_url)
        self.settings = settings
        self.transport = transport
        self.slots: ConnectionSlots = ConnectionSlots(self.transport.max_connections)
        self.in_flight: InFlightCalls = InFlightCalls()
        self.timeout = timeout
        self.settle_seconds: float | None = None
        """What `settle` is where a call does not say. None: it comes from the call's timeout."""
        self._limiter = limiter
        """The session's limiter, whose pace `stats` shows."""
        self._observers = observers
        """The session's observers, for what no call waits for."""
        self.retries: int = 0
        self.replays: int = 0
        self.renewals: int = 0
        self.forms: int = 0
        SOURCES.add(self)
        self._renewed: weakref.WeakSet[Credentials] = weakref.WeakSet()
        self._background: set[asyncio.Task[Any]] = set()

    def count_renewal(self, renewed: Credentials) -> bool:
        """Count a renewal, and return whether this call is the first that has its credentials."""
        if renewed in self._renewed:
            return False
        self._renewed.add(renewed)
        self.renewals += 1
        return True

    def stats(self) -> SessionStats:
        from boardclient._pipeline._pace import Pace  # most sessions have none: importing it takes a tenth of the package's time

        attempts = self.transport.sent - self.forms
        pool_open, idle, waiting = self.transport.connections
        return SessionStats(
            calls=max(0, attempts - self.retries - self.replays),
            attempts=attempts,
            retries=self.retries,
            renewals=self.renewals,
            in_flight=len(self.in_flight),
            pool_open=pool_open,
            pool_idle=idle,
            pool_waiting=waiting,
            max_connections=self.transport.max_connections,
            pace=self._limiter.rate if isinstance(self._limiter, Pace) else None,
            transport=self.transport.transport_name,
        )

    def check_url(self, url: str, name: str) -> str:
        checked = check_url(url, name, allow_insecure=self.settings.allow_insecure)
        check_proxy(self.settings.proxy, checked, allow_insecure=self.settings.allow_insecure)
        return checked

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self.in_flight.is_closed:
            work.close()
            raise SessionClosedError("the session is closed")
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        try:
            check_timeout(timeout)
            target = self.check_url(url, "the URL of the form")
            context = self.in_flight.begin(None, timeout)
        except BaseException:
            del fields  # the frame stays in the error's traceback, and must not hold credentials
            raise
        error: BaseException
        activity, body = None, b""
        try:
            body = urlencode(fields, errors="surrogatepass").encode()
            context.started = time.perf_counter()
            self.forms += 1
            activity = _begin_form(target, self._observers)
            outcome = await self.transport.send("POST", target, body, context, FORM_TYPE, headers=activity.headers)
            _end_form(activity, outcome, context.http_version)
            if isinstance(outcome, RawResponse):
                return response_of(outcome, "POST")
            why = f"the form got no response: {words_of(outcome, host_of(target))}"
            error = TransportError(why, outcome.phase, "POST", outcome.effect)
        except BaseException as raised:
            raised.__traceback__ = None  # its frames hold the form, and observers run before it is handled
            effect, early = context.effect_under_way, context.end(host_of(target))
            if activity is not None:
                activity.effect, activity.why = effect, "cancelled" if early is None else early.message
                activity.end(early or asyncio.CancelledError())
            error = early or raised
        finally:
            self.in_flight.end(context)
            del fields, body
        try:
            raise error
        finally:
            del error, activity  # the error would be in a reference cycle with this frame

    async def aclose(self) -> None:
        """End the calls in flight and close the pool, once."""
        drained = self.in_flight.close()
        # The connections of another event loop or process can neither be awaited nor closed from here.
        if not self.in_flight.is_on_own_loop:
            self.transport.abandon()
            return
        try:
            for task in self._background:
                task.cancel()
            if drained is not None:
                await drained.wait()
            if self._background:
                await asyncio.wait(self._background)
        finally:
            await self.transport.aclose()


def check_timeout(timeout: float | None) -> None:
    if timeout is not None and not check_seconds(timeout, "timeout", "a number of seconds or None") > 0:
        raise ValueError("timeout must be more than 0 seconds, or None")


def _begin_form(url: str, observers: Instrument | None) -> Activity:
    """Begin the activity of a form, of which the session's observers are notified if no call caused it."""
    parent = PARENT.get()
    host = host_of(url)
    root, _, path = url.partition(host)
    return Activity(
        kind="attempt",
        operation="token exchange",
        instruments=followers(observers) if parent is None else parent.instruments,
        call_id="" if parent is None else parent.call_id,
        account=None if parent is None else parent.account,
        parent=parent,
        method="POST",
        path=path,
        root=root + host,
        template=path,
    ).begin()


def _end_form(activity: Activity, outcome: TransportResult, http_version: tuple[int, int] | None) -> None:
    """End the activity of a form, without the headers of its response, which may repeat what was sent."""
    if isinstance(outcome, RawResponse):
        activity.status, activity.effect = outcome.status, status_of(outcome.status).effect
        activity.http_version = http_version
        activity.why = "success" if outcome.status in SUCCESSES else f"status {outcome.status}"
    else:
        activity.effect, activity.why = outcome.effect, words_of(outcome, host_of(activity.root))
    activity.end()
