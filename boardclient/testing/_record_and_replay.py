"""`record` and `replay`: what tests call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from boardclient.testing._playlist import Playlist
from boardclient.testing._recorder import Recorder
from boardclient.testing._recording import Recording
from boardclient.testing._replay import ReplayService

if TYPE_CHECKING:
    from boardclient import AsyncSession
    from boardclient.testing._endpoint import ServiceEndpoint


def record(
    path: str | os.PathLike[str] | None = None,
    target: AsyncSession | ServiceEndpoint | None = None,
    *,
    secrets: Iterable[str] = (),
    max_body_bytes: int = 2**20,
) -> Recorder:
    """Record the requests of sessions and their responses within a block.

    ```python
    async with record("calls.json", session):
        await session.boards.cards(board_id)
    ```

    The file is written when the block ends, also by an exception. An existing file is replaced. It holds no credentials: neither
    those that sign requests nor those of a token exchange, wherever and in whatever form the service repeats them. `with` works
    as well as `async with`.

    Args:
        path: The file, for `replay`. It is an HTTP Archive 1.2 if its name ends in ".har". None (default): no file is
            written, only `Recorder.recording` is set.
        target: An `AsyncSession` with all its views, or a `BoardService` with all its sessions. None (default): every session.
        secrets: Further texts that must not be written. None by default.
        max_body_bytes: The largest body to record in bytes, 1 MiB by default. Of a larger one only the size is written.

    Raises:
        OSError: the file can't be written.
    """
    return Recorder(None if path is None else Path(path), target, tuple(secrets), max_body_bytes)


def replay(
    recording: str | os.PathLike[str] | Recording,
    *,
    strict: bool = True,
    ignoring: Iterable[str] = (),
    repeats: bool = False,
    port: int = 0,
) -> ReplayService:
    """Serve a recording on a loopback port within a block.

    ```python
    async with replay("calls.json") as service, service.session() as session:
        await session.boards.cards(board_id)
    ```

    Each interaction is used once, equal requests in their order. Requests are equal if they have the same method, path, query and
    body. The order of names and the credentials don't count. A request that is not in the recording gets status 421 and a text
    that names the most similar one, and the block ends with an `AssertionError`. Failures are replayed as they were recorded.

    Args:
        recording: A `Recording`, or the path of a file, which may be an HTTP Archive of another tool.
        strict: Whether the block ends with an `AssertionError` if recorded requests were not made again. True by default.
        ignoring: Further query parameters and fields of the body that don't count, such as "due". None by default.
        repeats: Whether the last of equal requests may be used any number of times. False by default.
        port: The port on 127.0.0.1. 0, the default, means any free port.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not a recording, or one of a later version.
    """
    loaded = recording if isinstance(recording, Recording) else Recording.load(recording)
    name = "the recording" if isinstance(recording, Recording) else os.fspath(recording)
    return ReplayService(name=name, playlist=Playlist(loaded.interactions, ignoring, repeats=repeats), strict=strict, port=port)
