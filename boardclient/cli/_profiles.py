"""The settings of a command, from its options, the environment and the profile, and what commands keep for later ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

import boardclient
from boardclient import Token, _profiles
from boardclient._environment import proxy_of, reason_of
from boardclient._profiles import IN_PROFILE, SECRETS, VARIABLES, changed_profiles, forget_in_keyring, keep_secrets
from boardclient.cli._errors import UsageError


def write_file(path: Path, data: bytes) -> None:
    """Write a file in one step.

    Raises:
        UsageError: it can't be written.
    """
    try:
        _profiles.replace_file(path, data)
    except OSError as error:
        raise UsageError(f"can't write {path}: {reason_of(error)}") from None


@attrs.frozen(kw_only=True)
class Settings(_profiles.Settings):
    """The settings of one command."""

    timeout: float = 30.0
    allow_insecure: bool = False

    def session(self, credentials: boardclient.CredentialProvider, url: str | None = None) -> boardclient.AsyncSession:
        """Return a session with these settings, by default with the service; the caller closes it.

        Raises:
            ValueError: a setting can't be used.
        """
        url = url or self.base_url
        proxy = proxy_of(url, allow_insecure=self.allow_insecure)
        return boardclient.AsyncSession(
            credentials, base_url=url, timeout=self.timeout, allow_insecure=self.allow_insecure, proxy=proxy
        )

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
            profiles.current = known.base_url
        store = self.profile.token_store()
        while not await store.publish(self.profile.base_url, kept, await store.generation(self.profile.base_url)):
            pass  # another sign-in was faster: this one is newer

    def learn(self, board_id: str, name: str) -> None:
        """Keep the name of a board for later commands.

        Raises:
            ValueError: the file can't be written.
        """
        with changed_profiles() as profiles:
            profiles.of(self.base_url).boards[board_id] = name

    async def forget(self) -> bool:
        """Delete the kept token and secrets. Return False if there were none."""
        if not self.profile.kept_in:
            return False
        await self.profile.token_store().delete(self.profile.base_url)
        forget_in_keyring(self.profile.base_url)
        with changed_profiles() as profiles:
            known = profiles.of(self.base_url)
            known.kept_in, known.secrets = "", {}
        return True


def advice() -> str:
    """Return what the user can do when the service refuses the credentials."""
    if os.environ.get(VARIABLES["token"]):
        return f"the credentials are those of {VARIABLES['key']} and {VARIABLES['token']}"
    return "run boardclient login"


def load() -> Settings:
    """Return the settings of the running command. An option overrides its variable, which overrides the profile.

    Raises:
        ValueError: the service's address is not known.
    """
    options: Mapping[str, Any] = click.get_current_context().find_root().params
    chosen = {name: options[name] for name in ("base_url", "auth_url") if options[name]}
    return Settings.found(chosen, timeout=options["timeout"], allow_insecure=options["allow_insecure"])
