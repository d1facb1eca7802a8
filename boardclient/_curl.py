"""Requests as curl commands, with shell variables in place of the credentials. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

_KEY: Final = '"$BOARDCLIENT_KEY"'
_TOKEN: Final = '"$BOARDCLIENT_TOKEN"'  # noqa: S105 -- a variable of the shell, not a secret


class ShownRequest(NamedTuple):
    """What a call sends, without its credentials.

    Args:
        method: The HTTP method.
        url: The absolute URL, without credentials.
        body: The JSON body without credentials, None if there is none.
        has_key: Whether a key is sent as well as a token.
        is_in_body: Whether the credentials go into the body, and not into the query.
    """

    method: str
    url: str
    body: str | None = None
    has_key: bool = True
    is_in_body: bool = False

    def as_curl(self) -> str:
        """Return the request as one command of a POSIX shell."""
        from shlex import quote  # few programs ask for a command: importing it takes a millisecond

        url, body = quote(self.url), None if self.body is None else quote(self.body)
        if self.is_in_body and self.body is not None:
            rest = self.body[1:].lstrip()
            comma = "" if rest == "}" else ","
            key = quote('{"key":"') + _KEY + quote('","token":"')
            body = key + _TOKEN + quote(f'"{comma}{rest}')
        else:
            start = "&" if "?" in self.url else "?"
            key = quote(f"{start}key=") + _KEY + quote("&token=") if self.has_key else quote(f"{start}token=")
            url += key + _TOKEN
        parts = ["curl", "-sS", "-X", quote(self.method), "-H", quote("Accept: application/json")]
        if body is not None:
            parts += ["-H", quote("Content-Type: application/json"), "--data-binary", body]
        return " ".join([*parts, url])
