"""The exchange of a code for a token, and what its response means (4.12, 5.9).

The interface shows no response. Error messages hold no values of a success, only names, and of those only what can't be a token.
Of a refusal they hold the description, with `***` in place of what may be a secret.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, cast
from urllib.parse import parse_qsl

import attrs

from boardclient import _json
from boardclient._redaction import redacted
from boardclient._responses import Response
from boardclient.credentials._config import OAuthClientConfig
from boardclient.credentials._credentials import Exchange
from boardclient.credentials._guards import without_frames
from boardclient.credentials._tokens import ParseToken, RenewalFailure, Token
from boardclient.errors import DecodeError, Effect, TransportError
from boardclient.models import JsonValue

EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
EXCHANGE_SECONDS: Final = 30.0
"""The time limit of an exchange on a session whose calls have no deadline. A renewal must end."""
_TOKEN_NAMES: Final = ("access_token", "token")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.-]{0,23}")
_ERROR_CODES: Final = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "invalid_scope",
        "unauthorized_client",
        "unsupported_grant_type",
        "access_denied",
        "server_error",
        "temporarily_unavailable",
    }
)
"""RFC 6749, sections 4.1.2.1 and 5.2."""
_WORDS: Final = ("error_description", "message", "error", "detail", "title")
"""The fields in which services say why they refuse (RFC 6749, section 5.2, and RFC 9457 among others)."""
_LONGEST_WORDS: Final = 200
_PLAIN_WORD: Final = re.compile(r"[('\"]?(?:[A-Za-z]+(?:[_'-][A-Za-z]+){0,3}|[0-9]{1,3})[.,;:!?)'\"]{0,2}")
"""A word that can't be a token: letters, or a short number."""


async def exchange_code(
    config: OAuthClientConfig, code: str, exchange: Exchange, timeout: float | None, extra: Mapping[str, str] = {}
) -> Token | RenewalFailure:
    """Send the code once, and return the token of the response.

    The exchange ends after `timeout` seconds, by default `EXCHANGE_SECONDS`. `extra` are further fields of the form.
    """
    fields = {
        "client_id": config.client_id,
        "client_secret": config.client_secret,
        "code": code,
        "redirect_uri": config.redirect_uri,
        **extra,
    }
    secrets = [config.client_secret, code, *extra.values()]
    try:
        response = await exchange.post_form(config.auth_url + EXCHANGE_PATH, fields, timeout or EXCHANGE_SECONDS)
    except TransportError as error:
        lost = error.with_traceback(None)
    else:
        token = read_token(response, time.time(), config.parse_token, secrets)
        if isinstance(token, Token):
            return token
        return attrs.evolve(token, why=f"{token.why} (sent to {config.auth_url}{EXCHANGE_PATH})")
    if lost.effect is Effect.NOT_SENT:
        return RenewalFailure(f"the token exchange was not sent: {lost.message}", lost)
    return RenewalFailure(f"the token exchange failed, with unknown effect: {lost.message}", lost, is_in_doubt=True)


def read_token(
    response: Response, now: float, parse: ParseToken | None = None, secrets: Sequence[str] = ()
) -> Token | RenewalFailure:
    """Return the token of a response, or why it has none.

    The response may be a JSON object as in RFC 6749 5.1, one with a field `token`, or the same form-encoded, with any content
    type.

    Args:
        response: The response.
        now: Seconds since the epoch.
        parse: The application's `parse_token`, None for the known shapes.
        secrets: What the form held, which a refusal may repeat.
    """
    fields = _fields(response.body)
    if not 200 <= response.status < 300:
        return _refusal(response, fields, secrets)
    if fields is None:
        return RenewalFailure("the token exchange gave no token: its response is neither a JSON object nor form-encoded")
    if parse is not None:
        return _parsed(parse, fields)
    value = next((found for name in _TOKEN_NAMES if isinstance(found := fields.get(name), str) and found), None)
    if value is None:
        return RenewalFailure(f"the token exchange gave no token: {_names(fields)}; parse_token can take it from another shape")
    try:
        return Token(value, _end(fields.get("expires_in"), now))
    except ValueError:
        value = None
    return RenewalFailure("the token exchange gave a token that can't be sent: it holds characters that no request can carry")


def _fields(body: bytes) -> Mapping[str, JsonValue] | None:
    """Decode a JSON object or a form. None if the body is neither."""
    try:
        decoded = _json.decode(body)
    except DecodeError:
        pass
    else:
        return decoded if isinstance(decoded, dict) else None
    try:
        pairs = parse_qsl(body.decode().strip(), strict_parsing=True)
    except ValueError:
        return None
    return cast("dict[str, JsonValue]", dict(reversed(pairs)))  # of two fields of one name the first counts


def _refusal(response: Response, fields: Mapping[str, JsonValue] | None, secrets: Sequence[str]) -> RenewalFailure:
    code = (fields or {}).get("error")
    explanation = f" ({code})" if isinstance(code, str) and code in _ERROR_CODES else ""
    if response.status == 400:
        explanation += ": the client identifier or secret is invalid, or the code is not good"
    words = _own_words(response, fields or {}, secrets)
    return RenewalFailure(
        f"the token exchange failed with status {response.status}{explanation}{words and f'; the service says: {words}'}"
    )


def _own_words(response: Response, fields: Mapping[str, JsonValue], secrets: Sequence[str]) -> str:
    """Return the description of a refusal, without secrets and what may be a token."""
    texts = [text for name in _WORDS if isinstance(text := fields.get(name), str) and (name != "error" or " " in text)]
    if not texts and response.headers.get("Content-Type", "").startswith("text/plain"):
        texts = [response.body.decode("utf-8", "replace")]
    said = "".join(texts[:1]).encode(errors="replace")
    plain = (redacted(said, secrets, _LONGEST_WORDS) if secrets else said[:_LONGEST_WORDS]).decode(errors="replace")
    shown = [word if _PLAIN_WORD.fullmatch(word) else "***" for word in plain.split()]
    return " ".join(shown) if set(shown) - {"***"} else ""


def _parsed(parse: ParseToken, fields: Mapping[str, JsonValue]) -> Token | RenewalFailure:
    """Call the application's function. The frames of its error are removed, since they hold the response."""
    try:
        token = parse(fields)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # an application's function may raise anything
        return RenewalFailure(f"parse_token raised {type(error).__name__}: {_names(fields)}", without_frames(error))
    if not isinstance(token, Token):
        return RenewalFailure(f"parse_token returned {type(token).__name__}, not a Token")
    return token


def _names(fields: Mapping[str, JsonValue]) -> str:
    """Return the names of a response's fields in words. What may be a token, such as a bare body, is left out."""
    shown = sorted(name for name, value in fields.items() if _PLAIN_NAME.fullmatch(name) and not _is_padding(value))
    hidden = len(fields) - len(shown)
    return f"the names in its response are {', '.join(shown) or 'none'}" + (f" and {hidden} not shown" if hidden else "")


def _is_padding(value: JsonValue) -> bool:
    """Return True if a value may be the padding of a base64 token."""
    return isinstance(value, str) and not value.strip("=")


def _end(expires_in: JsonValue, now: float) -> datetime | None:
    """Return when a lifetime in seconds ends. None if it is no positive number."""
    try:
        seconds = float(expires_in)  # type: ignore[arg-type]  # -- what is no number raises
        if isinstance(expires_in, bool) or not math.isfinite(seconds) or seconds <= 0:
            return None
        return datetime.fromtimestamp(now, UTC) + timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        return None
