"""Tokens, the protocol of their stores and its guard, the record of an account, and the store in memory."""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, get_args

import attrs

from boardclient._base._guards import SUPPLIED_SECONDS, supplied
from boardclient._base._redaction import raises_without_frames, takes_secrets, without_frames
from boardclient.errors import CredentialError
from boardclient.models import check_filled

T = TypeVar("T")

_RELEASE_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 0.5
"""The limit for a step that is running when the session closes: it should end, but a store that hangs must not delay closing."""

LeaseState: TypeAlias = Literal["granted", "held", "cooling"]
"""The result of asking for the lease: granted, held by another, or refused until a cool-down is over."""


@takes_secrets
class Token:
    """An access token from the exchange (interface 4.12).

    The repr doesn't show it, and it can't be pickled or copied: a store saves its `value`.

    Args:
        value: The token.
        expires_at: When it ends, aware. None (default) if that is not known.

    Raises:
        ValueError, TypeError: the value is empty or can't be sent, or the date is not aware.
    """

    __slots__ = ("_value", "expires_at")
    _value: Callable[[], str]
    expires_at: datetime | None

    def __init__(self, value: str, expires_at: datetime | None = None) -> None:
        check_filled(value, "value")
        if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.utcoffset() is None):
            raise ValueError("expires_at must be an aware datetime, or None")
        object.__setattr__(self, "_value", lambda: value)  # nothing that looks through objects calls it
        object.__setattr__(self, "expires_at", expires_at)

    @property
    def value(self) -> str:
        """The token."""
        return self._value()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise attrs.exceptions.FrozenInstanceError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and (self.value, self.expires_at) == (other.value, other.expires_at)

    def __hash__(self) -> int:
        return hash((self.value, self.expires_at))

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are not pickled: store the value. Nor are they copied")


def text_of_end(token: Token) -> str | None:
    return None if token.expires_at is None else token.expires_at.isoformat()


@attrs.frozen
class StoredToken:
    """A token in a store.

    Args:
        token: The token.
        generation: The number of the token. It is larger than that of each earlier token and deletion of the account.
        deletion: The generation of the account's last deletion. A store keeps it when the next token is published, so that tokens
            from before and after the deletion can be told apart. For an account that the store did not know it is a number
            before the first token. Comparison ignores it.
    """

    token: Token
    generation: int
    deletion: int = attrs.field(default=0, eq=False)


@attrs.frozen
class LeaseRecord:
    """What a store responds to a request for the lease: the record of the account at that moment.

    Args:
        state: "granted", "held" by another holder, or "cooling" during the cool-down after a failed renewal.
        stored: The token of the account, None if none is stored.
        generation: The number of the account's last token or deletion, 0 for an unknown account.
        cooldown: For how many seconds the cool-down still lasts. 0 (default) if it is not known, or there is none.
    """

    state: LeaseState
    stored: StoredToken | None
    generation: int
    cooldown: float = attrs.field(default=0.0, eq=False)


class TokenStore(Protocol):
    """Keep the tokens of accounts at services, for all tasks, sessions, loops and processes.

    An account has a token, a generation and a lease of its own at each service. Sessions name a service by the address of its
    token exchange.

    Each method is one short, atomic step, and does not wait for another worker. An exception reaches the callers as the cause
    of a `CredentialError`. A method that does not return within 30 seconds fails the call.
    `boardclient.testing.TokenStoreSuite` tests a store.

    `publish` makes renewals safe: it compares and sets the generation. The lease only saves users a second prompt. If it is lost,
    runs out or is granted twice, that costs at most one more authorization code.

    Generations never repeat, not even in a store that begins anew. So they don't begin at 1: those of this package are the
    microseconds since 1970, or one more than the last if that is larger.
    """

    async def read(self, account: str, *, service: str) -> StoredToken | None:
        """Return the token of the account, its generation and that of the last deletion. None if no token is stored."""
        ...

    async def generation(self, account: str, *, service: str) -> int:
        """Return the number of the account's last token or deletion, 0 for an unknown account."""
        ...

    async def publish(self, account: str, token: Token, after: int, *, service: str) -> StoredToken | None:
        """Keep the token under a new generation, and return it. Return None if the generation is not `after`.

        It does not matter who has the lease. A cool-down of the account ends.

        Args:
            account: The account whose token it is.
            token: The token to keep.
            after: The generation that the token follows, 0 for the first one.
            service: The service that the token is for.
        """
        ...

    async def delete(self, account: str, *, service: str) -> None:
        """Delete the token, raise the generation, and end a lease or cool-down.

        From then on `read` returns None. Generations never repeat, so a renewal that began before the deletion can't publish.
        """
        ...

    async def lease(self, account: str, holder: str, seconds: float, *, service: str) -> LeaseRecord:
        """Grant `holder` the right to renew for so many seconds from now.

        Return the record of the account, read in the same step. Its state is "granted" if no holder has the lease, if it ran out,
        or if `holder` has it, whose time begins again. It is "held" if another holder has it, and "cooling" during the cool-down
        after a failed renewal.

        Args:
            account: The account whose token is to be renewed.
            holder: A text that names the worker, and is different for each renewal.
            seconds: How long the lease lasts unless `holder` gets it again.
            service: The service whose token is to be renewed.
        """
        ...

    async def release(self, account: str, holder: str, cooldown: float = 0.0, *, service: str) -> None:
        """End the lease of `holder`, and grant none for `cooldown` seconds.

        Another holder's lease stays as it is. If the lease ran out and no other holder took it, the cool-down may begin or not.

        Args:
            account: The account of the lease.
            holder: The text that `lease` was called with.
            cooldown: The seconds from now in which no holder gets the lease. 0 (default): the next one gets it at once.
            service: The service of the lease.
        """
        ...


@attrs.frozen
class Lease:
    """The right to renew, from `since` until just before `until`. Without a holder it is a cool-down, or none."""

    holder: str | None = None
    since: float = 0.0
    until: float = 0.0

    def is_running(self, now: float) -> bool:
        """Return True if it runs now. A clock that is set back to before `since` ends it too."""
        return self.since <= now < self.until


@attrs.frozen
class AccountRecord:
    """The record of one account at one service.

    Each method returns the result of a step and the record after it, which is the record itself if nothing changed.

    `deletion` is the generation of the last deletion, 0 for none. It keeps generations from repeating, so a renewal that began
    before the deletion can't publish after it.
    """

    stored: StoredToken | None = None
    lease: Lease = Lease()
    deletion: int = 0

    @property
    def generation(self) -> int:
        return self.deletion if self.stored is None else self.stored.generation

    def publish(self, now: float, token: Token, after: int) -> tuple[StoredToken | None, AccountRecord]:
        """Keep the token if the generation is `after`, whatever the lease. This ends a cool-down."""
        if after != self.generation:
            return None, self
        generation = _next_generation(after)
        # An unknown account may have been signed out in a store that is gone: it begins as if that had just happened here.
        stored = StoredToken(token, generation, self.deletion if after else generation - 1)
        lease = Lease() if self.lease.holder is None else self.lease
        return stored, AccountRecord(stored, lease, stored.deletion)

    def delete(self, now: float) -> tuple[None, AccountRecord]:
        """Drop the token, and end the lease or cool-down."""
        return None, AccountRecord(deletion=_next_generation(self.generation))

    def request_lease(self, now: float, holder: str, seconds: float) -> tuple[LeaseRecord, AccountRecord]:
        """Grant the lease unless another holder has it, or a cool-down runs."""
        if self.lease.is_running(now) and self.lease.holder != holder:
            if self.lease.holder is not None:
                return LeaseRecord("held", self.stored, self.generation), self
            return LeaseRecord("cooling", self.stored, self.generation, self.lease.until - now), self
        leased = attrs.evolve(self, lease=Lease(holder, now, now + seconds))
        return LeaseRecord("granted", self.stored, self.generation), leased

    def release(self, now: float, holder: str, cooldown: float) -> tuple[None, AccountRecord]:
        """End the holder's lease, even one that ran out, and begin a cool-down."""
        if self.lease.holder != holder:
            return None, self
        return None, attrs.evolve(self, lease=Lease(None, now, now + cooldown))

    def to_row(self) -> tuple[object, ...]:
        token = (None, None) if self.stored is None else (self.stored.token.value, text_of_end(self.stored.token))
        return (self.generation, self.deletion, *token, self.lease.holder, self.lease.since, self.lease.until)

    @classmethod
    def from_row(
        cls, generation: Any, deletion: Any, token: Any, expires_at: Any, holder: str | None, since: Any, until: Any
    ) -> AccountRecord:
        """Return the record of a row.

        Raises:
            TypeError, ValueError, OverflowError: the row is damaged.
        """
        ends = None if expires_at is None else datetime.fromisoformat(expires_at)
        stored = None if token is None else StoredToken(Token(token, ends), generation, deletion)
        record = cls(stored, Lease(holder, float(since), float(until)), deletion)
        if not 0 <= deletion <= generation or record.generation != generation:  # a row that only lacks its token is damaged
            raise ValueError("no generation")
        return record


def _next_generation(last: int) -> int:
    """Return a number that no earlier store of this account has used, unless clocks were set back."""
    return max(last + 1, time.time_ns() // 1000)


Change: TypeAlias = Callable[[AccountRecord, float], tuple[T, AccountRecord]]
"""A step on a record at a time. The time is taken when no other step can change the record."""

Records: TypeAlias = Mapping[str, AccountRecord]
"""The records of one account by service. That of no service, "", is an earlier version's, or of a caller who named none."""


def unchanged(known: AccountRecord, now: float) -> tuple[AccountRecord, AccountRecord]:
    """Return the record: the step that only reads."""
    return known, known


def takes_over(records: Records, service: str | None) -> bool:
    """Return True if a step for the service takes over the record of no service, which a read has to write as well."""
    return bool(service) and service not in records and "" in records


def changed(records: Records, service: str | None, change: Change[T], now: float) -> tuple[T, Records]:
    """Do a step on the record of a service, and return its result and the records after it: the same object if none changed."""
    # Three cases: a caller who names no service means that of the account's last token; a service that has a record uses it; and
    # one that has none takes over the record of no service, if there is one. Then it is no other's.
    if service is None:
        service = max(records, key=lambda name: records[name].generation, default="")
    origin = service if service in records else ""
    known = records.get(origin, AccountRecord())
    result, after = change(known, now)
    if after is known and not takes_over(records, service):
        return result, records
    return result, {**{name: record for name, record in records.items() if name != origin}, service: after}


class AccountStore(abc.ABC):
    """The methods of a `TokenStore` over records of accounts. Subclasses change those of an account.

    Without `service` a method is about the service of the account's last token.
    """

    @abc.abstractmethod
    async def _change(self, account: str, service: str | None, change: Change[T]) -> T: ...

    async def read(self, account: str, *, service: str | None = None) -> StoredToken | None:
        """Return the token of the account, None if none is stored."""
        return (await self._change(account, service, unchanged)).stored

    async def generation(self, account: str, *, service: str | None = None) -> int:
        """Return the number of the account's last token or deletion, 0 for an unknown account."""
        return (await self._change(account, service, unchanged)).generation

    @raises_without_frames
    async def publish(self, account: str, token: Token, after: int, *, service: str | None = None) -> StoredToken | None:
        """Keep the token under a new generation, and return it. Return None if the generation is not `after`."""
        return await self._change(account, service, partial(AccountRecord.publish, token=token, after=after))

    async def delete(self, account: str, *, service: str | None = None) -> None:
        """Delete the token of the account. A renewal that began before does not bring it back."""
        await self._change(account, service, AccountRecord.delete)

    async def lease(self, account: str, holder: str, seconds: float, *, service: str | None = None) -> LeaseRecord:
        """Grant `holder` the right to renew for so many seconds, unless another has it."""
        return await self._change(account, service, partial(AccountRecord.request_lease, holder=holder, seconds=seconds))

    async def release(self, account: str, holder: str, cooldown: float = 0.0, *, service: str | None = None) -> None:
        """End the lease of `holder`, and begin a cool-down of so many seconds.

        Another holder's lease stays as it is.
        """
        await self._change(account, service, partial(AccountRecord.release, holder=holder, cooldown=cooldown))


class MemoryTokenStore(AccountStore):
    """Keep tokens in memory, for all threads and event loops of one process.

    Sessions that share the store share renewals. A forked process has a copy of its own.

    Args:
        clock: A function that returns seconds, by default `time.time`. Only differences count.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: dict[str, Records] = {}
        self._lock = threading.Lock()

    async def _change(self, account: str, service: str | None, change: Change[T]) -> T:
        with self._lock:
            known = self._accounts.get(account, {})
            result, after = changed(known, service, change, self._clock())
            if after is not known:
                self._accounts[account] = after
        return result

    def __repr__(self) -> str:
        return f"MemoryTokenStore(accounts={len(self._accounts)})"


# --- the guard of an application's store


def _is_stored(value: Any) -> bool:
    return value is None or (isinstance(value, StoredToken) and isinstance(value.token, Token))


def _is_leased(value: Any) -> bool:
    is_record = isinstance(value, LeaseRecord) and value.state in get_args(LeaseState)
    is_whole = is_record and isinstance(value.generation, int) and isinstance(value.cooldown, int | float)
    return is_whole and _is_stored(value.stored)


_RESULTS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "read": (_is_stored, "a StoredToken or None"),
    "generation": (lambda value: isinstance(value, int), "an int"),
    "publish": (_is_stored, "a StoredToken or None"),
    "lease": (_is_leased, "a LeaseRecord"),
}
"""What the methods of a store return, in code and in words. Of the others' results only the truth counts."""


@attrs.frozen
class GuardedStore:
    """The steps at a store for one account at one service. A step that fails raises a `CredentialError`."""

    store: TokenStore = attrs.field(eq=id)
    account: str
    service: str

    async def read(self) -> StoredToken | None:
        stored: StoredToken | None = await self._step("read")
        return stored

    async def generation(self) -> int:
        generation: int = await self._step("generation")
        return generation

    async def publish(self, token: Token, after: int) -> StoredToken | None:
        step = self._step("publish", token, after, grace_seconds=_GRACE_SECONDS)
        del token  # the frame stays with an error
        stored: StoredToken | None = await step
        return stored

    async def delete(self) -> None:
        await self._step("delete")

    async def lease(self, holder: str, seconds: float, *, grace_seconds: float = _GRACE_SECONDS) -> LeaseRecord:
        record: LeaseRecord = await self._step("lease", holder, seconds, grace_seconds=grace_seconds)
        return record

    async def release(self, holder: str, cooldown: float = 0.0) -> None:
        """Release the lease, within a second. If that fails, the lease runs out by itself."""
        with contextlib.suppress(CredentialError):
            await self._step("release", holder, cooldown, seconds=_RELEASE_SECONDS, grace_seconds=_GRACE_SECONDS)

    async def _step(self, name: str, *arguments: object, seconds: float = SUPPLIED_SECONDS, grace_seconds: float = 0.0) -> Any:
        is_valid, expected = _RESULTS.get(name, (lambda _: True, ""))
        calling = supplied(
            f"the token store failed: {name}",
            partial(getattr(self.store, name), service=self.service),
            self.account,
            *arguments,
            is_valid=is_valid,
            expected=expected,
            seconds=seconds,
            grace_seconds=grace_seconds,
        )
        del arguments
        try:
            return await calling
        except CredentialError as error:
            failure = without_frames(error)
        raise failure
