"""Send one request, read its answer whole, release the connection, say what failed: the one client-side room with aiohttp.

A `Pool` is what the rest of the package sees. Below it are two ways of the same exchange: `_public` over `ClientSession.request`,
which serves always, and `_direct` over the same connections, which costs less and serves where nobody could tell the two apart.
"""

from boardclient._transport._connections import KEEP_ALIVE_SECONDS
from boardclient._transport._failures import Failure
from boardclient._transport._pool import Pool
from boardclient._transport._settings import Settings

__all__ = ["KEEP_ALIVE_SECONDS", "Failure", "Pool", "Settings"]
