"""The errors that end a command, with their exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from boardclient.cli._output import note

_WORDS = {
    "allow_insecure=True": "--allow-insecure (before the command)",
    "base_url": "the service's address (BOARDCLIENT_BASE_URL, --base-url)",
    "auth_url": "the address of the token exchange (BOARDCLIENT_AUTH_URL, --auth-url)",
    "give ssl= a context that trusts its issuer": "set SSL_CERT_FILE to a file with the certificate of its issuer",
    "check proxy= or the proxy of the environment": "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    "board_id= does (docs/mistakes.md)": "--board does",
    "proxy must be": "the proxy of the environment (HTTPS_PROXY, HTTP_PROXY) must be",
}
"""What the package's messages call its parameters, in the words of the command line."""


def in_words(error: Exception) -> str:
    """Return an error's message in the words of the command line."""
    text = str(error) or type(error).__name__
    for name, words in _WORDS.items():
        text = text.replace(name, words)
    return text


class CommandError(click.ClickException):
    """A command ends with `exit_code`. `lines` are printed before the message, one for each detail."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def show(self, file: object = None) -> None:
        """Print the lines and the message on standard error."""
        for text in [*self.lines, f"error: {self}"]:
            note(f"boardclient: {text}")


def show_error(error: click.ClickException) -> None:
    """Print an error, those that click has found in the form of the others. A group without a command shows its help."""
    if not isinstance(error, click.UsageError) or isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = error.format_message().removesuffix(".").replace(". Did you mean", "; did you mean")
    if error.ctx is not None:
        note(f"boardclient: {' '.join(error.ctx.get_usage().split()).replace('Usage:', 'usage:')}; --help says more")
    note(f"boardclient: error: {text[:1].lower() if text[1:2].islower() else text[:1]}{text[1:]}")  # "ROW" is a name


class UsageError(CommandError):
    """The usage, the configuration or a file is wrong, or the command refuses. Nothing was changed."""

    exit_code = 2


class NotProvenError(CommandError):
    """Nothing failed, but some rows are not proven to exist."""

    exit_code = 3


class NoCredentialsError(CommandError):
    """There are no credentials."""

    exit_code = 4
