"""What recorders use of the transport, which `testing` must not import itself."""

from boardclient._transport._pool import TAPS, TappedRequest
from boardclient._transport._values import RawResponse, TransportFailure

__all__ = ["TAPS", "RawResponse", "TappedRequest", "TransportFailure"]
