"""What recorders use of the transport, which `testing` must not import itself."""

from boardclient._transport import RawResponse, TransportFailure
from boardclient._transport._pool import TAPS, TappedRequest

__all__ = ["TAPS", "RawResponse", "TappedRequest", "TransportFailure"]
