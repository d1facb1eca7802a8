"""The entry point of the command line, which needs the extra `boardclient[cli]`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command line, and end the process with its exit code.

    Args:
        argv: The arguments. By default those of the process.

    Returns:
        2 if the extra `cli` is not installed, after a hint on how to install it. Otherwise it does not return.

    Raises:
        SystemExit: with the exit code of the command.
    """
    import signal
    import sys

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # neither ignored by a shell's `&`, nor an application's own
        # Imports take most of a short command's time, and nothing needs to be cleaned up yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from boardclient.cli._app import run

        return run(argv)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        ways = "pip install '.[cli]' in a clone, or pip install 'boardclient[cli]'"
        print(f"boardclient: the command line needs an extra; install it with: {ways}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, before)
