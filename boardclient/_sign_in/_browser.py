"""Cookies, queries and return addresses of browsers. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast
from urllib.parse import parse_qsl, quote, unquote

_LONGEST_ADDRESS: Final = 2000
_DECODINGS: Final = 3
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
"""Browsers remove some of these from URLs, and read a backslash as a slash: https://url.spec.whatwg.org/#url-parsing."""
SERVICE_ERRORS: Final = frozenset(
    {
        "invalid_request",
        "invalid_scope",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_response_type",
    }
)
"""The errors that don't come from the user: https://www.rfc-editor.org/rfc/rfc6749#section-4.1.2.1."""


def local_address(address: object) -> str:
    """Return an address if it is a path of this site, otherwise "/".

    It may have a query and a fragment. It must still be such a path after servers on the way have percent-decoded it up to
    three times.
    """
    if not isinstance(address, str) or len(address) > _LONGEST_ADDRESS:
        return "/"
    decoded = address
    for _ in range(_DECODINGS + 1):
        if not _is_local(decoded):
            return "/"
        decoded = unquote(decoded, errors="replace")
    try:
        return quote(address, safe="/?#[]@!$&'()*+,;=:%~-._")
    except UnicodeEncodeError:  # a lone surrogate
        return "/"


def _is_local(address: str) -> bool:
    path = re.split(r"[?#]", address, maxsplit=1)[0]
    return path.startswith("/") and "//" not in path and not _UNSAFE.search(path) and not {".", ".."} & set(path.split("/"))


def parameters(query: object) -> dict[str, str] | None:
    """Return the parameters of a redirect's query. None if it is malformed.

    The query is a string or bytes, with or without "?", or a mapping of names to texts or to lists of texts. No parameter may
    occur twice (https://www.rfc-editor.org/rfc/rfc6749#section-3.1).
    """
    if isinstance(query, bytes | bytearray):
        query = bytes(query).decode("latin-1")
    pairs: list[tuple[object, object]]
    if isinstance(query, str):
        pairs = list(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
    elif isinstance(query, Mapping):
        pairs = _pairs_of(query)
    else:
        return None
    found: dict[str, str] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or name in found:
            return None
        found[name] = value
    return found


def _pairs_of(query: Mapping[object, object]) -> list[tuple[object, object]]:
    """Return all pairs of a mapping or multidict (Starlette, Werkzeug, multidict)."""
    getlist, items = getattr(query, "getlist", None), getattr(query, "multi_items", query.items)
    if callable(getlist) and items == query.items:
        return [(name, value) for name in query for value in cast("Iterable[object]", getlist(name))]
    pairs: list[tuple[object, object]] = []
    for name, value in items():
        pairs += [(name, one) for one in value] if isinstance(value, list | tuple) else [(name, value)]
    return pairs


def cookie_of(cookies: object, name: str) -> str | None:
    """Return the value of a cookie in a mapping or a raw `Cookie` header. None if it is missing."""
    if isinstance(cookies, bytes | bytearray):
        cookies = bytes(cookies).decode("latin-1")
    if isinstance(cookies, Mapping):
        value = cookies.get(name)
        return value if isinstance(value, str) else None
    if not isinstance(cookies, str):
        return None
    for part in cookies.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value.strip('"')
    return None


def set_cookie(name: str, value: str, max_age_seconds: int, *, is_secure: bool) -> str:
    """Return the value of a `Set-Cookie` header. Scripts can't read the cookie.

    It is `SameSite=Lax`, since the redirect from the service comes from another site and `Strict` would hold the cookie back.
    """
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Max-Age={max_age_seconds}; Path=/; HttpOnly; SameSite=Lax{secure}"


def keys_of(secret: str | bytes | Iterable[str | bytes], name: str) -> tuple[bytes, ...]:
    """Return one or several secrets as bytes. Errors call them `name`.

    Raises:
        TypeError, ValueError: there is none, or one is empty or no text.
    """
    given = [secret] if isinstance(secret, str | bytes) else list(secret)
    keys = tuple(key.encode() if isinstance(key, str) else key for key in given)
    if not all(isinstance(key, bytes) for key in keys):
        raise TypeError(f"{name} must be a text, or several")
    if not keys or not all(keys):
        raise ValueError(f"{name} must not be empty")
    return keys
