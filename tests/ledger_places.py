"""The places of ledgers that tests use: a file, and a PostgreSQL server that they start themselves."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

import attrs
import pytest
from waiting import wait_until

_FOLDERS = [Path(found) for found in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


@attrs.frozen
class Server:
    """A PostgreSQL server, which can be killed and started again."""

    programs: Path
    folder: Path
    port: int

    def control(self, *words: str) -> None:
        """Run pg_ctl, as a user that the server accepts."""
        user = "postgres" if os.geteuid() == 0 else None
        # Without fsync it starts at once after a kill: it would wait for the disk once for each file of each database.
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c log_min_messages=fatal -c fsync=off"
        line = [str(self.programs / "pg_ctl"), "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", options]
        line += ["-w", "-t", "300", *words]
        subprocess.run(line, check=True, user=user, stdout=subprocess.DEVNULL, cwd=self.folder)

    def restart(self) -> None:
        """Kill all of its processes, and start it again."""
        with contextlib.suppress(subprocess.CalledProcessError):  # it may have ended by itself
            self.control("-m", "immediate", "stop")
        self.control("start")

    def new_database(self) -> str:
        """Create a database, and return its URL."""
        name = f"test_{uuid4().hex}"
        line = [str(self.programs / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name]
        subprocess.run(line, check=True)
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Start a server of Debian's packages. Without them the tests are left out, but not in CI."""
    if not _FOLDERS:
        assert os.environ.get("CI") != "true", "PostgreSQL is not installed: apt-get install postgresql"
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="boardclient-pg-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    server = Server(_FOLDERS[0], folder, port)
    line = [str(server.programs / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "--auth=trust", "--no-sync"]
    subprocess.run(line, check=True, user=user, stdout=subprocess.DEVNULL, cwd=folder)
    server.control("start")
    try:
        yield server
    finally:
        server.control("-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture(params=["file", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the place of a ledger, of both kinds."""
    if request.param == "file":
        return str(tmp_path / "cards.ledger")
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture
def pooler(postgresql: Server) -> Callable[[str], AbstractContextManager[str]]:
    """Give a function that runs PgBouncer in a mode, before a database of its own, and gives the URL."""
    return partial(_pooled, postgresql)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextlib.contextmanager
def _pooled(server: Server, mode: str) -> Iterator[str]:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        assert os.environ.get("CI") != "true", "PgBouncer is not installed: apt-get install pgbouncer"
        pytest.skip("PgBouncer is not installed (apt-get install pgbouncer)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = "postgres" if os.geteuid() == 0 else None
    users, settings = server.folder / f"users{port}", server.folder / f"pgbouncer{port}.ini"
    users.write_text('"postgres" ""\n')
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n"
        f"unix_socket_dir=\nauth_type=trust\nauth_file={users}\npool_mode={mode}\ndefault_pool_size=8\n"
    )
    process = subprocess.Popen([program, "-q", str(settings)], user=user, cwd=server.folder, stderr=subprocess.DEVNULL)
    try:
        wait_until(partial(_listens, port))
        yield f"postgresql://postgres@127.0.0.1:{port}/{server.new_database().rpartition('/')[2]}"
    finally:
        process.kill()
        process.wait()
