"""What ends a command early; nothing is printed here."""

from collections.abc import Sequence


class UsageError(Exception):
    """Report bad usage, configuration or input; nothing was sent."""


class FileError(UsageError):
    """Report a file that can't be used, with the places that are wrong."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message, problems)
        self.message = message
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return self.message


class IncompleteError(Exception):
    """Report that a command did a part of its work, and why it stopped."""


class StoppedError(Exception):
    """Report that a signal ended the command."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
