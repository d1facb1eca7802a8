"""The settings from the environment and the global options. Credentials come only from the environment."""

from collections.abc import Mapping

import attrs

from boardclient import AsyncSession, StaticCredentials
from boardclient.cli._errors import UsageError

BASE_URL = "BOARDCLIENT_BASE_URL"
AUTH_URL = "BOARDCLIENT_AUTH_URL"
KEY = "BOARDCLIENT_KEY"
TOKEN = "BOARDCLIENT_TOKEN"  # noqa: S105 -- the name of a variable, not a secret


@attrs.frozen(kw_only=True)
class Options:
    """The global options as they were given. None of them is a secret."""

    base_url: str | None = None
    auth_url: str | None = None
    timeout: float = 30.0
    allow_insecure: bool = False
    verbose: bool = False


@attrs.frozen(kw_only=True)
class CliSettings:
    """The settings of the session that a command uses."""

    base_url: str
    token: str = attrs.field(repr=False)
    key: str | None = attrs.field(default=None, repr=False)
    auth_url: str | None = None
    timeout_seconds: float = 30.0
    allow_insecure: bool = False

    @property
    def advice(self) -> str:
        """What the user can do when the service refuses the token."""
        where = "" if self.auth_url is None else f", tokens are exchanged at {self.auth_url}"
        return f"they are read from {KEY} and {TOKEN}{where}"

    def session(self) -> AsyncSession:
        """Build a session with these settings; the caller closes it.

        Raises:
            ValueError: the base URL or a credential can't be used.
        """
        return AsyncSession(
            StaticCredentials(token=self.token, key=self.key),
            base_url=self.base_url,
            timeout=self.timeout_seconds,
            allow_insecure=self.allow_insecure,
        )


def load(options: Options, environment: Mapping[str, str]) -> CliSettings:
    """Return the settings. An option overrides its variable.

    As in `AsyncSession.from_env`, white space around a variable is removed, and an empty one counts as not set.

    Raises:
        UsageError: the base URL or the token is not set.
    """
    given = {name: environment.get(name, "").strip() or None for name in (BASE_URL, AUTH_URL, KEY, TOKEN)}
    base_url = options.base_url or given[BASE_URL]
    if not base_url:
        raise UsageError(f"the service's address is not set: set {BASE_URL} or give --base-url")
    token = given[TOKEN]
    if not token:
        raise UsageError(f"no access token is set: set {TOKEN} (credentials are never options)")
    return CliSettings(
        base_url=base_url,
        token=token,
        key=given[KEY],
        auth_url=options.auth_url or given[AUTH_URL],
        timeout_seconds=options.timeout,
        allow_insecure=options.allow_insecure,
    )
