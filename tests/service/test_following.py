"""Logs and observers receive all events of calls, with the call's identifier, and no credential."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
import subprocess
import sys
from typing import Any

import pytest
from waiting import until

from boardclient import (
    ApiError,
    AsyncSession,
    BoardClientError,
    CardDraft,
    DecodeError,
    NotFoundError,
    ServerError,
    StaticCredentials,
    logs,
)
from boardclient._base._activities import INSTALLED, Activity, Instrument
from boardclient.errors import Effect, SessionClosedError
from boardclient.events import CredentialsRenewed, RequestSent, ResponseReceived, RetryScheduled
from boardclient.testing import BoardService, assert_no_secrets, faults


async def test_a_call_is_logged_with_its_attempts(service: BoardService, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A call with a renewal and a retry is logged with its identifier, account, statuses, pause and the service's request id."""
    caplog.set_level(logging.DEBUG, "boardclient")
    async with AsyncSession(service.oauth_credentials(account="ada"), service.base_url, retry=policy) as session:
        await session.members.me()
        service.faults.add(faults.status(503, headers={"X-Request-Id": "r-77"}), "members.me", times=1)
        caplog.clear()
        await session.members.me()
    texts = [record.getMessage() for record in caplog.records if record.name == "boardclient.calls"]
    ids = {record.call_id for record in caplog.records if hasattr(record, "call_id")}
    assert len(ids) == 1
    (call_id,) = ids
    assert texts[0] == f"members.me ({call_id}) attempt 1: GET {service.base_url}/1/members/me [account ada]"
    assert "status 503" in texts[1]
    assert "request_id r-77" in texts[1]
    assert texts[2].startswith(f"members.me ({call_id}) pause of ")
    assert "after attempt 1" in texts[2]
    assert "attempt 2: success [status 200, account ada" in texts[4]
    assert texts[5].startswith(f"members.me ({call_id}) done [status 200, account ada")
    levels = [record.levelname for record in caplog.records if record.name == "boardclient.calls"]
    assert levels == ["DEBUG", "DEBUG", "INFO", "DEBUG", "DEBUG", "INFO"]


@pytest.mark.parametrize("name", ["X-Request-Id", "x-amzn-requestid", "CF-Ray", "X-Correlation-ID"])
async def test_an_error_says_what_the_service_calls_the_request(
    name: str, service: BoardService, caplog: pytest.LogCaptureFixture
) -> None:
    """In `request_id`, in its message, and in the log: for a refusal, and for a success that can't be read."""
    caplog.set_level(logging.INFO, "boardclient")
    async with service.session(retry=None) as session:
        named = {name: "r-78"}
        unusable = (faults.status(500, headers=named), *(faults.foreign_body(body, headers=named) for body in (b"[]", b"<p>")))
        for number, fault in enumerate(unusable):
            service.faults.add(fault, "members.me", times=1)
            with pytest.raises(BoardClientError, match=r"request id r-78$") as caught:
                await session.members.me()
            assert (
                caught.value.request_id
                == copy.copy(caught.value).request_id
                == pickle.loads(pickle.dumps(caught.value)).request_id
            )
            assert caught.value.request_id == "r-78"
            assert "request_id r-78" in caplog.messages[number]
        service.faults.add(unusable[-1], "members.me", times=1)
        response = await session.request("GET", "/1/members/me")
        with pytest.raises(DecodeError, match=r"request id r-78$"):
            response.json()
        with pytest.raises(NotFoundError) as missing:
            await session.cards.get("none")
        assert missing.value.request_id is None


async def test_the_identifier_of_a_request_shows_no_credential_and_stays_one_line(service: BoardService) -> None:
    """A service may send anything as one, also what it was sent."""
    async with service.session(retry=None) as session:
        service.faults.add(faults.status(500, headers={"X-Request-Id": f"r\t{service.token}" + "x" * 300}), "members.me")
        with pytest.raises(ServerError) as caught:
            await session.members.me()
    assert_no_secrets([caught.value, caught.value.request_id], secrets=[service.token])
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith("x" * 190)
    assert not str(caught.value).endswith("x" * 200)


async def test_renewals_and_failures_are_logged(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """The renewal, its token exchange and an error are logged; no credential is in any record."""
    caplog.set_level(logging.DEBUG, "boardclient")
    async with AsyncSession(service.oauth_credentials(), service.base_url) as session:
        with pytest.raises(ApiError) as caught:
            await session.cards.get("none")
    texts = [record.getMessage() for record in caplog.records]
    call_id = caught.value.call_id
    assert f"credentials.renew ({call_id}) begins [account default]" in texts
    assert any(text.startswith(f"token exchange ({call_id}) attempt 1: success [status 200") for text in texts)
    assert any(text.startswith(f"credentials.renew ({call_id}) done") for text in texts)
    assert any(f"({caught.value.call_id}) failed: GET /1/cards/none: status 404" in text for text in texts)
    assert_no_secrets(caplog.records, secrets=[service.key, service.client_secret, *_tokens(service)])


def _tokens(service: BoardService) -> list[str]:
    found = {str(call.query.get("token")) for call in service.calls if call.query.get("token")}
    return [*found, *(str(call.body["code"]) for call in service.calls if isinstance(call.body, dict) and "code" in call.body)]


async def test_cards_of_a_run_are_logged_at_debug(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """A bulk run is one story at INFO: its beginning, its phases and its sums."""
    caplog.set_level(logging.INFO, "boardclient")
    board = service.seed({"To Do": []})
    async with service.session() as session:
        await session.cards.create_many([CardDraft(f"c{n}", board.lists["To Do"]) for n in range(5)]).wait()
    texts = [record.getMessage() for record in caplog.records if record.name == "boardclient.calls"]
    assert texts[:2] == ["cards.create_many begins", "cards.create_many rows are sent"]
    assert texts[-1].startswith("cards.create_many done, 5 created [")
    assert not [text for text in texts if text.startswith("cards.create (")]


async def test_only_records_of_requests_have_an_effect(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """The record of a run that has created cards does not say "not sent", nor does that of a renewal."""
    caplog.set_level(logging.INFO, "boardclient")
    board = service.seed({"To Do": []})
    async with AsyncSession(service.oauth_credentials(), service.base_url) as session:
        await session.cards.create_many([CardDraft("c", board.lists["To Do"])]).wait()
        await session.members.me()
    effects = {(record.operation, record.effect) for record in caplog.records if record.name == "boardclient.calls"}
    assert effects == {("cards.create_many", None), ("credentials.renew", None), ("members.me", "done")}


async def test_events_name_call_account_and_headers(service: BoardService, policy: Any) -> None:
    """The events of one call carry its identifier, its account and the headers of responses; a view has observers of its own."""
    seen: list[Any] = []
    echo = {"X-Echo": service.key, "X-Kind": "canned"}
    async with AsyncSession(service.oauth_credentials(account="ada"), service.base_url, retry=policy) as session:
        view = session.with_options(observers=[seen.append])
        await view.members.me()
        service.faults.add(faults.status(503, headers=echo), "members.me", times=1)
        seen.clear()
        await view.members.me()
        await session.members.me()
    assert [type(event) for event in seen] == [RequestSent, ResponseReceived, RetryScheduled, RequestSent, ResponseReceived]
    assert {event.account for event in seen} == {"ada"}
    assert len({event.call_id for event in seen}) == 1
    assert (seen[1].headers["X-Echo"], seen[1].headers["X-Kind"]) == ("***", "canned")


async def test_observers_see_token_exchanges(service: BoardService) -> None:
    """The observers of the call that waits for a renewal see its exchange, with the call's identifier and no credential."""
    seen: list[Any] = []
    async with AsyncSession(service.oauth_credentials(account="ada"), service.base_url) as session:
        await session.with_options(observers=[seen.append]).members.me()
    sent, received, *others = seen
    assert (sent.operation, sent.method, sent.path, sent.attempt) == ("token exchange", "POST", "/auth/1/OAuthGetAccessToken", 1)
    assert (sent.call_id, sent.account) == (others[0].call_id, "ada")
    assert (received.operation, received.status, received.effect, received.why) == ("token exchange", 200, Effect.DONE, "success")
    assert (received.headers, received.call_id) == ({}, sent.call_id)
    assert [event.operation for event in others] == ["members.me", "members.me"]
    assert_no_secrets(seen, secrets=[service.key, service.client_secret, *_tokens(service)])


async def begin_exchange(service: BoardService, session: AsyncSession) -> asyncio.Task[Any]:
    """Begin to exchange a code, and return when the service has it."""
    form = session._parts.post_form(f"{service.auth_url}/1/OAuthGetAccessToken", {"code": "c0de"})
    exchange = asyncio.create_task(form)
    await service.received("token.exchange")
    return exchange


@pytest.mark.parametrize(
    ("fault", "status", "effect"),
    [
        (faults.status(400, body=b'{"error": "invalid_grant"}'), 400, Effect.REJECTED),
        (faults.drop(), None, Effect.UNKNOWN),
        (faults.hang(), None, Effect.UNKNOWN),
    ],
    ids=["refused", "dropped", "hanging"],
)
async def test_observers_see_failed_exchanges(service: BoardService, fault: Any, status: int | None, effect: Effect) -> None:
    """The observers of a session see an exchange that no call waits for, such as that of a sign-in."""
    seen: list[Any] = []
    service.faults.add(fault, "token.exchange")
    async with service.session(observers=[seen.append]) as session:
        exchange = await begin_exchange(service, session)
        if isinstance(fault, faults.hang):
            exchange.cancel()
        await asyncio.wait([exchange])
    assert [type(event) for event in seen] == [RequestSent, ResponseReceived]
    assert (seen[1].operation, seen[1].status, seen[1].effect) == ("token exchange", status, effect)
    assert seen[1].call_id == ""
    assert_no_secrets(seen, secrets=["c0de"])


async def test_observers_see_why_an_exchange_ended_early(service: BoardService) -> None:
    """It was not cancelled by the application: its session was closed."""
    seen: list[Any] = []
    service.faults.add(faults.hang(), "token.exchange")
    async with service.session(observers=[seen.append]) as session:
        exchange = await begin_exchange(service, session)
    with pytest.raises(SessionClosedError):
        await exchange
    assert "the session was closed during the call" in seen[1].why
    assert seen[1].effect is Effect.UNKNOWN
    assert_no_secrets(seen, secrets=["c0de"])


async def test_headers_of_events(service: BoardService) -> None:
    """The headers of an event ignore case, can be pickled and printed, and show no credential, before they are read as well."""
    seen: list[Any] = []
    echo = {"X-Echo": service.key, "X-Kind": "canned"}
    async with service.session(observers=[seen.append], retry=None) as session:
        service.faults.add(faults.status(200, headers=echo, body=b"{}"), times=2)
        for _ in range(2):
            with contextlib.suppress(BoardClientError):
                await session.members.me()
    read, unread = seen[1].headers, seen[3].headers
    assert_no_secrets(seen[3], secrets=[service.key])
    assert (read["x-kind"], read["X-Echo"], len(read)) == ("canned", "***", len(list(read)))
    assert "canned" in repr(read)
    assert pickle.loads(pickle.dumps(unread))["x-kind"] == "canned"


async def test_an_event_without_a_response_can_be_pickled_and_copied(service: BoardService) -> None:
    """An attempt that got no response has no headers. Its event, too, goes to another process."""
    seen: list[Any] = []
    service.faults.add(faults.drop())
    async with service.session(observers=[seen.append], retry=None) as session:
        with pytest.raises(BoardClientError):
            await session.members.me()
    assert (len(seen), dict(seen[1].headers)) == (2, {})
    assert pickle.loads(pickle.dumps(seen)) == copy.deepcopy(seen) == seen


class Failing(Instrument):
    """An instrument that always raises."""

    def begin(self, activity: Activity) -> None:
        raise ValueError("at a beginning")

    def note(self, activity: Activity, event: object) -> None:
        raise ValueError("at an event")

    def end(self, activity: Activity) -> None:
        raise ValueError("at an end")


async def test_an_instrument_that_fails_disturbs_nothing(
    service: BoardService, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of an instrument is logged, and the call continues; a cancelled call ends its activities."""
    INSTALLED.append(Failing())
    try:
        async with service.session(retry=policy) as session:
            await session.members.me()
            service.faults.add(faults.status(503), call=2)
            await session.members.me()
            service.faults.add(faults.hang())
            call = asyncio.ensure_future(session.members.me())
            await until(lambda: len(service.calls) >= 4, call)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
    finally:
        INSTALLED.pop()
    raised = [record.exc_info for record in caplog.records if record.getMessage() == "an instrument failed"]
    failed = [str(info[1]) for info in raised if info]
    assert set(failed) == {"at a beginning", "at an event", "at an end"}


@pytest.mark.full
@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("debug", 4), ("loud", 2), ("", 0)])
def test_the_environment_asks_for_logs(level: str, lines: int) -> None:
    """BOARDCLIENT_LOG writes to standard error; without it nothing is configured."""
    program = """
import asyncio
from boardclient.testing import playground
async def main():
    async with playground() as (service, session):
        await session.members.me()
asyncio.run(main())
"""
    environment = {"BOARDCLIENT_LOG": level, "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert len([line for line in done.stderr.splitlines() if "boardclient" in line]) == lines, done.stderr


async def test_records_say_what_a_call_has_done(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """The record of a call has its effect: done, what its error says, or the worst of its attempts where it was cancelled."""
    caplog.set_level(logging.INFO, "boardclient")
    async with service.session(retry=None) as session:
        await session.members.me()
        with pytest.raises(ApiError):
            await session.cards.get("none")
        service.faults.add(faults.drop(), times=1)
        with pytest.raises(BoardClientError):
            await session.members.me()
        service.faults.add(faults.hang())
        call = asyncio.ensure_future(session.members.me())
        await until(lambda: len(service.calls) >= 4, call)
        call.cancel()
        await asyncio.wait([call])
    records = [record for record in caplog.records if record.name == "boardclient.calls"]
    assert [record.effect for record in records] == ["done", "rejected", "unknown", "unknown"]
    assert [record.status for record in records] == [200, 404, None, None]
    assert ["effect unknown" in record.getMessage() for record in records] == [False, False, True, True]


async def test_lines_are_written_once(service: BoardService, capsys: pytest.CaptureFixture[str]) -> None:
    """An application whose root logger writes to the console gets no second line; one that does not propagate gets the first."""
    root, logger = logging.getLogger(), logging.getLogger("boardclient")
    lines = []
    console = logging.StreamHandler(sys.stderr)
    logs.log_to_stderr()
    try:
        async with service.session() as session:
            await session.members.me()
            lines.append(capsys.readouterr().err.count("members.me"))
            root.addHandler(console)
            await session.members.me()
            lines.append(capsys.readouterr().err.count("members.me"))
            logger.propagate = False
            await session.members.me()
            lines.append(capsys.readouterr().err.count("members.me"))
    finally:
        root.removeHandler(console)
        logger.propagate = True
    assert lines == [1, 1, 1]


def test_levels_are_named() -> None:
    """An unknown level is refused; setting a level again changes it without a second handler."""
    with pytest.raises(ValueError, match="debug"):
        logs.log_to_stderr("loud")  # type: ignore[arg-type]  # -- the point
    logger = logging.getLogger("boardclient")
    before, level = list(logger.handlers), logger.level
    try:
        logs.log_to_stderr()
        logs.log_to_stderr("debug")
        assert len(logger.handlers) == len(before) + 1
        assert logger.level == logging.DEBUG
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)


async def test_errors_name_their_call(service: BoardService) -> None:
    """An error has the identifier that events and logs have; without them it has none."""
    seen: list[Any] = []
    async with AsyncSession(StaticCredentials("wrong"), service.base_url, observers=[seen.append]) as session:
        with pytest.raises(BoardClientError) as caught:
            await session.members.me()
    assert caught.value.call_id == seen[0].call_id != ""
    assert not [event for event in seen if isinstance(event, CredentialsRenewed)]
