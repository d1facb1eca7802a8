"""Credential providers, the renewal of tokens, and the stores that keep them.

`boardclient` imports what only OAuth needs when it is first used, so that programs with static credentials don't load it.
"""

from boardclient.credentials._protocol import CredentialObserver, CredentialProvider, Exchange
from boardclient.credentials._static import StaticCredentials
from boardclient.credentials._values import Credentials, SignedRequest

__all__ = ["CredentialObserver", "CredentialProvider", "Credentials", "Exchange", "SignedRequest", "StaticCredentials"]
