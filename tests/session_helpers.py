"""What the tests of sessions share: a provider, a session, and what it sent."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import attrs

from boardclient import AsyncSession, Credentials, StaticCredentials
from boardclient._transport._values import TransportSettings

BASE = "https://boards.example"
ANY = re.compile(r"https://boards\.example/1/.*")
KEY, TOKEN = "key-k3y", "token-t0ken"
BOARD = {"id": "b1", "name": "plans"}


def transport_settings(**options: Any) -> TransportSettings:
    """Return the settings of a transport, by default those of a session."""
    given = {name: one.default for name, one in inspect.signature(AsyncSession).parameters.items()} | {
        "headers": {},
        "user_agent": "",
    }
    return TransportSettings(**{name: given[name] for name in attrs.fields_dict(TransportSettings)} | options)


class Provider:
    """A provider that returns `held`, and on renewal the next of `renewals`."""

    def __init__(self, held: Any, *renewals: Any) -> None:
        self.held, self.renewals, self.rejected = held, list(renewals), []

    async def acquire(self, exchange: Any) -> Credentials:
        """Return the credentials, or raise the error in their place."""
        if isinstance(self.held, BaseException):
            raise self.held
        return self.held

    async def renew(self, rejected: Credentials, exchange: Any) -> Credentials:
        """Take the next of the renewals."""
        self.rejected.append(rejected)
        self.held = self.renewals.pop(0)
        return await self.acquire(exchange)


def session_of(credentials: Any = None, **options: Any) -> AsyncSession:
    return AsyncSession(StaticCredentials(TOKEN, KEY) if credentials is None else credentials, BASE, **options)


def requests(wire: Any) -> list[tuple[str, Any, Any]]:
    return [(method, url, call.kwargs) for (method, url), calls in wire.requests.items() for call in calls]


def body_of(wire: Any, index: int = 0) -> Any:
    return json.loads(requests(wire)[index][2]["data"])


def counted(wire: Any) -> int:
    return len(requests(wire))
