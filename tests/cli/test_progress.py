"""The progress of an import on a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from boardclient.testing import BoardService


@pytest.mark.full
@pytest.mark.parametrize(("width", "lost", "code"), [(60, 20, 0), (80, 40, 3), (200, 20, 0)])
def test_rate_and_remaining_time_are_shown_from_the_beginning(
    board_service: BoardService, board, tmp_path: Path, monkeypatch, width: int, lost: int, code: int
) -> None:
    """However narrow the terminal is, no number is cut."""
    (tmp_path / "cards.csv").write_text("name,list\n" + "A,To Do\n" * 40)
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    monkeypatch.delenv("COLUMNS")
    env = {**os.environ, "TERM": "xterm", **board_service.environment}
    command = [sys.executable, "-m", "boardclient", "import", "cards.csv", "--board", board.board, "--settle", "0", "--no-probe"]
    board_service.faults.add(board_service.faults.drop(), "cards.create", call=lost)
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=end, stdout=subprocess.DEVNULL) as process:
        os.close(end)
        drawn = b""
        while True:
            try:
                drawn += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
    os.close(terminal)
    assert process.returncode == code
    bars = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())) if line.strip()]
    assert any("left, 1 unknown" in line for line in bars) == (code == 3)
    first = next(line for line in bars if "reading the board" in line)
    assert first.endswith(" 0/40 0/s, -:--:-- left")
    assert all(re.search(r" \d+/40 [\d,.]+/s, (\d:\d\d:\d\d|-:--:--) left", line) for line in bars if "/40" in line)
