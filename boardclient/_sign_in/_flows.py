"""The sign-ins that a browser has begun, which are stored in a signed cookie. No I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from boardclient._optional_imports import requires_extra

if TYPE_CHECKING:
    from itsdangerous import URLSafeSerializer

FLOW_SECONDS: Final = 600
"""How long a user may take at the consent page."""
KEPT_SECONDS: Final = 3600
"""How long a flow stays in the cookie, so that an expired or replayed one is not taken for one of another browser."""
_MOST_OPEN: Final = 5
_MOST_KEPT: Final = 10
_MOST_CHARACTERS: Final = 3800
"""Browsers accept cookies of 4096 bytes, name and attributes included: https://www.rfc-editor.org/rfc/rfc6265#section-6.1."""

Problem: TypeAlias = Literal["expired", "replayed", "foreign"]
PROBLEM_WORDS: Final[Mapping[Problem, str]] = {
    "expired": f"the sign-in was begun more than {FLOW_SECONDS // 60} minutes ago: begin again",
    "replayed": "the sign-in was completed before",
    "foreign": "the sign-in was not begun in this browser",
}


@attrs.frozen
class Flow:
    """One sign-in in one browser tab, from the redirect until the browser is back.

    `hint` is the beginning of the code challenge, by which the secret of its verifier is found; "" if none was sent.
    """

    state: str = attrs.field(repr=False)
    begun_at: int
    return_to: str
    is_over: bool = False
    hint: str = ""


@attrs.frozen
class Flows:
    """The flows of one browser, oldest first."""

    flows: tuple[Flow, ...] = ()

    def add(self, flow: Flow, now: float) -> Flows:
        """Return the flows with a new one. If too many are open, the oldest is dropped."""
        kept = [one for one in self.flows if 0 <= now - one.begun_at < KEPT_SECONDS]
        opened = [one for one in kept if not one.is_over]
        ended = [one for one in kept if one.is_over]
        chosen = opened[-(_MOST_OPEN - 1) :] + ended[-(_MOST_KEPT - _MOST_OPEN) :]
        return Flows((*(one for one in kept if one in chosen), flow))

    def find(self, state: str, now: float) -> Flow | Problem:
        """Return the open flow with this state, or why there is none."""
        for flow in self.flows:
            if hmac.compare_digest(flow.state.encode(), state.encode("utf-8", "replace")):
                if flow.is_over:
                    return "replayed"
                return flow if -1 <= now - flow.begun_at <= FLOW_SECONDS else "expired"
        return "foreign"

    def end(self, flow: Flow) -> Flows:
        """Return the flows with this one marked as completed."""
        return Flows(tuple(attrs.evolve(one, return_to="", is_over=True) if one == flow else one for one in self.flows))


class Signer:
    """Sign cookies and derive code verifiers, with one or several secrets.

    The first secret is the newest, which signs. All are accepted.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        with requires_extra("web", "SignIn"):
            from itsdangerous import URLSafeSerializer
        self._keys = tuple(keys)
        self._flows = _serializer(URLSafeSerializer, keys, "boardclient.flows")
        self._account = _serializer(URLSafeSerializer, keys, "boardclient.account")

    def write_flows(self, flows: Flows) -> str:
        """Return the signed text of the flows. The oldest are dropped if it does not fit into a cookie."""
        entries = [[one.state, one.begun_at, one.return_to, one.is_over, one.hint] for one in flows.flows]
        while len(text := _text(self._flows.dumps(entries))) > _MOST_CHARACTERS:
            del entries[0]
        return text

    def read_flows(self, text: str | None) -> Flows:
        """Return the flows of a signed text, no flows if its signature is not valid."""
        entries = _loaded(self._flows, text)
        return Flows(tuple(Flow(*entry) for entry in entries or ()))

    def write_account(self, account: str, now: float) -> str:
        """Return the signed text that says who is signed in, and since when."""
        return _text(self._account.dumps([account, int(now)]))

    def read_account(self, text: str | None, now: float, seconds: float) -> str | None:
        """Return who is signed in. None if the text is not validly signed or older than `seconds`."""
        entry = _loaded(self._account, text)
        return entry[0] if entry is not None and -1 <= now - entry[1] <= seconds else None

    def verifier(self, state: str, hint: str = "") -> str | None:
        """Return the code verifier (RFC 7636 4.1) of a state.

        It is derived from the secret whose challenge begins with `hint`. None if there is no such secret any more.
        """
        made = (_base64(hmac.digest(key, b"boardclient.verifier " + state.encode(), "sha256")) for key in self._keys)
        return next((verifier for verifier in made if challenge_of(verifier).startswith(hint)), None)


def challenge_of(verifier: str) -> str:
    """Return the S256 code challenge (RFC 7636 4.2)."""
    return _base64(hashlib.sha256(verifier.encode()).digest())


def new_state() -> str:
    """Return an unguessable state (RFC 6749 10.12) of 128 bits."""
    return secrets.token_urlsafe(16)


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _serializer(kind: type[URLSafeSerializer], keys: Sequence[bytes], salt: str) -> URLSafeSerializer:
    # itsdangerous signs with the last key: https://itsdangerous.palletsprojects.com/en/stable/concepts/#key-rotation
    return kind(list(reversed(keys)), salt=salt, signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"})


def _text(dumped: str | bytes) -> str:
    return dumped if isinstance(dumped, str) else dumped.decode()


def _loaded(serializer: URLSafeSerializer, text: str | None) -> Any:
    """Return the content of a signed text. None if there is no text or its signature is not valid."""
    from itsdangerous import BadData

    if text is None or not text.isascii():  # frameworks pass on bytes that are not UTF-8 as lone surrogates, and loads encodes
        return None
    try:
        return serializer.loads(text)
    except BadData:
        return None
