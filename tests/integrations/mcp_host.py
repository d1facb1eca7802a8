"""A host of agents that speaks the protocol by hand, over the standard input and output of `boardclient mcp`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from boardclient.testing import BoardService

LARGE = 32 * 2**20
SECONDS = 60.0
"""How long anything may take, in real time."""


@attrs.define
class Host:
    """A host and its server. `received` are the messages that nobody waited for."""

    process: Process
    received: list[dict[str, Any]] = attrs.field(factory=list)
    _last_id: int = 0

    @classmethod
    @asynccontextmanager
    async def started(cls, service: BoardService, folder: Path, *options: str) -> AsyncIterator[Host]:
        """Start a server, and shake hands with it."""
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), **service.environment}
        env |= {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "boardclient", "mcp", *options, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, limit=LARGE
        )
        host = cls(process)
        try:
            await host.shake_hands()
            yield host
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def shake_hands(self) -> None:
        """Begin as the protocol wants it."""
        client = {"name": "host", "version": "1"}
        began = await self.call("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        assert began["result"]["serverInfo"]["name"] == "boardclient"
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def send(self, message: dict[str, Any] | bytes) -> None:
        """Send a message, or bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def begin(self, method: str, /, **params: Any) -> int:
        """Send a request, and return its id."""
        self._last_id += 1
        await self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self._last_id

    async def receive(self) -> dict[str, Any]:
        """Return the next message."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
        assert line, await self.errors()
        return dict(json.loads(line))

    async def answer(self, request_id: object) -> dict[str, Any]:
        """Return the response to a request."""
        while True:
            for message in self.received:
                if "method" not in message and message.get("id") == request_id:
                    self.received.remove(message)
                    return message
            self.received.append(await self.receive())

    async def call(self, method: str, /, **params: Any) -> dict[str, Any]:
        """Send a request, and return the response."""
        return await self.answer(await self.begin(method, **params))

    async def begin_tool(self, name: str, /, **arguments: Any) -> int:
        """Call a tool, and return the id of the request."""
        return await self.begin("tools/call", name=name, arguments=arguments)

    async def tool(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and return its result."""
        return result_of(await self.answer(await self.begin_tool(name, **arguments)))

    async def end(self, *, closes: bool = True) -> int:
        """Return the exit code, after the end of the input."""
        if closes:
            assert self.process.stdin is not None
            self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), SECONDS)

    async def errors(self) -> str:
        """Return what the server has written to standard error, once it has ended."""
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), SECONDS)).decode()


def result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a tool's result, which its text holds too."""
    result = response["result"]
    found = result["structuredContent"]
    assert json.loads(result["content"][0]["text"]) == found
    assert result.get("isError", False) is ("error" in found)
    return dict(found)
