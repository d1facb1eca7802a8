"""The command line's entry point. The commands need the extra `boardclient[cli]` and are imported when they are called."""

import os

TYPE_CHECKING = False  # instead of typing's, whose import takes longer than this module's
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command line and end the process with its exit code.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        2, after a hint on how to install it, where the extra `cli` is missing.

    Raises:
        SystemExit: always, with the exit code of the command, once a command could be run.
    """
    try:
        import signal

        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:  # ignored by a shell's `&`, or an application's own
            return _run(argv)
        # Imports take most of a short command's time, and an exception in them may be swallowed: no exception, then.
        signal.signal(signal.SIGINT, _end)
        try:
            return _run(argv)
        finally:
            signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        _end()
        raise


def _end(*_: object) -> None:
    """End the process as one that an interrupt ended.

    Nothing has been begun yet that would need to be cleaned up.
    """
    os.write(2, b"boardclient: ended by SIGINT\n")
    os._exit(130)


def _run(argv: "Sequence[str] | None") -> int:
    import sys

    try:
        from boardclient.cli._program import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        print("boardclient: the command line needs an extra; install it with: pip install 'boardclient[cli]'", file=sys.stderr)
        return 2
    return run(argv)
