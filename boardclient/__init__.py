"""Drive a board service (boards, lists, cards) from asyncio applications.

`AsyncSession` owns a connection pool and a credential provider; its `boards`, `lists`, `cards` and `members` hold the operations.
"""

from boardclient._operations import Response
from boardclient.bulk import BulkReport, BulkRun, CardResult
from boardclient.credentials import CredentialProvider, Credentials, StaticCredentials
from boardclient.errors import (
    ApiError,
    Attempt,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    DeadlineError,
    DecodeError,
    Effect,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    TransportError,
)
from boardclient.events import BulkProgress
from boardclient.models import Board, BoardList, BoardPrefs, Card, CardDraft, JsonValue, Member, Position
from boardclient.session import AsyncSession

__all__ = [
    "ApiError",
    "AsyncSession",
    "Attempt",
    "AuthenticationError",
    "BadRequestError",
    "Board",
    "BoardClientError",
    "BoardList",
    "BoardPrefs",
    "BulkProgress",
    "BulkReport",
    "BulkRun",
    "Card",
    "CardDraft",
    "CardResult",
    "CredentialError",
    "CredentialProvider",
    "Credentials",
    "DeadlineError",
    "DecodeError",
    "Effect",
    "JsonValue",
    "Member",
    "NotFoundError",
    "PermissionDeniedError",
    "Position",
    "RateLimitError",
    "Response",
    "ServerError",
    "SessionClosedError",
    "StaticCredentials",
    "TransportError",
]


def __getattr__(name: str) -> str:
    """Look `__version__` up only when it is asked for: importlib.metadata costs 10 ms of import time."""
    if name == "__version__":
        from importlib.metadata import version

        return version("boardclient")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
