"""The location of a database: the path of a file, or a PostgreSQL URL without a password."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote

from boardclient._base._environment import find_location
from boardclient._base._redaction import without_frames

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_SCHEME: Final = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_PASSWORD: Final = re.compile(r"://[^:/]*:[^@]*@")
_OF_ASYNCPG: Final = {
    "command_timeout": "tcp_user_timeout, in milliseconds",
    "database": "dbname",
    "direct_tls": "sslnegotiation=direct",
    "prepared_statement_cache_size": "pooler=transaction",
    "server_settings": "options",
    "ssl": "sslmode",
    "statement_cache_size": "pooler=transaction",
    "timeout": "connect_timeout",
}
"""The options of asyncpg, the driver of earlier versions, and their equivalents in libpq."""


def checked_location(where: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file, or a URL without a password.

    Raises:
        ValueError: the URL can't be used, or holds a password.
        JournalError: the folder of the file does not exist, or is on a network file system.
        ModuleNotFoundError: it is a URL, and psycopg is not installed.
    """
    location = os.fspath(where)
    if "://" not in location:
        return str(find_location(location))
    options = [unquote(option.partition("=")[0]) for option in _options(location)]
    if _PASSWORD.search(location) or any(word in name.lower() for name in options for word in ("password", "secret")):
        raise ValueError(
            "a ledger's URL can't hold a password, since URLs show up in logs: set PGPASSWORD or use a password file"
        )
    if not _SCHEME.match(location):
        raise ValueError(_USAGE)
    if any(option not in _POOLERS for option in _options(location) if _is_pooler(option)):
        raise ValueError('pooler must be "session" or "transaction"')
    for name in options:
        if name in _OF_ASYNCPG:
            raise ValueError(f"a ledger's URL can't have the parameter {name}: libpq's name is {_OF_ASYNCPG[name]}")
    conninfo_of(location)
    return location


_USAGE: Final = "a ledger is the path of a file, or postgresql://user@host:port/database"
_POOLERS: Final = ("pooler=session", "pooler=transaction")


def _options(url: str) -> list[str]:
    return [option for option in url.partition("?")[2].split("&") if option]


def _is_pooler(option: str) -> bool:
    return option.partition("=")[0] == "pooler"


def is_behind_pooler(url: str) -> bool:
    """Return True if the URL names a pooler in transaction mode, where each transaction may get another connection."""
    return "pooler=transaction" in _options(url)


def conninfo_of(url: str) -> dict[str, str]:
    """Return the connection options that libpq reads from a URL.

    Raises:
        ValueError: it can't be used.
        ModuleNotFoundError: psycopg is not installed.
    """
    from boardclient.store._postgres import option_names, read_url

    rest = [option for option in _options(url) if not _is_pooler(option)]
    if others := sorted({unquote(option.partition("=")[0]) for option in rest} - option_names()):
        raise ValueError(f"a ledger's URL can't have the parameter {', '.join(others)}, but pooler and those of libpq")
    found = read_url(_SCHEME.sub("postgresql://", url.partition("?")[0]) + ("?" + "&".join(rest) if rest else ""))
    if found is None or not all(port.isdigit() for port in found.get("port", "").split(",") if port):
        raise ValueError(_USAGE)
    return found


def takes_location(function: F) -> F:
    """Check the `ledger` of an async function. A URL that is refused may hold a password, so no frame of the error keeps it."""
    parameters = inspect.signature(function)

    @functools.wraps(function)
    async def checked(*arguments: Any, **options: Any) -> Any:
        given = parameters.bind(*arguments, **options).arguments["ledger"]
        try:
            if isinstance(given, str | os.PathLike):  # a job has checked its own
                checked_location(given)
        except ValueError as error:
            refusal = without_frames(error)
        else:
            return await function(*arguments, **options)
        del arguments, options, given
        raise refusal

    return cast("F", checked)
