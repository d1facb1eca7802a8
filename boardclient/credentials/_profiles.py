"""The profiles of `boardclient login`: for each service the client, the token and the names of boards on this machine.

Secrets are kept in the system's keyring if the library `keyring` finds one, otherwise in files that only their user may read.
Nothing is sent from here, and nothing of the command line is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import shlex
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import attrs

from boardclient._base._environment import base_folder, is_changed_by_others, reason_of
from boardclient._interface._responses import add_words
from boardclient.credentials import CredentialProvider, StaticCredentials, _keyring
from boardclient.credentials._file_store import FileTokenStore
from boardclient.credentials._oauth import OAuthCredentials
from boardclient.credentials._stores import StoredToken, Token
from boardclient.errors import CredentialError

VARIABLES: Final = {
    name: f"BOARDCLIENT_{name.upper()}"
    for name in ("base_url", "token", "key", "auth_url", "authorize_url", "client_id", "client_secret", "redirect_uri")
}
IN_PROFILE: Final = ("auth_url", "authorize_url", "client_id", "redirect_uri")
SECRETS: Final = ("key", "client_secret")
_LOCK_SECONDS: Final = 30.0
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.EROFS})


# --- files


def folder() -> Path:
    """Return the folder of the files, such as ~/.config/boardclient.

    Raises:
        OSError: the user has no home folder.
    """
    base = base_folder("config")
    found = Path(os.path.expanduser(base))
    if not found.is_absolute() or (base.startswith("~") and os.environ.get("HOME") == ""):  # which would be the root folder
        raise OSError(errno.ENOENT, "the home folder is not known: set HOME")
    return found / "boardclient"


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file in one step: it is either complete or unchanged, also on a full disk and after a crash.

    `mode` is that of the file. By default it stays as it is, and a new one is as the user's other files.

    Raises:
        OSError: it can't be written.
    """
    if path.exists() and not path.is_file():  # such as a pipe, which has no path where it is /dev/stdout
        path.write_bytes(data)
        return
    target = path.resolve()  # a symbolic link is kept
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is None and target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


# --- profiles

_is_text: Any = attrs.validators.instance_of(str)
_is_dict: Any = attrs.validators.instance_of(dict)
_is_texts: Any = attrs.validators.deep_mapping(_is_text, _is_text, _is_dict)


@attrs.define(kw_only=True)
class Profile:
    """The profile of a service. `kept_in` says where its secrets are: "keyring", "file", or "" if there are none."""

    base_url: str
    client: dict[str, str] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(attrs.validators.in_(IN_PROFILE), _is_text, _is_dict)
    )
    """Other settings of the last sign-in."""
    kept_in: str = ""
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False, validator=_is_texts)
    """The API key and the client secret, if they are kept in the file."""
    is_left_in_keyring: bool = False
    """Whether the keyring may have an entry that could not be deleted."""
    boards: dict[str, str] = attrs.field(factory=dict, validator=_is_texts)
    """The names of the boards that this machine has created or named, by their identifiers."""

    @property
    def place(self) -> str:
        """Where its token is kept, in words."""
        in_file = f"the file {folder() / 'tokens.sqlite3'} (mode 0600)"
        return _keyring.place() if self.kept_in == "keyring" else in_file

    def token_store(self) -> FileTokenStore:
        return (_KeyringTokenStore if self.kept_in == "keyring" else FileTokenStore)(folder() / "tokens.sqlite3")


@attrs.define
class Profiles:
    """All profiles by address. `current` is that of the last sign-in, which is used if no other address is given."""

    by_url: dict[str, Profile] = attrs.field(factory=dict)
    current: str | None = attrs.field(default=None, validator=attrs.validators.optional(_is_text))
    problem: str = ""
    """Why the file can't be read. Then there are no profiles, which does not matter if the environment has all settings."""

    @classmethod
    def read(cls) -> Profiles:
        path: Path | str = "the file of profiles"
        try:
            path = folder() / "profiles.json"
            text = path.read_text(encoding="utf-8")
            if is_changed_by_others(path):
                return cls(
                    problem=f"others may change {path}, which names where tokens are sent: chmod 600 {shlex.quote(str(path))}"
                )
            found = json.loads(text)
            return cls({url: Profile(base_url=url, **values) for url, values in found["services"].items()}, found["current"])
        except FileNotFoundError as error:
            return cls(problem="" if error.filename else reason_of(error))
        except OSError as error:
            return cls(problem=f"{path} can't be read: {reason_of(error)}")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            why = error if isinstance(error, ValueError) else "it holds no profiles"
            return cls(problem=f"{path} can't be read ({why}): mend it, or delete it and sign in again")

    @staticmethod
    def is_named(url: str, name: str) -> bool:
        """Return True if a name is an address of a service, or its host."""
        return name.rstrip("/") == url or name in {urlsplit(url).netloc, urlsplit(url).hostname}

    def of(self, base_url: str) -> Profile:
        url = base_url.rstrip("/")
        return self.by_url.setdefault(url, Profile(base_url=url))


@contextlib.contextmanager
def changed_profiles() -> Iterator[Profiles]:
    """Yield the profiles as they are now, and write them after the block, before another process may change them.

    Raises:
        ValueError: the file can't be read or written.
    """
    path: Path | str = "the file of profiles"
    try:
        path = folder() / "profiles.json"
        with contextlib.suppress(FileExistsError):  # also a file, which the lock names
            path.parent.mkdir(mode=0o700, parents=True)
        with _lock(path.with_name("profiles.lock")):
            profiles = Profiles.read()
            if profiles.problem:
                raise ValueError(profiles.problem)
            yield profiles
            services = {url: attrs.asdict(one, filter=attrs.filters.exclude("base_url")) for url, one in profiles.by_url.items()}
            text = json.dumps({"current": profiles.current, "services": services}, indent=2, ensure_ascii=False)
            replace_file(path, text.encode(), 0o600)
    except (OSError, sqlite3.Error) as error:
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        remedy = "; set XDG_CONFIG_HOME to a folder that can be written" * (getattr(error, "errno", 0) in _NOT_WRITABLE)
        raise ValueError(f"can't write {path}: {why}{remedy}") from None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait for the other processes that hold a lock. SQLite knows how, on each system, and a process that dies loses it."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


# --- secrets


def keep_secrets(profile: Profile, values: dict[str, str], token: Token) -> Token:
    """Keep secrets and a token, in the keyring if there is one. Return what the token store gets."""
    try:
        _keyring.keep_entry(profile.base_url, {**values, "token": token.value})
    except CredentialError:
        # An earlier entry, or half of this one, must not stay behind.
        had_entry = profile.kept_in == "keyring" or profile.is_left_in_keyring
        profile.is_left_in_keyring = had_entry and not _is_dropped(profile.base_url)
        profile.kept_in, profile.secrets = "file", values
        return token
    profile.kept_in, profile.secrets, profile.is_left_in_keyring = "keyring", {}, False
    return Token("in the keyring", token.expires_at)


def _is_dropped(base_url: str) -> bool:
    """Delete an entry of the keyring, and return False if the keyring can't be used."""
    try:
        _keyring.drop_entry(base_url)
    except CredentialError:
        return False
    return True


class _KeyringTokenStore(FileTokenStore):
    """Reads tokens from the system's keyring, and their generations from the file."""

    async def read(self, account: str, *, service: str | None = None) -> StoredToken | None:
        stored = await super().read(account, service=service)
        value = (await asyncio.to_thread(_keyring.entry_of, account)).get("token")
        return None if stored is None or value is None else attrs.evolve(stored, token=Token(value, stored.token.expires_at))


class ConsentCredentials(OAuthCredentials):
    """Takes its tokens from the store of a profile, and raises `ConsentRequired` when the user has to sign in.

    It names no account, as the credentials of the environment: a journal that was begun with one is resumed with the other.
    """

    is_account_shown = False

    def _error_of(self, failure: CredentialError) -> CredentialError:
        error = super()._error_of(failure)
        add_words(error, "run boardclient login")
        return error


# --- settings


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """The settings for one service, each from an option, the environment or the profile."""

    profile: Profile
    """The profile of the service."""
    values: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The settings by name, without the secrets of the profile."""
    sources: Mapping[str, str] = attrs.field(factory=dict)
    """Where each is from: "option", "environment" or "profile"."""
    profiles: Profiles = attrs.field(factory=Profiles, repr=False)

    @classmethod
    def found(cls, chosen: Mapping[str, str], **options: Any) -> Self:
        """Return the settings. What is chosen overrides the variables, which override the profile.

        White space around a variable is removed, and an empty one counts as not set.

        Raises:
            ValueError: the service's address is not known.
        """
        profiles = Profiles.read()
        variables = {name: value for name, variable in VARIABLES.items() if (value := os.environ.get(variable, "").strip())}
        base_url = {**variables, **chosen}.get("base_url", profiles.current)
        if base_url is None:
            problem = f" ({profiles.problem})" if profiles.problem else ""
            raise ValueError(f"the service's address is not set{problem}: set {VARIABLES['base_url']}, or give --base-url")
        _check_shown(base_url)
        profile = profiles.of(base_url)
        given = {"profile": {"base_url": base_url, **profile.client}, "environment": variables, "option": chosen}
        return cls(
            profile=profile,
            profiles=profiles,
            values={name: value for values in given.values() for name, value in values.items()},
            sources={name: source for source, values in given.items() for name in values},
            **options,
        )

    @property
    def base_url(self) -> str:
        return self.values["base_url"]

    @property
    def token(self) -> str | None:
        """The access token of the environment, which is used in place of the kept one."""
        return self.values.get("token")

    @property
    def key(self) -> str | None:
        return self.get("key")

    @cached_property
    def secrets(self) -> Mapping[str, str]:
        """The API key and the client secret of the profile, as far as they are kept. Only what needs one waits for the keyring.

        Raises:
            CredentialError: the keyring can't be used.
        """
        profile = self.profile
        found = _keyring.entry_of(profile.base_url) if profile.kept_in == "keyring" else profile.secrets
        return {name: value for name, value in found.items() if name in SECRETS}

    def get(self, name: str) -> str | None:
        """Return a setting, None if it is not known.

        Raises:
            CredentialError: it may be in the keyring, which can't be used, and no token is in the environment.
        """
        if name in self.values or name not in SECRETS:
            return self.values.get(name)
        try:
            return self.secrets.get(name)
        except CredentialError:
            if self.token is None:
                raise
            return None

    @property
    def shared_secrets(self) -> list[str]:
        """The secrets of the environment, which no output may hold. Those that are kept belong to the credentials."""
        return [value for name, value in self.values.items() if name in SECRETS]

    @property
    def place(self) -> str:
        """Where the token is from that is used, in words."""
        return self.profile.place if self.token is None else "the environment"

    def credentials(self) -> CredentialProvider:
        """Return what signs the requests: the token of the environment, otherwise the kept one.

        Raises:
            CredentialError: there is neither, or the kept one can't be read.
        """
        if self.token is not None:
            return StaticCredentials(token=self.token, key=self.key)
        return self.oauth(self._store())

    async def usable_token(self) -> str:
        """Return the access token of the environment, otherwise the kept one.

        Raises:
            CredentialError: there is neither, or the kept one can't be read.
        """
        if self.token is not None:
            return self.token
        stored = await self._store().read(self.profile.base_url)
        if stored is None:
            raise self._not_signed_in()
        return stored.token.value

    def _store(self) -> FileTokenStore:
        if not self.profile.kept_in:
            raise self._not_signed_in()
        return self.profile.token_store()

    def _not_signed_in(self) -> CredentialError:
        problem = f" ({self.profiles.problem})" if self.profiles.problem else ""
        return CredentialError(f"not signed in to {self.base_url}{problem}: set {VARIABLES['token']}, or run boardclient login")

    def oauth(self, store: FileTokenStore | None = None, redirect_uri: str | None = None) -> ConsentCredentials:
        """Return credentials of the registered client.

        Only a sign-in needs the client: no call exchanges a code, since the user has to sign in where the token is refused.
        """
        return ConsentCredentials(
            client_id=self.get("client_id") or "none",
            client_secret=self.get("client_secret") or "none",
            redirect_uri=redirect_uri or self.get("redirect_uri") or "http://127.0.0.1/callback",
            auth_url=self.get("auth_url") or "http://127.0.0.1/none",
            key=self.key,
            store=store,
            account=self.profile.base_url,
            service=self.profile.base_url,
        )

    # --- what commands keep for later ones

    async def keep(self, token: Token) -> None:
        """Keep a token and what belongs to it, for later commands.

        Raises:
            ValueError: the files can't be written.
            CredentialError: the store did not take the token.
        """
        client, secrets = (
            {name: value for name in names if (value := self.get(name)) is not None} for names in (IN_PROFILE, SECRETS)
        )
        kept = keep_secrets(self.profile, secrets, token)
        with changed_profiles() as profiles:
            known = profiles.of(self.base_url)
            known.client, known.kept_in, known.secrets = client, self.profile.kept_in, self.profile.secrets
            known.is_left_in_keyring = self.profile.is_left_in_keyring
            profiles.current = known.base_url
        store, url = self.profile.token_store(), self.profile.base_url
        while not await store.publish(url, kept, await store.generation(url, service=url), service=url):
            pass  # another sign-in was faster: this one is newer

    def learn(self, board_id: str, name: str) -> None:
        """Keep the name of a board for later commands.

        Raises:
            ValueError: the file can't be written.
        """
        with changed_profiles() as profiles:
            profiles.of(self.base_url).boards[board_id] = name

    async def forget(self) -> bool:
        """Delete the kept token and secrets. Return False if there were none.

        Raises:
            ValueError: the files can't be read or written.
            CredentialError: the keyring can't be used, and has them still. Another call tries again.
        """
        if self.profiles.problem:
            raise ValueError(self.profiles.problem)
        profile, url = self.profile, self.profile.base_url
        if not profile.kept_in and not profile.is_left_in_keyring:
            return False
        await profile.token_store().delete(url, service=url)
        left = None
        try:
            _keyring.drop_entry(url)
        except CredentialError as error:
            left = error if profile.kept_in == "keyring" or profile.is_left_in_keyring else None
        with changed_profiles() as profiles:
            known = profiles.of(self.base_url)
            known.kept_in, known.secrets, known.is_left_in_keyring = "", {}, left is not None
        if left is not None:
            add_words(left, f"it has the token and the secrets of {url} still: run boardclient logout again when it can be used")
            raise left
        return True


def _check_shown(base_url: str) -> None:
    """Refuse an address with a password, since addresses are shown.

    Raises:
        ValueError: it has a user or a password.
    """
    if "@" in base_url.partition("://")[2].partition("/")[0]:
        raise ValueError("the service's address must hold no user and no password")


def for_session(name: str | None) -> tuple[str, CredentialProvider]:
    """Return the address and the credentials of a service, by default those that a command without options uses.

    Raises:
        ValueError: the service is not known, or the profiles can't be read.
        CredentialError: nobody is signed in, or the token can't be read.
    """
    if name is None:
        settings = ServiceSettings.found({})
    else:
        profiles = Profiles.read()
        found = [profile for url, profile in profiles.by_url.items() if profiles.is_named(url, name)]
        if len(found) != 1:
            why = profiles.problem or f"there are {', '.join(profiles.by_url) or 'none'}"
            raise ValueError(f"there is no profile of {name} ({why}): run boardclient --base-url {name} login")
        (known,) = found
        settings = ServiceSettings(profile=known, profiles=profiles, values={"base_url": known.base_url, **known.client})
    return settings.base_url, settings.credentials()
