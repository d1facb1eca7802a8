"""One pace for all processes that use the same credentials, through a database.

One `Permits` object, which is stored in the database, searches for the limit. Each process requests starts a moment ahead, and
reports the results of earlier ones. Until the first refusal it requests none, and grows from its part of the first burst.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import zlib
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final, NamedTuple

import attrs
from cattrs import Converter
from cattrs.strategies import configure_tagged_union

from boardclient._interface._responses import status_of
from boardclient._pipeline._pace._evidence import Evidence
from boardclient._pipeline._pace._permits import FIRST_CONCURRENCY, REST_SECONDS, Permits
from boardclient._pipeline._pace._phases import Ordinary, Phase
from boardclient._pipeline._pace._timing import PacedAttempt
from boardclient._version import __version__
from boardclient.errors import JournalError
from boardclient.store._connection import Connection
from boardclient.store._database import Database, Tables
from boardclient.store._location import checked_location

_AHEAD: Final = 0.2
"""How many seconds ahead starts are granted to two processes, longer to more of them. A process asks twice in that time."""
_LEASE: Final = 5.0
"""The seconds without a message after which a process counts as dead."""
_REST: Final = 1.0
"""The seconds between two messages of a process that has nothing to request or report."""
_FORGET: Final = 30.0
"""The seconds without any process after which the limit that was found is too old to be used."""
_MOST: Final = 10**6
"""The largest number of attempts in flight of a group. Each process also has its own."""

_log: Final = logging.getLogger("boardclient")
_TABLES: Final = Tables(
    ("CREATE TABLE IF NOT EXISTS boardclient_paces (name TEXT PRIMARY KEY, version TEXT NOT NULL, state {bytes})",)
)
_EMPTY: Final = "INSERT INTO boardclient_paces (name, version) VALUES (?, '') ON CONFLICT DO NOTHING"

Result = tuple[int | None, float | None, float]
"""Status, Retry-After and duration of an attempt."""


@attrs.define
class _Member:
    """A process, and the attempts granted to it that have not ended."""

    seen_at: float
    attempts: list[PacedAttempt] = attrs.field(factory=list)


@attrs.define
class Message:
    """What a process reports and requests. `unended` are the attempts that it still has."""

    started: int = 0
    """How many attempts it started without a grant, since the last message."""
    refused: int = 0
    """How many of those were refused."""
    retry_after: float | None = None
    ended: dict[int, Result | None] = attrs.field(factory=dict)
    unended: set[int] = attrs.field(factory=set)
    wanted: int = 0
    begun: tuple[int, float] = (0, 0.0)
    """How many attempts it started without a grant since its last rest, and for how many seconds."""
    is_busy: bool = False
    waiting: int = 0
    is_rested: bool = False
    """Whether the attempt that waits came after a rest of the process."""
    leaves: bool = False


class Answer(NamedTuple):
    """What a process may start, and the state of the search: `permits` is None until a refusal."""

    granted: list[PacedAttempt]
    now: float
    members: int
    permits: Permits | None
    ahead: float


@attrs.define
class Group:
    """The processes that share a pace, and their permits. The database holds them, on whose clock all times are."""

    moment: float = 0.0
    """The time until which starts are granted. The permits live in it: a pause begins after the last granted start."""
    ahead: float = _AHEAD
    started: int = 0
    evidence: Evidence = attrs.field(factory=Evidence)
    """When attempts began until the first refusal."""
    busy_at: float = 0.0
    heard_at: float = 0.0
    """When a process last sent a message."""
    permits: Permits | None = None
    members: dict[str, _Member] = attrs.field(factory=dict)

    def answer_to(self, name: str, now: float, message: Message) -> Answer:
        """Take the message of a process, and grant it its share of the starts that are due soon."""
        if now - self.heard_at > _FORGET:
            self._forget(now)
        self.heard_at = now
        # What a dead process had in flight would count against the others for ever.
        for other in [other for other, member in self.members.items() if now - member.seen_at > _LEASE]:
            self._end(self.members.pop(other), Message())
        if message.leaves:
            self._end(self.members.pop(name, _Member(now)), Message())
            return Answer([], now, len(self.members), self.permits, self.ahead)
        member = self.members.setdefault(name, _Member(now))
        member.seen_at = now
        self.started += message.started
        sent, seconds = message.begun
        if sent and now - seconds > self.busy_at + REST_SECONDS:  # nobody else was busy
            self.evidence.begin_again(self.started - sent, now - seconds)
        self.busy_at = now if message.is_busy else self.busy_at
        self.ahead = _AHEAD * max(1.0, math.sqrt(len(self.members) / 2))
        self.moment = max(self.moment, now + self.ahead)
        permits = self.permits
        # Three cases: nothing was refused yet, this message has the first refusal of the group, or the search has begun.
        if permits is None and message.refused:
            permits = self.permits = Permits.begin(None, _MOST, finds_number=False)
            permits.take_over(self.started, self.evidence, now, message.retry_after, seconds=2 * self.ahead)
        elif permits is not None:
            permits.add_earlier(message.started, message.refused)
        granted: list[PacedAttempt] = []
        if permits is not None:
            self._end(member, message)  # before the grants, since what has ended is no longer in flight
            granted = self._grants(permits, now, message)
            member.attempts += granted
        return Answer(granted, now, len(self.members), permits, self.ahead)

    def _grants(self, permits: Permits, now: float, message: Message) -> list[PacedAttempt]:
        """Start the attempts that are due soon, up to the share of a process."""
        granted: list[PacedAttempt] = []
        # Rounded up, or a low limit would give a start to nobody.
        share = math.ceil(min(permits.rate * self.ahead, permits.concurrency) / len(self.members))
        while len(granted) < min(share, message.wanted) and (due := permits.next_start()) <= self.moment:
            granted.append(permits.start(max(now, due)))
        if not granted and message.waiting == 1 and (due := permits.lone_start(is_rested=message.is_rested)) <= self.moment:
            granted.append(permits.start(max(now, due)))
        return granted

    def _forget(self, now: float) -> None:
        """Begin anew after a time without messages, unless the service has asked for a pause that is not over."""
        permits = self.permits
        if permits is None or permits.asked_until <= now:
            self.permits, self.members, self.started, self.evidence = None, {}, 0, Evidence()

    def _end(self, member: _Member, message: Message) -> None:
        """End the attempts that a process no longer has."""
        permits, attempts = self.permits, member.attempts
        member.attempts = [attempt for attempt in attempts if attempt.serial in message.unended]
        for attempt in attempts:
            assert permits is not None  # noqa: S101 -- it granted them
            if attempt.serial in message.unended:
                continue
            if attempt.serial not in message.ended:
                permits.cancel(attempt)
                continue
            result = message.ended[attempt.serial]
            if result is not None:
                status, retry_after, seconds = result
                # An attempt takes as long as the permits have to wait for its result.
                permits.report(attempt, self.moment, status, retry_after, seconds + 2 * self.ahead)
            permits.end(attempt)


_converter: Final = Converter(detailed_validation=False, omit_if_default=True)
for _union in (Ordinary, Phase):
    configure_tagged_union(_union, _converter)


def dump(group: Group) -> bytes:
    return zlib.compress(json.dumps(_converter.unstructure(group)).encode(), 1)


def load(stored: bytes) -> Group:
    """Return a group that was stored.

    Raises:
        Exception: it is damaged.
    """
    return _converter.structure(json.loads(zlib.decompress(stored)), Group)


class Store:
    """The row of a group in a database, for one event loop."""

    def __init__(self, ledger: str | os.PathLike[str], name: str) -> None:
        self._database = Database(ledger, is_durable=False)
        self._name = name
        self._is_ready = False

    async def send(self, name: str, message: Message) -> Answer:
        """Pass a message to the group, and store the changed group.

        Raises:
            JournalError: the database can't be used.
        """
        if not self._is_ready:
            await self._database.create(_TABLES)
        answer = await self._database.change(partial(self._step, name, message), is_repeatable=False)
        self._is_ready = True
        return answer

    def _step(self, name: str, message: Message, connection: Connection) -> Answer:
        if not self._is_ready:
            connection.run(_EMPTY, self._name)
        row = connection.one("SELECT version, state FROM boardclient_paces WHERE name = ? {for update}", self._name)
        now = connection.now()  # under the lock: an earlier time may be before another process's last grant
        group = Group()
        if row.version == __version__:
            with contextlib.suppress(Exception):  # it is damaged: begin anew
                group = load(row.state)
        answer = group.answer_to(name, now, message)
        of_name = "UPDATE boardclient_paces SET version = ?, state = ? WHERE name = ?"
        connection.run(of_name, __version__, dump(group), self._name)
        return answer

    async def aclose(self) -> None:
        await self._database.aclose()


class SharedPermits:
    """Decides when the attempts of this process may start, as a `Permits` does. Owned by a `Pace`.

    It exchanges messages with its group while attempts wait or are in flight. `waiting` returns how many wait, `wake` lets those
    start that may, and `fail` ends the wait of all.
    """

    def __init__(
        self,
        ledger: str | os.PathLike[str],
        group: str,
        most: int,
        *,
        clock: Callable[[], float],
        waiting: Callable[[], int],
        is_rested: Callable[[], bool],
        wake: Callable[[], object],
        fail: Callable[[Exception], object],
    ) -> None:
        checked_location(ledger)
        self._ledger, self._group = ledger, group
        self._most = most
        self._clock, self._waiting, self._wake, self._fail = clock, waiting, wake, fail
        self._is_rested = is_rested
        self._name = secrets.token_hex(8)
        self._own = Permits.begin(None, most)
        """Decides until the group's first refusal."""
        self._found: Permits | None = None
        """The group's, as it was at the last message."""
        self._offset = 0.0
        """What has to be added to the database's time to get this process's."""
        self._granted: deque[PacedAttempt] = deque()
        self._running: dict[int, PacedAttempt] = {}
        self._results: dict[int, Result] = {}
        self._ended: dict[int, Result | None] = {}
        self._started = self._refused = self._used = 0
        """Since the last message: attempts that `_own` started, how many of them were refused, and granted ones that started."""
        self._retry_after: float | None = None
        self._is_known = False
        self._asked_at = -math.inf
        self._ahead = _AHEAD
        self._task: asyncio.Task[None] | None = None
        self._changed, self._hurry = asyncio.Event(), asyncio.Event()

    # --- as permits

    @property
    def _shown(self) -> Permits:
        return self._found or self._own

    @property
    def rate(self) -> float:
        return self._shown.rate

    @property
    def limit(self) -> float | None:
        return self._shown.limit

    @property
    def concurrency(self) -> int:
        return self._shown.concurrency

    @property
    def in_flight(self) -> int:
        return self._own.in_flight + len(self._running)

    @property
    def asked_until(self) -> float:
        return self._own.asked_until if self._found is None else self._found.asked_until + self._offset

    @property
    def paused_until(self) -> float:
        return self._own.paused_until if self._found is None else self._found.paused_until + self._offset

    def next_start(self) -> float:
        """Return the time at which an attempt may start. It is infinite until the group has granted one."""
        # Four cases: as many in flight as this process may have, a start was granted, no process has met a limit yet, or the
        # group has to be asked.
        if self.in_flight >= self._most:
            return math.inf
        if self._granted:
            return self._granted[0].started_at + self._offset
        if self._is_known and self._found is None:
            return self._own.next_start()
        self._ask()
        return math.inf

    def lone_start(self, *, is_rested: bool) -> float:
        """Return when the only waiting attempt may start. After the first refusal the group decides."""
        return self._own.lone_start(is_rested=is_rested) if self._is_known and self._found is None else math.inf

    def start(self, now: float) -> PacedAttempt:
        if not self._granted:
            self._started += 1
            self._begin()
            return self._own.start(now)
        attempt = self._granted.popleft()
        self._running[attempt.serial] = attempt
        self._used += 1
        return attempt

    def end(self, attempt: PacedAttempt) -> None:
        if self._is_own(attempt):
            self._own.end(attempt)
            return
        del self._running[attempt.serial]
        self._ended[attempt.serial] = self._results.pop(attempt.serial, None)
        self._ask()

    def cancel(self, attempt: PacedAttempt) -> None:
        if self._is_own(attempt):
            self._started -= 1
            self._own.cancel(attempt)
        else:
            del self._running[attempt.serial]

    def report(self, attempt: PacedAttempt, now: float, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Note the result of an attempt. A refusal is reported to the group at once."""
        result = (status, retry_after, seconds)
        is_refused = status is not None and status_of(status).is_throttling
        if self._is_own(attempt):
            self._own.report(attempt, now, *result)
            if is_refused:
                self._refused, self._retry_after = self._refused + 1, retry_after
        else:
            self._results[attempt.serial] = result
        if is_refused:
            self._hurry.set()
            self._ask()

    def _is_own(self, attempt: PacedAttempt) -> bool:
        return self._running.get(attempt.serial) is not attempt

    # --- messages

    def _ask(self) -> None:
        """Exchange messages soon."""
        self._begin()
        self._changed.set()

    def _begin(self) -> None:
        """Start to exchange messages, unless this process does so already."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._changed, self._hurry = asyncio.Event(), asyncio.Event()
            self._task = loop.create_task(self._follow(), name="boardclient shared pace", context=Context())

    @property
    def _is_needed(self) -> bool:
        return bool(self._waiting() or self.in_flight or self._ended or self._started or self._granted)

    async def _follow(self) -> None:
        """Exchange messages as long as the pace is used, and then leave the group."""
        loop, is_down = asyncio.get_running_loop(), False
        async with contextlib.aclosing(Store(self._ledger, self._group)) as store:
            try:
                while self._is_needed:
                    self._changed.clear()
                    self._hurry.clear()
                    try:
                        await self._send_message(store)
                        is_down = False
                    except JournalError as error:
                        if not self._is_known:  # it may never work
                            self._fail(error)
                            break
                        level = logging.DEBUG if is_down else logging.WARNING
                        _log.log(level, "%s. Attempts wait until it can be used again", error)
                        is_down = True
                    self._wake()
                    await _wait(self._changed, _REST)
                    await _wait(self._hurry, self._asked_at + self._ahead / 2 - self._clock())
            finally:
                self._task = None  # while this one closes the store, another one can be begun
                # The others need not wait until it counts as dead. Nothing can be awaited if the loop was closed.
                if self._is_known and not (is_down or loop.is_closed()):
                    with contextlib.suppress(JournalError, TimeoutError):
                        async with asyncio.timeout(_REST):
                            await store.send(self._name, Message(leaves=True))

    async def _send_message(self, store: Store) -> None:
        now = self._clock()
        while self._granted and self._granted[0].started_at + self._offset < now - self._ahead:
            self._granted.popleft()  # nothing waited for it
        wanted = max(0, self._waiting() + 2 * self._used - len(self._granted))
        unended = {*self._running, *(attempt.serial for attempt in self._granted)}
        told = self._started, self._refused, self._retry_after, dict(self._ended), unended, wanted
        message = Message(
            *told,
            begun=self._own.begun(now),
            is_busy=self._own.in_flight > 0,
            waiting=self._waiting(),
            is_rested=self._is_rested(),
        )
        self._asked_at, self._used = now, 0
        answer = await store.send(self._name, message)
        for serial in message.ended:
            del self._ended[serial]
        self._started -= message.started
        self._refused -= message.refused
        if not self._is_known and answer.permits is None:
            self._own = Permits.begin(None, self._most, max(1, FIRST_CONCURRENCY // answer.members))
        self._is_known, self._found, self._ahead = True, answer.permits, answer.ahead
        self._offset = self._clock() - answer.now
        self._granted.extend(answer.granted)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, which the timer sets at the latest."""
    timer = asyncio.get_running_loop().call_later(max(0.0, seconds), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
