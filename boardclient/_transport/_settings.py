"""The settings of a session's transport. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from ssl import SSLContext

import aiohttp
import attrs


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of a session's transport, for the service and the token exchange.

    `AsyncSession` documents them.
    """

    max_connections: int = 100
    trust_env: bool = False
    ssl: SSLContext | bool | aiohttp.Fingerprint | None = None
    proxy: str | None = attrs.field(default=None, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    user_agent: str = ""
    allow_insecure: bool = False
    max_answer_bytes: int = 256 * 2**20

    def __attrs_post_init__(self) -> None:
        if self.ssl is False and not self.allow_insecure:
            raise ValueError("ssl=False turns certificate checks off: it needs allow_insecure=True")
        if self.max_connections < 1 or self.max_answer_bytes < 1:
            raise ValueError("max_connections and max_answer_bytes must be at least 1")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or not (name + value).isprintable():
                raise ValueError("headers must be printable strings")
        if not self.user_agent.isprintable():
            raise ValueError("user_agent must be printable")
