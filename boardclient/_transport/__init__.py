"""Send one request, read its whole response, and say what failed. Only here and in `testing` is aiohttp imported.

It knows nothing of calls. The names below are plain values that need no aiohttp; `_pool.Pool`, which does the I/O, is imported
from its module. A pool has two transports: `ClientSessionTransport` over `ClientSession.request`, which always works, and
`DirectTransport` over the same connections, which costs less than half.
"""

from boardclient._transport._progress import Progress
from boardclient._transport._settings import Settings
from boardclient._transport._values import RawResponse, TransportFailure, TransportResult

__all__ = ["Progress", "RawResponse", "Settings", "TransportFailure", "TransportResult"]
