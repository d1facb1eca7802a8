"""An asynchronous client for a board service: boards, lists and cards.

`AsyncSession` owns a connection pool and a credential provider; its `boards`, `lists`, `cards` and `members` hold the operations.

A name is imported when it is first used. A program that uses none, such as a pytest run with the plugin, does not import aiohttp.
"""

from typing import TYPE_CHECKING

from boardclient._version import __version__ as __version__

if TYPE_CHECKING:
    from boardclient._pipeline._pace import Pace as Pace
    from boardclient._interface._responses import Response as Response
    from boardclient.bulk import BulkReport as BulkReport, BulkRun as BulkRun, CardResult as CardResult
    from boardclient.credentials import (
        CredentialProvider as CredentialProvider,
        Credentials as Credentials,
        StaticCredentials as StaticCredentials,
    )
    from boardclient.credentials._token_exchange import AuthorizationRequest as AuthorizationRequest
    from boardclient.credentials._encrypted_store import EncryptedTokenStore as EncryptedTokenStore
    from boardclient.credentials._file_store import FileTokenStore as FileTokenStore
    from boardclient.credentials._oauth import OAuthCredentials as OAuthCredentials
    from boardclient.credentials._stores import (
        LeaseRecord as LeaseRecord,
        LeaseState as LeaseState,
        MemoryTokenStore as MemoryTokenStore,
        StoredToken as StoredToken,
        Token as Token,
        TokenStore as TokenStore,
    )
    from boardclient.errors import (
        ApiError as ApiError,
        Attempt as Attempt,
        AuthenticationError as AuthenticationError,
        BadRequestError as BadRequestError,
        BoardClientError as BoardClientError,
        ConsentRequired as ConsentRequired,
        CredentialError as CredentialError,
        DeadlineError as DeadlineError,
        DecodeError as DecodeError,
        Effect as Effect,
        InvalidIdentifierError as InvalidIdentifierError,
        JournalError as JournalError,
        NotFoundError as NotFoundError,
        PermissionDeniedError as PermissionDeniedError,
        RateLimitError as RateLimitError,
        ServerError as ServerError,
        SessionClosedError as SessionClosedError,
        TransportError as TransportError,
    )
    from boardclient.events import BulkProgress as BulkProgress
    from boardclient.models import (
        Board as Board,
        BoardList as BoardList,
        BoardPrefs as BoardPrefs,
        Card as Card,
        CardDraft as CardDraft,
        JsonValue as JsonValue,
        Member as Member,
        Position as Position,
    )
    from boardclient.session import AsyncSession as AsyncSession
else:
    from boardclient._base._lazy import public_names

    __all__, __getattr__, __dir__ = public_names(
        __name__,
        {
            "_pipeline._pace": ("Pace",),
            "_interface._responses": ("Response",),
            "bulk": ("BulkReport", "BulkRun", "CardResult"),
            "credentials": ("CredentialProvider", "Credentials", "StaticCredentials"),
            "credentials._token_exchange": ("AuthorizationRequest",),
            "credentials._encrypted_store": ("EncryptedTokenStore",),
            "credentials._file_store": ("FileTokenStore",),
            "credentials._oauth": ("OAuthCredentials",),
            "credentials._stores": (
                "LeaseRecord",
                "LeaseState",
                "MemoryTokenStore",
                "StoredToken",
                "Token",
                "TokenStore",
            ),
            "errors": (
                "ApiError",
                "Attempt",
                "AuthenticationError",
                "BadRequestError",
                "BoardClientError",
                "ConsentRequired",
                "CredentialError",
                "DeadlineError",
                "DecodeError",
                "Effect",
                "InvalidIdentifierError",
                "JournalError",
                "NotFoundError",
                "PermissionDeniedError",
                "RateLimitError",
                "ServerError",
                "SessionClosedError",
                "TransportError",
            ),
            "events": ("BulkProgress",),
            "models": ("Board", "BoardList", "BoardPrefs", "Card", "CardDraft", "JsonValue", "Member", "Position"),
            "session": ("AsyncSession",),
        },
    )
