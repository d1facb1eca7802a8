"""The program: its table of commands, what their declarations share, and a run of it from the arguments to the exit code.

A command stands beside its function, in a module that is imported when the command is called or its help is shown.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from typing import Any, NoReturn, TypeVar

import click

from boardclient.cli._output import OUTPUT_ERRORS, has_color, note, out

_F = TypeVar("_F", bound=Callable[..., Any])

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("_service", "Run a tour of a few seconds with an embedded service."),
    "serve": ("_service", "Run the embedded service, for trials and development."),
    "login": ("_account", "Sign in to a service, and keep the token."),
    "logout": ("_account", "Delete the token of a service from this machine."),
    "auth": ("_account", "Show who is signed in, and where the token is kept."),
    "doctor": ("_account", "Check configuration, connection, TLS, token and clock."),
    "whoami": ("_records", "Show the member whose token is used."),
    "board": ("_records", "Create and show boards."),
    "list": ("_records", "Create and archive lists."),
    "card": ("_records", "Create, read, move, label and delete cards."),
    "import": ("_import", "Create a card for each row of a file, each exactly once."),
    "export": ("_export", "Write the cards of a board in the format that import reads."),
    "undo": ("_journal", "Delete the cards that an import has created."),
    "journal": ("_journal", "Show the journal of an import, and settle its unknown rows."),
    "ledger": ("_journal", "Show or end an import by several workers."),
}
"""The module of each command, and the line that the help of the program shows for it."""


class _Context(click.Context):
    """The settings that all help pages and errors share."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("max_content_width", 110)
        options.setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **{**options, "color": has_color()})


class Command(click.Command):
    """A command. Its option `--json` may stand without a value, also before an argument."""

    context_class = _Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join `--json` and the fields after it to one argument.

        What follows belongs to the option only if it names fields of this command.
        """
        json = next((param for param in self.params if isinstance(param, JsonOption)), None)
        with_value = {
            name for param in self.params if isinstance(param, click.Option) and not param.is_flag for name in param.opts
        }
        joined: list[str] = []
        for position, arg in enumerate(args):
            before = args[position - 1] if position else ""
            if json is not None and before == "--json" and joined[-1:] == ["--json="] and json.names_fields(arg):
                joined[-1] += arg
            elif json is not None and arg == "--json" and (before not in with_value or before == "--json"):
                joined.append("--json=")
            else:
                joined.append(arg)
        return super().parse_args(ctx, joined)


class Group(click.Group):
    """A group of commands, in the order in which they are declared."""

    context_class = _Context
    command_class = Command
    group_class = type  # a group in a group is made by this class, too

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in their order."""
        return list(self.commands)


class _Late(click.Command):
    """Stands for a command whose module is not imported yet."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, short_help=text)
        self._module = module

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Import the command, and let it parse its arguments."""
        command: click.Command = importlib.import_module(f"boardclient.cli.{self._module}").commands.commands[self.name]
        return command.make_context(*args, **options)


class JsonOption(click.Option):
    """The option `--json [FIELDS]`.

    Its value is None without the option, empty for all fields, otherwise the names of the fields. `fields` are those that may be
    named; None allows any.
    """

    def __init__(self, declarations: Sequence[str], fields: tuple[str, ...] | None = None, **settings: Any) -> None:
        self.fields = fields
        shown = "" if fields is None else f": {', '.join(fields)}"
        text = f"Print JSON, on one line. FIELDS, separated by commas, chooses among its fields{shown}."
        super().__init__(declarations, metavar="[FIELDS]", help=text, **settings)

    def names_fields(self, text: str) -> bool:
        """Return True if a text is a list of fields, so that it can't be meant as an argument."""
        return self.fields is not None and set(text.split(",")) <= set(self.fields)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[str, ...]:
        """Return the fields of the option's text.

        Raises:
            click.BadParameter: there is no such field.
        """
        wanted = tuple(name for name in value.split(",") if name)
        unknown = [name for name in wanted if self.fields is not None and name not in self.fields]
        if unknown:
            raise click.BadParameter(f"no field {unknown[0]!r}; there are {', '.join(self.fields or ())}", ctx, self)
        return wanted


def json_option(*fields: str) -> Callable[[_F], _F]:
    """Declare `--json`, with these fields. Without any, all names are allowed."""
    return click.option("--json", "fields", cls=JsonOption, fields=fields or None)


class Number(click.FloatRange):
    """A number in a range. Errors call it a number, not a "float range"."""

    name = "number"


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


def _complete_board(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from boardclient.cli._profiles import Profiles

    boards = Profiles.read().all_boards()
    return [text for pair in boards.items() for text in pair if text.startswith(incomplete)]


def board_option(text: str, *, required: bool = False) -> Callable[[_F], _F]:
    """Declare `--board`."""
    return click.option(
        "--board",
        metavar="BOARD",
        envvar="BOARDCLIENT_BOARD",
        required=required,
        shell_complete=_complete_board,
        help=f"{text} (or BOARDCLIENT_BOARD)",
    )


def board_argument(function: _F) -> _F:
    """Declare the argument BOARD."""
    text = "An identifier, or the name of a board that this machine has created or named."
    return click.argument("board", metavar="BOARD", shell_complete=_complete_board, help=text)(function)


yes_option = click.option("--yes", is_flag=True, help="Do not ask. Needed where nobody can answer.")
timezone_option = click.option(
    "--timezone",
    "zone",
    metavar="ZONE",
    envvar="BOARDCLIENT_TIMEZONE",
    help="The time zone of dates, such as Europe/Berlin.  [default: that of this machine]",
)


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from boardclient import __version__

        out(__version__)
        ctx.exit()


@click.group("boardclient", cls=Group, no_args_is_help=True)
@click.option("--base-url", metavar="URL", help="The service's address; overrides BOARDCLIENT_BASE_URL.")
@click.option("--auth-url", metavar="URL", help="Where tokens are exchanged; overrides BOARDCLIENT_AUTH_URL.")
@click.option(
    "--timeout",
    type=Number(min=0.001),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="The deadline of a call, including all its attempts.",
)
@click.option("--allow-insecure", is_flag=True, help="Allow unencrypted http to hosts other than this machine.")
@click.option("--verbose", is_flag=True, help="Log each call and its attempts on stderr, without credentials.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version.")
def app(**options: Any) -> None:
    """Work with boards, lists and cards of a board service.

    \b
    Without a service:      boardclient demo
    With one of your own:   boardclient login, then boardclient whoami
    To look for mistakes:   boardclient doctor

    Lists, cards and boards may be given by identifier or by name. A name is looked for on the board that --board says. The
    interface has no operation that lists boards, so a board's name is known if this machine has created or named it.

    On a terminal results are drawn for people. Into a pipe they are lines with tabs, and with --json one line of JSON.

    \b
    Environment:
      BOARDCLIENT_BASE_URL       the service's address
      BOARDCLIENT_TOKEN          the access token, in place of boardclient login
      BOARDCLIENT_KEY            the API key, if one is used
      BOARDCLIENT_AUTH_URL       where tokens are exchanged
      BOARDCLIENT_AUTHORIZE_URL  the page on which users sign in; the service's interface shows none
      BOARDCLIENT_CLIENT_ID, BOARDCLIENT_CLIENT_SECRET   the registered client, for login
      BOARDCLIENT_REDIRECT_URI   where the client is registered to return to
      BOARDCLIENT_BOARD, BOARDCLIENT_TIMEZONE   in place of --board and --timezone
      BOARDCLIENT_LOG            info logs calls on stderr, debug also their attempts
      NO_COLOR                   print without colours
    Credentials are never options, since process lists show options.

    \b
    Exit codes:
      0         done
      1         the service or the network failed, a row failed, or the output could not be written
      2         bad usage, configuration or file, or refused: nothing was changed
      3         import: some rows are not proven to exist
      4         no credentials, or the service refuses them
      130, 143  ended by SIGINT, SIGTERM

    \b
    Shell completion, in ~/.bashrc (zsh_source and fish_source for those):
      eval "$(_BOARDCLIENT_COMPLETE=bash_source boardclient)"
    """


for _name, (_module, _text) in _COMMANDS.items():
    app.add_command(_Late(_name, _module, _text))


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. The default arguments are those of the process."""
    if sys.stderr is None:
        # Standard error is closed. Otherwise a journal or a socket might get descriptor 2, and be sent error messages.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- it stays open until the process ends
    if sys.stdout is None:
        note("boardclient: error: standard output is closed; redirect it to /dev/null if it is not wanted")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _exit_code(argv)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            raise
        _drop_output()
        if error.errno != errno.EPIPE:  # the reader, such as `head`, has what it wants
            note(f"boardclient: error: can't write the output: {error.strerror}")
        code = 1  # also for a pipe: https://docs.python.org/3/library/signal.html#note-on-sigpipe
    sys.exit(code)


def _exit_code(argv: Sequence[str] | None) -> int:
    streams = sys.stdout, sys.stderr
    try:
        code = app.main(args=None if argv is None else list(argv), prog_name="boardclient", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True, color=has_color())
        return 2
    except click.UsageError as error:
        note(f"boardclient: error: {error.format_message()}{_placement(error)}")
        note(f"Try '{'boardclient' if error.ctx is None else error.ctx.command_path} --help'.")
        return 2
    except SystemExit:
        if sys.stdout is streams[0]:
            raise  # raised by shell completion
        # click exits after a broken pipe, and replaces the streams: https://github.com/pallets/click/blob/8.4.0/src/click/core.py
        sys.stdout, sys.stderr = streams
        raise BrokenPipeError(errno.EPIPE, "the reader has closed the pipe") from None
    except click.Abort:
        note("boardclient: ended by SIGINT")
        return 130
    return code if isinstance(code, int) else 0


def _placement(error: click.UsageError) -> str:
    """Return where an option of the program belongs, "" for any other error."""
    if isinstance(error, click.NoSuchOption) and any(error.option_name in param.opts for param in app.params):
        return f" {error.option_name} belongs before the command: boardclient {error.option_name} …"
    return ""


def _drop_output() -> None:
    """Discard the buffer of standard output, which Python would write again at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except OSError:  # a stream without a descriptor keeps nothing
        return
    os.close(nowhere)
