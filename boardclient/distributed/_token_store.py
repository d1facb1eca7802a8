"""The token store of all processes of several hosts, in a database."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import sqlalchemy as sa

from boardclient._redaction import raises_without_frames, takes_secrets
from boardclient.credentials._stores import AccountRecord, AccountStore, Change, T
from boardclient.errors import CredentialError, JournalError
from boardclient.store._alchemy import Database, metadata

_tokens: Final = sa.Table(
    "boardclient_tokens",
    metadata,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("deletion", sa.BigInteger, nullable=False),
    sa.Column("token", sa.Text),
    sa.Column("expires_at", sa.Text),
    sa.Column("holder", sa.Text),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
)
_FIELDS: Final = [column for column in _tokens.c if column.name != "account"]
_EMPTY: Final = sa.text(
    "INSERT INTO boardclient_tokens (account, generation, deletion, since, until) VALUES (:account, 0, 0, 0.0, 0.0)"
    " ON CONFLICT DO NOTHING"
)


@takes_secrets  # a URL with a password is refused
class SqlTokenStore(AccountStore):
    """Keep tokens in a database, for all processes and hosts that reach it. There is one renewal per account for all of them.

    Tokens are stored as they are: `EncryptedTokenStore` around it encrypts them. Leases end on the server's clock. A connection
    is opened for each step and closed after it, so there is nothing to close, and any event loop may use the store. It can be
    pickled: only its place travels.

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
    async def _change(self, account: str, change: Change[T]) -> T:
        try:
            if not self._is_ready:
                await self._database.create()
                self._is_ready = True
            # A step tells by what it finds whether it was done before: the end of a transaction that was lost says nothing.
            return await self._database.change(lambda connection: self._step(connection, account, change), is_repeatable=False)
        except JournalError as error:
            why = error.message.replace("the ledger", "the token store").partition(": run again")[0]
        raise CredentialError(why)

    def _step(self, connection: sa.Connection, account: str, change: Change[T]) -> T:
        connection.execute(_EMPTY, {"account": account})
        of_account = _tokens.c.account == account
        row: Any = connection.execute(sa.select(*_FIELDS).where(of_account).with_for_update()).one()
        known = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            known = AccountRecord.from_row(*row)
        if known is None:
            raise CredentialError(f"the token store {self._database.where} is damaged: delete the row of its account")
        # The time is taken under the lock: an earlier one may be before a lease that another worker just took.
        result, changed = change(known, float(connection.scalar(sa.select(self._database.clock)) or 0.0))
        if changed is not known:
            values = dict(zip((column.name for column in _FIELDS), changed.to_row(), strict=True))
            connection.execute(_tokens.update().where(of_account).values(values))
        return result

    def __reduce__(self) -> tuple[type[SqlTokenStore], tuple[str]]:
        return SqlTokenStore, (self._database.where,)

    def __repr__(self) -> str:
        return f"SqlTokenStore({self._database.where!r})"
