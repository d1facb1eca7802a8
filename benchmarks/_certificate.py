"""A temporary certificate for 127.0.0.1, made by the `openssl` program."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def certificate() -> Iterator[Path]:
    """Make a folder with a self-signed certificate: cert.pem and key.pem."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
        subprocess.run(command, check=True, capture_output=True)
        yield folder
