"""An asynchronous client for a board service: boards, lists and cards.

`AsyncSession` owns a connection pool and a credential provider; its `boards`, `lists`, `cards` and `members` hold the operations.

A name is imported when it is first used. A program that uses none, such as a pytest run with the plugin, does not import aiohttp.
"""

from typing import TYPE_CHECKING

from boardclient._version import __version__ as __version__

if TYPE_CHECKING:
    from boardclient._pace import Pace
    from boardclient._responses import Response
    from boardclient.bulk import BulkReport, BulkRun, CardResult
    from boardclient.credentials import CredentialProvider, Credentials, StaticCredentials
    from boardclient.credentials._client import AuthorizationRequest
    from boardclient.credentials._file_store import FileTokenStore
    from boardclient.credentials._oauth import OAuthCredentials
    from boardclient.credentials._stores import (
        EncryptedTokenStore,
        LeaseRecord,
        LeaseState,
        MemoryTokenStore,
        StoredToken,
        Token,
        TokenStore,
    )
    from boardclient.errors import (
        ApiError,
        Attempt,
        AuthenticationError,
        BadRequestError,
        BoardClientError,
        ConsentRequired,
        CredentialError,
        DeadlineError,
        DecodeError,
        Effect,
        InvalidIdentifierError,
        JournalError,
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
    "AuthorizationRequest",
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
    "ConsentRequired",
    "CredentialError",
    "CredentialProvider",
    "Credentials",
    "DeadlineError",
    "DecodeError",
    "Effect",
    "EncryptedTokenStore",
    "FileTokenStore",
    "InvalidIdentifierError",
    "JournalError",
    "JsonValue",
    "LeaseRecord",
    "LeaseState",
    "Member",
    "MemoryTokenStore",
    "NotFoundError",
    "OAuthCredentials",
    "Pace",
    "PermissionDeniedError",
    "Position",
    "RateLimitError",
    "Response",
    "ServerError",
    "SessionClosedError",
    "StaticCredentials",
    "StoredToken",
    "Token",
    "TokenStore",
    "TransportError",
]

_HOMES = {
    "_responses": ("Response",),
    "_pace": ("Pace",),
    "bulk": ("BulkReport", "BulkRun", "CardResult"),
    "credentials": ("CredentialProvider", "Credentials", "StaticCredentials"),
    "credentials._file_store": ("FileTokenStore",),
    "credentials._oauth": ("OAuthCredentials",),
    "credentials._client": ("AuthorizationRequest",),
    "credentials._stores": (
        "EncryptedTokenStore",
        "LeaseRecord",
        "LeaseState",
        "MemoryTokenStore",
        "StoredToken",
        "Token",
        "TokenStore",
    ),
    "events": ("BulkProgress",),
    "models": ("Board", "BoardList", "BoardPrefs", "Card", "CardDraft", "JsonValue", "Member", "Position"),
    "session": ("AsyncSession",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # pragma: no branch -- a type checker that saw it would take every misspelt name for an attribute

    def __getattr__(name: str) -> object:
        """Import a public name from its home."""
        import importlib

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"boardclient.{_HOME_OF.get(name, 'errors')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the public names, imported or not."""
        return sorted({*globals(), *__all__, "__version__"})
