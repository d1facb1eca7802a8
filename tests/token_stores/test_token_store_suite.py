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

from boardclient import LeaseRecord, MemoryTokenStore, StoredToken, Token, TokenStore
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

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseRecord:
        return attrs.evolve(await super().lease(account, holder, seconds), state="granted")


class NoCoolDown(MemoryTokenStore):
    """Ends a lease without a cool-down."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await super().release(account, holder)


class OpenRelease(MemoryTokenStore):
    """Ends the lease of any holder."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        for lease in [known.lease for known in self._accounts.values()]:
            await super().release(account, lease.holder or holder, cooldown)


class NeverAgain(MemoryTokenStore):
    """Doesn't extend a lease."""

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseRecord:
        lease = self._accounts[account].lease if account in self._accounts else None
        if lease is not None and lease.holder == holder and lease.is_running(self._clock()):
            return LeaseRecord("granted", await self.read(account), await self.generation(account))
        return await super().lease(account, holder, seconds)


class BlindLease(MemoryTokenStore):
    """Says nothing of the token with the lease."""

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseRecord:
        return attrs.evolve(await super().lease(account, holder, seconds), stored=None)


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
        (BlindPublish, "refuses_another_generation"),
        (BlindPublish, "does_not_resurrect_a_deleted_token"),
        (LatePublish, "one_of_many_publishes"),
        (LeaseForAll, "publishes_whoever_has_the_lease"),
        (LeaseForAll, "one_of_many_leases"),
        (NoCoolDown, "a_deletion_ends_lease_and_cool_down"),
        (NoCoolDown, "cool_down_is_everybodys"),
        (OpenRelease, "release_of_another_does_nothing"),
        (OpenRelease, "lease_runs_out"),
        (NeverAgain, "lease_is_extended"),
        (OneAccount, "keeps_accounts_apart"),
        (BlindLease, "keeps_accounts_apart"),
        (NaiveEnds, "keeps_any_text_and_end"),
        (Loud, "shows_no_token"),
        (CountsTokens, "begins_empty"),
        (CountsTokens, "publishes_one_generation_after_another"),
        (CountsTokens, "deletes_a_token"),
    ],
)
def test_suite_fails_for_wrong_stores(kind: Callable[..., MemoryTokenStore], expected: str) -> None:
    """Each fault of a store is found by the test that speaks of it."""
    assert expected in failures(kind)


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
