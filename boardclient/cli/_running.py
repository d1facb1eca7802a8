"""Runs a command with a session until it ends or a signal comes, and turns its errors into lines and exit codes."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import attrs
import click

import boardclient
from boardclient import BoardClientError, Effect
from boardclient.cli import _profiles
from boardclient.cli._app import json_option
from boardclient.cli._errors import IncompleteError, StoppedError, UsageError
from boardclient.cli._names import Names, did_you_mean, of_lists
from boardclient.cli._output import note, show
from boardclient.cli._profiles import Settings

_T = TypeVar("_T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ITEMS_PER_STEP = 500
_MAY_BE_DONE = "the request in flight may or may not have been carried out: check before repeating it"


@attrs.frozen
class Client:
    """What a command works with: a session, the settings, and the board on which names are looked for, "" if none is given."""

    session: boardclient.AsyncSession
    settings: Settings
    board: str = ""

    def board_id(self, name: str | None = None) -> str:
        """Return the identifier of a board, by default the given one. What this machine does not know is taken for one.

        Raises:
            UsageError: its name is that of several boards.
        """
        board, known = self.board if name is None else name, self.settings.profile.boards
        return Names("board", known).find(board) if board in known.values() else board

    async def list_id(self, value: str) -> str:
        """Return the identifier of a list. Without a board the value must be one.

        Raises:
            UsageError: the board has no such list, or several.
        """
        return of_lists(await self.session.boards.lists(self.board_id())).find(value) if self.board else value

    async def card_id(self, value: str) -> str:
        """Return the identifier of a card. Without a board the value must be one.

        Raises:
            UsageError: the board has no such card, or several.
        """
        if not self.board:
            return value
        cards: list[boardclient.Card] = await self.session.boards.cards(self.board_id())
        return Names("card", {card.id: card.name for card in cards}).find(value)

    def advice(self) -> str:
        """Return what may help if the service does not know an identifier."""
        if not self.board:
            return "; give --board to name a list or card in place of its identifier"
        alike = did_you_mean(self.board, self.settings.profile.boards.values())
        return f"{alike}; a board's name is known if this machine has created it, or by: boardclient board name BOARD_ID NAME"


@attrs.define
class GracefulStop:
    """Lets the first signal call `stop`, once it is set, instead of cancelling the work.

    Owned by a command, which passes it to its work and to `run_until_signal`.
    """

    stop: Callable[[], object] | None = None
    is_requested: bool = False


def run_until_signal(work: Callable[[], Awaitable[None]], graceful_stop: GracefulStop | None = None) -> None:
    """Run `work` in a new event loop until it ends or a signal cancels it.

    With a `GracefulStop`, the first signal calls its `stop`, and the second cancels. Later signals have their usual effect. Must
    be called from the main thread, the only one that can handle signals.

    Raises:
        StoppedError: a signal was received. `work` has ended or was cancelled, and has cleaned up.
    """
    received: list[int] = []

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- asyncio.run makes a task

        def stop(signal_number: int) -> None:
            received.append(signal_number)
            if graceful_stop is not None and graceful_stop.stop is not None and not graceful_stop.is_requested:
                graceful_stop.is_requested = True
                graceful_stop.stop()
            else:
                handlers.close()
                task.cancel()

        loop = asyncio.get_running_loop()
        with ExitStack() as handlers:
            for number in _SIGNALS:
                handlers.callback(signal.signal, number, signal.getsignal(number))
                # Unlike a handler of `signal.signal`, this wakes the loop even if the kernel chooses another thread.
                loop.add_signal_handler(number, stop, number)
                handlers.callback(loop.remove_signal_handler, number)
            await work()

    try:
        asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
    if received:
        raise StoppedError(received[0])


async def in_steps(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items, and let the event loop handle signals in between."""
    for number, item in enumerate(items):
        if number % _ITEMS_PER_STEP == 0:
            await asyncio.sleep(0)
        yield item


@contextmanager
def reported(*, writes: bool = False, when_stopped: str = "") -> Iterator[None]:
    """Turn errors of a command into lines on stderr and an exit code.

    `when_stopped` is printed after a signal. `writes` says that the command changes something on the service.

    Raises:
        click.exceptions.Exit: with the exit code, after an error.
    """
    try:
        yield
    except (boardclient.AuthenticationError, boardclient.CredentialError) as error:
        code, lines = 4, [f"error: {error}; {_profiles.advice()}"]
    except boardclient.JournalError as error:
        code, lines = 2, [f"error: {error}"]
    except ValueError as error:
        # The package's message names its parameter, which is an option here.
        words = f"error: {error}".replace("allow_insecure=True", "--allow-insecure (before the command)")
        code, lines = 2, [words.replace("base_url", "the service's address (BOARDCLIENT_BASE_URL, --base-url)")]
    except BoardClientError as error:
        code, lines = 1, [f"error: {_in_words(error, writes=writes)}"]
    except StoppedError as stopped:
        (number,) = stopped.args
        code = 128 + number
        hint = when_stopped or (_MAY_BE_DONE if writes else "")
        lines = [f"ended by {signal.Signals(number).name}{hint and '; '}{hint}"]
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


def _settings() -> Settings:
    """Return the settings of the running command.

    Raises:
        UsageError: the service's address is not known.
    """
    return _profiles.load(click.get_current_context().find_root().params)


def without_session(work: Callable[[Settings], Awaitable[None]]) -> None:
    """Run `work` until it ends or a signal comes. The process ends with the exit code of an error, if there is one."""
    with reported():
        settings = _settings()
        run_until_signal(lambda: work(settings))


def with_session(
    work: Callable[[Client], Awaitable[None]],
    *,
    board: str | None = None,
    writes: bool = False,
    graceful_stop: GracefulStop | None = None,
    when_stopped: str = "",
) -> None:
    """Run `work` with a session that is made from options, environment and profile, and is closed afterwards.

    The process ends with the exit code of an error, if there is one. `board` is what the user has given, "" if nothing; None for
    a command that looks for no names.
    """

    async def in_session() -> None:
        async with settings.session(await settings.credentials()) as session:
            client = Client(session, settings, board or "")
            try:
                await work(client)
            except boardclient.NotFoundError as error:
                if board is None:
                    raise
                raise IncompleteError(f"{error}{client.advice()}") from None

    with reported(writes=writes, when_stopped=when_stopped):
        settings = _settings()
        run_until_signal(in_session, graceful_stop)


def prints(
    title: str, *names: str, writes: bool = True, signs_in: bool = True
) -> Callable[[Callable[..., Awaitable[Mapping[str, Any]]]], Callable[..., None]]:
    """Let a coroutine be a command, which prints the record that it returns. `--json` chooses among the fields of these names.

    It gets a `Client`, or `Settings` if it does not sign in, and its arguments and options, but for `--board`.
    """

    def declared(work: Callable[..., Awaitable[Mapping[str, Any]]]) -> Callable[..., None]:
        @json_option(*names)
        @functools.wraps(work)
        def command(fields: tuple[str, ...] | None, board: str | None = None, **given: Any) -> None:
            async def printed(context: Client | Settings) -> None:
                show(title, await work(context, **given), fields)

            if signs_in:
                with_session(printed, board=board or "", writes=writes)
            else:
                without_session(printed)

        return command

    return declared


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what can't be undone.

    Raises:
        UsageError: the user said no, or nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here: give --yes to do it")
    # The event loop, which handles signals otherwise, stands still while the user thinks.
    handlers = [(number, signal.signal(number, signal.SIG_DFL)) for number in _SIGNALS]
    is_wanted = click.confirm(question, err=True)
    for number, handler in handlers:
        signal.signal(number, handler)
    if not is_wanted:
        raise UsageError("nothing was changed")
