"""What tests of renewals share: an application whose consent the test controls, and a store that takes its time."""

from __future__ import annotations

import asyncio
from typing import Any

from virtual_loop import Clock

from boardclient import AuthorizationRequest, MemoryTokenStore, OAuthCredentials
from boardclient.testing import BoardService


class Consent:
    """An application's `authorize`, which the test may hold up or let fail, and which keeps what it was asked and gave."""

    def __init__(self, service: BoardService) -> None:
        self.service = service
        self.asked: list[AuthorizationRequest] = []
        self.codes: list[str] = []
        self.began, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.error: BaseException | None = None
        self.cancelled = 0

    async def __call__(self, request: AuthorizationRequest) -> str:
        self.asked.append(request)
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        self.codes.append(self.service.new_code())
        return self.codes[-1]

    async def reached(self) -> None:
        """Wait until the provider is asked."""
        async with asyncio.timeout(60):
            await self.began.wait()

    def hold_up(self) -> None:
        """Make the next request for a code wait for `open`."""
        self.began.clear()
        self.open.clear()


class SteppingStore(MemoryTokenStore):
    """A store each of whose steps takes a few steps of the event loop, before and after."""

    async def _change(self, account: str, service: str | None, change: Any) -> Any:
        await _steps(2)
        result = await super()._change(account, service, change)
        await _steps(2)
        return result


async def _steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def tasks_left() -> list[str]:
    """Name the running tasks that are neither the running one nor the service's."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() if task is not asyncio.current_task()]  # type: ignore[union-attr]  # -- tasks run coroutines
    return [name for name in names if not name.startswith("RequestHandler")]


def exchanges(service: BoardService) -> int:
    return len(service.calls_of("token.exchange"))


def refusals(service: BoardService) -> int:
    return [call.status for call in service.calls].count(401)


def is_sent(service: BoardService) -> tuple[int, int]:
    """Count what the service got, exchanges apart."""
    return len(service.calls) - exchanges(service), exchanges(service)


def timed(service: BoardService, consent: Any, clock: Clock, **options: Any) -> OAuthCredentials:
    """Build credentials whose cool-downs and leases are on the test's clock."""
    options.setdefault("store", MemoryTokenStore(clock=clock))
    return service.oauth_credentials(authorize=consent, clock=clock, **options)
