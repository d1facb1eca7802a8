"""Draw the picture of the terminal that the README and the site show: `python docs/terminal.py`.

It runs the commands against an embedded service, one of whose responses is lost, and writes `docs/terminal.svg`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import tempfile
from io import StringIO
from pathlib import Path

from boardclient.testing import BoardService
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("terminal.svg")
_COLUMNS = 96
_GUESTS = """name;due
Zoë Müller;14.02.2020
Ada Lovelace;31.12.2999
Alan Turing;
Grace Hopper;31.12.2999
Karl Weierstraß;
"""
_COMMANDS = (
    "boardclient board create Launch --default-lists",
    'boardclient import guests.csv --board Launch --list "To Do" --date-format %d.%m.%Y --settle 1',
    "boardclient board show Launch",
)


async def draw() -> str:
    """Run the commands, and return the picture."""
    console = Console(width=_COLUMNS, record=True, file=StringIO(), force_terminal=True)
    async with BoardService() as service:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "guests.csv").write_text(_GUESTS, encoding="utf-8-sig")
            settings = {"XDG_CONFIG_HOME": folder, "COLUMNS": str(_COLUMNS), "TERM": "xterm", "NO_COLOR": ""}
            environment = {**os.environ, **service.environment, **settings}
            service.faults.add(service.faults.drop(commit=True), "cards.create", call=3)
            for number, command in enumerate(_COMMANDS):
                output = await _run(command, folder, environment)
                if number:
                    console.print(Text(f"$ {command}", style="bold"))
                    console.print(Text.from_ansi(output))
    svg = console.export_svg(title="boardclient", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # they are on another site


async def _run(command: str, folder: str, environment: dict[str, str]) -> str:
    """Run a command whose results, but not its messages, go to a terminal. Return both."""
    terminal, its_end = os.openpty()
    program = [sys.executable, "-m", *shlex.split(command)]
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=its_end,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=environment,
        )
        _, messages = await process.communicate()
        return messages.decode() + os.read(terminal, 65536).decode().replace("\r\n", "\n").rstrip()
    finally:
        os.close(terminal)
        os.close(its_end)


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(draw()), encoding="utf-8")
