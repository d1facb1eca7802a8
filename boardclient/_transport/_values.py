"""The result of a request: a whole response, or the reason why there is none. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import attrs

from boardclient.errors import Effect, Phase


@attrs.define
class RawResponse:
    """A whole response: status, headers (case-insensitive) and the decoded body.

    It is not changed after it was made. It is not frozen because a frozen class takes twice as long to make.
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
    """No whole response was received. `why` shows no URL.

    It says how far the request got and what its effect may be. Failures are returned, not raised, because the frames of the
    transport hold credentials and aiohttp's exceptions show URLs.
    """

    status: ClassVar[None] = None
    phase: Phase
    effect: Effect
    why: str

    def words(self, host: str) -> str:
        """Return the reason with the host."""
        before, mark, rest = self.why.partition("no connection: ")
        return f"no connection to {host}: {rest}" if mark and not before else f"{self.why} ({host})"


TransportResult: TypeAlias = RawResponse | TransportFailure
