"""A virtual environment with the rivals and this package, separate from the caller's own."""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

_SOURCE = Path(__file__).parents[1]
REQUIREMENTS = "\n".join(tomllib.loads(_SOURCE.joinpath("pyproject.toml").read_text("utf-8"))["dependency-groups"]["benchmarks"])
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the environment of the rivals."""
    parser.add_argument("--rivals", action="store_true", help="measure other clients as well; installs them with pip")
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="DIR",
        help="keep the rivals' environment here, or use what is here (default: temporary)",
    )


@contextlib.contextmanager
def python_of(options: argparse.Namespace) -> Iterator[str]:
    """Return the Python to measure with: this one, or that of an environment with the rivals."""
    if not options.rivals:
        yield sys.executable
    elif options.environment:
        yield _prepare(options.environment.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield _prepare(Path(folder) / "environment")


@contextlib.contextmanager
def bytecode() -> Iterator[None]:
    """Let the processes write bytecode, as for an installed package, also if Python is told not to, as in many containers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=folder),
    ):
        yield


def versions(python: str) -> dict[str, str]:
    """Return the versions of the measured packages that this Python has."""
    names = ["aiohttp", "boardclient", *re.findall(r"^[\w-]+", REQUIREMENTS, re.MULTILINE)]
    done = subprocess.run([python, "-c", _VERSIONS, *names], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _prepare(folder: Path) -> str:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    source = f"{_SOURCE}[cli]"
    wanted, installed = f"{source}\n{REQUIREMENTS}", folder / "requirements.txt"
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"{folder} holds something else than a virtual environment")
    has = installed.read_text(encoding="utf-8") if installed.exists() else ""
    if has != wanted and has.partition("\n")[2] == REQUIREMENTS:  # made for another source tree
        command = [python, "-m", "pip", "install", "-q", "-e", source]
        subprocess.run(command, stdout=sys.stderr, check=True)
        installed.write_text(wanted, encoding="utf-8")
    elif has != wanted:
        print(f"installing the rivals into {folder}", file=sys.stderr, flush=True)
        requirements = [line.strip() for line in REQUIREMENTS.splitlines()]
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # Editable, so that a kept environment measures the source as it is now.
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements, "-e", source], stdout=sys.stderr, check=True)
        installed.write_text(wanted, encoding="utf-8")
    return str(python)
