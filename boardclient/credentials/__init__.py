"""What signs a request, and where it comes from: the provider protocol and the static provider."""

from boardclient.credentials._protocol import CredentialProvider, Exchange
from boardclient.credentials._static import StaticCredentials
from boardclient.credentials._values import Credentials, Signed

__all__ = ["CredentialProvider", "Credentials", "Exchange", "Signed", "StaticCredentials"]
