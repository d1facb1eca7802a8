"""What the transport overrides or calls of aiohttp beyond its documentation has the source that it was written for."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ClientResponse
from aiohttp.connector import BaseConnector, Connection

from boardclient._transport._client_session import OutgoingRequest, ShownResponse
from boardclient._transport._connection_pool import Connector, Protocol
from boardclient._transport._direct import Prototype

_SUBCLASSES = (Connector, Protocol, OutgoingRequest, Prototype, ShownResponse)
_CALLED: list[tuple[type, str]] = [
    (BaseConnector, "_get"),
    (BaseConnector, "_release_acquired"),
    (Connection, "close"),
    (ResponseHandler, "abort"),
    (ResponseHandler, "set_response_params"),
    (ResponseHandler, "should_close"),
    (ClientRequest, "update_body"),
    (ClientResponse, "_response_eof"),
]
"""What is not overridden, but relied on."""
_KNOWN: dict[str, set[str]] = {
    "BaseConnector.__del__": {"496a9949b4c7"},
    "BaseConnector._get": {"2121964120ac", "4795a63c99f2"},
    "BaseConnector._release": {"105426e5b03d"},
    "BaseConnector._release_acquired": {"12d4149c8835"},
    "BaseConnector._release_waiter": {"bbdfe8abaff8"},
    "BaseConnector.connect": {"b9fe1f4d3e57"},
    "BaseProtocol.connection_made": {"30974740198d"},
    "ClientRequest.__init__": {"8636fdb3a4b9"},
    "ClientRequest.connection_key": {"0976f2a8d42a"},
    "ClientRequest.request_info": {"400d62892bfe"},
    "ClientRequest.send": {"78f5dfe1e153", "82b495aa0676"},
    "ClientRequest.update_body": {"7d402b6bcf5f"},
    "ClientRequest.write_bytes": {"08c614dc973c", "f3b5cbcb26f2"},
    "ClientResponse._response_eof": {"e6e30c2f14a2"},
    "ClientResponse.start": {"bcbf178da366"},
    "Connection.close": {"1544c015301a"},
    "ResponseHandler.__init__": {"27ec0c649e43", "941647862894"},
    "ResponseHandler.abort": {"98cd19242555"},
    "ResponseHandler.close": {"beb58bdbd119"},
    "ResponseHandler.connection_lost": {"1c0be3d13ba2", "84b98dfd8035"},
    "ResponseHandler.data_received": {"904f633e1f42", "9bf7ecf8e505"},
    "ResponseHandler.is_connected": {"29276d057a37"},
    "ResponseHandler.set_exception": {"83971750bbd9"},
    "ResponseHandler.set_response_params": {"2eb047e32248", "ee7666662387"},
    "ResponseHandler.should_close": {"fef595ed5edd"},
    "TCPConnector.__init__": {"1ec3ee542f09", "e904900a916b"},
}
"""The digests of the sources, of each version of aiohttp from the lowest allowed one to the newest that was looked at."""


def overridden() -> set[tuple[type, str]]:
    """Return the class of aiohttp and the name of each method and property that the transport overrides."""
    found = set[tuple[type, str]]()
    for ours in _SUBCLASSES:
        theirs = [kind for kind in ours.__mro__[1:] if kind.__module__.startswith("aiohttp.")]
        for name, member in vars(ours).items():
            origin = next((kind for kind in theirs if name in vars(kind)), None)
            if origin is not None and (inspect.isfunction(member) or hasattr(member, "__get__")):
                found.add((origin, name))
    return found


def digest(kind: type, name: str) -> str:
    """Return the digest of the source of a method or property."""
    member: Any = inspect.getattr_static(kind, name)
    source = inspect.getsource(getattr(member, "fget", None) or getattr(member, "wrapped", None) or member)
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@pytest.mark.parametrize(("kind", "name"), sorted({*overridden(), *_CALLED}, key=lambda one: (one[0].__name__, one[1])))
def test_aiohttp_does_what_the_transport_was_written_for(kind: type, name: str) -> None:
    """A method of aiohttp that the transport overrides or calls is unchanged."""
    key = f"{kind.__name__}.{name}"
    found = digest(kind, name)
    assert found in _KNOWN.get(key, ()), (
        f"aiohttp {aiohttp.__version__} has another {key} ({found}): compare it with the one before, "
        "read docs/design/transport.md, and add the digest here if what that page says still holds"
    )
