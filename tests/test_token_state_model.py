"""The state of a token under any order of events, compared with a plain account of what happened."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from token_state_helpers import LATE, signing, stored
from virtual_loop import Clock

from boardclient import Credentials, StoredToken
from boardclient.credentials._token_state import NEW_SECONDS, RefusalVerdict, TokenState
from boardclient.credentials._tokens import RenewalFailure

GENERATIONS = st.integers(1, 4)
SECONDS = st.sampled_from([0.0, 0.5, 2.0, 30.0, NEW_SECONDS, 61.0])


class TokenStateMachine(RuleBasedStateMachine):
    """Compare a token_state with a plain account of what happened to it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.token_state = TokenState(cooldown=1.0, clock=self.clock)
        self.made: list[StoredToken] = []
        self.refused: set[str] = set()
        self.proven: set[str] = set()
        self.obtained: dict[str, float] = {}
        self.rests_until = 0.0
        self.failures = 0

    def _make(self, generation: int) -> StoredToken:
        self.made.append(stored(f"t{len(self.made)}", generation))
        return self.made[-1]

    def _rest(self, seconds: float) -> None:
        self.failures += 1
        self.rests_until = self.clock.now + seconds

    @property
    def _next_rest(self) -> float:
        return min(60.0, 2.0**self.failures)

    def _is_held(self, token: StoredToken) -> bool:
        return self.token_state.held is not None and self.token_state.held.stored == token

    @rule(generation=GENERATIONS, is_own=st.booleans(), is_instead=st.booleans())
    def adopt_another(self, generation: int, is_own: bool, is_instead: bool) -> None:
        before, good = self.token_state.held, signing(self.token_state)
        if good is not None and before is not None and generation < before.stored.generation:
            is_own = False  # whether one's own token, published and outdone before it is held, should win is left open
        token = self._make(generation)
        is_better = is_own or is_instead or good is None or (before is not None and generation >= before.stored.generation)
        told = self.token_state.adopt(token, before if is_instead else None, is_own=is_own)
        assert told is (is_better or not is_instead)
        assert self._is_held(token) is is_better
        assert signing(self.token_state) == (token.token.value if is_better else good)
        if is_own:
            self.obtained[token.token.value] = self.clock.now

    @precondition(lambda self: self.made)
    @rule(data=st.data(), is_instead=st.booleans())
    def adopt_again(self, data: st.DataObject, is_instead: bool) -> None:
        token = data.draw(st.sampled_from(self.made))
        held, good = self.token_state.held, signing(self.token_state)
        is_later = good is None or held is None or token.generation >= held.stored.generation
        if not self._is_held(token) and (is_later or is_instead):
            self.refused.discard(token.token.value)
            self.proven.discard(token.token.value)
            self.obtained.pop(token.token.value, None)
            assert self.token_state.adopt(token, held if is_instead else None)
            assert signing(self.token_state) == token.token.value
        else:
            assert self.token_state.adopt(token, held if is_instead else None) is (good is not None and not is_instead)
            assert (self.token_state.held, signing(self.token_state)) == (held, good)

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.made))
        value, good = token.token.value, signing(self.token_state)
        verdict = self.token_state.refuse(Credentials(value))
        if not self._is_held(token):
            assert verdict == LATE
            assert signing(self.token_state) == good
            return
        assert signing(self.token_state) is None
        obtained = self.obtained.get(value)
        is_new = value not in self.proven and obtained is not None and self.clock.now - obtained <= NEW_SECONDS
        expected = self._next_rest if is_new and good is not None else 0.0
        assert verdict == RefusalVerdict(is_final=is_new, cooldown_seconds=expected)
        if expected:
            self._rest(expected)
        self.refused.add(value)

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        value = data.draw(st.sampled_from(self.made)).token.value
        self.token_state.accept(Credentials(value))
        if signing(self.token_state) == value:
            self.proven.add(value)
            self.failures = 0

    @rule()
    def fail(self) -> None:
        expected = self._next_rest
        assert self.token_state.fail(RenewalFailure("x")) == expected
        self._rest(expected)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def signs_with_what_is_good(self) -> None:
        assert signing(self.token_state) not in self.refused
        if self.token_state.credentials is not None:
            assert self.token_state.held is not None
            assert self.token_state.credentials is self.token_state.held.credentials

    @invariant()
    def rests_as_long_as_was_said(self) -> None:
        assert self.token_state.cooldown_left == max(0.0, self.rests_until - self.clock.now)
        assert (self.token_state.failure is None) is (self.clock.now >= self.rests_until)


TokenStateMachine.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40, derandomize=True)
TestTokenState: Callable[[], None] = TokenStateMachine.TestCase
