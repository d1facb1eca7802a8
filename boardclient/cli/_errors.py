"""The errors that end a command early."""

import errno
from collections.abc import Sequence

OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})
"""The errors of an output that can't be written, whatever the user has asked for."""


class UsageError(Exception):
    """The usage, the configuration or the input is wrong. Nothing was sent."""


class FileError(UsageError):
    """A file can't be used. `problems` describes what is wrong, row by row."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message, problems)
        self.message = message
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return self.message


class IncompleteError(Exception):
    """The command did only a part of its work. The message says why."""


class StoppedError(Exception):
    """A signal ended the command."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
