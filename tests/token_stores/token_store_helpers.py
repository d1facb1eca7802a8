"""What tests of token stores share."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from boardclient import CredentialError, FileTokenStore, Token
from boardclient.testing import assert_no_secrets

SECRET = "s3cr3t-täken"
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes, owners and forks are POSIX's")


def carries_token(error: BaseException) -> bool:
    """Look for a token, or a step that may hold one, in the frames of an error, this module's left out; a cause has none."""
    cause = error.__cause__
    assert cause is None or cause.__traceback__ is cause.__context__ is None
    own = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not frame.f_globals["__name__"].startswith("test_")]
    return any(isinstance(value, Token | functools.partial) for frame in own for value in frame.f_locals.values())


async def refusal(store: FileTokenStore, words: str) -> CredentialError:
    """Each method is refused with an error that says so and carries no token."""
    calls: list[Callable[[], Any]] = [
        lambda: store.read("a"),
        lambda: store.publish("a", Token(SECRET), 0),
        lambda: store.lease("a", "x", 1.0),
        lambda: store.release("a", "x"),
    ]
    errors = []
    for call in calls:
        with pytest.raises(CredentialError) as caught:
            await call()
        assert words in str(caught.value)
        assert_no_secrets(caught.value, secrets=[SECRET])
        assert not carries_token(caught.value)
        assert caught.value.__context__ is None
        errors.append(caught.value)
    return errors[-1]


@contextlib.contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


async def token_in(store: Any, account: str) -> Token | None:
    """Return the token of an account, whatever its generation."""
    stored = await store.read(account)
    return None if stored is None else stored.token
