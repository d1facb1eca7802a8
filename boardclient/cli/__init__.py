"""The command line's entry point; the commands need the extra `boardclient[cli]` and are imported on use."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and end the process with its exit code.

    Without the extra `cli` it prints how to install it and returns 2.

    Raises:
        SystemExit: always, with the code of the command, once a command could be run.
    """
    try:
        from boardclient.cli._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        print("boardclient: the command line needs an extra; install it with: pip install 'boardclient[cli]'", file=sys.stderr)
        return 2
    return run(argv)
