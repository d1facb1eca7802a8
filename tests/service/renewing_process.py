"""One of the processes of `test_renewal_processes`: it makes calls, and asks its parent for codes, which may hold it up."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boardclient import (
    AsyncSession,
    AuthorizationRequest,
    BoardClientError,
    FileTokenStore,
    OAuthCredentials,
    Token,
)

CONCURRENCY = 10


class Parent:
    """The way to the test: one line of JSON each way on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stops_in = ""

    async def ask(self, what: str) -> dict[str, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(json.dumps([what, os.getpid()]).encode() + b"\n")
        answer = json.loads(await reader.readline())
        writer.close()
        return answer

    def ask_blocking(self, what: str) -> dict[str, str]:
        with socket.create_connection(("127.0.0.1", self.port)) as connection, connection.makefile("rw") as lines:
            lines.write(json.dumps([what, os.getpid()]) + "\n")
            lines.flush()
            return json.loads(lines.readline())

    async def stop_in(self, step: str) -> None:
        """If this is the step to stop at, notify the test and wait for the end."""
        if self.stops_in == step:
            await self.ask(f"stopped in {step}")
            await asyncio.Event().wait()


class StoppingStore(FileTokenStore):
    """A store in whose steps the process can be stopped."""

    parent: Parent

    async def publish(self, account: str, token: Token, after: int) -> bool:
        await self.parent.stop_in("publish")
        return await super().publish(account, token, after)

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await self.parent.stop_in("release")
        await super().release(account, holder, cooldown)


async def main(plan: dict[str, Any]) -> None:
    parent = Parent(plan["parent"])
    ahead = Path(plan["ahead"])
    store = StoppingStore(plan["store"], clock=lambda: time.time() + ahead.stat().st_size)
    store.parent = parent

    async def authorize(request: AuthorizationRequest) -> str:
        answer = parent.ask_blocking("code") if plan["is_blocking"] else await parent.ask("code")
        parent.stops_in = answer["stop in"]
        await parent.stop_in("callback")
        return answer["code"]

    provider = OAuthCredentials(authorize=authorize, store=store, lease_seconds=plan["lease_seconds"], **plan["client"])
    errors: list[str] = []
    answered = 0

    async def work(session: AsyncSession, left: Iterator[int]) -> None:
        nonlocal answered
        for _ in left:
            try:
                await session.members.me()
                answered += 1
            except BoardClientError as error:
                errors.append(f"{type(error).__name__}: {error}")

    async with AsyncSession(provider, plan["base_url"], timeout=100.0) as session:
        await parent.ask("ready")
        left = iter(range(plan["requests"]))
        if plan["meets_at_half"]:
            half = itertools.islice(left, plan["requests"] // 2)
            await asyncio.gather(*(work(session, half) for _ in range(CONCURRENCY)))
            await parent.ask("half")
            await work(session, itertools.islice(left, 1))  # with the token of now, also where the first expiry was not met
            await parent.ask("half again")
        await asyncio.gather(*(work(session, left) for _ in range(CONCURRENCY)))
    sys.stdout.write(json.dumps({"answered": answered, "errors": errors[:3]}))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
