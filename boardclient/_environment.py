"""Read environment variables."""

from __future__ import annotations

import os


def optional(name: str) -> str | None:
    """Return the stripped value of an environment variable. None if it is not set or empty."""
    return os.environ.get(name, "").strip() or None


def required(name: str) -> str:
    """Return the stripped value of an environment variable.

    Raises:
        ValueError: it is not set, or empty.
    """
    value = optional(name)
    if value is None:
        raise ValueError(f"the environment variable {name} is not set")
    return value
