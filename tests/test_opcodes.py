"""How much Python an ordinary call runs, counted in opcodes: a measure that does not depend on the machine."""

import sys
from types import FrameType
from typing import Any

import pytest

from boardclient import AsyncSession, StaticCredentials
from boardclient._transport import RawResponse

_CREATED = RawResponse(200, {}, b'{"id": "c1", "name": "n", "desc": "d", "url": "u"}')


class Pool:
    """A transport that answers at once."""

    async def send(self, *arguments: Any, **options: Any) -> RawResponse:
        return _CREATED

    async def aclose(self) -> None: ...


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of Python has opcodes of its own")
async def test_an_ordinary_call_runs_few_opcodes() -> None:
    """Creating a card with static credentials and no observers stays within a bound, without transport and decoding."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("boardclient.") or module == "boardclient._convert":
            return None
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return count

    async with AsyncSession(StaticCredentials("token", "key"), "https://board.example") as session:
        session._core.pool = Pool()  # type: ignore[assignment]  # -- all that a call asks of it
        await session.cards.create("n", list_id="l")
        call = session.cards.create("n", list_id="l")
        tracer = sys.gettrace()
        sys.settrace(count)
        try:
            await call
        finally:
            sys.settrace(tracer)
    assert 0 < counted <= 448
