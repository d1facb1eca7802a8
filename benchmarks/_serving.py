"""The canned server as a separate process, and the cores of client and server."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _certificate
from _contenders import Service


class Serving(NamedTuple):
    """A running server: its address, its process, and the core for its clients."""

    service: Service
    process_id: int
    core: int | None


def _cores() -> tuple[int | None, int | None]:
    """Return a core for the client and another for the server, if the system can pin processes."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[-1]) if len(cores) > 1 else (None, None)


@contextlib.contextmanager
def serving(python: str, *, tls: bool = False) -> Iterator[Serving]:
    """Start the server, and end it."""
    client_core, server_core = _cores()
    with contextlib.ExitStack() as stack:
        command = [python, str(Path(__file__).with_name("_server.py"))]
        certificate = None
        if server_core is not None:
            command += ["--core", str(server_core)]
        if tls:
            folder = stack.enter_context(_certificate.certificate())
            command += ["--tls", str(folder)]
            certificate = str(folder / "cert.pem")
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        base_url = f"{'https' if tls else 'http'}://127.0.0.1:{int(process.stdout.readline())}"
        yield Serving(Service(base_url, certificate), process.pid, client_core)
