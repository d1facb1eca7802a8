"""The state of the token of one account: current, refused, accepted, due for renewal, resting. No event loop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from token_state_helpers import FINAL, LATE, signing, stored
from virtual_loop import Clock

from boardclient import Credentials, StoredToken, Token
from boardclient.credentials import _token_state
from boardclient.credentials._token_state import LONGEST_COOLDOWN_SECONDS, NEW_SECONDS, HeldToken, RefusalVerdict, TokenState
from boardclient.credentials._tokens import RenewalFailure


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def token_state(clock: Clock) -> TokenState:
    return TokenState(cooldown=2.0, clock=clock)


def obtain(token_state: TokenState, value: str, generation: int = 1) -> Credentials:
    """Hold a token that this process has just obtained."""
    assert token_state.adopt(stored(value, generation), token_state.held, is_own=True)
    assert token_state.credentials is not None
    return token_state.credentials


# --- which token is held


def test_begins_with_nothing(token_state: TokenState) -> None:
    """At first there is no token, none is due for renewal, and nothing rests."""
    assert (token_state.credentials, token_state.held, token_state.asked) == (None, None, 0)
    assert not token_state.is_due
    assert token_state.cooldown_left == 0.0
    assert token_state.failure is None
    assert token_state.refuse(Credentials("t")) == LATE
    token_state.accept(Credentials("t"))
    assert token_state.credentials is None


@pytest.mark.parametrize("key", [None, "k"])
def test_signs_with_token_and_key(key: str | None, clock: Clock) -> None:
    """The current token signs, with the key if there is one."""
    token_state = TokenState(key, clock=clock)
    assert token_state.adopt(stored("t"), None)
    assert token_state.credentials == Credentials("t", key)


def test_the_same_token_keeps_its_credentials(token_state: TokenState) -> None:
    """The current token is not adopted a second time, so that a caller that asked for another gets none."""
    assert token_state.adopt(stored("t"), None)
    credentials, held = token_state.credentials, token_state.held
    assert token_state.adopt(stored("t"), None)
    assert (token_state.credentials, token_state.held) == (credentials, held)
    assert token_state.credentials is credentials
    assert not token_state.adopt(stored("t"), held)


def test_a_refused_token_is_not_adopted_again(token_state: TokenState) -> None:
    """The token that the service refused is no good from the store either; any other is."""
    token_state.adopt(stored("t"), None)
    assert token_state.refuse(Credentials("t")) == LATE
    for instead_of in (None, token_state.held):
        assert not token_state.adopt(stored("t"), instead_of)
    assert signing(token_state) is None
    assert token_state.adopt(stored("u", 2), token_state.held)
    assert signing(token_state) == "u"


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_refused_token_is_replaced_whatever_the_generation(generation: int, token_state: TokenState) -> None:
    """A store whose generation did not grow may have another token: without a good one, it is adopted."""
    token_state.adopt(stored("t", 2), None)
    token_state.refuse(Credentials("t"))
    assert token_state.adopt(stored("u", generation), token_state.held)
    assert signing(token_state) == "u"


@pytest.mark.parametrize(("generation", "expected"), [(1, "t"), (2, "u"), (3, "u")])
def test_an_older_token_never_replaces_a_good_one(generation: int, expected: str, token_state: TokenState) -> None:
    """A good token is replaced only by one that is not older; there is a good one either way."""
    token_state.adopt(stored("t", 2), None)
    assert token_state.adopt(stored("u", generation), None)
    assert signing(token_state) == expected


def test_a_refused_token_may_come_with_another_generation(token_state: TokenState) -> None:
    """What was published again is tried again."""
    token_state.adopt(stored("t", 1), None)
    token_state.refuse(Credentials("t"))
    assert token_state.adopt(stored("t", 2), token_state.held)
    assert signing(token_state) == "t"


def test_the_own_token_is_adopted_whatever_is_held(token_state: TokenState) -> None:
    """The token just obtained replaces the same one, refused or not."""
    obtain(token_state, "t")
    token_state.refuse(Credentials("t"))
    assert obtain(token_state, "t").token == "t"


# --- what a 401 says


def test_a_late_401_is_for_an_older_token(token_state: TokenState) -> None:
    """A 401 for what was replaced discards nothing."""
    old, new = obtain(token_state, "old"), obtain(token_state, "new", 2)
    assert token_state.refuse(old) == LATE
    assert token_state.credentials is new
    assert token_state.refuse(Credentials("new", "another key")) == LATE
    assert token_state.credentials is new
    assert token_state.cooldown_left == 0.0


@pytest.mark.parametrize(("age", "is_final"), [(0.0, True), (NEW_SECONDS, True), (NEW_SECONDS + 0.001, False)])
def test_a_token_refused_as_soon_as_it_was_new(age: float, is_final: bool, token_state: TokenState, clock: Clock) -> None:
    """A token of this process's own that was never accepted is refused for good while it is new; later it has just expired."""
    new = obtain(token_state, "t")
    clock.now += age
    assert token_state.refuse(new) == RefusalVerdict(is_final=is_final, cooldown_seconds=2.0 if is_final else 0.0)
    assert token_state.credentials is None
    assert token_state.cooldown_left == (2.0 if is_final else 0.0)
    reason = RenewalFailure("the service refused a token as soon as it was new")
    assert token_state.failure == (reason if is_final else None)


def test_many_401s_for_a_new_token_are_one_failure(token_state: TokenState, clock: Clock) -> None:
    """All who sent a new token that is refused learn that it is final; the cool-down begins once."""
    new = obtain(token_state, "t")
    assert token_state.refuse(new).cooldown_seconds == 2.0
    clock.now += 0.5
    assert token_state.refuse(new) == FINAL
    assert token_state.cooldown_left == 1.5
    clock.now += NEW_SECONDS
    assert token_state.refuse(new) == LATE


def test_a_proven_token_has_expired(token_state: TokenState) -> None:
    """A token that was accepted once is renewed when it is refused, however new it is."""
    new = obtain(token_state, "t")
    token_state.accept(new)
    assert token_state.refuse(new) == LATE
    assert token_state.credentials is None
    assert token_state.cooldown_left == 0.0


def test_a_token_from_the_store_is_not_new(token_state: TokenState) -> None:
    """The age of a token from another holder is unknown: if it is refused, it is renewed."""
    token_state.adopt(stored("t"), None)
    assert token_state.refuse(Credentials("t")) == LATE
    assert token_state.credentials is None


def test_proof_is_of_one_token(token_state: TokenState) -> None:
    """An older token that was accepted proves nothing of the next."""
    token_state.accept(obtain(token_state, "old"))
    new = obtain(token_state, "new", 2)
    assert token_state.refuse(new) == RefusalVerdict(is_final=True, cooldown_seconds=2.0)


def test_an_acceptance_that_comes_late(token_state: TokenState) -> None:
    """Neither an older token nor one that is refused already is proven by a response that comes late."""
    old, new = obtain(token_state, "old"), obtain(token_state, "new", 2)
    token_state.accept(old)
    assert token_state.refuse(new).is_final
    token_state.accept(new)
    assert token_state.refuse(new).is_final
    assert token_state.credentials is None


# --- cool-downs


def test_cooldowns_double_up_to_a_minute(token_state: TokenState, clock: Clock) -> None:
    """Each failure doubles the rest, up to 60 seconds, however many there were."""
    seconds = []
    for number in range(2000):
        seconds.append(token_state.fail(RenewalFailure(f"number {number}")))
        assert token_state.cooldown_left == seconds[-1]
        assert token_state.failure == RenewalFailure(f"number {number}")
        clock.now += seconds[-1]
        assert token_state.cooldown_left == 0.0
        assert token_state.failure is None
    assert seconds[:6] == [2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_COOLDOWN_SECONDS]
    assert set(seconds[5:]) == {LONGEST_COOLDOWN_SECONDS}


@pytest.mark.parametrize(("cooldown", "expected"), [(0.0, [0.0, 0.0]), (45.0, [45.0, 60.0]), (90.0, [60.0, 60.0])])
def test_first_cooldowns(cooldown: float, expected: list[float], clock: Clock) -> None:
    """The first cool-down is as long as configured, at most a minute."""
    token_state = TokenState(cooldown=cooldown, clock=clock)
    assert [token_state.fail(RenewalFailure("x")) for _ in expected] == expected


def test_a_small_cooldown_stops_doubling(clock: Clock) -> None:
    """After ten failures the rest is the 1024-fold."""
    token_state = TokenState(cooldown=0.001, clock=clock)
    assert [token_state.fail(RenewalFailure("x")) for _ in range(13)][-3:] == [1.024] * 3


def test_only_an_acceptance_ends_the_doubling(token_state: TokenState, clock: Clock) -> None:
    """A token that was got but never accepted does not begin the count anew; one that is accepted does."""
    token_state.fail(RenewalFailure("x"))
    token_state.fail(RenewalFailure("x"))
    token_state.asked = 2
    token = obtain(token_state, "t")
    assert token_state.refuse(token).cooldown_seconds == 8.0
    assert token_state.asked == 2
    accepted = obtain(token_state, "u", 2)
    token_state.accept(accepted)
    assert token_state.asked == 0
    assert token_state.fail(RenewalFailure("x")) == 2.0


def test_a_cool_down_continues_after_a_token_came(token_state: TokenState, clock: Clock) -> None:
    """A token from elsewhere does not end the rest, which only counts for renewals."""
    token_state.fail(RenewalFailure("x"))
    token_state.adopt(stored("t"), None)
    assert token_state.failure == RenewalFailure("x")
    clock.now += 1.5
    assert token_state.cooldown_left == 0.5


def test_a_token_of_a_sign_in_ends_the_cool_down_and_the_doubling(token_state: TokenState) -> None:
    """After a sign-in the next failure begins with the first cool-down again."""
    assert [token_state.fail(RenewalFailure("x")) for _ in range(3)] == [2.0, 4.0, 8.0]
    token_state.replace(stored("t1"))
    assert token_state.cooldown_left == 0.0
    assert token_state.fail(RenewalFailure("x")) == 2.0


@pytest.mark.parametrize(("generation", "is_kept"), [(0, True), (1, True), (2, False)])
def test_a_token_is_dropped_for_a_later_generation_only(generation: int, is_kept: bool, token_state: TokenState) -> None:
    """A sign-out after the token was published drops it; one before it does not."""
    token_state.adopt(stored("t1", 1), None)
    token_state.drop(generation)
    assert signing(token_state) == ("t1" if is_kept else None)
    assert (token_state.held is not None) is is_kept


# --- codes


def test_lost_codes(token_state: TokenState) -> None:
    """A code whose exchange has an unknown effect is known from then on, and can't be read from the token_state."""
    assert not token_state.is_lost("cödé")
    token_state.lose("cödé")
    assert token_state.is_lost("cödé")
    assert not token_state.is_lost("code")
    assert "cödé" not in repr(vars(token_state))


# --- early renewal


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock that ends of tokens are on."""
    wall = Clock(1_700_000_000.0)
    monkeypatch.setattr(_token_state, "time", SimpleNamespace(time=wall, monotonic=Clock()))
    return wall


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    ("margin", "lifetime", "due_after"),
    [
        (60.0, 3600.0, 3540.0),
        (1800.0, 3600.0, 1800.0),
        (3000.0, 3600.0, 1800.0),
        (60.0, 10.0, 5.0),
        (60.0, -10.0, 0.0),
        (None, 10.0, None),
        (60.0, None, None),
    ],
)
def test_early_renewal(margin: float | None, lifetime: float | None, due_after: float | None, wall: Clock) -> None:
    """A token is due the margin before its end, but not in the first half of its life, and never without either."""
    token_state, begun = TokenState(renew_before_expiry=margin), wall.now
    token_state.adopt(stored("t", 1, None if lifetime is None else at(begun + lifetime)), None)
    if due_after is None:
        wall.now = begun + 1e9
        assert not token_state.is_due
        return
    wall.now = begun + due_after - 0.01
    assert token_state.is_due is (due_after == 0.0)
    wall.now = begun + due_after
    assert token_state.is_due


def test_early_renewal_of_the_next_token(wall: Clock) -> None:
    """Each token has its own end, and one without is never due."""
    token_state = TokenState(renew_before_expiry=10.0)
    token_state.adopt(stored("t", 1, at(wall.now + 100)), None)
    wall.now += 95
    assert token_state.is_due
    token_state.adopt(stored("u", 2, at(wall.now + 100)), None)
    assert not token_state.is_due
    wall.now += 95
    assert token_state.is_due
    token_state.adopt(stored("v", 3), None)
    assert not token_state.is_due


@pytest.mark.parametrize("end", [datetime.max, datetime.min])
@pytest.mark.parametrize("hours", [-23, 0, 23])
def test_early_renewal_at_the_ends_of_time(end: datetime, hours: int, wall: Clock) -> None:
    """An end in the far future or past is not an error."""
    token_state = TokenState(renew_before_expiry=10.0)
    token_state.adopt(stored("t", 1, end.replace(tzinfo=timezone(timedelta(hours=hours)))), None)
    assert token_state.is_due is (end == datetime.min)


def test_values() -> None:
    """The repr of a held token does not show it, and equal ones are different objects."""
    held = HeldToken(stored("canary7t3z"), Credentials("canary7t3z"))
    assert "canary" not in repr(held)
    assert held != HeldToken(held.stored, held.credentials)
    assert RefusalVerdict(is_final=False).cooldown_seconds == 0.0


def test_ones_own_token_that_was_outdone_is_not_held() -> None:
    """A token that this process obtained doesn't take the place of a newer one that is good."""
    token_state = TokenState()
    assert token_state.adopt(StoredToken(Token("t3"), 3), None)
    assert token_state.adopt(StoredToken(Token("t2"), 2), None, is_own=True)
    assert token_state.credentials == Credentials("t3")
