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

import aiohttp
import pytest

import boardclient
from boardclient.cli import _service
from boardclient.testing import BoardService, ReplayService, assert_no_secrets, playground, record


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


class Served:
    """Runs `serve` in this process until a client has done its part."""

    def __init__(self, bare_cli, monkeypatch, kind=BoardService) -> None:
        self.cli, self.monkeypatch, self.kind = bare_cli, monkeypatch, kind

    def __call__(self, visit, *argv):
        entered, services = threading.Event(), []

        start = self.kind.start

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

        self.monkeypatch.setattr(self.kind, "start", watched)
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
        "GET    /1/cards/c  no response  cards.get  (Drop)",
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


@pytest.mark.parametrize(("chance", "made"), [(0.0, 1), (0.49, 1), (0.51, 0)])
def test_serve_fails_the_share_that_is_asked_for_half_of_them_after_the_commit(served, monkeypatch, chance, made) -> None:
    """`serve --fail` fails that share of the requests, half of them after the commit."""
    monkeypatch.setattr(_service, "_chance", lambda: chance)

    async def visit(service) -> None:
        async with service.session(retry=None) as session:
            with pytest.raises(boardclient.ServerError):
                await session.boards.create("B")

    _, service = served(visit, "--fail", "1")
    assert len(service.rules.boards) == made


def test_serve_replays_a_recording(bare_cli, monkeypatch, tmp_path) -> None:
    """Any number of clients get what was recorded. A request that is not in the file is logged with the nearest one."""
    path, seen = tmp_path / "calls.har", []

    async def record_calls() -> None:
        async with playground() as (service, session), record(path):
            seen.append(await session.boards.create("Party"))
            service.faults.add(service.faults.drop(), "cards.get")
            with contextlib.suppress(boardclient.TransportError):
                await session.with_options(retry=None).cards.get("c")

    asyncio.run(record_calls())

    async def visit(service) -> None:
        async with boardclient.AsyncSession(
            boardclient.StaticCredentials("t0ken-1234", "k3y-1234"), service.base_url, retry=None
        ) as session:
            seen.extend([await session.boards.create("Party") for _ in range(2)])
            with pytest.raises(boardclient.ApiError):
                await session.boards.create("Wedding")
        async with aiohttp.ClientSession() as http:  # as from another process
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"{service.base_url}/1/cards/c", params={"key": "k3y-1234", "token": "t0ken-1234"})

    (code, out, err), _ = Served(bare_cli, monkeypatch, ReplayService)(visit, "--replay", str(path))
    assert code == 143
    assert out.startswith("export BOARDCLIENT_BASE_URL=http://127.0.0.1:")
    assert seen[0] == seen[1] == seen[2]
    lines = [line.split("  ", 1)[1] for line in err.splitlines() if "/1/" in line]
    assert lines[:2] == ["POST   /1/boards  200"] * 2
    assert lines[2].startswith("POST   /1/boards  421  POST /1/boards")
    assert lines[3] == "GET    /1/cards/c  no response"
    assert f"Replaying {path} until SIGINT or SIGTERM" in err
    assert_no_secrets(err, secrets=["k3y-1234", "t0ken-1234"])


def test_serve_says_what_is_wrong_with_a_recording(bare_cli, tmp_path) -> None:
    """A file that is absent or no recording, and options that it can't follow."""
    (tmp_path / "a.json").write_text("[]")
    for argv, words in [
        (["absent.har"], "can't read absent.har: No such file"),
        ([str(tmp_path / "a.json")], "can't be replayed: it is no HTTP Archive"),
        ([str(tmp_path / "a.json"), "--fail", "0.5"], "--replay can't be combined with"),
    ]:
        code, out, err = bare_cli("serve", "--replay", *argv)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_a_taken_port_is_reported_on_one_line(bare_cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = bare_cli("serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert f"can't listen on port {port}" in err
    assert err.count("\n") == 1
