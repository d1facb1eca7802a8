"""The headers of requests. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDict

from boardclient import __version__
from boardclient._transport._values import Settings


class RequestHeaders:
    """The headers of a session's requests, prepared once for each content type. Owned by a `Pool`."""

    def __init__(self, settings: Settings) -> None:
        agent = " ".join(filter(None, (f"boardclient/{__version__}", settings.user_agent)))
        bare = CIMultiDict({"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": agent})
        bare.update(settings.headers)
        self._prepared: Final[dict[str | None, CIMultiDict[str]]] = {None: bare}

    def copy(self, content_type: str | None, extra: Mapping[str, str] | None = None) -> CIMultiDict[str]:
        """Return the headers of one request. `extra` replaces those of the same name.

        `content_type` is None for requests without a body. Each request gets its own mapping, because instruments such as ddtrace
        and elastic-apm write into it.
        """
        prepared = self._prepared.get(content_type)
        if prepared is None:
            prepared = self._prepared[content_type] = self._prepared[None].copy()
            prepared["Content-Type"] = content_type or ""
        headers = prepared.copy()
        if extra:
            headers.update(extra)
        return headers
