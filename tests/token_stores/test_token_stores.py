"""Both stores against a model, and what they have in common."""

from __future__ import annotations

import asyncio
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_loop import Clock

from boardclient import FileTokenStore, LeaseRecord, LeaseState, MemoryTokenStore, StoredToken, Token

# --- both stores against a model

ACCOUNTS = st.sampled_from(["a", "b", "\x00"])
HOLDERS = st.sampled_from(["x", "y", "z"])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 0.25])
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timedelta(minutes=minutes))
ENDS = st.none() | st.datetimes(timezones=OFFSETS.map(timezone))
TOKENS = st.builds(Token, st.text(st.characters(exclude_categories=["Cs"]), min_size=1), ENDS)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["read", "generation", "delete"]), ACCOUNTS),
    st.tuples(st.just("publish"), ACCOUNTS, TOKENS, st.integers(-1, 4)),
    st.tuples(st.just("lease"), ACCOUNTS, HOLDERS, SECONDS),
    st.tuples(st.just("release"), ACCOUNTS, HOLDERS, SECONDS),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 5.0, 10.0, -0.5, -20.0])),
)


class Model:
    """What the protocol says, in another form: as the history of each account."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tokens: dict[str, list[Token | None]] = {}
        self.rights: dict[str, tuple[str, float, float]] = {}

    async def read(self, account: str) -> StoredToken | None:
        tokens = self.tokens.get(account, [])
        return StoredToken(tokens[-1], len(tokens)) if tokens and tokens[-1] else None

    async def generation(self, account: str) -> int:
        return len(self.tokens.get(account, []))

    async def delete(self, account: str) -> None:
        self.tokens.setdefault(account, []).append(None)
        self.rights.pop(account, None)

    async def publish(self, account: str, token: Token, after: int) -> bool:
        tokens = self.tokens.setdefault(account, [])
        if len(tokens) == after:
            tokens.append(token)
            if self.rights.get(account, ("", 0.0, 0.0))[0] == "nobody":
                del self.rights[account]
            return True
        return False

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseRecord:
        who, begin, end = self.rights.get(account, ("", 0.0, 0.0))
        state: LeaseState = "granted"
        if begin <= self.clock.now < end and who != holder:
            state = "cooling" if who == "nobody" else "held"
        else:
            self.rights[account] = (holder, self.clock.now, self.clock.now + seconds)
        return LeaseRecord(state, await self.read(account), await self.generation(account))

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        if self.rights.get(account, ("", 0.0, 0.0))[0] == holder:
            self.rights[account] = ("nobody", self.clock.now, self.clock.now + cooldown)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=30))
def test_stores_do_what_the_model_does(steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is done at whatever time, the stores answer alike, and as the protocol says."""
    clock = Clock(1_800_000_000.0)
    path = tmp_path_factory.mktemp("model") / "tokens.db"

    async def compare() -> None:
        model = Model(clock)
        stores = [MemoryTokenStore(clock=clock), FileTokenStore(path, clock=clock)]
        for name, *arguments in steps:
            if name == "pass":
                clock.now += arguments[0]
                continue
            expected = await getattr(model, name)(*arguments)
            assert [await getattr(store, name)(*arguments) for store in stores] == [expected] * 2

    asyncio.run(compare())


# --- both stores


# --- in memory
