"""What a request comes back with: a whole response, or why there is none. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from boardclient.errors import Effect, Phase


@attrs.define
class RawResponse:
    """A whole response: status, headers (case-insensitive) and the unpacked body.

    Nobody changes it; not to forbid that saves half of what making one costs.
    """

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


@attrs.frozen
class TransportFailure:
    """No whole response came. It says how far the request got, its effect, and why, without any address.

    Failures are returned, never raised: the frames of the transport hold credentials, and aiohttp's exceptions print URLs.
    """

    phase: Phase
    effect: Effect
    why: str

    def words(self, host: str) -> str:
        """Return the reason with the host that it is about."""
        before, mark, rest = self.why.partition("no connection: ")
        return f"no connection to {host}: {rest}" if mark and not before else f"{self.why} ({host})"


TransportResult: TypeAlias = RawResponse | TransportFailure
