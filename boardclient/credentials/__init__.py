"""What signs a request, and where it comes from: the provider protocol, static and OAuth credentials, token stores.

What only OAuth needs stays in its modules, from where `boardclient` takes it when it is asked for: a program with static
credentials doesn't pay for it.
"""

from boardclient.credentials._protocol import CredentialObserver, CredentialProvider, Exchange
from boardclient.credentials._static import StaticCredentials
from boardclient.credentials._values import Credentials, SignedRequest

__all__ = ["CredentialObserver", "CredentialProvider", "Credentials", "Exchange", "SignedRequest", "StaticCredentials"]
