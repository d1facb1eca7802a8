"""A plain aiohttp client for the embedded service: the package's own client is not what these tests are about."""

from __future__ import annotations

import aiohttp
import attrs
import pytest

from boardclient.testing import BoardService


@attrs.define
class Clock:
    """A clock and a sleep that the test advances."""

    now: float = 1000.0
    slept: list[float] = attrs.field(factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@attrs.define
class Client:
    """Sends requests with the service's credentials."""

    service: BoardService
    http: aiohttp.ClientSession

    async def ask(self, method, path, json=None, **options):
        signed = {"key": self.service.key, "token": self.service.token}
        if json is not None:
            options["json"] = {**signed, **json}
        else:
            options.setdefault("params", signed)
        async with self.http.request(method, self.service.base_url + path, allow_redirects=False, **options) as response:
            response.raw = await response.read()
            return response

    async def made(self, path, **fields):
        response = await self.ask("POST", path, fields)
        return (await response.json())["id"]

    async def home(self):
        return await self.made("/1/lists", name="L", idBoard=await self.made("/1/boards", name="B"))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def service(clock):
    async with BoardService(clock=clock, sleep=clock.sleep) as running:
        yield running


@pytest.fixture
async def client(service):
    # The timeout is far above what any test needs: it ends a test that would hang, and decides nothing.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        yield Client(service, http)
