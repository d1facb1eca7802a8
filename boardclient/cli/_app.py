"""The program: its table of commands, what their declarations share, and a run of it from the arguments to the exit code.

A command stands beside its function, in a module that is imported when the command is called or its help is shown. What only a
call needs, such as aiohttp, is imported by the function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from io import TextIOWrapper
from typing import Any, Literal, NoReturn, TypeVar

import click

from boardclient import __version__
from boardclient.cli._output import note, show, show_error, whole

_Work = TypeVar("_Work", bound=Callable[..., Awaitable[Mapping[str, Any] | None]])

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("_service", "Import into an embedded service, for a few seconds."),
    "serve": ("_service", "Run the embedded service, for trials and development."),
    "login": ("_account", "Sign in to a service, and keep the token."),
    "logout": ("_account", "Delete the token of a service from this machine."),
    "auth": ("_account", "Show who is signed in, switch services, and print the token for other programs."),
    "run": ("_account", "Run a program with the service and the token in its environment."),
    "doctor": ("_doctor", "Check configuration, connection, TLS, proxy, token, time zone and clock."),
    "whoami": ("_records", "Show the member whose token is used."),
    "board": ("_records", "Create and show boards."),
    "list": ("_records", "Create and archive lists."),
    "card": ("_records", "Create, read, move, label and delete cards."),
    "import": ("_import_command", "Create a card for each row of a file, each exactly once."),
    "export": ("_records", "Write the cards of a board in the format that import reads."),
    "undo": ("_journal", "Delete the cards that an import has created."),
    "journal": ("_journal", "Show the journal of an import, and resolve its unknown rows."),
    "request": ("_request", "Send any request, for what the commands do not cover."),
    "mcp": ("_service", "Serve the operations as tools for agents (MCP)."),
    "ledger": ("_journal", "Show how far an import by several workers is, or let its workers end."),
}
"""The module of each command, and the line that the help of the program shows for it."""

_FIELDS = re.compile(r"[a-z_]\w*(,\w+)*")
"""Names of fields, and no method of HTTP and no path."""
_SYNONYMS = (
    {"get", "show", "view", "read", "info"},
    {"create", "add", "new"},
    {"delete", "remove", "rm"},
    {"list", "ls", "status"},
    {"move", "mv"},
    {"import", "load", "upload"},
    {"export", "dump", "download"},
)
_OPTIONS_ELSEWHERE = (
    {"--preview", "--dry-run", "-n"},
    {"--delimiter", "--separator", "--sep", "-d"},
    {"--output", "--out", "-o"},
    {"--timezone", "--tz"},
    {"--yes", "--force", "-f", "-y"},
    {"--map", "--column", "--columns"},
    {"--input", "--data", "-d"},
)
"""What other programs call options of this one."""


class _Fields(click.ParamType[tuple[str, ...]]):
    """The fields of `--json`, separated by commas: none stands for all. `names` are those that may be given, none allows any.

    With `takes_any`, whatever looks like names of fields is taken for them where it follows the option.
    """

    name = "fields"

    def __init__(self, names: tuple[str, ...], *, takes_any: bool = False) -> None:
        self.names = names
        self._takes_any = takes_any

    def follow(self, arg: str) -> bool:
        """Return True if an argument that follows the option is its fields."""
        # With names that are known, an argument that is none of them is the command's own, such as a board.
        return {*self.names}.issuperset(arg.split(",")) or (self._takes_any and _FIELDS.fullmatch(arg) is not None)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names of the fields."""
        wanted = tuple(filter(None, value.split(",")))
        for name in wanted:
            if self.names and name not in self.names:
                self.fail(f"no field {name!r}; there are {', '.join(self.names)}", param, ctx)
        return wanted


def _with_empty_json(args: Sequence[str], fields: _Fields, with_value: set[str]) -> Iterator[str]:
    """Yield arguments, with an empty value for a `--json` that no fields follow. `with_value` are the options that take one."""
    # An argument after an option with a value is that value, and one before other fields is theirs: both neighbours count.
    left = iter(zip(["", *args], args, [*args[1:], ""], strict=False))
    for before, arg, after in left:
        is_alone = arg == "--json" and before not in with_value and not fields.follow(after)
        yield "--json=" if is_alone else arg
        # What follows is no option, whatever it looks like (POSIX, Utility Syntax Guidelines, 10).
        if arg == "--":
            break
    yield from (arg for _, arg, _ in left)


def _ours(option: str, known: Sequence[str]) -> str | None:
    """Return what a command calls an option of other programs, None if it has none."""
    return next((name for words in _OPTIONS_ELSEWHERE if option in words for name in known if name in words), None)


class Command(click.Command):
    """A command. Its option `--json` may stand without a value, also before an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give `--json` an empty value unless fields of this command follow it: click would take any argument for them."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        fields = next((option.type for option in options if isinstance(option.type, _Fields)), None)
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        try:
            return super().parse_args(ctx, args if fields is None else [*_with_empty_json(args, fields, with_value)])
        except click.NoSuchOption as error:
            if alike := _ours(error.option_name, [name for option in options for name in option.opts]):
                ctx.fail(f"no such option {error.option_name!r}; did you mean {alike!r}?")
            # `boardclient whoami --timeout 5` is what other programs take, so the message shows where it belongs here.
            if not any(error.option_name in param.opts for param in app.params):
                raise
            ctx.fail(f"{error.option_name} belongs before the command: boardclient {error.option_name} …")


class Group(click.Group):
    """A group of commands, in the order in which they are declared."""

    command_class = Command
    group_class = type  # a group in a group is made by this class, too

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in their order."""
        return list(self.commands)

    def part(self, name: str) -> Group:
        """Declare a group of commands of the table."""
        group = Group(name, help=_COMMANDS[name][1])
        self.add_command(group)
        return group

    def runs(
        self,
        name: str,
        title: str | None = None,
        *fields: str,
        board: Any = None,
        options: type | None = None,
        needs: Literal["session", "settings", "nothing"] = "session",
        writes: bool = False,
        **declared: Any,
    ) -> Callable[[_Work], _Work]:
        """Let a coroutine be a command, which gets a `Client`, `CommandSettings`, or nothing before its arguments and options.

        The client knows the board that `board` declares: it is no argument. `options` is a class whose object comes next. With a
        title, the command prints the record that the coroutine returns. `fields` are those among which `--json` chooses; without
        any, all names of the record are allowed. Without a title, the coroutine gets the chosen ones as `fields`.
        """

        def declare(work: _Work) -> _Work:
            def command(**given: Any) -> None:
                from boardclient.cli import _running

                shown = None if title is None else given.pop("fields")
                named = None if board is None else given.pop("board") or ""

                async def done(*context: object) -> None:
                    chosen = [options(**{one.name: given.pop(one.name) for one in of_options})] if options else []
                    record = await work(*context, *chosen, **given)
                    if title is not None and record is not None:
                        show(title, record, shown)

                if needs == "session":
                    _running.run_with_session(done, board=named, writes=writes)
                else:
                    _running.run((lambda: done(_running.load())) if needs == "settings" else done, _running.Stopping())

            # Once, while commands are declared: click asks for them with each line of help.
            of_options = [] if options is None else parameters_of(options)
            params = [*([] if board is None else [board("board")]), *parameters_of(work), *of_options]
            params += [] if title is None and not fields else [json_option(*fields)("fields")]
            text = _described(work)[0]
            # Whole: by default click cuts the sentence to one line.
            short = " ".join(re.split(r"(?<=\.)\s", text, maxsplit=1)[0].split())
            self.command(name, params=params, help=text, short_help=short, **declared)(command)
            return work

        return declare

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say of an option that belongs to the command after it that it follows the command."""
        # A copy, since click takes from the list what it has read.
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for path, found in self._named(given, ctx.command_path):
                if any(error.option_name in param.opts for param in found.params):
                    ctx.fail(f"{error.option_name} follows the command: {path} … {error.option_name}")
            raise

    def _named(self, args: Sequence[str], path: str) -> Iterator[tuple[str, click.Command]]:
        """Yield the commands of this group, and of those in it, that arguments name, each with what calls it."""
        found = next((name for name in args if name in self.commands), None)
        if found is not None:
            command, path = self.commands[found], f"{path} {found}"
            # Only now, since a mistake on the command line is rare, and each module costs milliseconds.
            command = command.load() if isinstance(command, _Late) else command
            yield path, command
            if isinstance(command, Group):
                yield from command._named(args[args.index(found) + 1 :], path)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command. One of another program's words for it suggests ours."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            alike = [name for words in _SYNONYMS if args[0] in words for name in self.commands if name in words]
            # click's own suggestions come first: they are similar words, ours are only other programs'.
            if alike and not error.possibilities:
                ctx.fail(f"no such command {args[0]!r}; did you mean {' or '.join(map(repr, alike))}?")
            raise


class _Late(click.Command):
    """Stands for a command whose module is not imported yet."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, short_help=text)
        self._module = module

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = importlib.import_module(f"boardclient.cli._commands.{self._module}").commands.commands[self.name]
        return command

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Let the command parse its arguments."""
        return self.load().make_context(*args, **options)


def option(*flags: str, **declared: Any) -> Any:
    """Declare an option as the default of the parameter that takes it, which names it unless there are `flags`."""
    return functools.partial(_option, flags, **declared)


def _option(flags: Sequence[str], name: str, **declared: Any) -> click.Option:
    return click.Option([name, *(flags or [f"--{name.strip('_').replace('_', '-')}"])], **declared)


def argument(metavar: str, **declared: Any) -> Any:
    """Declare an argument as the default of the parameter that takes it."""
    return functools.partial(_argument, metavar=metavar, **declared)


def _argument(name: str, **declared: Any) -> click.Argument:
    return click.Argument([name], **declared)


def parameters_of(declaring: Callable[..., object] | type) -> list[click.Parameter]:
    """Return what a function declares as the defaults of its parameters, or a class as the values of its attributes.

    The docstring describes them, but for those that several commands share, which have their `help` where they are declared.
    """
    parameters = {} if isinstance(declaring, type) else inspect.signature(declaring).parameters
    values = {name: one.default for name, one in parameters.items()} or vars(declaring)
    texts = _described(declaring)[1]
    return [value(name, **texts.get(name, {})) for name, value in values.items() if isinstance(value, functools.partial)]


def _described(declaring: Callable[..., object] | type) -> tuple[str, dict[str, dict[str, str]]]:
    """Return a docstring without its last section, "Args" or "Attributes", and the help of each parameter from there."""
    text, section, *_ = [*re.split(r"\n\n(?:Args|Attributes):\n", inspect.getdoc(declaring) or ""), ""]
    described = re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", section, re.MULTILINE)
    return text, {name: {"help": " ".join(words.split())} for name, words in described}


def json_option(*fields: str, takes_any: bool = False) -> Any:
    """Declare `--json`, with these fields. Without any, all names are allowed, and with `takes_any` also behind a blank."""
    among = f": {', '.join(fields)}" if fields else ""
    text = f"Print JSON, on one line. FIELDS, separated by commas, chooses among its fields{among}."
    return option("--json", type=_Fields(fields, takes_any=takes_any), metavar="[FIELDS]", help=text)


class Number(click.FloatRange):
    """A finite number in a range. Errors call it a number, not a "float range"."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. A range alone lets "nan" pass, which equals no number and is on neither side of one."""
        number: float = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is no finite number", param, ctx)


class FilePath(click.Path):
    """A path, given as a `Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        from pathlib import Path

        return Path(str(super().convert(value, param, ctx)))


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


def read_zone(value: str) -> tzinfo:
    from boardclient.models import find_zone

    try:
        return find_zone(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _complete_board(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from boardclient.credentials._profiles import (
        Profiles,  # which are empty if the file can't be read: the command itself says so
    )

    found = [text for profile in Profiles.read().by_url.values() for pair in profile.boards.items() for text in pair]
    return [text for text in found if text.startswith(incomplete) and text.isprintable()]


def board_option(text: str, **declared: Any) -> Any:
    """Declare `--board`."""
    text = f"{text} (or BOARDCLIENT_BOARD)"
    return option(metavar="BOARD", envvar="BOARDCLIENT_BOARD", shell_complete=_complete_board, help=text, **declared)


def _filled(value: str) -> str:
    from boardclient.models import is_visible

    if not is_visible(value):
        raise click.BadParameter("it has no visible character" if value.strip() else "it is empty")
    return value


name_argument: Any = argument("NAME", type=_filled)
"""The name of what a command creates. An import refuses empty ones, too."""
_KNOWN = "An identifier, or the name of a board that this machine has created or named."
board_argument: Any = argument("BOARD", shell_complete=_complete_board, help=_KNOWN)
yes_option: Any = option(is_flag=True, help="Do not ask. Needed where nobody can answer.")
timezone_option: Any = option(
    "--timezone",
    type=read_zone,
    metavar="ZONE",
    envvar="BOARDCLIENT_TIMEZONE",
    show_default="that of this machine",
    help="The time zone of dates, such as Europe/Berlin.",
)


_SETTINGS = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}


class _Options:
    """The options that stand before the command.

    Attributes:
        base_url: The service's address; overrides BOARDCLIENT_BASE_URL.
        auth_url: Where tokens are exchanged; overrides BOARDCLIENT_AUTH_URL.
        timeout: The deadline of a call, including all its attempts.
        allow_insecure: Allow unencrypted http to hosts other than this machine.
    """

    base_url: str | None = option(metavar="URL")
    auth_url: str | None = option(metavar="URL")
    timeout: float = option(type=Number(min=0.001), default=30.0, show_default=True, metavar="SECONDS")
    allow_insecure: bool = option(is_flag=True)


@click.group("boardclient", cls=Group, no_args_is_help=True, context_settings=_SETTINGS, params=parameters_of(_Options))
@click.version_option(__version__, message="%(version)s", help="Print the version.")
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
      BOARDCLIENT_AUTHORIZE_URL  the page on which users sign in
      BOARDCLIENT_CLIENT_ID      the registered client, for login
      BOARDCLIENT_CLIENT_SECRET  its secret
      BOARDCLIENT_REDIRECT_URI   where the client is registered to return to
      BOARDCLIENT_BOARD          in place of --board
      BOARDCLIENT_TIMEZONE       in place of --timezone
      BOARDCLIENT_LOG            info logs calls on stderr, debug their attempts
      NO_COLOR                   print without colours
    Credentials are never options, since process lists show options.

    \b
    Exit codes:
      0         done
      1         the service, the network, a row or the output failed
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


def _null_device(name: str) -> TextIOWrapper:
    """Return what takes the place of a stream that is closed. Otherwise a journal or a socket might get its descriptor.

    Standard output can't be written then, so that a command whose output is lost fails.
    """
    access = os.O_RDWR if name == "stderr" else os.O_RDONLY
    # The descriptor stays open until the process ends.
    return open(os.open(os.devnull, access), "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)


def _is_said_otherwise(record: logging.LogRecord) -> bool:
    return False


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. The default arguments are those of the process."""
    own = logging.getLogger("boardclient")
    if not os.environ.get("BOARDCLIENT_LOG"):
        # Commands say themselves what it warns of, such as failed rows. Loggers below it are shown: the keyring waits.
        own.addFilter(_is_said_otherwise)
    try:
        _run(argv)
    finally:
        own.removeFilter(_is_said_otherwise)


def _run(argv: Sequence[str] | None) -> NoReturn:
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name) or _null_device(name)
        setattr(sys, name, whole(stream) if name != "stdin" and isinstance(stream, TextIOWrapper) else stream)
    code: Any = 1
    try:
        code = app.main(argv, prog_name="boardclient", standalone_mode=False) or 0
    except click.ClickException as error:
        show_error(error)
        code = error.exit_code
    except click.Abort:  # an interrupt while nothing ran that could be cancelled
        note("boardclient: ended by SIGINT")
        code = 130
    except OSError as error:  # such as a full disk; a pipe that its reader has closed is click's affair
        from boardclient._base._environment import reason_of

        place = "" if error.filename is None else f"{error.filename}: "
        note(f"boardclient: error: {place}{reason_of(error)}")
    sys.exit(code)
