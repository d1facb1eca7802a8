"""Records or replays the requests of a test, for the fixture `board_recording`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from boardclient.testing._record_and_replay import record, replay

if TYPE_CHECKING:
    from boardclient import AsyncSession, CredentialProvider
    from boardclient.testing._replay import ReplayService

RecordMode: TypeAlias = Literal["none", "once", "all"]


@attrs.frozen(eq=False)
class BoardRecording:
    """The recording of one test, which the fixture `board_recording` gives.

    While it is replayed, the environment variables are those of the service that replays it. While it is recorded, they are those
    of the real service.
    """

    path: Path
    """The file."""
    service: ReplayService | None
    """The service that replays the file, None while it is recorded."""

    @property
    def is_replayed(self) -> bool:
        """Whether the file is replayed. Otherwise it is recorded."""
        return self.service is not None

    def session(self, credentials: CredentialProvider | None = None, **options: Any) -> AsyncSession:
        """Return a session that the environment configures. The caller closes it.

        Args:
            credentials: The credentials. By default those of the environment.
            options: The options of `AsyncSession`.
        """
        from boardclient import AsyncSession

        return AsyncSession.from_env(credentials, **options)


class NotRecordedError(Exception):
    """There is no file to replay, and none may be recorded."""


@contextmanager
def recording_of_test(
    path: Path, mode: RecordMode, options: Mapping[str, Any], has_failed: Callable[[], bool]
) -> Iterator[BoardRecording]:
    """Record or replay the file of a test.

    Args:
        path: The file.
        mode: What to do. See the documentation.
        options: Those of `record` and `replay`.
        has_failed: Returns True if the test has failed. Its file is not written then.

    Raises:
        NotRecordedError: the file does not exist, and the mode is "none".
        AssertionError: the requests of the test are not those in the file.
        TypeError: there is no such option.
    """
    of_record = {name: options[name] for name in ("secrets", "max_body_bytes") if name in options}
    of_replay = {name: options[name] for name in ("strict", "ignoring", "repeats") if name in options}
    if unknown := set(options) - {*of_record, *of_replay}:
        raise TypeError(f"board_recording does not take {', '.join(sorted(unknown))}")
    if mode == "all" or (mode == "once" and not path.exists()):
        with record(**of_record) as recorder:
            yield BoardRecording(path, None)
        if recorder.recording.interactions and not has_failed():
            path.parent.mkdir(parents=True, exist_ok=True)
            recorder.recording.save(path)
        return
    if not path.exists():
        raise NotRecordedError(f"{path} does not exist: run the test with --board-record=once to record it")
    with replay(path, **of_replay) as service, _environment(service.environment):
        yield BoardRecording(path, service)
        service.strict = service.strict and not has_failed()  # a failed test may have ended before its last requests


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
