"""Uploads: files of cards on their way to a board, and how far they are. No web framework.

Everything about an upload is in its folder, so that any worker can serve it, and continue it after a crash.
"""

from __future__ import annotations

import asyncio
import codecs
import csv
import fcntl
import io
import json
import logging
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from boardclient import AsyncSession, BoardClientError, BulkProgress, CardDraft

SEPARATORS = (",", ";", "\t", "|")
logger = logging.getLogger("webapp")
stopping = threading.Event()
running: dict[str, asyncio.Task[None]] = {}


class Upload:
    """A file of cards on its way to a board.

    Its folder has `plan.json` (what to create), `journal` (of the bulk run), `state.json` (the progress) and `lock`, which the
    worker that runs the upload holds. If it dies, the next worker that starts or shows the progress continues the upload.
    """

    def __init__(self, upload_id: str) -> None:
        self.id = upload_id
        self.folder = uploads_folder() / upload_id

    @classmethod
    def create(cls, account: str, board_id: str, list_id: str, rows: list[dict[str, str]]) -> Upload:
        """Store a new upload."""
        upload = cls(secrets.token_hex(16))
        upload.folder.mkdir(mode=0o700, parents=True)
        upload.save("state", {"number": 1, "total": len(rows), "done": 0, "failed": [], "waiting_for": None, "ended": None})
        upload.save("plan", {"account": account, "board_id": board_id, "list_id": list_id, "rows": rows})
        return upload

    @property
    def exists(self) -> bool:
        """Whether it is stored completely."""
        return (self.folder / "plan.json").exists()

    def load(self, name: str) -> dict[str, Any]:
        """Read `plan` or `state`."""
        loaded: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_bytes())
        return loaded

    def save(self, name: str, value: dict[str, Any]) -> None:
        """Write `plan` or `state` atomically: a reader sees the old file or the new one."""
        draft = self.folder / f"{name}.new"
        draft.write_text(json.dumps(value))
        draft.replace(self.folder / f"{name}.json")

    def note(self, **changes: Any) -> None:
        """Store changes of the progress."""
        state = self.load("state")
        self.save("state", {**state, **changes, "number": state["number"] + 1})

    async def run(self, session: AsyncSession) -> None:
        """Create the cards that the journal does not show as created, unless another worker runs the upload."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            try:
                await self.create_cards(session)
            except (BoardClientError, OSError, ValueError) as error:  # such as a damaged journal, or a full disk
                logger.warning("upload %s failed: %s", self.id, error)
                self.note(waiting_for=None, ended="failed")

    async def create_cards(self, session: AsyncSession) -> None:
        """Create the cards."""
        plan = self.load("plan")

        def show(progress: BulkProgress) -> None:
            # After a restart the run counts from the first row again: what was done stays done.
            done = max(progress.done, self.load("state")["done"])
            self.note(done=done, waiting_for=progress.waiting_for)

        drafts = [CardDraft(name=row["name"], list_id=plan["list_id"], desc=row["desc"] or None) for row in plan["rows"]]
        run = session.cards.create_many(drafts, journal=self.folder / "journal", board_id=plan["board_id"], on_progress=show)
        async with run:
            bad = [{"name": result.draft.name, "state": result.state} async for result in run if result.error]
            self.note(done=len(drafts), failed=bad, waiting_for=None, ended="finished")

    def start(self, session: AsyncSession) -> None:
        """Run the upload in the background, unless it runs or has ended."""
        if self.id not in running and self.load("state")["ended"] is None:
            task = running[self.id] = asyncio.create_task(self.run(session))
            task.add_done_callback(lambda _: running.pop(self.id))

    async def states(self, after: int, is_disconnected: Callable[[], Awaitable[bool]]) -> AsyncIterator[dict[str, Any]]:
        """Yield the progress each time it changes, until the upload has ended or the browser is gone."""
        while not (stopping.is_set() or await is_disconnected()):
            state = self.load("state")
            if state["number"] > after:
                after = state["number"]
                yield state
            if state["ended"] is not None:
                return
            await asyncio.sleep(0.1)


def uploads_folder() -> Path:
    """Return the folder of all uploads."""
    return Path(os.environ["BOARDCLIENT_TOKENS"] + ".uploads")


def left_uploads() -> Iterator[tuple[Upload, str]]:
    """Yield the uploads that have not ended, with their accounts."""
    for plan in uploads_folder().glob("*/plan.json"):
        upload = Upload(plan.parent.name)
        try:
            if upload.load("state")["ended"] is None:
                yield upload, upload.load("plan")["account"]
        except (OSError, ValueError, KeyError) as error:
            logger.warning("upload %s can't be read: %s", upload.id, error)


def rows_of(content: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a column `name` and an optional column `desc`.

    What spreadsheets write is read as `boardclient import` reads it: UTF-8 or UTF-16, cells
    separated by commas, semicolons, tabs or bars, names of columns in any case, and a first
    line such as `sep=;`. No other encoding is guessed.

    Raises:
        ValueError: it is not such a file. The message is for the user.
    """
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
        lines = [line for line in io.StringIO(text, newline="") if line.strip()]
        first = next((line for line in lines if not line.lower().startswith("sep=")), "")
        mark = max(SEPARATORS, key=lambda one: len(next(csv.reader([first], delimiter=one), ())))
        records = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True) if any(row)]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError("This is not a CSV file in UTF-8: save it as “CSV UTF-8”") from None
    if records and records[0][0].lower().startswith("sep="):
        del records[0]
    header = [cell.strip().casefold() for cell in records[0]] if records else []
    rows = [{"name": "", "desc": "", **dict(zip(header, row, strict=False))} for row in records[1:]]
    if "\0" in text or not rows or not all(row["name"].strip() for row in rows):
        raise ValueError("The file needs a first line with a column “name”, and a name in every row below")
    return [{"name": row["name"], "desc": row["desc"]} for row in rows]


async def stop_uploads() -> None:
    """Stop the uploads of this worker. Their journals are continued at the next start."""
    for task in list(running.values()):
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)


def end_streams_on_signals() -> None:
    """End event streams on SIGTERM and SIGINT, since servers wait for open responses before the lifespan ends."""
    stopping.clear()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers; tests run in others
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        servers = signal.getsignal(number)

        def stop(number: int, frame: Any, servers: Any = servers) -> None:
            stopping.set()
            if callable(servers):
                servers(number, frame)

        signal.signal(number, stop)
