"""The tour and the service alone, with the shipped cards."""

import asyncio
import json
import os
import signal
import socket
import threading

import pytest

import boardclient
from boardclient.testing import BoardService, assert_no_secrets


def test_the_demo_imports_cards_across_an_expired_token(bare_cli, monkeypatch) -> None:
    """A terminal of 80 columns and 24 lines shows the whole of it, below the command."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = bare_cli("demo")
    assert (code, err) == (0, "")
    assert "created 210, failed 0, unknown 0" in out
    assert "the token expired. For all 401s the application was asked for 1 new code." in out
    assert "The response to request 100 was lost: its card was found, and is there once." in out
    assert "Icebox (" in out
    assert sum(-(-len(line) // 80) or 1 for line in out.splitlines()) < 24


def test_the_demo_can_be_read_by_programs(bare_cli) -> None:
    """Standard output has the object of its import alone."""
    code, out, err = bare_cli("demo", "--json", "created,failed")
    assert (code, json.loads(out)) == (0, {"created": 210, "failed": 0})
    assert "the token expired" in err


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

    (code, out, err), service = served(visit, "--redirect-uri", "https://app.example/cb")
    assert code == 143
    assert out.splitlines() == [
        f"export BOARDCLIENT_BASE_URL={service.base_url}",
        f"export BOARDCLIENT_AUTH_URL={service.auth_url}",
        f"export BOARDCLIENT_KEY={service.key}",
        f"export BOARDCLIENT_TOKEN={service.token}",
        f"export BOARDCLIENT_CLIENT_ID={service.client_id}",
        f"export BOARDCLIENT_CLIENT_SECRET={service.client_secret}",
        "export BOARDCLIENT_REDIRECT_URI=https://app.example/cb",
        f"export BOARDCLIENT_AUTHORIZE_URL={service.auth_url}/authorize",
    ]
    assert "Serving the members Ada Lovelace, Alan Turing until SIGINT or SIGTERM" in err
    assert err.endswith("ended by SIGTERM\n")


def test_serve_logs_requests_without_their_secrets(served) -> None:
    async def visit(service) -> None:
        async with service.session(retry=None) as session:
            await session.boards.create("B")
            assert (await session.members.me()).id == service.members[0].id
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


def test_a_taken_port_is_reported_on_one_line(bare_cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = bare_cli("serve", "--port", str(port))
    assert (code, out, err) == (2, "", f"boardclient: error: can't listen on port {port}: Address already in use\n")


def test_serve_prints_the_environment_as_json(served) -> None:
    """On one line, for programs that start it."""

    async def visit(service: BoardService) -> None:
        pass

    (code, out, _), service = served(visit, "--json")
    assert (code, json.loads(out)) == (143, dict(service.environment))
    (_, out, _), service = served(visit, "--json", "BOARDCLIENT_BASE_URL")
    assert json.loads(out) == {"BOARDCLIENT_BASE_URL": service.base_url}
