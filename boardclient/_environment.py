"""Reading what environment variables configure."""

from __future__ import annotations

import os


def optional(name: str) -> str | None:
    """Return what an environment variable holds, without white space around it. It is None where it is not set or empty."""
    return os.environ.get(name, "").strip() or None


def required(name: str) -> str:
    """Return what an environment variable holds, without white space around it.

    Raises:
        ValueError: it is not set, or empty.
    """
    value = optional(name)
    if value is None:
        raise ValueError(f"the environment variable {name} is not set")
    return value
