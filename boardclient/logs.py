"""The log records of `boardclient`, which hold no credentials.

Calls, retries, renewals and bulk runs are logged at INFO, attempts at DEBUG. Importing the package configures no handler unless
the environment variable `BOARDCLIENT_LOG` is set: "info" or "debug" writes to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, Literal, TextIO

__all__ = ["log_to_stderr"]

_root: Final = logging.getLogger("boardclient")
CALLS: Final = logging.getLogger("boardclient.calls")


def _escaped(text: str) -> str:
    """Return the text with escapes in place of what can't be printed."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _keep_in_one_line(record: logging.LogRecord) -> bool:
    """Escape line breaks of what comes from outside: they would forge records."""
    # In a filter of the logger, so that each handler gets the safe text, whatever it writes to.
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = _escaped(message), None
    for name in ("account", "request_id"):
        value = getattr(record, name, None)
        if isinstance(value, str):
            setattr(record, name, _escaped(value))
    return True


for _name in (
    "boardclient",
    "boardclient.calls",
    "boardclient.credentials",
    "boardclient.runs",
    "boardclient.transport",
    "boardclient.web",
):
    logging.getLogger(_name).addFilter(_keep_in_one_line)  # those of a logger are not those of its children

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO}


def log_to_stderr(level: Literal["debug", "info"] = "info") -> None:
    """Write the records of `boardclient` to standard error. A second call changes the level.

    Args:
        level: "info" (default) for calls, retries, renewals and runs, "debug" for attempts too.

    Raises:
        ValueError: there is no such level.
    """
    if level not in _LEVELS:
        raise ValueError('the log level must be "debug" or "info"')
    _root.setLevel(_LEVELS[level])
    # A second call only changes the level: two handlers would write each line twice.
    if not any(isinstance(handler, _StderrHandler) for handler in _root.handlers):
        _root.addHandler(_StderrHandler())


class _StderrHandler(logging.StreamHandler[TextIO]):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless the root logger writes it to the console."""
        if not (_root.propagate and any(map(_is_console, logging.getLogger().handlers))):
            super().emit(record)


def _is_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in {sys.stderr, sys.stdout}


def _configure() -> None:
    """Write to standard error if the environment asks for it."""
    wanted = os.environ.get("BOARDCLIENT_LOG", "").strip().lower()
    if wanted:
        log_to_stderr("debug" if wanted == "debug" else "info")
    if wanted and wanted not in _LEVELS:
        _root.warning("BOARDCLIENT_LOG must be debug or info: info is used")


_configure()
