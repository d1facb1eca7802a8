"""The consent page, on which a user allows an application access. No I/O.

The interface does not describe this page (5.10). It takes the parameters of RFC 6749, section 4.1.1, and RFC 7636.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from urllib.parse import urlencode, urlsplit

from boardclient.testing._answers import Answer, Fields
from boardclient.testing._grants import Grants
from boardclient.testing._page import page

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PARAMETERS = ("response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method")
_REFUSED = "refuse"
_WORDS = {"read": "See boards, lists and cards", "write": "Create, move, label and delete cards, and archive lists"}


class _Wrong(Exception):  # noqa: N818 -- it never leaves this module
    """A request that is not granted. The application gets the code `error`."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(error, message)
        self.error, self.message = error, message


def show(grants: Grants, query: Mapping[str, str]) -> Answer:
    """Return the page that asks for consent, or a redirect with an error."""
    return _checked(grants, query, lambda scopes: _page(grants, query, scopes))


def decide(grants: Grants, fields: Fields) -> Answer:
    """Return a redirect to the application, with a code or with an error."""
    query = {name: value for name, value in fields.items() if isinstance(value, str)}

    def granted(scopes: frozenset[str]) -> Answer:
        choice = query.get("member", "")
        if choice == _REFUSED:
            raise _Wrong("access_denied", "the user refused")
        try:
            code = grants.new_code(scopes=scopes, member=choice, challenge=query.get("code_challenge"))
        except LookupError:
            return _broken("There is no such member.")
        return _back(grants, query, code=code)

    return _checked(grants, query, granted)


def _checked(grants: Grants, query: Mapping[str, str], then: Callable[[frozenset[str]], Answer]) -> Answer:
    """Check a request, and call `then` with its scopes."""
    # With an unknown client or redirect URI there must be no redirect: RFC 6749, section 4.1.2.1.
    if query.get("client_id") != grants.client_id:
        return _broken("The client identifier is missing or unknown.")
    if query.get("redirect_uri", grants.redirect_uri) != grants.redirect_uri:
        return _broken(f"The redirect URI is not the registered one, which is {grants.redirect_uri}.")
    try:
        return then(_scopes(grants, query))
    except _Wrong as wrong:
        return _back(grants, query, error=wrong.error, error_description=wrong.message)


def _scopes(grants: Grants, query: Mapping[str, str]) -> frozenset[str]:
    if query.get("response_type") != "code":
        raise _Wrong("unsupported_response_type", "response_type must be code")
    challenge, method = query.get("code_challenge"), query.get("code_challenge_method")
    if (challenge is None) != (method is None) or (method is not None and method != "S256"):
        raise _Wrong("invalid_request", "a code challenge comes with code_challenge_method=S256")
    if challenge is not None and not _CHALLENGE.fullmatch(challenge):
        raise _Wrong("invalid_request", "the code challenge is no SHA-256 digest in base64url")
    asked = frozenset(query.get("scope", "").replace(",", " ").split()) or grants.scopes
    if not asked <= grants.scopes:
        raise _Wrong("invalid_scope", f"the scopes are {' '.join(sorted(grants.scopes))}")
    return asked


def _back(grants: Grants, query: Mapping[str, str], **parameters: str) -> Answer:
    state = {"state": query["state"]} if "state" in query else {}
    separator = "&" if urlsplit(grants.redirect_uri).query else "?"
    headers = {"Location": f"{grants.redirect_uri}{separator}{urlencode({**parameters, **state})}", "Cache-Control": "no-store"}
    # 303 makes the browser send a GET without the form's fields: RFC 9110, section 15.4.4.
    return Answer(303, "", "text/plain", headers)


def _broken(message: str) -> Answer:
    body = f"<h1>This sign-in can't continue</h1><p>{escape(message)}</p><p class=quiet>Nothing was sent to any application.</p>"
    return Answer(400, page("Sign-in", f"<main class=card>{body}</main>"), "text/html")


def _page(grants: Grants, query: Mapping[str, str], scopes: frozenset[str]) -> Answer:
    host = urlsplit(grants.redirect_uri).netloc
    hidden = "".join(f'<input type=hidden name="{name}" value="{escape(query[name])}">' for name in _PARAMETERS if name in query)
    wanted = "".join(f"<li>{escape(_WORDS.get(scope, scope))}</li>" for scope in sorted(scopes))
    choices = "".join(
        f'<button name=member value="{escape(member.id)}"><span class=face aria-hidden=true>{escape(member.initials)}</span>'
        f"<span>Continue as <b>{escape(member.name)}</b></span></button>"
        for member in grants.members
    )
    body = (
        f"<main class=card><h1>Allow access to your boards?</h1><p><b>{escape(host)}</b> would like to:</p><ul>{wanted}</ul>"
        f"<form method=post action=authorize>{hidden}{choices}"
        f'<button name=member value="{_REFUSED}" class=refuse>Refuse</button></form>'
        "<p class=quiet>This is a service for trials. Its members have no passwords.</p></main>"
    )
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    return Answer(200, page("Allow access?", body), "text/html", headers)
