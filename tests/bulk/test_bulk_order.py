"""A connection that is out of step: one response too many, after which each later one is read for the next row."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import count, product
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from bulk_helpers import World
from waiting import until

from boardclient import (
    ApiError,
    AsyncSession,
    Card,
    CardDraft,
    CardResult,
    CredentialProvider,
    Credentials,
    DecodeError,
    StaticCredentials,
    retry,
)
from boardclient._transport._values import UsedConnection
from boardclient.bulk._engine import _row_responses
from boardclient.bulk._life import Row
from boardclient.bulk._proof import _board
from boardclient.bulk._proof._recognition import RowMarkers
from boardclient.credentials import Exchange


def response(status: int, body: Any) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


STRAYS: dict[str, bytes] = {
    "foreign": response(200, {"id": "x", "name": "of others"}),
    "400": response(400, {}),
    "408": response(408, {}),
    "page": response(200, "a page"),
    "repeated": b"",
}


@attrs.define(eq=False, slots=False)
class Service:
    """A service that keeps its connections, and sends one response too many once: from then on, each request gets the one before.

    A late response is the same to a client: it is read for the next request, whose own response is read for the one after.
    """

    stray: str = "repeated"
    after: int = 0
    """After which creation. 0 for no stray response."""
    refused: set[str] = attrs.field(factory=set)
    """The descriptions of the rows that are refused."""
    show: Callable[[str], str] = str
    hides_desc: bool = False
    """Whether responses to creations leave the description out."""
    packet: Literal["later", "one"] = "later"
    """Whether the stray response comes in one packet with the next one, before it."""
    keeps: bool = True
    """Whether connections are kept."""
    cards: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    sent: Counter[str] = attrs.field(factory=Counter)
    connections: int = 0
    reads: int = 0
    """How many requests created nothing."""
    _port: int = 0

    @contextlib.asynccontextmanager
    async def session(self, credentials: CredentialProvider | None = None, **options: Any) -> AsyncIterator[AsyncSession]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            server,
            AsyncSession(
                credentials or StaticCredentials(token="t", key="k"), base_url=base_url, **{"retry": None, **options}
            ) as session,
        ):
            yield session

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        owed: bytes | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                if not (out := self._respond(head.split(" ")[:2], body)):
                    break
                if not self.keeps:
                    writer.write(out.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                    break
                if owed is not None and self.packet == "one":
                    out, owed = owed + out, None
                writer.write(out if owed is None else owed)
                owed = None if owed is None else out
                if head.startswith("post") and self.sent.total() == self.after:
                    owed = STRAYS[self.stray] or out

    def _respond(self, line: list[str], body: bytes) -> bytes:
        method, path = line[0], line[1].partition("?")[0]
        if method == "post":
            fields = json.loads(body)
            self.sent[fields["desc"]] += 1
            if fields["desc"] in self.refused:
                return response(400, {})
            card_id = f"c{len(self.cards)}"
            card = {"id": card_id, "name": fields["name"], "desc": fields["desc"], "idList": "one"}
            self.cards[card_id] = card
            shown_card = {**card, "name": self.show(card["name"])}
            return response(200, {name: value for name, value in shown_card.items() if not (self.hides_desc and name == "desc")})
        self.reads += 1
        if path.endswith("/lists"):
            return response(200, [{"id": "one", "name": "one", "closed": False}])
        shown = [{**card, "name": self.show(card["name"])} for card in self.cards.values()]
        if path.endswith("/cards"):
            return response(200, shown)
        found = [card for card in shown if card["id"] == path.rpartition("/")[2]]
        return response(200, found[0]) if found else response(404, {})


NAMES: dict[str, Callable[[int], str]] = {
    "own": lambda row: f"card {row}",
    "four each": lambda row: f"card {row // 4}",
    "one": lambda row: "card",
}


def rows(names: str = "own", number: int = 40) -> list[CardDraft]:
    return [CardDraft(NAMES[names](row), "one", desc=f"text {row}", reference=f"{row}") for row in range(number)]


async def run(service: Service, drafts: list[CardDraft], session: AsyncSession, **options: Any) -> tuple[list[CardResult], Any]:
    given: dict[str, Any] = {"board_id": "b", "settle": 0.0, "concurrency": 1, **options}
    async with session.cards.create_many(drafts, **given) as opened:
        results = [result async for result in opened]
    return results, opened.report


def check(service: Service, results: list[CardResult]) -> None:
    """Check that what is reported is so, and that no row has two cards."""
    for result in results:
        made = [card for card in service.cards.values() if card["desc"].strip() == result.draft.desc]
        assert len(made) <= 1
        if result.state in {"created", "already"}:
            assert result.card is not None
            assert [card["id"] for card in made] == [result.card.id], result
        elif result.state == "failed":
            assert not made, result


@pytest.mark.parametrize("concurrency", [1, 2, 32])
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("stray", STRAYS)
async def test_one_response_too_many_makes_no_result_wrong(stray: str, names: str, concurrency: int, tmp_path: Path) -> None:
    """Neither do refused rows, equal names and parallel connections; the next runs create what is not there, once."""
    service = Service(stray, after=9, refused={f"text {row}" for row in (3, 11, 12, 20, 33)})
    async with service.session() as session:
        for _ in range(3):
            results, _ = await run(service, rows(names), session, concurrency=concurrency, journal=tmp_path / "journal")
            check(service, results)
            service.refused = set()
    assert len(results) == 40
    assert {result.state for result in results} <= {"already", "unknown"}
    assert sum(result.state == "unknown" for result in results) <= 1


@pytest.mark.parametrize("unknown", ["report", "resend"])
@pytest.mark.parametrize("stray", ["400", "repeated", "foreign"])
async def test_without_a_board_the_rows_since_the_last_proof_are_in_doubt(stray: str, unknown: str) -> None:
    """None of them is created with another's card, or failed though its card exists. "resend" sends them again."""
    service = Service(stray, after=9, refused={"text 3", "text 20"})
    async with service.session() as session:
        results, report = await run(service, rows(), session, board_id=None, unknown=unknown, settle=None)
    assert report.failed == 2
    if unknown == "report":
        check(service, results)
        assert 1 <= report.unknown <= 2
        assert "names" in str(report.problems[-1].error) or "400" in str(report.problems[-1].error)
        assert set(service.sent.values()) == {1}
    else:
        assert (report.unknown, report.created) == (0, 38)
        assert sorted(service.sent.values())[-2:] in ([1, 2], [2, 2])
    assert service.connections == 2


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_service_that_changes_names_proves_nothing_by_them(concurrency: int) -> None:
    """A changed name that equals another row's makes no row wrong, nor one in doubt; nor does the connection close."""
    service = Service(show=lambda name: f"card {int(name.split()[1]) + 1}")
    async with service.session() as session:
        results, report = await run(service, rows(), session, concurrency=concurrency)
    check(service, results)
    assert (report.created, report.unknown) == (40, 0)
    assert service.connections == concurrency


async def test_names_that_only_some_rows_keep_are_no_proof_of_another(tmp_path: Path) -> None:
    """The service cuts long names off. Each row has its card, and no connection is closed."""
    service = Service(show=lambda name: name[:6], refused={"text 7"})
    async with service.session() as session:
        results, report = await run(service, rows(), session)
    check(service, results)
    assert (report.created, report.failed, service.connections) == (39, 1, 1)


CHANGES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "suffix": lambda name: f"{name} (new)",
    "cut": lambda name: name[:5],
    "none": lambda name: "",
}


@pytest.mark.full
@pytest.mark.parametrize("hides_desc", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("packet", ["later", "one"])
async def test_one_response_too_many_makes_no_result_wrong_where_each_name_is_changed(
    packet: Literal["later", "one"], change: str, hides_desc: bool, tmp_path: Path
) -> None:
    """Also not if it is among the last, or comes in one packet with another. Few rows are unknown."""
    for stray, (concurrency, marker, after) in product(STRAYS, ((8, True, 9), (1, None, 39))):
        refused = {f"text {row}" for row in (3, 11, 12, 20, 33)}
        service = Service(stray, after, refused, CHANGES[change], hides_desc, packet)
        journal = tmp_path / f"{stray} {after}"
        async with service.session() as session:
            for _ in range(3):
                results, _ = await run(service, rows(), session, concurrency=concurrency, marker=marker, journal=journal)
                for result in results:
                    made = [card["id"] for card in service.cards.values() if result.draft.desc in card["desc"].split("\n")]
                    assert len(made) <= 1
                    assert result.state != "failed" or not made
                    assert result.card is None or made == [result.card.id]
                service.refused = set()
        assert len(results) == 40
        assert {result.state for result in results} <= {"already", "unknown"}
        assert sum(result.state == "unknown" for result in results) <= (33 if hides_desc and marker is None else 3)


@pytest.mark.parametrize("after", [9, 39])
@pytest.mark.parametrize("packet", ["later", "one"])
@pytest.mark.parametrize("stray", STRAYS)
async def test_it_makes_none_wrong_without_a_board_either(stray: str, packet: Literal["later", "one"], after: int) -> None:
    """Rows that nothing proves are unknown."""
    service = Service(stray, after, {"text 3", "text 11", "text 38"}, str.upper, hides_desc=True, packet=packet)
    async with service.session() as session:
        results, report = await run(service, rows(), session, board_id=None, unknown="report", settle=None)
    check(service, results)
    assert report.created + report.failed + report.unknown == 40


@pytest.mark.parametrize("stray", STRAYS)
async def test_the_second_of_two_rows_is_not_judged_by_another_response(stray: str) -> None:
    """The lists of the board are asked for where no second card is known."""
    service = Service(stray, 1, show=str.upper, hides_desc=True)
    async with service.session() as session:
        results, report = await run(service, rows(number=2), session)
    check(service, results)
    assert report.failed == 0


@pytest.mark.parametrize("hides_desc", [False, True])
async def test_a_service_that_changes_each_name_leaves_no_row_unknown(hides_desc: bool, tmp_path: Path) -> None:
    """Descriptions prove responses. Where they are not shown either, a connection is asked once for many rows."""
    service = Service(refused={"text 7"}, show=str.upper, hides_desc=hides_desc)
    async with service.session() as session:
        results, report = await run(service, rows(number=70), session, journal=tmp_path / "journal")
    check(service, results)
    assert (report.created, report.failed, report.unknown, service.connections) == (69, 1, 0, 1)
    assert service.reads == 3 + (10 if hides_desc else 0)  # the lists, the cards, and the cards again for the audit


async def test_connections_that_the_service_closes_need_no_proof() -> None:
    """Nothing can come over them that belongs to another request."""
    service = Service(show=str.upper, hides_desc=True, refused={"text 7"}, keeps=False)
    async with service.session() as session:
        results, report = await run(service, rows(), session, board_id=None, unknown="report", settle=None)
    check(service, results)
    assert (report.created, report.failed, service.reads) == (39, 1, 0)


async def test_rows_have_results_before_the_run_ends_where_names_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only few responses wait for a proof."""
    monkeypatch.setattr(_row_responses, "_MOST_OPEN", 4)
    service, seen = Service(show=str.upper, hides_desc=True), list[int]()
    async with service.session() as session, session.cards.create_many(rows(), concurrency=4) as opened:
        async for _ in opened:
            seen.append(service.sent.total())
    assert len(seen) == 40
    assert seen[0] < 20
    assert opened.report.created == 40


class WithoutIds(Service):
    """A service that does not say which card it has created."""

    def _respond(self, line: list[str], body: bytes) -> bytes:
        out = super()._respond(line, body)
        return response(200, {}) if line[0] == "post" else out


async def test_nothing_is_asked_about_responses_that_leave_their_rows_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose they are changes nothing, however many there are."""
    monkeypatch.setattr(_row_responses, "_MOST_OPEN", 2)
    service = WithoutIds()
    async with service.session() as session:
        report = await session.cards.create_many(rows(number=4), concurrency=1, unknown="report").wait()
    assert (report.unknown, service.sent.total(), service.reads) == (4, 4, 0)


async def test_it_makes_none_wrong_if_aiohttp_reads_the_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stray response and the next one come in one packet."""
    monkeypatch.setattr("boardclient._transport._choice.TransportChoice._may_be_direct", False)
    service = Service("400", 9, show=str.upper, hides_desc=True, packet="one")
    async with service.session() as session:
        results, report = await run(service, rows(), session)
    check(service, results)
    assert (report.created, report.failed) == (38, 0)


OTHERWISE: dict[str, bytes] = {
    **{str(status): response(status, {}) for status in (400, 401, 403, 404, 405, 429, 500)},
    "429 for an hour": response(429, {}).replace(b"\r\n", b"\r\nRetry-After: 3600\r\n", 1),
    "page": response(200, "a page"),
    "another card": response(200, {"id": "x", "name": "of others"}),
}


@pytest.mark.parametrize("unknown", ["report", "resend"])
@pytest.mark.parametrize("otherwise", OTHERWISE)
async def test_a_service_that_only_creates_gets_each_row_once(otherwise: str, unknown: Literal["report", "resend"]) -> None:
    """Nothing shows whose the responses are, and nothing that another came: the way in which it responds to reads is no fault.

    Reads are not repeated, wait for nothing, and no renewal of credentials follows them.
    """
    renewals = list[Credentials]()

    class Renewing(StaticCredentials):
        async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
            renewals.append(rejected)
            return Credentials(token=f"t{len(renewals)}", key="k")

    for change in ("upper", "none"):
        service = Service(show=CHANGES[change], hides_desc=True, refused={"text 3", "text 20"})
        answer, reads = service._respond, count()
        service._respond = lambda line, body: (  # type: ignore[method-assign]  # -- no card can be read
            answer(line, body) if line[0] == "post" or next(reads) < 0 else OTHERWISE[otherwise]  # noqa: B023 -- as long as it
        )
        async with service.session(Renewing(token="t", key="k"), retry=retry.default()) as session:
            opened = session.cards.create_many(rows(), concurrency=2, unknown=unknown)
            report = await opened.wait()
        assert (report.created, report.failed, report.unknown) == (38, 2, 0)
        assert set(service.sent.values()) == {1}
        assert next(reads) <= 12  # two for eight rows of a connection, and for those that are left
    assert not renewals


async def test_a_row_has_failed_though_too_few_questions_show_whose_refusal_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one card to ask for at that time, and the service refuses that too."""
    monkeypatch.setattr(_row_responses, "_MOST_OPEN", 2)
    service = Service(show=str.upper, hides_desc=True, refused={"text 1"})
    answer = service._respond
    service._respond = lambda line, body: (  # type: ignore[method-assign]  # -- no card can be read
        answer(line, body) if line[0] == "post" else response(404, {})
    )
    async with service.session() as session:
        results, report = await run(service, rows(number=6), session, board_id=None, unknown="report", settle=None)
    check(service, results)
    assert (report.created, report.failed, report.unknown) == (5, 1, 0)


@pytest.mark.parametrize("fault", ["429", "closed"])
async def test_a_connection_that_is_asked_in_vain_is_asked_again(fault: str) -> None:
    """One that ends has proven that nothing was left to come over it."""
    service, faults = Service(show=str.upper, hides_desc=True), [b"" if fault == "closed" else response(429, {})]
    answer = service._respond
    service._respond = lambda line, body: (  # type: ignore[method-assign]  # -- the first read fails
        faults.pop() if line[0] == "get" and faults else answer(line, body)
    )
    async with service.session() as session:
        results, report = await run(service, rows(number=10), session, board_id=None, unknown="report", settle=None)
    check(service, results)
    assert report.created == 10
    assert not faults


async def test_a_connection_that_another_call_has_can_t_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are created, as its responses say: nothing shows that another came."""
    monkeypatch.setattr(_board, "_BUSY_SECONDS", 0.0)
    service, calls = Service(show=str.upper, hides_desc=True, keeps=True), list[asyncio.Task[Card]]()
    answer = service._respond
    async with service.session(max_connections=1) as session:

        def respond(line: list[str], body: bytes) -> bytes:
            if "/held" in line[1]:
                return b"HTTP/1.1 200 X\r\n"  # the rest never comes
            if line[0] == "post" and service.sent.total() == 4:
                calls.append(asyncio.create_task(session.cards.get("held")))
            return answer(line, body)

        service._respond = respond  # type: ignore[method-assign]  # -- a call begins while the last row is sent
        results, report = await run(service, rows(number=5), session, board_id=None, unknown="report", settle=None)
        check(service, results)
        assert report.created == 5
        calls[0].cancel()
        await asyncio.wait(calls)


async def test_connections_that_have_ended_are_forgotten_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses that came over them are believed: nothing is left to come."""
    monkeypatch.setattr(_row_responses, "_MOST_CONNECTIONS", 0)
    service = Service(show=str.upper, hides_desc=True)
    answer, number = service._respond, count()
    service._respond = lambda line, body: (  # type: ignore[method-assign]  # -- each second row ends its connection
        b"" if next(number) % 2 else answer(line, body)
    )
    async with service.session() as session:
        results, report = await run(service, rows(number=10), session, board_id=None, unknown="report", settle=None)
    check(service, results)
    assert report.created == 5


async def test_a_response_that_nothing_proves_is_no_result_if_its_card_does_not_exist() -> None:
    """The stray response was the last one to be read over its connection, so that no later one can show it."""
    service = Service("foreign", after=9)
    async with service.session() as session:
        results, report = await run(service, rows(number=10), session)
    check(service, results)
    assert (report.created, report.audit.recovered, report.audit.is_sound) == (10, 1, True)


async def test_a_card_that_the_response_of_its_own_row_names_is_no_earlier_row_s() -> None:
    """The response to the earlier one shows another name, so that it waits for a proof, which is the other's."""
    service, shown = Service(hides_desc=True), list[str]()

    def show(name: str) -> str:
        shown.append(name)
        return "renamed" if name == "card 3" and shown.count(name) == 1 else name

    service.show = show
    answer = service._respond

    def lie(line: list[str], body: bytes) -> bytes:
        out = answer(line, body)
        return out.replace(b'"c3"', b'"c4"') if b"renamed" in out else out

    service._respond = lie  # type: ignore[method-assign]  # -- the response to row 3 names the next card
    async with service.session() as session:
        results, report = await run(service, rows(number=8), session)
    check(service, results)
    assert (report.created, report.unknown) == (8, 0)


async def test_a_response_that_is_read_late_is_believed_no_more() -> None:
    """Tasks may resume in another order than that of the responses."""
    order, connection = _row_responses.ResponseOrder(RowMarkers(None, b"")), UsedConnection()
    first, second, third = [Row(index, CardDraft(f"card {index}", "one")) for index in range(3)]
    assert order.judge(first, Card("c0", "card 0"), connection) == "proven"
    order.add(_row_responses.Unproven(3, third, Card("c2", "other")), connection)
    assert [*order.prove(connection, 2)] == []
    assert order.judge(second, Card("c1", "card 2"), connection) == "foreign"
    assert [response.row for response in order.distrust(connection)] == [third]
    assert order.judge(second, Card("c1", "card 1"), connection) == "foreign"
    assert not order.connections


async def test_a_lent_session_whose_connections_can_t_be_told_apart_ends_the_run() -> None:
    """Nothing can close the connection, so nothing more is sent over it."""
    import aiohttp

    service = Service("repeated", after=9)
    async with aiohttp.ClientSession() as http, service.session(http=http) as session:
        with pytest.raises((DecodeError, ApiError), match="can't be told from others"):
            await run(service, rows(), session, board_id=None, settle=None)
    assert service.sent.total() < 15


async def test_stopping_a_run_gives_each_row_a_result_that_waits_for_a_proof() -> None:
    """A row was created, as its response says: its connection is asked."""
    service = Service(show=str.upper, hides_desc=True)
    options: dict[str, Any] = {"concurrency": 1, "board_id": "b", "settle": 0.0}
    async with service.session() as session, session.cards.create_many(iter(rows(number=80)), **options) as opened:
        await anext(opened)
        opened.stop()
        await opened.wait()
    assert opened.report.created == len(service.cards)
    assert opened.report.unknown == 0


async def test_leaving_a_run_gives_rows_their_results_that_wait_for_a_proof() -> None:
    """No request is sent any more that could prove their responses, and nothing shows that another came."""
    service = Service(show=str.upper, hides_desc=True, refused={"text 3"})
    drafts = rows(number=30)
    async with service.session() as session, session.cards.create_many(drafts, concurrency=1, unknown="report") as opened:
        await until(lambda: len(service.cards) >= 5)
    report = opened.report
    assert report.failed == 1
    assert len(service.cards) - report.created == report.unknown <= 1  # one was being sent


@pytest.mark.parametrize("marker", [None, True, lambda draft: f"m{draft.reference}"])
@pytest.mark.parametrize("desc", [None, "text", "own"])
@pytest.mark.parametrize("is_later_run", [False, True])
async def test_a_response_that_shows_the_card_of_a_lost_row_is_not_believed(
    world: World, marker: Any, desc: str | None, is_later_run: bool
) -> None:
    """Its own response was lost, in this run or in an earlier one, and comes late, in place of that to another row."""
    rows = [
        CardDraft(name, world.lists[0], desc=f"about {name}" if desc == "own" else desc, reference=name) for name in "abcdefgh"
    ]
    made: list[Any] = []

    class Late:
        async def play(self, stage: Any) -> None:
            name = world.sent[-1]
            if name == "b" and not made:
                made.append(stage.commit())
                stage.abort()
            elif name == "d" and len(made) == 1:
                made.append(None)
                await stage.reply(200, json.dumps(made[0].body).encode())
            else:
                await stage.reply_answer()

    world.service.faults.add(Late(), "cards.create")
    options: dict[str, Any] = {"concurrency": 1, "settle": 0.0, "marker": marker, "probe": True}
    if is_later_run:
        async with world.run(rows[:2], **options) as run:
            run.stop()
        await world.run(rows[:2], **{**options, "unknown": "report"}).wait()
        rows = [*rows[2:], *rows[:2]]
    async with world.run(rows, **options) as run:
        results = {result.draft.name: result async for result in run}
    cards = world.service.rules.cards
    assert {name: cards[result.card.id].name for name, result in results.items()} == {name: name for name in "abcdefgh"}
    assert world.there == [*"abcdefgh"]
    assert run.report.audit.is_sound
