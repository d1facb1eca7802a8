"""Runs a command with a session until it ends or a signal comes, and turns its errors into lines and exit codes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs
import click

import boardclient
from boardclient import BoardClientError, Effect
from boardclient._base._environment import proxy_of_environment, reason_of
from boardclient.cli._addresses import identifier_in, is_address
from boardclient.cli._names import Names, did_you_mean, of_lists
from boardclient.cli._output import CommandError, NoCredentialsError, UsageError, in_words, note
from boardclient.credentials import _profiles
from boardclient.credentials._profiles import VARIABLES, ServiceSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_QUOTES = tuple("\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb`")
_MAY_BE_DONE = "the request in flight may or may not have been carried out: check before repeating it"


@attrs.frozen(kw_only=True)
class CommandSettings(ServiceSettings):
    """The settings of one command."""

    timeout: float
    allow_insecure: bool

    def session(self, credentials: boardclient.CredentialProvider, url: str | None = None) -> boardclient.AsyncSession:
        """Return a session with these settings, by default with the service; the caller closes it.

        Raises:
            ValueError: a setting can't be used.
        """
        url = url or self.base_url
        proxy = proxy_of_environment(url, allow_insecure=self.allow_insecure)
        return boardclient.AsyncSession(
            credentials, base_url=url, timeout=self.timeout, allow_insecure=self.allow_insecure, proxy=proxy
        )

    def of_profile(self, base_url: str) -> CommandSettings:
        """Return the settings of another service that has a profile, without those of the environment."""
        profile = self.profiles.of(base_url)
        return attrs.evolve(self, profile=profile, values={"base_url": base_url, **profile.client}, sources={})

    def advice(self) -> str:
        """Return what the user can do when the service refuses the credentials."""
        key, token = VARIABLES["key"], VARIABLES["token"]
        for what, is_in in (("quotation marks", _is_quoted), ("spaces", _is_spaced)):
            found = [variable for name, variable in (("token", token), ("key", key)) if is_in(self.values.get(name, ""))]
            if found:
                return f"{' and '.join(found)} hold{'s' * (len(found) == 1)} {what}, which are sent: write it without them"
        if self.token is not None:
            return f"the credentials are those of {key} and {token}"
        if "key" in self.values and self.profile.kept_in:
            return f"the key is that of {key}, and the token that of the sign-in: unset {key}, or run boardclient login"
        return "run boardclient login"

    def with_advice(self, error: BoardClientError) -> NoCredentialsError:
        """Return the error that ends a command whose credentials are refused."""
        text, hint = in_words(error), self.advice()
        return NoCredentialsError(text if text.endswith(hint) else f"{text}; {hint}")

    def variables(self, *names: str) -> dict[str, str]:
        """Return the variables that hold these settings in the environment, as far as they are known."""
        return {VARIABLES[name]: value for name in names if (value := self.get(name)) is not None}


def kept_ledger(name: str) -> Path:
    """Return the path of a ledger in the folder of the profiles, which is made if it is not there.

    Raises:
        UsageError: the folder can't be made.
    """
    try:
        _profiles.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        return _profiles.folder() / name
    except OSError as error:
        place = error.filename or "this machine"
        raise UsageError(f"{place} can't hold the ledger ({reason_of(error)}): give --ledger") from None


def load(**chosen: str) -> CommandSettings:
    """Return the settings of the running command. What is chosen overrides an option, which overrides its variable.

    Raises:
        ValueError: the service's address is not known.
    """
    options = dict(click.get_current_context().find_root().params)
    given = {name: url for name in ("base_url", "auth_url") if (url := options.pop(name))}
    found = CommandSettings.found({**given, **chosen}, **options)
    for name in ("base_url", "auth_url"):
        if _is_quoted(value := found.values.get(name, "")):
            raise ValueError(f"{VARIABLES[name]} is {value}, with the quotation marks: write it without them")
    return found


def _is_quoted(value: str) -> bool:
    """Return True if a value begins or ends with a quotation mark: Docker and systemd don't take them away as shells do."""
    return value[:1] in _QUOTES or value[-1:] in _QUOTES


def _is_spaced(value: str) -> bool:
    """Return True if a value holds white space, as after the "Bearer" of a header that was pasted whole."""
    return any(map(str.isspace, value))


@attrs.define
class Stopping:
    """What a signal does: the first one calls `stop`, once it is set, instead of cancelling the work."""

    stop: Callable[[], object] | None = None
    received: list[int] = attrs.field(factory=list)
    """The signals that came."""
    hint: str = ""
    """Printed when a signal has ended the command."""


@attrs.frozen
class Client:
    """What a command works with: a session, the settings, and the board on which names are looked for, "" if none is given."""

    session: boardclient.AsyncSession
    settings: CommandSettings
    board: str = ""
    stopping: Stopping = attrs.field(factory=Stopping)

    def board_id(self, name: str | None = None) -> str:
        """Return the identifier of a board, by default the given one. A name that is not known here is taken for one.

        Raises:
            UsageError: its name is that of several boards.
        """
        board, known = self.board if name is None else name, Names("board", self.settings.profile.boards)
        # A value that is no name here may be an identifier, which only the service knows.
        return known.find(board) if known.has_name(board) else board

    async def board_of(self, value: str) -> str:
        """Return the identifier in the pasted address of a board, and any other value as it is.

        Raises:
            UsageError: the service knows no part of the address, or several.
        """
        if not is_address(value) or Names("board", self.settings.profile.boards).has_name(value):
            return value
        return await identifier_in(value, "board", self.session.boards.lists)

    async def list_id(self, value: str) -> str:
        """Return the identifier of a list. Without a board the value must be one.

        Raises:
            UsageError: the board has no such list, or several.
        """
        return of_lists(await self.session.boards.lists(self.board_id())).find(value) if self.board else value

    async def card_id(self, value: str) -> str:
        """Return the identifier of a card. Without a board the value must be one, or the address of a card.

        Raises:
            UsageError: the board has no such card, or several, or the service knows no part of the address.
        """
        cards: list[boardclient.Card] = await self.session.boards.cards(self.board_id()) if self.board else []
        if is_address(value) and value not in {card.name for card in cards}:
            # The address that the service shows comes first, since an address need not hold the identifier.
            shown = [card.id for card in cards if card.url == value]
            return shown[0] if len(shown) == 1 else await identifier_in(value, "card", self.session.cards.get)
        if not self.board:
            return value
        return Names("card", {card.id: card.name for card in cards}).find(value)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask the user before what can't be undone.

        Raises:
            UsageError: the user said no, or nobody can be asked.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"nobody can be asked here: give --yes ({question[:1].lower()}{question[1:]})")
        # The event loop stands still while a person is asked, so a signal has to end the program itself.
        with suppress(click.Abort), handled_by(signal.SIG_DFL):  # Abort: the input has ended
            if click.confirm(question, err=True):
                return
        raise UsageError("nothing was changed")

    def advice(self) -> str:
        """Return what may help if the service does not know an identifier."""
        if not self.board:
            return "; give --board to name a list or card in place of its identifier"
        if self.settings.profiles.problem:
            return f"; names of boards are not known: {self.settings.profiles.problem}"
        alike = did_you_mean(self.board, self.settings.profile.boards.values())
        return f"{alike}; a board's name is known if this machine has created it, or by: boardclient board name BOARD_ID NAME"


def run(work: Callable[[], Awaitable[None]], stopping: Stopping, *, writes: bool = False) -> None:
    """Run `work` until it ends or a signal cancels it, and turn its errors into those of the command line.

    `writes` says that it changes something on the service. Must be called from the main thread, the only one that can handle
    signals.

    Raises:
        CommandError: it has failed.
        click.exceptions.Exit: a signal has ended it.
    """
    try:
        with asyncio.Runner() as runner:
            runner.run(_supervised(work, stopping))
    except asyncio.CancelledError:
        if not stopping.received:
            raise
    except (boardclient.AuthenticationError, boardclient.CredentialError) as error:
        raise NoCredentialsError(in_words(error)) from None
    except (boardclient.JournalError, ModuleNotFoundError, ValueError) as error:  # ModuleNotFoundError: an extra is missing
        raise UsageError(in_words(error)) from None
    except BoardClientError as error:
        raise CommandError(_in_words(error, writes=writes)) from None
    if stopping.received:
        raise _ended_by(stopping.received[0], stopping.hint or (_MAY_BE_DONE if writes else ""))


def _ended_by(number: int, hint: str) -> click.exceptions.Exit:
    """Say that a signal has ended the command, and return its exit code."""
    note(f"boardclient: ended by {signal.Signals(number).name}{hint and '; '}{hint}")
    return click.exceptions.Exit(128 + number)


async def _supervised(work: Callable[[], Awaitable[None]], stopping: Stopping) -> None:
    """Do the work, and note the signals that come meanwhile. After a cancellation they have their usual effect."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- asyncio.Runner makes a task

    def receive(signal_number: int) -> None:
        stopping.received.append(signal_number)
        # The first signal lets a run complete what it has sent. The second one is that of a person who does not wait for that.
        if stopping.stop is not None and len(stopping.received) == 1:
            stopping.stop()
        else:
            handlers.close()
            task.cancel()

    loop = asyncio.get_running_loop()
    with ExitStack() as handlers:
        for number in _SIGNALS:
            handlers.callback(signal.signal, number, signal.getsignal(number))
            # Unlike a handler of `signal.signal`, this wakes the loop even if the kernel chooses another thread.
            loop.add_signal_handler(number, receive, number)
            handlers.callback(loop.remove_signal_handler, number)
        await work()


def _in_words(error: BoardClientError, *, writes: bool) -> str:
    text = in_words(error)
    if writes and error.effect is Effect.UNKNOWN and error.repeatable:
        return f"{text}; the service may have done it: run the command again to be sure"
    if writes and error.effect is Effect.DONE:
        return f"{text}; it was carried out, only the response can't be used"
    return text


def run_with_session(work: Callable[[Client], Awaitable[None]], *, board: str | None = None, writes: bool = False) -> None:
    """Run `work` with a session that is made from options, environment and profile, and is closed afterwards.

    `board` is what the user has given, "" if nothing, None for a command that looks for no names.
    """
    stopping = Stopping()

    async def in_session() -> None:
        client: Client | None = None
        found: CommandSettings | None = None
        try:
            found = load()
            async with found.session(found.credentials()) as session:
                client = Client(session, found, board or "", stopping)
                client = attrs.evolve(client, board=await client.board_of(client.board))
                await work(client)
        except boardclient.NotFoundError as error:
            if board is None or client is None:
                raise
            raise CommandError(f"{in_words(error)}{client.advice()}") from None
        except (boardclient.AuthenticationError, boardclient.CredentialError) as error:
            assert found is not None  # noqa: S101 -- the settings raise neither
            raise found.with_advice(error) from None

    run(in_session, stopping, writes=writes)


def end_by_signal(number: int, frame: object) -> NoReturn:
    """End the command with the exit code of a signal, where nothing was sent.

    Raises:
        click.exceptions.Exit: always.
    """
    raise _ended_by(number, "nothing was sent")


@contextmanager
def handled_by(handler: Any, signals: Iterable[int] = _SIGNALS) -> Iterator[None]:
    """Give signals a handler in a block during which no event loop handles them: it has not begun, or stands still."""
    handlers = [(number, signal.signal(number, handler)) for number in signals]
    try:
        yield
    finally:
        for number, before in handlers:
            signal.signal(number, before)
