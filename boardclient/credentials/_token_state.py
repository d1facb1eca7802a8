"""The state of one account in this process: its token and its cool-down.

All methods are synchronous and thread-safe, since event loops may run in several threads. `_renewal` and `_renewing` do the
waiting.
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
    """A token in use, its credentials, and what is known about it.

    Args:
        stored: The token and its generation.
        credentials: What it signs with.
        obtained_at: When this process's renewal obtained it, on the state's clock. None if another worker did.
        renew_at: When it is renewed early, in seconds since the epoch. None for never.
    """

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None
    renew_at: float | None = None
    is_proven: bool = False
    """Whether the service has accepted it."""


@attrs.frozen
class RefusalVerdict:
    """What a 401 means. It is final if the token was new, and begins a cool-down."""

    is_final: bool
    cooldown_seconds: float = 0.0


class Cooldown:
    """The time after a failed renewal in which no other begins. Owned by a `TokenState`, which locks.

    Args:
        first_seconds: Its length after the first failure. It doubles with each further one, up to `LONGEST_COOLDOWN_SECONDS`.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, first_seconds: float, clock: Callable[[], float]) -> None:
        self._first_seconds = first_seconds
        self._clock = clock
        self._failures = 0
        self._reason = RenewalFailure("")
        self._until = -math.inf

    @property
    def seconds_left(self) -> float:
        """The seconds until a renewal may begin."""
        return max(0.0, self._until - self._clock())

    @property
    def reason(self) -> RenewalFailure | None:
        """The failure that began it, None if it is over."""
        return self._reason if self.seconds_left else None

    def begin(self, reason: RenewalFailure) -> float:
        """Begin after a failure, and return the length in seconds."""
        seconds = min(LONGEST_COOLDOWN_SECONDS, self._first_seconds * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self.pause(reason, seconds)
        return seconds

    def pause(self, reason: RenewalFailure, seconds: float) -> None:
        """Begin for so many seconds, without counting a failure."""
        self._reason, self._until = reason, self._clock() + seconds

    def forget_failures(self) -> None:
        """Begin with the first length again after the next failure."""
        self._failures = 0

    def end(self) -> None:
        """End now, and forget the failures."""
        self._failures, self._until = 0, -math.inf


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
        self._margin = renew_before_expiry
        self._cooldown = Cooldown(cooldown, clock)
        self._looked_at = clock() - 2 * LOOK_SECONDS
        self._lock = threading.Lock()

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
                is_old = _has_ended(stored.token)
            if not is_old and (held is None or is_own or stored != held.stored):
                self._hold(stored, self.clock() if is_own else None)
            return self.credentials is not None and self.held is not instead_of

    def replace(self, stored: StoredToken) -> None:
        """Use a token that the user has just consented to, in place of any other."""
        with self._lock:
            self._hold(stored, None)
            self._cooldown.end()
            self._looked_at = self.clock()

    def drop(self, generation: int) -> None:
        """Forget the token if the store, whose generation is given, has deleted it."""
        with self._lock:
            if self.held is not None and generation > self.held.stored.generation:
                self.held = self.credentials = None

    def _hold(self, stored: StoredToken, obtained_at: float | None) -> None:
        credentials = Credentials(stored.token.value, self._key)
        self.held = HeldToken(stored, credentials, obtained_at, self._renewal_time(stored.token))
        self.credentials = credentials

    @property
    def is_due(self) -> bool:
        """Whether it is time for an early renewal."""
        held = self.held
        return held is not None and held.renew_at is not None and time.time() >= held.renew_at

    @property
    def is_usable(self) -> bool:
        """Whether there is a token that is neither refused nor past its end."""
        return self.credentials is not None and self.held is not None and not _has_ended(self.held.stored.token)

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
            age = None if held.is_proven or held.obtained_at is None else self.clock() - held.obtained_at
            if age is None or age > NEW_SECONDS:
                return RefusalVerdict(is_final=False)
            seconds = (
                self._cooldown.begin(RenewalFailure("the service refused a token as soon as it was new")) if is_news else 0.0
            )
            return RefusalVerdict(is_final=True, cooldown_seconds=seconds)

    def accept(self, credentials: Credentials) -> None:
        """Note that the service accepted the token. Earlier failures no longer count."""
        with self._lock:
            if self.held is not None and self.credentials == credentials:
                self.held.is_proven = True
                self._cooldown.forget_failures()
                self.asked = 0

    def lose(self, code: str) -> None:
        """Note that the exchange of a code had an unknown effect. The code is not sent again."""
        self._lost_codes.add(_digest(code))

    def is_lost(self, code: str) -> bool:
        """Return True if the exchange of the code had an unknown effect."""
        return _digest(code) in self._lost_codes

    def fail(self, failure: RenewalFailure) -> float:
        """Note a failed renewal, and return the seconds of the cool-down that begins."""
        with self._lock:
            return self._cooldown.begin(failure)

    def note_consent(self, failure: RenewalFailure) -> None:
        """Note that the user has to sign in. There is no cool-down, only a pause before the next look at the store."""
        with self._lock:
            self._cooldown.pause(failure, LOOK_SECONDS)

    @property
    def cooldown_left(self) -> float:
        """The seconds until a renewal may begin."""
        return self._cooldown.seconds_left

    @property
    def failure(self) -> RenewalFailure | None:
        """Why no renewal begins now, None if one may."""
        return self._cooldown.reason

    def note_look(self) -> None:
        """Note a look at the store."""
        self._looked_at = self.clock()

    def is_look_older_than(self, seconds: float) -> bool:
        """Return True if the last look at the store is at least so many seconds ago."""
        return self.clock() - self._looked_at >= seconds


def _end_of(token: Token) -> float | None:
    return None if token.expires_at is None else token.expires_at.timestamp()


def _has_ended(token: Token) -> bool:
    end = _end_of(token)
    return end is not None and time.time() >= end


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
