"""Tools for an application's tests: the embedded service, faults, test suites. The pytest plugin is in `_pytest_plugin`."""

from boardclient.testing import faults
from boardclient.testing._oauth import Answer, Member
from boardclient.testing._rules import BoardRules, SeededBoard
from boardclient.testing._secrets import assert_no_secrets
from boardclient.testing._service import BoardService, Call, Faults, Planned, Playground, playground
from boardclient.testing._store_suite import TokenStoreSuite

__all__ = [
    "Answer",
    "BoardRules",
    "BoardService",
    "Call",
    "Faults",
    "Member",
    "Planned",
    "Playground",
    "SeededBoard",
    "TokenStoreSuite",
    "assert_no_secrets",
    "faults",
    "playground",
]
