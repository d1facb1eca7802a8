"""Any interleaving of requests, renewals, failures, cancellations and closings, against one store. The test steps the loop.

Time is the test's: the loop, the store and the providers share a clock that moves when a rule says so, in steps in which a holder
that lives extends its lease. So a lease is lost only where a rule takes it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, Final, Literal

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from virtual_loop import Clock

from boardclient import (
    AuthorizationRequest,
    CredentialError,
    Credentials,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    SessionClosedError,
    StoredToken,
    Token,
    TransportError,
)
from boardclient.credentials._stores import AccountRecord, Lease
from boardclient.errors import Effect

LEASE_SECONDS: Final = 5.0
AUTHORIZE_SECONDS: Final = 12.0
SLICE_SECONDS: Final = 1.6  # shorter than a third of the lease, after which its holder extends it
ACCOUNT: Final = "default"
SERVICE: Final = "https://auth.example"

Outcome = Literal["accepted", "refused"]


_renewal: Final[ContextVar[asyncio.Task[Any]]] = ContextVar("renewal")
"""The renewal that the running task belongs to: a callback runs in a task of its own."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop that runs a given number of iterations, on the test's clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._test_clock = clock
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        return self._test_clock()

    def step(self, iterations: int) -> None:
        def tick(left: int) -> None:
            if left > 1:
                self.call_soon(tick, left - 1)
            else:
                self.stop()

        self.call_soon(tick, iterations)
        self.run_forever()


@attrs.define(eq=False)
class Pending:
    """Something that hangs until a rule says what becomes of it."""

    future: asyncio.Future[Any]
    what: str
    """The token of a request, the code of an exchange."""
    renewal: asyncio.Task[Any] | None = None
    """The renewal that a callback or an exchange is a part of."""


class Service:
    """The service's side, and the account of what it was asked."""

    def __init__(self, store: MemoryTokenStore, loop: SteppedLoop) -> None:
        self.store, self.loop = store, loop
        self.requests: list[Pending] = []
        self.callbacks: list[Pending] = []
        self.exchanges: list[Pending] = []
        self.codes = self.tokens = 0
        self.valid: set[str] = set()
        self.expired: list[str] = []
        self.accepted: set[str] = set()
        self.begun: defaultdict[int, list[asyncio.Task[Any]]] = defaultdict(list)
        """The renewals that asked for a code, once for each, by the generation that their token was to follow."""
        self.lost: Counter[asyncio.Task[Any]] = Counter()
        self.failed: set[asyncio.Task[Any]] = set()
        self.wiped: Counter[int] = Counter()
        """How often the store forgot who may renew, by the generation then."""
        self.violations: list[str] = []
        """What was wrong where an exception would have been taken for the application's own."""
        self.troubles = 0
        """What may end a call with an error: failures, and tokens that expired before they were proven."""

    @property
    def account(self) -> AccountRecord:
        return self.store._accounts.get(ACCOUNT, {}).get(SERVICE, AccountRecord())

    @property
    def generation(self) -> int:
        return 0 if self.account.stored is None else self.account.stored.generation

    async def hang(self, queue: list[Pending], pending: Pending) -> Any:
        queue.append(pending)
        try:
            return await pending.future
        finally:
            queue.remove(pending)

    def pending(self, what: str, renewal: asyncio.Task[Any] | None = None) -> Pending:
        return Pending(self.loop.create_future(), what, renewal)

    def expect(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.violations.append(what)

    def note_asked(self, renewal: asyncio.Task[Any]) -> None:
        """Note a requested code, and check that no other renewal is in progress."""
        begun = self.begun[self.generation]
        ended = {task for task in begun if task.cancelled() or task.cancelling() or task in self.failed}
        others = set(begun) - ended - {renewal}
        self.expect(len(others) <= self.wiped[self.generation], "two renewals for one expired token")
        self.expect(begun.count(renewal) == min(self.lost[renewal], 1), "a renewal asked for a code too many")
        begun.append(renewal)


class Session:
    """What the providers see of a session, and its calls: as `AsyncSession` makes them, without retries."""

    timeout = 30.0

    def __init__(self, service: Service, provider: Provider) -> None:
        self.service, self.provider = service, provider
        self.background: set[asyncio.Task[Any]] = set()
        self.calls: set[asyncio.Task[Any]] = set()
        self.is_closed = False
        self.noted: Credentials | None = None

    def check_url(self, url: str, name: str) -> str:
        return url

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self.is_closed:
            work.close()
            raise SessionClosedError("closed")
        context = copy_context()
        task = self.service.loop.create_task(work, context=context)
        context.run(_renewal.set, task)
        self.background.add(task)
        return task

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        code, service = fields["code"], self.service
        service.expect(code not in self.provider.sent, "a code was sent twice")
        self.provider.sent.add(code)
        pending = service.pending(code, _renewal.get())
        outcome: Response | TransportError = await service.hang(service.exchanges, pending)
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    def begin(self) -> None:
        task = self.service.loop.create_task(self._call())
        self.calls.add(task)
        self.provider.calls.append(task)

    async def _call(self) -> Outcome:
        """Walk one request, as `AsyncSession._attempt` does."""
        provider = self.provider
        credentials = await provider.acquire(self)
        if await self._send(credentials) == "accepted":
            return "accepted"
        provider.refused.add(credentials.token)
        renewed = await provider.renew(credentials, self)
        if renewed == credentials:
            return "refused"
        if await self._send(renewed) == "accepted":
            return "accepted"
        provider.refused.add(renewed.token)
        await provider.credentials.note_refused(renewed, self)
        return "refused"

    async def _send(self, credentials: Credentials) -> Outcome:
        self.service.expect(credentials.token not in self.provider.refused, "a request was signed with a refused token")
        outcome: Outcome = await self.service.hang(self.service.requests, self.service.pending(credentials.token))
        if outcome == "accepted" and credentials is not self.noted:
            self.noted = credentials
            self.provider.credentials.note_accepted(credentials)
        return outcome

    def close(self) -> None:
        self.is_closed = True
        for task in [*self.background, *self.calls]:
            task.cancel()


class Provider:
    """A provider, its sessions, and the notifications that it received."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self.service = service
        self.refused: set[str] = set()
        self.sent: set[str] = set()
        self.calls: list[asyncio.Task[Any]] = []
        self.generation = 0
        self.credentials = OAuthCredentials(
            client_id="id",
            client_secret="secret",
            redirect_uri="https://app.example/",
            auth_url=SERVICE,
            authorize=self.authorize,
            store=service.store,
            authorize_timeout=AUTHORIZE_SECONDS,
            lease_seconds=LEASE_SECONDS,
            clock=clock,
        )
        self.acquire, self.renew = self.credentials.acquire, self.credentials.renew
        self.sessions = [Session(service, self)]

    def authorize(self, request: AuthorizationRequest) -> Awaitable[str]:
        service, stored, renewal = self.service, self.service.account.stored, _renewal.get()
        is_alone = not service.wiped.total()  # two holders of a lost lease may look at the store at the same time
        service.expect(not is_alone or request.first_time is (stored is None), "the application was told wrong")
        is_good = stored is not None and stored.token.value in service.valid
        service.expect(not (is_alone and is_good), "a code was asked for beside a good token")
        service.note_asked(renewal)
        return self._code(service.pending("", renewal), service.loop.time() + AUTHORIZE_SECONDS)

    async def _code(self, pending: Pending, ends_at: float) -> str:
        service, renewal = self.service, pending.renewal
        assert renewal is not None
        try:
            answer = await service.hang(service.callbacks, pending)
        except asyncio.CancelledError:
            if service.loop.time() >= ends_at - 0.01:
                service.troubles += 1
                service.failed.add(renewal)
            raise
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


class RenewalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.loop = SteppedLoop(self.clock)
        self.service = Service(MemoryTokenStore(clock=self.clock), self.loop)
        self.providers: list[Provider] = []
        self.published: set[int] = set()
        """The generations that were found in the store."""

    @initialize(sessions=st.lists(st.integers(1, 2), min_size=2, max_size=3), has_token=st.booleans())
    def build(self, sessions: list[int], has_token: bool) -> None:
        if has_token:
            self.service.store._accounts[ACCOUNT] = {SERVICE: AccountRecord(StoredToken(Token("token-1"), 1))}
            self.service.valid.add("token-1")
            self.service.tokens = 1
        for number in sessions:
            provider = Provider(self.service, self.clock)
            provider.sessions *= 0
            provider.sessions += [Session(self.service, provider) for _ in range(number)]
            self.providers.append(provider)

    # --- calls

    @rule(data=st.data(), number=st.integers(1, 4), iterations=st.integers(0, 6))
    def begin(self, data: st.DataObject, number: int, iterations: int) -> None:
        session = data.draw(st.sampled_from([session for provider in self.providers for session in provider.sessions]))
        for _ in range(number):
            session.begin()
        self._step(iterations)

    def _answer(self, pending: Pending) -> None:
        if pending.what in self.service.valid:
            self.service.accepted.add(pending.what)
        self._resolve(pending, "accepted" if pending.what in self.service.valid else "refused")

    @precondition(lambda self: self.service.requests)
    @rule(data=st.data(), iterations=st.integers(0, 6))
    def answer_one(self, data: st.DataObject, iterations: int) -> None:
        self._answer(data.draw(st.sampled_from(self.service.requests)))
        self._step(iterations)

    @precondition(lambda self: self.service.requests)
    @rule(iterations=st.integers(0, 6))
    def answer_all(self, iterations: int) -> None:
        for pending in self.service.requests:
            self._answer(pending)
        self._step(iterations)

    @precondition(lambda self: self.service.valid)
    @rule(iterations=st.integers(0, 6))
    def expire(self, iterations: int) -> None:
        """Let every token expire that the service has given."""
        unproven = self.service.valid - self.service.accepted
        held = [provider.credentials._state.in_use for provider in self.providers]
        # Its call may have been cancelled after the service accepted the token: then the provider takes it for new.
        is_new = any(one is not None and one.obtained_at is not None and not one.is_proven for one in held)
        self.service.troubles += bool(self.service.expired or unproven or is_new)
        self.service.expired += sorted(self.service.valid)
        self.service.valid.clear()
        self._step(iterations)

    @precondition(lambda self: any(not task.done() for provider in self.providers for task in provider.calls))
    @rule(data=st.data(), iterations=st.integers(0, 6))
    def cancel(self, data: st.DataObject, iterations: int) -> None:
        tasks = [task for provider in self.providers for task in provider.calls if not task.done()]
        data.draw(st.sampled_from(tasks)).cancel()
        self._step(iterations)

    # --- renewals

    @precondition(lambda self: self.service.callbacks)
    @rule(data=st.data(), iterations=st.integers(0, 6))
    def give_code(self, data: st.DataObject, iterations: int) -> None:
        self._give_code(data.draw(st.sampled_from(self.service.callbacks)))
        self._step(iterations)

    def _give_code(self, pending: Pending) -> None:
        self.service.codes += 1
        self._resolve(pending, f"code-{self.service.codes}")

    @precondition(lambda self: self.service.callbacks)
    @rule(data=st.data(), answer=st.sampled_from(["", LookupError("the user said no")]), iterations=st.integers(0, 6))
    def give_no_code(self, data: st.DataObject, answer: object, iterations: int) -> None:
        self._fail(data.draw(st.sampled_from(self.service.callbacks)), answer)
        self._step(iterations)

    @precondition(lambda self: self.service.exchanges)
    @rule(data=st.data(), iterations=st.integers(0, 6))
    def give_token(self, data: st.DataObject, iterations: int) -> None:
        self._give_token(data.draw(st.sampled_from(self.service.exchanges)))
        self._step(iterations)

    def _give_token(self, pending: Pending) -> None:
        self.service.tokens += 1
        token = f"token-{self.service.tokens}"
        if self._resolve(pending, Response(200, {}, json.dumps({"access_token": token}).encode())):
            self.service.valid.add(token)

    @precondition(lambda self: self.service.exchanges)
    @rule(data=st.data(), how=st.sampled_from(["refused", "not sent", "lost"]), iterations=st.integers(0, 6))
    def give_no_token(self, data: st.DataObject, how: str, iterations: int) -> None:
        answers = {
            "refused": Response(400, {}, b'{"error":"invalid_grant"}'),
            "not sent": TransportError("no way", "connect", "POST", Effect.NOT_SENT),
            "lost": TransportError("no answer", "receive", "POST", Effect.UNKNOWN),
        }
        self._fail(data.draw(st.sampled_from(self.service.exchanges)), answers[how], is_lost=how == "lost")
        self._step(iterations)

    def _fail(self, pending: Pending, answer: object, *, is_lost: bool = False) -> None:
        assert pending.renewal is not None
        if not self._resolve(pending, answer):
            return
        self.service.lost[pending.renewal] += is_lost
        if not is_lost or self.service.lost[pending.renewal] == 2:
            self.service.troubles += 1
            self.service.failed.add(pending.renewal)

    @precondition(lambda self: self.service.account.lease.holder is not None)
    @rule(iterations=st.integers(0, 6))
    def lose_lease(self, iterations: int) -> None:
        """Let the store forget who may renew."""
        self.service.store._accounts[ACCOUNT] = {SERVICE: attrs.evolve(self.service.account, lease=Lease())}
        self.service.wiped[self.service.generation] += 1
        self._step(iterations)

    # --- sessions and time

    @precondition(lambda self: self.service.callbacks or self.service.exchanges)
    @rule()
    def renew_well(self) -> None:
        """Let the running renewals succeed."""
        for pending in [*self.service.callbacks]:
            self._give_code(pending)
        self._step(8)
        for pending in [*self.service.exchanges]:
            self._give_token(pending)
        self._step(8)

    @rule(data=st.data(), iterations=st.integers(0, 6))
    def close_session(self, data: st.DataObject, iterations: int) -> None:
        """Close a session; another takes its place."""
        provider = data.draw(st.sampled_from(self.providers))
        index = data.draw(st.integers(0, len(provider.sessions) - 1))
        provider.sessions[index].close()
        provider.sessions[index] = Session(self.service, provider)
        self._step(iterations)

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 2.0, 5.0, 13.0, 65.0]))
    def pass_time(self, seconds: float) -> None:
        self._step(20)  # what has begun runs until it waits: a callback's time begins before the callback
        while seconds > 0:
            self.clock.now += min(seconds, SLICE_SECONDS)
            seconds -= SLICE_SECONDS
            self._step(20)

    @rule(iterations=st.sampled_from([1, 2, 3, 5, 20]))
    def go_on(self, iterations: int) -> None:
        self._step(iterations)

    # --- the machine

    def _step(self, iterations: int) -> None:
        if iterations:
            self.loop.step(iterations)

    def _resolve(self, pending: Pending, result: object) -> bool:
        """Say what becomes of something that hangs, unless that was said."""
        if pending.future.done():
            return False
        pending.future.set_result(result)
        return True

    @invariant()
    def one_renewal(self) -> None:
        """However many wait, one renewal is running; a second one is where the store forgot the first."""
        assert len(self.service.callbacks) + len(self.service.exchanges) <= 1 + self.service.wiped.total()

    @invariant()
    def never_back(self) -> None:
        """The token that a provider holds never gets older."""
        if self.service.account.stored is not None:
            self.published.add(self.service.account.stored.generation)
        for provider in self.providers:
            held = provider.credentials._state.in_use
            generation = 0 if held is None else held.stored.generation
            assert generation >= provider.generation
            provider.generation = generation

    @invariant()
    def nothing_unseen(self) -> None:
        """No error is left unretrieved, and each call ends as it may."""
        assert self.loop.problems == []
        assert self.service.violations == []
        for provider in self.providers:
            for task in provider.calls:
                if not task.done() or task.cancelled():
                    continue
                error = task.exception()
                if error is None:
                    assert task.result() == "accepted" or self.service.troubles
                else:
                    assert type(error) is CredentialError, repr(error)
                    assert self.service.troubles, f"a call failed though nothing else did: {error}"

    def teardown(self) -> None:
        try:
            self._settle()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.step(5)
            self.loop.close()

    def _settle(self) -> None:
        """Let everything succeed from now on: no call is left waiting, and the lease is free."""
        for _ in range(60):
            if not asyncio.all_tasks(self.loop):
                break
            for pending in [*self.service.requests]:
                self._answer(pending)
            for pending in [*self.service.callbacks]:
                self._give_code(pending)
            for pending in [*self.service.exchanges]:
                self._give_token(pending)
            self._step(12)
            self.clock.now += 0.25
        self._step(2)
        assert asyncio.all_tasks(self.loop) == set(), "somebody was left waiting"
        self.never_back()
        self.nothing_unseen()
        assert self.service.requests == self.service.callbacks == self.service.exchanges == []
        assert self.service.account.lease.holder is None
        for provider in self.providers:
            assert provider.credentials._renewals == {}
            assert all(task.done() for session in provider.sessions for task in session.background)
        assert len(self.published) <= self.service.tokens


RenewalMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40, derandomize=True)
TestRenewal = RenewalMachine.TestCase
