"""The token store that encrypts the tokens of another store."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from boardclient._base._environment import requires_extra
from boardclient._base._redaction import hides, raises_without_frames, takes_secrets
from boardclient.credentials._stores import LeaseRecord, StoredToken, Token, TokenStore, text_of_end

if TYPE_CHECKING:
    from cryptography.fernet import Fernet, MultiFernet

_logger: Final = logging.getLogger("boardclient")


@takes_secrets
@hides("_fernet")
class EncryptedTokenStore:
    """Keep tokens encrypted in another store, with Fernet.

    The inner store sees account names, generations and leases, and the ciphertext of tokens
    (https://cryptography.io/en/latest/fernet/). A row is bound to its account and service: copied to another, it can't be opened.

    The first key encrypts, and all of them decrypt. To replace a key, put the new one first in every process, and remove the old
    one when all tokens have been renewed. A row that no key opens counts as no token: a warning is logged, and the user's next
    sign-in replaces the row. A lost key costs each user one sign-in.

    Needs the extra `crypto`.

    ```python
    key = EncryptedTokenStore.generate_key()  # keep it outside of the store
    store = EncryptedTokenStore(FileTokenStore("tokens.db"), [key])
    ```

    Args:
        inner: The store that keeps the rows, such as a `FileTokenStore`.
        keys: One or several keys as `generate_key` makes them, the newest first.

    Raises:
        ValueError: there is no key, or one is not a Fernet key.
        ModuleNotFoundError: the extra `crypto` is not installed.
    """

    def __init__(self, inner: TokenStore, keys: str | bytes | Sequence[str | bytes]) -> None:
        one_key, many_keys = _fernet_classes()
        self._inner = inner
        try:
            self._fernet = many_keys([one_key(key) for key in ([keys] if isinstance(keys, str | bytes) else keys)])
        except (ValueError, TypeError):
            words = "keys must be Fernet keys, such as EncryptedTokenStore.generate_key() makes, and at least one"
            raise ValueError(words) from None

    @staticmethod
    def generate_key() -> str:
        """Return a new key.

        Raises:
            ModuleNotFoundError: the extra `crypto` is not installed.
        """
        fernet, _ = _fernet_classes()
        return fernet.generate_key().decode()

    async def read(self, account: str, *, service: str | None = None) -> StoredToken | None:
        """Return the token of the account, None if none is stored or no key opens it."""
        return self._decrypted(account, service, await self._inner.read(account, **_named(service)))

    async def generation(self, account: str, *, service: str | None = None) -> int:
        """Return the number of the account's last token or deletion, 0 for an unknown account."""
        return await self._inner.generation(account, **_named(service))

    @raises_without_frames
    async def publish(self, account: str, token: Token, after: int, *, service: str | None = None) -> StoredToken | None:
        """Encrypt the token, keep it under a new generation, and return it. Return None if the generation is not `after`."""
        sealed = self._fernet.encrypt(json.dumps([account, token.value, text_of_end(token), service]).encode())
        stored = await self._inner.publish(account, Token(sealed.decode()), after, **_named(service))
        return None if stored is None else attrs.evolve(stored, token=token)

    async def delete(self, account: str, *, service: str | None = None) -> None:
        """Delete the token of the account."""
        await self._inner.delete(account, **_named(service))

    async def lease(self, account: str, holder: str, seconds: float, *, service: str | None = None) -> LeaseRecord:
        """Grant `holder` the right to renew, as the inner store does."""
        leased = await self._inner.lease(account, holder, seconds, **_named(service))
        return attrs.evolve(leased, stored=self._decrypted(account, service, leased.stored))

    async def release(self, account: str, holder: str, cooldown: float = 0.0, *, service: str | None = None) -> None:
        """End the lease of `holder`, as the inner store does."""
        await self._inner.release(account, holder, cooldown, **_named(service))

    def _decrypted(self, account: str, service: str | None, stored: StoredToken | None) -> StoredToken | None:
        """Return the token of a row, None if there is none, no key opens it or it is of another account or service."""
        from cryptography.fernet import InvalidToken  # the extra is installed: the constructor has imported it

        if stored is None:
            return None
        opened: list[Any] = [None, "", None]
        with contextlib.suppress(InvalidToken):
            opened = json.loads(self._fernet.decrypt(stored.token.value.encode()))
        owner, value, ends = opened[:3]
        sealed_for = opened[3] if len(opened) > 3 else None  # a row of an earlier version names no service
        if owner != account or (service is not None and sealed_for not in {None, service}):
            _logger.warning("no key opens the stored token of account %r: its user has to sign in", account)
            return None
        return attrs.evolve(stored, token=Token(value, None if ends is None else datetime.fromisoformat(ends)))

    def __repr__(self) -> str:
        return f"EncryptedTokenStore({self._inner!r})"


def _named(service: str | None) -> dict[str, str]:
    return {} if service is None else {"service": service}


def _fernet_classes() -> tuple[type[Fernet], type[MultiFernet]]:
    with requires_extra("crypto", "EncryptedTokenStore"):
        from cryptography.fernet import Fernet, MultiFernet
    return Fernet, MultiFernet
