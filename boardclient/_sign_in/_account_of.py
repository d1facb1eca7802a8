"""The account under which a member's token is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from boardclient.credentials._tokens import supplied
from boardclient.models import Member

AccountOf: TypeAlias = Callable[[Member], "str | Awaitable[str]"]


async def account_of_member(member: Member, account_of: AccountOf | None) -> str:
    """Return the account of a member: what `account_of` returns, or the id (4.11).

    Raises:
        ValueError: there is none. Its cause is what the function raised.
    """
    if account_of is None:
        if not member.id:
            raise ValueError("the member record holds no id: give SignIn account_of=, a function of the member")
        return member.id
    account: str = await supplied(
        "account_of",
        account_of,
        member,
        is_valid=lambda made: isinstance(made, str) and bool(made),
        expected="the name of an account",
    )
    return account
