"""The names, values and instruments of OpenTelemetry's conventions for HTTP clients, from its own package.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and http-metrics/.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.metrics import NoOpMeter
from opentelemetry.semconv._incubating.attributes.url_attributes import URL_TEMPLATE
from opentelemetry.semconv._incubating.metrics.http_metrics import create_http_client_request_duration
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    network_attributes,
    server_attributes,
    url_attributes,
)
from opentelemetry.semconv.schemas import Schemas

_STABLE = (error_attributes, http_attributes, network_attributes, server_attributes, url_attributes)

NAMES = {
    value
    for module in _STABLE
    for name, value in vars(module).items()
    if name.isupper() and name != "TYPE_CHECKING" and isinstance(value, str)
} | {URL_TEMPLATE}
"""Attributes, all of them stable but the template, which the conventions for spans name as well."""
METHODS = {value.value for value in http_attributes.HttpRequestMethodValues}
AT_START = {
    http_attributes.HTTP_REQUEST_METHOD,
    server_attributes.SERVER_ADDRESS,
    server_attributes.SERVER_PORT,
    url_attributes.URL_FULL,
}
"""What spans of clients must have when a sampler sees them."""
REQUIRED_OF_DURATIONS = AT_START - {url_attributes.URL_FULL}
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Of durations: the package does not hold them."""
SCHEMA_URLS = {schema.value for schema in Schemas}


class _Meter(NoOpMeter):
    """Keeps what an instrument is made with."""

    def __init__(self) -> None:
        super().__init__("a test")
        self.made: dict[str, Any] = {}

    def create_histogram(self, name: str, unit: str = "", description: str = "", **options: Any) -> Any:
        self.made = {"name": name, "unit": unit, "description": description}
        return super().create_histogram(name, unit, description, **options)


def duration() -> dict[str, Any]:
    """Return name, unit and description of the duration of requests."""
    meter = _Meter()
    create_http_client_request_duration(meter)
    return meter.made
