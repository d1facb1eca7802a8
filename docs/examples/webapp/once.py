"""Forms that are carried out once: a second click on a button gets the result of the first."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from boardclient import BoardClientError, Effect
from starlette.exceptions import HTTPException

KEPT_SECONDS = 24 * 3600
WAIT_SECONDS = 10.0


class Once:
    """The token of one form, a file that all workers of the application see.

    An empty file says that the form is being carried out, one with a text what came of it.
    """

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.file = folder / form if re.fullmatch("[0-9a-f]{32}", form) else None

    @staticmethod
    def new_form() -> str:
        """Return the token of a new form."""
        return secrets.token_hex(16)

    async def run(self, work: Callable[[], Awaitable[str]]) -> str:
        """Do the work and return its result. If the form was sent before, wait for that, and return its result.

        A form whose work failed for certain may be sent again. A program that sends no token has its work done each time.

        Raises:
            HTTPException: the form was sent before, and its result is not known.
        """
        if self.file is None:
            return await work()
        end = time.monotonic() + WAIT_SECONDS
        while not self._begin(self.file):
            with contextlib.suppress(FileNotFoundError):
                if result := self.file.read_text():
                    return result
            if time.monotonic() > end:
                raise HTTPException(409, "This form was sent before: look before you send it again")
            await asyncio.sleep(0.02)
        try:
            result = await work()
        except BoardClientError as error:
            if error.effect in (Effect.NOT_SENT, Effect.REJECTED):
                self.file.unlink()
            raise
        self.file.write_text(result)
        return result

    def _begin(self, file: Path) -> bool:
        """Return True if the form was not sent before."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                    old.unlink()
        with contextlib.suppress(FileExistsError):
            file.touch(mode=0o600, exist_ok=False)
            return True
        return False
