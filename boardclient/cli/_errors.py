"""The errors that end a command, with their exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from boardclient.cli._output import note


class CommandError(click.ClickException):
    """A command ends with `exit_code`. `lines` are printed before the message, one for each detail."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def show(self, file: object = None) -> None:
        """Print the lines and the message on standard error."""
        for text in [*self.lines, f"error: {self}"]:
            note(f"boardclient: {text}")


class UsageError(CommandError):
    """The usage, the configuration or a file is wrong, or the command refuses. Nothing was changed."""

    exit_code = 2


class NotProvenError(CommandError):
    """Nothing failed, but some rows are not proven to exist."""

    exit_code = 3


class NoCredentialsError(CommandError):
    """There are no credentials."""

    exit_code = 4
