"""The tests that every token store must pass. They need no pytest: a failure is an AssertionError."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, TypeAlias

import attrs

from boardclient import LeaseRecord, StoredToken, Token, TokenStore

_Body: TypeAlias = Callable[["TokenStoreSuite", "_AtService"], Awaitable[None]]

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


_SERVICES: Final = ("https://board.example", "https://board.example/v2", "https://BOARD.example", "http://board.example", "a")


@attrs.frozen
class _AtService:
    """The methods of a store for one service."""

    store: TokenStore
    service: str = _SERVICES[0]

    async def read(self, account: str) -> StoredToken | None:
        return await self.store.read(account, service=self.service)

    async def generation(self, account: str) -> int:
        return await self.store.generation(account, service=self.service)

    async def publish(self, account: str, token: Token, after: int) -> StoredToken | None:
        return await self.store.publish(account, token, after, service=self.service)

    async def delete(self, account: str) -> None:
        await self.store.delete(account, service=self.service)

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseRecord:
        return await self.store.lease(account, holder, seconds, service=self.service)

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await self.store.release(account, holder, cooldown, service=self.service)

    async def kept(self, account: str, token: Token, after: int) -> StoredToken:
        """Publish a token, and return it as the store keeps it."""
        stored = await self.publish(account, token, after)
        # The token is not shown: a wrong store may return one of the application.
        # Larger, not by one: a store may count generations for all accounts together.
        is_kept = isinstance(stored, StoredToken) and stored.token == token and stored.generation > after
        _expect(f"whether publish after {after} to {account!r} returned {token!r} under a larger generation", is_kept, True)
        assert stored is not None  # noqa: S101 -- for type checkers
        return stored


def _in_a_loop(body: _Body) -> Callable[[TokenStoreSuite], None]:
    """Turn an asynchronous test into a synchronous one, which needs no plugin."""

    def test(suite: TokenStoreSuite) -> None:
        # With a factory the runner does not change the thread's current event loop.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(suite._with_store(body))

    # pytest collects by the name, and shows the sentence of the docstring.
    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        # By hand: pytest rewrites `assert` only in test files and plugins, and this module is neither.
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
            await body(self, _AtService(store))
        finally:
            await self.close_store(store)

    async def _expect_lease(self, store: _AtService, holder: str, expected: str, when: str) -> None:
        _expect(f"lease of {holder} {when}", (await store.lease("a", holder, self.lease_seconds)).state, expected)

    @_in_a_loop
    async def test_begins_empty(self, store: _AtService) -> None:
        """An unknown account has no token and generation 0, also while there is a lease."""
        for when in ("of an unknown account", "of an account with nothing but a lease"):
            _expect(f"read {when}", await store.read("a"), None)
            _expect(f"generation {when}", await store.generation("a"), 0)
            # A lease makes a record in most stores, which must not be taken for a token.
            await store.lease("a", "x", self.lease_seconds)

    @_in_a_loop
    async def test_publishes_one_generation_after_another(self, store: _AtService) -> None:
        """The first token follows generation 0, and each replaces the one before."""
        generation = 0
        for number in range(3):
            stored = await store.kept("a", Token(f"token {number}"), generation)
            _expect(f"whether read finds token {number}", await store.read("a") == stored, True)
            _expect(f"whether generation is that of token {number}", await store.generation("a") == stored.generation, True)
            generation = stored.generation

    @_in_a_loop
    async def test_refuses_another_generation(self, store: _AtService) -> None:
        """A publish that does not follow the kept generation changes nothing."""
        _expect("publish after 1 into an empty account", await store.publish("a", Token("early"), 1), None)
        _expect("read after that", await store.read("a"), None)
        first = await store.kept("a", Token("first"), 0)
        second = await store.kept("a", Token("second"), first.generation)
        # Also numbers that were never given: a store that compares by "less than" takes one of them.
        for after in (0, 1, first.generation, second.generation + 1, 2 * second.generation, -1):
            _expect(f"publish after {after} onto {second.generation}", await store.publish("a", Token("other"), after), None)
            _expect(f"whether the second token is read after that ({after})", await store.read("a") == second, True)

    @_in_a_loop
    async def test_publishes_whoever_has_the_lease(self, store: _AtService) -> None:
        """A publish succeeds under any lease, which stays. It ends a cool-down."""
        await self._expect_lease(store, "x", "granted", "first")
        first = await store.kept("a", Token("first"), 0)
        await self._expect_lease(store, "y", "held", "after a publish")
        await store.release("a", "x", self.lease_seconds)
        await store.kept("a", Token("second"), first.generation)
        await self._expect_lease(store, "y", "granted", "after a publish in a cool-down")

    @_in_a_loop
    async def test_deletes_a_token(self, store: _AtService) -> None:
        """A deleted token is not read any more, and other accounts keep theirs."""
        await store.kept("a", Token("token of a"), 0)
        other = await store.kept("b", Token("token of b"), 0)
        await store.delete("a")
        _expect("read after the deletion", await store.read("a"), None)
        _expect("whether the other account has its token", await store.read("b") == other, True)
        _expect("whether the other account has its generation", await store.generation("b") == other.generation, True)

    @_in_a_loop
    async def test_does_not_resurrect_a_deleted_token(self, store: _AtService) -> None:
        """A publish that began before a deletion fails. One after it succeeds, and its token names that deletion."""
        await store.delete("a")
        deletion = await store.generation("a")
        _expect("whether a deletion gives an unknown account a generation", deletion > 0, True)
        _expect("publish of one who began before it", await store.publish("a", Token("late"), 0), None)
        first = await store.kept("a", Token("first"), deletion)
        await store.delete("a")
        second_deletion = await store.generation("a")
        _expect("whether a deletion raises the generation", second_deletion > first.generation, True)
        # Each is what a worker may have read before the sign-out, whose token must not come back after it.
        for after in (0, deletion, first.generation):
            _expect(f"late publish after {after}", await store.publish("a", Token("late"), after), None)
            _expect("read after that", await store.read("a"), None)
        kept = await store.kept("a", Token("second"), second_deletion)
        _expect("whether the generation of the last deletion is kept", kept.deletion == second_deletion, True)
        found = await store.read("a"), (await store.lease("a", "x", self.lease_seconds)).stored
        is_kept = all(one is not None and one.deletion == second_deletion for one in found)
        _expect("whether the generation of the last deletion is read, and comes with a lease", is_kept, True)

    @_in_a_loop
    async def test_generations_do_not_begin_again(self, store: _AtService) -> None:
        """A store that begins anew, as after a restart or without its file, repeats no generation: sign-outs stay."""
        first = await store.kept("a", Token("first"), 0)
        await store.delete("a")
        # It stands for a restart, or a file that was deleted: clients may still hold what the first one gave them.
        anew = await self.make_store()
        try:
            again = await _AtService(anew).kept("a", Token("second"), await _AtService(anew).generation("a"))
        finally:
            await self.close_store(anew)
        _expect("whether the second store's generation is larger than the first one's", again.generation > first.generation, True)
        _expect("whether what the first store knew is deleted in the second", again.deletion > first.generation, True)

    @_in_a_loop
    async def test_keeps_services_apart(self, store: _AtService) -> None:
        """One account has a token, a generation and a lease of its own at each service, also after a sign-out of another."""
        services = [_AtService(store.store, service) for service in _SERVICES]
        kept = []
        for number, at in enumerate(services):
            _expect(f"read at {at.service!r} before", await at.read("a"), None)
            # Much longer than the test takes, since a lease that ends would make the last check pass by itself.
            leased = await at.lease("a", f"holder {number}", 60 * self.lease_seconds)
            _expect(f"lease at {at.service!r}", leased.state, "granted")
            kept.append(await at.kept("a", Token(f"token {number}"), 0))
        for at, expected in zip(services, kept, strict=True):
            _expect(f"whether the token at {at.service!r} is its own", await at.read("a") == expected, True)
            _expect(f"whether the generation at {at.service!r} is its own", await at.generation("a") == expected.generation, True)
            _expect(f"lease at {at.service!r} for another", (await at.lease("a", "other", 1.0)).state, "held")
        await services[0].delete("a")
        found = [await at.read("a") for at in services]
        _expect("whether a deletion at one service leaves the others", found == [None, *kept[1:]], True)

    @_in_a_loop
    async def test_a_deletion_ends_lease_and_cool_down(self, store: _AtService) -> None:
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
    async def test_keeps_any_text_and_end(self, store: _AtService) -> None:
        """A token comes back with the same text, and with an equal, aware end."""
        tokens = [Token(text) for text in _TEXTS] + [Token("token", ends) for ends in _ENDS]
        generation = 0
        for number, token in enumerate(tokens):
            stored = await store.kept("a", token, generation)
            _expect(f"whether {token!r} number {number} came back", await store.read("a") == stored, True)
            generation = stored.generation

    @_in_a_loop
    async def test_keeps_accounts_apart(self, store: _AtService) -> None:
        """Accounts share no token, generation or lease, however alike their names are."""
        kept = []
        for number, account in enumerate(_ACCOUNTS):
            _expect(f"read of {account!r} before", await store.read(account), None)
            leased = await store.lease(account, f"holder {number}", 60 * self.lease_seconds)
            _expect(f"lease of {account!r}", leased.state, "granted")
            kept.append(await store.kept(account, Token(f"token {number}"), 0))
        for number, (account, expected) in enumerate(zip(_ACCOUNTS, kept, strict=True)):
            _expect(f"whether {account!r} has its own token", await store.read(account) == expected, True)
            _expect(f"lease of {account!r} for another", (await store.lease(account, "other", 1.0)).state, "held")
            leased = await store.lease(account, f"holder {number}", 1.0)
            _expect(f"lease of {account!r} for its holder", leased.state, "granted")
            _expect(f"whether the lease of {account!r} shows its own token", leased.stored == expected, True)
            is_own = leased.generation == expected.generation
            _expect(f"whether the lease of {account!r} shows its own generation", is_own, True)

    @_in_a_loop
    async def test_lease_runs_out(self, store: _AtService) -> None:
        """A lease that was not ended lasts for its time. Then it is another's, which the former holder can't end."""
        await self._expect_lease(store, "x", "granted", "first")
        await self.pass_time(0.5 * self.lease_seconds)
        await self._expect_lease(store, "y", "held", "in half of x's time")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "y", "granted", "when x's time is over")
        await store.release("a", "x", self.lease_seconds)
        await self._expect_lease(store, "x", "held", "after x released y's")

    @_in_a_loop
    async def test_lease_is_extended(self, store: _AtService) -> None:
        """Given again, a lease lasts from then on."""
        await self._expect_lease(store, "x", "granted", "first")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "x", "granted", "before it runs out")
        await self.pass_time(0.6 * self.lease_seconds)
        await self._expect_lease(store, "y", "held", "within x's second time")
        await self.pass_time(0.5 * self.lease_seconds)
        await self._expect_lease(store, "y", "granted", "when x's second time is over")

    @_in_a_loop
    async def test_release_makes_it_free(self, store: _AtService) -> None:
        """One holder has the lease, and can take it again. Once that one released it, it is free at once."""
        for when in ("first", "while x has it"):
            await self._expect_lease(store, "x", "granted", when)
            await self._expect_lease(store, "y", "held", "while x has it")
        await store.release("a", "x")
        await self._expect_lease(store, "y", "granted", "after x released it")
        await self._expect_lease(store, "x", "held", "when it is y's")

    @_in_a_loop
    async def test_release_of_another_does_nothing(self, store: _AtService) -> None:
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
    async def test_cool_down_is_everybodys(self, store: _AtService) -> None:
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
    async def test_one_of_many_publishes(self, store: _AtService) -> None:
        """Of many publishes of one generation at a time one succeeds. Its token is kept."""
        after = 0
        for turn in range(3):
            tokens = [Token(f"token {turn}.{number}") for number in range(_CONTENDERS)]
            won = await asyncio.gather(*(store.publish("a", token, after) for token in tokens))
            winners = [(token, stored) for token, stored in zip(tokens, won, strict=True) if stored]
            _expect(f"winners of {_CONTENDERS} publishes in turn {turn}", len(winners), 1)
            token, stored = winners[0]
            _expect("whether the winner's token is kept", await store.read("a") == stored and stored.token == token, True)
            after = stored.generation

    @_in_a_loop
    async def test_one_of_many_leases(self, store: _AtService) -> None:
        """Of many that ask at the same time one gets the lease."""
        asked = [store.lease("a", f"holder {number}", 60 * self.lease_seconds) for number in range(_CONTENDERS)]
        states = [leased.state for leased in await asyncio.gather(*asked)]
        _expect(f"states of {_CONTENDERS} leases", sorted(states), ["granted"] + ["held"] * (_CONTENDERS - 1))

    @_in_a_loop
    async def test_shows_no_token(self, store: _AtService) -> None:
        """A store shows no token when it is printed."""
        await store.publish("a", Token("s3cr3t-value"), 0)
        for show in (repr, str, format):
            _expect(f"whether {show.__name__} of the store shows a token", "s3cr3t-value" in show(store.store), False)
