"""Each command against the embedded service: what it prints, where, and its exit code."""

import builtins
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable

import pytest

import boardclient
from boardclient.cli import main
from boardclient.cli._settings import CliSettings
from boardclient.testing import BoardService, assert_no_secrets


def test_a_board_is_made_filled_shown_and_changed(cli, board_service: BoardService) -> None:
    """Each command for boards, lists and cards makes its call and prints the record."""
    code, out, err = cli("board", "create", "Roadmap", "--default-lists")
    assert (code, err) == (0, "")
    assert "board created" in out
    board_id = next(iter(board_service.rules.boards))
    assert board_id in out

    code, out, _ = cli("list", "create", "Review", "--board", board_id, "--pos", "top")
    assert code == 0
    assert "list created" in out
    lists = {item.name: item.id for item in board_service.rules.lists.values()}

    due = "2027-01-31T17:00:00+01:00"
    code, out, _ = cli("card", "create", "Ship", "--list", lists["Review"], "--desc", "soon", "--due", due, "--pos", "top")
    assert code == 0
    (card_id,) = board_service.rules.cards
    assert card_id in out
    assert board_service.rules.cards[card_id].due == "2027-01-31T16:00:00Z"

    code, out, _ = cli("card", "get", card_id)
    assert code == 0
    assert "Ship" in out
    assert "2027-01-31T16:00:00+00:00" in out

    assert cli("card", "move", card_id, "--list", lists["Done"]).code == 0
    assert board_service.rules.cards[card_id].list_id == lists["Done"]
    assert cli("card", "label", card_id, "label-1").code == 0
    assert board_service.rules.cards[card_id].labels == ["label-1"]
    assert cli("list", "archive", lists["Review"]).code == 0

    code, out, _ = cli("board", "show", board_id)
    assert code == 0
    assert "Review (archived, 0)" in out
    assert "• Ship" in out

    assert cli("card", "delete", card_id).code == 0
    assert not board_service.rules.cards


def test_what_is_not_given_is_not_sent(cli, board_service: BoardService, board) -> None:
    assert cli("board", "create", "Plain").code == 0
    assert cli("board", "create", "Empty", "--no-default-lists").code == 0
    assert cli("card", "create", "Plain", "--list", board.todo).code == 0
    assert cli("card", "create", "Blank", "--list", board.todo, "--desc", "").code == 0
    bodies = [{k: v for k, v in call.body.items() if k not in {"key", "token"}} for call in board_service.calls]
    assert bodies == [
        {"name": "Plain"},
        {"name": "Empty", "defaultLists": False},
        {"name": "Plain", "idList": board.todo},
        {"name": "Blank", "idList": board.todo, "desc": ""},
    ]


def test_whoami_shows_the_member(cli) -> None:
    code, out, _ = cli("whoami")
    assert code == 0
    assert "username" in out
    assert "A Member" in out


def test_an_unknown_organization_fails(cli) -> None:
    """An unknown organization is exit code 1 with the service's error."""
    code, out, err = cli("board", "create", "X", "--organization", "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("boardclient: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["", "import", "export", "journal show", "journal export", "board create", "serve"])
def test_the_help_of_each_command_has_an_example(bare_cli, command: str) -> None:
    code, out, _ = bare_cli(*command.split(), "--help")
    assert code == 0
    assert "Example" in out


def test_the_version_is_the_package_s(bare_cli) -> None:
    assert bare_cli("--version")[:2] == (0, f"{boardclient.__version__}\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["card", "create", "x"],
        ["card", "create", "x", "--list", "l", "--pos", "middle"],
        ["import", "x.csv", "--board", "b", "--concurrency", "0"],
        ["import", "x.csv", "--board", "b", "--settle", "-1"],
        ["import", "/", "--board", "b"],
        ["export", "b", "--format", "xlsx"],
        ["nonsense"],
        ["--token", "secret", "whoami"],
    ],
)
def test_bad_usage_is_exit_code_2(cli, board_service: BoardService, argv: list[str]) -> None:
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert err
    assert not board_service.calls


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "set BOARDCLIENT_BASE_URL or give --base-url"),
        ({"BOARDCLIENT_BASE_URL": "https://board.example"}, "set BOARDCLIENT_TOKEN"),
        ({"BOARDCLIENT_BASE_URL": "https://board.example", "BOARDCLIENT_TOKEN": ""}, "set BOARDCLIENT_TOKEN"),
        ({"BOARDCLIENT_BASE_URL": "http://board.example", "BOARDCLIENT_TOKEN": "t0ken-value"}, ""),
        ({"BOARDCLIENT_BASE_URL": "https://board.example/1", "BOARDCLIENT_TOKEN": "t0ken-value"}, ""),
    ],
)
def test_bad_configuration_is_one_line_and_exit_code_2(bare_cli, monkeypatch, variables: dict[str, str], message: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = bare_cli("whoami")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert_no_secrets(err, secrets=["t0ken-value"])


def test_an_option_wins_over_the_environment(cli, board_service: BoardService, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://nowhere.invalid")
    assert cli("--base-url", board_service.base_url, "--timeout", "20", "whoami").code == 0


def test_an_identifier_that_cannot_be_sent_is_bad_usage(cli, board_service: BoardService) -> None:
    code, _, err = cli("card", "get", "../\x1bx")
    assert code == 2
    assert "\x1b" not in err
    assert not board_service.calls


def test_a_naive_due_date_is_bad_usage(cli, board_service: BoardService) -> None:
    code, _, err = cli("card", "create", "x", "--list", "l", "--due", "2027-01-01T00:00:00")
    assert code == 2
    assert err.startswith("boardclient: error: --due: '2027-01-01T00:00:00' has no offset")
    assert not board_service.calls


def test_a_refused_token_says_where_a_new_one_comes_from(cli, board_service: BoardService, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "stale-token-value")
    code, _, err = cli("whoami")
    assert code == 1
    assert err.endswith("they are read from BOARDCLIENT_KEY and BOARDCLIENT_TOKEN\n")
    code, _, err = cli("--auth-url", board_service.auth_url, "whoami")
    assert code == 1
    assert f", tokens are exchanged at {board_service.auth_url}" in err
    assert "stale-token-value" not in err


def test_white_space_around_a_variable_is_removed(cli, monkeypatch) -> None:
    """A secret that was read from a file often ends in a line feed."""
    for name in ("BASE_URL", "KEY", "TOKEN"):
        monkeypatch.setenv(f"BOARDCLIENT_{name}", f" {os.environ[f'BOARDCLIENT_{name}']}\n")
    assert cli("whoami").code == 0


def test_a_write_whose_effect_is_unknown_says_so(cli, board_service: BoardService, board) -> None:
    board_service.faults.add(board_service.faults.drop(commit=True), "cards.create")
    code, out, err = cli("card", "create", "x", "--list", board.todo)
    assert (code, out) == (1, "")
    assert err.endswith("; it may have been done, check before you repeat it\n")
    assert len(board_service.calls_of("cards.create")) == 1


def test_a_repeatable_write_whose_effect_is_unknown_may_be_repeated(cli, board_service: BoardService, board, monkeypatch) -> None:
    monkeypatch.setattr(CliSettings, "session", lambda self: board_service.session(retry=None))
    board_service.faults.add(board_service.faults.drop(commit=True), "lists.archive")
    code, _, err = cli("list", "archive", board.todo)
    assert code == 1
    assert err.endswith("; it may have been done, repeat it to be sure\n")


def test_a_write_that_took_effect_says_so(cli, board_service: BoardService, board) -> None:
    board_service.faults.add(board_service.faults.foreign_body(b"[]"), "cards.create")
    code, _, err = cli("card", "create", "x", "--list", board.todo)
    assert code == 1
    assert "it was carried out, only the response can't be used" in err


def test_a_read_whose_response_was_lost_names_no_effect(cli, board_service: BoardService, monkeypatch) -> None:
    monkeypatch.setattr(CliSettings, "session", lambda self: board_service.session(retry=None))
    board_service.faults.add(board_service.faults.drop(), "cards.get")
    code, _, err = cli("card", "get", "x")
    assert code == 1
    assert "may have been done" not in err


def test_a_failed_read_names_no_effect(cli, board_service: BoardService) -> None:
    board_service.faults.add(board_service.faults.foreign_body(b"[]"), "members.me")
    code, _, err = cli("whoami")
    assert code == 1
    assert "done" not in err


def test_control_characters_of_a_response_are_escaped(cli, board_service: BoardService) -> None:
    body = b'{"id": "m1", "note": "\\u001b[2J\\u202e[red]x[/red]", "tags": ["left out"]}'
    board_service.faults.add(board_service.faults.foreign_body(body), "members.me")
    code, out, _ = cli("whoami")
    assert code == 0
    assert "\\x1b[2J\\u202e[red]x[/red]" in out
    assert "left out" not in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_call(
    cli, board_service: BoardService, board, signal_on: Callable, number: signal.Signals, code: int
) -> None:
    board_service.faults.add(board_service.faults.hang(commit=True), "cards.create")
    signal_on(number, "cards.create")
    result = cli("card", "create", "x", "--list", board.todo)
    assert result.code == code
    assert f"ended by {number.name}; the request in flight may or may not have been carried out" in result.err


def test_a_read_ended_by_a_signal_names_no_effect(cli, board_service: BoardService, signal_on: Callable) -> None:
    board_service.faults.add(board_service.faults.hang(), "members.me")
    signal_on(signal.SIGINT, "members.me")
    assert cli("whoami") == (130, "", "boardclient: ended by SIGINT\n")


def test_characters_that_the_output_cannot_encode_are_escaped(monkeypatch, board_service: BoardService) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", board_service.base_url)
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    monkeypatch.setenv("BOARDCLIENT_KEY", board_service.key)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with pytest.raises(SystemExit) as caught:
        main(["board", "create", "Zürich"])
    assert caught.value.code == 0
    assert b"Z\\xfcrich" in raw.getvalue()


def test_output_may_be_any_stream(board_service: BoardService) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        main(["--version"])
    assert out.getvalue() == f"{boardclient.__version__}\n"


def test_arguments_come_from_the_process_by_default(monkeypatch, capsys) -> None:
    """`main()` without arguments takes those of the process."""
    monkeypatch.setattr(sys, "argv", ["boardclient", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == f"{boardclient.__version__}\n"


def test_without_the_extra_the_command_names_it(monkeypatch, capsys) -> None:
    _hide(monkeypatch, "click")
    assert main(["--version"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install 'boardclient[cli]'" in err


def test_another_missing_module_is_not_blamed_on_the_extra(monkeypatch) -> None:
    _hide(monkeypatch, "aiohttp")
    with pytest.raises(ModuleNotFoundError):
        main(["--version"])


def _hide(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object, **options: object) -> object:
        if name == "boardclient.cli._program":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
