"""The errors that end a command early, and their exit codes."""

from __future__ import annotations

import errno
from collections.abc import Sequence

OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})
"""The errors of an output that can't be written, whatever the user has asked for."""


class CommandError(Exception):
    """A command ends with `exit_code`. `lines` are printed before the message, one for each detail."""

    exit_code = 1

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message, lines)
        self.message = message
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return self.message


class IncompleteError(CommandError):
    """The command did only a part of its work. The message says why."""


class UsageError(CommandError):
    """The usage, the configuration or a file is wrong, or the command refuses. Nothing was changed."""

    exit_code = 2


class NotProvenError(CommandError):
    """Nothing failed, but some rows are not proven to exist."""

    exit_code = 3


class NoCredentialsError(CommandError):
    """There are no credentials."""

    exit_code = 4


class StoppedError(Exception):
    """A signal ended the command."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
