"""The state of one account in this process: its token and the cool-down.

All methods are synchronous and thread-safe, since event loops may run in several threads. `_renewal` and `_renewing` do the
waiting.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Final

import attrs

from boardclient.credentials._credentials import Credentials
from boardclient.credentials._tokens import RenewalFailure, StoredToken, Token

LONGEST_COOLDOWN_SECONDS: Final = 60.0
NEW_SECONDS: Final = 60.0
"""How long a token that was never accepted counts as new. If it is refused later, it may have expired unused."""
LOOK_SECONDS: Final = 0.05
"""The least time between looks at the store in a cool-down, which a token of another worker ends."""


@attrs.frozen(eq=False)
class HeldToken:
    """A token in use, and its credentials. `obtained_at` is when this process's renewal obtained it, or None."""

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None


@attrs.frozen
class RefusalVerdict:
    """What a 401 means. It is final if the token was new, and begins a cool-down."""

    is_final: bool
    cooldown_seconds: float = 0.0


class TokenState:
    """The token that signs the requests of an account. Owned by its provider.

    Args:
        key: The API key, None for none.
        cooldown: The seconds without a renewal after the first failure.
        renew_before_expiry: How many seconds before a token's end it is renewed, None for never.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        key: str | None = None,
        cooldown: float = 1.0,
        renew_before_expiry: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.credentials: Credentials | None = None
        """What to sign with. None if there is no token, or it was refused."""
        self.held: HeldToken | None = None
        """The token, good or refused. None if there is none."""
        self.asked = 0
        """How often the application was asked for a code since the service last accepted a token."""
        self.waits_for = "the token store"
        """What the renewal waits for, in words."""
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
        self._cooldown_until = self._looked_at = clock() - 2 * LOOK_SECONDS

    def adopt(self, stored: StoredToken, instead_of: HeldToken | None, *, is_own: bool = False) -> bool:
        """Use a token of the store. Return True if the token in use is good, and not `instead_of`.

        The present token stays if it is the same one, or a good one of a later generation. An earlier generation replaces only
        `instead_of`, the token that was in use when the store was read: then the store was restored, or lost its file.

        Args:
            stored: The token in the store.
            instead_of: The token that was in use before the store was read.
            is_own: Whether a renewal of this process obtained the token.
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
        """Use a token that the user has just consented to, in place of any other."""
        with self._lock:
            self._hold(stored, None)
            self._failures = self.asked = 0
            self._cooldown_until = self._looked_at = self.clock()

    def drop(self, generation: int) -> None:
        """Forget the token if the store, whose generation is given, has deleted it."""
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
        """Whether it is time for an early renewal."""
        return self._renew_at is not None and time.time() >= self._renew_at

    @property
    def has_expired(self) -> bool:
        """Whether the end of the token is known and past."""
        return self.held is not None and self._is_past(_end_of(self.held.stored.token))

    @staticmethod
    def _is_past(moment: float | None) -> bool:
        return moment is not None and time.time() >= moment

    def _renewal_time(self, token: Token) -> float | None:
        """Return when to renew early: not before half of the remaining time has passed. None for never."""
        end = _end_of(token)
        if self._margin is None or end is None:
            return None
        return max(end - self._margin, (time.time() + end) / 2)

    def refuse(self, rejected: Credentials) -> RefusalVerdict:
        """Note a 401. It has no effect if it is for an older token."""
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
        """Note that the service accepted the token. Earlier failures no longer count."""
        with self._lock:
            if self.credentials == credentials:
                self._is_proven = True
                self._failures = self.asked = 0

    def lose(self, code: str) -> None:
        """Note that the exchange of a code had an unknown effect. The code is not sent again."""
        self._lost_codes.add(_digest(code))

    def is_lost(self, code: str) -> bool:
        """Return True if the exchange of the code had an unknown effect."""
        return _digest(code) in self._lost_codes

    def fail(self, failure: RenewalFailure) -> float:
        """Note a failed renewal, and return the seconds of the cool-down that begins."""
        with self._lock:
            return self._fail(failure)

    def _fail(self, failure: RenewalFailure) -> float:
        seconds = min(LONGEST_COOLDOWN_SECONDS, self._cooldown * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._failure = failure
        self._cooldown_until = self.clock() + seconds
        return seconds

    def note_consent(self, failure: RenewalFailure) -> None:
        """Note that the user has to sign in. There is no cool-down, only a pause before the next look at the store."""
        with self._lock:
            self._failure = failure
            self._cooldown_until = self.clock() + LOOK_SECONDS

    @property
    def cooldown_left(self) -> float:
        """The seconds until a renewal may begin."""
        return max(0.0, self._cooldown_until - self.clock())

    @property
    def failure(self) -> RenewalFailure | None:
        """Why no renewal begins now, None if one may."""
        return self._failure if self.cooldown_left else None

    def note_look(self) -> None:
        """Note a look at the store."""
        self._looked_at = self.clock()

    def is_look_older_than(self, seconds: float) -> bool:
        """Return True if the last look at the store is at least so many seconds ago."""
        return self.clock() - self._looked_at >= seconds


def _end_of(token: Token) -> float | None:
    return None if token.expires_at is None else token.expires_at.timestamp()


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
