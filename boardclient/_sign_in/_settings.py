"""The options of `SignIn`, from the environment, and credentials that refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, TypedDict

from boardclient._environment import optional, required
from boardclient.credentials import Credentials, Exchange
from boardclient.credentials._file_store import FileTokenStore
from boardclient.errors import CredentialError

if TYPE_CHECKING:
    from boardclient._sign_in._account_of import AccountOf
    from boardclient.credentials._tokens import ParseToken, TokenStore


class SignInOptions(TypedDict, total=False):
    """The options of `SignIn` besides the session, for type checkers."""

    client_id: str
    client_secret: str
    redirect_uri: str
    auth_url: str
    authorize_url: str
    cookie_secret: str | bytes | Iterable[str | bytes]
    store: TokenStore | None
    key: str | None
    login_path: str
    pkce: bool
    account_of: AccountOf | None
    scope: str | None
    parse_token: ParseToken | None
    account_seconds: float
    clock: Callable[[], float]


_VARIABLES = {
    "client_id": "BOARDCLIENT_CLIENT_ID",
    "client_secret": "BOARDCLIENT_CLIENT_SECRET",
    "redirect_uri": "BOARDCLIENT_REDIRECT_URI",
    "auth_url": "BOARDCLIENT_AUTH_URL",
    "authorize_url": "BOARDCLIENT_AUTHORIZE_URL",
    "cookie_secret": "BOARDCLIENT_COOKIE_SECRET",
}


def options_of_environment(given: SignInOptions) -> SignInOptions:
    """Return the options, and those of the environment for all that are not given.

    Raises:
        ValueError: a variable is not set.
    """
    options: dict[str, object] = {name: required(variable) for name, variable in _VARIABLES.items() if name not in given}
    if "key" not in given:
        options["key"] = optional("BOARDCLIENT_KEY")
    path = optional("BOARDCLIENT_TOKENS")
    if "store" not in given and path is not None:
        options["store"] = FileTokenStore(path)
    return {**options, **given}  # type: ignore[typeddict-item]  # -- the names are those of the options


class NoCredentials:
    """Refuse all calls: those of the session are made for users, through its views."""

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Refuse the call."""
        self._refuse()

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Refuse the call."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CredentialError("this session has no credentials of its own: call through sign_in.session_for(account)")
