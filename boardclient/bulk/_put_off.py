"""How long a row waits that was refused with 429 or could not be sent."""

from __future__ import annotations

import asyncio
from typing import Final

from boardclient.bulk._hold import PATIENCE_SECONDS, Hold
from boardclient.bulk._rows import Row
from boardclient.errors import BoardClientError, RateLimitError

_FIRST_SECONDS: Final = 0.05
"""The pause before a row that could not be sent is tried again. It doubles each time, up to 128 times its length."""
_MOST_PUT_OFF: Final = 20
"""How often a row may be put off while others are accepted, before the time since the first refusal counts."""


def pause_before(row: Row, failure: BoardClientError, hold: Hold) -> float | None:
    """Return the seconds until a row is sent again. None if it has failed for too long."""
    now = asyncio.get_running_loop().time()
    if row.put_off_at is None:
        row.put_off_at = now
    if isinstance(failure, RateLimitError):
        pause = failure.retry_after or 0.0
    elif hold.reason == "consent":
        return 0.0
    else:
        pause = _FIRST_SECONDS * 2 ** min(row.put_off, 7)
    row.put_off += 1
    # At a slow service any row may be refused for long. It is the row itself only if it is refused again and again.
    is_unlucky = row.put_off < _MOST_PUT_OFF
    since = max(row.put_off_at, hold.accepted_at) if is_unlucky else row.put_off_at
    return pause if now + pause - since < PATIENCE_SECONDS else None
