"""The settings of a command, and what this machine keeps for each service: client, token, names of boards.

Settings come from options, then the environment, then the profile of the service. Secrets are kept in the system's keyring if
the library `keyring` finds one, otherwise in files that only their user may read. Nothing is sent from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

import boardclient
from boardclient import CredentialError, FileTokenStore, StoredToken, Token
from boardclient.cli._errors import NoCredentialsError, UsageError

_VARIABLES = {
    name: f"BOARDCLIENT_{name.upper()}"
    for name in ("base_url", "token", "key", "auth_url", "authorize_url", "client_id", "client_secret", "redirect_uri")
}
_IN_PROFILE = ("auth_url", "authorize_url", "client_id", "redirect_uri")
_SECRETS = ("key", "client_secret")


def folder() -> Path:
    """Return the folder of the files, such as ~/.config/boardclient."""
    found = Path(click.get_app_dir("boardclient"))
    # An empty or relative XDG_CONFIG_HOME is ignored (https://specifications.freedesktop.org/basedir-spec/latest/).
    return found if found.is_absolute() else Path.home() / ".config" / "boardclient"


def _tokens() -> Path:
    return folder() / "tokens.sqlite3"


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file in one step: it is either complete or unchanged, also on a full disk.

    Raises:
        UsageError: it can't be written.
    """
    target = path.resolve()  # a symbolic link is kept
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():  # such as a pipe, which has no path where it is /dev/stdout
            path.write_bytes(data)
            return
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None


_is_text: Any = attrs.validators.instance_of(str)
_is_dict: Any = attrs.validators.instance_of(dict)
_is_texts: Any = attrs.validators.deep_mapping(_is_text, _is_text, _is_dict)


@attrs.define(kw_only=True)
class Profile:
    """What is known of one service. `kept_in` says where its secrets are: "keyring", "file", or "" if there are none."""

    base_url: str
    client: dict[str, str] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(attrs.validators.in_(_IN_PROFILE), _is_text, _is_dict)
    )
    """Other settings of the last sign-in."""
    kept_in: str = ""
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False, validator=_is_texts)
    """The API key and the client secret, if they are kept in the file."""
    boards: dict[str, str] = attrs.field(factory=dict, validator=_is_texts)
    """The names of boards by identifier, as far as this machine has created or named them."""

    def read_secrets(self) -> Mapping[str, str]:
        """Return the API key and the client secret, as far as they are kept."""
        secrets = _in_keyring(self.base_url) if self.kept_in == "keyring" else self.secrets
        return {name: value for name, value in secrets.items() if name in _SECRETS}

    def keep_secrets(self, values: dict[str, str], token: Token) -> Token:
        """Keep secrets and a token, in the keyring if there is one. Return what the token store gets."""
        kept = {**values, "token": token.value}
        try:
            _keyring("set_password", self.base_url, json.dumps(kept))
            if _in_keyring(self.base_url) != kept:
                raise CredentialError("the system's keyring keeps nothing")
        except CredentialError:
            self.kept_in, self.secrets = "file", values
            return token
        self.kept_in, self.secrets = "keyring", {}
        return Token("in the keyring", token.expires_at)

    async def forget_secrets(self) -> None:
        """Delete the token, the API key and the client secret."""
        await self.token_store().delete(self.base_url)
        with contextlib.suppress(CredentialError):
            _keyring("delete_password", self.base_url)
        self.kept_in, self.secrets = "", {}

    @property
    def place(self) -> str:
        """Where the token is kept, in words."""
        return "the system's keyring" if self.kept_in == "keyring" else f"the file {_tokens()} (mode 0600)"

    def token_store(self) -> FileTokenStore:
        """Return the store of tokens, whose account is the service's address."""
        return (_KeyringTokenStore if self.kept_in == "keyring" else FileTokenStore)(_tokens())


@attrs.define
class Profiles:
    """All profiles by address. `current` is that of the last sign-in, which is used if no other address is given."""

    by_url: dict[str, Profile] = attrs.field(factory=dict)
    current: str | None = attrs.field(default=None, validator=attrs.validators.optional(_is_text))

    @classmethod
    def read(cls) -> Profiles:
        """Read the profiles of this user.

        Raises:
            UsageError: the file can't be read.
        """
        path = folder() / "profiles.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls({url: Profile(base_url=url, **values) for url, values in found["services"].items()}, found["current"])
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(f"{path} can't be read ({error}): mend it, or delete it and sign in again") from None

    def write(self) -> None:
        """Write the profiles, for their user alone.

        Raises:
            UsageError: the file can't be written.
        """
        values = {url: attrs.asdict(profile, filter=attrs.filters.exclude("base_url")) for url, profile in self.by_url.items()}
        with contextlib.suppress(OSError):  # the file says why
            folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"current": self.current, "services": values}, indent=2, ensure_ascii=False)
        write_file(folder() / "profiles.json", text.encode(), 0o600)


def _keyring(call: str, *arguments: str) -> Any:
    """Call a function of the library `keyring`.

    Raises:
        CredentialError: it is not installed, finds no keyring, or has no such entry.
    """
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise CredentialError("the system's keyring can't be used: install boardclient[keyring]") from None
    try:
        return getattr(keyring, call)("boardclient", *arguments)
    except KeyringError as error:
        raise CredentialError(f"the system's keyring can't be used: {error}") from None


def _in_keyring(base_url: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(_keyring("get_password", base_url) or "{}")
    return found


class _KeyringTokenStore(FileTokenStore):
    """Reads tokens from the system's keyring, and their generations from the file."""

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account."""
        stored = await super().read(account)
        value = (await asyncio.to_thread(_in_keyring, account)).get("token")
        return None if stored is None or value is None else attrs.evolve(stored, token=Token(value, stored.token.expires_at))


class _ConsentCredentials(boardclient.OAuthCredentials):
    """Raises `ConsentRequired` when the user has to sign in.

    It names no account, as the credentials of the environment: a journal that was begun with one is resumed with the other.
    """

    account = None  # type: ignore[assignment]  # -- the store knows it; a journal must not


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of one command, and where each comes from: "option", "environment" or "profile"."""

    base_url: str
    profile: Profile
    """The profile of the service."""
    token: str | None = attrs.field(default=None, repr=False)
    key: str | None = attrs.field(default=None, repr=False)
    auth_url: str | None = None
    authorize_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    redirect_uri: str | None = None
    timeout: float = 30.0
    allow_insecure: bool = False
    profiles: Profiles = attrs.field(factory=Profiles, repr=False)
    sources: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    unreadable: CredentialError | None = None
    """Why the kept secrets can't be read, which is no matter to commands that need none."""

    @property
    def place(self) -> str:
        """Where the token is kept, in words."""
        return "the environment" if self.token is not None else self.profile.place

    def session(self, credentials: boardclient.CredentialProvider) -> boardclient.AsyncSession:
        """Return a session with these settings; the caller closes it.

        Raises:
            ValueError: a setting can't be used.
        """
        return boardclient.AsyncSession(
            credentials, base_url=self.base_url, timeout=self.timeout, allow_insecure=self.allow_insecure
        )

    def oauth(self, store: boardclient.TokenStore | None = None) -> boardclient.OAuthCredentials | None:
        """Return credentials that can be renewed, None if the client or the address of the token exchange is not known.

        A call with a token that the service refuses raises `ConsentRequired`, since only the user can sign in again.
        """
        if self.client_id is None or self.client_secret is None or self.auth_url is None:
            return None
        return _ConsentCredentials(
            client_id=self.client_id,
            client_secret=self.client_secret,
            redirect_uri=self.redirect_uri or "http://127.0.0.1/callback",
            auth_url=self.auth_url,
            key=self.key,
            store=store,
            account=self.profile.base_url,
        )

    async def credentials(self) -> boardclient.CredentialProvider:
        """Return what signs the requests: the token of the environment, otherwise the kept one.

        Raises:
            NoCredentialsError: there is neither.
            CredentialError: the kept token can't be read.
        """
        if self.token is not None:
            return boardclient.StaticCredentials(token=self.token, key=self.key)
        if self.unreadable is not None:
            raise self.unreadable
        store = self.profile.token_store() if self.profile.kept_in else None
        stored = None if store is None else await store.read(self.profile.base_url)
        if stored is None:
            raise NoCredentialsError(f"not signed in to {self.base_url}: run boardclient login, or set {_VARIABLES['token']}")
        return self.oauth(store) or boardclient.StaticCredentials(token=stored.token.value, key=self.key)

    async def keep(self, token: Token) -> None:
        """Keep a token and what belongs to it, for later commands.

        Raises:
            UsageError: the files can't be written.
            CredentialError: the store did not take the token.
        """
        profile = self.profile
        profile.client, secrets = (
            {name: value for name in names if (value := getattr(self, name)) is not None} for names in (_IN_PROFILE, _SECRETS)
        )
        kept = profile.keep_secrets(secrets, token)
        store = profile.token_store()
        while not await store.publish(profile.base_url, kept, await store.generation(profile.base_url)):
            pass  # another sign-in was faster: this one is newer
        self.profiles.current = profile.base_url
        self.profiles.write()

    def learn(self, board_id: str, name: str) -> None:
        """Keep the name of a board for later commands.

        Raises:
            UsageError: the file can't be written.
        """
        self.profile.boards[board_id] = name
        self.profiles.write()

    async def forget(self) -> bool:
        """Delete the kept token and secrets. Return False if there were none."""
        profile = self.profile
        if not profile.kept_in:
            return False
        await profile.forget_secrets()
        self.profiles.write()
        return True


def advice() -> str:
    """Return what the user can do when the service refuses the credentials."""
    if os.environ.get(_VARIABLES["token"]):
        return f"the credentials are those of {_VARIABLES['key']} and {_VARIABLES['token']}"
    return "run boardclient login"


def load(options: Mapping[str, Any]) -> Settings:
    """Return the settings of a command. An option overrides its variable, which overrides the profile.

    White space around a variable is removed, and an empty one counts as not set.

    Raises:
        UsageError: the service's address is not known, or the profiles can't be read.
    """
    profiles = Profiles.read()
    chosen = {name: options[name] for name in ("base_url", "auth_url") if options[name]}
    variables = {name: value for name, variable in _VARIABLES.items() if (value := os.environ.get(variable, "").strip())}
    base_url = {**variables, **chosen}.get("base_url", profiles.current)
    if base_url is None:
        raise UsageError(f"the service's address is not set: set {_VARIABLES['base_url']}, or give --base-url")
    url = base_url.rstrip("/")
    profile = profiles.by_url.setdefault(url, Profile(base_url=url))
    secrets: Mapping[str, str] = {}
    unreadable: CredentialError | None = None
    try:
        secrets = profile.read_secrets()
    except CredentialError as error:
        unreadable = error
    kept = {"base_url": base_url, **profile.client, **secrets}
    sources = {"profile": kept, "environment": variables, "option": chosen}
    given = {name: value for values in sources.values() for name, value in values.items()}
    return Settings(
        **given,
        profile=profile,
        timeout=options["timeout"],
        allow_insecure=options["allow_insecure"],
        profiles=profiles,
        unreadable=unreadable,
        sources={name: source for source, values in sources.items() for name in values},
    )
