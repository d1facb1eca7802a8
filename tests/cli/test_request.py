"""`request`, which sends anything, and addresses of boards and cards in place of their identifiers."""

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from boardclient.testing import BoardService
from boardclient.testing._rules import SeededBoard


@pytest.fixture
def seeded(board_service: BoardService) -> SeededBoard:
    """Give a board with a card in its first list."""
    return board_service.seed({"To Do": ["Book the hall"], "Done": []}, name="Roadmap")


def typed(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


def sent(service: BoardService) -> dict[str, Any]:
    """Return what the last call has sent, without its credentials."""
    call = service.calls[-1]
    body = call.body if isinstance(call.body, dict) else {}
    given: Mapping[str, Any] = {**call.query, **body}
    return {name: value for name, value in given.items() if name not in {"key", "token"}}


def test_any_request_is_sent_and_its_body_printed(cli, on_a_terminal, seeded: SeededBoard) -> None:
    """On one line into a pipe, with indents on a terminal. Fields are chosen from an object, or from each of an array."""
    card, path = seeded.cards["Book the hall"], f"/1/boards/{seeded.id}/cards"
    code, out, err = cli("request", "get", path)
    assert (code, err, out.count("\n"), json.loads(out)[0]["name"]) == (0, "", 1, "Book the hall")
    assert json.loads(cli("request", "GET", path, "--json", "id,name").out) == [{"id": card, "name": "Book the hall"}]
    assert json.loads(cli("request", "--json=name", "GET", f"/1/cards/{card}").out) == {"name": "Book the hall"}
    assert json.loads(cli("request", "--json", "GET", f"/1/cards/{card}").out)["id"] == card
    assert '  "name": "Book the hall",' in on_a_terminal("request", "GET", f"/1/cards/{card}").splitlines()


def test_what_a_request_carries_comes_from_options_a_file_or_standard_input(
    cli, board_service: BoardService, seeded: SeededBoard, tmp_path: Path, monkeypatch
) -> None:
    """A field is JSON if it can be, a raw one a text. They go into the body, or into the query of a request without one."""
    card, list_id = f"/1/cards/{seeded.cards['Book the hall']}", seeded.lists["Done"]
    (tmp_path / "text").write_text("of a file")
    fields = ["-F", "n=7", "-F", "yes=true", "-F", "t=a b", "-F", 'q="x"', "-f", "raw=7", "-F", f"file=@{tmp_path / 'text'}"]
    assert cli("request", "PUT", card, "-f", f"idList={list_id}", *fields).code == 0
    expected = {"idList": list_id, "n": 7, "yes": True, "t": "a b", "q": '"x"', "raw": "7", "file": "of a file"}
    assert sent(board_service) == expected
    assert (
        cli("request", "GET", f"{board_service.base_url}{card}?a=1&b=", "-q", "c=2", "-F", "d=true", "-H", "X-Trace: 7").code == 0
    )
    assert sent(board_service) == {"a": "1", "b": "", "c": "2", "d": "true"}
    assert board_service.calls[-1].headers["x-trace"] == "7"
    monkeypatch.setattr(sys, "stdin", typed(json.dumps({"idList": list_id})))
    assert cli("request", "PUT", card, "--input", "-", "-F", "n=1").code == 0
    assert sent(board_service) == {"idList": list_id, "n": 1}
    (tmp_path / "text").write_text(json.dumps({"idList": list_id}))
    assert cli("request", "PUT", card, "--input", str(tmp_path / "text")).code == 0
    assert sent(board_service) == {"idList": list_id}
    (tmp_path / "text").write_text("[1]")
    cli("request", "PUT", card, "--input", str(tmp_path / "text"), "-F", "n=1").fails(2, "--input is none")
    (tmp_path / "text").write_text("{")
    cli("request", "PUT", card, "--input", str(tmp_path / "text")).fails(2, "--input is not JSON")
    (tmp_path / "text").write_bytes(b"\xff")
    cli("request", "PUT", card, "-F", f"a=@{tmp_path / 'text'}").fails(2, "is not UTF-8 text")
    cli("request", "PUT", card, "--input", str(tmp_path / "none")).fails(2, "can't read", "No such file or directory")
    cli("request", "PUT", card, "-F", "a").fails(2, "it must be a name and a value, such as name=value")


@pytest.mark.parametrize(
    "options",
    [
        ["-F", "token=of-mine"],
        ["-f", "key=of-mine"],
        ["-q", "token=of-mine"],
        ["-H", "Authorization: of-mine"],
        ["-H", "cookie:of-mine"],
        ["-F", "a={token}"],
        ["-H", "X-A: Bearer {token}"],
        ["--query", "a={key}"],
    ],
)
def test_a_credential_is_never_an_option(cli, board_service: BoardService, seeded: SeededBoard, options: list[str]) -> None:
    """Nor in the query of the path. It is refused unsent, and not printed."""
    given = [text.format(token=board_service.token, key=board_service.key) for text in options]
    result = cli("request", "GET", "/1/members/me", *given)
    assert (result.code, result.out, board_service.calls) == (2, "", [])
    assert not any(secret in result.err for secret in ("of-mine", board_service.token, board_service.key))
    cli("request", "GET", "/1/members/me?token=of-mine").fails(2, "token is a credential, which is never an option")


def test_a_request_that_nothing_undoes_asks_first(cli, board_service: BoardService, seeded: SeededBoard) -> None:
    """It needs --yes where nobody can answer."""
    card, list_path = f"/1/cards/{seeded.cards['Book the hall']}", f"/1/lists/{seeded.lists['Done']}"
    for argv in (["DELETE", card], ["PUT", list_path, "-F", "closed=true"]):
        cli("request", *argv).fails(2, "nobody can be asked here: give --yes")
        assert not board_service.calls
        assert cli("request", *argv, "--yes").code == 0
        board_service.calls.clear()


def test_the_exit_code_of_a_request_is_that_of_any_command(cli, monkeypatch, board_service: BoardService) -> None:
    cli("request", "GET", "/1/cards/none").fails(1, "status 404")
    cli("request", "GET", "/2/cards").fails(2, 'path must start with "/1/"')
    cli("request", "CONNECT", "/1/cards").fails(2, "method must be an HTTP method")
    cli("request", "/1/members/me").fails(2, "it comes before the path, such as GET /1/members/me")
    cli("request", "GET", "https://other.example/1/me").fails(2, "other.example is not the service's address, http://127.0.0.1:")
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "refused")
    cli("request", "GET", "/1/members/me").fails(4, "status 401")
    monkeypatch.delenv("BOARDCLIENT_TOKEN")
    cli("request", "GET", "/1/members/me").fails(4, "not signed in")


def test_a_body_that_is_no_json_is_printed_as_it_is(cli, on_a_terminal, board_service: BoardService) -> None:
    """On a terminal it can't steer it. With --json it is an error, and an empty one is null."""
    faults = board_service.faults
    faults.add(faults.foreign_body(b"a\x1b[2J\nb\n", "text/plain"), "members.me")
    assert cli("request", "GET", "/1/members/me").out == "a\x1b[2J\nb\n"
    assert on_a_terminal("request", "GET", "/1/members/me") == "a\\x1b[2J\nb\n"
    cli("request", "GET", "/1/members/me", "--json").fails(1, "status 200, and GET /1/members/me: the body is not JSON")
    faults.clear()
    faults.add(faults.foreign_body(b""), "members.me")
    assert cli("request", "GET", "/1/members/me", "--json").out == "null\n"


def test_fields_that_a_response_lacks_are_named(cli, board_service: BoardService, seeded: SeededBoard) -> None:
    """What one of several objects lacks is null."""
    cli("request", "GET", "/1/members/me", "--json", "colour").fails(1, "the response has no field 'colour'; there are id, ")
    board_service.faults.add(board_service.faults.foreign_body(b'[{"id": "a", "n": 1}, {"id": "b"}]'), "boards.cards")
    path = f"/1/boards/{seeded.id}/cards"
    assert json.loads(cli("request", "GET", path, "--json", "n").out) == [{"n": 1}, {"n": None}]
    board_service.faults.clear()
    board_service.faults.add(board_service.faults.foreign_body(b"[1]"), "boards.cards")
    cli("request", "GET", path, "--json", "n").fails(1, "the response is not an object, so it has no field 'n'")


# --- addresses


def test_a_pasted_address_is_taken_for_its_identifier(cli, board_service: BoardService, seeded: SeededBoard) -> None:
    """Of a board and of a card, with what browsers show behind it: the service says which part it knows."""
    card = seeded.cards["Book the hall"]
    for address in (seeded.url, f"{seeded.url}/roadmap?filter=all#top", f"https://app.example/#/board/{seeded.id}"):
        assert json.loads(cli("board", "show", address, "--json").out)["id"] == seeded.id
    assert json.loads(cli("list", "create", "New", "--board", seeded.url, "--json").out)["board_id"] == seeded.id
    shown = json.loads(cli("card", "get", card, "--json").out)["url"]
    for argv in ([f"https://app.example/c/{card}/1-book-the-hall"], [shown], [shown, "--board", seeded.url]):
        assert json.loads(cli("card", "get", *argv, "--json").out)["id"] == card
    assert cli("card", "move", shown, "--board", seeded.id, "--list", "Done").code == 0
    assert cli("export", seeded.url).out.count("Book the hall") == 1


def test_the_address_of_a_board_gives_it_a_name(cli, seeded: SeededBoard) -> None:
    assert cli("board", "name", f"{seeded.url}/roadmap", "Trip").out == f"id\t{seeded.id}\nname\tTrip\n"
    assert json.loads(cli("board", "show", "Trip", "--json").out)["id"] == seeded.id


def test_a_row_is_not_settled_with_an_address(cli, tmp_path: Path) -> None:
    """A journal asks no service, which alone could tell the identifier in it."""
    line = ("journal", "resolve", str(tmp_path / "j"), "r-1", "--card", "https://app.example/c/1")
    cli(*line).fails(2, "--card is an address: give the card's identifier alone, which ends at the next slash")


def test_an_address_without_an_identifier_says_where_that_ends(cli, board_service: BoardService, seeded: SeededBoard) -> None:
    """And so does one with two."""
    cli("board", "show", "https://app.example/help/boards").fails(
        2, "the service knows no part of it as the identifier of a board (tried: 'help', 'boards'): give the identifier alone"
    )
    cli("card", "get", "https://app.example/").fails(
        2, "is an address, and the service knows no part of it", "ends at the next slash"
    )
    other = board_service.seed({})
    cli("board", "show", f"https://app.example/{seeded.id}/{other.id}").fails(2, f"give one of '{seeded.id}', '{other.id}'")


def test_a_name_that_looks_like_an_address_is_a_name(cli, board_service: BoardService, seeded: SeededBoard) -> None:
    name = "https://app.example/x"
    made = json.loads(cli("card", "create", name, "--board", seeded.id, "--list", "Done", "--json").out)
    assert json.loads(cli("card", "get", name, "--board", seeded.id, "--json").out)["id"] == made["id"]
    assert cli("board", "create", name).code == 0
    assert json.loads(cli("board", "show", name, "--json").out)["lists"] == []
