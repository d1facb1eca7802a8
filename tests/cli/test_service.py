"""The tour and the service alone, with the shipped cards."""

import asyncio
import contextlib
import csv
import os
import signal
import socket
import threading
from datetime import datetime
from importlib.resources import files

import pytest

import boardclient
from boardclient.testing import BoardService, assert_no_secrets


def test_the_demo_survives_faults_and_prints_what_it_did(bare_cli) -> None:
    """The demo fills a board across faults and an expired token, changes cards, and prints what it did."""
    code, out, err = bare_cli("demo")
    assert (code, err) == (0, "")
    assert "created 210, failed 0, unknown 0" in out
    assert "the access token expired. For all requests that met a 401 the application was asked for 1 new code." in " ".join(
        out.split()
    )
    assert "Moved 5 cards from To Do to Doing." in out
    assert "Labelled 3 cards" in out
    assert "Deleted the card" in out
    assert "Icebox (archived," in out


def test_the_shipped_cards_are_varied() -> None:
    text = (files("boardclient.cli") / "data" / "cards.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines(keepends=True)))
    assert len({row["name"] for row in rows}) == len({row["reference"] for row in rows}) == len(rows) == 210
    assert {row["list"] for row in rows} == {"To Do", "Doing", "Done", "Icebox"}
    assert all(datetime.fromisoformat(row["due"]).utcoffset() is not None for row in rows if row["due"])
    assert any("\n" in row["desc"] for row in rows)
    assert any("," in row["desc"] for row in rows)
    assert not text.isascii()


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--latency", "--fail", "--rate-limit", "--token-lifetime"])
def test_a_number_that_is_not_finite_is_bad_usage(bare_cli, monkeypatch, option: str, value: str) -> None:
    monkeypatch.setattr(BoardService, "start", None)
    code, out, err = bare_cli("serve", option, value)
    assert (code, out) == (2, "")
    assert option in err


class Served:
    """Runs `serve` in this process until a client has done its part."""

    def __init__(self, bare_cli, monkeypatch) -> None:
        self.cli, self.monkeypatch = bare_cli, monkeypatch

    def __call__(self, visit, *argv):
        entered, services = threading.Event(), []

        start = BoardService.start

        async def watched(service) -> None:
            await start(service)
            services.append(service)
            # From here to the wait for the signal the command has no pause.
            asyncio.get_running_loop().call_soon(entered.set)

        def run() -> None:
            entered.wait()
            try:
                asyncio.run(visit(services[0]))
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        self.monkeypatch.setattr(BoardService, "start", watched)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        result = self.cli("serve", *argv)
        thread.join()
        return result, services[0]


@pytest.fixture
def served(bare_cli, monkeypatch) -> Served:
    return Served(bare_cli, monkeypatch)


def test_serve_prints_the_environment_and_ends_on_a_signal(served) -> None:
    async def visit(service) -> None:
        pass

    (code, out, err), service = served(visit, "--port", "0")
    assert code == 143
    assert out.splitlines() == [
        f"export BOARDCLIENT_BASE_URL={service.base_url}",
        f"export BOARDCLIENT_AUTH_URL={service.auth_url}",
        f"export BOARDCLIENT_KEY={service.key}",
        f"export BOARDCLIENT_TOKEN={service.token}",
        f"export BOARDCLIENT_CLIENT_ID={service.client_id}",
        f"export BOARDCLIENT_CLIENT_SECRET={service.client_secret}",
        "export BOARDCLIENT_REDIRECT_URI=http://127.0.0.1:8000/callback",
        f"export BOARDCLIENT_AUTHORIZE_URL={service.auth_url}/authorize",
    ]
    assert "Serving the members Ada Lovelace, Alan Turing until SIGINT or SIGTERM" in err
    assert err.endswith("ended by SIGTERM\n")


def test_serve_logs_requests_without_their_secrets(served) -> None:
    async def visit(service) -> None:
        async with service.session(retry=None) as session:
            await session.boards.create("B")
            await session.members.me()
            service.faults.add(service.faults.drop(), "cards.get")
            with pytest.raises(boardclient.TransportError):
                await session.cards.get("c")

    (_, _, err), service = served(visit)
    lines = [line.split("  ", 1)[1] for line in err.splitlines() if "/1/" in line]
    assert lines == [
        "POST   /1/boards  200  boards.create",
        "GET    /1/members/me  200  members.me",
        "GET    /1/cards/c  no response  cards.get",
    ]
    assert_no_secrets(err, secrets=[service.token, service.key, service.client_secret])


def test_serve_has_the_members_limits_and_delays_that_are_asked_for(served) -> None:
    """`serve` applies its options for members, rate limit and delay."""

    async def visit(service) -> None:
        async with service.session(retry=None) as session:
            assert (await session.members.me()).id == service.members[0].id
            with pytest.raises(boardclient.RateLimitError):
                await session.members.me()

    options = ["--member", "Grace", "--rate-limit", "0.5", "--token-lifetime", "60", "--redirect-uri", "https://app.example/cb"]
    _, service = served(visit, *options, "--latency", "0.001")
    assert [member.name for member in service.members] == ["Grace"]
    assert (service.token_lifetime, service.redirect_uri, service.latency) == (60.0, "https://app.example/cb", 0.001)


@pytest.mark.parametrize(("chance", "made"), [(0.0, 1), (0.39, 1), (0.41, 0), (0.81, 1)])
def test_serve_fails_the_share_that_is_asked_for_half_of_them_after_the_commit(served, monkeypatch, chance, made) -> None:
    """`serve --fail` fails that share of the requests, half of them after the commit."""
    monkeypatch.setattr("random.random", lambda: chance)

    async def visit(service) -> None:
        async with service.session(retry=None) as session:
            with pytest.raises(boardclient.ServerError) if chance < 0.8 else contextlib.nullcontext():
                await session.boards.create("B")

    _, service = served(visit, "--fail", "0.8")
    assert len(service.rules.boards) == made


def test_a_taken_port_is_reported_on_one_line(bare_cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = bare_cli("serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert f"can't listen on port {port}" in err
    assert err.count("\n") == 1
