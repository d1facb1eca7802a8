"""The token of one account in this process, and its cool-downs. No I/O.

All methods are synchronous and thread-safe, since event loops may run in several threads. `_renewal` and `_oauth` do the waiting.
"""

from __future__ import annotations

import hashlib
import math
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


@attrs.define(eq=False)
class HeldToken:
    """A token in use, its credentials, and what is known about it."""

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None
    """When this process's renewal obtained it, on the state's clock. None if another worker did."""
    renew_at: float | None = None
    """When it is renewed early, in seconds since the epoch. None for never."""
    is_proven: bool = False
    """Whether the service has accepted it."""

    @property
    def has_ended(self) -> bool:
        """Whether its known end is over."""
        return _has_ended(self.stored.token)


class TokenState:
    """The token that signs the requests of an account. Owned by its provider."""

    def __init__(self, key: str | None, cooldown: float, renew_before_expiry: float | None, clock: Callable[[], float]) -> None:
        self.credentials: Credentials | None = None
        """What to sign with. None if there is no token, or it was refused."""
        self.held: HeldToken | None = None
        """The token, good or refused. None if there is none."""
        self.asked = 0
        """How often the application was asked for a code since the service last accepted a token."""
        self.waits_for = "the token store"
        """What the renewal waits for, in words."""
        self._key = key
        self._margin = renew_before_expiry
        self._clock = clock
        self._looked_at = -math.inf
        self._lost_codes: set[bytes] = set()
        self._first_cooldown = cooldown
        self._failures = 0
        self._failure = RenewalFailure(why="")
        self._cooling_until = -math.inf
        self._lock = threading.Lock()

    # --- tokens

    def adopt(self, stored: StoredToken, instead_of: HeldToken | None, *, is_own: bool = False) -> bool:
        """Use a token of the store. Return True if the token in use is good, and not `instead_of`.

        The present token stays if it is the same one, or a good one of a later generation. An earlier generation replaces only
        `instead_of`, the token that was in use when the store was read: then the store was restored, or lost its file. With
        `is_own` a renewal of this process obtained the token.
        """
        with self._lock:
            held = self.held
            is_old = held is not None and self.credentials is not None and stored.generation < held.stored.generation
            if is_old and held is instead_of:
                is_old = _has_ended(stored.token)
            if not is_old and (held is None or is_own or stored != held.stored):
                self._hold(stored, self._clock() if is_own else None)
            return self.credentials is not None and self.held is not instead_of

    def replace(self, stored: StoredToken) -> None:
        """Use a token that the user has just consented to, in place of any other."""
        with self._lock:
            self._hold(stored, None)
            self._failures, self._cooling_until = 0, -math.inf
            self._looked_at = self._clock()

    def drop(self, generation: int) -> None:
        """Forget the token if the store, whose generation is given, has deleted it."""
        with self._lock:
            if self.held is not None and generation > self.held.stored.generation:
                self.held = self.credentials = None

    def _hold(self, stored: StoredToken, obtained_at: float | None) -> None:
        credentials, end = Credentials(stored.token.value, self._key), stored.token.expires_at
        renew_at = None
        if self._margin is not None and end is not None:  # not before half of the remaining time has passed
            renew_at = max(end.timestamp() - self._margin, (time.time() + end.timestamp()) / 2)
        self.held = HeldToken(stored, credentials, obtained_at, renew_at)
        self.credentials = credentials

    @property
    def is_due(self) -> bool:
        """Whether it is time for an early renewal."""
        held = self.held
        return held is not None and held.renew_at is not None and time.time() >= held.renew_at

    @property
    def is_usable(self) -> bool:
        """Whether there is a token that is neither refused nor past its end."""
        return self.credentials is not None and self.held is not None and not self.held.has_ended

    def refuse(self, rejected: Credentials) -> float | None:
        """Note a 401, and return None if another token may help.

        If the token was new, no other will do. The result is the length of the cool-down that begins, 0 if it has begun before.
        """
        with self._lock:
            held = self.held
            if held is None or held.credentials != rejected:
                return None  # it is for an older token
            is_news, self.credentials = self.credentials is not None, None
            if held.is_proven or held.obtained_at is None or self._clock() - held.obtained_at > NEW_SECONDS:
                return None
            return self._fail(RenewalFailure(why="the service refused a token as soon as it was new")) if is_news else 0.0

    def accept(self, credentials: Credentials) -> None:
        """Note that the service accepted the token. Earlier failures no longer count."""
        with self._lock:
            if self.held is not None and self.credentials == credentials:
                self.held.is_proven = True
                self._failures = self.asked = 0

    # --- codes and cool-downs

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
        seconds = min(LONGEST_COOLDOWN_SECONDS, self._first_cooldown * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._failure, self._cooling_until = failure, self._clock() + seconds
        return seconds

    def pause(self, failure: RenewalFailure) -> None:
        """Note why there is no token, without a cool-down."""
        with self._lock:
            self._failure, self._cooling_until = failure, self._clock() + LOOK_SECONDS

    @property
    def cooldown_left(self) -> float:
        """The seconds until a renewal may begin."""
        return max(0.0, self._cooling_until - self._clock())

    @property
    def failure(self) -> RenewalFailure | None:
        """Why no renewal begins now, None if one may."""
        return self._failure if self.cooldown_left else None

    def note_look(self) -> None:
        """Note a look at the store."""
        self._looked_at = self._clock()

    def is_look_older_than(self, seconds: float) -> bool:
        """Return True if the last look at the store is at least so many seconds ago."""
        return self._clock() - self._looked_at >= seconds


def _has_ended(token: Token) -> bool:
    return token.expires_at is not None and time.time() >= token.expires_at.timestamp()


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
