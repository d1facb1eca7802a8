"""Tools for an application's tests: the embedded service, faults, test suites.

Names are imported on first use, so that the pytest plugin costs nothing in a run that does not use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boardclient.testing import faults
    from boardclient.testing._answers import Answer
    from boardclient.testing._controls import Call
    from boardclient.testing._playground import Playground, playground
    from boardclient.testing._record_and_replay import record, replay
    from boardclient.testing._recording import Recording
    from boardclient.testing._records import Member, SeededBoard
    from boardclient.testing._replay import ReplayService
    from boardclient.testing._rules import BoardRules
    from boardclient.testing._secrets import assert_no_secrets
    from boardclient.testing._server import BoardService
    from boardclient.testing._test_recording import BoardRecording
    from boardclient.testing._token_stores import TokenStoreSuite

__all__ = [
    "Answer",
    "BoardRecording",
    "BoardRules",
    "BoardService",
    "Call",
    "Member",
    "Playground",
    "Recording",
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
    "Answer": "_answers",
    "BoardRecording": "_test_recording",
    "BoardRules": "_rules",
    "BoardService": "_server",
    "Call": "_controls",
    "Member": "_records",
    "Playground": "_playground",
    "Recording": "_recording",
    "ReplayService": "_replay",
    "SeededBoard": "_records",
    "TokenStoreSuite": "_token_stores",
    "assert_no_secrets": "_secrets",
    "playground": "_playground",
    "record": "_record_and_replay",
    "replay": "_record_and_replay",
}


def __getattr__(name: str) -> object:
    if name == "faults":
        return importlib.import_module("boardclient.testing.faults")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"boardclient.testing.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
