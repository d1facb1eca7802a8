"""The system's keyring, by the library `keyring`. Its backends may be locked or missing, or never respond."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from boardclient.errors import CredentialError

_SECONDS: Final = 15.0
"""How long a keyring may take, since it may ask its user for a password. Without a desktop it may never respond."""
_QUIET_SECONDS: Final = 2.0
"""How long it may take before a log record says what is waited for."""
_SERVICE: Final = "boardclient"

_waits: Final = logging.getLogger("boardclient.credentials")


def entry_of(name: str) -> dict[str, str]:
    """Return the texts of an entry, empty if there is no entry.

    Raises:
        CredentialError: the keyring can't be used, or its entry is damaged.
    """
    with contextlib.suppress(ValueError):
        found = json.loads(_call(lambda keyring: keyring.get_password(_SERVICE, name)) or "{}")
        if isinstance(found, dict):
            return {key: value for key, value in found.items() if isinstance(value, str)}
    raise CredentialError("the system's keyring can't be used: its entry of boardclient is damaged: run boardclient login")


def keep_entry(name: str, texts: dict[str, str]) -> None:
    """Keep texts in an entry, and check that they are there.

    Raises:
        CredentialError: the keyring can't be used, or does not keep the entry.
    """
    text = json.dumps(texts)
    _call(lambda keyring: keyring.set_password(_SERVICE, name, text))
    if entry_of(name) != texts:
        raise CredentialError("the system's keyring keeps nothing")


def drop_entry(name: str) -> None:
    """Delete an entry, if there is one.

    Raises:
        CredentialError: the keyring can't be used.
    """

    def drop(keyring: Any) -> None:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)

    _call(drop)


def place() -> str:
    """Return which keyring it is, in words. A backend that writes plain text to a file is called that."""
    with contextlib.suppress(CredentialError):
        ring = _call(lambda keyring: keyring.get_keyring())
        ring = next(iter(getattr(ring, "backends", ())), ring)  # a chain of several keeps entries in the first
        path = getattr(ring, "file_path", None)
        if path is not None and "plain" in type(ring).__name__.lower():
            return f"plain text in {path}"
        if name := getattr(ring, "name", ""):
            return f"the system's keyring ({name})"
    return "the system's keyring"


def _call(use: Callable[[Any], Any]) -> Any:
    """Use the library `keyring`.

    Raises:
        CredentialError: it is not installed, finds no keyring, does not answer, or fails.
    """
    try:
        import keyring
    except ImportError:
        raise CredentialError(
            "the system's keyring can't be used: install the extra keyring (pip install '.[keyring]' in a clone)"
        ) from None
    found, failed = list[Any](), list[Exception]()

    def ask() -> None:
        try:
            found.append(use(keyring))
        except Exception as error:  # of any of its backends
            failed.append(error)

    thread = threading.Thread(target=ask, daemon=True)  # the end of the process does not wait for it
    thread.start()
    thread.join(min(_QUIET_SECONDS, _SECONDS))
    if thread.is_alive():
        _waits.warning("waiting for the system's keyring, which may ask you to unlock it (%.0f s at most)", _SECONDS)
        thread.join(max(0.0, _SECONDS - _QUIET_SECONDS))
    if failed:
        raise CredentialError(f"the system's keyring can't be used: {failed[0]}") from None
    if not found:
        how = f"it did not answer for {_SECONDS:.0f} s: unlock it, set BOARDCLIENT_TOKEN, or run boardclient login"
        raise CredentialError(f"the system's keyring can't be used: {how}")
    return found[0]
