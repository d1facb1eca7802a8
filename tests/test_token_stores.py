"""Token stores: the suite for stores of any kind, and what is particular to the one in memory and the one in a file."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import pickle
import sqlite3
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import boardclient.testing
from boardclient import CredentialError, FileTokenStore, LeaseState, MemoryTokenStore, StoredToken, Token, TokenStore
from boardclient.credentials import _file_location, _file_store
from boardclient.testing import TokenStoreSuite, assert_no_secrets

SECRET = "s3cr3t-täken"
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes, owners and forks are POSIX's")


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "tokens.db"


@pytest.fixture
def file_store(path: Path, clock: Clock) -> FileTokenStore:
    return FileTokenStore(path, clock=clock)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, clock: Clock) -> TokenStore:
    if request.param == "memory":
        return MemoryTokenStore(clock=clock)
    chosen: FileTokenStore = request.getfixturevalue("file_store")
    return chosen


class InjectedTime(TokenStoreSuite):
    """The suite without waiting."""

    @pytest.fixture(autouse=True)
    def _take(self, clock: Clock, path: Path) -> None:
        self.clock, self.path = clock, path

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class TestMemoryTokenStore(InjectedTime):
    async def make_store(self) -> TokenStore:
        return MemoryTokenStore(clock=self.clock)


class TestFileTokenStore(InjectedTime):
    async def make_store(self) -> TokenStore:
        return FileTokenStore(self.path, clock=self.clock)


# --- the suite itself


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
    """Grants the lease to whoever asks."""

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
    """Ends anybody's lease."""

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
        clock = Clock()
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
                "leases_to_one_holder",
                "lease_runs_out",
                "lease_is_extended",
                "release_makes_it_free",
                "release_of_another_does_nothing",
                "release_after_running_out_leaves_the_next_alone",
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
                "release_after_running_out_leaves_the_next_alone",
            },
        ),
        (Forever, {"lease_runs_out", "lease_is_extended", "release_after_running_out_leaves_the_next_alone"}),
        (NeverAgain, {"lease_is_extended"}),
        (OneAccount, {"keeps_accounts_apart"}),
        (NaiveEnds, {"keeps_any_text_and_end"}),
        (Loud, {"shows_no_token"}),
        (CountsTokens, {"counts_generations", "deletes_a_token", "does_not_resurrect_a_deleted_token"}),
        (Eager, {"begins_empty", "refuses_another_generation", "deletes_a_token", "does_not_resurrect_a_deleted_token"}),
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


def test_suite_is_collected_without_any_plugin(tmp_path: Path) -> None:
    """A subclass is collected and its tests run, whatever pytest knows of asyncio; each says what it shows."""
    (tmp_path / "test_mine.py").write_text(
        "from boardclient import MemoryTokenStore\nfrom boardclient.testing import TokenStoreSuite\n"
        "class TestMine(TokenStoreSuite):\n    now = 0.0\n"
        "    async def make_store(self):\n        return MemoryTokenStore(clock=lambda: self.now)\n"
        "    async def pass_time(self, seconds):\n        self.now += seconds\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    tests = [name for name in vars(TokenStoreSuite) if name.startswith("test_")]
    assert f"{len(tests)} passed" in done.stdout, done.stdout
    assert all(getattr(TokenStoreSuite, name).__doc__ for name in tests)


def test_suite_leaves_the_event_loop_of_the_thread_alone() -> None:
    """A loop that somebody set for the thread is still set after a test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert failures(MemoryTokenStore) == set()
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


# --- both stores against a model

ACCOUNTS = st.sampled_from(["a", "b", "\x00"])
HOLDERS = st.sampled_from(["x", "y", "z"])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 0.25])
OFFSETS = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
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
    """What the protocol says, written down another way: as the history of each account."""

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

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        who, begin, end = self.rights.get(account, ("", 0.0, 0.0))
        is_now = begin <= self.clock.now < end
        if is_now and who == "nobody":
            return "cooling"
        if is_now and who != holder:
            return "held"
        self.rights[account] = (holder, self.clock.now, self.clock.now + seconds)
        return "granted"

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        if self.rights.get(account, ("", 0.0, 0.0))[0] == holder:
            self.rights[account] = ("nobody", self.clock.now, self.clock.now + cooldown)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=30))
def test_stores_do_what_the_model_does(steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is done at whatever time, the stores answer alike, and as the protocol says."""
    clock = Clock()
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


async def test_clock_set_back_ends_leases_and_cool_downs(store: TokenStore, clock: Clock) -> None:
    """A lease or a cool-down that seems to begin in the future is over: nobody waits for a clock to catch up."""
    assert await store.lease("a", "x", 60.0) == "granted"
    clock.now -= 1.0
    assert await store.lease("a", "y", 60.0) == "granted"
    await store.release("a", "y", 60.0)
    clock.now -= 3600.0
    assert await store.lease("a", "x", 60.0) == "granted"


async def test_late_failure_begins_the_cool_down(store: TokenStore, clock: Clock) -> None:
    """A holder whose lease ran out, and whom nobody followed, still begins a cool-down."""
    await store.lease("a", "x", 10.0)
    clock.now += 20.0
    await store.release("a", "x", 5.0)
    assert await store.lease("a", "y", 10.0) == "cooling"


async def test_lease_ends_when_its_time_is_over(store: TokenStore, clock: Clock) -> None:
    """The end of a lease is no part of it."""
    await store.lease("a", "x", 10.0)
    clock.now += 10.0
    assert await store.lease("a", "y", 10.0) == "granted"


async def test_error_of_publish_carries_no_token(monkeypatch: pytest.MonkeyPatch, store: TokenStore) -> None:
    """Whatever goes wrong while a token is published, no frame of the stores still has it."""

    async def fail(*arguments: object) -> None:
        raise CredentialError("no")

    monkeypatch.setattr(type(store), "_change", fail)
    with pytest.raises(CredentialError) as caught:
        await store.publish("a", Token(SECRET), 0)
    assert not carries_token(caught.value)


def carries_token(error: BaseException) -> bool:
    """Look for a token, or a step that may hold one, in the frames of an error, this module's left out; a cause has none."""
    cause = error.__cause__
    assert cause is None or cause.__traceback__ is cause.__context__ is None
    own = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_globals["__name__"] != __name__]
    return any(isinstance(value, Token | functools.partial) for frame in own for value in frame.f_locals.values())


# --- in memory


def test_memory_store_serves_a_loop_in_each_thread() -> None:
    """Of the tasks of many loops one gets the lease, and one publishes each generation."""
    shared, together = MemoryTokenStore(), threading.Barrier(8)

    async def race(number: int) -> tuple[str, list[bool]]:
        together.wait(10)
        state = await shared.lease("a", f"holder {number}", 60.0)
        return state, [await shared.publish("a", Token(f"{number}"), after) for after in range(200)]

    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda number: asyncio.run(race(number)), range(8)))
    assert sorted(state for state, _ in done) == ["granted"] + ["held"] * 7
    assert all(sum(won) <= 1 for won in zip(*(won for _, won in done), strict=True))
    stored = asyncio.run(shared.read("a"))
    assert stored is not None
    assert stored.generation == sum(sum(won) for _, won in done)


def test_memory_store_steps_are_atomic() -> None:
    """While one thread is within a step, no other begins one."""
    inside, go = threading.Event(), threading.Event()

    def slow() -> float:
        inside.set()
        assert go.wait(10)
        return 1.0

    shared = MemoryTokenStore(clock=slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: asyncio.run(shared.lease("a", "x", 60.0)))
        assert inside.wait(10)
        assert not shared._lock.acquire(blocking=False)
        others = [threads.submit(lambda: asyncio.run(shared.lease("a", "y", 60.0)))]
        go.set()
        assert [first.result(10), others[0].result(10)] == ["granted", "held"]


async def test_memory_store_shows_how_many_accounts_it_has() -> None:
    """Its repr counts what it keeps; to read adds nothing."""
    shared = MemoryTokenStore()
    await shared.read("a")
    assert repr(shared) == "MemoryTokenStore(accounts=0)"
    await shared.publish("b", Token(SECRET), 0)
    await shared.lease("c", "x", 1.0)
    assert repr(shared) == "MemoryTokenStore(accounts=2)"


# --- in a file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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


def test_making_a_file_store_does_no_io(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made, opened or asked before the first step; its place is settled even so."""
    monkeypatch.chdir(path.parent.parent)
    relative = FileTokenStore("private/tokens.db")
    assert not path.parent.exists()
    monkeypatch.chdir("/")
    assert repr(relative) == repr(FileTokenStore(path)) == f"FileTokenStore({str(path)!r})"


@POSIX
async def test_file_and_folder_are_made_private(tmp_path: Path) -> None:
    """Whatever the umask, only the owner may read the file and enter its folder; missing folders above are made too."""
    path = tmp_path / "above" / "private" / "tokens.db"
    before = os.umask(0)
    try:
        assert await FileTokenStore(path).read("a") is None
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o777)


@POSIX
async def test_file_is_private_before_anything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When SQLite opens the file it is there already, private and empty; nothing of its own making is ever open to others."""
    seen: list[tuple[int, int]] = []
    connect = sqlite3.connect

    def spy(*arguments: Any, **options: Any) -> sqlite3.Connection:
        seen.append((mode(path), path.stat().st_size))
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", spy)
    before = os.umask(0)
    try:
        await FileTokenStore(path).publish("a", Token(SECRET), 0)
    finally:
        os.umask(before)
    assert seen == [(0o600, 0)]


async def test_file_that_vanishes_is_not_made_by_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone when SQLite opens it is an error: SQLite would make one that others may read."""
    connect = sqlite3.connect

    def late(*arguments: Any, **options: Any) -> sqlite3.Connection:
        path.unlink()
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", late)
    await refusal(FileTokenStore(path), "unable to open database file")
    assert not path.exists()


async def test_tokens_outlive_the_store(path: Path) -> None:
    """Another store of the same path, here after pickling, reads what one has published, and knows its leases."""
    token = Token(SECRET, datetime(2031, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    one = FileTokenStore(str(path))
    assert await one.publish("a", token, 0)
    assert await one.lease("a", "x", 60.0) == "granted"
    other = pickle.loads(pickle.dumps(one))
    stored = await other.read("a")
    assert stored == StoredToken(token, 1)
    assert stored.token.expires_at.isoformat() == "2031-01-02T00:00:00+02:00"
    assert await other.lease("a", "y", 60.0) == "held"


async def test_nothing_stays_open(path: Path, file_store: FileTokenStore) -> None:
    """Between the steps no file of the store is open, and none lies beside it."""
    await file_store.publish("a", Token(SECRET), 0)
    assert [child.name for child in path.parent.iterdir()] == ["tokens.db"]
    if Path("/proc/self/fd").exists():
        opened = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                opened.append(os.readlink(f"/proc/self/fd/{number}"))
        assert str(path) not in opened


async def test_odd_path(tmp_path: Path) -> None:
    """A path may hold what has a meaning in a URI."""
    path = tmp_path / "to ken?mode=ro&x#y%41ö" / "a?b#c%2F.db"
    assert await FileTokenStore(path).publish("a", Token("token"), 0)
    assert path.stat().st_size > 0
    assert await FileTokenStore(path).read("a") == StoredToken(Token("token"), 1)


@POSIX
@pytest.mark.parametrize("bits", [0o040, 0o004, 0o020, 0o002, 0o010, 0o001, 0o077])
async def test_file_that_others_may_use_is_refused(path: Path, file_store: FileTokenStore, bits: int) -> None:
    """A file with a bit for group or others is refused, and what the message says mends it."""
    await file_store.publish("a", Token(SECRET), 0)
    path.chmod(0o600 | bits)
    await refusal(file_store, f"others may use {path}, where tokens are stored: chmod 600 {path}, or choose another path")
    path.chmod(0o600)
    assert await file_store.read("a") == StoredToken(Token(SECRET), 1)


@POSIX
@pytest.mark.parametrize("bits", [0o020, 0o002, 0o072, 0o077])
async def test_folder_that_others_may_write_to_is_refused(path: Path, file_store: FileTokenStore, bits: int) -> None:
    """A folder in which others may replace the file is refused, already when the store is made, and the advice mends it."""
    path.parent.mkdir()
    path.parent.chmod(0o700 | bits)
    words = f"others may change files in {path.parent}, where tokens are stored: chmod go-w {path.parent}, or choose"
    await refusal(file_store, words)
    with pytest.raises(CredentialError, match="others may change files in"):
        FileTokenStore(path)
    assert not path.exists()
    path.parent.chmod((0o700 | bits) & ~0o022)
    assert await FileTokenStore(path).read("a") is None


@POSIX
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o711, 0o750])
async def test_ordinary_folder_is_taken(path: Path, mode: int) -> None:
    """A folder that others may enter, and not write to, is as good as any: the file itself is private."""
    path.parent.mkdir()
    path.parent.chmod(mode)
    assert await FileTokenStore(path).publish("a", Token(SECRET), 0)
    assert path.stat().st_mode & 0o777 == 0o600


@POSIX
@pytest.mark.parametrize("mode", [0o1777, 0o1770])
async def test_shared_folder_is_refused_and_never_to_be_closed(path: Path, mode: int) -> None:
    """A folder as the system's temporary one is refused, and no advice says to change its mode, whosever it is."""
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(CredentialError, match=r"is shared with other users.*FileTokenStore\.for_app") as caught:
        FileTokenStore(path)
    assert "chmod" not in str(caught.value)
    assert FileTokenStore(path.parent / "of-its-own" / "tokens").__class__ is FileTokenStore


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home folder, and one that is not known is a clear error."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert repr(FileTokenStore("~/mine/tokens")) == f"FileTokenStore('{tmp_path}/mine/tokens')"
    with pytest.raises(ValueError, match="the home folder in '~nobody-of-this-name/x' is not known: give the whole path"):
        FileTokenStore("~nobody-of-this-name/x")


@POSIX
async def test_store_of_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of an application is a file in the user's data folder, which is made at first use."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, data in (("absolute", str(tmp_path / "absolute")), (".local/share", "relative"), (".local/share", "")):
        monkeypatch.setenv("XDG_DATA_HOME", data)
        store = FileTokenStore.for_app("board mirror")
        assert repr(store) == f"FileTokenStore('{tmp_path}/{folder}/board mirror/tokens.sqlite3')"
    assert await store.publish("a", Token(SECRET), 0)
    assert (tmp_path / ".local/share/board mirror/tokens.sqlite3").stat().st_mode & 0o777 == 0o600
    for name in ("", ".", "..", "a/b", "a\\b", "a:b", "a\n"):
        with pytest.raises(ValueError, match="name must be the name of a folder"):
            FileTokenStore.for_app(name)


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("darwin", {}, "Library/Application Support"),
        ("win32", {}, "AppData/Local"),
        ("win32", {"LOCALAPPDATA": "/elsewhere"}, "/elsewhere"),
        ("linux", {}, ".local/share"),
    ],
)
def test_data_folders(platform: str, environment: dict[str, str], folder: str) -> None:
    """Each system has its own data folder."""
    assert _file_location.app_path("x", platform, environment) == Path.home() / folder / "x" / "tokens.sqlite3"


@POSIX
async def test_deleted_and_replaced_tokens_leave_the_file(path: Path, file_store: FileTokenStore) -> None:
    """The bytes of a token that was deleted or replaced are overwritten."""
    await file_store.publish("a", Token("canary-first-7"), 0)
    await file_store.publish("a", Token("canary-second-7"), 1)
    assert b"canary-second-7" in path.read_bytes()
    await file_store.delete("a")
    assert b"canary" not in path.read_bytes()


@POSIX
@pytest.mark.parametrize("place", ["file", "folder"])
async def test_what_belongs_to_another_user_is_refused(
    path: Path, file_store: FileTokenStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither file nor folder may be somebody else's, even where this user may use it."""
    await file_store.publish("a", Token(SECRET), 0)
    if place == "folder":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        await refusal(file_store, f"{path.parent}, where tokens are stored, belongs to another user")
        return
    owners = iter([path.stat().st_uid, path.stat().st_uid + 1] * 4)
    monkeypatch.setattr(os, "geteuid", lambda: next(owners))
    await refusal(file_store, f"{path}, where tokens are stored, belongs to another user: choose a folder of your own")


@POSIX
async def test_symbolic_link_is_refused(path: Path, file_store: FileTokenStore, tmp_path: Path) -> None:
    """Neither a link to a store nor a dangling one is followed; a linked folder is as good as its target."""
    path.parent.mkdir(mode=0o700)
    target = path.parent / "target.db"
    path.symlink_to(target)
    await refusal(file_store, "is a symbolic link: give the path of the file itself")
    assert not target.exists()
    await FileTokenStore(target).publish("a", Token(SECRET), 0)
    await refusal(file_store, "is a symbolic link")
    (tmp_path / "linked").symlink_to(path.parent, target_is_directory=True)
    assert await FileTokenStore(tmp_path / "linked" / "target.db").read("a") == StoredToken(Token(SECRET), 1)


@POSIX
async def test_what_is_no_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """A pipe, which would hang who opens it, and a folder are refused."""
    path.parent.mkdir(mode=0o700)
    os.mkfifo(path, 0o600)
    await refusal(file_store, "is not a file: choose another path")
    path.unlink()
    path.mkdir(mode=0o700)
    await refusal(file_store, "is not a file: choose another path")


async def test_folder_that_is_a_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """An error of the system is the cause, and its words are in the message."""
    path.parent.write_text("a file")
    assert isinstance((await refusal(file_store, "File exists")).__cause__, FileExistsError)
    with pytest.raises(CredentialError, match="is not a folder: choose another path"):
        FileTokenStore(path)


async def test_modes_are_not_looked_at_where_there_are_none(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows neither modes nor owners are checked."""
    path.parent.mkdir()
    path.parent.chmod(0o777)
    monkeypatch.setattr(_file_location, "_IS_POSIX", False)
    assert await file_store.read("a") is None


@pytest.mark.parametrize("content", [b"x", b"hello\n", b"x" * 99, b"x" * 4096, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_file_that_is_no_database_is_left_alone(path: Path, file_store: FileTokenStore, content: bytes) -> None:
    """What SQLite can't read is refused, of whatever size, and stays as it is."""
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    path.write_bytes(content)
    error = await refusal(file_store, "choose another path, or move it away")
    assert isinstance(error.__cause__, sqlite3.DatabaseError) or len(content) == 1
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE TABLE accounts (account TEXT)"], "is not a token store but another SQLite file"),
        (["CREATE TABLE t (x)", "DROP TABLE t", "PRAGMA application_id = 5"], "is not a token store but another SQLite file"),
        (["CREATE TABLE t (x)", "DROP TABLE t", "PRAGMA user_version = 1"], "is not a token store but another SQLite file"),
        ([f"PRAGMA application_id = {_file_store._APPLICATION}"], "is not a token store but another SQLite file"),
        (
            [f"PRAGMA application_id = {_file_store._APPLICATION}", "PRAGMA user_version = 2"],
            "is of a newer version of boardclient: update this one, or choose another path",
        ),
        (["PRAGMA application_id = 5", f"PRAGMA user_version = {_file_store._VERSION}"], "but another SQLite file"),
    ],
)
async def test_foreign_and_newer_databases_are_left_alone(
    path: Path, file_store: FileTokenStore, statements: list[str], words: str
) -> None:
    """Another application's file, and one of a later version, are refused and stay as they are."""
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    with database(path) as connection:
        for statement in statements:
            connection.execute(statement)
    content = path.read_bytes()
    await refusal(file_store, words)
    assert path.read_bytes() == content


async def test_empty_file_is_taken(path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file, be it of a process that was killed as it began, becomes a store; even to read it takes the lock at once.

    A reader that becomes a writer is refused without a wait where another does the same.
    """
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", traced)
        assert await file_store.read("a") is None
    assert statements[0] == "BEGIN IMMEDIATE"
    with database(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (_file_store._APPLICATION,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


async def test_corrupt_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """A database with broken pages says what to do."""
    await file_store.publish("a", Token(SECRET), 0)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    error = await refusal(file_store, "it is damaged; move it away, and a new one is made")
    assert isinstance(error.__cause__, sqlite3.DatabaseError)


@pytest.mark.parametrize(
    "damage",
    [
        f"token = CAST(x'ff' || CAST('{SECRET}' AS BLOB) AS TEXT)",  # no UTF-8: SQLite's own error would show it
        f"token = CAST('{SECRET}' AS BLOB)",
        "token = NULL",
        "token = ''",
        "generation = 'many'",
        "expires_at = 'tomorrow'",
        "expires_at = '2031-01-02T00:00:00'",
        "expires_at = x'00'",
        "since = 'x'",
        "until = x'00'",
        "generation = 9223372036854775807",
        "generation = -1",
        "generation = 1e300",
        "since = 'inf'",
        "holder = x'00'",
        "expires_at = '9999-12-31T23:59:59-23:59:99'",
        "token = NULL, generation = 0, expires_at = 'deleted'",
    ],
)
async def test_damaged_entry_is_refused(path: Path, file_store: FileTokenStore, damage: str) -> None:
    """An entry that can't be a record of the store is refused without being shown."""
    await file_store.publish("a", Token(SECRET), 0)
    await file_store.publish("b", Token("other"), 0)
    with database(path) as connection:
        connection.execute(f"UPDATE accounts SET {damage} WHERE account = 'a'")
    await refusal(file_store, "is damaged: move it away, and a new one is made")
    assert await file_store.read("b") == StoredToken(Token("other"), 1)


async def test_locked_file_is_an_error_after_a_while(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another process keeps is waited for so long and then told; once it is gone, all is well."""
    await file_store.publish("a", Token("before"), 0)
    waits: list[float] = []
    connect = sqlite3.connect

    def impatient(*arguments: Any, timeout: float, **options: Any) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*arguments, timeout=0.0, **options)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", impatient)
            error = await refusal(file_store, "another process has kept it locked for 5 seconds; try again, or end that process")
    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert waits == [5.0] * 4
    assert await file_store.publish("a", Token(SECRET), 1)


async def test_error_with_an_extended_code_is_known(file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's finer codes get the advice of the coarse one; an error without a code is told in its own words."""
    error = sqlite3.OperationalError("as SQLite says")

    def fail(*arguments: Any, **options: Any) -> sqlite3.Connection:
        raise error

    monkeypatch.setattr(sqlite3, "connect", fail)
    await refusal(file_store, "can't be used: as SQLite says")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_DIRECTORY
    await refusal(file_store, "it can't be written; give it and its folder to the user of this process")


async def test_reading_does_not_wait_for_a_writer(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is read while another process is within a step that it has not finished."""
    await file_store.publish("a", Token("before"), 0)
    monkeypatch.setattr(_file_store, "_BUSY_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await file_store.read("a") == StoredToken(Token("before"), 1)
        with pytest.raises(CredentialError, match="locked"):
            await file_store.lease("a", "x", 1.0)


async def test_full_disk_is_an_error_and_changes_nothing(
    path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that can't be written is not done at all."""
    await file_store.publish("a", Token("before"), 0)
    connect = sqlite3.connect

    def small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")  # it is as large already, and may not grow
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(CredentialError, match="the disk is full; make room on it") as caught:
            await file_store.publish("a", Token(SECRET * 10_000), 1)
    assert_no_secrets(caught.value, secrets=[SECRET])
    assert await file_store.read("a") == StoredToken(Token("before"), 1)


async def test_step_that_fails_half_way_is_undone(path: Path, file_store: FileTokenStore) -> None:
    """What a clock raises is raised, and leaves neither a lock nor half a step behind."""

    def broken() -> float:
        raise RuntimeError("no time")

    with pytest.raises(RuntimeError, match="no time"):
        await FileTokenStore(path, clock=broken).lease("a", "x", 1.0)
    assert await file_store.lease("a", "y", 1.0) == "granted"


async def test_name_that_cannot_be_written_is_an_error(file_store: FileTokenStore) -> None:
    """An account that UTF-8 can't carry is refused like whatever else can't be stored."""
    with pytest.raises(CredentialError, match="surrogates not allowed") as caught:
        await file_store.publish("\ud800", Token(SECRET), 0)
    assert_no_secrets(caught.value, secrets=[SECRET])


async def test_cancelled_step_carries_no_token(path: Path) -> None:
    """A cancellation carries no token, and the step under way is done as a whole."""
    inside, go = threading.Event(), threading.Event()

    def slow() -> float:
        inside.set()
        assert go.wait(10)
        return 1.0

    store = FileTokenStore(path, clock=slow)
    task = asyncio.ensure_future(store.publish("a", Token(SECRET), 0))
    assert await asyncio.to_thread(inside.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    go.set()
    assert not carries_token(caught.value)
    assert await store.read("a") == StoredToken(Token(SECRET), 1)


async def test_lease_that_is_refused_writes_nothing(path: Path, file_store: FileTokenStore) -> None:
    """To ask in vain costs no write: waiting holders ask often."""
    await file_store.lease("a", "x", 60.0)
    content = path.read_bytes()
    assert await file_store.lease("a", "y", 60.0) == "held"
    assert not await file_store.publish("a", Token("late"), 7)
    await file_store.release("a", "y")
    assert path.read_bytes() == content
    assert await file_store.publish("a", Token("first"), 0)
    assert path.read_bytes() != content


# --- several processes


def contend(path: str, barrier: Any, number: int) -> tuple[str, list[bool]]:
    """Race for the lease and for each generation; run in a process of its own."""
    store = FileTokenStore(path)

    async def race() -> tuple[str, list[bool]]:
        state = await store.lease("a", f"holder {number}", 60.0)
        return state, [await store.publish("a", Token(f"{number}.{after}"), after) for after in range(20)]

    barrier.wait(60)
    return asyncio.run(race())


def _contend(queue: Any, *arguments: Any) -> None:
    queue.put(contend(*arguments))


def test_one_of_several_processes_wins(path: Path) -> None:
    """Of processes that begin together, with no file yet, one gets the lease, and one publishes each generation."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    children = [context.Process(target=_contend, args=(queue, str(path), barrier, number)) for number in range(4)]
    for child in children:
        child.start()
    done = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    assert sorted(state for state, _ in done) == ["granted"] + ["held"] * 3
    assert all(sum(won) <= 1 for won in zip(*(won for _, won in done), strict=True))
    stored = asyncio.run(FileTokenStore(path).read("a"))
    assert stored is not None
    assert stored.generation == sum(sum(won) for _, won in done)
    assert stored.generation >= 1


async def test_time_of_a_step_is_taken_under_the_lock(path: Path, file_store: FileTokenStore) -> None:
    """Nobody else can write once the time is taken: an earlier time would be before the beginning of a lease just given."""
    await file_store.publish("a", Token("token"), 0)
    tries: list[str] = []

    def prying() -> float:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                tries.append(str(error))
        return 1.0

    prying_store = FileTokenStore(path, clock=prying)
    await prying_store.lease("a", "x", 1.0)
    await prying_store.release("a", "x")
    assert tries == ["database is locked"] * 2


FORK = """
import asyncio, os, sys, threading, warnings
warnings.simplefilter("ignore")
from boardclient import FileTokenStore, Token

path = sys.argv[1]
inside, go = threading.Event(), threading.Event()
os.register_at_fork(before=go.set)  # runs first: the store's own hook, registered before it, then waits for the step

def slow():
    inside.set()
    assert go.wait(10)
    return 100.0

slow_store, store = FileTokenStore(path, clock=slow), FileTokenStore(path, clock=lambda: 101.0)
asyncio.run(store.publish("a", Token("before"), 0))
thread = threading.Thread(target=lambda: asyncio.run(slow_store.lease("a", "x", 60.0)), daemon=True)
thread.start()
assert inside.wait(10)
child = os.fork()
if child == 0:
    try:
        seen = [asyncio.run(store.lease("a", "y", 60.0)), asyncio.run(store.publish("a", Token("child"), 1))]
    except BaseException as error:
        seen = [error]
    print(seen, flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join(10)
print(asyncio.run(store.read("a")).generation, asyncio.run(store.lease("a", "x", 1.0)))
"""


@POSIX
def test_process_may_fork_within_a_step(path: Path) -> None:
    """A fork waits for the step of another thread; both processes then use the store."""
    done = subprocess.run([sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["['held', True]", "2 granted"], done.stderr


KILLED = """
import asyncio, os, signal, sys
from boardclient import FileTokenStore
asyncio.run(FileTokenStore(sys.argv[1], clock=lambda: os.kill(os.getpid(), signal.SIGKILL)).lease("a", "x", 60.0))
"""


@POSIX
async def test_killed_process_leaves_no_lock(path: Path, file_store: FileTokenStore) -> None:
    """A process that dies within its first step leaves a file that the next can use."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, timeout=60)
    assert done.returncode == -9
    assert await file_store.lease("a", "y", 60.0) == "granted"


def test_suite_is_listed() -> None:
    """The suite is a public name of `boardclient.testing`."""
    assert "TokenStoreSuite" in boardclient.testing.__all__
