"""A canned HTTP/1.1 server that costs little, so that a benchmark measures its client.

A POST creates a card. Reading a card returns one of 1.7 KB, reading the board (or list) `b1000` a thousand of them. Some clients
refuse a new card with nothing but what the service promises; under a path of their own they get the fields that they insist on.
"""

import argparse
import asyncio
import functools
import itertools
import json
import os
import re
import ssl
from pathlib import Path
from typing import cast

from _cards import board, card

_CARD: dict[str, object] = {
    "id": "5f1a0c2e9b7d4e0012ab34cd",
    "name": "Card 1",
    "desc": "Written by the benchmark.",
    "url": "https://board.example/c/5f1a0c2e",
}
_TRELLO: dict[str, object] = {
    "idList": "5f1a0c2e9b7d4e0012ab0001",
    "idBoard": "5f1a0c2e9b7d4e0012ab0002",
    "idShort": 1,
    "idMembers": [],
    "idLabels": [],
    "idChecklists": [],
    "labels": [],
    "badges": {"checkItems": 0},
    "closed": False,
    "due": None,
    "dueComplete": False,
    "pos": 65536,
    "shortUrl": "https://board.example/c/5f1a0c2e",
    "dateLastActivity": "2026-01-01T00:00:00.000Z",
    "customFieldItems": [],
}
_INSISTED: dict[bytes, dict[str, object]] = {
    b"/slack/": {"ok": True},
    b"/trellio/": {"idList": _TRELLO["idList"]},
    b"/trello/": _TRELLO,
}
_READ = re.compile(rb"/(?:boards|lists)/[a-z](\d+)/cards[? ]")


def _answer(value: object) -> bytes:
    return _response(json.dumps(value).encode())


def _response(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_NUMBERS = itertools.count(1)
_NAME = re.compile(rb'"name" ?: ?"([^"]*)"')
_CREATED = b'{"id": "%024x", "name": "%b", "desc": "Written by the benchmark.", "url": "https://board.example/c/5f1a0c2e"}'
_CREATED_FOR = {b"post " + path: _answer(_CARD | fields) for path, fields in _INSISTED.items()}


_ONE = _answer(card(1))


@functools.cache
def _listed(number: int) -> bytes:
    return _response(board(number))


def _answer_to(head: bytes, body: bytes) -> bytes:
    if head.startswith(b"post /1/"):  # each card has its own identifier, and the name that was sent, as a service's has
        sent = _NAME.search(body)
        return _response(_CREATED % (next(_NUMBERS), sent[1] if sent else b""))
    if head.startswith(b"get /1/cards/"):
        return _ONE
    if wanted := _READ.search(head, 0, 200):
        return _listed(int(wanted[1]))
    return next(answer for start, answer in _CREATED_FOR.items() if head.startswith(start))


class _Canned(asyncio.Protocol):
    """Reads each request whole, by its Content-Length, and sends its prepared response."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower() + b" "
            length = 0
            if (at := head.find(b"\r\ncontent-length:")) >= 0:
                length = int(head[at + 17 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            self._transport.write(_answer_to(head, body))


async def _serve(certificate: Path | None) -> None:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", 0, backlog=1024, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Print the port, then serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, help="the processor core to stay on")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="where cert.pem and key.pem are")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    try:
        import uvloop
    except ImportError:  # without the rivals; slower, but still far quicker than a client
        asyncio.run(_serve(options.tls))
    else:
        uvloop.run(_serve(options.tls))


if __name__ == "__main__":
    main()
