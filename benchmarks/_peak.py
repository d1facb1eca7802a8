"""The peak memory of a process."""

import contextlib
import sys
from pathlib import Path


def peak_mib() -> float | None:
    """Return the peak memory of this process, or None if the system does not show it."""
    with contextlib.suppress(OSError, StopIteration):
        # ru_maxrss may include the peak of the process that started this one.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
