"""A request to the application, as the integrations of all frameworks read it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, urlsplit

import attrs

_SAFE: Final = "/!$&'()*+,;=:@~-._"
"""What need not be escaped in a path: https://www.rfc-editor.org/rfc/rfc3986#section-3.3."""
_PAGE: Final = re.compile(r"(text/html|application/xhtml\+xml)(;|$)")
_UNWANTED: Final = re.compile(r";q=0(\.0*)?(;|$)")


@attrs.frozen
class IncomingRequest:
    """A request to the application. `target` is its path and query, percent-encoded.

    The names of headers are lower case. Headers of the same name are joined, cookies by a semicolon
    (https://www.rfc-editor.org/rfc/rfc9113#section-8.2.3).
    """

    method: str
    target: str
    headers: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def of(cls, method: str, target: str, headers: Iterable[tuple[str, str]]) -> Self:
        """Return a request. `headers` are pairs of names and values."""
        joined: dict[str, str] = {}
        for given, raw in headers:
            # aiohttp passes on bytes that are not UTF-8 as lone surrogates, which nothing can encode.
            name, value = given.lower(), raw.encode("utf-8", "replace").decode()
            joined[name] = f"{joined[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in joined else value
        return cls(method.upper(), target, joined)

    @classmethod
    def of_scope(cls, scope: Mapping[str, Any]) -> Self:
        """Return the request of an ASGI scope. That of a websocket counts as GET."""
        path, root, query = scope["path"], scope.get("root_path", "").rstrip("/"), scope.get("query_string", b"")
        # Some servers leave `root_path` out: https://asgi.readthedocs.io/en/latest/specs/www.html#http-connection-scope
        if not f"{path}/".startswith(f"{root}/"):
            path = root + path
        headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        target = quote(path, _SAFE, errors="replace") + (f"?{query.decode('latin-1')}" if query else "")
        return cls.of(scope.get("method", "GET"), target, headers)

    @property
    def path(self) -> str:
        """The path, percent-encoded, without the query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """The query without its question mark."""
        return self.target.partition("?")[2]

    @property
    def cookies(self) -> str:
        """The value of the `Cookie` header, "" if there is none."""
        return self.headers.get("cookie", "")

    @property
    def return_to(self) -> str:
        """Where to go after a sign-in: `return_to` in the query, "/" by default."""
        return dict(parse_qsl(self.query)).get("return_to", "/")

    @property
    def page(self) -> str:
        """The page that the user sees: the target of a GET, or the form's page."""
        if self.method in {"GET", "HEAD"}:
            return self.target
        try:
            sender = urlsplit(self.headers.get("referer", ""))
        except ValueError:  # no URL at all
            return "/"
        if sender.netloc != self.headers.get("host"):
            return "/"
        return sender.path + (f"?{sender.query}" if sender.query else "")

    @property
    def is_cross_origin(self) -> bool:
        """Whether a page of another origin sent the request.

        Browsers say so in `Sec-Fetch-Site`, older ones in `Origin`. Programs send neither: https://words.filippo.io/csrf.
        """
        site = self.headers.get("sec-fetch-site")
        if site:
            return site not in {"same-origin", "none"}
        origin = self.headers.get("origin")
        return origin is not None and origin.partition("://")[2] != self.headers.get("host")

    @property
    def wants_page(self) -> bool:
        """Whether the request is a navigation, which may be redirected to the login page.

        A fetch, an HTMX request or an EventSource would follow the redirect itself, and fail at the other origin.
        """
        if "hx-request" in self.headers or self.headers.get("x-requested-with", "").lower() == "xmlhttprequest":
            return False
        # Not sent over plain http to other hosts than the local one: https://www.w3.org/TR/fetch-metadata/.
        mode = self.headers.get("sec-fetch-mode")
        return mode == "navigate" if mode else _takes_html(self.headers.get("accept", ""))


def _takes_html(accept: str) -> bool:
    """Return True if an `Accept` header (RFC 9110 12.5.1) names HTML. Programs send `*/*`."""
    entries = (entry.replace(" ", "") for entry in accept.lower().split(","))
    return any(_PAGE.match(entry) and not _UNWANTED.search(entry) for entry in entries)
