"""The tests that every token store must pass. They need no pytest: a failure is an AssertionError."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, TypeAlias

from boardclient import StoredToken, Token, TokenStore

_Body: TypeAlias = Callable[["TokenStoreSuite", TokenStore], Awaitable[None]]

_CONTENDERS: Final = 20
_TEXTS: Final = (
    "plain",
    "x" * 10_000,
    "tökén 令牌 \N{GRINNING FACE}",
    "'; DROP TABLE tokens; --",
    '"{}[]%s{0}\\',
    "  \t\r\n\x7f ",
    "None",
    "007",
)
_ENDS: Final = (
    datetime(2031, 1, 2, 3, 4, 5, 678901, UTC),
    datetime(2031, 7, 8, 9, 10, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(2031, 7, 8, 9, 10, tzinfo=timezone(timedelta(hours=-11, seconds=-1))),
    None,
)
_ACCOUNTS: Final = (
    *("a", "A", "a ", " a", "\u00e4", "a\u0308", "a/b", "../a", "a%", "a_", "a:b", "1", "01", "1.0", "NULL", "a'b\"c", "a\nb"),
    "x" * 200,
)


def _in_a_loop(body: _Body) -> Callable[[TokenStoreSuite], None]:
    """Turn an asynchronous test into a synchronous one, which needs no plugin."""

    def test(suite: TokenStoreSuite) -> None:
        # With a factory the runner does not change the thread's current event loop.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(suite._with_store(body))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, not {found!r}")


class TokenStoreSuite:
    """Tests your own `TokenStore`. Subclass it under a name that begins with `Test`.

    ```python
    class TestMyStore(TokenStoreSuite):
        async def make_store(self) -> TokenStore:
            return MyStore(...)
    ```

    Each test makes an empty store, uses it and closes it, in its own event loop.

    Attributes:
        lease_seconds: How long leases last, 2 by default. It must be long enough for one operation of a slow store. Unless
            `pass_time` is overridden, a run of the suite takes about four times as long.
    """

    lease_seconds: float = 2.0

    async def make_store(self) -> TokenStore:
        """Return an empty store. Subclasses must override it."""
        raise NotImplementedError("make_store must return the store to test")

    async def close_store(self, store: TokenStore) -> None:
        """Close a store that `make_store` returned. By default nothing is done."""

    async def pass_time(self, seconds: float) -> None:
        """Let a number of seconds pass on the store's clock. By default, wait for them."""
        await asyncio.sleep(seconds)

    async def _with_store(self, body: _Body) -> None:
        store = await self.make_store()
        try:
            await body(self, store)
        finally:
            await self.close_store(store)

    async def _expect_lease(self, store: TokenStore, holder: str, expected: str, when: str) -> None:
        _expect(f"lease of {holder} {when}", (await store.lease("a", holder, self.lease_seconds)).state, expected)

    @_in_a_loop
    async def test_begins_empty(self, store: TokenStore) -> None:
        """An unknown account has no token and generation 0, also while there is a lease."""
        for when in ("of an unknown account", "of an account with nothing but a lease"):
            _expect(f"read {when}", await store.read("a"), None)
            _expect(f"generation {when}", await store.generation("a"), 0)
            await store.lease("a", "x", self.lease_seconds)

    @_in_a_loop
    async def test_publishes_one_generation_after_another(self, store: TokenStore) -> None:
        """The first token follows generation 0, and each replaces the one before."""
        for generation in range(3):
            token = Token(f"token {generation}")
            _expect(f"publish after {generation}", await store.publish("a", token, generation), True)
            _expect(f"read after {generation}", await store.read("a"), StoredToken(token, generation + 1))
            _expect(f"generation after {generation}", await store.generation("a"), generation + 1)

    @_in_a_loop
    async def test_refuses_another_generation(self, store: TokenStore) -> None:
        """A publish that does not follow the kept generation changes nothing."""
        _expect("publish after 1 into an empty account", await store.publish("a", Token("early"), 1), False)
        _expect("read after that", await store.read("a"), None)
        await store.publish("a", Token("first"), 0)
        await store.publish("a", Token("second"), 1)
        for after in (0, 1, 3, 4, 1000, -1):
            _expect(f"publish after {after} onto generation 2", await store.publish("a", Token("other"), after), False)
            _expect(f"read after that ({after})", await store.read("a"), StoredToken(Token("second"), 2))

    @_in_a_loop
    async def test_publishes_whoever_has_the_lease(self, store: TokenStore) -> None:
        """A publish succeeds under any lease, which stays. It ends a cool-down."""
        await self._expect_lease(store, "x", "granted", "first")
        _expect("publish while x has the lease", await store.publish("a", Token("first"), 0), True)
        await self._expect_lease(store, "y", "held", "after a publish")
        await store.release("a", "x", self.lease_seconds)
        _expect("publish in a cool-down", await store.publish("a", Token("second"), 1), True)
        await self._expect_lease(store, "y", "granted", "after a publish in a cool-down")

    @_in_a_loop
    async def test_deletes_a_token(self, store: TokenStore) -> None:
        """A deleted token is not read any more, and other accounts keep theirs."""
        for account in ("a", "b"):
            await store.publish(account, Token(f"token of {account}"), 0)
        await store.delete("a")
        _expect("read after the deletion", await store.read("a"), None)
        _expect("whether the other account has its token", await store.read("b") == StoredToken(Token("token of b"), 1), True)
        _expect("generation of the other account", await store.generation("b"), 1)

    @_in_a_loop
    async def test_does_not_resurrect_a_deleted_token(self, store: TokenStore) -> None:
        """A publish that began before a deletion fails. One after it succeeds, and its token names that deletion."""
        await store.delete("a")
        _expect("generation of an unknown account after a deletion", await store.generation("a"), 1)
        _expect("publish of one who began before it", await store.publish("a", Token("late"), 0), False)
        _expect("publish after the deletion", await store.publish("a", Token("first"), 1), True)
        await store.delete("a")
        _expect("generation after a token and two deletions", await store.generation("a"), 3)
        for after in range(3):
            _expect(f"late publish after {after}", await store.publish("a", Token("late"), after), False)
            _expect("read after that", await store.read("a"), None)
        _expect("publish after the second deletion", await store.publish("a", Token("second"), 3), True)
        kept = await store.read("a")
        _expect("whether it was kept", kept == StoredToken(Token("second"), 4), True)
        _expect("the generation of the last deletion", kept and kept.deletion, 3)
        leased = (await store.lease("a", "x", self.lease_seconds)).stored
        _expect("the generation of the last deletion in a lease", leased and leased.deletion, 3)

    @_in_a_loop
    async def test_a_deletion_ends_lease_and_cool_down(self, store: TokenStore) -> None:
        """A deletion frees the lease. Its former holder can't release another's."""
        await self._expect_lease(store, "x", "granted", "first")
        await store.delete("a")
        await self._expect_lease(store, "y", "granted", "after a deletion")
        await store.release("a", "x", self.lease_seconds)
        await self._expect_lease(store, "z", "held", "after the former holder released it")
        await store.release("a", "y", self.lease_seconds)
        await self._expect_lease(store, "z", "cooling", "in a cool-down")
        await store.delete("a")
        await self._expect_lease(store, "z", "granted", "after a deletion in a cool-down")

    @_in_a_loop
    async def test_keeps_any_text_and_end(self, store: TokenStore) -> None:
        """A token comes back with the same text, and with an equal, aware end."""
        tokens = [Token(text) for text in _TEXTS] + [Token("token", ends) for ends in _ENDS]
        for generation, token in enumerate(tokens):
            await store.publish("a", token, generation)
            found = await store.read("a")
            # The token is not shown: a wrong store may return one of the application.
            _expect(f"whether {token!r} number {generation} came back", found == StoredToken(token, generation + 1), True)

    @_in_a_loop
    async def test_keeps_accounts_apart(self, store: TokenStore) -> None:
        """Accounts share no token, generation or lease, however alike their names are."""
        for number, account in enumerate(_ACCOUNTS):
            _expect(f"read of {account!r} before", await store.read(account), None)
            leased = await store.lease(account, f"holder {number}", 60 * self.lease_seconds)
            _expect(f"lease of {account!r}", leased.state, "granted")
            _expect(f"publish to {account!r}", await store.publish(account, Token(f"token {number}"), 0), True)
        for number, account in enumerate(_ACCOUNTS):
            expected = StoredToken(Token(f"token {number}"), 1)
            _expect(f"whether {account!r} has its own token", await store.read(account) == expected, True)
            _expect(f"lease of {account!r} for another", (await store.lease(account, "other", 1.0)).state, "held")
            leased = await store.lease(account, f"holder {number}", 1.0)
            _expect(f"lease of {account!r} for its holder", leased.state, "granted")
            _expect(f"whether the lease of {account!r} shows its own token", leased.stored == expected, True)
            _expect(f"generation in the lease of {account!r}", leased.generation, 1)

    @_in_a_loop
    async def test_lease_runs_out(self, store: TokenStore) -> None:
        """A lease that was not ended lasts for its time. Then it is another's, which the former holder can't end."""
        await self._expect_lease(store, "x", "granted", "first")
        await self.pass_time(0.5 * self.lease_seconds)
        await self._expect_lease(store, "y", "held", "in half of x's time")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "y", "granted", "when x's time is over")
        await store.release("a", "x", self.lease_seconds)
        await self._expect_lease(store, "x", "held", "after x released y's")

    @_in_a_loop
    async def test_lease_is_extended(self, store: TokenStore) -> None:
        """Given again, a lease lasts from then on."""
        await self._expect_lease(store, "x", "granted", "first")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "x", "granted", "before it runs out")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "y", "held", "within x's second time")
        await self.pass_time(0.5 * self.lease_seconds)
        await self._expect_lease(store, "y", "granted", "when x's second time is over")

    @_in_a_loop
    async def test_release_makes_it_free(self, store: TokenStore) -> None:
        """One holder has the lease, and can take it again. Once that one released it, it is free at once."""
        for when in ("first", "while x has it"):
            await self._expect_lease(store, "x", "granted", when)
            await self._expect_lease(store, "y", "held", "while x has it")
        await store.release("a", "x")
        await self._expect_lease(store, "y", "granted", "after x released it")
        await self._expect_lease(store, "x", "held", "when it is y's")

    @_in_a_loop
    async def test_release_of_another_does_nothing(self, store: TokenStore) -> None:
        """A release by another than the holder changes neither lease nor cool-down."""
        await self._expect_lease(store, "x", "granted", "first")
        for cooldown in (0.0, self.lease_seconds):
            await store.release("a", "y", cooldown)
            await self._expect_lease(store, "z", "held", f"after y released with {cooldown}")
            await self._expect_lease(store, "x", "granted", f"after y released with {cooldown}")
        await store.release("a", "x", self.lease_seconds)
        await store.release("a", "y")
        await self._expect_lease(store, "y", "cooling", "after y released in the cool-down")

    @_in_a_loop
    async def test_cool_down_is_everybodys(self, store: TokenStore) -> None:
        """In a cool-down no holder gets the lease, then any does. Asking does not prolong it."""
        await self._expect_lease(store, "x", "granted", "first")
        await store.release("a", "x", self.lease_seconds)
        for holder in ("x", "y"):
            await self._expect_lease(store, holder, "cooling", "at its beginning")
        await self.pass_time(0.5 * self.lease_seconds)
        for holder in ("x", "y"):
            await self._expect_lease(store, holder, "cooling", "in its middle")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "y", "granted", "when it is over")
        await self._expect_lease(store, "x", "held", "when it is y's")

    @_in_a_loop
    async def test_one_of_many_publishes(self, store: TokenStore) -> None:
        """Of many publishes of one generation at a time one succeeds. Its token is kept."""
        for after in range(3):
            tokens = [Token(f"token {after}.{number}") for number in range(_CONTENDERS)]
            won = await asyncio.gather(*(store.publish("a", token, after) for token in tokens))
            _expect(f"winners of {_CONTENDERS} publishes after {after}", won.count(True), 1)
            expected = StoredToken(tokens[won.index(True)], after + 1)
            _expect("whether the winner's token is kept", await store.read("a") == expected, True)

    @_in_a_loop
    async def test_one_of_many_leases(self, store: TokenStore) -> None:
        """Of many that ask at the same time one gets the lease."""
        asked = [store.lease("a", f"holder {number}", 60 * self.lease_seconds) for number in range(_CONTENDERS)]
        states = [leased.state for leased in await asyncio.gather(*asked)]
        _expect(f"states of {_CONTENDERS} leases", sorted(states), ["granted"] + ["held"] * (_CONTENDERS - 1))

    @_in_a_loop
    async def test_shows_no_token(self, store: TokenStore) -> None:
        """A store shows no token when it is printed."""
        await store.publish("a", Token("s3cr3t-value"), 0)
        for show in (repr, str, format):
            _expect(f"whether {show.__name__} of the store shows a token", "s3cr3t-value" in show(store), False)
