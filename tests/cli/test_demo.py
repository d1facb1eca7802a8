"""The tour and the service alone, with the shipped cards."""

import asyncio
import csv
import os
import signal
import socket
import threading
from datetime import datetime
from importlib.resources import files

from boardclient.cli import _demo


def test_the_demo_shows_the_whole_way(bare_cli) -> None:
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


def test_serve_prints_the_environment_and_ends_on_a_signal(bare_cli, monkeypatch) -> None:
    entered = threading.Event()
    services = []

    class Watched(_demo.BoardService):
        async def __aenter__(self):
            services.append(await super().__aenter__())
            # From here to the wait for the signal the command has no pause.
            asyncio.get_running_loop().call_soon(entered.set)
            return self

    monkeypatch.setattr(_demo, "BoardService", Watched)
    threading.Thread(target=lambda: (entered.wait(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()

    code, out, err = bare_cli("serve", "--port", "0")
    assert code == 143
    (service,) = services
    assert out.splitlines() == [
        f"export BOARDCLIENT_BASE_URL={service.base_url}",
        f"export BOARDCLIENT_AUTH_URL={service.auth_url}",
        f"export BOARDCLIENT_KEY={service.key}",
        f"export BOARDCLIENT_TOKEN={service.token}",
    ]
    assert "Serving until SIGINT or SIGTERM" in err
    assert err.endswith("ended by SIGTERM\n")


def test_a_port_that_is_taken_is_one_line(bare_cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = bare_cli("serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert f"can't listen on port {port}" in err
    assert err.count("\n") == 1
