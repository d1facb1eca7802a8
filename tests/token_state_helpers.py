"""What the tests of the state of a token share."""

from __future__ import annotations

from datetime import datetime

from boardclient import StoredToken, Token
from boardclient.credentials._token_state import RefusalVerdict, TokenState

LATE = RefusalVerdict(is_final=False)
FINAL = RefusalVerdict(is_final=True)


def stored(value: str, generation: int = 1, expires_at: datetime | None = None) -> StoredToken:
    return StoredToken(Token(value, expires_at), generation)


def signing(token_state: TokenState) -> str | None:
    return None if token_state.credentials is None else token_state.credentials.token
