"""OpenTelemetry spans and metrics of calls, by the HTTP client conventions. Needs the extra `opentelemetry`.

A call is an INTERNAL span named by its operation, each attempt a CLIENT span within it, whose `traceparent` is sent. A renewal
and a bulk run are INTERNAL spans. No attribute holds a credential. The conventions:
https://opentelemetry.io/docs/specs/semconv/http/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Token
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import attrs
from opentelemetry import context as otel_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from boardclient._activities import INSTALLED, SOURCES, Activity, Instrument
from boardclient._statuses import status_of
from boardclient.errors import ApiError, Effect
from boardclient.events import CredentialsRenewed, Event, RetryScheduled

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
_OTHER: Final = "_OTHER"
_CALLS_OF_A_RUN: Final = 100
_PORTS: Final = {"https": 443, "http": 80}
_GAUGES: Final = (
    ("in_flight", "{call}", "Calls under way."),
    ("pool_open", "{connection}", "Open connections."),
    ("pool_idle", "{connection}", "Open connections that no request uses."),
    ("pool_waiting", "{request}", "Requests that wait for a connection."),
    ("pace", "{request}/s", "The rate that a Pace allows."),
)


class BoardClientInstrumentor:
    """Turns spans and metrics of all sessions of the process on and off.

    Of several objects each turns the same instrument on and off, as OpenTelemetry's own instrumentors do.
    """

    _installed: ClassVar[_OpenTelemetry | None] = None

    def instrument(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **options: object,
    ) -> None:
        """Begin to make spans and metrics, also for open sessions. A second call changes nothing.

        Args:
            tracer_provider: where the spans go, by default OpenTelemetry's global one.
            meter_provider: where the metrics go, by default OpenTelemetry's global one.
            options: what `opentelemetry-instrument` passes to every instrumentor; without effect.
        """
        if BoardClientInstrumentor._installed is None:
            installed = _OpenTelemetry(tracer_provider, meter_provider)
            BoardClientInstrumentor._installed = installed
            INSTALLED.append(installed)

    def uninstrument(self, **options: object) -> None:
        """Make no more spans and metrics; spans that have begun end as usual."""
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
    """What the instrument keeps for an activity. It is a span, and what restores the context at its end."""

    span: Span | None
    token: Token[Context] | None = None
    calls: int = 0


class _OpenTelemetry(Instrument):
    """Makes spans and metrics of activities."""

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
            for core in list(SOURCES) if self.is_on else ():
                value = getattr(core.stats(), name)
                if value is not None:
                    sums[core.base_url] = sums.get(core.base_url, 0) + value
            return [Observation(value, _server(url)) for url, value in sums.items()]

        return observe

    def begin(self, activity: Activity) -> None:
        """Begin the span of an activity, and make it the current one."""
        if activity.kind == "attempt":
            self._begin_attempt(activity)
            return
        run = activity.parent.state.get(self) if activity.parent is not None and activity.parent.kind == "run" else None
        if run is not None:
            run.calls += 1
            if run.calls > _CALLS_OF_A_RUN:
                activity.state[self] = _Follower(None)
                return
        named = {"boardclient.account": activity.account, "boardclient.call_id": activity.call_id or None}
        attributes = {name: value for name, value in named.items() if value is not None}
        span = self._tracer.start_span(activity.operation, kind=SpanKind.INTERNAL, attributes=attributes)
        activity.state[self] = _Follower(span, otel_context.attach(trace.set_span_in_context(span)))

    def _begin_attempt(self, activity: Activity) -> None:
        call = activity.parent.state.get(self) if activity.parent is not None else None
        context, span = otel_context.get_current(), None
        if call is None or call.span is not None:
            method = activity.method if activity.method in _METHODS else "HTTP"
            span = self._tracer.start_span(
                f"{method} {activity.template}" if activity.template else method,
                kind=SpanKind.CLIENT,
                attributes=_request_attributes(activity),
            )
            context = trace.set_span_in_context(span, context)
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
                span.add_event("retry", {"boardclient.pause": event.pause_seconds, "boardclient.why": event.why})
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
        kind = _error_type(activity)
        if activity.kind == "attempt":
            self._duration.record(activity.seconds, _metric_attributes(activity, kind))
        elif activity.kind == "renewal":
            self._renewals.add(1, {} if kind is None else {"error.type": kind})
        span = follower.span
        if span is None:
            return
        span.set_attributes(_outcome_attributes(activity, kind))
        if kind is not None:
            span.set_status(Status(StatusCode.ERROR, None if activity.status is not None else activity.why or None))
        span.end()


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"server.address": parts.hostname or "", "server.port": parts.port or _PORTS.get(parts.scheme, 0)}


def _method_attributes(activity: Activity) -> dict[str, Any]:
    attributes = {"http.request.method": activity.method if activity.method in _METHODS else _OTHER, **_server(activity.url)}
    return attributes if activity.template is None else {**attributes, "url.template": activity.template}


def _request_attributes(activity: Activity) -> dict[str, Any]:
    attributes = {**_method_attributes(activity), "url.full": activity.url}
    if activity.method not in _METHODS:
        attributes["http.request.method_original"] = activity.method
    if activity.number > 1:
        attributes["http.request.resend_count"] = activity.number - 1
    return attributes


def _metric_attributes(activity: Activity, error_type: str | None) -> dict[str, Any]:
    known = {"http.response.status_code": activity.status, "error.type": error_type}
    named = {name: value for name, value in known.items() if value is not None}
    return {**_method_attributes(activity), "url.scheme": activity.url.partition(":")[0], **named}


def _outcome_attributes(activity: Activity, error_type: str | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {f"boardclient.{name}": number for name, number in activity.counts.items()}
    if activity.status is not None:
        attributes["http.response.status_code"] = activity.status
    if error_type is not None:
        attributes["error.type"] = error_type
    if activity.kind == "attempt":
        attributes["boardclient.effect"] = activity.effect.value
    elif activity.kind == "call":
        attributes["boardclient.effect"] = getattr(activity.error, "effect", Effect.DONE).value
    return attributes


def _error_type(activity: Activity) -> str | None:
    """Return what went wrong in a word. It is the status of a failed response, otherwise the exception's class."""
    if activity.status is not None and status_of(activity.status).effect is not Effect.DONE:
        return str(activity.status)
    if isinstance(activity.error, ApiError):
        return str(activity.error.status)
    return None if activity.error is None else type(activity.error).__name__
