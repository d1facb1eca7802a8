"""Imports of what only an extra of this package installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def requires_extra(extra: str, name: str) -> Iterator[None]:
    """Name the extra if an import in the block fails. `name` is what needs it.

    Raises:
        ModuleNotFoundError: a module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(f"{name} needs {package}: pip install 'boardclient[{extra}]'", name=error.name) from None
