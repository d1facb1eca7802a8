"""One run of the command line, from the arguments to the exit code. Each error is one line."""

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import click

from boardclient.cli._app import app
from boardclient.cli._errors import OUTPUT_ERRORS
from boardclient.cli._output import has_color, note


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
