"""The clock of a database in a file. It counts a suspension, and ignores changes of the time of day.

Each boot of the machine begins at a number above those of all earlier boots, so a lease of an earlier boot has ended.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_BOOT: Path = Path("/proc/sys/kernel/random/boot_id")
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
BOOTS: Final = "CREATE TABLE IF NOT EXISTS boardclient_boots (boot TEXT PRIMARY KEY, began REAL NOT NULL)"
"""When each boot began on the clock of this file: the first one by the time of day, each later one 316 years after the last."""
FIND: Final = "SELECT began FROM boardclient_boots WHERE boot = ?"
NEXT: Final = "SELECT coalesce((SELECT max(began) FROM boardclient_boots) + 1e10, ?)"
NOTE: Final = f"INSERT INTO boardclient_boots (boot, began) SELECT ?, ({NEXT})"


def boot() -> str:
    """Return the identifier of this boot (proc_sys_kernel(5)), "-" if there is none, or no clock that counts from it."""
    try:
        return "-" if _BOOTTIME is None else _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def seconds_of(boot_id: str) -> float:
    """Return the seconds since a boot, or the time of day where there is none."""
    return time.time() if boot_id == "-" or _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
