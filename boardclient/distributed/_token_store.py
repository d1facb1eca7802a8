"""The token store of all processes of several hosts, in a database."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from boardclient._redaction import raises_without_frames, takes_secrets
from boardclient.credentials._stores import AccountRecord, AccountStore, Change, T
from boardclient.errors import CredentialError, JournalError
from boardclient.store._connection import Connection
from boardclient.store._database import Database, Tables

_TOKENS: Final = (
    "CREATE TABLE IF NOT EXISTS boardclient_tokens (account TEXT PRIMARY KEY, generation {int} NOT NULL, deletion {int} NOT NULL,"
    " token TEXT, expires_at TEXT, holder TEXT, since {float} NOT NULL, until {float} NOT NULL)"
)
_TABLES: Final = Tables((_TOKENS,))
_EMPTY: Final = (
    "INSERT INTO boardclient_tokens (account, generation, deletion, since, until) VALUES (?, 0, 0, 0.0, 0.0)"
    " ON CONFLICT DO NOTHING"
)
_FIND: Final = (
    "SELECT generation, deletion, token, expires_at, holder, since, until FROM boardclient_tokens WHERE account = ? {for update}"
)
_STORE: Final = (
    "UPDATE boardclient_tokens SET generation = ?, deletion = ?, token = ?, expires_at = ?, holder = ?, since = ?, until = ?"
    " WHERE account = ?"
)


@takes_secrets  # a URL with a password is refused
class SqlTokenStore(AccountStore):
    """Keep tokens in a database, for all processes and hosts that reach it. There is one renewal per account for all of them.

    Tokens are stored as they are: `EncryptedTokenStore` around it encrypts them. Leases end on the clock of the server, and in a
    file on one that no change of the time of day moves. A connection is opened for each step and closed after it, so there is
    nothing to close, and any event loop may use the store. It can be pickled: only its place travels.

    Args:
        url: The path of a SQLite file, or `postgresql://…` without a password (PGPASSWORD gives it).

    Raises:
        CredentialError: the database can't be used. Each method may raise it.
        ValueError: the URL can't be used, or holds a password.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._database = Database(url, keeps_connections=False)
        self._is_ready = False

    @raises_without_frames
    async def _change(self, account: str, service: str | None, change: Change[T]) -> T:
        account = f"{service} {account}" if service else account
        try:
            if not self._is_ready:
                await self._database.create(_TABLES)
                self._is_ready = True
            # A step tells by what it finds whether it was done before: the end of a transaction that was lost says nothing.
            return await self._database.change(lambda connection: self._step(connection, account, change), is_repeatable=False)
        except JournalError as error:
            why = error.message.replace("the ledger", "the token store").partition(": run again")[0]
        raise CredentialError(why)

    def _step(self, connection: Connection, account: str, change: Change[T]) -> T:
        connection.run(_EMPTY, account)
        row = connection.one(_FIND, account)
        known = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            known = AccountRecord.from_row(*row)
        if known is None:
            raise CredentialError(f"the token store {self._database.where} is damaged: delete the row of its account")
        # The time is taken under the lock: an earlier one may be before a lease that another worker just took.
        result, changed = change(known, connection.now())
        if changed is not known:
            connection.run(_STORE, *changed.to_row(), account)
        return result

    def __reduce__(self) -> tuple[type[SqlTokenStore], tuple[str]]:
        return SqlTokenStore, (self._database.where,)

    def __repr__(self) -> str:
        return f"SqlTokenStore({self._database.where!r})"
