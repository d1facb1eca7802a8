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
    """Record what sessions ask and what comes of it, for the time of a block.

    ```python
    async with record("calls.json", session):
        await session.boards.cards(board_id)
    ```

    The file is written when the block ends, also by an exception, in place of an earlier one. It holds no credential: not those
    that requests are signed with, nor what a token exchange sends and gives, wherever and however the service writes it. `with`
    works as well as `async with`.

    Args:
        path: the file, for `replay`; HTTP Archive 1.2 where its name ends in ".har"; None for `Recorder.recording` alone.
        target: an `AsyncSession` with all its views, or a `BoardService` with all sessions on it; None for every session.
        secrets: what must not be written either.
        max_body_bytes: a longer body is left out, and what it was is noted.

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
    """Serve a recording on a loopback port, for the time of a block.

    ```python
    async with replay("calls.json") as service, service.session() as session:
        await session.boards.cards(board_id)
    ```

    Each interaction is used once, equal requests in their order. Requests are equal by method, path, query and body; the order of
    names and the credentials don't count. One that is not in the recording gets status 421 and words that name the nearest, and
    the block ends with an `AssertionError`. Failures are played as they were recorded.

    Args:
        recording: the file, which may be an HTTP Archive of another tool, or a `Recording`.
        strict: whether the block ends with an `AssertionError` where recorded requests were not asked again.
        ignoring: parameters of the query and fields of the body that don't count either, such as "due".
        repeats: whether the last of equal requests is played again and again.
        port: the port on 127.0.0.1; 0 takes a free one.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no recording, or one of a later version.
    """
    loaded = recording if isinstance(recording, Recording) else Recording.load(recording)
    name = "the recording" if isinstance(recording, Recording) else os.fspath(recording)
    return ReplayService(name=name, playlist=Playlist(loaded.interactions, ignoring, repeats=repeats), strict=strict, port=port)
