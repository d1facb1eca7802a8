"""Errors of a process that can open no more files, and so can import no module either."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_PROGRAM = """
    import asyncio, errno, sys
    from boardclient import AsyncSession, BoardClientError, StaticCredentials

    class NoFiles:
        def find_spec(self, name, path=None, target=None):
            raise OSError(errno.EMFILE, "Too many open files")

    async def main():
        statuses = [b"200 OK", b"404 Not Found", b"500 Error"]

        async def respond(reader, writer):
            for status in statuses:
                await reader.readuntil(b"\\r\\n\\r\\n")
                writer.write(b"HTTP/1.1 %b\\r\\nContent-Length: 11\\r\\n\\r\\n" % status + b'{"id": "m"}')
            await reader.read()

        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncSession(StaticCredentials("t"), base_url=url, retry=None) as session:
            await session.members.me()
            sys.meta_path.insert(0, NoFiles())
            for _ in range(2):
                try:
                    await session.members.me()
                except BoardClientError as error:
                    print(type(error).__name__, error.effect.value)
            server.close()
        del sys.meta_path[0]

    asyncio.run(main())
"""


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
def test_the_first_error_of_a_process_needs_no_file() -> None:
    """A call that fails for want of files, or is refused meanwhile, raises its own error with its effect."""
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert ended.stdout.split("\n")[:2] == ["NotFoundError rejected", "ServerError unknown"]
