"""The most memory that a program held."""

import contextlib
import sys
from pathlib import Path


def peak_mib() -> float | None:
    """Return the most memory that this program held so far, None where the system doesn't tell."""
    with contextlib.suppress(OSError, StopIteration):
        # ru_maxrss would also know of the process that started this one.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
