"""OpenTelemetry spans and metrics of calls, by the HTTP client conventions. Needs the extra `opentelemetry`.

A call is an INTERNAL span named by its operation, each attempt a CLIENT span within it, whose `traceparent` is sent. A renewal
and a bulk run are INTERNAL spans. No attribute holds a credential. The conventions:
https://opentelemetry.io/docs/specs/semconv/http/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import Token
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import attrs

from boardclient._base._activities import INSTALLED, SOURCES, Activity, Instrument
from boardclient._base._environment import requires_extra
from boardclient._interface._responses import is_http_error
from boardclient.errors import ApiError, BoardClientError
from boardclient.events import CredentialsRenewed, Event, RetryScheduled

with requires_extra("opentelemetry", __name__):
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["BoardClientInstrumentor"]

_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.30.0"
_SUPPRESSED: Final = otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY
"""Instrumentors of HTTP libraries make no span where this is set: `opentelemetry.instrumentation.utils`."""
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_CALLS_OF_A_RUN: Final = 100
"""How many calls of each operation have spans in a bulk run."""
_PORTS: Final = {"https": 443, "http": 80}
_GAUGES: Final = (
    ("in_flight", "{call}", "Calls in flight."),
    ("pool_open", "{connection}", "Open connections."),
    ("pool_idle", "{connection}", "Open connections that no request uses."),
    ("pool_waiting", "{request}", "Requests that wait for a connection."),
    ("pace", "{request}/s", "The rate that a Pace allows."),
)


class BoardClientInstrumentor:
    """Turns spans and metrics of all sessions of the process on and off.

    All objects of the class control the same instrument, as with OpenTelemetry's own instrumentors.
    """

    _installed: ClassVar[_OpenTelemetry | None] = None

    def instrument(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, **options: object
    ) -> None:
        """Begin to make spans and metrics, also for open sessions. A second call changes nothing.

        Args:
            tracer_provider: Where the spans go, by default OpenTelemetry's global one.
            meter_provider: Where the metrics go, by default OpenTelemetry's global one.
            options: What `opentelemetry-instrument` passes to every instrumentor. They have no effect.
        """
        if BoardClientInstrumentor._installed is None:
            installed = _OpenTelemetry(tracer_provider, meter_provider)
            BoardClientInstrumentor._installed = installed
            INSTALLED.append(installed)

    def uninstrument(self, **options: object) -> None:
        """Make no more spans and metrics. Spans that have begun end as usual."""
        installed, BoardClientInstrumentor._installed = BoardClientInstrumentor._installed, None
        if installed is not None:
            installed.is_on = False
            INSTALLED.remove(installed)

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether spans and metrics are made."""
        return BoardClientInstrumentor._installed is not None


@attrs.define
class _Follower:
    """The span of an activity, and the token that restores the context at its end."""

    span: Span | None
    token: Token[Context] | None = None
    calls: Counter[str] = attrs.field(factory=Counter)
    """How many calls a run has made, by their operations."""


class _OpenTelemetry(Instrument):
    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        name, number = "boardclient", version("boardclient")
        self.is_on = True
        self._tracer = trace.get_tracer(name, number, tracer_provider, schema_url=_SCHEMA_URL)
        meter = metrics.get_meter(name, number, meter_provider, schema_url=_SCHEMA_URL)
        self._duration = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._retries = meter.create_counter("boardclient.retries", unit="{retry}", description="Attempts that repeat a call.")
        self._renewals = meter.create_counter("boardclient.renewals", unit="{renewal}", description="Renewals of credentials.")
        for gauge, unit, words in _GAUGES:
            dotted = f"boardclient.{gauge.replace('pool_', 'pool.')}"
            meter.create_observable_gauge(dotted, [self._observer(gauge)], unit=unit, description=words)

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            sums: dict[str, float] = {}
            # A copy, since sessions may end while a reader's thread collects; and gauges can't be removed from a meter.
            for exchange in list(SOURCES) if self.is_on else ():
                value = getattr(exchange.stats(), name)
                if value is not None:
                    sums[exchange.base_url] = sums.get(exchange.base_url, 0) + value
            return [Observation(value, _server(url)) for url, value in sums.items()]

        return observe

    def begin(self, activity: Activity) -> None:
        parent = activity.parent
        if activity.kind == "attempt":
            self._begin_attempt(activity, None if parent is None else parent.state.get(self))
            return
        if parent is not None and parent.kind == "run" and (run := parent.state.get(self)) is not None:
            run.calls[activity.operation] += 1
            # A run of a million rows would fill any backend: later calls are counted, and have no spans.
            if run.calls[activity.operation] > _CALLS_OF_A_RUN:
                activity.state[self] = _Follower(None)
                return
        attributes = {"boardclient.call_id": activity.call_id} if activity.call_id else {}
        if activity.account is not None:
            attributes["boardclient.account"] = activity.account
        span = self._tracer.start_span(activity.operation, kind=SpanKind.INTERNAL, attributes=attributes)
        activity.state[self] = _Follower(span, otel_context.attach(trace.set_span_in_context(span)))

    def _begin_attempt(self, activity: Activity, call: _Follower | None) -> None:
        context, span = otel_context.get_current(), None
        if call is None or call.span is not None:
            attributes: dict[str, Any] = {**_request_of(activity), "url.full": activity.url}
            if activity.method not in _METHODS:
                # The convention has a closed set of methods, so that names of spans stay few.
                attributes["http.request.method_original"] = activity.method
            if activity.number > 1:
                attributes["http.request.resend_count"] = activity.number - 1
            name = activity.method if activity.method in _METHODS else "HTTP"
            if activity.template is not None:
                # The template and not the path, whose identifiers would make a name of each card.
                name = f"{name} {activity.template}"
            span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes)
            context = trace.set_span_in_context(span, context)
        # Also without a span of its own: the service's spans then belong to the run.
        propagate.inject(activity.headers, context)
        # Around the exchange only: an application's own HTTP calls in callbacks keep their spans.
        activity.state[self] = _Follower(span, otel_context.attach(otel_context.set_value(_SUPPRESSED, True, context)))

    def note(self, activity: Activity, event: Event | str) -> None:
        """Count retries, and write what happens into the span."""
        follower = activity.state.get(self)
        span = None if follower is None else follower.span
        if isinstance(event, RetryScheduled):
            self._retries.add(1, {"boardclient.operation": activity.operation})
            if span is not None:
                facts = {"attempt": event.attempt, "pause_seconds": event.pause_seconds, "why": event.why}
                span.add_event("retry", {f"boardclient.{name}": value for name, value in facts.items()})
        elif span is not None and isinstance(event, CredentialsRenewed):
            span.add_event("credentials renewed")
        elif span is not None and isinstance(event, str):
            span.add_event(event)

    def end(self, activity: Activity) -> None:
        """End the span of an activity, and restore the context that was current before."""
        follower = activity.state.get(self)
        if follower is None:
            return
        if follower.token is not None:
            otel_context.detach(follower.token)
        span, kind = follower.span, _error_type(activity)
        attributes: dict[str, Any] = {} if kind is None else {"error.type": kind}
        if activity.kind == "attempt":
            if activity.status is not None:
                attributes["http.response.status_code"] = activity.status
            if activity.http_version is not None:
                attributes["network.protocol.version"] = "{}.{}".format(*activity.http_version)
            scheme = activity.root.partition(":")[0]
            # Without the account and the path: each value of an attribute makes a time series of its own.
            self._duration.record(activity.seconds, {**_request_of(activity), "url.scheme": scheme, **attributes})
        elif activity.kind == "renewal":
            self._renewals.add(1, attributes)
        attributes = attributes | {f"boardclient.{name}": number for name, number in activity.counts.items()}
        if activity.kind in {"attempt", "call"}:
            attributes["boardclient.effect"] = activity.effect.value
        if span is None:
            return
        if attributes:
            span.set_attributes(attributes)
        if kind is not None:
            span.set_status(Status(StatusCode.ERROR, _words(activity)))
        span.end()


def _request_of(activity: Activity) -> dict[str, Any]:
    named = {"http.request.method": activity.method if activity.method in _METHODS else "_OTHER", **_server(activity.root)}
    if activity.template is not None:
        named["url.template"] = activity.template
    return named


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"server.address": parts.hostname or "", "server.port": parts.port or _PORTS.get(parts.scheme, 0)}


def _error_type(activity: Activity) -> str | None:
    """Return what went wrong in a word. It is the status of a failed response, otherwise the exception's class."""
    if activity.kind == "attempt" and activity.status is not None and is_http_error(activity.status):
        return str(activity.status)
    error = activity.error
    if isinstance(error, ApiError) and is_http_error(error.status):
        return str(error.status)
    return None if error is None else type(error).__name__


def _words(activity: Activity) -> str | None:
    if activity.kind == "attempt":
        return None if activity.status is not None else activity.why or None
    return str(activity.error) if isinstance(activity.error, BoardClientError) else None
