"""Credential providers, the renewal of tokens, and the stores that keep them.

`boardclient` imports what only OAuth needs when it is first used, so that programs with static credentials don't load it.
"""

from boardclient.credentials._credentials import (
    CredentialProvider,
    Credentials,
    CredentialsIn,
    Exchange,
    StaticCredentials,
    is_issued_by,
)

__all__ = ["CredentialProvider", "Credentials", "CredentialsIn", "Exchange", "StaticCredentials", "is_issued_by"]
