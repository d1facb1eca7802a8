"""Spans and durations against OpenTelemetry's own package of conventions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode
from semantic_conventions import AT_START, BUCKETS, METHODS, NAMES, REQUIRED_OF_DURATIONS, SCHEMA_URLS, duration

from boardclient import AsyncSession, BoardClientError, OAuthCredentials, StaticCredentials
from boardclient.integrations import opentelemetry
from boardclient.testing import BoardService, faults


class Noting(Sampler):
    """A sampler that notes what it decides by."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, SpanKind | None, dict[str, Any]]] = []

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Any] | None = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        self.seen.append((name, kind, dict(attributes or {})))
        return ALWAYS_ON.should_sample(parent_context, trace_id, name, kind, attributes)

    def get_description(self) -> str:
        return "noting"


@pytest.fixture
def sampler() -> Noting:
    """Give the sampler of the spans."""
    return Noting()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Give where the spans go."""
    return InMemorySpanExporter()


@pytest.fixture
def reader(sampler: Noting, exporter: InMemorySpanExporter) -> Any:
    """Turn spans and metrics on."""
    reader, provider = InMemoryMetricReader(), TracerProvider(sampler=sampler)
    meters = MeterProvider([reader])
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = opentelemetry.BoardClientInstrumentor()
    instrumentor.instrument(tracer_provider=provider, meter_provider=meters)
    yield reader
    instrumentor.uninstrument()
    meters.shutdown()
    provider.shutdown()


def durations(reader: InMemoryMetricReader) -> tuple[Any, list[dict[str, Any]]]:
    """Return the metric, and the attributes of its points."""
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = (
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == duration()["name"]
    )
    return metric, [dict(point.attributes or {}) for point in metric.data.data_points]


async def test_attributes_at_the_start(service: BoardService, sampler: Noting, reader: Any) -> None:
    """A sampler sees the required attributes of an attempt, by the conventions' names, and a name of few values."""
    service.faults.add(faults.status(200, body=b'{"id": "c1"}'))
    async with service.session() as session:
        await session.request("PURGE", "/1/cards/c1")
        await session.cards.get("c1")
    first, second = ((name, attributes) for name, kind, attributes in sampler.seen if kind is SpanKind.CLIENT)
    assert (first[0], second[0]) == ("HTTP", "GET /1/cards/{card_id}")
    assert set(first[1]) == AT_START | {"http.request.method_original"}
    assert set(second[1]) == AT_START | {"url.template"}
    assert {attributes["http.request.method"] for _, attributes in (first, second)} == {"_OTHER", "GET"}


@pytest.mark.parametrize(
    ("status", "error_type", "code"),
    [
        (200, None, StatusCode.UNSET),
        (302, "ApiError", StatusCode.ERROR),
        *((status, str(status), StatusCode.ERROR) for status in (400, 401, 404, 408, 429, 500, 503)),
        (None, "TransportError", StatusCode.ERROR),
    ],
)
async def test_the_end_of_an_attempt(
    service: BoardService,
    exporter: InMemorySpanExporter,
    reader: Any,
    status: int | None,
    error_type: str | None,
    code: StatusCode,
) -> None:
    """Status, error type and protocol are on span and duration; a status needs no words, another error has them."""
    service.faults.add(faults.drop() if status is None else faults.status(status, body=b'{"id": "c"}'))
    async with service.session(retry=None) as session:
        with contextlib.nullcontext() if error_type is None else pytest.raises(BoardClientError):
            await session.cards.get("c")
        metric, (point,) = durations(reader)
    (span,) = (span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT)
    attributes = dict(span.attributes or {})
    assert (span.status.status_code, bool(span.status.description)) == (code, status is None)
    found = ("http.response.status_code", "error.type", "network.protocol.version")
    expected = (status, error_type, None if status is None else "1.1")
    assert tuple(attributes.get(name) for name in found) == tuple(point.get(name) for name in found) == expected
    assert set(point) >= REQUIRED_OF_DURATIONS
    assert {name for name in (*attributes, *point) if not name.startswith("boardclient.")} <= NAMES
    assert {"name": metric.name, "unit": metric.unit, "description": metric.description} == duration()
    assert metric.data.data_points[0].explicit_bounds == BUCKETS


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_the_protocol_of_a_response(exporter: InMemorySpanExporter, reader: Any, raw_server: Any, version: str) -> None:
    """The version is that of the response, for a call and for a token exchange."""

    async def handler(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await stream.readuntil(b"\r\n\r\n")
        body = b'{"access_token": "secret"}' if b"OAuth" in head else b'{"id": "m"}'
        writer.write(f"HTTP/{version} 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    async def authorize(request: object) -> str:
        return "code"

    async with raw_server.run(handler) as url:
        credentials = OAuthCredentials(
            client_id="c", client_secret="s", redirect_uri="https://a.example/", auth_url=url, authorize=authorize
        )
        async with AsyncSession(credentials, url) as session:
            await session.members.me()
        found = [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
        _, points = durations(reader)
    assert [one["network.protocol.version"] for one in found] == [version, version]
    assert [point["network.protocol.version"] for point in points] == [version, version]


async def test_a_call_without_a_response(exporter: InMemorySpanExporter, reader: Any) -> None:
    """The default port is named, and no attribute stands for what did not come."""
    async with AsyncSession(StaticCredentials("t", "k"), "https://no-such-host.invalid", retry=None) as session:
        with pytest.raises(BoardClientError):
            await session.members.me()
    spans: dict[SpanKind, ReadableSpan] = {span.kind: span for span in exporter.get_finished_spans()}
    attributes = dict(spans[SpanKind.CLIENT].attributes or {})
    assert (attributes["server.address"], attributes["server.port"]) == ("no-such-host.invalid", 443)
    assert "http.response.status_code" not in attributes
    assert dict(spans[SpanKind.INTERNAL].attributes or {})["error.type"] == "TransportError"


def test_values_of_the_conventions() -> None:
    """The methods that are known and the schema are those of the package."""
    assert opentelemetry._METHODS | {opentelemetry._OTHER} <= METHODS
    assert opentelemetry._SCHEMA_URL in SCHEMA_URLS
