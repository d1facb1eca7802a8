"""Sends one request and reads its whole response. Only here and in `testing` is aiohttp imported.

This package does not know of calls, credentials or retries. The names below are plain values that need no aiohttp; `Pool`, which
does the I/O, is imported from `_pool`. A pool has two transports: `ClientSessionTransport` over `ClientSession.request`, which
always works, and `DirectTransport` over the same connections, which costs less than half.
"""

from boardclient._transport._values import (
    CREDENTIAL_NAMES,
    FORM_TYPE,
    FRAMING,
    Progress,
    RawResponse,
    Settings,
    TransportFailure,
    TransportResult,
    check_headers,
    check_proxy,
    check_root,
    check_url,
    host_of,
)

__all__ = [
    "CREDENTIAL_NAMES",
    "FORM_TYPE",
    "FRAMING",
    "Progress",
    "RawResponse",
    "Settings",
    "TransportFailure",
    "TransportResult",
    "check_headers",
    "check_proxy",
    "check_root",
    "check_url",
    "host_of",
]
