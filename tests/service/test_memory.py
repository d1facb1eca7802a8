"""The memory of a large body is used again."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from reading_helpers import board

SCRIPT = """
import asyncio, resource, sys
from boardclient._convert import cards
from boardclient._transport._reading import read_whole

class Content:
    def __init__(self, file):
        self.file, self.ended = file, False

    async def readany(self):
        chunk = self.file.read(2**18)
        self.ended = len(chunk) < 2**18
        return chunk

    def at_eof(self):
        return self.ended

async def read():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with open(sys.argv[1], "rb") as file:
        response = await read_whole(200, {}, Content(file), 2**30)
    assert len(cards(response.body)) == 3000
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize()

async def main():
    bytes(2**20)  # as a session's pool does
    await read()
    print(await read())

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by rules of their own")
def test_a_board_that_is_read_again_asks_the_system_for_little_memory(tmp_path: Path) -> None:
    """The chunks, the body and the texts of the cards get the memory that the last reading freed."""
    path = tmp_path / "board.json"
    path.write_bytes(board(3000))
    ran = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < path.stat().st_size / 4
