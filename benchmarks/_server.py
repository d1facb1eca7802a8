"""A canned HTTP/1.1 server that costs little, so that a benchmark measures its client."""

import argparse
import asyncio
import json
import os

_CARD = {
    "id": "5f1a0c2e9b7d4e0012ab34cd",
    "name": "Card 1",
    "desc": "Written by the benchmark.",
    "url": "https://board.example/c/5f1a0c2e",
}


def _answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _cards(number: int) -> bytes:
    cards = [
        {**_CARD, "id": f"{position:024x}", "name": f"Card {position}", "idList": "l1", "pos": position}
        for position in range(number)
    ]
    return json.dumps(cards).encode()


class _Canned(asyncio.Protocol):
    """Read each request whole, by its Content-Length, and give the answer prepared for its method."""

    def __init__(self, created: bytes, listed: bytes) -> None:
        self._created = created
        self._listed = listed
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = 0
            if (at := head.find(b"\r\ncontent-length:")) >= 0:
                length = int(head[at + 17 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(self._listed if head.startswith(b"get ") else self._created)


async def _serve(cards: int) -> None:
    created, listed = _answer(json.dumps(_CARD).encode()), _answer(_cards(cards))
    server = await asyncio.get_running_loop().create_server(lambda: _Canned(created, listed), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Print the port, then serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", type=int, required=True, help="length of the array that a read answers")
    parser.add_argument("--core", type=int, help="the processor core to stay on")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    asyncio.run(_serve(options.cards))


if __name__ == "__main__":
    main()
