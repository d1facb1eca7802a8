"""Time travel: what takes seconds at the service takes none in a test."""

from __future__ import annotations

import asyncio
import threading

import aiohttp
import pytest

from boardclient.testing import BoardService, faults
from boardclient.testing._http import ServiceClock


async def never(seconds: float) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def service():
    """Run a service whose time the test advances."""
    async with BoardService(clock=lambda: 0.0, sleep=never, token_lifetime=3600) as running:
        yield running


async def test_tokens_expire_when_their_time_is_passed_over(client, service) -> None:
    """`advance` past the lifetime of a token expires it."""
    assert (await client.ask("GET", "/1/members/me")).status == 200
    service.advance(3600)
    assert (await client.ask("GET", "/1/members/me")).status == 401


async def test_a_limit_refills(client, service) -> None:
    """`advance` refills the bucket of a rate limit."""
    service.faults.rate_limit = faults.rate_limit(0.1, retry_after=10)
    assert [(await client.ask("GET", "/1/members/me")).status for _ in range(2)] == [200, 429]
    service.advance(10)
    assert (await client.ask("GET", "/1/members/me")).status == 200


@pytest.mark.parametrize("fault", [faults.delay_commit(60), faults.delay_answer(60), faults.hang(seconds=60)])
async def test_what_is_late_comes_when_its_time_is_passed_over(client, service, fault) -> None:
    """A delayed response comes once `advance` has passed its delay, not before."""
    home = await client.home()
    service.faults.add(fault, "cards.create")
    asking = asyncio.create_task(client.ask("POST", "/1/cards", {"name": "C", "idList": home}))
    await service.received("cards.create")
    await client.ask("GET", "/1/members/me")
    service.advance(59)
    await client.ask("GET", "/1/members/me")
    assert not asking.done()
    service.advance(1)
    service.advance(1)
    if isinstance(fault, faults.Hang):
        with pytest.raises(aiohttp.ClientError):
            await asking
    else:
        assert (await asking).status == 200


async def test_settled_waits_for_a_late_commit_whose_client_left(client, service) -> None:
    """A check for duplicates that does not wait sees nothing yet."""
    home = await client.home()
    await service.settled()
    await client.made("/1/cards", name="C", idList=home)
    service.faults.add(faults.delay_commit(60), "cards.create")
    asking = asyncio.create_task(client.ask("POST", "/1/cards", {"name": "C", "idList": home}))
    await service.received("cards.create", 2)
    asking.cancel()
    service.assert_no_duplicates()
    waiting = asyncio.create_task(service.settled())
    await client.ask("GET", "/1/members/me")
    assert not waiting.done()
    service.advance(60)
    await waiting
    with pytest.raises(AssertionError, match="2 x 'C'"):
        service.assert_no_duplicates()


async def test_settled_does_not_wait_for_what_hangs_forever(client, service) -> None:
    service.faults.add(faults.hang(), "members.me")
    asking = asyncio.create_task(client.ask("GET", "/1/members/me"))
    await service.received("members.me")
    await service.settled()
    asking.cancel()


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_can_only_be_advanced(seconds: float) -> None:
    with pytest.raises(ValueError, match="forward"):
        BoardService().advance(seconds)


async def test_the_clock_adds_what_was_advanced_to_the_real_time() -> None:
    """The time of the clock is the real time plus what was advanced, and `sleep` uses the real one."""
    now, slept = [5.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    clock = ServiceClock(lambda: now[0], sleep)
    await clock.sleep(3)
    clock.advance(2)
    now[0] += 1
    assert (slept, clock()) == ([3], 8.0)


def test_a_sleeper_whose_loop_is_closed_causes_no_error() -> None:
    clock = ServiceClock(lambda: 0.0, never)
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.sleep(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    gone, sleepers = loop, set(clock._sleepers)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    gone.close()
    clock._sleepers.update(sleepers)
    clock.advance(1)


def test_duplicates_are_counted_while_cards_are_created_in_the_service_s_thread() -> None:
    """The service's thread changes what the check reads: neither waits for the other's end, and none fails."""
    with BoardService() as service:
        home = service.seed({"L": [f"card {number}" for number in range(2000)]}).lists["L"]
        stop = threading.Event()

        async def create() -> None:
            async with aiohttp.ClientSession() as http:
                number = 0
                while not stop.is_set():
                    number += 1
                    body = {"key": service.key, "token": service.token, "name": f"new {number}", "idList": home}
                    async with http.post(f"{service.base_url}/1/cards", json=body) as response:
                        assert response.status == 200

        thread = threading.Thread(target=lambda: asyncio.run(create()))
        thread.start()
        try:
            for _ in range(100):
                service.assert_no_duplicates()
        finally:
            stop.set()
            thread.join()
