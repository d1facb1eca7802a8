"""A crash campaign for bulk creation: imports that are killed and run again, against a service that fails, and a checker.

    PYTHONPATH=tests python tests/campaign/campaign.py --runs 200 --rows 500 --seed 1 --jobs 4 [--kind equal]

What is looked for is described in `checker`. A run is a function of its seed, up to the timing of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import attrs
from checker import Evidence, Findings, Process, check
from kinds import ABLATIONS, KINDS, Kind, every, make_rows
from storm import Storm

from boardclient.testing import BoardService, Faults, faults

T = TypeVar("T")
_ALL = {**KINDS, **ABLATIONS}
_CODES = 80


class Importer:
    """The process that forks imports. Owned by the block that enters it."""

    def __enter__(self) -> Self:
        place = Path(__file__).with_name("importer.py")
        self._process = subprocess.Popen(
            [sys.executable, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.stdin.close()  # type: ignore[union-attr]  # -- it is a pipe

    def run(self, order: Mapping[str, Any]) -> Process:
        """Run one import until it ends or is killed."""
        out = Path(order["out"])
        self._process.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]  # -- it is a pipe
        self._process.stdin.flush()  # type: ignore[union-attr]  # -- it was opened with pipes
        ended = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]  # -- it was opened with pipes
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return Process(lines=lines, **ended)


class Crew:
    """Threads with an importer each, which do several runs at a time. Owned by the block that enters it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._own = threading.local()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._importers = [opened.enter_context(Importer()) for _ in range(self._size)]
            self._pool = ThreadPoolExecutor(self._size, initializer=self._take)
            opened.callback(self._pool.shutdown, cancel_futures=True)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _take(self) -> None:
        self._own.importer = self._importers.pop()

    def submit(self, work: Callable[[Importer], T]) -> Future[T]:
        """Do a piece of work as soon as a thread is free."""
        return self._pool.submit(lambda: work(self._own.importer))


@attrs.frozen(kw_only=True)
class Scale:
    """How long things take: the longest delay of a commit, and what is settled for, in seconds."""

    delay: float = 0.05
    settle: float = 0.3


Death: TypeAlias = "tuple[str, int] | float | None"
"""What a process dies of: a crash point and how often it is passed before, seconds, nothing."""


class NotAsAssumedError(Exception):
    """The machine was so slow that a commit came later than `settle`: nothing is promised then."""


class Run:
    """One import into a service of its own, from the first process to the last."""

    def __init__(self, kind: Kind, rows: int, seed: int, scale: Scale, folder: Path, service: BoardService) -> None:
        self.kind = kind
        self.random = random.Random(seed)
        self._service = service
        self._folder = folder
        self._processes: list[Process] = []
        self._cut_off = 0
        self.again = 0
        session = service.rules
        query = {"key": service.key, "token": service.token}
        board = session.answer("POST", "/1/boards", query, {"name": "campaign", "defaultLists": True}).body["id"]
        lists = [item["id"] for item in session.answer("GET", f"/1/boards/{board}/lists", query).body]
        self.rows = make_rows(kind, rows, lists, self.random)
        self._write_baseline(query)
        self._before = frozenset(session.cards)
        self._foreign: set[str] = set()
        self.storm = Storm(
            service=service,
            random=random.Random(seed + 1),
            rates=kind.rates,
            script=kind.script,
            delay=scale.delay,
            expiries=_expiries(kind, rows, self.random),
            foreign=self._write_foreign if kind.foreign else None,
            bucket=_bucket(kind),
        )
        service.faults.add(self.storm, "cards.create")
        self._order = self._make_order(board, scale)

    def _write_baseline(self, query: Mapping[str, str]) -> None:
        """Let cards be there already that are exactly like rows."""
        for row in self.random.sample(self.rows, self.kind.baseline):
            self._service.rules.answer("POST", "/1/cards", query, _wire(row))

    def _write_foreign(self, stage: Any) -> None:
        """Create a card like the requested one on behalf of others, without a marker."""
        body = json.loads(self._service.calls[-1].body) if isinstance(self._service.calls[-1].body, bytes) else {}
        body = body or dict(self._service.calls[-1].body)  # type: ignore[arg-type]  # -- JSON was decoded
        row = next(row for row in self.rows if row["name"] == body["name"])
        query = {"key": self._service.key, "token": self._service.token}
        self._foreign.add(self._service.rules.answer("POST", "/1/cards", query, _wire(row)).body["id"])  # type: ignore[index, call-overload]  # -- an object with an id

    def write_other(self) -> None:
        """Create a card that is like no row on behalf of others."""
        query = {"key": self._service.key, "token": self._service.token}
        card = {"name": "of somebody else", "idList": self.rows[0]["list_id"]}
        self._foreign.add(self._service.rules.answer("POST", "/1/cards", query, card).body["id"])  # type: ignore[index, call-overload]  # -- an object with an id

    def _make_order(self, board: str, scale: Scale) -> dict[str, Any]:
        kind, service, folder = self.kind, self._service, self._folder
        place = folder / "rows.json"
        place.write_text(json.dumps(self.rows))
        codes = folder / "codes"
        codes.mkdir()
        for number in range(_CODES):
            (codes / f"{number:03}").write_text(service.new_code())
        return {
            "rows": str(place),
            "codes": str(codes),
            "is_async": kind.is_async,
            "client_id": service.client_id,
            "client_secret": service.client_secret,
            "redirect_uri": service.redirect_uri,
            "auth_url": service.auth_url,
            "key": service.key,
            "base_url": service.base_url,
            "timeout": 60.0,
            "concurrency": self.random.choice(kind.concurrency),
            "journal": str(folder / "journal") if kind.journal else None,
            "board_id": board,
            "unknown": kind.unknown,
            "marker": kind.marker,
            "probe": kind.probe,
            "settle": scale.settle if kind.settle is None else kind.settle,
        }

    def die(self, importer: Importer, death: Death = None) -> Process:
        """Run the import in a process that dies of something, or ends."""
        out = self._folder / f"out-{len(self._processes)}"
        order = {**self._order, "out": str(out)}
        if isinstance(death, tuple):
            order["crash"] = list(death)
        elif death is not None:
            order["kill_after"] = death
        process = importer.run(order)
        if "may be empty or cut off" in process.last.get("fatal", "") and not self._service.calls_of("cards.create"):
            self._cut_off += 1
            Path(order["journal"]).unlink()
            out.unlink()
            process = importer.run(order)
        self._processes.append(process)
        return process

    def hang_deletions(self) -> None:
        """Carry out deletions, and let no response come."""
        self._service.faults.add(faults.hang(commit=True), "cards.delete")

    def release_deletions(self) -> None:
        """Respond to deletions from now on."""
        self._service.faults.clear()
        self._service.faults.add(self.storm, "cards.create")

    def finish(self, importer: Importer) -> None:
        """Run the import to its end, in as many processes as a refused token may need."""
        process = self.die(importer)
        while self.kind.may_end and process.is_refused:
            process = self.die(importer)

    @property
    def is_open(self) -> bool:
        """Return whether the last process left rows unknown."""
        return any(result["state"] == "unknown" for result in self._processes[-1].results)

    def check(self) -> Findings:
        """Wait for commits that are late, and look at everything.

        Raises:
            NotAsAssumedError: one of them was later than all may be.
        """
        until = time.monotonic() + 30
        while self.storm.pending and time.monotonic() < until:
            time.sleep(0.01)  # commits that are late come in real time, by the service's own thread
        settle = self._order["settle"]
        if self.kind.is_sound and self.storm.latest > settle:
            raise NotAsAssumedError(f"a commit came {self.storm.latest:.2f} s late, settle is {settle} s")
        cards = dict(self._service.rules.cards)
        found = check(
            Evidence(
                rows=self.rows,
                cards=cards,
                ours=frozenset(cards) - self._before - self._foreign,
                unanswered=frozenset(self.storm.unanswered),
                processes=self._processes,
                is_marked=bool(self.kind.marker),
                may_end=self.kind.may_end,
            )
        )
        calls = self._service.calls_of("cards.create")
        found.cut_off, found.again = self._cut_off, self.again
        found.posts = len(calls)
        found.refused = sum(call.status == 429 for call in calls)
        found.unauthorised = sum(call.status == 401 for call in calls)
        return found


def _expiries(kind: Kind, rows: int, chance: random.Random) -> frozenset[int]:
    """Choose the calls at which all tokens expire: apart from each other, so that a renewed one is good for a call, or not."""
    if kind.may_end:
        return frozenset(chance.sample(range(2, rows), kind.expiries))
    return frozenset(start + chance.randrange(2, 50) for start in range(0, min(rows, 100 * kind.expiries), 100))


def _bucket(kind: Kind) -> Faults | None:
    if kind.limit is None or kind.script is not None:
        return None
    bucket = Faults()
    bucket.rate_limit = faults.rate_limit(kind.limit[0], burst=kind.limit[1])
    return bucket


def _wire(row: Mapping[str, Any]) -> dict[str, Any]:
    names = {"name": "name", "list_id": "idList", "desc": "desc", "due": "due"}
    return {wire: row[name] for name, wire in names.items() if row[name] is not None}


@contextlib.contextmanager
def running(kind: Kind, rows: int, seed: int, scale: Scale) -> Iterator[Run]:
    """Set up a service and an import into it."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder, BoardService() as service:
        yield Run(kind, rows, seed, scale, Path(folder), service)


def as_assumed(run: Callable[[Scale], Findings], scale: Scale) -> Findings:
    """Run again with a longer `settle` where the machine was too slow for the one before."""
    for settle in (scale.settle, 4 * scale.settle):
        with contextlib.suppress(NotAsAssumedError):
            return run(attrs.evolve(scale, settle=settle))
    return run(attrs.evolve(scale, settle=30.0))


def kill_at_random(kind: Kind, rows: int, seed: int, scale: Scale, importer: Importer, longest: float) -> Findings:
    """Run an import that is killed up to five times, and then to its end.

    Kills come within `longest` seconds, early ones oftener.
    """
    return as_assumed(lambda scale: _kill_at_random(kind, rows, seed, scale, importer, longest), scale)


def _kill_at_random(kind: Kind, rows: int, seed: int, scale: Scale, importer: Importer, longest: float) -> Findings:
    with running(kind, rows, seed, scale) as run:
        for _ in range(run.random.choice(kind.kills)):
            death: Death = longest * run.random.random() ** 2
            if kind.dies_at is not None:
                death = kind.dies_at[0], threshold_of(kind.dies_at[1], rows)
            if run.die(importer, death).status == 0:
                break
        else:
            run.finish(importer)
        if kind.is_sound and kind.unknown is None and run.is_open:
            run.again += 1
            run.finish(importer)
        return run.check()


# --- crash points

SEND_POINTS = ("send:before", "send:under-way", "send:answered")
READ_POINTS = ("read:before", "read:answered")
PLACES = ("first", "middle", "last")
_CONCURRENCY = 4
_POINTS = Kind(script=every(dropped_before=11, dropped_after=7, bad_gateway=13), concurrency=(_CONCURRENCY,))


def threshold_of(place: str, rows: int) -> int:
    """Say how many rows come past a point before the crash."""
    return {"first": 1, "middle": rows // 2, "last": rows}[place]


SMALL: Mapping[str, Kind] = {
    "small": Kind(rates={}, expiries=0, concurrency=(_CONCURRENCY,), baseline=1),
    "small-marker": Kind(rates={}, expiries=0, concurrency=(_CONCURRENCY,), baseline=1, marker=True),
    "small-neighbour": Kind(rates={}, expiries=0, concurrency=(_CONCURRENCY,), neighbour=True),
}
"""Imports of one batch, whose first process may die before any card is confirmed."""


def crash_at(point: str, place: str, rows: int, seed: int, scale: Scale, importer: Importer, kind: Kind = _POINTS) -> Findings:
    """Run an import that dies at a point, and then to its end.

    A reading is that before the first row, or the n-th of the second process, after the first died in the middle of its rows.
    """
    return as_assumed(lambda scale: _crash_at(point, place, rows, seed, scale, importer, kind), scale)


def _crash_at(point: str, place: str, rows: int, seed: int, scale: Scale, importer: Importer, kind: Kind) -> Findings:
    threshold, deaths = rows, list[Death]()
    if point in SEND_POINTS:
        threshold = threshold_of(place, rows)
        deaths = [(point, threshold)]
    elif place == "baseline":
        deaths = [(point, 1)]
    else:
        deaths = [("send:before", rows // 2), (point, int(place))]
    with running(kind, rows, seed, scale) as run:
        if point == "send:under-way":  # no answer comes to the last of those that are sent
            run.storm.script = lambda post: "hanging" if post > threshold - _CONCURRENCY else None
        for death in deaths:
            process = run.die(importer, death)
            if process.status != -9 or process.is_hung:
                raise AssertionError(f"the process was not at {death}: it ended with {process.status} and {process.last}")
        run.storm.script = kind.script
        if kind.neighbour:
            run.write_other()
        run.die(importer)
        return run.check()


PROBE_POINTS = ("read:answered 2", *(f"{point} probe" for point in SEND_POINTS), "read:answered 3")
PROBE_POINTS += ("delete:before", "delete:under-way", "delete:answered")
"""Before a probe is logged; once it is, and before and after it is sent; once it is found; while it is deleted."""


def crash_at_probe(point: str, rows: int, scale: Scale, importer: Importer, *, marker: bool | None = None) -> Findings:
    """Run an import that dies at a point of its probe, which the loss of the last row makes necessary, and then to its end."""
    moment, _, place = point.partition(" ")
    script = every(dropped_before=rows)
    kind = Kind(rates={}, script=script, expiries=0, concurrency=(_CONCURRENCY,), baseline=1, marker=marker, probe=True)

    def run_twice(scale: Scale) -> Findings:
        with running(kind, rows, 1, scale) as run:
            if moment == "send:under-way":
                run.storm.script = lambda post: "hanging" if post > rows else script(post)
            if moment == "delete:under-way":
                run.hang_deletions()
            process = run.die(importer, (moment, rows + 1 if place == "probe" else int(place or 1)))
            if process.status != -9 or process.is_hung:
                raise AssertionError(f"the process was not at {point}: it ended with {process.status} and {process.last}")
            run.storm.script = None
            run.release_deletions()
            run.die(importer)
            return run.check()

    return as_assumed(run_twice, scale)


# --- the command

COLUMNS = ("runs", "kills", "cut_off", "again", "posts", "unauthorised", "refused")
COLUMNS += ("lost", "duplicated", "unexpected", "recovered", "unknown")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and print its table; the status is 1 where something was found that may not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[*_ALL], action="append")
    parser.add_argument("--delay", type=float, default=0.15, help="the longest delay of a commit, in seconds")
    parser.add_argument("--settle", type=float, default=0.6)
    parser.add_argument("--longest", type=float, default=1.2, help="the latest kill, in seconds")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    names = given.kind or list(KINDS)
    scale = Scale(delay=given.delay, settle=given.settle)
    sums: dict[str, Findings] = {name: Findings() for name in names}
    is_bad = False

    def one(number: int, importer: Importer) -> tuple[str, int, Findings, float]:
        name, seed, begun = names[number % len(names)], given.seed + number, time.monotonic()
        found = kill_at_random(_ALL[name], given.rows, seed, scale, importer, given.longest)
        return name, seed, found, time.monotonic() - begun

    with Crew(given.jobs) as crew:
        for run in [crew.submit(functools.partial(one, number)) for number in range(given.runs)]:
            name, seed, found, seconds = run.result()
            sums[name] += found
            if found.is_clean and not found.unknown:
                continue
            is_sound = _ALL[name].is_sound
            is_bad = is_bad or (is_sound and not found.is_clean)
            again = f"--runs 1 --rows {given.rows} --seed {seed} --kind {name}"
            _say(f"{again}: {seconds:.1f} s, {attrs.evolve(found, untrue=found.untrue[:5])}")
    _say("| kind | " + " | ".join(COLUMNS) + " | untrue |")
    _say("|---" * (len(COLUMNS) + 2) + "|")
    total = Findings()
    for name, found in sums.items():
        total += found
        _say(_line(name, found))
    _say(_line("all", total))
    return int(is_bad)


def _line(name: str, found: Findings) -> str:
    return f"| {name} | " + " | ".join(str(getattr(found, column)) for column in COLUMNS) + f" | {len(found.untrue)} |"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
