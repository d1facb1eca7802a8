"""A token store that encrypts the tokens of another store. The only module that imports cryptography."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from boardclient._optional_imports import requires_extra
from boardclient.credentials._tokens import LeaseState, StoredToken, Token, TokenStore, text_of_end

if TYPE_CHECKING:
    from cryptography.fernet import Fernet, MultiFernet

_logger: Final = logging.getLogger("boardclient")


class EncryptedTokenStore:
    """Keep tokens encrypted in another store, with Fernet.

    The inner store sees account names, generations and leases, and the ciphertext of tokens
    (https://cryptography.io/en/latest/fernet/). A row is bound to its account: moved to another one, it can't be opened.

    The first key encrypts, and all of them decrypt. To replace a key, put the new one first in every process, and remove the old
    one when all tokens have been renewed. A row that no key opens counts as no token: a warning is logged, and the user's next
    sign-in replaces the row. A lost key costs each user one sign-in.

    Needs the extra `crypto`.

    Args:
        inner: The store that keeps the rows, such as a `FileTokenStore`.
        keys: One or several keys as `generate_key` makes them, the newest first.

    Raises:
        ValueError: there is no key, or one is not a Fernet key.
        ModuleNotFoundError: the extra `crypto` is not installed.
    """

    def __init__(self, inner: TokenStore, keys: str | bytes | Sequence[str | bytes]) -> None:
        given = [keys] if isinstance(keys, str | bytes) else list(keys)
        self._inner = inner
        self._fernet = _fernet_of(given)

    @staticmethod
    def generate_key() -> str:
        """Return a new key.

        Raises:
            ModuleNotFoundError: the extra `crypto` is not installed.
        """
        fernet, _ = _fernet_classes()
        return fernet.generate_key().decode()

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None if none is stored or no key opens it."""
        stored = await self._inner.read(account)
        if stored is None:
            return None
        token = self._opened(account, stored.token)
        if token is None:
            _logger.warning("no key opens the stored token of account %r: its user has to sign in", account)
            return None
        return StoredToken(token, stored.generation)

    async def generation(self, account: str) -> int:
        """Return how many tokens and deletions the account has had."""
        return await self._inner.generation(account)

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Encrypt the token and keep it as generation `after + 1`.

        Return False if the generation is not `after`.
        """
        sealed = self._sealed(account, token)
        del token  # the frame stays with an error
        return await self._inner.publish(account, sealed, after)

    async def delete(self, account: str) -> None:
        """Delete the token of the account."""
        await self._inner.delete(account)

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew, as the inner store does."""
        return await self._inner.lease(account, holder, seconds)

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, as the inner store does."""
        await self._inner.release(account, holder, cooldown)

    def _sealed(self, account: str, token: Token) -> Token:
        sealed = json.dumps([account, token.value, text_of_end(token)])
        return Token(self._fernet.encrypt(sealed.encode()).decode())

    def _opened(self, account: str, sealed: Token) -> Token | None:
        """Return the token of a row, None if no key opens it or it is another account's."""
        from cryptography.fernet import InvalidToken

        try:
            owner, value, ends = json.loads(self._fernet.decrypt(sealed.value.encode()))
        except InvalidToken:
            return None
        if owner != account:
            return None
        return Token(value, None if ends is None else datetime.fromisoformat(ends))

    def __repr__(self) -> str:
        return f"EncryptedTokenStore({self._inner!r})"


def _fernet_classes() -> tuple[type[Fernet], type[MultiFernet]]:
    with requires_extra("crypto", "EncryptedTokenStore"):
        from cryptography.fernet import Fernet, MultiFernet
    return Fernet, MultiFernet


def _fernet_of(keys: Sequence[str | bytes]) -> MultiFernet:
    one_key, many_keys = _fernet_classes()
    fernets = []
    for key in keys:
        try:
            fernets.append(one_key(key))
        except (ValueError, TypeError):
            fernets.clear()
            break
    if not fernets:
        raise ValueError("keys must be Fernet keys, such as EncryptedTokenStore.generate_key() makes, and at least one")
    return many_keys(fernets)
