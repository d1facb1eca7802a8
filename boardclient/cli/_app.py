"""The commands and their parameters. The function of a command is imported when it is called."""

from __future__ import annotations

import click

from boardclient.cli._app_files import export, import_, journal
from boardclient.cli._declare import Argument, Command, Group, Number, Option, WholeNumber
from boardclient.cli._text import out

_EXAMPLE = "Example"


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from boardclient import __version__

        out(__version__)
        ctx.exit()


_json = Option("--json", "as_json", is_flag=True, help="Print the record as JSON, on one line.")
_board_id = Argument("board_id", metavar="BOARD_ID", help="The board's identifier.")
_list_id = Argument("list_id", metavar="LIST_ID", help="The list's identifier.")
_card_id = Argument("card_id", metavar="CARD_ID", help="The card's identifier.")
_into_list = Option("--list", "list_id", metavar="LIST_ID", required=True, help="The list's identifier.")

_board = Group(
    "board",
    "Create and show boards.",
    Command(
        "create",
        "_record_commands.board_create",
        "Create a board.",
        Argument("name", metavar="NAME", help="The board's name."),
        Option(
            "--default-lists/--no-default-lists",
            default=None,
            help="Create To Do, Doing and Done.",
            otherwise="the service decides",
        ),
        Option("--organization", metavar="ID", help="The organization that it belongs to."),
        _json,
        notes={_EXAMPLE: ["boardclient board create Roadmap --default-lists"]},
    ),
    Command(
        "show",
        "_record_commands.board_show",
        "Draw a board: its lists side by side with their cards, and the identifiers of both.",
        _board_id,
        _json,
        notes={_EXAMPLE: ["boardclient board show BOARD_ID", "boardclient board show BOARD_ID --json | jq '.cards[].name'"]},
    ),
)
_list = Group(
    "list",
    "Create and archive lists.",
    Command(
        "create",
        "_record_commands.list_create",
        "Create a list on a board.",
        Argument("name", metavar="NAME", help="The list's name."),
        Option("--board", "board_id", metavar="BOARD_ID", required=True, help="The board's identifier."),
        Option("--pos", metavar="POS", help="The position in the board: top, bottom, or another value that the service accepts."),
        _json,
        notes={_EXAMPLE: ['boardclient list create "In review" --board BOARD_ID --pos bottom']},
    ),
    Command(
        "archive", "_record_commands.list_archive", "Archive a list. The service documents no way to undo this.", _list_id, _json
    ),
)
_card = Group(
    "card",
    "Create, read, move, label and delete cards.",
    Command(
        "create",
        "_record_commands.card_create",
        "Create a card in a list.",
        Argument("name", metavar="NAME", help="The card's name."),
        _into_list,
        Option("--desc", metavar="TEXT", help="The description."),
        Option("--due", metavar="TIME", help="The due date: ISO 8601 with an offset."),
        Option("--timezone", metavar="ZONE", help="The time zone of a due date without an offset, such as Europe/Berlin."),
        Option("--pos", type=click.Choice(["top", "bottom"]), help="The position in the list."),
        _json,
        notes={_EXAMPLE: ['boardclient card create "Book the room" --list LIST_ID --due 2027-01-31T17:00:00+01:00']},
    ),
    Command("get", "_record_commands.card_get", "Show a card.", _card_id, _json),
    Command("delete", "_record_commands.card_delete", "Delete a card permanently.", _card_id, _json),
    Command("move", "_record_commands.card_move", "Move a card to another list.", _card_id, _into_list, _json),
    Command(
        "label",
        "_record_commands.card_label",
        "Attach a label to a card.",
        _card_id,
        Argument("label_id", metavar="LABEL_ID", help="The label's identifier."),
        _json,
    ),
)

app = Group(
    "boardclient",
    "Work with boards, lists and cards of a board service.",
    Command("demo", "_demo.demo", "Run a tour of a few seconds with an embedded service: a board, an import, moves, labels."),
    Command(
        "serve",
        "_serve.serve",
        "Run the embedded service in memory until SIGINT or SIGTERM, for trials and development.",
        Option(
            "--port",
            type=WholeNumber(0, 65535),
            default=0,
            metavar="N",
            help="The port on 127.0.0.1.",
            otherwise="0, which means any free port",
        ),
        Option(
            "--member",
            "members",
            multiple=True,
            default=["Ada Lovelace", "Alan Turing"],
            metavar="NAME",
            show_default=True,
            help="A member who can sign in. Repeat the option for more members.",
        ),
        Option(
            "--redirect-uri",
            default="http://127.0.0.1:8000/callback",
            metavar="URI",
            show_default=True,
            help="Where the consent page sends the browser back to.",
        ),
        Option(
            "--token-lifetime",
            type=Number(min=0, min_open=True),
            metavar="SECONDS",
            help="How long a token is accepted.",
            otherwise="until the service ends",
        ),
        Option("--latency", type=Number(min=0), default=0.0, metavar="SECONDS", help="How long each response is delayed."),
        Option(
            "--fail",
            type=Number(0, 1),
            default=0.0,
            metavar="SHARE",
            help="The share of requests that get a 503, half of them after they were carried out.",
        ),
        Option(
            "--rate-limit",
            type=Number(min=0, min_open=True),
            metavar="N",
            help="Requests per second. Further ones get a 429.",
            otherwise="none",
        ),
        Option(
            "--replay",
            "recording",
            metavar="FILE",
            help="Serve what boardclient.testing.record has written to this file, or an HTTP archive (HAR).",
        ),
        notes={
            "Sign-in": (
                "The printed environment has the client's identifier and secret, and the address of a page on which one of the "
                "members gives consent. Boards and cards have pages at their addresses, which show changes as they happen."
            ),
            "Examples": [
                "boardclient serve --port 8080",
                "boardclient serve --token-lifetime 60 --latency 0.2 --fail 0.05 --rate-limit 20",
                "boardclient serve --replay calls.har",
            ],
        },
    ),
    Command("whoami", "_record_commands.whoami", "Show the member whose token is used.", _json),
    _board,
    _list,
    _card,
    import_,
    export,
    journal,
    params=[
        Option("--base-url", metavar="URL", help="The service's address; overrides BOARDCLIENT_BASE_URL."),
        Option("--auth-url", metavar="URL", help="Where tokens are exchanged; overrides BOARDCLIENT_AUTH_URL."),
        Option(
            "--timeout",
            type=Number(min=0.001),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="The deadline of a call, including all its attempts.",
        ),
        Option("--allow-insecure", is_flag=True, help="Allow unencrypted http to hosts other than this machine."),
        Option("--verbose", is_flag=True, help="Log each call and its attempts on stderr, without credentials."),
        Option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."),
    ],
    notes={
        "Try it without a service": ["boardclient demo"],
        "Examples": [
            "boardclient board create Roadmap --default-lists",
            'boardclient import cards.csv --board BOARD_ID --list "To Do"',
            "boardclient board show BOARD_ID",
        ],
        "Environment": [
            "BOARDCLIENT_BASE_URL  the service's address",
            "BOARDCLIENT_TOKEN     the access token",
            "BOARDCLIENT_KEY       the API key, if one is used",
            "BOARDCLIENT_AUTH_URL  where tokens are exchanged",
            "BOARDCLIENT_LOG       info logs calls on stderr, debug also their attempts",
            "NO_COLOR              print without colours",
            "Credentials are never options, since process lists show options.",
        ],
        "Exit codes": [
            "0         done",
            "1         the service or the network failed, or the output could not be written",
            "2         bad usage, configuration or file",
            "130, 143  ended by SIGINT, SIGTERM",
        ],
        "Shell completion": [
            'eval "$(_BOARDCLIENT_COMPLETE=bash_source boardclient)"   in ~/.bashrc; zsh_source and fish_source for those',
        ],
    },
)
