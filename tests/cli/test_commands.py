"""Each command against the embedded service: what it prints, where, and its exit code."""

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest

import boardclient
from boardclient.cli import main
from boardclient.resources import Cards
from boardclient.testing import BoardService, assert_no_secrets
from boardclient.testing.faults import drop, foreign_body


def fields(out: str) -> dict[str, str]:
    """Read a record that was printed into a pipe."""
    return dict(line.split("\t") for line in out.splitlines())


def test_a_board_is_made_filled_shown_and_changed(cli, board_service: BoardService) -> None:
    """Each command makes its call by the names of board, list and card, and prints the record."""
    code, out, err = cli("board", "create", "Roadmap", "--default-lists")
    assert (code, err, fields(out)["name"]) == (0, "", "Roadmap")
    board_id = fields(out)["id"]

    on = ("--board", "Roadmap")
    review = fields(cli("list", "create", "Review", *on, "--pos", "top").out)["id"]
    due = ("--due", "2027-01-31T17:00:00+01:00")
    created = fields(cli("card", "create", "Ship", "--list", "Review", *on, "--desc", "soon", *due, "--pos", "top").out)
    assert created.items() >= {"name": "Ship", "list_id": review, "due": "2027-01-31T16:00:00+00:00"}.items()
    card_id = created["id"]
    assert board_service.rules.cards[card_id].due == "2027-01-31T16:00:00Z"
    assert fields(cli("card", "get", "Ship", *on).out)["id"] == card_id

    moved = fields(cli("card", "move", "Ship", "--list", "Done", *on).out)
    assert board_service.rules.cards[card_id].list_id == moved["list_id"] != review
    assert cli("card", "label", "Ship", "label-1", *on).code == 0
    assert board_service.rules.cards[card_id].labels == ["label-1"]
    assert cli("list", "archive", "Review", *on, "--yes").code == 0

    lines = [line.split("\t") for line in cli("board", "show", "Roadmap").out.splitlines()]
    assert [moved["list_id"], "Done", card_id, "Ship", "2027-01-31T16:00:00+00:00"] in lines
    assert [review, "Review", "", "", ""] in lines
    assert fields(cli("board", "list").out) == {board_id: "Roadmap"}

    assert cli("card", "delete", "Ship", *on, "--yes").code == 0
    assert not board_service.rules.cards


def test_a_reference_gets_one_card(cli, board_service: BoardService, board, tmp_path) -> None:
    """The same line again shows the same card, and another content is refused."""
    line, place = ["card", "create", "Fix", "--list", board.todo], ["--ledger", str(tmp_path / "l"), "--reference", "t1"]
    first, again = (cli(*line, *place, "--board", board.board) for _ in "12")
    assert (first.code, fields(first.out)["id"]) == (0, fields(again.out)["id"])
    code, _, err = cli(*line, *place, "--board", board.board, "--desc", "now")
    assert code == 2
    assert "another desc" in err
    cli(*line, *place).fails(2, "--reference needs --board")
    cli(*line, *place[:2], "--board", board.board).fails(2, "--ledger needs --reference")
    assert len(board_service.rules.cards) == 1


def test_references_have_a_default_place(cli, board_service: BoardService, board, tmp_path) -> None:
    """It is beside the profiles, and the folder of these is made if need be."""
    line = ["card", "create", "Fix", "--list", "To Do", "--board", board.board, "--reference", "t1"]
    first, again = cli(*line), cli(*line)
    assert (first.code, fields(first.out)["id"]) == (0, fields(again.out)["id"])
    assert (tmp_path / "config" / "boardclient" / "cards.ledger").exists()
    assert len(board_service.rules.cards) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["card", "get", "Twins", "--board", "{board}"], "'Twins' is the name of 2 cards; give an identifier: {first}, {second}"),
        (
            ["card", "get", "Twin", "--board", "{board}"],
            "'Twin' is neither the identifier nor the name of a card of the board; did",
        ),
        (["card", "create", "x", "--list", "to do", "--board", "{board}"], "did you mean 'To Do'?"),
        (["card", "create", "x", "--list", "Nowhere", "--board", "{board}"], "; there are 'To Do', 'Doing', 'Done'"),
        (["list", "archive", "Done", "--yes"], "give --board to name a list or card in place of its identifier"),
        (["board", "show", "Roadmp"], "did you mean 'Roadmap'?"),
        (["board", "show", "Same"], "'Same' is the name of 2 boards; give an identifier: b1, b2"),
    ],
)
def test_a_name_that_is_not_exactly_one_is_refused_with_what_helps(cli, board_service, board, argv, message) -> None:
    first, second = (fields(cli("card", "create", "Twins", "--list", board.todo).out)["id"] for _ in "12")
    for board_id, name in {board.board: "Roadmap", "b1": "Same", "b2": "Same"}.items():
        assert cli("board", "name", board_id, name).code == 0
    made = len(board_service.rules.cards)
    code, out, err = cli(*(part.format(**board._asdict()) for part in argv))
    assert code in {1, 2}
    assert out == ""
    assert message.format(first=first, second=second) in err
    assert len(board_service.rules.cards) == made


def test_a_card_whose_response_is_lost_is_looked_up_on_the_board(cli, board_service: BoardService, board, monkeypatch) -> None:
    """It is found there, or sent again once a temporary card has proven that it is absent."""
    real = Cards.create
    monkeypatch.setattr(Cards, "create", lambda *args, **options: real(*args, **options, settle=0.1))
    cards, into = board_service.rules.cards, ("--list", "To Do", "--board", board.board)
    board_service.faults.add(board_service.faults.drop(), "cards.create", call=1)
    code, out, err = cli("card", "create", "A", *into)
    assert (code, [fields(out)["id"]]) == (0, [*cards])
    number = len(board_service.calls_of("cards.create")) + 1
    board_service.faults.add(board_service.faults.drop(commit=True), "cards.create", call=number)
    code, out, err = cli("card", "create", "B", *into)
    assert (code, fields(out)["id"] in cards, len(cards)) == (0, True, 2)
    assert re.fullmatch(r"the response was lost: the board is read at \d\d:\d\d:\d\d to find the card\n", err)


@pytest.mark.parametrize("argv", [["card", "delete", "{card}"], ["list", "archive", "{todo}"]])
def test_what_can_t_be_undone_needs_consent(cli, board_service: BoardService, board, monkeypatch, argv) -> None:
    card_id = fields(cli("card", "create", "x", "--list", board.todo).out)["id"]
    argv = [part.format(**board._asdict(), card=card_id) for part in argv]
    before = len(board_service.calls)
    cli(*argv).fails(2, "give --yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: "n")
    assert cli(*argv).code == 2
    assert len(board_service.calls) == before
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: "y")
    assert cli(*argv).code == 0


def test_dates_are_those_of_the_zone_or_the_machine(cli, board_service: BoardService, board, monkeypatch) -> None:
    """A plain date is the day of the zone, wherever it is shown."""
    due = ("--due", "2026-12-31")
    out = cli("card", "create", "A", "--list", board.todo, *due, "--timezone", "Europe/Berlin").out
    assert fields(out)["due"] == "2026-12-31T00:00:00+01:00"
    assert board_service.rules.cards[fields(out)["id"]].due == "2026-12-30T23:00:00Z"
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    assert fields(cli("card", "create", "B", "--list", board.todo, *due).out)["due"] == "2026-12-31T00:00:00-05:00"
    assert cli("board", "show", board.board).out.splitlines()[0].endswith("2026-12-30T18:00:00-05:00")
    monkeypatch.setenv("BOARDCLIENT_TIMEZONE", "Europe/Berlin")
    assert cli("board", "show", board.board).out.splitlines()[0].endswith("2026-12-31T00:00:00+01:00")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--json=name,id", "{card}"], {"name": "x", "id": "{card}"}),
        (["{card}", "--json", "id"], {"id": "{card}"}),
        (["--json", "{card}"], None),
        (["--json", "--board", "{board}", "x"], None),
        (["x", "--board", "{board}", "--json"], None),
    ],
)
def test_fields_are_chosen_after_json_and_nothing_else_is_taken_for_them(cli, board, argv, expected) -> None:
    card_id = fields(cli("card", "create", "x", "--list", board.todo).out)["id"]
    out = cli("card", "get", *(part.format(**board._asdict(), card=card_id) for part in argv)).out
    wanted = None if expected is None else {name: value.format(card=card_id) for name, value in expected.items()}
    found = json.loads(out)
    assert found == wanted or (wanted is None and found["id"] == card_id and len(found) == 7)


def test_a_board_is_drawn_on_a_terminal_and_known_ones_are_listed(cli, on_a_terminal, monkeypatch) -> None:
    board_id = fields(cli("board", "create", "Roadmap").out)["id"]
    assert json.loads(cli("board", "list", "--json").out) == [{"id": board_id, "name": "Roadmap"}]
    monkeypatch.setenv("_BOARDCLIENT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "boardclient board show R")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert cli().out == "plain,Roadmap\n"
    monkeypatch.delenv("_BOARDCLIENT_COMPLETE")
    assert on_a_terminal("board", "show", "Roadmap") == "The board has no lists.\n"


def test_a_date_at_the_end_of_time_stays_in_utc(cli, board) -> None:
    out = cli("card", "create", "A", "--list", board.todo, "--due", "9999-12-31T23:30:00Z", "--timezone", "Asia/Karachi").out
    assert fields(out)["due"] == "9999-12-31T23:30:00+00:00"


def test_a_field_that_does_not_exist_is_refused_before_anything_is_sent(cli, board_service: BoardService) -> None:
    cli("board", "create", "x", "--json=colour").fails(2, "no field 'colour'; there are id, name, url, prefs")
    assert not board_service.calls
    code, _, err = cli("doctor", "--json=clocks")
    assert (code, "no field 'clocks'; there are versions, " in err) == (2, True)


def test_the_text_of_another_option_may_be_json(cli, board_service: BoardService, board) -> None:
    cli("card", "create", "x", "--list", board.todo, "--desc", "--json")
    assert [card.desc for card in board_service.rules.cards.values()] == ["--json"]


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
        ["export", "b", "--delimiter", ";;"],
        ["export", "b", "--delimiter", '"'],
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
    ("variables", "expected", "message"),
    [
        ({}, 2, "set BOARDCLIENT_BASE_URL, or give --base-url"),
        ({"BOARDCLIENT_BASE_URL": "https://board.example"}, 4, "set BOARDCLIENT_TOKEN, or run boardclient login"),
        ({"BOARDCLIENT_BASE_URL": "https://board.example", "BOARDCLIENT_TOKEN": ""}, 4, "set BOARDCLIENT_TOKEN"),
        ({"BOARDCLIENT_BASE_URL": "http://board.example", "BOARDCLIENT_TOKEN": "t0ken-value"}, 2, "--allow-insecure"),
        ({"BOARDCLIENT_BASE_URL": "https://board.example/1", "BOARDCLIENT_TOKEN": "t0ken-value"}, 2, ""),
    ],
)
def test_bad_configuration_is_one_line_and_its_exit_code(bare_cli, monkeypatch, variables, expected: int, message: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = bare_cli("whoami")
    assert (code, out) == (expected, "")
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


def test_a_wrong_due_date_is_bad_usage(cli, board_service: BoardService) -> None:
    code, _, err = cli("card", "create", "x", "--list", "l", "--due", "31.12.2026")
    assert code == 2
    form = "is not an ISO 8601 date such as 2027-01-31 or 2027-01-31T17:00:00+01:00"
    assert err == f"boardclient: error: --due '31.12.2026' {form}\n"
    assert not board_service.calls


@pytest.mark.parametrize("argv", [["whoami"], ["board", "show", "b"], ["export", "b"], ["card", "delete", "c", "--yes"]])
def test_refused_credentials_are_exit_code_4_on_every_command(cli, monkeypatch, argv: list[str]) -> None:
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "stale-token-value")
    code, _, err = cli(*argv)
    assert code == 4
    assert err.endswith("the credentials are those of BOARDCLIENT_KEY and BOARDCLIENT_TOKEN\n")
    assert "stale-token-value" not in err


def test_white_space_around_a_variable_is_removed(cli, monkeypatch) -> None:
    """A secret that was read from a file often ends in a line feed."""
    for name in ("BASE_URL", "KEY", "TOKEN"):
        monkeypatch.setenv(f"BOARDCLIENT_{name}", f" {os.environ[f'BOARDCLIENT_{name}']}\n")
    assert cli("whoami").code == 0


@pytest.mark.parametrize(
    ("argv", "fault", "operation", "words"),
    [
        (["card", "create", "x", "--list", "{todo}"], drop(commit=True), "cards.create", "check before you send it again"),
        (
            ["list", "archive", "{todo}", "--yes"],
            drop(commit=True),
            "lists.archive",
            "the service may have done it: run the command again",
        ),
        (
            ["card", "create", "x", "--list", "{todo}"],
            foreign_body(b"[]"),
            "cards.create",
            "it was carried out",
        ),
        (["card", "get", "x"], drop(), "cards.get", None),
        (["whoami"], foreign_body(b"[]"), "members.me", None),
    ],
)
def test_an_error_says_what_a_write_may_have_done(cli, board_service, board, monkeypatch, argv, fault, operation, words) -> None:
    real = boardclient.AsyncSession
    monkeypatch.setattr(boardclient, "AsyncSession", lambda *args, **options: real(*args, **options, retry=None))
    board_service.faults.add(fault, operation)
    code, out, err = cli(*(part.format(**board._asdict()) for part in argv))
    assert (code, out, len(board_service.calls_of(operation))) == (1, "", 1)
    assert words in err if words else "done" not in err


def test_characters_that_the_output_cannot_encode_are_escaped(monkeypatch, board_service: BoardService) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", board_service.base_url)
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    monkeypatch.setenv("BOARDCLIENT_KEY", board_service.key)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    for argv in (["board", "create", "Zürich"], ["board", "create", "Zürich 😀", "--json"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
    assert b"Z\\xfcrich" in raw.getvalue()
    assert json.loads(raw.getvalue().splitlines()[-1])["name"] == "Zürich 😀"


@pytest.mark.parametrize(
    ("missing", "command", "code", "words"),
    [
        ("click", ["--version"], 2, "pip install 'boardclient[cli]'"),
        ("boardclient.cli._output", ["--version"], 1, "ModuleNotFoundError"),
        ("psycopg", ["ledger", "status", "--ledger", "postgresql://h/d"], 2, "error: a ledger on PostgreSQL needs psycopg: pip"),
    ],
)
def test_only_a_missing_extra_is_blamed_on_it(missing: str, command: list[str], code: int, words: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from boardclient.cli import main; sys.exit(main({command!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["board", "create"], ["list", "create", "--board", "b"], ["card", "create", "--list", "l"]])
def test_an_empty_name_is_refused(cli, command: list[str]) -> None:
    """A variable of the shell may not be set. An import refuses such a row, too."""
    cli(*command, " ").fails(2, "invalid value for 'NAME': it is empty")


def test_a_table_is_no_wider_than_its_longest_line(on_a_terminal) -> None:
    """Blanks behind the last cell would break each line of a narrow terminal in two."""
    lines = on_a_terminal("doctor").splitlines()
    assert len(lines) > 4
    assert not any(line.endswith(" ") for line in lines)


def test_what_stands_behind_two_dashes_is_no_option(cli, board_service: BoardService, board) -> None:
    assert cli("card", "create", "--list", board.todo, "--", "--json").code == 0
    assert [card.name for card in board_service.rules.cards.values()] == ["--json"]


def test_the_end_of_the_input_is_no_consent(cli, board_service: BoardService, board, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("click.termui.visible_prompt_func", ended)
    cli("list", "archive", board.todo).fails(2, "nothing was changed")


def test_a_service_without_members_is_no_wrong_name(cli, board_service: BoardService) -> None:
    board_service.faults.add(board_service.faults.status(404), "members.me")
    code, _, err = cli("auth", "status")
    assert code == 1
    assert "status 404" in err
    assert "--board" not in err


def test_a_creation_of_unknown_effect_names_the_page_that_helps(cli, board_service: BoardService, board) -> None:
    board_service.faults.add(board_service.faults.drop(), "cards.create")
    code, _, err = cli("card", "create", "A", "--list", board.todo)
    assert code == 1
    assert "the service may have done it: check before you send it again (docs/errors.md)" in err
    assert "board_id" not in err


def test_a_card_that_may_exist_is_announced_by_its_cause(cli, board_service: BoardService, board, monkeypatch) -> None:
    """A status is named, and no response that was lost. A card that can't be read now is shown by its identifier, with why."""
    real = Cards.create
    monkeypatch.setattr(Cards, "create", lambda *args, **options: real(*args, **options, settle=0.1))
    line = ("card", "create", "A", "--list", "To Do", "--board", board.board, "--reference", "r1")
    board_service.faults.add(board_service.faults.status(503, commit=True), "cards.create", call=1)
    code, out, err = cli(*line)
    (card_id,) = board_service.rules.cards
    assert (code, fields(out)["id"]) == (0, card_id)
    assert re.fullmatch(r"the service responded with 503: the board is read at \d\d:\d\d:\d\d to find the card\n", err)
    board_service.faults.add(board_service.faults.status(403), "cards.get")
    code, out, err = cli(*line)
    assert (code, fields(out)["id"]) == (0, card_id)
    assert fields(out)["problem"].startswith("the card exists, and can't be read now: GET ")
    code, out, err = cli(*line, "--json")
    assert (code, "can't be read now" in json.loads(out)["problem"]) == (0, True)
