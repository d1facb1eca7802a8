"""Tokens, and the protocol of the stores that keep them for all that renew. No I/O."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Literal, NoReturn, Protocol, TypeAlias

import attrs

from boardclient.models import check_text

LeaseState: TypeAlias = Literal["granted", "held", "cooling"]
"""The answer to a request for the lease: granted, held by another, or refused until a cool-down is over."""


def _text(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not check_text(value, attribute.name):
        raise ValueError(f"{attribute.name} must not be empty")


def _aware(instance: object, attribute: attrs.Attribute[datetime | None], value: object) -> None:
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise ValueError(f"{attribute.name} must be an aware datetime, or None")


@attrs.frozen
class Token:
    """An access token from the exchange (interface 4.12), and when it ends, if known.

    Its repr doesn't show it, and it can't be pickled: a store that writes it down takes its `value`.
    """

    value: str = attrs.field(repr=False, validator=_text)
    expires_at: datetime | None = attrs.field(default=None, validator=_aware)

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are not pickled: store the value")


def text_of_end(token: Token) -> str | None:
    """Return when a token ends as ISO 8601, None where that is not known.

    An end with a fraction of a second in its offset is in UTC: `datetime.fromisoformat` of Python 3.11 drops such an offset.
    """
    end = token.expires_at
    if end is None:
        return None
    if (end.utcoffset() or timedelta()).microseconds:
        with contextlib.suppress(OverflowError):  # at the ends of the calendar, where it is off by less than a second
            end = end.astimezone(UTC)
    return end.isoformat()


@attrs.frozen
class StoredToken:
    """A token as a store keeps it. `generation` counts the tokens and deletions of an account from 1."""

    token: Token
    generation: int


class TokenStore(Protocol):
    """Keep the token of each account, for all tasks, sessions, loops and processes.

    Every method is one short, atomic step and waits for no other party. What one raises reaches the callers as the cause of a
    `CredentialError`; one that does not return within 30 seconds fails the call. `boardclient.testing.TokenStoreSuite` tests a
    store of your own.

    `publish` makes renewals right: it compares and sets the generation. The lease only spares users a second prompt. It may be
    lost, run out or be granted twice; the worst that follows is one authorization code too many.

    A store without `delete` and `generation` serves renewals, but not `OAuthCredentials.forget`.
    """

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None where none is stored."""
        ...

    async def generation(self, account: str) -> int:
        """Return the number of tokens and deletions of the account, 0 for an unknown one."""
        ...

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1` if the generation now is `after`. Return whether it was.

        It succeeds whatever the lease, and ends a cool-down of the account.
        """
        ...

    async def delete(self, account: str) -> None:
        """Drop the token, raise the generation by one, and end a lease or cool-down.

        `read` returns None from then on. Generations never repeat, so a renewal that began before the deletion fails to publish.
        """
        ...

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew for so many seconds from now.

        The answer is "granted" where no holder has the lease, where it ran out, and again for its holder, from now on; otherwise
        "held", or "cooling" while the cool-down after a failed renewal lasts.
        """
        ...

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and grant none for `cooldown` seconds.

        Another holder's lease stays as it is. Where the lease ran out and nobody took it, the cool-down may begin all the same.
        """
        ...
