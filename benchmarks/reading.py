"""Compare what decoding a board's cards costs: processor time, memory, and how long the event loop is held.

Every measurement is a process of its own and the contenders take turns within each round. The cards are of 1.7 KB with 31 fields.
pydantic is installed into an environment of its own for the run; --smoke, and a machine without a package index, leave it out.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import venv
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from _arguments import count
from _cards import board

_OURS = "boardclient"
_PYDANTIC = "pydantic"
_AT_ONCE = 100  # shorter readings can't be measured by the clock


def _reader(contender: str) -> Callable[[bytes], Any]:
    """Return the decoder of a contender. Only what it uses is imported."""
    if contender == "json.loads":
        return json.loads
    if contender == "msgspec dicts":
        import msgspec

        return msgspec.json.Decoder().decode
    if contender == "msgspec structs":
        return _msgspec_reader()
    if contender == _PYDANTIC:
        return _pydantic_reader()
    if contender == "cattrs":
        return _cattrs_reader()
    from boardclient._interface import _listings

    if contender == _OURS:
        return _listings.cards
    return lambda body: [card.extra for card in _listings.cards(body)]


def _pydantic_reader() -> Callable[[bytes], Any]:
    from datetime import datetime

    from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model

    base: Any = type("Base", (BaseModel,), {"model_config": ConfigDict(extra="allow")})
    text: Any = (str | None, None)
    due: Any = (datetime | None, None)
    pos: Any = (str | float | None, None)
    card = create_model("Card", __base__=base, id=(str, ...), name=text, desc=text, url=text, idList=text, due=due, pos=pos)
    return TypeAdapter(list[card]).validate_json  # type: ignore[valid-type]  # -- a model made here


def _msgspec_reader() -> Callable[[bytes], Any]:
    """Return the decoder of typed cards that drops unknown fields."""
    from datetime import datetime

    import msgspec

    fields: list[Any] = [("id", str), *((name, str | None, None) for name in ("name", "desc", "url", "idList"))]
    card = msgspec.defstruct("Card", [*fields, ("due", datetime | None, None), ("pos", str | float | None, None)])
    return msgspec.json.Decoder(list[card]).decode  # type: ignore[valid-type]  # -- a class made here


def _cattrs_reader() -> Callable[[bytes], Any]:
    from datetime import datetime

    import attrs
    from cattrs.preconf.msgspec import make_converter

    fields: dict[str, Any] = {"id": attrs.field(type=str)}
    fields |= {name: attrs.field(type=str | None, default=None) for name in ("name", "desc", "url", "idList")}
    fields |= {"due": attrs.field(type=datetime | None, default=None), "pos": attrs.field(type=float | None, default=None)}
    card = attrs.make_class("Card", fields, frozen=True, slots=True)
    converter = make_converter()
    converter.register_structure_hook(datetime, lambda value, _: datetime.fromisoformat(value))
    return lambda body: converter.loads(body, list[card])  # type: ignore[valid-type]  # -- a class made here


def _cpu(contender: str, cards: int) -> float:
    """Return microseconds of processor time per card, the best of some readings whose values are all kept to their end."""
    body, read = board(cards), _reader(contender)
    at_once, best = _AT_ONCE // cards or 1, float("inf")
    until = time.process_time() + 3
    for _ in range(20 if cards <= 1000 else 5):
        start = time.process_time()
        for _ in range(at_once):
            values = read(body)
        best = min(best, time.process_time() - start)
        del values
        if time.process_time() > until:
            break
    return best / at_once / cards * 1e6


def _cold(contender: str, cards: int) -> float:
    """Return microseconds of processor time per card of the first reading in this process, as a program that starts has it."""
    body, read = board(cards), _reader(contender)
    start = time.process_time()
    values = read(body)
    seconds = time.process_time() - start
    assert values
    return seconds / cards * 1e6


async def _hold(cards: int) -> dict[str, float]:
    """Return the longest time in milliseconds for which reading keeps the loop from another task, and the whole reading.

    On a busy machine the wall clock also shows the turns of other processes: what is the reading's own is its processor time.
    """
    from unittest import mock

    from boardclient import AsyncSession, StaticCredentials
    from boardclient._transport._values import RawResponse

    holds: list[tuple[float, float]] = []

    async def watch() -> None:
        while True:
            holds.append((time.perf_counter(), time.process_time()))
            await asyncio.sleep(0)

    async def send(*_: object, **options: object) -> RawResponse:
        return answers.pop()

    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example") as session:
        with mock.patch.object(session._parts.transport, "send", send):
            answers = [RawResponse(200, {}, board(cards))]
            watching = asyncio.create_task(watch())
            await asyncio.sleep(0)
            start, cpu = time.perf_counter(), time.process_time()
            values = await session.boards.cards("b1")
            await asyncio.sleep(0)
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            watching.cancel()
            assert len(values) == cards
    between = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(holds)]
    longest, longest_cpu = (max(hold) * 1e3 for hold in zip(*between, strict=True))
    return {"longest_hold_ms": longest, "longest_hold_cpu_ms": longest_cpu, "wall_ms": wall * 1e3, "cpu_ms": cpu * 1e3}


def _memory(contender: str, cards: int) -> dict[str, float]:
    """Return the memory of all values besides the body, and of one value after the others were released."""
    body, read = board(cards), _reader(contender)
    read(board(1))
    gc.collect()
    tracemalloc.start()
    values = read(body)
    gc.collect()
    size, every = len(body), tracemalloc.get_traced_memory()[0]
    del values
    # A body from before the trace would not be missed when it stays: the second reading is of a copy that is traced.
    tracemalloc.clear_traces()
    traced = bytes(bytearray(body))
    before = tracemalloc.get_traced_memory()[0] - size
    kept = [read(traced)[cards // 2]]
    del traced
    gc.collect()
    one = tracemalloc.get_traced_memory()[0] - before
    assert kept
    return {"body_mb": size / 1e6, "all_mb": every / 1e6, "one_kb": one / 1e3}


def _extra(cards: int) -> dict[str, float]:
    """Return microseconds of the first access to `extra` and of a later one."""
    from boardclient._interface import _listings

    values = _listings.cards(board(cards))
    seconds = []
    for _ in range(2):
        start = time.process_time()
        for card in values:
            card.extra  # noqa: B018 -- the access is what is measured
        seconds.append((time.process_time() - start) / cards * 1e6)
    return {"first_us": seconds[0], "later_us": seconds[1]}


def _one(task: str) -> Any:
    """Run one measurement in this process."""
    kind, contender, cards = json.loads(task)
    if kind == "cpu":
        return _cpu(contender, cards)
    if kind == "cold":
        return _cold(contender, cards)
    if kind == "hold":
        return asyncio.run(_hold(cards))
    return _memory(contender, cards) if kind == "memory" else _extra(cards)


def _measured(python: str | None, kind: str, contender: str, cards: int) -> Any:
    """Measure in a separate process, or in this one without an interpreter."""
    if python is None:
        return _one(json.dumps([kind, contender, cards]))
    command = [python, __file__, "--one", json.dumps([kind, contender, cards])]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@contextlib.contextmanager
def _pydantic_python(*, is_wanted: bool) -> Iterator[str | None]:
    """Return an interpreter with pydantic, or None if it can't be installed."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        if is_wanted:
            venv.create(folder, with_pip=True)
            is_wanted = not subprocess.run([python, "-m", "pip", "install", "-q", _PYDANTIC], check=False).returncode
        yield str(python) if is_wanted else None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=count, nargs="+", default=[1, 100, 1000, 10_000], help="cards of a body")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.cards, options.rounds = [1, 200], 1
    return options


def _table(title: str, kind: str, pythons: dict[str, str | None], options: argparse.Namespace) -> dict[int, Any]:
    """Measure every contender with every size, print a table, and return its figures; the contenders take turns in each round."""
    print(f"\n{title}\n{'cards':>8}" + "".join(f"{name:>26}" for name in pythons))
    figures: dict[int, Any] = {}
    for cards in options.cards:
        rounds = [{name: _measured(pythons[name], kind, name, cards) for name in pythons} for _ in range(options.rounds)]
        found = {name: [one[name] for one in rounds] for name in pythons}
        figures[cards] = {name: [statistics.median(them), min(them), max(them)] for name, them in found.items()}
        cells = (f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in figures[cards].values())
        print(f"{cards:>8}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    return figures


def main() -> None:
    """Measure every contender with every size, and print a table for each kind of figure."""
    options = _options()
    if options.one:
        print(json.dumps(_one(options.one)))
        return
    figures: dict[str, Any] = {"python": platform.python_version(), "rounds": options.rounds, "memory": {}}
    with _pydantic_python(is_wanted=not options.smoke) as python:
        mine = None if options.smoke else sys.executable
        pythons = dict.fromkeys((_OURS, "and every extra", "json.loads", "msgspec dicts", "msgspec structs", "cattrs"), mine)
        if python:
            pythons[_PYDANTIC] = python
        print(f"Python {platform.python_version()}, {platform.system()}; CPU us per card")
        print(f"median of {options.rounds} rounds (lowest-highest)")
        for kind, title in (("cpu", "warm: the best of some readings"), ("cold", "cold: the first reading of a process")):
            figures[f"{kind}_us"] = _table(title, kind, pythons, options)
        most = options.cards[-1]
        for name, interpreter in pythons.items():
            figures["memory"][name] = row = _measured(interpreter, "memory", name, most)
            print(f"{name}: {most} cards of {row['body_mb']:.1f} MB hold {row['all_mb']:.1f} MB, one kept {row['one_kb']:.1f} KB")
    figures["hold"] = {cards: _measured(mine, "hold", _OURS, cards) for cards in options.cards}
    for cards, row in figures["hold"].items():
        hold = f"{row['longest_hold_ms']:.1f} ms at most (processor time {row['longest_hold_cpu_ms']:.1f} ms)"
        print(f"{cards} cards: the loop is held for {hold}, of {row['wall_ms']:.1f} ms")
    figures["extra"] = row = _measured(mine, "extra", _OURS, max(options.cards))
    print(f"extra: {row['first_us']:.2f} us at the first access, {row['later_us']:.2f} us later")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
