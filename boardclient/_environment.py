"""What a program's environment may lack: variables, and what the extras of this package install."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def optional(name: str) -> str | None:
    """Return the stripped value of an environment variable, or None if it is not set or empty."""
    return os.environ.get(name, "").strip() or None


def required(name: str) -> str:
    """Return the stripped value of an environment variable, or raise a ValueError if it is not set or empty."""
    value = optional(name)
    if value is None:
        raise ValueError(f"the environment variable {name} is not set")
    return value


@contextmanager
def requires_extra(extra: str, name: str) -> Iterator[None]:
    """Have a failing import in the block name the extra that `name` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(f"{name} needs {package}: pip install 'boardclient[{extra}]'", name=error.name) from None
