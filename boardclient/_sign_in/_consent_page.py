"""The addresses of the consent page, with code challenges (RFC 7636). No I/O."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

from boardclient._sign_in._flows import Flow, Signer, challenge_of


class ConsentPage:
    """Makes the addresses to which browsers are sent (RFC 6749 4.1.1). Owned by a `SignIn`.

    Args:
        url: The address of the page, checked. It may have a query.
        client_id: The identifier of the registered client.
        redirect_uri: The address that the client is registered with.
        scope: The scopes to ask for, separated by spaces, None to name none.
        signer: What derives code verifiers.
        has_challenge: Whether a code challenge is sent.
    """

    def __init__(
        self, url: str, *, client_id: str, redirect_uri: str, scope: str | None, signer: Signer, has_challenge: bool
    ) -> None:
        self._url = url
        self._query = {"response_type": "code", "client_id": client_id, "redirect_uri": redirect_uri}
        self._scope = scope
        self._signer = signer
        self._has_challenge = has_challenge

    @property
    def callback_path(self) -> str:
        """The path of the redirect URI."""
        return urlsplit(self._query["redirect_uri"]).path or "/"

    def address(self, state: str, scope: str | None = None) -> tuple[str, str]:
        """Return the address for a state, and the hint of its flow. `scope` replaces the configured one."""
        query, hint = {**self._query, "state": state}, ""
        if scopes := scope or self._scope:
            query["scope"] = scopes
        if self._has_challenge and (verifier := self._signer.verifier(state)):
            challenge = challenge_of(verifier)
            query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
            hint = challenge[:8]
        return f"{self._url}{'&' if '?' in self._url else '?'}{urlencode(query, quote_via=quote)}", hint

    def verifier(self, flow: Flow) -> str | None:
        """Return the code verifier of a flow. None if its address had no challenge."""
        return self._signer.verifier(flow.state, flow.hint) if flow.hint else None
