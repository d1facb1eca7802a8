"""Draw the pictures of the terminal that the README and the site show: `python docs/terminal.py`.

They are what the commands print. `terminal.svg` is an import that loses a response, `resume.svg` one that is killed and resumed.
Both are as narrow as a telephone's page, and have a background of their own, for light and dark pages.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import attrs
from boardclient.bulk.journal import read_journal
from boardclient.testing import BoardService
from rich.console import Console
from rich.text import Text

_FOLDER = Path(__file__).parent
_COLUMNS = 50
_GUESTS = """name
Ada Lovelace
Alan Turing
Grace Hopper
Karl Weierstraß
Zoë Müller
"""
_IMPORT = "boardclient import guests.csv --board Launch --list Guests --settle 1"
_SHOW = "boardclient board show Launch"


@attrs.define
class _Terminal:
    """A terminal of some columns, in a folder with a file of guests, beside a service with a board."""

    service: BoardService
    folder: Path
    environment: dict[str, str]
    console: Console

    def show(self, line: str, output: str = "") -> None:
        self.console.print(Text(f"$ {line}", style="bold"))
        if output:
            self.console.print(Text.from_ansi(output))

    async def begin(self, line: str) -> tuple[asyncio.subprocess.Process, int]:
        """Begin a command whose results, but not its messages, go to a terminal. Return it and the terminal."""
        terminal, its_end = os.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *shlex.split(line),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_end,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.folder,
                env=self.environment,
            )
        finally:
            os.close(its_end)
        return process, terminal

    async def run(self, line: str) -> str:
        """Run a command, and return its messages and its results."""
        process, terminal = await self.begin(line)
        try:
            _, messages = await process.communicate()
            try:
                results = os.read(terminal, 65536)
            except OSError:  # the other end is closed, and nothing was written
                results = b""
            return (messages + results).decode().replace("\r\n", "\n").rstrip()
        finally:
            os.close(terminal)


@asynccontextmanager
async def _terminal() -> AsyncIterator[_Terminal]:
    console = Console(width=_COLUMNS, record=True, file=StringIO(), force_terminal=True)
    async with BoardService() as service:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "guests.csv").write_text(_GUESTS, encoding="utf-8")
            settings = {"XDG_CONFIG_HOME": folder, "COLUMNS": str(_COLUMNS), "TERM": "xterm", "NO_COLOR": ""}
            terminal = _Terminal(service, Path(folder), {**os.environ, **service.environment, **settings}, console)
            await terminal.run("boardclient board create Launch")
            await terminal.run("boardclient list create Guests --board Launch")
            yield terminal


async def lost(terminal: _Terminal) -> None:
    """Lose the third response. The card is found, and is on the board once."""
    terminal.service.faults.add(terminal.service.faults.drop(commit=True), "cards.create", call=3)
    for line in (_IMPORT, _SHOW):
        terminal.show(line, await terminal.run(line))


async def killed(terminal: _Terminal) -> None:
    """Kill the import while a response is missing. The same line resumes it, and no card is there twice."""
    terminal.service.faults.add(terminal.service.faults.delay_answer(600), "cards.create", call=3)
    process, end = await terminal.begin(_IMPORT)
    terminal.show(f"{_IMPORT} &")
    journal = terminal.folder / "guests.csv.journal"
    async with asyncio.timeout(60):  # the last row of the list waits for the others
        while not journal.exists() or read_journal(journal).counts["done"] < 3:  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.05)
    terminal.show("kill -9 %1")
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    os.close(end)
    for line in ("boardclient journal show guests.csv.journal --json=done,logged", _IMPORT, _SHOW):
        terminal.show(line, await terminal.run(line))


PICTURES: dict[str, Callable[[_Terminal], Awaitable[None]]] = {"terminal.svg": lost, "resume.svg": killed}


async def draw(name: str) -> str:
    """Run the commands of a picture, and return it."""
    async with _terminal() as terminal:
        await PICTURES[name](terminal)
    svg = terminal.console.export_svg(title="boardclient", unique_id=Path(name).stem)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # they are on another site


if __name__ == "__main__":
    for name in PICTURES:
        (_FOLDER / name).write_text(asyncio.run(draw(name)), encoding="utf-8")
