"""Each fault as a client meets it, and the plan that chooses the calls."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from boardclient.testing import Faults, faults

GONE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


async def create(client, home, name="card"):
    return await client.ask("POST", "/1/cards", {"name": name, "idList": home})


@pytest.mark.parametrize("commit", [False, True])
async def test_status_is_the_response_before_or_after_the_commit(client, service, commit):
    """`status` answers with its status, headers and body; with `commit` the card exists all the same."""
    home = await client.home()
    service.faults.add(faults.status(503, {"X-Why": "test"}, b"sorry", commit=commit), "cards.create")
    response = await create(client, home)
    assert (response.status, response.headers["X-Why"], response.raw) == (503, "test", b"sorry")
    assert len(service.rules.cards) == int(commit)
    assert service.calls[-1].status == 503


@pytest.mark.parametrize(
    "make", [faults.status, lambda code: faults.redirect("/", code), lambda code: faults.foreign_body(b"", "", code)]
)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (100, ValueError),
        (1000, ValueError),
        (True, ValueError),
        ("503", TypeError),
        (5e2, TypeError),
    ],
)
def test_a_status_that_no_response_has_is_refused(make, code, error):
    """A wrong status is an error where it is written, and not a failure of the service when a call meets it."""
    with pytest.raises(error, match="status"):
        make(code)
    assert (make(200).code, make(999).code) == (200, 999)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("reset", [False, True])
async def test_drop_ends_the_connection_before_or_after_the_commit(client, service, commit, reset):
    """`drop` closes or resets the connection without a response, before or after the commit."""
    home = await client.home()
    service.faults.add(faults.drop(commit=commit, reset=reset), "cards.create")
    with pytest.raises(GONE):
        await create(client, home)
    assert len(service.rules.cards) == int(commit)
    assert service.calls[-1].status is None


async def test_delay_answer_waits_after_the_commit(client, service, clock):
    home = await client.home()
    seen = []

    async def sleep(seconds):
        seen.append((seconds, len(service.rules.cards)))

    service.sleep = sleep
    service.faults.add(faults.delay_answer(5), "cards.create")
    assert (await create(client, home)).status == 200
    assert seen == [(5, 1)]


async def test_delay_commit_outlives_its_client(client, service):
    """`delay_commit` commits after its delay, even if the client has left."""
    home = await client.home()
    asleep, wake, committed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def sleep(seconds):
        asleep.set()
        await wake.wait()

    def shape(operation, answer):
        committed.set()
        return answer

    service.sleep, service.rules.shape = sleep, shape
    service.faults.add(faults.delay_commit(5), "cards.create")
    asking = asyncio.create_task(create(client, home))
    await asleep.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not service.rules.cards
    wake.set()
    await committed.wait()
    assert len(service.rules.cards) == 1


@pytest.mark.parametrize("commit", [False, True])
async def test_hang_sends_nothing_until_the_service_stops(client, service, commit):
    home = await client.home()
    service.faults.add(faults.hang(commit=commit), "cards.create")
    asking = asyncio.create_task(create(client, home))
    await service.received("cards.create")
    await service.stop()
    with pytest.raises(GONE):
        await asking
    assert len(service.rules.cards) == int(commit)


async def test_truncated_ends_the_connection_within_the_body(client, service):
    home = await client.home()
    service.faults.add(faults.truncated(), "cards.create")
    with pytest.raises(aiohttp.ClientPayloadError):
        await create(client, home)
    assert len(service.rules.cards) == 1


@pytest.mark.parametrize("commit", [False, True])
async def test_foreign_body_is_sent_in_place_of_the_service_s(client, service, commit):
    """`foreign_body` sends its own status, type, headers and body, and commits only if requested."""
    home = await client.home()
    fault = faults.foreign_body(b"<html>", "text/html", 201, commit=commit, headers={"X-Extra": "1"})
    service.faults.add(fault, "cards.create")
    response = await create(client, home)
    assert (response.status, response.content_type, response.raw) == (201, "text/html", b"<html>")
    assert response.headers["X-Extra"] == "1"
    assert len(service.rules.cards) == int(commit)


async def test_slow_body_waits_before_each_byte(client, service, clock):
    service.faults.add(faults.slow_body(2))
    response = await client.ask("GET", "/1/members/me")
    assert clock.slept == [2] * len(response.raw)
    assert (await response.json())["username"] == "member"


async def test_redirect_answers_with_the_status_and_the_location(client, service):
    service.faults.add(faults.redirect("https://elsewhere.example/", 308))
    response = await client.ask("GET", "/1/members/me")
    assert (response.status, response.headers["Location"]) == (308, "https://elsewhere.example/")


async def test_rate_limit_refuses_what_its_bucket_does_not_hold(client, service, clock):
    """Beyond its burst the limit answers 429 until the bucket refills; `clear` and None remove it."""
    service.faults.rate_limit = faults.rate_limit(0.5, burst=2, retry_after=2)

    async def ask():
        response = await client.ask("GET", "/1/members/me")
        return response.status, response.headers.get("Retry-After")

    assert [await ask() for _ in range(3)] == [(200, None), (200, None), (429, "2")]
    clock.now += 2
    assert [(await ask())[0] for _ in range(2)] == [200, 429]
    assert service.calls[-1].fault is service.faults.rate_limit
    clock.now += 60
    assert [(await ask())[0] for _ in range(3)] == [200, 200, 429]
    service.faults.rate_limit = faults.rate_limit(1)
    assert [await ask() for _ in range(2)] == [(200, None), (429, None)]
    service.faults.rate_limit = faults.rate_limit(10)
    assert [(await ask())[0] for _ in range(11)] == [*[200] * 10, 429]
    clock.now += 0.15
    assert [(await ask())[0] for _ in range(2)] == [200, 429]
    service.faults.clear()
    assert service.faults.rate_limit is None
    service.faults.rate_limit = None
    assert await ask() == (200, None)


@pytest.mark.parametrize(
    ("options", "met"),
    [
        ({}, [1, 2, 3, 4]),
        ({"call": 2}, [2]),
        ({"call": range(2, 4)}, [2, 3]),
        ({"call": iter([1, 4])}, [1, 4]),
        ({"times": 2}, [1, 2]),
        ({"operation": "members.me", "call": range(2, 10), "times": 1}, [2]),
        ({"operation": "cards.get"}, []),
    ],
)
async def test_the_plan_chooses_calls(client, service, options, met):
    """Operation, number and count of calls decide which of them a fault applies to."""
    planned = service.faults.add(faults.status(500), **options)
    answers = [(await client.ask("GET", "/1/members/me")).status for _ in range(4)]
    assert [number for number, status in enumerate(answers, 1) if status == 500] == met
    assert planned.hits == len(met)


async def test_the_first_entry_that_fits_applies(client, service):
    first = service.faults.add(faults.status(500), call=1)
    second = service.faults.add(faults.status(502))
    assert [(await client.ask("GET", "/1/members/me")).status for _ in range(2)] == [500, 502]
    service.faults.remove(second)
    assert (await client.ask("GET", "/1/members/me")).status == 200
    assert service.faults.planned == [first]
    service.faults.clear()
    assert service.faults.planned == []


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match=r"cards\.creat.*cards\.create"):
        Faults().add(faults.drop(), "cards.creat")


@pytest.mark.parametrize("option", ["times", "call"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_fault_that_no_call_would_get_is_refused(option, value, error):
    """Calls are counted from 1. A plan that never applies would make a test pass that shows nothing."""
    plan = Faults()
    with pytest.raises(error, match="call and times"):
        plan.add(faults.drop(), **{option: value})
    for value in ([1, 0], range(3)):
        with pytest.raises(ValueError, match="count from 1"):
            plan.add(faults.drop(), call=value)
    assert plan.planned == []


@pytest.mark.parametrize("fault", [faults.drop, faults.foreign_body, "drop", None, 503])
def test_what_is_no_fault_is_refused(fault):
    """A function that makes a fault, and was not called, is an error where it is planned."""
    plan = Faults()
    with pytest.raises(TypeError, match=r"a fault such as faults\.drop\(\), not "):
        plan.add(fault)
    assert plan.planned == []


async def test_the_plan_has_the_constructors_as_attributes(service):
    """Each function of `faults` is also an attribute of `service.faults`."""
    names = ["status", "drop", "delay_answer", "delay_commit", "hang", "truncated", "foreign_body", "slow_body", "redirect"]
    assert all(getattr(service.faults, name) is getattr(faults, name) for name in names)


async def test_a_fault_may_close_a_connection_that_is_closed(client, service):
    ended = asyncio.Event()

    class Twice:
        async def play(self, stage):
            stage.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            stage.abort()
            stage.close()
            ended.set()

    service.faults.add(Twice())
    with pytest.raises(GONE):
        await client.ask("GET", "/1/members/me")
    await ended.wait()


async def test_an_application_may_write_its_own_fault(client, service):
    class Teapot:
        async def play(self, stage):
            assert stage.commit() is stage.commit()
            await stage.reply(418)

    service.faults.add(Teapot())
    assert (await client.ask("GET", "/1/members/me")).status == 418
