"""The token of one account in this process: which one is held, whether it is any good, how long no renewal may begin.

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


@attrs.frozen(eq=False)
class HeldToken:
    """A token at hand, and what it signs with.

    `obtained_at` is when this process got it from an exchange, if it did.
    """

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None


@attrs.frozen
class RefusalVerdict:
    """What a 401 says: `is_final` where a token was refused as soon as it was new, with the cool-down that this begins."""

    is_final: bool
    cooldown_seconds: float = 0.0


class TokenState:
    """The one token that an account's requests are signed with, from first use on. Owned by its provider."""

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
        self._lost_codes: set[bytes] = set()
        self._key = key
        self._cooldown = cooldown
        self._margin = renew_before_expiry
        self._clock = clock
        self._lock = threading.Lock()
        self._renew_at: float | None = None
        self._is_proven = False
        self._failure = RenewalFailure("")
        self._failures = 0
        self._rests_until = clock()

    def adopt(self, stored: StoredToken, instead_of: HeldToken | None, *, is_own: bool = False) -> bool:
        """Hold the token unless it is held already or older than a good one.

        `is_own` says that this process has just obtained it. Tell whether a good one is held now, other than `instead_of`.
        """
        with self._lock:
            held = self.held
            is_old = held is not None and self.credentials is not None and stored.generation < held.stored.generation
            if not is_old and (held is None or is_own or stored != held.stored):
                credentials = Credentials(stored.token.value, self._key)
                self.held = HeldToken(stored, credentials, self._clock() if is_own else None)
                self._renew_at = self._renewal_time(stored.token)
                self._is_proven = False
                self.credentials = credentials
            return self.credentials is not None and self.held is not instead_of

    @property
    def is_due(self) -> bool:
        """Tell whether the time of an early renewal has come."""
        return self._renew_at is not None and time.time() >= self._renew_at

    def _renewal_time(self, token: Token) -> float | None:
        """Return when to renew early: the margin before the end, and not before half of the time that is left."""
        if self._margin is None or token.expires_at is None:
            return None
        now, end = time.time(), token.expires_at.timestamp()
        return max(end - self._margin, (now + end) / 2)

    def refuse(self, rejected: Credentials) -> RefusalVerdict:
        """Take note of a 401; it means nothing where it is for an older token."""
        with self._lock:
            held = self.held
            if held is None or held.credentials != rejected:
                return RefusalVerdict(is_final=False)
            is_news, self.credentials = self.credentials is not None, None
            age = None if self._is_proven or held.obtained_at is None else self._clock() - held.obtained_at
            if age is None or age > NEW_SECONDS:
                return RefusalVerdict(is_final=False)
            seconds = self._fail(RenewalFailure("the service refused a token as soon as it was new")) if is_news else 0.0
            return RefusalVerdict(is_final=True, cooldown_seconds=seconds)

    def accept(self, credentials: Credentials) -> None:
        """Take note that the service took the token: whatever failed before is over."""
        with self._lock:
            if self.credentials == credentials:
                self._is_proven = True
                self._failures = self.asked = 0

    def lose(self, code: str) -> None:
        """Take note that the exchange of a code had an unknown effect: it is not sent a second time."""
        self._lost_codes.add(_digest(code))

    def is_lost(self, code: str) -> bool:
        """Tell whether the exchange of the code had an unknown effect."""
        return _digest(code) in self._lost_codes

    def fail(self, failure: RenewalFailure) -> float:
        """Take note of a renewal that failed; return the seconds of the cool-down that this begins."""
        with self._lock:
            return self._fail(failure)

    def _fail(self, failure: RenewalFailure) -> float:
        seconds = min(LONGEST_COOLDOWN_SECONDS, self._cooldown * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._failure = failure
        self._rests_until = self._clock() + seconds
        return seconds

    @property
    def rest_seconds(self) -> float:
        """How long no renewal may begin."""
        return max(0.0, self._rests_until - self._clock())

    @property
    def failure(self) -> RenewalFailure | None:
        """Why renewals rest, None where they don't."""
        return self._failure if self.rest_seconds else None


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
