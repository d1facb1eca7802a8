"""The connections, sessions, paces and jobs that a process keeps for a ledger."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextvars import Context, copy_context
from hashlib import blake2b
from typing import Any, Final, TypeVar

import attrs

from boardclient import AsyncSession
from boardclient._base._environment import optional, required
from boardclient._interface import _operations as operations
from boardclient._pipeline._pace import Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._content import IdSet
from boardclient.bulk._ledger import UnrecordedError
from boardclient.bulk._proof._recognition import RowMarkers
from boardclient.bulk._run import journal_identity
from boardclient.credentials._oauth import OAuthCredentials
from boardclient.distributed._jobs import Job
from boardclient.distributed._token_store import SqlTokenStore
from boardclient.errors import JournalError
from boardclient.store._database import Database
from boardclient.store._ledger import StoredJob, replaced, unrecorded
from boardclient.store._tables import LEDGER, dump_ids, load_ids

T = TypeVar("T")

_KEPT_SECONDS: Final = 10.0
"""How long unused connections and sessions are kept."""


class WorkerProcess:
    """The resources with which a process runs parts of a ledger, on one event loop. They are closed when unused for a while.

    All parts that a process runs share one connection pool, and one pace for each account.
    """

    def __init__(self, ledger: str, *, creates: bool, former: Mapping[str, StoredJob]) -> None:
        self.database = Database(ledger, is_known=not creates)
        self.users = 0
        self.opened: dict[tuple[str, str], Job] = {}
        """The jobs that were opened here, by the requested names and options."""
        self._loop = asyncio.get_running_loop()
        self._used_at = 0.0
        self._file = _file_of(self.database)
        self._creates, self._is_checked = creates, False
        self._sessions: dict[object, AsyncSession] = {}
        self._paces: dict[str, Pace] = {}
        self._bound: dict[str, StoredJob] = {}
        self._former = dict(former)
        """The jobs that this process has used in a file that stood at this path before, and has not met in this one yet."""
        self._binding = asyncio.Lock()
        # A context of its own, since the task outlives the call that starts it and would keep that call's variables.
        self._keeper = self._loop.create_task(self._keep(), name="boardclient worker", context=Context())

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and the path still names its file."""
        return not self._keeper.done() and self._file == _file_of(self.database)

    async def enter(self) -> None:
        """Prepare the database for another user of this worker.

        Raises:
            JournalError: the tables are of another version of boardclient, or there are none.
        """
        if not self._is_checked:
            await (self.database.create(LEDGER) if self._creates else self.database.check(LEDGER))
            self._is_checked, self._file = True, _file_of(self.database)

    @property
    def former(self) -> Mapping[str, StoredJob]:
        """The jobs that the next worker of this path has to check: all if another file stands there now."""
        return self._former if self._file in {None, _file_of(self.database)} else {**self._former, **self._bound}

    def leave(self) -> None:
        """Note that a user has left."""
        self.users -= 1
        self._used_at = self._loop.time()

    async def _keep(self) -> None:
        """Close when unused for a while, or when the loop ends, which cancels this task."""
        try:
            while self.users or self._loop.time() < self._used_at + _KEPT_SECONDS:  # noqa: ASYNC110 -- nothing is waited for
                await asyncio.sleep(_KEPT_SECONDS)
        finally:
            if self._loop.is_closed():  # nothing can be awaited
                self.abandon()
            else:
                for session in self._sessions.values():
                    await session.aclose()
                await self.database.aclose()

    def abandon(self) -> None:
        """Close its threads and connections after its event loop was closed."""
        self.database.abandon()

    def pipeline(self, job: Job, session: AsyncSession | Pipeline | None) -> Pipeline:
        """Return the pipeline of a session, or of one made from the environment, with the shared pace if it has no limiter.

        Raises:
            TypeError: the session is not an AsyncSession.
            ValueError: a variable is not set.
        """
        if session is None:
            session = self._session(job.account)
        elif not isinstance(session, AsyncSession | Pipeline):
            raise TypeError(f"session must be an AsyncSession, not {type(session).__name__}")
        found = session if isinstance(session, Pipeline) else session.cards._pipeline
        # The limiter of a caller counts all its calls, so that a pace beside it would hold the same requests twice.
        if found.limiter is not None:
            return found
        # By account and not by session, since a service limits accounts.
        account = json.dumps(dict(found.identity), sort_keys=True)
        if account not in self._paces:
            self._paces[account] = Pace(shared=job.ledger, account=account)
        return attrs.evolve(found, limiter=self._paces[account])

    def _session(self, account: str | None) -> AsyncSession:
        variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("BOARDCLIENT_"))
        # A digest, since the values are credentials and this key lives as long as the worker.
        key = account, blake2b(repr(variables).encode("utf-8", "surrogateescape")).digest()
        if key not in self._sessions:
            self._sessions[key] = AsyncSession.from_env(None if account is None else self._credentials(account))
        return self._sessions[key]

    def _credentials(self, account: str) -> OAuthCredentials:
        names = ("client_id", "client_secret", "redirect_uri", "auth_url")
        values: dict[str, Any] = dict(zip(names, required(*(f"BOARDCLIENT_{name.upper()}" for name in names)), strict=True))
        store = SqlTokenStore(self.database.where)
        return OAuthCredentials(**values, key=optional("BOARDCLIENT_KEY"), store=store, account=account)

    async def bind(self, job: Job, pipeline: Pipeline) -> StoredJob:
        """Bind a job to a service and account, and read the cards that exist before it. Both are done once.

        Raises:
            JournalError: the ledger can't be used, has no such job, or it belongs to another service, account or board.
            BoardClientError: the board could not be read.
        """
        async with self._binding:  # many first calls at once read the board once
            known = self._bound.get(job.name)
            if known is None or known.identity != _identity(job, pipeline, marker=known.marker):
                known = await self._bind(job, pipeline)
                await self._check_former(job, known, pipeline)
                self._bound[job.name] = known
            return known

    async def _check_former(self, job: Job, known: StoredJob, pipeline: Pipeline) -> None:
        """Check that a file which was put in place of another one has all cards of a job, before anything is sent."""
        former = self._former.get(job.name)
        if former is None:
            return
        if former.secret != known.secret:
            raise replaced(job.ledger)
        if known.marker:
            await check_recorded(self.database, known, job.board_id, pipeline)
        del self._former[job.name]

    async def _bind(self, job: Job, pipeline: Pipeline) -> StoredJob:
        while True:
            found = await self.database.read("SELECT * FROM boardclient_jobs WHERE name = ?", job.name)
            if not found:
                raise JournalError(f"the ledger {job.ledger} has no job {job.name!r}")
            (stored,) = found
            options = json.loads(stored.options)
            identity = _identity(job, pipeline, marker=options["marker"])
            if stored.identity not in {None, identity}:
                raise JournalError(f"the ledger {job.ledger} belongs to another import: {stored.identity} (now {identity})")
            if stored.baseline is not None:
                ids = load_ids(stored.baseline)
                return StoredJob(
                    job=stored.job,
                    secret=bytes(stored.secret),
                    marker=options["marker"],
                    identity=identity,
                    baseline=IdSet(ids),
                    listed_before=len(ids),
                )
            # What another worker stored meanwhile stays: it read the board before it sent anything.
            ids = sorted({card.id for card in await pipeline.call(operations.BOARD_CARDS.request(job.board_id))})
            before = dump_ids(ids)
            statement = "UPDATE boardclient_jobs SET baseline = ?, identity = ? WHERE job = ? AND baseline IS NULL"
            await self.database.change(lambda connection: connection.run(statement, before, identity, stored.job))  # noqa: B023 -- awaited here


async def check_recorded(database: Database, job: StoredJob, board_id: str, pipeline: Pipeline) -> None:
    """Read the board, and check that a ledger is no older copy, which does not have all cards of a job.

    Raises:
        UnrecordedError: it does not have cards of the job that the board shows.
        BoardClientError: the board could not be read.
    """
    cards = await pipeline.call(operations.BOARD_CARDS.request(board_id))
    marked = RowMarkers(True, job.secret).unmade(card for card in cards if card.id not in job.baseline)
    if marked and (unknown := await unrecorded(database, job, marked)):
        raise UnrecordedError(sorted({marked[marker] for marker in unknown}))


def _identity(job: Job, pipeline: Pipeline, *, marker: bool) -> str:
    return json.dumps(journal_identity(pipeline.identity, job.board_id, marker or None), sort_keys=True)


def _file_of(database: Database) -> tuple[int, int] | None:
    """Return what distinguishes a file from one that has its path later."""
    if not database.is_file:
        return None
    try:
        found = os.stat(database.where)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_workers: Final[dict[asyncio.AbstractEventLoop, dict[str, WorkerProcess]]] = {}


@contextlib.asynccontextmanager
async def worker_for(ledger: str, *, creates: bool = False) -> AsyncGenerator[WorkerProcess, None]:
    """Yield the worker of this process for a ledger, which may have to be created.

    Raises:
        JournalError: the ledger can't be used.
    """
    # A process may call `asyncio.run` again and again, and the workers of loops that have ended still have threads.
    for loop in [*_workers]:
        if loop.is_closed():
            for ended in _workers.pop(loop, {}).values():
                ended.abandon()
    of_loop = _workers.setdefault(asyncio.get_running_loop(), {})
    worker = of_loop.get(ledger)
    if worker is None or not worker.is_usable:
        worker = of_loop[ledger] = WorkerProcess(ledger, creates=creates, former={} if worker is None else worker.former)
    worker.users += 1
    try:
        await worker.enter()
        yield worker
    finally:
        worker.leave()


# --- calls from plain functions


class _Loop:
    """An event loop in a thread, for calls from plain functions. All calls of a process share it, and so the worker."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._end = asyncio.Event()
        # A daemon, so that a call that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="boardclient", daemon=True)
        self._thread.start()
        atexit.register(self._close)

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._ended())

    async def _ended(self) -> None:
        await self._end.wait()

    def _close(self) -> None:
        if self.pid == os.getpid():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        # In the context of the caller, to which the spans and log records of the call belong.
        future = asyncio.run_coroutine_threadsafe(_within(copy_context(), work), self._loop)
        try:
            return future.result()
        finally:
            # The caller may have been interrupted, by Ctrl-C or by its engine: nothing more is sent then.
            future.cancel()


async def _within(context: Context, work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.get_running_loop().create_task(work, context=context)


_loop: _Loop | None = None
_lock: Final = threading.Lock()


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the event loop that this process keeps for plain functions."""
    global _loop
    with _lock:
        # A fork has the object, and not the thread that runs the loop.
        if _loop is None or _loop.pid != os.getpid():
            _loop = _Loop()
    return _loop.run(work)
