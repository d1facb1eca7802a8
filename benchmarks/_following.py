"""What follows calls, turned on around them: logs, and OpenTelemetry beside what its SDK alone takes for as many spans."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from boardclient import logs

Create = Callable[[int], Awaitable[object]]


class _Formatting(logging.Handler):
    """Formats records, and writes them nowhere."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


@contextlib.contextmanager
def _logging(level: int) -> Iterator[None]:
    logger, handler = logging.getLogger(logs.__name__.partition(".")[0]), _Formatting()
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


def logged(create: Create, level: int) -> Create:
    """Return the same calls with logs from this level on."""

    async def run(count: int) -> None:
        with _logging(level):
            await create(count)

    return run


def traced(create: Create) -> tuple[Create, Create] | None:
    """Return the same calls with spans and metrics, and what the SDK alone takes for them. None where it is not installed."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        return None
    from boardclient.integrations.opentelemetry import BoardClientInstrumentor

    spans, meters = TracerProvider(), MeterProvider([InMemoryMetricReader()])

    async def run(count: int) -> None:
        BoardClientInstrumentor().instrument(tracer_provider=spans, meter_provider=meters)
        try:
            await create(count)
        finally:
            BoardClientInstrumentor().uninstrument()

    return run, _bare(spans, meters)


def _bare(spans: Any, meters: Any) -> Create:
    """Return what makes a span in a span, with the attributes of a call and its attempt, and records a duration."""
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import SpanKind

    tracer = spans.get_tracer("bare")
    duration = meters.get_meter("bare").create_histogram("bare", unit="s")
    server = {"http.request.method": "POST", "server.address": "board.example", "server.port": 443, "url.template": "/1/cards"}
    end = {"http.response.status_code": 200, "network.protocol.version": "1.1"}
    sent, measured = {**server, "url.full": "https://board.example/1/cards"}, {**server, **end, "url.scheme": "https"}

    async def run(count: int) -> None:
        for number in range(count):
            call = tracer.start_span("cards.create", attributes={"boardclient.call_id": f"{number}"})
            outer = context.attach(trace.set_span_in_context(call))
            attempt = tracer.start_span("POST /1/cards", kind=SpanKind.CLIENT, attributes=sent)
            inner = context.attach(trace.set_span_in_context(attempt))
            propagate.inject({})
            context.detach(inner)
            duration.record(0.01, measured)
            attempt.set_attributes({**end, "boardclient.effect": "done"})
            attempt.end()
            context.detach(outer)
            call.set_attributes({"boardclient.effect": "done"})
            call.end()
        await asyncio.sleep(0)

    return run
