"""Tokens, and the protocol of the stores that keep them for tasks, sessions, loops and processes. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NoReturn, Protocol, TypeAlias

import attrs

from boardclient.models import check_text

LeaseState: TypeAlias = Literal["granted", "held", "cooling"]
"""What came of asking for the right to renew: it is ours, somebody else's, or nobody's until a cool-down is over."""


def _text(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not check_text(value, attribute.name):
        raise ValueError(f"{attribute.name} must not be empty")


def _aware(instance: object, attribute: attrs.Attribute[datetime | None], value: object) -> None:
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise ValueError(f"{attribute.name} must be an aware datetime, or None")


@attrs.frozen
class Token:
    """An access token as the exchange gave it (interface 4.12), and when it ends, where that was said.

    Its repr doesn't show it, and it can't be pickled: a store that writes it down takes its `value`.
    """

    value: str = attrs.field(repr=False, validator=_text)
    expires_at: datetime | None = attrs.field(default=None, validator=_aware)

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are not pickled: store the value")


@attrs.frozen
class StoredToken:
    """A token as a store keeps it: `generation` counts the tokens of an account from 1."""

    token: Token
    generation: int


class TokenStore(Protocol):
    """Where the token of each account is kept, for everybody who may renew it.

    Every method is one short, atomic step, and none waits for another party: a renewal asks the application for a code between
    the calls, never within one. Whatever they raise reaches the callers as the cause of a `CredentialError`.
    `boardclient.testing.TokenStoreSuite` tests a store of your own.

    What makes a renewal right is `publish` alone, which compares and sets the generation. The lease only spares the application a
    second prompt: it may be lost, run out or be granted twice, and the worst that comes of it is one code too many.
    """

    async def read(self, account: str) -> StoredToken | None:
        """Return what was published last for the account, None where nothing was."""
        ...

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1` if the generation now is `after` (0: none yet); tell whether it was.

        Who holds the lease makes no difference.
        """
        ...

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Give the right to renew to `holder` for so many seconds from now.

        It is "granted" where nobody has it, where it ran out, and again to who has it, from now on; otherwise it is "held", or
        "cooling" while the cool-down of a renewal that failed lasts.
        """
        ...

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and let nobody have it for `cooldown` seconds.

        Nothing happens where it is another's; where it ran out and nobody took it, the cool-down may begin all the same.
        """
        ...
