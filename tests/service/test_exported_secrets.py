"""All that instruments write down of calls, however they end: no credential is in it. One table for all of them."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from failing_calls import SITUATIONS, Scene, tokens_of
from foreign_instruments import FOREIGN, Foreign
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from virtual_loop import Clock

from boardclient.integrations.opentelemetry import BoardClientInstrumentor
from boardclient.testing import BoardService, assert_no_secrets


class Kept(logging.Handler):
    """A handler that keeps the records, and what a formatter makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept += [record, self.format(record)]


@contextlib.contextmanager
def own(folder: Path) -> Iterator[Foreign]:
    """Turn on all that is ours: spans, metrics, logs at DEBUG."""
    out, reader, provider, handler = io.StringIO(), InMemoryMetricReader(), TracerProvider(), Kept()
    meters = MeterProvider([reader])
    spans: list[ReadableSpan] = []

    def line(span: ReadableSpan) -> str:
        spans.append(span)
        return str(span.to_json())

    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
    BoardClientInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)
    logger = logging.getLogger("boardclient")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def written() -> list[Any]:
        data = reader.get_metrics_data()
        return [out.getvalue(), "" if data is None else data.to_json(), handler.kept, spans]

    try:
        yield Foreign(lambda: [span.name for span in spans], written)
    finally:
        BoardClientInstrumentor().uninstrument()
        provider.shutdown()
        meters.shutdown()


INSTRUMENTS = {"own": own, **FOREIGN}
ON_BOTH_WAYS = [
    (transport_kind, install)
    for transport_kind in ("direct", "public")
    for install in INSTRUMENTS
    if (transport_kind, install) != ("public", "cassette")
]
"""vcrpy takes all requests, so there is one transport with it."""


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("transport_kind,install", ON_BOTH_WAYS, indirect=["transport_kind"])  # noqa: PT006 -- the conftest reads a string
async def test_nothing_exported_holds_a_secret(
    name: str, install: str, service: BoardService, raw_server: Any, loop_clock: Clock, tmp_path: Path
) -> None:
    """Whatever an instrument writes of a call, its events and its error is free of credentials, and each span ends."""
    situation, raised = SITUATIONS[name]
    events: list[Any] = []
    scene = Scene(service, raw_server, loop_clock, {"observers": [events.append]})
    error: BaseException | None = None
    with INSTRUMENTS[install](tmp_path) as foreign:
        try:
            await situation(scene)
        except BaseException as caught:
            error = caught
            foreign.report(caught)
        written = foreign.written()
    assert raised is None if error is None else raised is not None and isinstance(error, raised), error
    secrets = [*scene.secrets, *tokens_of(service)]
    assert_no_secrets([written, events], secrets=secrets)
    if error is not None:
        assert_no_secrets(error, secrets=secrets)
