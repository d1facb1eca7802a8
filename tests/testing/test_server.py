"""The service's HTTP face over real sockets."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from boardclient import ApiError, AuthorizationRequest, BulkProgress, CardDraft, FileTokenStore
from boardclient.testing import BoardService, faults, playground


async def test_records_each_call(client, service):
    """Each request is recorded with operation, number, path, query, body, status and fault."""
    await client.ask("POST", "/1/boards", {"name": "B"})
    await client.ask("POST", "/1/boards", {})
    await client.ask("GET", "/1/cards/a%2Fb")
    first, second, third = service.calls
    assert (first.operation, first.number, first.method, first.path, first.status, first.fault) == (
        "boards.create",
        1,
        "POST",
        "/1/boards",
        200,
        None,
    )
    assert first.body == {"name": "B", "key": service.key, "token": service.token}
    assert (second.number, second.status) == (2, 400)
    assert (third.operation, third.number, third.path, third.status) == ("cards.get", 1, "/1/cards/a%2Fb", 404)
    assert third.query == {"key": service.key, "token": service.token}
    assert first.connection == second.connection == third.connection
    assert first.headers["user-agent"].startswith("Python")
    assert service.calls_of("cards.get") == [third]


async def test_exchanges_codes_at_the_auth_url_only(client, service):
    """A code is exchanged at the path of the auth URL, and nowhere else."""

    def form():
        return {
            "client_id": service.client_id,
            "client_secret": service.client_secret,
            "code": service.new_code(),
            "redirect_uri": service.redirect_uri,
        }

    async with client.http.post(service.auth_url + "/1/OAuthGetAccessToken", data=form()) as response:
        token = (await response.json())["access_token"]
    async with client.http.post(service.base_url + "/1/OAuthGetAccessToken", data=form()) as response:
        assert response.status == 401
    async with client.http.post(service.auth_url + "/1/OAuthGetAccessToken", json=form()) as response:
        assert response.status == 400
    async with client.http.get(service.base_url + "/1/members/me", params={"token": token}) as response:
        assert response.status == 200
    assert service.calls[0].operation == "token.exchange"
    assert service.calls[0].body["client_id"] == service.client_id


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"{", "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 200_000, "application/json"),
        (b"name=B", "text/plain"),
    ],
    ids=["cut", "raw", "nested", "plain"],
)
async def test_refuses_a_body_that_it_cannot_read(client, service, data, kind):
    """A body that is not a JSON object is refused with 400, and recorded as it came."""
    signed = {"key": service.key, "token": service.token}
    response = await client.ask("POST", "/1/boards", data=data, headers={"Content-Type": kind}, params=signed)
    assert response.status == 400
    assert service.calls[-1].body == data


async def test_an_operation_that_the_service_does_not_have_is_named_alone():
    """The error of such a request blames no identifier."""
    async with playground() as (_, session):
        with pytest.raises(ApiError) as caught:
            await session.request("GET", "/1/search")
    assert "the embedded service has no operation GET /1/search" in str(caught.value)
    assert "identifier" not in str(caught.value)


async def test_assert_no_duplicates_fails_if_two_cards_are_equal(client, service):
    home = await client.home()
    await client.made("/1/cards", name="one", idList=home)
    await client.made("/1/cards", name="one", idList=home, desc="another")
    service.assert_no_duplicates()
    await client.made("/1/cards", name="one", idList=home)
    with pytest.raises(AssertionError, match=r"2 x 'one' in list"):
        service.assert_no_duplicates()


async def test_a_seeded_board_has_its_lists_and_cards_in_order(service):
    """`seed` returns the identifiers by name, and cards of one name are as many as were given."""
    board = service.seed({"To Do": iter(["b", "a", "a"]), "Done": ()}, name="Plans")
    cards = service.rules.cards_of(board.id)
    assert [(card.name, card.list_id) for card in cards] == [(name, board.lists["To Do"]) for name in "baa"]
    assert [record.id for record in service.rules.lists_of(board.id)] == [*board.lists.values()]
    assert (board.cards, board.name) == ({"b": cards[0].id, "a": cards[2].id}, "Plans")


@pytest.mark.parametrize("lists", [["a"], "To Do", {"To Do": "abc"}, {"To Do": ["a", 1]}, {"To Do": None}, {1: ["a"]}])
def test_a_board_is_not_seeded_from_anything_else(lists):
    """Names in another form are an error that says so, and no half of a board is left."""
    service = BoardService()
    with pytest.raises(TypeError):
        service.seed(lists)
    assert (service.rules.boards, service.rules.lists, service.rules.cards) == ({}, {}, {})


async def test_says_when_a_call_has_arrived(client, service):
    """`received` waits for the call of that number, and a cancelled waiter changes nothing."""
    waiting = [asyncio.create_task(service.received("members.me", number)) for number in (1, 2, 2)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await client.ask("GET", "/1/members/me")
    assert (await waiting[0]).number == 1
    await client.ask("GET", "/1/members/me")
    assert (await waiting[2]).number == 2
    assert (await service.received("members.me", 2)).status == 200


async def test_can_be_closed_and_opened_again_with_what_it_held():
    """A service can be closed and opened again on the same port, and keeps its boards."""
    service = BoardService()
    async with service, aiohttp.ClientSession() as http:
        with pytest.raises(RuntimeError):
            await service.start()
        port = service.port
        async with http.post(
            service.base_url + "/1/boards", json={"name": "B", "key": service.key, "token": service.token}
        ) as response:
            assert response.status == 200
    await service.stop()
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(service.base_url + "/1/members/me")
    async with service:
        assert service.port == port
        assert len(service.rules.boards) == 1


async def test_closes_at_once_whatever_hangs(client, service):
    """Stopping does not wait for a hanging response, half a head or half a body."""
    service.faults.add(service.faults.hang(), "members.me")
    hanging = asyncio.create_task(client.ask("GET", "/1/members/me"))
    half_sent = socket.create_connection(("127.0.0.1", service.port))
    half_sent.sendall(b"POST /1/boards HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    half_head = socket.create_connection(("127.0.0.1", service.port))
    half_head.sendall(b"GET /1/boa")
    with half_sent, half_head:
        call = await service.received("members.me")
        await client.ask("GET", "/1/cards/x")  # what arrived before it is being handled
        await service.stop()
    with pytest.raises(aiohttp.ClientError):
        await hanging
    assert call.status is None


async def test_closes_at_once_when_a_client_does_not_read(service):
    """Stopping does not wait for a client that does not read its response."""
    service.faults.add(service.faults.foreign_body(b"x" * (1 << 25)))
    deaf = socket.create_connection(("127.0.0.1", service.port))
    with deaf:
        deaf.sendall(b"GET /1/members/me HTTP/1.1\r\nHost: x\r\n\r\n")
        await service.received("members.me")
        await service.stop()


async def test_a_client_that_leaves_while_it_sends_is_no_call(client, service):
    """A request whose body never arrives is not recorded."""
    gone = socket.create_connection(("127.0.0.1", service.port))
    gone.sendall(b"POST /1/boards HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    await client.ask("GET", "/1/members/me")
    gone.close()
    await client.ask("GET", "/1/members/me")
    assert [call.operation for call in service.calls] == ["members.me", "members.me"]


def test_runs_in_a_thread_of_its_own():
    """As a plain context manager the service runs in a thread, which ends with the block. It wakes waiters in any event loop."""
    before = threading.active_count()
    with BoardService() as service:

        async def ask():
            waiting = asyncio.create_task(service.received("members.me"))
            await asyncio.sleep(0)
            asked = service.base_url + "/1/members/me", {"token": service.token}
            async with aiohttp.ClientSession() as http, http.get(asked[0], params=asked[1]) as response:
                return response.status, (await waiting).operation

        assert asyncio.run(ask()) == (200, "members.me")
    assert threading.active_count() == before
    service.__exit__(None, None, None)


async def test_a_taken_port_is_an_error_in_a_loop_and_in_a_thread(service):
    second = BoardService(port=service.port)
    with pytest.raises(OSError, match="address"):
        await second.start()
    with pytest.raises(OSError, match="address"):
        second.__enter__()


def test_the_typed_options_are_those_of_the_session_and_the_credentials():
    """A new option of either has to be named for type checkers, too."""
    from boardclient import AsyncSession, OAuthCredentials
    from boardclient.session import SessionOptions

    OAuthOptions = BoardService.oauth_credentials.__globals__["OAuthOptions"]
    for options, kind in ((SessionOptions, AsyncSession), (OAuthOptions, OAuthCredentials)):
        assert set(options.__annotations__) == set(inspect.signature(kind).parameters) - {"credentials", "lease_seconds"}


async def test_on_call_receives_each_call_once_it_has_its_response() -> None:
    told = []
    async with playground(BoardService(on_call=told.append)) as (service, session):
        await session.members.me()
        assert [(call.operation, call.status) for call in told] == [("members.me", 200)]
        assert told == service.calls


async def test_a_playground_settles_in_a_second() -> None:
    """Examples lose a response and show what becomes of its card, without an option and without a minute of waiting."""
    async with playground() as (service, session):
        board = service.seed({"To Do": []})
        service.faults.add(faults.drop(commit=True), "cards.create", times=1)
        told: asyncio.Future[timedelta] = asyncio.get_running_loop().create_future()

        def look(progress: BulkProgress) -> None:
            if progress.wait_ends_at is not None and not told.done():
                told.set_result(progress.wait_ends_at - datetime.now(UTC))

        drafts = [CardDraft("a", board.lists["To Do"])]
        async with session.with_options(timeout=20).cards.create_many(drafts, board_id=board.id, on_progress=look):
            assert await told <= timedelta(seconds=1)


async def test_a_store_of_tokens_serves_one_service_after_another(tmp_path: Path) -> None:
    """What a service issues is refused by the next one, which issues another: a program with a file of tokens runs twice."""
    members = []
    for _ in range(3):
        async with BoardService() as service:

            async def authorize(request: AuthorizationRequest, service: BoardService = service) -> str:
                return service.new_code()

            store = FileTokenStore(tmp_path / "tokens.db")
            async with service.session(service.oauth_credentials(authorize=authorize, store=store, account="nightly")) as session:
                members.append((await session.members.me()).id)
    assert len(members) == 3
