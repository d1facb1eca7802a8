"""TokenStoreSuite: that the package's stores pass it, and that it finds what is wrong with a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from virtual_loop import Clock

from boardclient import FileTokenStore, LeaseRecord, MemoryTokenStore, StoredToken, Token, TokenStore
from boardclient.credentials._stores import AccountRecord
from boardclient.testing import TokenStoreSuite

# --- what passes


class _InjectedTime(TokenStoreSuite):
    """The suite without waiting."""

    @pytest.fixture(autouse=True)
    def _take(self, clock: Clock, path: Path) -> None:
        self.clock, self.path = clock, path

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class TestMemoryTokenStore(_InjectedTime):
    async def make_store(self) -> TokenStore:
        return MemoryTokenStore(clock=self.clock)


class TestFileTokenStore(_InjectedTime):
    async def make_store(self) -> TokenStore:
        return FileTokenStore(self.path, clock=self.clock)


# --- what does not


class BlindPublish(MemoryTokenStore):
    """Publishes without comparing."""

    async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
        return await super().publish(
            account, token, await self.generation(account, **at) if await self.read(account, **at) else 0, **at
        )


class LatePublish(MemoryTokenStore):
    """Compares in one step and sets in another."""

    async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
        if after != await self.generation(account, **at):
            return None
        await asyncio.sleep(0)
        return await super().publish(account, token, await self.generation(account, **at), **at)


class LeaseForAll(MemoryTokenStore):
    """Grants the lease to all that ask."""

    async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> LeaseRecord:
        return attrs.evolve(await super().lease(account, holder, seconds, **at), state="granted")


class NoCoolDown(MemoryTokenStore):
    """Ends a lease without a cool-down."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0, **at: Any) -> None:
        await super().release(account, holder, **at)


class OpenRelease(MemoryTokenStore):
    """Ends the lease of any holder."""

    async def release(self, account: str, holder: str, cooldown: float = 0.0, **at: Any) -> None:
        for lease in [known.lease for records in self._accounts.values() for known in records.values()]:
            await super().release(account, lease.holder or holder, cooldown, **at)


class NeverAgain(MemoryTokenStore):
    """Doesn't extend a lease."""

    async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> LeaseRecord:
        known = self._accounts.get(account, {}).get(at["service"])
        if known is not None and known.lease.holder == holder and known.lease.is_running(self._clock()):
            return LeaseRecord("granted", await self.read(account, **at), await self.generation(account, **at))
        return await super().lease(account, holder, seconds, **at)


class BlindLease(MemoryTokenStore):
    """Says nothing of the token with the lease."""

    async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> LeaseRecord:
        return attrs.evolve(await super().lease(account, holder, seconds, **at), stored=None)


class OneAccount(MemoryTokenStore):
    """Folds the case of accounts."""

    async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
        return await super().publish(account.lower(), token, after, **at)

    async def read(self, account: str, **at: Any) -> StoredToken | None:
        return await super().read(account.lower(), **at)


class OneService(MemoryTokenStore):
    """Takes all services for one."""

    async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
        return await super().publish(account, token, after)

    async def read(self, account: str, **at: Any) -> StoredToken | None:
        return await super().read(account)


class FromOne(MemoryTokenStore):
    """Counts generations from 1, also in a store that begins anew."""

    async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
        stored = await super().publish(account, token, after, **at)
        if stored is not None:
            stored = StoredToken(token, after + 1)
            self._accounts[account] = {**self._accounts[account], at["service"]: AccountRecord(stored)}
        return stored


class NaiveEnds(MemoryTokenStore):
    """Loses the end of a token."""

    async def read(self, account: str, **at: Any) -> StoredToken | None:
        stored = await super().read(account, **at)
        return None if stored is None else attrs.evolve(stored, token=Token(stored.token.value))


class Loud(MemoryTokenStore):
    """Shows its tokens."""

    def __repr__(self) -> str:
        stored = [known.stored for records in self._accounts.values() for known in records.values()]
        return str([one.token.value for one in stored if one])


class CountsTokens(MemoryTokenStore):
    """Counts tokens that it has made of leases."""

    async def generation(self, account: str, **at: Any) -> int:
        return await super().generation(account, **at) + (account in self._accounts)


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
    assert Suite.closed == len(names) + 1 > 10  # one test makes a second store
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
        (OneService, "keeps_services_apart"),
        (FromOne, "generations_do_not_begin_again"),
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
