"""Tokens, the failure to obtain one, and the protocol of token stores. No I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NoReturn, Protocol, TypeAlias

import attrs

from boardclient.credentials._credentials import filled
from boardclient.errors import ConsentRequired, CredentialError
from boardclient.models import JsonValue

LeaseState: TypeAlias = Literal["granted", "held", "cooling"]
"""The result of asking for the lease: granted, held by another, or refused until a cool-down is over."""


def _aware(instance: object, attribute: attrs.Attribute[datetime | None], value: object) -> None:
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise ValueError(f"{attribute.name} must be an aware datetime, or None")


@attrs.frozen
class Token:
    """An access token from the exchange (interface 4.12).

    The repr doesn't show it, and it can't be pickled: a store saves its `value`.

    Args:
        value: The token.
        expires_at: When it ends, aware. None (default) if that is not known.

    Raises:
        ValueError, TypeError: the value is empty or can't be sent, or the date is not aware.
    """

    value: str = attrs.field(repr=False, validator=filled)
    expires_at: datetime | None = attrs.field(default=None, validator=_aware)

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are not pickled: store the value")


ParseToken: TypeAlias = Callable[[Mapping[str, JsonValue]], Token]
"""Takes a token from the fields of the exchange's response."""


def text_of_end(token: Token) -> str | None:
    """Return when a token ends as ISO 8601, None if that is not known.

    If the offset has a fraction of a second, the result is in UTC: `datetime.fromisoformat` of Python 3.11 drops the fraction.
    """
    end = token.expires_at
    if end is None:
        return None
    if (end.utcoffset() or timedelta()).microseconds:
        with contextlib.suppress(OverflowError):  # in the years 1 and 9999 it may be off by less than a second
            end = end.astimezone(UTC)
    return end.isoformat()


@attrs.frozen
class Consent:
    """Whose consent is needed, and where the application's sign-in begins."""

    account: str
    login_url: str | None = None


@attrs.frozen
class RenewalFailure:
    """Why there is no token.

    Args:
        why: The reason in words.
        cause: What the application raised, None if it did not.
        is_in_doubt: Whether the service may have used up the code.
        consent: Whose consent is missing. None if something failed.
    """

    why: str
    cause: BaseException | None = None
    is_in_doubt: bool = False
    consent: Consent | None = None

    def error(self, cooldown_left: float = 0.0) -> CredentialError:
        """Return a new error. `cooldown_left` are the seconds until the next renewal may begin."""
        if self.consent is not None:
            error: CredentialError = ConsentRequired(self.why, self.consent.account, self.consent.login_url)
        else:
            hint = f"; the next renewal is possible in {cooldown_left:.1f} s" if cooldown_left > 0 else ""
            error = CredentialError(self.why + hint)
        error.__cause__ = self.cause
        return error


@attrs.frozen
class StoredToken:
    """A token in a store. `generation` counts the tokens and deletions of the account, from 1."""

    token: Token
    generation: int


class TokenStore(Protocol):
    """Keep the tokens of accounts, for all tasks, sessions, loops and processes.

    Each method is one short, atomic step, and does not wait for another worker. An exception reaches the callers as the cause
    of a `CredentialError`. A method that does not return within 30 seconds fails the call.
    `boardclient.testing.TokenStoreSuite` tests a store.

    `publish` makes renewals safe: it compares and sets the generation. The lease only spares users a second prompt. It may be
    lost, run out or be granted twice, which costs at most one more authorization code.

    A store without `delete` and `generation` serves renewals, but not `OAuthCredentials.forget`.
    """

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None if none is stored."""
        ...

    async def generation(self, account: str) -> int:
        """Return how many tokens and deletions the account has had, 0 for an unknown one."""
        ...

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1`. Return False if the generation is not `after`.

        It does not matter who has the lease. A cool-down of the account ends.

        Args:
            account: The account whose token it is.
            token: The token to keep.
            after: The generation that the token follows, 0 for the first one.
        """
        ...

    async def delete(self, account: str) -> None:
        """Delete the token, raise the generation by one, and end a lease or cool-down.

        From then on `read` returns None. Generations never repeat, so a renewal that began before the deletion can't publish.
        """
        ...

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew for so many seconds from now.

        Return "granted" if no holder has the lease, if it ran out, or if `holder` has it, whose time begins again. Return
        "held" if another holder has it, and "cooling" during the cool-down after a failed renewal.

        Args:
            account: The account whose token is to be renewed.
            holder: A text that names the worker, and is different for each renewal.
            seconds: How long the lease lasts unless `holder` gets it again.
        """
        ...

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and grant none for `cooldown` seconds.

        Another holder's lease stays as it is. If the lease ran out and no other holder took it, the cool-down may begin or not.

        Args:
            account: The account of the lease.
            holder: The text that `lease` was called with.
            cooldown: The seconds from now in which no holder gets the lease. 0 (default): the next one gets it at once.
        """
        ...
