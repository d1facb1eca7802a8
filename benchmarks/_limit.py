"""The limits: no client at all, on asyncio's sockets and in C."""

import asyncio
import contextlib
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from _contenders import Service, Work, draft, in_workers, read_path


class _Connection(asyncio.Protocol):
    """One connection with one request at a time, whose response httptools parses."""

    def __init__(self, parser_type: Any) -> None:
        self._parser = parser_type(self)
        self._body = b""
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self.answer is not None
        self.answer.set_result((self._parser.get_status_code(), self._body))
        self._body = b""

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionError("closed"))


def _head(service: Service, first_line: str) -> bytes:
    host = service.base_url.partition("//")[2]
    return f"{first_line} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nUser-Agent: floor\r\n".encode()


def _creating(service: Service) -> Callable[[int], bytes]:
    import msgspec

    encode = msgspec.json.Encoder().encode
    head = _head(service, "POST /1/cards") + b"Content-Type: application/json\r\nContent-Length: "

    def wire(position: int) -> bytes:
        body = encode(draft(position))
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    return wire


def _getting(service: Service) -> Callable[[int], bytes]:
    wire = _head(service, f"GET {read_path(0)}?key=k&token=t") + b"\r\n"
    return lambda _: wire


@contextlib.asynccontextmanager
async def _on_sockets(service: Service, concurrency: int, wire: Callable[[int], bytes]) -> AsyncIterator[Work]:
    import httptools
    import msgspec

    bytes(2**20)  # raises glibc's threshold for mmap, so that asyncio's receive buffers are kept
    loop = asyncio.get_running_loop()
    host, port = service.base_url.partition("//")[2].split(":")
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    idle: list[_Connection] = []
    for _ in range(concurrency):
        _, connection = await loop.create_connection(
            lambda: _Connection(httptools.HttpResponseParser), host, int(port), ssl=service.context()
        )
        idle.append(connection)
    connections = list(idle)

    async def one(position: int) -> dict[str, Any]:
        connection = idle.pop()
        connection.answer = loop.create_future()
        connection.transport.write(wire(position))
        status, answer = await connection.answer
        idle.append(connection)
        if status != 200:
            raise RuntimeError(status)
        return decode(answer)

    try:
        yield in_workers(concurrency, one)
    finally:
        for connection in connections:
            connection.transport.close()


def create_on_sockets(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Create cards on bare connections, with httptools and msgspec."""
    return _on_sockets(service, concurrency, _creating(service))


def get_on_sockets(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Read cards on bare connections, with httptools and msgspec."""
    return _on_sockets(service, concurrency, _getting(service))


@contextlib.asynccontextmanager
async def _in_c(service: Service, concurrency: int, wire: bytes) -> AsyncIterator[Work]:
    """Compile the program, and let it send the same bytes for each call."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ModuleNotFoundError("a C compiler", name="cc")
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "limit.so")
        source = str(Path(__file__).with_name("_limit.c"))
        subprocess.run([compiler, "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source], check=True)
        run = ctypes.CDLL(library).run
    port = int(service.base_url.rpartition(":")[2])

    async def work(calls: int, seconds: list[float]) -> int:
        return int(run(port, concurrency, calls, wire, len(wire)))

    yield work


def create_in_c(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Create cards in C, without reading the responses."""
    return _in_c(service, concurrency, _creating(service)(1))


def get_in_c(service: Service, concurrency: int) -> contextlib.AbstractAsyncContextManager[Work]:
    """Read cards in C, without reading the responses."""
    return _in_c(service, concurrency, _getting(service)(1))
