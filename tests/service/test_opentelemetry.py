"""Spans and metrics: by the conventions' own names, one CLIENT span for each attempt, and no credential in anything exported."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes.url_attributes import URL_TEMPLATE
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    network_attributes,
    server_attributes,
    url_attributes,
)
from opentelemetry.semconv.metrics.http_metrics import HTTP_CLIENT_REQUEST_DURATION
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode
from pace_simulation import pace_of
from virtual_loop import Clock

from boardclient import AsyncSession, BoardClientError, CardDraft, OAuthCredentials, StaticCredentials
from boardclient._base._activities import INSTALLED, Activity
from boardclient.events import RetryScheduled
from boardclient.integrations.opentelemetry import BoardClientInstrumentor, _OpenTelemetry
from boardclient.testing import BoardService, assert_no_secrets, faults

STABLE = (error_attributes, http_attributes, network_attributes, server_attributes, url_attributes)
NAMES = {URL_TEMPLATE} | {value for module in STABLE for name, value in vars(module).items() if name.isupper()}
"""The attributes that the conventions name."""


@attrs.define
class Exported:
    """What the instrumentor exported."""

    provider: TracerProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def text(self) -> str:
        return "".join(span.to_json() for span in self.exporter.get_finished_spans()) + str(self.reader.get_metrics_data())


@pytest.fixture
def exported() -> Iterator[Exported]:
    """Turn the instrumentor on, with providers of the test's own."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider, meters = TracerProvider(), MeterProvider([reader])
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    BoardClientInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)
    yield Exported(provider, exporter, reader)
    BoardClientInstrumentor().uninstrument()
    meters.shutdown()
    provider.shutdown()


def oauth(service: BoardService, calls: list[str]) -> OAuthCredentials:
    async def authorize(request: object) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{service.base_url}/elsewhere") as response:
            calls.append(str(response.status))
        return service.new_code()

    return service.oauth_credentials(authorize=authorize)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_call_and_its_attempts(service: BoardService, policy: Any, exported: Exported) -> None:
    """A call is one INTERNAL span, each attempt a CLIENT span in it, by the conventions' names, and its id is on the wire."""
    service.faults.add(faults.status(503), "members.me", times=1)
    async with service.session(retry=policy) as session:
        await session.members.me()
    (call,) = exported.spans(SpanKind.INTERNAL)
    first, second = exported.spans(SpanKind.CLIENT)
    assert call.name == "members.me"
    assert {first.parent.span_id, second.parent.span_id} == {call.context.span_id}
    assert first.name == second.name == "GET /1/members/me"
    host, _, port = service.base_url[7:].partition(":")
    expected = {
        "http.request.method": "GET",
        "url.full": f"{service.base_url}/1/members/me",
        "url.template": "/1/members/me",
        "server.address": host,
        "server.port": int(port),
    }
    expected_after = {**expected, "network.protocol.version": "1.1"}
    failed = {"http.response.status_code": 503, "error.type": "503", "boardclient.effect": "unknown"}
    assert attributes_of(first) == {**expected_after, **failed}
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    done = {"http.request.resend_count": 1, "http.response.status_code": 200, "boardclient.effect": "done"}
    assert attributes_of(second) == {**expected_after, **done}
    own = {name for span in (call, first, second) for name in attributes_of(span)}
    assert {name for name in own if not name.startswith("boardclient.")} <= NAMES
    assert [event.name for event in call.events] == ["retry"]
    assert dict(call.events[0].attributes or {})["boardclient.attempt"] == 1
    sent = [dict(request.headers) for request in service.calls]
    ids = [str(headers.get("traceparent", headers.get("Traceparent")))[:52] for headers in sent]
    assert ids == [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in (first, second)]


@pytest.mark.parametrize("is_late", [False, True])
async def test_one_span_for_each_attempt_beside_aiohttps_own(service: BoardService, exported: Exported, is_late: bool) -> None:
    """With OpenTelemetry's own instrumentor each attempt has one CLIENT span; an application's own calls keep theirs."""
    calls: list[str] = []
    theirs = AioHttpClientInstrumentor()
    async with AsyncSession(oauth(service, calls), service.base_url) as opened:
        session = opened
        if is_late:
            await session.members.me()
            exported.exporter.clear()
            session = session.with_credentials(oauth(service, calls))
        theirs.instrument(tracer_provider=exported.provider)
        try:
            await session.members.me()
        finally:
            theirs.uninstrument()
    clients = exported.spans(SpanKind.CLIENT)
    names = sorted(span.name for span in clients)
    assert names == ["GET", "GET /1/members/me", "POST /auth/1/OAuthGetAccessToken"]
    internal = {span.name: span for span in exported.spans(SpanKind.INTERNAL)}
    assert set(internal) == {"members.me", "credentials.renew"}
    made = [span for span in (*clients, *internal.values()) if span.name != "GET"]
    assert {span.status.status_code for span in made} == {StatusCode.UNSET}
    assert [span.name for span in made if "error.type" in (span.attributes or {})] == []
    own = next(span for span in clients if span.name == "GET")
    assert own.parent is not None
    assert own.parent.span_id == internal["credentials.renew"].context.span_id
    secrets = [service.key, service.client_secret, *(str(call.query["token"]) for call in service.calls if "token" in call.query)]
    assert_no_secrets(exported.text(), secrets=secrets)


async def test_failures_export_no_secret(service: BoardService, policy: Any, loop_clock: Clock, exported: Exported) -> None:
    """Whatever goes wrong, spans and metrics say so, end, and hold no credential."""
    echo = f"{service.key} {service.token}".encode()
    kinds = [
        *(
            faults.status(status, body=echo, headers={"X-Echo": service.token})
            for status in (302, 400, 401, 403, 404, 408, 429, 500)
        ),
        faults.status(200, body=echo),
        faults.drop(),
        faults.drop(reset=True),
    ]
    words: list[str] = []
    async with service.session(retry=None) as session:
        for fault in kinds:
            service.faults.add(fault, times=1)
            with pytest.raises(BoardClientError) as caught:
                await session.boards.lists("b")
            words.append(str(caught.value))
        service.sleep = loop_clock.sleep
        service.faults.add(faults.hang(seconds=1))
        with pytest.raises(BoardClientError):
            await session.with_options(timeout=0.2).members.me()
    async with AsyncSession(StaticCredentials(service.token, service.key), "http://127.0.0.1:1", retry=None) as session:
        with pytest.raises(BoardClientError):
            await session.members.me()
    clients = exported.spans(SpanKind.CLIENT)
    assert len(clients) == len(exported.spans(SpanKind.INTERNAL)) == len(kinds) + 2
    statuses = ["ApiError", "400", "401", "403", "404", "408", "429", "500", "DecodeError"]
    kinds_of_errors = [attributes_of(span).get("error.type") for span in clients]
    assert kinds_of_errors == [*statuses, "TransportError", "TransportError", "DeadlineError", "TransportError"]
    assert [span.status.description for span in exported.spans(SpanKind.INTERNAL)][: len(words)] == words
    assert {span.status.description for span in clients[: len(statuses)]} == {None}  # their status says it
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert_no_secrets(exported.text(), secrets=[service.key, service.token])


async def test_a_cancelled_call_ends_its_spans(service: BoardService, exported: Exported) -> None:
    """A call that its caller cancels ends its spans, and leaves no span current."""
    service.faults.add(faults.hang())
    async with service.session(retry=None) as session:
        call = asyncio.ensure_future(session.members.me())
        await service.received("members.me")
        call.cancel()
        await asyncio.wait([call])
    (client,), (outer,) = exported.spans(SpanKind.CLIENT), exported.spans(SpanKind.INTERNAL)
    assert attributes_of(client)["boardclient.effect"] == "unknown"
    assert attributes_of(client)["error.type"] == attributes_of(outer)["error.type"] == "CancelledError"
    assert client.status.status_code is outer.status.status_code is StatusCode.ERROR


async def test_a_bulk_run_is_one_span(service: BoardService, exported: Exported) -> None:
    """A run is a span; of each operation a hundred calls have spans, and all are measured, retries too."""
    board = service.seed({"To Do": []})
    drafts = [CardDraft(f"card {number}", board.lists["To Do"]) for number in range(130)]
    service.faults.add(faults.status(503, commit=True), "cards.create", times=1)
    async with service.session(limiter=pace_of(5000.0)) as session:
        gauges = set(exported.metrics())
        await session.cards.create_many(drafts, board_id=board.id, settle=0.005).wait()
        metrics = exported.metrics()
    spans = exported.spans(SpanKind.INTERNAL)
    run = next(span for span in spans if span.name == "cards.create_many")
    assert attributes_of(run)["boardclient.created"] == 130
    names = Counter(span.name for span in spans)
    assert names == {"cards.create_many": 1, "cards.create": 100, "boards.lists": 2, "boards.cards": 3}
    traces = {str(dict(call.headers).get("traceparent", dict(call.headers).get("Traceparent")))[3:35] for call in service.calls}
    assert traces == {f"{run.context.trace_id:032x}"}
    duration = metrics[HTTP_CLIENT_REQUEST_DURATION]
    assert duration.unit == "s"
    point = max(duration.data.data_points, key=lambda one: one.count)
    assert point.count == 129
    assert point.explicit_bounds == (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
    assert {name for name in point.attributes if not name.startswith("boardclient.")} <= NAMES
    assert {f"boardclient.{name}" for name in ("in_flight", "pool.open", "pool.idle", "pool.waiting", "pace")} <= gauges


@pytest.mark.parametrize("with_theirs", [False, True])
async def test_all_requests_and_records_of_a_run_are_in_its_span(
    service: BoardService, exported: Exported, caplog: pytest.LogCaptureFixture, tmp_path: Path, with_theirs: bool
) -> None:
    """All reads of a run are in its span, as are its log records. The context of the caller stays as it was."""
    records: list[tuple[str, int]] = []
    caplog.set_level(logging.DEBUG, "boardclient")

    def note(record: logging.LogRecord) -> bool:
        if record.name.startswith("boardclient"):
            records.append((record.getMessage(), trace.get_current_span().get_span_context().trace_id))
        return True

    caplog.handler.addFilter(note)
    theirs = AioHttpClientInstrumentor()
    board = service.seed({"To Do": ["before"]})
    drafts = [CardDraft(f"card {number}", board.lists["To Do"]) for number in range(3)]
    if with_theirs:
        theirs.instrument(tracer_provider=exported.provider)
    try:
        async with service.session() as session:
            with exported.provider.get_tracer("application").start_as_current_span("import") as outer:
                service.faults.add(faults.status(503, commit=True), "cards.create", times=1)
                run = session.cards.create_many(drafts, board_id=board.id, journal=tmp_path / "j", settle=0.005)
                async with run:
                    assert trace.get_current_span() is outer
                    await run.wait()
                assert trace.get_current_span() is outer
    finally:
        if with_theirs:
            theirs.uninstrument()
    spans = {span.context.span_id: span for span in exported.exporter.get_finished_spans()}
    (run_span,) = (span for span in spans.values() if span.name == "cards.create_many")
    assert run_span.parent is not None
    assert run_span.parent.span_id == outer.get_span_context().span_id
    told = [event.name for event in run_span.events if not event.name.startswith("rows in doubt")]  # if it has to wait
    assert told[:3] == ["the board is read", "rows are sent", "the board is read for the audit"]
    for span in exported.spans(SpanKind.INTERNAL):
        assert span.name in {"import", "cards.create_many"} or span.parent.span_id == run_span.context.span_id
    names = Counter(span.name for span in exported.spans(SpanKind.INTERNAL))
    assert names == {"import": 1, "cards.create_many": 1, "cards.create": 3, "boards.lists": 2, "boards.cards": 3}
    assert len(exported.spans(SpanKind.CLIENT)) == len(service.calls) == 8
    assert {number for _, number in records} == {run_span.context.trace_id}
    assert records[0][0] == "cards.create_many begins"
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_run_that_never_began_has_an_ended_span(service: BoardService, exported: Exported) -> None:
    """A run whose board can't be read, and one that is left at once, have a span; the first names the error."""
    board = service.seed({"To Do": []})
    async with service.session(retry=None) as session:
        service.faults.add(faults.status(401), "boards.lists", times=1)
        with pytest.raises(BoardClientError):
            await session.cards.create_many([], board_id=board.id).wait()
        async with session.cards.create_many([]):
            pass
    refused, left = (span for span in exported.spans(SpanKind.INTERNAL) if span.name == "cards.create_many")
    assert attributes_of(refused) == {"error.type": "401"}
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes_of(left) == {}
    assert not trace.get_current_span().get_span_context().is_valid


async def test_retries_and_renewals_are_counted(service: BoardService, policy: Any, exported: Exported) -> None:
    """Counters show retries and renewals, gauges the pool; without the instrumentor there are none."""
    async with AsyncSession(oauth(service, []), service.base_url, retry=policy) as session:
        await session.members.me()
        service.faults.add(faults.status(503), "members.me", times=1)
        await session.members.me()
        metrics = exported.metrics()
        stats = session.stats()
        assert await session.ping() > 0
        BoardClientInstrumentor().uninstrument()
        await session.members.me()
    assert metrics["boardclient.retries"].data.data_points[0].value == 1
    assert metrics["boardclient.renewals"].data.data_points[0].value == 1
    assert (stats.calls, stats.attempts, stats.retries) == (2, 3, 1)
    assert (stats.in_flight, stats.pool_open, stats.pool_idle, stats.pool_waiting, stats.pace) == (0, 1, 1, 0, None)
    assert stats.transport in {"DirectTransport", "ClientSessionTransport"}
    assert len(exported.spans(SpanKind.CLIENT)) == 5


def test_retries_without_a_span_are_counted(exported: Exported) -> None:
    """A retry counts as well in a call that has no span, as the later ones of a run."""
    retry = RetryScheduled(operation="x", method="GET", path="/", attempt=1, pause_seconds=0.0, why="503")
    (instrument,) = (one for one in INSTALLED if isinstance(one, _OpenTelemetry))
    instrument.note(Activity(kind="call", operation="x"), retry)
    assert exported.metrics()["boardclient.retries"].data.data_points[0].value == 1
    assert exported.exporter.get_finished_spans() == ()


async def test_free_requests_have_no_template(service: BoardService, exported: Exported) -> None:
    """A path that is not known to be of few kinds stays out of names; a method that is not standard is "_OTHER"."""
    service.faults.add(faults.status(200, body=b"{}"))
    async with service.session() as session:
        await session.request("GET", "/1/cards/c1/actions", params={"limit": 2})
        await session.request("PURGE", "/1/cards/c1")
    get, purge = exported.spans(SpanKind.CLIENT)
    assert (get.name, purge.name) == ("GET", "HTTP")
    assert "url.template" not in attributes_of(get)
    assert attributes_of(get)["url.full"] == f"{service.base_url}/1/cards/c1/actions"
    method = http_attributes.HttpRequestMethodValues.OTHER.value
    assert (attributes_of(purge)["http.request.method"], attributes_of(purge)["http.request.method_original"]) == (
        method,
        "PURGE",
    )
    assert purge.instrumentation_scope.schema_url in {schema.value for schema in Schemas}


def test_the_instrumentor_is_found_and_imported_only_when_wanted() -> None:
    """OpenTelemetry finds it by its entry point; a session does not import OpenTelemetry."""
    (entry,) = (e for e in importlib.metadata.entry_points(group="opentelemetry_instrumentor") if e.name == "boardclient")
    instrumentor = entry.load()()
    assert not instrumentor.is_instrumented_by_opentelemetry
    instrumentor.instrument(skip_dep_check=True)
    instrumentor.instrument()
    assert BoardClientInstrumentor().is_instrumented_by_opentelemetry
    instrumentor.uninstrument()
    instrumentor.uninstrument()
    program = "import sys, boardclient.session; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
