"""The token of one account in this process. Which one is held, whether it is good, how long no renewal begins.

Synchronous throughout, and safe for several loops in several threads; the awaiting is in `_renewal` and `_oauth`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Final

import attrs

from boardclient.credentials._failure import RenewalFailure
from boardclient.credentials._tokens import StoredToken, Token
from boardclient.credentials._values import Credentials

LONGEST_COOLDOWN_SECONDS: Final = 60.0
NEW_SECONDS: Final = 60.0
"""How long a token that was never accepted counts as new: refused later than that, it has expired unused."""
LOOK_SECONDS: Final = 0.05
"""Between looks at the store while no renewal may begin: a token that another worker publishes ends the waiting."""


@attrs.frozen(eq=False)
class HeldToken:
    """A token in use, and its credentials. `obtained_at` is when a renewal of this process got it, if it did."""

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None


@attrs.frozen
class RefusalVerdict:
    """What a 401 means. `is_final` where a new token was refused, with the cool-down that begins."""

    is_final: bool
    cooldown_seconds: float = 0.0


class TokenState:
    """The one token that the requests of an account are signed with. Owned by its provider."""

    def __init__(
        self,
        key: str | None = None,
        cooldown: float = 1.0,
        renew_before_expiry: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.credentials: Credentials | None = None
        """What to sign with; None while no token is held that may be good."""
        self.held: HeldToken | None = None
        """The token held, good or refused."""
        self.asked = 0
        """How often the application was asked for a code since a token was last accepted."""
        self.waits_for = "the token store"
        """What a renewal waits for, in words."""
        self.clock = clock
        self._lost_codes: set[bytes] = set()
        self._key = key
        self._cooldown = cooldown
        self._margin = renew_before_expiry
        self._lock = threading.Lock()
        self._renew_at: float | None = None
        self._is_proven = False
        self._failure = RenewalFailure("")
        self._failures = 0
        self._rests_until = self._looked_at = clock() - 2 * LOOK_SECONDS

    def adopt(self, stored: StoredToken, instead_of: HeldToken | None, *, is_own: bool = False) -> bool:
        """Hold a token of the store. Return True if a good one is held now, other than `instead_of`.

        The token held stays where it is the same one, or a good one of a later generation. An earlier generation replaces only
        `instead_of`, the token held when the store was asked: the store was restored, or lost its file. With `is_own` a renewal
        of this process obtained the token.
        """
        with self._lock:
            held = self.held
            is_old = held is not None and self.credentials is not None and stored.generation < held.stored.generation
            if is_old and held is instead_of:
                is_old = self._is_past(_end_of(stored.token))
            if not is_old and (held is None or is_own or stored != held.stored):
                self._hold(stored, self.clock() if is_own else None)
            return self.credentials is not None and self.held is not instead_of

    def replace(self, stored: StoredToken) -> None:
        """Hold a token that the user has just consented to, whatever was held before."""
        with self._lock:
            self._hold(stored, None)
            self._failures = self.asked = 0
            self._rests_until = self._looked_at = self.clock()

    def drop(self, generation: int) -> None:
        """Hold no token, where the store has deleted the one held. Its generation is a later one."""
        with self._lock:
            if self.held is not None and generation > self.held.stored.generation:
                self.held = self.credentials = self._renew_at = None

    def _hold(self, stored: StoredToken, obtained_at: float | None) -> None:
        credentials = Credentials(stored.token.value, self._key)
        self.held = HeldToken(stored, credentials, obtained_at)
        self._renew_at = self._renewal_time(stored.token)
        self._is_proven = False
        self.credentials = credentials

    @property
    def is_due(self) -> bool:
        """Return True if the time of an early renewal has come."""
        return self._renew_at is not None and time.time() >= self._renew_at

    @property
    def has_expired(self) -> bool:
        """Return True if the end of the token held is known and over."""
        return self.held is not None and self._is_past(_end_of(self.held.stored.token))

    @staticmethod
    def _is_past(moment: float | None) -> bool:
        return moment is not None and time.time() >= moment

    def _renewal_time(self, token: Token) -> float | None:
        """Return when to renew early. Half of the time that is left passes first."""
        end = _end_of(token)
        if self._margin is None or end is None:
            return None
        return max(end - self._margin, (time.time() + end) / 2)

    def refuse(self, rejected: Credentials) -> RefusalVerdict:
        """Note a 401; it means nothing where it is for an older token."""
        with self._lock:
            held = self.held
            if held is None or held.credentials != rejected:
                return RefusalVerdict(is_final=False)
            is_news, self.credentials = self.credentials is not None, None
            age = None if self._is_proven or held.obtained_at is None else self.clock() - held.obtained_at
            if age is None or age > NEW_SECONDS:
                return RefusalVerdict(is_final=False)
            seconds = self._fail(RenewalFailure("the service refused a token as soon as it was new")) if is_news else 0.0
            return RefusalVerdict(is_final=True, cooldown_seconds=seconds)

    def accept(self, credentials: Credentials) -> None:
        """Note that the service took the token: earlier failures don't count any more."""
        with self._lock:
            if self.credentials == credentials:
                self._is_proven = True
                self._failures = self.asked = 0

    def lose(self, code: str) -> None:
        """Note that the exchange of a code had an unknown effect. It is not sent a second time."""
        self._lost_codes.add(_digest(code))

    def is_lost(self, code: str) -> bool:
        """Return True if the exchange of the code had an unknown effect."""
        return _digest(code) in self._lost_codes

    def fail(self, failure: RenewalFailure) -> float:
        """Note a renewal that failed. Return the seconds of the cool-down that this begins."""
        with self._lock:
            return self._fail(failure)

    def _fail(self, failure: RenewalFailure) -> float:
        seconds = min(LONGEST_COOLDOWN_SECONDS, self._cooldown * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._failure = failure
        self._rests_until = self.clock() + seconds
        return seconds

    def note_consent(self, failure: RenewalFailure) -> None:
        """Note that the user has to sign in. This is no failure, and the next look at the store is soon."""
        with self._lock:
            self._failure = failure
            self._rests_until = self.clock() + LOOK_SECONDS

    @property
    def rest_seconds(self) -> float:
        """How long no renewal begins."""
        return max(0.0, self._rests_until - self.clock())

    @property
    def failure(self) -> RenewalFailure | None:
        """Why no renewal begins, None where one may."""
        return self._failure if self.rest_seconds else None

    def note_look(self) -> None:
        """Note that the store is looked at now."""
        self._looked_at = self.clock()

    def is_look_older_than(self, seconds: float) -> bool:
        """Return True if the store was last looked at so many seconds ago, or earlier."""
        return self.clock() - self._looked_at >= seconds


def _end_of(token: Token) -> float | None:
    return None if token.expires_at is None else token.expires_at.timestamp()


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
