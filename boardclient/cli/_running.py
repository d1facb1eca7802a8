"""Runs a command with a session, and turns its errors into lines and exit codes."""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from signal import Signals

import click

from boardclient import AsyncSession, AuthenticationError, BoardClientError, Effect, logs
from boardclient.cli import _settings
from boardclient.cli._errors import FileError, IncompleteError, StoppedError, UsageError
from boardclient.cli._signals import GracefulStop, run_until_signal
from boardclient.cli._text import note

_MAY_BE_DONE = "the request in flight may or may not have been carried out: check before repeating it"


@contextmanager
def reported(*, writes: bool = False, when_stopped: str = "") -> Iterator[None]:
    """Turn errors of a command into lines on stderr and an exit code.

    `when_stopped` is printed after a signal. `writes` says that the command changes something on the service.

    Raises:
        click.exceptions.Exit: with the exit code, after an error.
    """
    code, lines = 1, list[str]()
    try:
        yield
    except FileError as error:
        code, lines = 2, [*error.problems, f"error: {error}"]
    except (UsageError, ValueError) as error:
        # The package's message names its parameter, which is an option here.
        words = f"error: {error}".replace("allow_insecure=True", "--allow-insecure (before the command)")
        code, lines = 2, [words.replace("base_url", f"the service's address ({_settings.BASE_URL}, --base-url)")]
    except IncompleteError as error:
        lines = [f"error: {error}"]
    except BoardClientError as error:
        lines = [f"error: {_in_words(error, writes=writes)}"]
    except StoppedError as stopped:
        code = 128 + stopped.signal_number
        hint = when_stopped or (_MAY_BE_DONE if writes else "")
        lines = [f"ended by {Signals(stopped.signal_number).name}{hint and '; '}{hint}"]
    else:
        return
    for text in lines:
        note(f"boardclient: {text}")
    raise click.exceptions.Exit(code)


def _in_words(error: BoardClientError, *, writes: bool) -> str:
    text = str(error) or type(error).__name__
    if writes and error.effect is Effect.UNKNOWN and error.repeatable:
        return f"{text}; it may have been done, repeat it to be sure"
    if writes and error.effect is Effect.DONE:
        return f"{text}; it was carried out, only the response can't be used"
    return text


def with_session(
    options: _settings.Options,
    work: Callable[[AsyncSession], Awaitable[None]],
    *,
    writes: bool,
    graceful_stop: GracefulStop | None = None,
    when_stopped: str = "",
) -> None:
    """Run `work` with a session that is made from options and environment.

    The session is closed afterwards. The process ends with the exit code of an error, if there is one.
    """

    async def in_session() -> None:
        async with settings.session() as session:
            try:
                await work(session)
            except AuthenticationError as error:
                raise IncompleteError(f"{error}; {settings.advice}") from None

    with reported(writes=writes, when_stopped=when_stopped):
        if options.verbose:
            logs.log_to_stderr("debug")
        settings = _settings.load(options, os.environ)
        run_until_signal(in_session, graceful_stop)
