"""Which addresses requests may be sent to. No message shows one."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from yarl import URL

_HOST: Final = re.compile(r"[0-9A-Za-z._~!$&'()*+,;=:%-]+")
"""An encoded host, IPv6 addresses included (RFC 3986, section 3.2.2)."""


def check_url(url: object, name: str, *, allow_insecure: bool) -> str:
    """Return the absolute URL, percent-encoded, or raise a ValueError that shows nothing of it but its `name`."""
    parsed = _parsed(url)
    if parsed is None or not _has_host(parsed):
        given = "" if isinstance(url, str) else f", not {type(url).__name__}"
        raise ValueError(f"{name} must be an absolute http or https URL, such as https://board.example{given}")
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        raise ValueError(f"{name} must hold no user, password, query or fragment")
    if parsed.scheme == "http" and not allow_insecure and not _is_loopback(parsed):
        raise ValueError(f"{name} is plain http, which sends credentials unencrypted: use https or allow_insecure=True")
    return str(parsed)


def check_root(url: object, name: str, *, allow_insecure: bool) -> str:
    """Return the URL that paths are appended to, which may not end in "/1" (interface 9)."""
    root = check_url(url, name, allow_insecure=allow_insecure).rstrip("/")
    if root.partition("://")[2].endswith("/1"):  # and not a host of that name
        raise ValueError(f'{name} must not end in "/1": the paths of the service start with it')
    return root


def check_proxy(proxy: object, root: str, *, allow_insecure: bool) -> None:
    """Raise a ValueError, which does not show it, if a proxy is no URL or would get credentials of plain http."""
    if proxy is None:
        return
    parsed = _parsed(proxy)
    if parsed is None or not _has_host(parsed):
        raise ValueError("proxy must be an http or https URL, such as http://proxy.example:3128")
    if not (allow_insecure or root.startswith("https:") or _is_loopback(parsed)):
        raise ValueError("proxy would be sent the credentials of plain http unencrypted: use https or allow_insecure=True")


def host_of(url: str) -> str:
    """Return the host of a checked URL, with its port if it has one."""
    return url.partition("://")[2].partition("/")[0]


def _parsed(url: object) -> URL | None:
    try:
        return URL(url) if isinstance(url, str | URL) and str(url).isprintable() else None
    except ValueError:
        return None


def _has_host(url: URL) -> bool:
    return url.scheme in {"http", "https"} and _HOST.fullmatch(url.raw_host or "") is not None


def _is_loopback(url: URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return ip_address(url.host or "").is_loopback
    except ValueError:
        return False
