"""The import of the crash campaign, in a process of its own: it runs to its end, or is killed before.

`python importer.py` reads one order (JSON) per line, forks a process for each, kills that one with SIGKILL after
`kill_after` seconds where the order says so, and answers with its exit status. A forked process has everything imported, so that
most of its life is the import itself. Where an order names a crash point, the forked process kills itself there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from boardclient import AsyncSession, AuthorizationRequest, CardDraft, OAuthCredentials
from boardclient._transport._choice import TransportChoice

_OPTIONS = ("concurrency", "journal", "board_id", "unknown", "marker", "probe", "settle")
_SUMS = ("created", "already", "failed", "unknown", "requests", "rejected")
LONGEST_SECONDS = 300.0
"""How long a process may take before it counts as hanging."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONGEST_SECONDS)  # the other threads run until the signal arrives, this one does not


def arm(point: str, threshold: int) -> None:
    """Let this process die at its n-th creation ("send"), listing ("read") or deletion ("delete"), of which the threshold says n.

    It dies before the request leaves, while it is in flight, or when the response has come.
    """
    what, moment = point.split(":")
    wanted = {"send": ("POST", "/1/cards"), "read": ("GET", "/cards"), "delete": ("DELETE", "")}[what]
    left, send = threshold, TransportChoice.send

    @functools.wraps(send)
    async def dying(self: TransportChoice, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= method == wanted[0] and url.partition("?")[0].endswith(wanted[1])
        if left:
            return await send(self, method, url, *args, **kwargs)
        if moment == "under-way":
            sending = asyncio.ensure_future(send(self, method, url, *args, **kwargs))
            await asyncio.sleep(0.02)  # until the request has left, which nothing in this process can tell
            if sending.done():  # never: the service of this crash point does not answer
                return await sending
        elif moment == "answered":
            await send(self, method, url, *args, **kwargs)
        return die()

    TransportChoice.send = dying  # type: ignore[method-assign]  # -- in a process of its own


def _draft(row: Mapping[str, Any]) -> CardDraft:
    due = None if row["due"] is None else datetime.fromisoformat(row["due"])
    return CardDraft(row["name"], row["list_id"], desc=row["desc"], due=due, reference=row["reference"])


async def _in_time(drafts: Iterable[CardDraft]) -> AsyncIterator[CardDraft]:
    for number, draft in enumerate(drafts):
        if number % 10 == 0:
            await asyncio.sleep(0.001)  # an input that really waits, as a file or a database does
        yield draft


def _code_of(folder: Path) -> Callable[[AuthorizationRequest], Any]:
    async def authorize(request: AuthorizationRequest) -> str:
        """Take an unused code. Each is a file, and the process that removes it has it."""
        for place in sorted(folder.iterdir()):
            code = place.read_text()
            place.unlink()
            return code
        raise RuntimeError("the campaign has no codes left")

    return authorize


async def _import(order: Mapping[str, Any], say: Callable[[object], None]) -> None:
    rows = json.loads(Path(order["rows"]).read_text())
    drafts: Any = [_draft(row) for row in rows]
    if order["is_async"]:
        drafts = _in_time(drafts)
    client = {name: order[name] for name in ("client_id", "client_secret", "redirect_uri", "auth_url", "key")}
    credentials = OAuthCredentials(**client, authorize=_code_of(Path(order["codes"])))
    options = {name: order[name] for name in _OPTIONS}
    async with AsyncSession(credentials, order["base_url"], timeout=order["timeout"]) as session:
        async with session.cards.create_many(drafts, **options) as run:
            async for result in run:
                card = None if result.card is None else result.card.id
                error = None if result.error is None else f"{type(result.error).__name__}: {result.error}"
                say({"index": result.index, "state": result.state, "card": card, "error": error})
        report = run.report
    audit = report.audit
    say(
        {
            "report": {name: getattr(report, name) for name in _SUMS},
            "audit": audit
            and {
                "confirmed": audit.confirmed,
                "recovered": audit.recovered,
                "lost": audit.lost,
                "duplicated": [card.id for card in audit.duplicated],
                "unexpected": [card.id for card in audit.unexpected],
            },
        }
    )


def run(order: Mapping[str, Any]) -> int:
    """Do what an order says, in this process; what is known goes to the file `out`, line by line and at once."""
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(value: object) -> None:
        os.write(out, json.dumps(value).encode() + b"\n")

    if order.get("crash"):
        arm(*order["crash"])
    try:
        asyncio.run(_import(order, say))
    except Exception as error:  # the campaign judges it
        say({"fatal": f"{type(error).__name__}: {error}"})
        return 3
    return 0


def serve() -> None:
    """Fork a process per order, one at a time, and say how it ended: the status is negative for a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os._exit(run(order))
        given = order.get("kill_after")
        ended = signal.sigtimedwait({signal.SIGCHLD}, LONGEST_SECONDS if given is None else given)
        if ended is None:
            os.kill(child, signal.SIGKILL)  # it was not waited for yet, so that its number is still its own
        _, status = os.waitpid(child, 0)
        while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:
            pass
        answer = {"status": os.waitstatus_to_exitcode(status), "is_hung": ended is None and given is None}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
