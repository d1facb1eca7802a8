"""Both stores against a model, and what belongs to which service."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_loop import Clock

from boardclient import (
    EncryptedTokenStore,
    FileTokenStore,
    LeaseRecord,
    LeaseState,
    MemoryTokenStore,
    StoredToken,
    Token,
    TokenStore,
)

# --- both stores against a model

ACCOUNTS = st.sampled_from(["a", "b", "\x00"])
HOLDERS = st.sampled_from(["x", "y", "z"])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 0.25])
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timedelta(minutes=minutes))
ENDS = st.none() | st.datetimes(timezones=OFFSETS.map(timezone))
TOKENS = st.builds(Token, st.text(st.characters(exclude_categories=["Cs"]), min_size=1), ENDS)
KEYS = st.just(("a", "p")) | st.tuples(ACCOUNTS, st.sampled_from(["p", "q"]))
AFTER = st.just(0) | st.integers(-2, 1)
"""Which generation a token is to follow: the last one, an earlier or a later one."""
STEPS = st.one_of(
    st.tuples(st.sampled_from(["read", "generation", "delete"]), KEYS),
    st.tuples(st.just("publish"), KEYS, TOKENS, AFTER),
    st.tuples(st.just("lease"), KEYS, HOLDERS, SECONDS),
    st.tuples(st.just("release"), KEYS, HOLDERS, SECONDS),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 5.0, 10.0, -0.5, -20.0])),
)


class Model:
    """What the protocol says, in another form: as the history of each account at each service."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tokens: dict[tuple[str, str], list[Token | None]] = {}
        self.rights: dict[tuple[str, str], tuple[str, float, float]] = {}

    async def read(self, account: str, *, service: str) -> StoredToken | None:
        tokens = self.tokens.get((account, service), [])
        return StoredToken(tokens[-1], len(tokens)) if tokens and tokens[-1] else None

    async def generation(self, account: str, *, service: str) -> int:
        return len(self.tokens.get((account, service), []))

    async def delete(self, account: str, *, service: str) -> None:
        self.tokens.setdefault((account, service), []).append(None)
        self.rights.pop((account, service), None)

    async def publish(self, account: str, token: Token, after: int, *, service: str) -> StoredToken | None:
        tokens = self.tokens.setdefault((account, service), [])
        if len(tokens) != after:
            return None
        tokens.append(token)
        if self.rights.get((account, service), ("", 0.0, 0.0))[0] == "nobody":
            del self.rights[account, service]
        return await self.read(account, service=service)

    async def lease(self, account: str, holder: str, seconds: float, *, service: str) -> LeaseRecord:
        who, begin, end = self.rights.get((account, service), ("", 0.0, 0.0))
        state: LeaseState = "granted"
        if begin <= self.clock.now < end and who != holder:
            state = "cooling" if who == "nobody" else "held"
        else:
            self.rights[account, service] = (holder, self.clock.now, self.clock.now + seconds)
        stored = await self.read(account, service=service)
        return LeaseRecord(state, stored, await self.generation(account, service=service))

    async def release(self, account: str, holder: str, cooldown: float = 0.0, *, service: str) -> None:
        if self.rights.get((account, service), ("", 0.0, 0.0))[0] == holder:
            self.rights[account, service] = ("nobody", self.clock.now, self.clock.now + cooldown)


class Counted:
    """A store whose generations are counted: 0, 1, 2 and so on, whatever numbers it uses."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.known: dict[tuple[str, str], list[int]] = {}

    async def step(self, name: str, key: tuple[str, str], *arguments: Any) -> Any:
        account, service = key
        known = self.known.setdefault(key, [0])
        if name == "publish":
            token, offset = arguments
            arguments = (token, known[-1] + 1 if offset > 0 else known[max(offset - 1, -len(known))])
        result = await getattr(self.store, name)(account, *arguments, service=service)
        last = await self.store.generation(account, service=service)
        if last != known[-1]:
            assert last > known[-1]
            known.append(last)
        return self._counted(known, result)

    def _counted(self, known: list[int], result: Any) -> Any:
        if isinstance(result, StoredToken):
            return result.token, known.index(result.generation)
        if isinstance(result, LeaseRecord):
            return result.state, self._counted(known, result.stored), known.index(result.generation)
        return known.index(result) if isinstance(result, int) else result


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=10, max_size=30))
def test_stores_do_what_the_model_does(steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is done at whatever time, the stores answer alike, and as the protocol says."""
    clock = Clock(1_800_000_000.0)
    path = tmp_path_factory.mktemp("model") / "tokens.db"

    async def compare() -> None:
        model = Counted(Model(clock))
        stores = [Counted(MemoryTokenStore(clock=clock)), Counted(FileTokenStore(path, clock=clock))]
        for name, *arguments in steps:
            if name == "pass":
                clock.now += arguments[0]
                continue
            expected = await model.step(name, *arguments)
            assert [await store.step(name, *arguments) for store in stores] == [expected] * 2

    asyncio.run(compare())


# --- services


async def old_row(store: TokenStore, token: str) -> None:
    """Keep a token as earlier versions did, which named no service."""
    assert await store.publish("ann", Token(token), 0, service="") is not None


async def test_one_service_takes_over_a_token_without_a_service(store: TokenStore) -> None:
    """A token whose service is not known belongs to the first one that looks. No other one gets it."""
    await old_row(store, "old")
    first = await store.read("ann", service="https://one.example")
    assert first is not None
    assert first.token == Token("old")
    assert await store.read("ann", service="https://two.example") is None
    assert await store.generation("ann", service="https://two.example") == 0
    assert await store.read("ann", service="https://one.example") == first
    assert await store.read("ann", service="") is None


async def test_a_service_with_a_token_of_its_own_leaves_the_old_one(store: TokenStore) -> None:
    """A service that has a token, or had one until a sign-out, takes over no other."""
    assert await store.publish("ann", Token("own"), 0, service="https://one.example") is not None
    await store.delete("ann", service="https://two.example")
    await old_row(store, "old")
    own = await store.read("ann", service="https://one.example")
    assert own is not None
    assert own.token == Token("own")
    assert await store.read("ann", service="https://two.example") is None
    assert await store.read("ann", service="") is not None


async def test_a_sign_out_takes_over_and_deletes_an_old_token(store: TokenStore) -> None:
    """A token of an earlier version can be signed out, by the first service that does."""
    await old_row(store, "old")
    await store.delete("ann", service="https://one.example")
    found = [await store.read("ann", service=name) for name in ("https://one.example", "https://two.example", "")]
    assert found == [None] * 3


async def test_a_caller_who_names_no_service_means_that_of_the_last_token(store: MemoryTokenStore) -> None:
    """Without a service, a store of one service does what is meant. In one of several it is the last one's."""
    assert await store.read("ann") is None
    await store.publish("ann", Token("one"), 0, service="https://one.example")
    assert await store.read("ann") == await store.read("ann", service="https://one.example")
    await store.publish("ann", Token("two"), 0, service="https://two.example")
    assert await store.read("ann") == await store.read("ann", service="https://two.example")
    await store.delete("ann")
    assert await store.read("ann", service="https://two.example") is None
    assert await store.read("ann", service="https://one.example") is not None


async def test_an_encrypted_token_is_bound_to_its_service(clock: Clock) -> None:
    """A row that was moved to another service can't be opened. One that named no service is opened by any."""
    inner = MemoryTokenStore(clock=clock)
    store = EncryptedTokenStore(inner, EncryptedTokenStore.generate_key())
    await store.publish("ann", Token("one"), 0, service="https://one.example")
    sealed = await inner.read("ann", service="https://one.example")
    assert sealed is not None
    await inner.publish("ann", sealed.token, 0, service="https://two.example")
    assert await store.read("ann", service="https://two.example") is None
    await store.publish("bob", Token("any"), 0)
    found = await store.read("bob", service="https://two.example")
    assert found is not None
    assert found.token == Token("any")


def test_a_file_of_the_version_before_keeps_its_tokens(path: Path, clock: Clock) -> None:
    """The rows of a file that named no services are taken over, with their generations, in whichever step comes first."""
    for number, first in enumerate(("read", "generation", "delete")):
        old = path.with_name(f"{number}.db")
        old.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.closing(sqlite3.connect(old)) as connection, connection:
            connection.execute(
                "CREATE TABLE accounts (account TEXT PRIMARY KEY, generation INTEGER NOT NULL, deletion INTEGER NOT NULL,"
                " token TEXT, expires_at TEXT, holder TEXT, since REAL NOT NULL, until REAL NOT NULL)"
            )
            connection.execute("PRAGMA application_id = 1650740084")
            connection.execute("PRAGMA user_version = 1")
            connection.execute("INSERT INTO accounts VALUES ('ann', 7, 3, 't', NULL, NULL, 0.0, 0.0)")
        old.chmod(0o600)
        store = FileTokenStore(old, clock=clock)
        asyncio.run(getattr(store, first)("bob", service="https://board.example"))
        kept = asyncio.run(store.read("ann", service="https://board.example"))
        assert kept == StoredToken(Token("t"), 7)
        assert kept.deletion == 3
        assert asyncio.run(store.read("ann", service="https://other.example")) is None
