"""The token store in a database, for the processes of several hosts."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Final

from boardclient._base._redaction import raises_without_frames, takes_secrets
from boardclient.credentials._file_store import absolute_path, check_file, check_folder
from boardclient.credentials._stores import AccountRecord, AccountStore, Change, T, changed
from boardclient.errors import CredentialError, JournalError
from boardclient.store._connection import Connection
from boardclient.store._database import Database, Tables

_TOKENS: Final = (
    "CREATE TABLE IF NOT EXISTS boardclient_tokens (account TEXT PRIMARY KEY, generation {int} NOT NULL, deletion {int} NOT NULL,"
    " token TEXT, expires_at TEXT, holder TEXT, since {float} NOT NULL, until {float} NOT NULL)"
)
_OF_SERVICES: Final = (
    "CREATE TABLE IF NOT EXISTS boardclient_service_tokens (account TEXT NOT NULL, service TEXT NOT NULL,"
    " generation {int} NOT NULL, deletion {int} NOT NULL,"
    " token TEXT, expires_at TEXT, holder TEXT, since {float} NOT NULL, until {float} NOT NULL,"
    " PRIMARY KEY (account, service))"
)
_TABLES: Final = Tables((_TOKENS, _OF_SERVICES))
_EMPTY: Final = (
    "INSERT INTO boardclient_tokens (account, generation, deletion, since, until) VALUES (?, 0, 0, 0.0, 0.0)"
    " ON CONFLICT DO NOTHING"
)
_FIND: Final = (
    "SELECT generation, deletion, token, expires_at, holder, since, until FROM boardclient_tokens WHERE account = ? {for update}"
)
"""The row without a service, which earlier versions wrote. Each account has one, and locking it locks the account."""
_FIND_OF_SERVICES: Final = (
    "SELECT service, generation, deletion, token, expires_at, holder, since, until FROM boardclient_service_tokens"
    " WHERE account = ?"
)
_STORE: Final = (
    "UPDATE boardclient_tokens SET generation = ?, deletion = ?, token = ?, expires_at = ?, holder = ?, since = ?, until = ?"
    " WHERE account = ?"
)
_STORE_OF_SERVICE: Final = (
    "INSERT INTO boardclient_service_tokens (generation, deletion, token, expires_at, holder, since, until, account, service)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (account, service) DO UPDATE SET generation = excluded.generation, deletion = excluded.deletion,"
    " token = excluded.token, expires_at = excluded.expires_at, holder = excluded.holder, since = excluded.since,"
    " until = excluded.until"
)


@takes_secrets  # a URL with a password is refused
class SqlTokenStore(AccountStore):
    """Keep tokens in a database, for all processes and hosts that reach it. There is one renewal per account for all of them.

    Tokens are stored in plain text, unless `EncryptedTokenStore` wraps the store. Leases are timed by the clock of the server, or
    in a file by one that ignores changes of the time of day. A connection is opened for each step and closed after it, so there
    is nothing to close, and any event loop may use the store. It can be pickled: only its location is.

    ```python
    store = SqlTokenStore("postgresql://app@db/app")  # for `store=` of `OAuthCredentials` or `SignIn`
    ```

    Args:
        url: The path of a SQLite file, or `postgresql://…` without a password (PGPASSWORD gives it).

    Raises:
        CredentialError: the database can't be used, or other users may read or replace its file, as for `FileTokenStore`. Each
            method may raise it.
        ValueError: the URL can't be used, or holds a password.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._database = Database(url, keeps_connections=False)
        self._path = absolute_path(url) if self._database.is_file else None
        if self._path is not None:
            check_folder(self._path.parent)
        self._is_ready = False

    @raises_without_frames
    async def _change(self, account: str, service: str | None, change: Change[T]) -> T:
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):  # it is created with mode 0600
                check_file(self._path, self._path.lstat())
        try:
            if not self._is_ready:
                await self._database.create(_TABLES)
                self._is_ready = True
            # Not repeatable: a step that was done by a commit whose response was lost would have another result.
            step = partial(self._step, account=account, service=service, change=change)
            return await self._database.change(step, is_repeatable=False)
        except JournalError as error:
            why = error.message.replace("the ledger", "the token store").partition(": run again")[0]
        raise CredentialError(why)

    def _step(self, connection: Connection, account: str, service: str | None, change: Change[T]) -> T:
        connection.run(_EMPTY, account)
        rows = [("", *connection.one(_FIND, account)), *connection.fetch(_FIND_OF_SERVICES, account)]
        found: dict[str, AccountRecord] | None = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            found = {name: AccountRecord.from_row(*row) for name, *row in rows}
        if found is None:
            raise CredentialError(f"the token store {self._database.where} is damaged: delete the row of its account")
        known = {name: record for name, record in found.items() if name or record != AccountRecord()}
        # The time is taken under the lock: an earlier time may be before a lease that another worker just took.
        result, after = changed(known, service, change, connection.now())
        if "" in known and "" not in after:
            connection.run(_STORE, *AccountRecord().to_row(), account)
        for name, record in after.items():
            if record is not known.get(name):
                connection.run(_STORE_OF_SERVICE if name else _STORE, *record.to_row(), account, *filter(None, [name]))
        return result

    def __reduce__(self) -> tuple[type[SqlTokenStore], tuple[str]]:
        return SqlTokenStore, (self._database.where,)

    def __repr__(self) -> str:
        return f"SqlTokenStore({self._database.where!r})"
