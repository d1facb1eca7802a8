"""Public names that are imported when they are first used, so that a program waits only for what it uses."""

import importlib
import sys
from collections.abc import Callable, Mapping


def public_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package. `homes` are the modules below it, with the names from each."""
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = vars(sys.modules[package])[name] = getattr(importlib.import_module(home_of[name]), name)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return sorted(home_of), get, names
