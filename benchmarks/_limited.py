"""A canned HTTP/1.1 server with an unannounced limit, for `starting.py`; run as a separate process."""

import argparse
import asyncio
import itertools
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pace_simulation import Bucket

_CARD = json.dumps({"id": "%024x", "name": "%b", "desc": "", "url": "https://board.example/c/1"}).encode()
_NAME = re.compile(rb'"name" ?: ?"([^"]*)"')  # of the request, as a service's response has it
_NUMBERS = itertools.count()  # each card has an identifier of its own


def _answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class _Limited(asyncio.Protocol):
    """Decides about each request after half the latency, and responds after the other half."""

    def __init__(self, service: Bucket, latency: float) -> None:
        self._service, self._latency = service, latency
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            asyncio.get_running_loop().call_later(self._latency / 2, self._decide, body)

    def _decide(self, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        wait = self._service.refuse(loop.time())
        sent = _NAME.search(body)
        card = _CARD % (next(_NUMBERS), sent[1] if sent else b"")
        answer = _answer("200 OK", card) if wait is None else _answer("429 Too Many Requests", b"")
        loop.call_later(self._latency / 2, self._transport.write, answer)


async def _serve(options: argparse.Namespace) -> None:
    service = Bucket(options.limit)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Limited(service, options.latency), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=50.0)
    parser.add_argument("--latency", type=float, default=0.05)
    asyncio.run(_serve(parser.parse_args()))
