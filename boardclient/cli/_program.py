"""One run of the command line, from arguments to an exit code. Each failure is one line."""

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import click

from boardclient.cli._app import app
from boardclient.cli._text import has_color, note

_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments, by default the process's, and exit."""
    if sys.stderr is None:
        # Descriptor 2 is free: otherwise a journal or a socket would get it, and what is written to it.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- it is open as long as the process is
    if sys.stdout is None:
        note("boardclient: error: standard output is closed; send it to /dev/null where it is not wanted")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _called(argv)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        _drop_output()
        note(f"boardclient: error: can't write the output: {error.strerror}")
        code = 1
    sys.exit(code)


def _called(argv: Sequence[str] | None) -> int:
    streams = sys.stdout, sys.stderr
    try:
        code = app.main(args=None if argv is None else list(argv), prog_name="boardclient", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True, color=has_color())
        return 2
    except click.UsageError as error:
        note(f"boardclient: error: {error.format_message()}")
        note(f"Try '{'boardclient' if error.ctx is None else error.ctx.command_path} --help'.")
        return 2
    except SystemExit:
        if sys.stdout is streams[0]:
            raise  # shell completion ends so
        # So does click after a broken pipe, with streams of its own: https://github.com/pallets/click/blob/8.4.0/src/click/core.py
        sys.stdout, sys.stderr = streams
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    except click.Abort:
        note("boardclient: ended by SIGINT")
        return 130
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Drop what standard output still holds, which Python writes again at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except OSError:  # a stream without a descriptor keeps nothing
        return
    os.close(nowhere)
