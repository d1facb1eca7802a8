"""TokenStoreSuite: that it finds what is wrong with a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from virtual_loop import Clock

from boardclient import LeaseState, MemoryTokenStore, StoredToken, Token, TokenStore
from boardclient.testing import TokenStoreSuite


class BlindPublish(MemoryTokenStore):
    """Publishes without comparing."""

    async def publish(self, account: str, token: Token, after: int) -> bool:
        stored = await self.read(account)
        return await super().publish(account, token, 0 if stored is None else stored.generation)


class LatePublish(BlindPublish):
    """Compares in one step and sets in another."""

    async def publish(self, account: str, token: Token, after: int) -> bool:
        stored = await self.read(account)
        if after != (0 if stored is None else stored.generation):
            return False
        await asyncio.sleep(0)
        await super().publish(account, token, after)
        return True


class LeaseForAll(MemoryTokenStore):
    """Grants the lease to all that ask."""

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        return "granted"


class NoCoolDown(MemoryTokenStore):
    """Ends a lease without a cool-down."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await super().release(account, holder)


class CoolDownForOthers(MemoryTokenStore):
    """Lets who began the cool-down have the lease."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await super().lease(account, holder, cooldown) if cooldown else await super().release(account, holder)


class OpenRelease(MemoryTokenStore):
    """Ends the lease of any holder."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        for lease in [known.lease for known in self._accounts.values()]:
            await super().release(account, lease.holder or holder, cooldown)


class Forever(MemoryTokenStore):
    """Never ends a lease by time."""

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        return await super().lease(account, holder, 1e9)


class NeverAgain(MemoryTokenStore):
    """Doesn't extend a lease."""

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        lease = self._accounts[account].lease if account in self._accounts else None
        if lease is not None and lease.holder == holder and lease.is_running(self._clock()):
            return "granted"
        return await super().lease(account, holder, seconds)


class OneAccount(MemoryTokenStore):
    """Folds the case of accounts."""

    async def publish(self, account: str, token: Token, after: int) -> bool:
        return await super().publish(account.lower(), token, after)

    async def read(self, account: str) -> StoredToken | None:
        return await super().read(account.lower())


class NaiveEnds(MemoryTokenStore):
    """Loses the end of a token."""

    async def read(self, account: str) -> StoredToken | None:
        stored = await super().read(account)
        return None if stored is None else attrs.evolve(stored, token=Token(stored.token.value))


class Loud(MemoryTokenStore):
    """Shows its tokens."""

    def __repr__(self) -> str:
        return str([known.stored.token.value for known in self._accounts.values() if known.stored])


class CountsTokens(MemoryTokenStore):
    """Counts tokens that it has made of leases."""

    async def generation(self, account: str) -> int:
        return await super().generation(account) + (account in self._accounts)


class Eager(MemoryTokenStore):
    """Makes a token out of a lease."""

    async def read(self, account: str) -> StoredToken | None:
        return await super().read(account) or (StoredToken(Token("none"), 0) if account in self._accounts else None)


def failures(kind: Callable[..., MemoryTokenStore]) -> set[str]:
    """Say which tests of the suite a store fails."""

    class Suite(TokenStoreSuite):
        clock = Clock(1_800_000_000.0)
        closed = 0

        async def make_store(self) -> TokenStore:
            return kind(clock=self.clock)

        async def close_store(self, store: TokenStore) -> None:
            Suite.closed += 1

        async def pass_time(self, seconds: float) -> None:
            self.clock.now += seconds

    failed = set()
    names = [name for name in dir(Suite) if name.startswith("test_")]
    for name in names:
        try:
            getattr(Suite(), name)()
        except AssertionError as error:
            failed.add(name.removeprefix("test_") if str(error) else f"{name} without a word")
    assert Suite.closed == len(names) > 10
    return failed


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (MemoryTokenStore, set()),
        (BlindPublish, {"refuses_another_generation", "one_of_many_publishes", "does_not_resurrect_a_deleted_token"}),
        (LatePublish, {"one_of_many_publishes", "does_not_resurrect_a_deleted_token"}),
        (
            LeaseForAll,
            {
                "a_deletion_ends_lease_and_cool_down",
                "publishes_whoever_has_the_lease",
                "keeps_accounts_apart",
                "lease_runs_out",
                "lease_is_extended",
                "release_makes_it_free",
                "release_of_another_does_nothing",
                "cool_down_is_everybodys",
                "one_of_many_leases",
            },
        ),
        (NoCoolDown, {"a_deletion_ends_lease_and_cool_down", "release_of_another_does_nothing", "cool_down_is_everybodys"}),
        (
            CoolDownForOthers,
            {
                "a_deletion_ends_lease_and_cool_down",
                "publishes_whoever_has_the_lease",
                "release_of_another_does_nothing",
                "cool_down_is_everybodys",
            },
        ),
        (
            OpenRelease,
            {
                "a_deletion_ends_lease_and_cool_down",
                "release_of_another_does_nothing",
                "lease_runs_out",
            },
        ),
        (Forever, {"lease_runs_out", "lease_is_extended"}),
        (NeverAgain, {"lease_is_extended"}),
        (OneAccount, {"keeps_accounts_apart"}),
        (NaiveEnds, {"keeps_any_text_and_end"}),
        (Loud, {"shows_no_token"}),
        (
            CountsTokens,
            {"begins_empty", "publishes_one_generation_after_another", "deletes_a_token", "does_not_resurrect_a_deleted_token"},
        ),
        (Eager, {"begins_empty", "deletes_a_token", "does_not_resurrect_a_deleted_token"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_suite_fails_for_wrong_stores(kind: Callable[..., MemoryTokenStore], expected: set[str]) -> None:
    """Each fault of a store is found by the tests that speak of it."""
    assert failures(kind) == expected


def test_every_test_of_the_suite_is_seen_to_fail() -> None:
    """No test of the suite passes whatever the store does: one that keeps nothing fails what the others don't."""

    class KeepsNothing(MemoryTokenStore):
        async def publish(self, account: str, token: Token, after: int) -> bool:
            return True

    assert {"publishes_one_generation_after_another", "keeps_any_text_and_end"} <= failures(KeepsNothing)


def test_suite_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without overrides the suite asks for a store, really sleeps, and closes nothing."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def defaults() -> None:
        suite = TokenStoreSuite()
        with pytest.raises(NotImplementedError, match="make_store must return"):
            await suite.make_store()
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await suite.pass_time(1.5)
        await suite.close_store(MemoryTokenStore())

    asyncio.run(defaults())
    assert slept == [1.5]


@pytest.mark.full
def test_suite_is_collected_without_any_plugin(tmp_path: Path) -> None:
    """A subclass is collected and its tests run, whatever pytest knows of asyncio; each says what it shows."""
    (tmp_path / "test_mine.py").write_text(
        "from boardclient import MemoryTokenStore\nfrom boardclient.testing import TokenStoreSuite\n"
        "class TestMine(TokenStoreSuite):\n    now = 0.0\n"
        "    async def make_store(self):\n        return MemoryTokenStore(clock=lambda: self.now)\n"
        "    async def pass_time(self, seconds):\n        self.now += seconds\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    tests = [name for name in vars(TokenStoreSuite) if name.startswith("test_")]
    assert f"{len(tests)} passed" in done.stdout, done.stdout
    assert all(getattr(TokenStoreSuite, name).__doc__ for name in tests)


def test_suite_leaves_the_event_loop_of_the_thread_alone() -> None:
    """An event loop that was set for the thread is still set after a test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert failures(MemoryTokenStore) == set()
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
