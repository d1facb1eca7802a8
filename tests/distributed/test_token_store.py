"""Tokens in a database: the suite for stores, and what is said when the database can't be used."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from boardclient import (
    AsyncSession,
    AuthorizationRequest,
    CredentialError,
    EncryptedTokenStore,
    OAuthCredentials,
    Pace,
    Token,
    TokenStore,
)
from boardclient.distributed import Job, SqlTokenStore, drain, plan, plan_many, report, status
from boardclient.testing import BoardService
from boardclient.testing import TokenStoreSuite as Suite


class TestSqlTokenStore(Suite):
    """`SqlTokenStore` does what applications may rely on in any store."""

    lease_seconds = 60.0

    @pytest.fixture(autouse=True)
    def _place(self, ledger: str) -> None:
        type(self).place = ledger

    place = ""
    store: SqlTokenStore

    async def make_store(self) -> TokenStore:
        type(self).store = SqlTokenStore(self.place)
        return type(self).store

    async def pass_time(self, seconds: float) -> None:
        for table in ("boardclient_tokens", "boardclient_service_tokens"):
            shift = f"UPDATE {table} SET since = since - ?, until = until - ?"
            await self.store._database.change(lambda connection, sql=shift: connection.run(sql, seconds, seconds))


class TestEncrypted(TestSqlTokenStore):
    """The wrapper keeps nothing readable in the database."""

    async def make_store(self) -> TokenStore:
        return EncryptedTokenStore(await super().make_store(), [EncryptedTokenStore.generate_key()])


async def test_sessions_of_several_workers_renew_once(ledger: str) -> None:
    """Two stores on one database stand for two hosts: a 401 that both meet leads to one renewal."""
    asked: list[AuthorizationRequest] = []
    async with BoardService() as service:

        async def authorize(request: AuthorizationRequest) -> str:
            asked.append(request)
            return service.new_code()

        def credentials() -> OAuthCredentials:
            return OAuthCredentials(
                client_id=service.client_id,
                client_secret=service.client_secret,
                redirect_uri=service.redirect_uri,
                auth_url=service.auth_url,
                key=service.key,
                authorize=authorize,
                store=SqlTokenStore(ledger),
            )

        async with (
            AsyncSession(credentials(), service.base_url) as first,
            AsyncSession(credentials(), service.base_url) as second,
        ):
            await asyncio.gather(*(session.members.me() for session in (first, second) * 5))
    assert len(asked) == 1


async def test_an_error_of_the_database_holds_no_token(tmp_path: Path) -> None:
    """Neither in its message nor in the frames of its traceback."""
    (tmp_path / "tokens").write_bytes(b"no database " * 500)
    (tmp_path / "tokens").chmod(0o600)
    store = SqlTokenStore(tmp_path / "tokens")
    secret = "-".join(["very", "secret"])
    with pytest.raises(CredentialError, match=r"the token store .* can't be used") as caught:
        await store.publish("a", Token(secret), 0)
    del secret
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "very-secret" not in shown
    assert repr(store) == f"SqlTokenStore('{tmp_path / 'tokens'}')"


@pytest.mark.parametrize(
    "url", ["postgresql://u:very-secret@h/x", "postgresql://h/x?password=very-secret", "postgresql://h/x?sslPassword=very-secret"]
)
@pytest.mark.parametrize(
    "make",
    [
        SqlTokenStore,
        lambda url: Pace(shared=url),
        lambda url: Job(ledger=url, name="job", board_id="board", parts=(0,), rows=1),
        lambda url: asyncio.run(plan([], "board", url)),
        lambda url: asyncio.run(plan([], "board", ledger=url)),
        lambda url: asyncio.run(plan_many([], url)),
        lambda url: asyncio.run(report(url)),
        lambda url: asyncio.run(status(url)),
        lambda url: asyncio.run(drain(url)),
    ],
)
def test_a_url_with_a_password_is_refused(make: Callable[[str], object], url: str) -> None:
    """The password is neither in the message nor in a frame of the package."""
    with pytest.raises(ValueError, match="can't hold a password") as caught:
        make(url)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__) if frame.f_globals["__name__"] != __name__]
    assert frames
    assert "very-secret" not in str([caught.value, *(frame.f_locals for frame in frames)])


async def test_a_store_that_was_pickled_has_the_same_tokens(tmp_path: Path) -> None:
    """Only its place travels, such as to the worker of an engine."""
    store = SqlTokenStore(tmp_path / "tokens")
    assert await store.publish("ada", Token("t1"), 0)
    stored = pickle.dumps(store)
    assert b"t1" not in stored
    found = await pickle.loads(stored).read("ada")
    assert found is not None
    assert found.token == Token("t1")


def test_a_store_that_was_used_before_a_fork_works_after_it(tmp_path: Path) -> None:
    """The threads of the parent are not there in the child, as in a server that loads an application before it forks."""
    code = """
import asyncio, os, sys
from boardclient.distributed import SqlTokenStore
store = SqlTokenStore(sys.argv[1])
asyncio.run(store.read("ada"))
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
asyncio.run(store.read("ada"))
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "tokens"], timeout=60, check=False).returncode == 0


async def test_a_damaged_row_is_reported(tmp_path: Path) -> None:
    """A row of another hand is never taken for a token."""
    store = SqlTokenStore(tmp_path / "tokens")
    assert await store.publish("a", Token("t"), 0)
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600
    await store._database.change(lambda connection: connection.run("UPDATE boardclient_tokens SET token = NULL"))
    with pytest.raises(CredentialError, match="is damaged"):
        await store.read("a")


async def test_a_token_without_a_service_is_taken_over_once(ledger: str) -> None:
    """A row of an earlier version belongs to the first service that looks for the account, also where two look at once."""
    store = SqlTokenStore(ledger)
    assert await store.publish("ann", Token("old"), 0, service="") is not None
    names = [f"https://{number}.example" for number in range(4)]
    found = await asyncio.gather(*(SqlTokenStore(ledger).read("ann", service=name) for name in names))
    (first,) = [(name, stored) for name, stored in zip(names, found, strict=True) if stored is not None]
    assert first[1].token == Token("old")
    assert await store.read("ann") == await store.read("ann", service=first[0]) == first[1]
    assert await store.read("ann", service="") is None
    await store.delete("ann", service=first[0])
    assert await store.read("ann") is None


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
async def test_a_file_that_others_may_read_or_replace_is_refused(tmp_path: Path, kind: str) -> None:
    """What `FileTokenStore` refuses is no place for a database of tokens either."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    place = folder / "tokens"
    if kind == "folder":
        folder.chmod(0o777)
        with pytest.raises(CredentialError, match=r"others may change files in .*: chmod go-w"):
            SqlTokenStore(place)
        return
    assert await SqlTokenStore(place).publish("ann", Token("t"), 0) is not None
    if kind == "file":
        place.chmod(0o644)
    else:
        place = folder / "link"
        place.symlink_to(folder / "tokens")
    with pytest.raises(CredentialError, match="others may use .*: chmod 600" if kind == "file" else "is a symbolic link"):
        await SqlTokenStore(place).read("ann")
