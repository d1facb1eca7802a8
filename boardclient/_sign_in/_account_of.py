"""The account under which a member's token is stored."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from boardclient.credentials._guards import outcome_of
from boardclient.models import Member

AccountOf: TypeAlias = Callable[[Member], "str | Awaitable[str]"]

_CALLBACK_SECONDS: Final = 30.0


async def account_of_member(member: Member, account_of: AccountOf | None) -> str:
    """Return the account of a member: what `account_of` returns, or the id (4.11).

    Raises:
        ValueError: there is none. Its cause is what the function raised.
    """
    if account_of is None:
        if not member.id:
            raise ValueError("the member record holds no id: give SignIn account_of=, a function of the member")
        return member.id
    outcome = await outcome_of(_called(account_of, member), _CALLBACK_SECONDS)
    if outcome.is_late:
        raise ValueError(f"account_of did not return within {_CALLBACK_SECONDS:g} s")
    if outcome.error is not None:
        raise ValueError(f"account_of raised {type(outcome.error).__name__}") from outcome.error
    if not isinstance(outcome.value, str) or not outcome.value:
        raise ValueError(f"account_of returned {type(outcome.value).__name__}, not the name of an account")
    return outcome.value


async def _called(function: AccountOf, member: Member) -> object:
    made = function(member)
    return await made if inspect.isawaitable(made) else made
