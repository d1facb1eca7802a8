"""The settings of a command, and what this machine keeps for each service: client, token, names of boards.

Settings come from options, then the environment, then the profile of the service. Secrets are kept in the system's keyring if
the library `keyring` finds one, otherwise in files that only their user may read. Nothing is sent from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

import boardclient
from boardclient import FileTokenStore, StoredToken, Token
from boardclient.cli._output import NoCredentialsError, UsageError

_KEYRING_SERVICE = "boardclient"
_VARIABLES = {
    name: f"BOARDCLIENT_{name.upper()}"
    for name in ("base_url", "token", "key", "auth_url", "authorize_url", "client_id", "client_secret", "redirect_uri")
}
_IN_PROFILE = ("auth_url", "authorize_url", "client_id", "redirect_uri")


def folder() -> Path:
    """Return the folder of the files, such as ~/.config/boardclient."""
    return Path(click.get_app_dir("boardclient"))


@attrs.define(kw_only=True)
class Profile:
    """What is known of one service. None of it is a secret; `kept_in` says where those are: "keyring", "file", or "" if none."""

    base_url: str
    auth_url: str | None = None
    authorize_url: str | None = None
    client_id: str | None = None
    redirect_uri: str | None = None
    kept_in: str = ""
    boards: dict[str, str] = attrs.field(factory=dict)
    """The names of boards by identifier, as far as this machine has created or named them."""

    def secrets(self) -> Mapping[str, str]:
        """Return the API key and the client secret, as far as they are kept."""
        text = _keyring().get_password(_KEYRING_SERVICE, self.base_url) if self.kept_in == "keyring" else None
        if self.kept_in == "file":
            text = _read_secrets().get(self.base_url)
        found: dict[str, str] = json.loads(text or "{}")
        return found

    def keep_secrets(self, values: Mapping[str, str]) -> None:
        """Keep the API key and the client secret, in the keyring if there is one, otherwise in a file.

        Without any values they are deleted.
        """
        self.forget_secrets()
        text = json.dumps(dict(values))
        try:
            _keyring().set_password(_KEYRING_SERVICE, self.base_url, text)
            self.kept_in = "keyring"
        except _keyring_errors():
            _write_private(folder() / "secrets.json", {**_read_secrets(), self.base_url: text})
            self.kept_in = "file"

    def forget_secrets(self) -> None:
        """Delete the API key and the client secret."""
        with contextlib.suppress(*_keyring_errors()):
            _keyring().delete_password(_KEYRING_SERVICE, self.base_url)
        if self.base_url in (kept := _read_secrets()):
            del kept[self.base_url]
            _write_private(folder() / "secrets.json", kept)
        self.kept_in = ""

    def token_store(self) -> FileTokenStore:
        """Return the store of tokens, whose account is the service's address."""
        path = folder() / "tokens.sqlite3"
        return KeyringTokenStore(path) if self.kept_in == "keyring" else FileTokenStore(path)

    @property
    def place(self) -> str:
        """Where the token is kept, in words."""
        return "the system's keyring" if self.kept_in == "keyring" else f"the file {folder() / 'tokens.sqlite3'} (mode 0600)"


@attrs.define
class Profiles:
    """All profiles by address. `current` is that of the last sign-in, which is used if no other address is given."""

    by_url: dict[str, Profile] = attrs.field(factory=dict)
    current: str | None = None

    @classmethod
    def read(cls) -> Profiles:
        """Read the profiles of this user.

        Raises:
            UsageError: the file can't be read.
        """
        path = folder() / "profiles.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            by_url = {url: Profile(base_url=url, **values) for url, values in found["services"].items()}
            return cls(by_url, found["current"])
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(f"{path} can't be read ({error}): mend it, or delete it and sign in again") from None

    def write(self) -> None:
        """Write the profiles."""
        is_field = attrs.filters.exclude(attrs.fields(Profile).base_url)
        values = {url: attrs.asdict(profile, filter=is_field) for url, profile in self.by_url.items()}
        _write_private(folder() / "profiles.json", {"current": self.current, "services": values})

    def of(self, base_url: str) -> Profile:
        """Return the profile of a service, a new one if there is none."""
        url = base_url.rstrip("/")
        return self.by_url.setdefault(url, Profile(base_url=url))

    def all_boards(self) -> dict[str, str]:
        """Return the names of all known boards by identifier, for completion."""
        return {board: name for profile in self.by_url.values() for board, name in profile.boards.items()}


def _read_secrets() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((folder() / "secrets.json").read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return {}


def _write_private(path: Path, value: object) -> None:
    """Write JSON to a file that only its user may read, in one step."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None


def _keyring() -> Any:
    """Return the library `keyring`.

    Raises:
        ImportError: it is not installed.
    """
    import keyring

    return keyring


def _keyring_errors() -> tuple[type[Exception], ...]:
    """Return what is raised where there is no keyring, or no such entry in it."""
    try:
        from keyring.errors import KeyringError
    except ImportError:
        return (ImportError,)
    return (KeyringError,)


class KeyringTokenStore(FileTokenStore):
    """Keep tokens in the system's keyring. The file has the generations, and names the entry of each token."""

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account."""
        stored = await super().read(account)
        if stored is None:
            return None
        value = await asyncio.to_thread(_keyring().get_password, _KEYRING_SERVICE, stored.token.value)
        return None if value is None else StoredToken(Token(value, stored.token.expires_at), stored.generation)

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1`. Return False if the generation is not `after`."""
        before = await super().read(account)
        entry = f"{account} {secrets.token_hex(8)}"
        await asyncio.to_thread(_keyring().set_password, _KEYRING_SERVICE, entry, token.value)
        is_kept = await super().publish(account, Token(entry, token.expires_at), after)
        await self._drop(before.token.value if is_kept and before is not None else None if is_kept else entry)
        return is_kept

    async def delete(self, account: str) -> None:
        """Delete the token of the account."""
        before = await super().read(account)
        await super().delete(account)
        await self._drop(None if before is None else before.token.value)

    async def _drop(self, entry: str | None) -> None:
        if entry is not None:
            with contextlib.suppress(*_keyring_errors()):
                await asyncio.to_thread(_keyring().delete_password, _KEYRING_SERVICE, entry)


class _ConsentCredentials(boardclient.OAuthCredentials):
    """Raises `ConsentRequired` when the user has to sign in.

    It names no account, as the credentials of the environment: a journal that was begun with one is resumed with the other.
    """

    account = None  # type: ignore[assignment]  # -- the store knows it; a journal must not


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of one command, and where each comes from: "option", "environment" or "profile"."""

    base_url: str
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

    @property
    def profile(self) -> Profile:
        """The profile of the service."""
        return self.profiles.of(self.base_url)

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
            oauth = self.oauth()
            if oauth is None or self.authorize_url is None:
                return boardclient.StaticCredentials(token=self.token, key=self.key)
            await oauth.keep_token(Token(self.token))
            return oauth
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
        for name in _IN_PROFILE:
            setattr(profile, name, getattr(self, name) or getattr(profile, name))
        kept = {"key": self.key, "client_secret": self.client_secret}
        profile.keep_secrets({name: value for name, value in kept.items() if value is not None})
        store = profile.token_store()
        await store.publish(profile.base_url, token, await store.generation(profile.base_url))
        self.profiles.current = profile.base_url
        self.profiles.write()

    async def forget(self) -> bool:
        """Delete the kept token and secrets. Return False if there were none."""
        profile = self.profile
        if not profile.kept_in:
            return False
        await profile.token_store().delete(profile.base_url)
        profile.forget_secrets()
        if self.profiles.current == profile.base_url:
            self.profiles.current = None
        self.profiles.write()
        return True

    @property
    def advice(self) -> str:
        """What the user can do when the service refuses the credentials."""
        if self.token is not None:
            return f"they are those of {_VARIABLES['key']} and {_VARIABLES['token']}"
        return "run boardclient login"


def load(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a command. An option overrides its variable, which overrides the profile.

    White space around a variable is removed, and an empty one counts as not set.

    Raises:
        UsageError: the service's address is not known, or the profiles can't be read.
    """
    profiles, sources = Profiles.read(), dict[str, str]()
    given = {name: value for name, variable in _VARIABLES.items() if (value := environment.get(variable, "").strip())}
    sources.update(dict.fromkeys(given, "environment"))
    chosen: dict[str, str] = {name: options[name] for name in ("base_url", "auth_url") if options[name]}
    sources.update(dict.fromkeys(chosen, "option"))
    given |= chosen
    if "base_url" not in given:
        if profiles.current is None:
            raise UsageError(f"the service's address is not set: set {_VARIABLES['base_url']}, or give --base-url")
        given["base_url"], sources["base_url"] = profiles.current, "profile"
    profile = profiles.of(given["base_url"])
    kept: dict[str, str | None] = {name: getattr(profile, name) for name in _IN_PROFILE}
    refusals: tuple[type[Exception], ...] = (*_keyring_errors(), OSError, ValueError)
    try:
        kept |= profile.secrets()
    except refusals as error:
        raise UsageError(f"the kept secrets of {profile.base_url} can't be read: {error}") from None
    for name, known in kept.items():
        if name not in given and known is not None:
            given[name], sources[name] = known, "profile"
    return Settings(
        **given, timeout=options["timeout"], allow_insecure=options["allow_insecure"], profiles=profiles, sources=sources
    )
