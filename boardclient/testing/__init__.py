"""Tools for an application's tests: the embedded service, faults, test suites.

Names are imported on first use, so that the pytest plugin costs nothing in a run that does not use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boardclient.testing import faults
    from boardclient.testing._oauth import Answer, Member
    from boardclient.testing._recordings import ReplayService, record, replay
    from boardclient.testing._rules import BoardRules, SeededBoard
    from boardclient.testing._secrets import assert_no_secrets
    from boardclient.testing._service import BoardService, Call, Playground, playground
    from boardclient.testing._store_suite import TokenStoreSuite

__all__ = [
    "Answer",
    "BoardRules",
    "BoardService",
    "Call",
    "Member",
    "Playground",
    "ReplayService",
    "SeededBoard",
    "TokenStoreSuite",
    "assert_no_secrets",
    "faults",
    "playground",
    "record",
    "replay",
]

_HOMES = {
    "_oauth": ("Answer", "Member"),
    "_recordings": ("ReplayService", "record", "replay"),
    "_rules": ("BoardRules", "SeededBoard"),
    "_secrets": ("assert_no_secrets",),
    "_service": ("BoardService", "Call", "Playground", "playground"),
    "_store_suite": ("TokenStoreSuite",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "faults":
        return importlib.import_module("boardclient.testing.faults")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"boardclient.testing.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
