"""Every method of the four resources, end to end on the embedded service."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from aioresponses import aioresponses as AioResponses

from boardclient import (
    AsyncSession,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CardDraft,
    CardResult,
    ConsentRequired,
    Credentials,
    Effect,
    Member,
    NotFoundError,
    Position,
    StaticCredentials,
    TransportError,
)
from boardclient.testing import BoardService, faults

DUE = datetime(2027, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


@pytest.fixture
async def service() -> AsyncIterator[BoardService]:
    async with BoardService(organizations=["team"]) as running:
        yield running


def sent(service: BoardService) -> dict[str, Any]:
    """Give the body of the last call, without the credentials."""
    body = service.calls[-1].body
    assert isinstance(body, dict)
    return {name: value for name, value in body.items() if name not in {"key", "token"}}


async def test_boards_create(service: BoardService, session: AsyncSession) -> None:
    """A board is created with what is given, and nothing else is sent."""
    board = await session.boards.create("Launch")
    assert board.name == "Launch"
    assert board.id in service.rules.boards
    assert sent(service) == {"name": "Launch"}
    assert (service.calls[-1].method, service.calls[-1].path) == ("POST", "/1/boards")
    assert service.calls[-1].query == {}
    await session.boards.create("", default_lists=False, organization_id="team")
    assert sent(service) == {"name": "", "defaultLists": False, "idOrganization": "team"}
    with pytest.raises(NotFoundError):
        await session.boards.create("Launch", organization_id="another")


async def test_boards_lists_and_cards(session: AsyncSession) -> None:
    """The lists and the cards of a board come in the order of the response."""
    board = await session.boards.create("Launch", default_lists=True)
    lists = await session.boards.lists(board.id)
    assert [one.name for one in lists] == ["To Do", "Doing", "Done"]
    assert {one.board_id for one in lists} == {board.id}
    assert await session.boards.cards(board.id) == []
    for name in ("a", "b", "c"):
        await session.cards.create(name, list_id=lists[0].id)
    assert [card.name for card in await session.boards.cards(board.id)] == ["a", "b", "c"]
    with pytest.raises(NotFoundError):
        await session.boards.lists("nothing")
    with pytest.raises(NotFoundError):
        await session.boards.cards("nothing")


async def test_lists_create_and_archive(service: BoardService, session: AsyncSession) -> None:
    """A list is added where it is wanted, and archived."""
    board = await session.boards.create("Launch")
    first = await session.lists.create("second", board_id=board.id)
    assert sent(service) == {"name": "second", "idBoard": board.id}
    await session.lists.create("first", board_id=board.id, pos=Position.TOP)
    assert sent(service) == {"name": "first", "idBoard": board.id, "pos": "top"}
    await session.lists.create("third", board_id=board.id, pos="bottom")
    assert [one.name for one in await session.boards.lists(board.id)] == ["first", "second", "third"]
    archived = await session.lists.archive(first.id)
    assert (archived.id, archived.closed) == (first.id, True)
    assert (sent(service), service.calls[-1].method) == ({"closed": True}, "PUT")
    with pytest.raises(BadRequestError):
        await session.lists.create("fourth", board_id=board.id, pos="nowhere")


async def test_cards(service: BoardService, session: AsyncSession) -> None:
    """A card is created, read, moved, labelled and deleted."""
    board = await session.boards.create("Launch", default_lists=True)
    todo, doing, _ = await session.boards.lists(board.id)
    card = await session.cards.create("plain", list_id=todo.id)
    assert sent(service) == {"name": "plain", "idList": todo.id}
    due = datetime(2027, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    full = await session.cards.create("full", list_id=todo.id, desc="", due=due, pos=Position.TOP)
    assert sent(service) == {"name": "full", "idList": todo.id, "desc": "", "due": "2027-01-02T03:04:05Z", "pos": "top"}
    read = await session.cards.get(full.id)
    assert (read.id, read.name, read.desc, read.list_id) == (full.id, "full", "", todo.id)
    assert read.due == datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    moved = await session.cards.move(card.id, list_id=doing.id)
    assert (moved.id, sent(service)) == (card.id, {"idList": doing.id})
    assert (await session.cards.get(card.id)).list_id == doing.id
    await session.cards.add_label(card.id, "red")
    assert (sent(service), service.calls[-1].path) == ({"value": "red"}, f"/1/cards/{card.id}/idLabels")
    assert service.rules.cards[card.id].labels == ["red"]
    await session.cards.delete(card.id)
    assert service.calls[-1].body is None
    assert list(service.rules.cards) == [full.id]
    for call in (session.cards.get(card.id), session.cards.delete(card.id), session.cards.move(card.id, list_id=todo.id)):
        with pytest.raises(NotFoundError):
            await call
    assert [call.path for call in service.calls if call.body is not None and {"key", "token"} & {*call.query}] == []


async def test_lost_create_is_not_repeated_and_lost_delete_is(service: BoardService, session: AsyncSession) -> None:
    """A create whose response is lost is raised; a delete is repeated, and a 404 then counts as success."""
    board = await session.boards.create("Launch", default_lists=True)
    home = (await session.boards.lists(board.id))[0]
    service.faults.add(faults.drop(commit=True), "cards.create", call=1)
    service.faults.add(faults.drop(commit=True), "cards.delete", call=1)
    with pytest.raises(TransportError):
        await session.cards.create("once", list_id=home.id)
    (card,) = await session.boards.cards(board.id)
    await session.cards.delete(card.id)
    assert len(service.calls_of("cards.delete")) == 2
    assert service.rules.cards == {}


async def test_members_me(service: BoardService, session: AsyncSession) -> None:
    """The member comes with key and token, or with the token alone; what is undocumented is in `extra`."""
    member = await session.members.me()
    assert isinstance(member, Member)
    assert member.extra["username"] == "member"
    assert service.calls[-1].query == {"key": service.key, "token": service.token}
    view = session.with_credentials(StaticCredentials(service.token))
    assert await view.members.me() == member
    assert service.calls[-1].query == {"token": service.token}


@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "a\\b", "a\nb"])
async def test_identifiers_are_checked_before_anything_is_sent(
    identifier: str, service: BoardService, session: AsyncSession
) -> None:
    """No identifier can become another path: each method refuses it itself."""
    calls = [
        lambda: session.boards.lists(identifier),
        lambda: session.boards.cards(identifier),
        lambda: session.lists.create("name", board_id=identifier),
        lambda: session.lists.archive(identifier),
        lambda: session.cards.create("name", list_id=identifier),
        lambda: session.cards.get(identifier),
        lambda: session.cards.move(identifier, list_id="1"),
        lambda: session.cards.move("1", list_id=identifier),
        lambda: session.cards.add_label(identifier, "1"),
        lambda: session.cards.delete(identifier),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must"):
            await call()
    assert len(service.calls) == 0


async def test_a_card_is_created_once_though_its_response_is_lost(service: BoardService, session: AsyncSession) -> None:
    """With the board, the card that was created is found and returned. A card that was there before is not taken for it."""
    board = await session.boards.create("Launch", default_lists=True)
    todo = (await session.boards.lists(board.id))[0]
    wanted: dict[str, Any] = {"list_id": todo.id, "desc": "text", "due": DUE, "pos": "top"}
    before = await session.cards.create("a", **wanted)
    service.faults.add(faults.drop(commit=True), "cards.create", times=1)
    card = await session.cards.create("a", **wanted, board_id=board.id, settle=0.0)
    assert card.id != before.id
    assert (card.name, card.desc, card.list_id, card.due) == ("a", "text", todo.id, DUE)
    assert len(service.rules.cards) == 2
    plain = await session.cards.create("b", list_id=todo.id, board_id=board.id, unknown="reconcile")
    assert len(service.rules.cards) == 3
    assert plain.list_id == todo.id


async def test_a_card_that_may_exist_is_not_sent_again(service: BoardService, session: AsyncSession) -> None:
    """If nothing proves that it exists or not, the error says so, and names the card that may be it."""
    board = await session.boards.create("Launch", default_lists=True)
    todo = (await session.boards.lists(board.id))[0]
    service.faults.add(faults.drop(), "cards.create", times=1)
    with pytest.raises(BoardClientError, match="is not known") as caught:
        await session.cards.create("a", list_id=todo.id, board_id=board.id, settle=0.0, probe=False)
    assert caught.value.effect is Effect.UNKNOWN
    assert not service.rules.cards
    service.faults.add(faults.drop(commit=True), "cards.create", times=1)
    with pytest.raises(BoardClientError, match="POST") as caught:
        await session.cards.create("a", list_id=todo.id, board_id=board.id, unknown="report", settle=0.0)
    assert caught.value.effect is Effect.UNKNOWN
    assert len(service.rules.cards) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [(faults.status(401), "sign in"), (faults.status(407), "status 407"), (faults.hang(), "the session was closed")],
)
async def test_the_error_of_a_lost_card_is_never_that_of_a_reading(
    service: BoardService, fault: faults.Fault, words: str
) -> None:
    """If its board can't be read for the user's consent, a proxy or a closed session, the error is the card's, and says why."""
    board = service.seed({"Inbox": []})
    service.faults.add(faults.drop(commit=True), "cards.create")
    service.faults.add(fault, "boards.cards", call=2)
    async with AsyncSession(SignedOut(service), service.base_url) as session, asyncio.timeout(60):
        task = asyncio.create_task(session.cards.create("a", list_id=board.lists["Inbox"], board_id=board.id, settle=0.0))
        await service.received("boards.cards", 2)
        if isinstance(fault, faults.hang):
            await session.aclose()
        with pytest.raises(TransportError, match=f"^POST .* is not known: .*{words}") as caught:
            await task
    assert (caught.value.effect, caught.value.repeatable, len(service.rules.cards)) == (Effect.UNKNOWN, False, 1)


@pytest.mark.parametrize("operation", ["boards.lists", "boards.cards"])
@pytest.mark.parametrize("fault", [faults.status(401), faults.status(503), faults.foreign_body(b"<html>", "text/html")])
@pytest.mark.usefixtures("passing_time")
async def test_a_card_whose_board_can_not_be_read_is_not_sent(service: BoardService, fault: faults.Fault, operation: str) -> None:
    """The error is that of the reading, and its effect what became of the card."""
    board = service.seed({"Inbox": []})
    service.faults.add(fault, operation)
    async with service.session(retry=None, timeout=None) as session:
        with pytest.raises(BoardClientError, match="the card was not sent") as caught:
            await session.cards.create("a", list_id=board.lists["Inbox"], board_id=board.id)
    assert (caught.value.effect, caught.value.repeatable) == (Effect.NOT_SENT, False)
    assert not service.calls_of("cards.create")


@pytest.mark.parametrize("options", [{}, {"unknown": "report"}, {"board_id": "b"}])
async def test_a_card_does_not_wait_for_consent(service: BoardService, options: dict[str, Any]) -> None:
    """A web application leads the user to the sign-in page, however the card is created."""
    credentials = service.oauth_credentials(authorize=None, login_url="/login")
    async with AsyncSession(credentials, service.base_url) as session, asyncio.timeout(60):
        with pytest.raises(ConsentRequired) as caught:
            await session.cards.create("a", list_id="l", **options)
    assert (caught.value.effect, caught.value.login_url, len(service.calls)) == (Effect.NOT_SENT, "/login", 0)


class SignedOut:
    """Gives a token once. The user has to sign in for another."""

    def __init__(self, service: BoardService) -> None:
        self.given = Credentials(service.token, service.key)

    async def acquire(self, exchange: object) -> Credentials:
        return self.given

    async def renew(self, rejected: Credentials, exchange: object) -> Credentials:
        raise ConsentRequired("the user has to sign in", "ann", "/login")


async def test_a_card_that_is_refused_raises_why(service: BoardService, session: AsyncSession) -> None:
    """The errors of `create` are the same with a board as without one. What can't be sent is refused before the board is read."""
    board = await session.boards.create("Launch", default_lists=True)
    todo = (await session.boards.lists(board.id))[0]
    service.faults.add(faults.status(400), "cards.create", times=1)
    with pytest.raises(BadRequestError):
        await session.cards.create("a", list_id=todo.id, board_id=board.id)
    service.faults.add(faults.status(401), "cards.create", times=1)
    with pytest.raises(AuthenticationError):
        await session.cards.create("a", list_id=todo.id, board_id=board.id)
    requests = len(service.calls)
    for wrong, error in [({"name": 7}, TypeError), ({"due": datetime(2027, 1, 2)}, ValueError), ({"board_id": ".."}, ValueError)]:
        with pytest.raises(error):
            await session.cards.create(**{"name": "a", "list_id": "l", "board_id": "b", **wrong})
    with pytest.raises(ValueError, match="needs board_id"):
        await session.cards.create("a", list_id=todo.id, unknown="reconcile")
    assert len(service.calls) == requests


@pytest.mark.parametrize(
    ("shown", "list_id", "due"),
    [
        ({}, "l1", DUE),
        ({"idList": "l2", "due": "2027-01-02T03:04:05Z"}, "l2", datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ({"idList": None, "due": None}, None, None),
        ({"due": "2027-01-02T03:04:05"}, "l1", None),
        ({"name": "due", "desc": "idList"}, "l1", DUE),
        ({"badges": {"due": None}, "missing": ["due", "idList"]}, "l1", DUE),
    ],
)
async def test_a_created_card_has_what_was_sent_if_the_response_omits_it(
    shown: dict[str, object], list_id: str | None, due: datetime | None, wire: AioResponses
) -> None:
    """What the response lacks is filled in, whatever else has its name; what it shows as null, or in another form, is not."""
    wire.post("https://boards.example/1/cards", payload={"id": "c1", "name": "n", **shown}, repeat=True)
    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example") as session:
        card = await session.cards.create("n", list_id="l1", due=DUE)
        (result,) = [result async for result in results(session)]
    assert (card.list_id, card.due) == (list_id, due)
    assert result.card is not None
    assert (result.card.list_id, result.card.due) == (list_id, due)


async def results(session: AsyncSession) -> AsyncIterator[CardResult]:
    async with session.cards.create_many([CardDraft("n", "l1", due=DUE)], concurrency=1) as run:
        async for result in run:
            yield result
