"""Helpers of the tests of the import."""

import io
import json
import threading
from typing import Any

from boardclient.testing import BoardService
from boardclient.testing.faults import Stage

STATES = ("created", "already", "failed", "unknown")
SETTLE = ("--settle", "0.05")


class Terminal(io.StringIO):
    """What stands for a terminal as standard output or standard error."""

    def isatty(self) -> bool:
        return True


def into(board: Any) -> tuple[str, ...]:
    """Give the options of an import into the list Done, which need not wait long for lost responses."""
    return ("--board", board.board, "--list", "Done", *SETTLE)


def summary(out: str) -> dict[str, Any]:
    """Read the object that is the last line."""
    found = json.loads(out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def counts(found: dict[str, Any]) -> dict[str, int]:
    """Pick the counts by state out of a summary."""
    return {state: found[state] for state in STATES}


def names(service: BoardService) -> list[str]:
    """List the names of all cards."""
    return sorted(card.name for card in service.rules.cards.values())


class Held:
    """A fault: a commit whose response waits for an event."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    async def play(self, stage: Stage) -> None:
        """Commit, wait, answer."""
        stage.commit()
        while not self._event.is_set():
            await stage.sleep(0.001)
        await stage.reply_answer()


class Renamed:
    """A fault: a commit under another name whose response is lost, so that nothing proves whose card it is."""

    def __init__(self, service: BoardService) -> None:
        self._service = service

    async def play(self, stage: Stage) -> None:
        """Commit another name, and close the connection."""
        body = self._service.calls[-1].body
        self._service.rules.answer("POST", "/1/cards", {}, {**body, "name": f"{body['name']}!"})
        await self._service.faults.drop().play(stage)
