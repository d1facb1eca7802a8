"""The transport over standard input and output. It answers what can't be read, and ends while the input is open.

The library's own transport reads in a thread that nothing ends, and drops lines that it can't read:
https://github.com/modelcontextprotocol/python-sdk/blob/main/src/mcp/server/stdio.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Collection, Iterator
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage, jsonrpc_message_adapter

from boardclient import Effect
from boardclient.integrations.mcp import _results as results

_CHUNK_BYTES: Final = 64 * 2**10
_LONGEST_LINE: Final = 16 * 2**20
"""The largest message that is read, in bytes."""
_CALLS_END_SECONDS: Final = 0.4
"""How long calls under way may continue after a signal, so that what becomes of them is in the ledger."""
_INPUT_END_SECONDS: Final = 1.5
"""How long they may continue after the end of the input. Hosts end a server that takes two seconds."""
_CLEANUP_SECONDS: Final = 0.2
_PARSE_ERROR, _INVALID_REQUEST = -32700, -32600  # https://www.jsonrpc.org/specification#error_object

_ONE_OBJECT: Final = "a message is one object of JSON on a line, in UTF-8"
_NEXT_STEP: Final = "Send the request again as one line of JSON in UTF-8."


async def serve(server: Server[Any], calls: Collection[asyncio.Task[Any]]) -> None:
    """Serve until standard input ends, standard output is closed, or this is cancelled. `calls` are those under way."""
    loop = asyncio.get_running_loop()
    to_server, from_host = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_host, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    with _own_output() as output:
        ended = asyncio.Event()
        writer = _Writer(output, lambda: loop.call_soon_threadsafe(ended.set))
        reading = _Reading(to_server, writer, ended)
        # A copy of the descriptor, so that the thread reads no other file that may get this number later.
        threading.Thread(target=reading.run, args=(os.dup(0), loop), name="boardclient stdin", daemon=True).start()
        serving = asyncio.create_task(server.run(from_host, to_host, server.create_initialization_options()))
        writing = asyncio.create_task(_write_all(from_server, writer))
        waiting = asyncio.create_task(ended.wait())
        seconds = _CALLS_END_SECONDS
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            seconds = _INPUT_END_SECONDS
        finally:
            reading.is_over = True
            await _end(calls, seconds)
            to_server.close()  # which is the end of the input for the server
            await asyncio.wait({serving}, timeout=_CLEANUP_SECONDS)
            for task in (waiting, serving, writing):
                task.cancel()
            found = await asyncio.gather(waiting, serving, writing, return_exceptions=True)
            for stream in (from_host, to_host, from_server):
                stream.close()
            writer.close()
        if isinstance(found[1], Exception):
            raise found[1]  # pragma: no cover -- the library's server has failed, which nothing known makes it do


async def _end(calls: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Let calls end for some seconds, then cancel them, and let that end as well."""
    if calls:
        await asyncio.wait([*calls], timeout=seconds)
        await asyncio.sleep(0.01)  # the results are on their way to the output
    for call in [*calls]:
        call.cancel()
    if calls:
        await asyncio.wait([*calls], timeout=_CLEANUP_SECONDS)


class _Reading:
    """Reads messages in a thread, which ends with the process: nothing ends a read of a pipe whose writer is silent."""

    def __init__(
        self, to_server: MemoryObjectSendStream[SessionMessage | Exception], writer: _Writer, ended: asyncio.Event
    ) -> None:
        self._to_server, self._writer, self._ended = to_server, writer, ended
        self.is_over = False
        """Whether nothing is passed on any more."""

    def run(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on the lines of a file, each once the one before it was taken."""
        try:
            for line in _lines(descriptor):
                asyncio.run_coroutine_threadsafe(self._receive(line), loop).result()
            loop.call_soon_threadsafe(self._ended.set)
        except (RuntimeError, asyncio.CancelledError, TimeoutError):  # pragma: no cover -- only if the loop ends in this moment
            pass

    async def _receive(self, line: bytes | None) -> None:
        message = _too_long() if line is None else read_message(line)
        if isinstance(message, dict):
            self._writer.write(json.dumps(message).encode())
        elif message is not None and not self.is_over:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._to_server.send(SessionMessage(message))


def _lines(descriptor: int) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for each that is too long. A last one without an end counts."""
    begun, is_skipped = bytearray(), False
    while chunk := _read(descriptor):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            begun += part
            if is_skipped or len(begun) > _LONGEST_LINE:
                yield None
            elif begun:
                yield bytes(begun)
            begun, is_skipped = bytearray(), False
        begun += rest
        if len(begun) > _LONGEST_LINE:
            begun, is_skipped = bytearray(), True
    if is_skipped:
        yield None
    elif begun:
        yield bytes(begun)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError:  # pragma: no cover -- such as a terminal that is gone
        return b""


def read_message(line: bytes) -> JSONRPCMessage | dict[str, Any] | None:
    """Return the message of a line, the response to one that can't be read, or None for an empty one.

    Arguments of a tool may hold half of a character, or bytes that are no UTF-8: the tool says in which of them.
    """
    if not (line := line.strip()):
        return None
    try:
        found = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        return _unreadable(_PARSE_ERROR, None, f"the line is not JSON ({type(error).__name__}): {_ONE_OBJECT}")
    if not isinstance(found, dict):
        return _unreadable(_INVALID_REQUEST, None, _ONE_OBJECT)
    request_id = found.get("id")
    is_id = type(request_id) in {str, int} and _is_text(request_id)
    if "id" in found and not is_id:
        return _unreadable(_INVALID_REQUEST, None, "the id of a request is a text or a whole number")
    params = found.get("params")
    # The arguments are left to the tool, which can say in which of them the damage is.
    outside = {**found, "params": {**params, "arguments": None}} if isinstance(params, dict) else found
    if _is_text(outside):
        try:
            return jsonrpc_message_adapter.validate_python(found, by_name=False)
        except (ValueError, RecursionError):
            problem = "it is not a JSON-RPC 2.0 request"
    else:
        problem = "it holds half of a character, or bytes that are no UTF-8"
    return _unreadable(_INVALID_REQUEST, request_id, problem)


def _is_text(value: object) -> bool:
    """Return True if UTF-8 can encode a value as JSON."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _too_long() -> dict[str, Any]:
    return _unreadable(_INVALID_REQUEST, None, f"a message has at most {_LONGEST_LINE // 2**20} MiB")


def _unreadable(code: int, request_id: str | int | None, problem: str) -> dict[str, Any]:
    """Return the response to a request that can't be read. Its data is the object that calls of tools have as result."""
    data = results.failed(Effect.NOT_SENT, problem, _NEXT_STEP)
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": problem, "data": data}}


# --- output


async def _write_all(messages: MemoryObjectReceiveStream[SessionMessage], writer: _Writer) -> None:
    async for one in messages:
        writer.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode())


class _Writer:
    """Writes lines in a thread, so that a host which does not read its pipe holds up nothing else."""

    def __init__(self, descriptor: int, on_closed: Any) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._descriptor, self._on_closed = descriptor, on_closed
        self._thread = threading.Thread(target=self._run, name="boardclient stdout", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Write what is left, as far as the host takes it at once."""
        self._lines.put(None)
        self._thread.join(_CLEANUP_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:  # the host is gone
                with contextlib.suppress(RuntimeError):  # and so is the loop
                    self._on_closed()
                return


@contextlib.contextmanager
def _own_output() -> Iterator[int]:
    """Return a descriptor of standard output that nothing else writes to: what is printed meanwhile goes to standard error."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield output
    finally:
        os.dup2(output, 1)  # `output` stays open: its thread may still be writing
