"""Measure how much memory a bulk run of a million cards takes beyond one of 20,000, with and without a journal.

The transport responds at once, so that nothing but the run is measured; results are taken and not kept. What counts is the most
memory that the process ever held.
"""

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from _arguments import count
from _peak import peak_mib

from boardclient import AsyncSession, CardDraft, StaticCredentials
from boardclient._transport._values import RawResponse


class _InstantPool:
    """A transport that creates each card without a network."""

    def __init__(self) -> None:
        self._count = 0

    async def send(self, method: str, url: str, *rest: object, **more: object) -> RawResponse:
        self._count = number = self._count + 1
        await asyncio.sleep(0)
        return RawResponse(200, {}, b'{"id": "%024x", "name": "a card"}' % number)

    async def aclose(self) -> None: ...


async def _run(cards: int, mark: int, journal: Path | None) -> dict[str, float]:
    """Create the cards, and return the peaks after `mark` of them and at the end."""
    session = AsyncSession(StaticCredentials("token", "key"), base_url="https://board.example")
    session._parts.transport = _InstantPool()  # type: ignore[assignment]  # -- all that a run asks of it

    def drafts() -> Iterator[CardDraft]:
        for number in range(cards):
            yield CardDraft(f"card {number}", "a-list", reference=f"row-{number}")

    started = time.process_time()
    async with session, session.cards.create_many(drafts(), concurrency=32, journal=journal) as run:
        peaks = [(peak_mib() or 0.0) async for result in run if result.index + 1 == mark]
    seconds = time.process_time() - started
    return {"at_mark_mib": peaks[0], "growth_mib": (peak_mib() or 0.0) - peaks[0], "cpu_us": seconds / cards * 1e6}


def _in_a_process(kind: str, cards: int, mark: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", kind, "--cards", str(cards), "--mark", str(mark)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Run each kind in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=count, default=1_000_000)
    parser.add_argument("--mark", type=count, default=20_000, help="from how many cards on growth counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", choices=("plain", "journal"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 0 < options.mark <= options.cards:
        parser.error("--mark lies between 1 and --cards")
    if options.one:
        with TemporaryDirectory() as folder:
            journal = Path(folder) / "run.journal" if options.one == "journal" else None
            print(json.dumps(asyncio.run(_run(options.cards, options.mark, journal))))
        return
    if options.smoke:
        options.cards, options.mark = 500, 100
    print(f"Python {platform.python_version()}, {platform.system()}, {options.cards} cards, growth from {options.mark} on")
    figures = {kind: _in_a_process(kind, options.cards, options.mark) for kind in ("plain", "journal")}
    for kind, row in figures.items():
        print(f"{kind:<10} {row['at_mark_mib']:>7.1f} MiB {row['growth_mib']:>+7.1f} MiB {row['cpu_us']:>7.1f} CPU us/card")
    if options.json:
        options.json.write_text(json.dumps({"python": platform.python_version(), **figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
