"""Records the requests of sessions and their responses."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs

from boardclient._pipeline._taps import Go, PoolRequest, TransportResult, close_tap, open_tap
from boardclient.testing._recording import Recording
from boardclient.testing._redacting import Captured, interactions_of

if TYPE_CHECKING:
    from boardclient import AsyncSession
    from boardclient.testing._endpoint import ServiceEndpoint


@attrs.define(eq=False, repr=False)
class Recorder:
    """Records the requests of sessions within a block. `record` makes one."""

    _path: Path | None
    _target: AsyncSession | ServiceEndpoint | None
    _secrets: tuple[str, ...]
    _max_body_bytes: int
    _captured: list[Captured] = attrs.field(init=False, factory=list)
    _recording: Recording | None = attrs.field(init=False, default=None)

    @property
    def recording(self) -> Recording:
        """What was recorded, without credentials. Requests in flight are in it without a response."""
        if self._recording is not None:
            return self._recording
        return Recording(tuple(interactions_of([*self._captured], self._secrets, self._max_body_bytes)))

    def __enter__(self) -> Self:
        if self._path is not None:
            if self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a folder: name a file in it")
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._captured, self._recording = [], None
        open_tap(self._tap)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        close_tap(self._tap)
        self._recording = self.recording
        self._captured = []
        if self._path is not None:
            self._recording.save(self._path)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.__exit__(kind, error, where)

    def __repr__(self) -> str:
        return f"<Recorder of {len(self._captured)} requests>"

    def _concerns(self, request: PoolRequest) -> bool:
        target = self._target
        if target is None:
            return True
        core = getattr(target, "_core", None)
        return request.url.startswith(f"{target.base_url}/") if core is None else request.pool is core.pool  # type: ignore[union-attr]  # -- a session has a core

    async def _tap(self, request: PoolRequest, go: Go) -> TransportResult:
        if not self._concerns(request):
            return await go(request)
        captured = Captured(
            method=request.method,
            url=request.url,
            body=request.body,
            content_type=request.content_type,
            own_headers=request.settings.headers,
            started=time.time(),
        )
        self._captured.append(captured)
        began = time.perf_counter()
        try:
            captured.outcome = await go(request)
        finally:
            captured.seconds = time.perf_counter() - began
            captured.stage = request.progress.stage
        return captured.outcome
