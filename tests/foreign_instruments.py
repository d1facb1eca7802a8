"""Instruments of others, installed for a test and taken out after it, and all that they wrote down."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import attrs
import sentry_sdk
import vcr
import vcr.stubs.aiohttp_stubs
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from sentry_sdk.integrations.aiohttp import AioHttpIntegration
from sentry_sdk.transport import Transport


@attrs.define
class Foreign:
    """An instrument that is on.

    Args:
        seen: gives the methods and URLs of the requests that it saw, such as "GET https://board.example/1/members/me".
        written: gives all that it wrote down or would send.
        fields: names of the header fields that it adds to a request.
        report: reports an error to it, where it takes any.
    """

    seen: Callable[[], list[str]]
    written: Callable[[], list[Any]]
    fields: tuple[str, ...] = ()
    report: Callable[[BaseException], object] = lambda error: None


class _Envelopes(Transport):
    """Where Sentry's client hands what it would send."""

    taken: list[Any]

    def capture_envelope(self, envelope: Any) -> None:
        self.taken.append(envelope)


@contextlib.contextmanager
def sentry(folder: Path) -> Iterator[Foreign]:
    """Turn Sentry on, with its integration of aiohttp and the spans of a transaction."""
    patched = [(aiohttp.ClientSession, "__init__"), (aiohttp.web.Application, "_handle"), (aiohttp.web.UrlDispatcher, "resolve")]
    before = [(owner, name, vars(owner)[name]) for owner, name in patched]
    transport = type("Envelopes", (_Envelopes,), {"taken": []})
    sentry_sdk.init(
        dsn="https://public@sentry.example/1",
        transport=transport,
        traces_sample_rate=1.0,
        max_request_body_size="always",
        enable_backpressure_handling=False,
        default_integrations=False,
        auto_enabling_integrations=False,
        auto_session_tracking=False,
    )
    AioHttpIntegration.setup_once()
    sentry_sdk.get_client().integrations["aiohttp"] = AioHttpIntegration()
    span = sentry_sdk.start_transaction(name="a test")
    span.__enter__()

    def written() -> list[Any]:
        if span.timestamp is None:
            span.__exit__(None, None, None)
        return [envelope.serialize() for envelope in transport.taken]

    def seen() -> list[str]:
        written()
        events = [envelope.get_transaction_event() for envelope in transport.taken]
        return [part["description"] for event in events if event for part in event["spans"] if part["op"] == "http.client"]

    try:
        yield Foreign(seen, written, ("sentry-trace", "baggage"), sentry_sdk.capture_exception)
    finally:
        written()
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.get_global_scope().set_client(None)
        for owner, name, function in before:
            setattr(owner, name, function)


@contextlib.contextmanager
def opentelemetry(folder: Path) -> Iterator[Foreign]:
    """Turn OpenTelemetry's instrumentor of aiohttp on; its spans go to the console exporter."""
    out, provider, instrumentor = io.StringIO(), TracerProvider(), AioHttpClientInstrumentor()
    spans: list[Any] = []

    def line(span: Any) -> str:
        spans.append(span)
        return str(span.to_json())

    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
    instrumentor.instrument(tracer_provider=provider)

    def seen() -> list[str]:
        named = [{**span.attributes} for span in spans]
        return [f"{one.get('http.method')} {one.get('http.url')}" for one in named]

    try:
        yield Foreign(seen, lambda: [out.getvalue()], ("traceparent",))
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


@contextlib.contextmanager
def cassette(folder: Path) -> Iterator[Foreign]:
    """Record with vcrpy."""
    path = folder / "cassette.yaml"
    with vcr.VCR(record_mode="new_episodes").use_cassette(str(path)) as running:

        def written() -> list[Any]:
            running._save(force=True)
            return [path.read_text(encoding="utf-8")]

        yield Foreign(lambda: [f"{request.method} {request.uri}" for request in running.requests], written)


FOREIGN = {function.__name__: function for function in (sentry, opentelemetry, cassette)}
"""Each is called with a folder that it may write to."""
