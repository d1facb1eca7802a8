"""Credentials, and the protocol of what provides them (interface section 5). No I/O."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import accumulate
from typing import Any, ClassVar, Final, Literal, NoReturn, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import attrs
from multidict import CIMultiDict

from boardclient._base._redaction import (
    Steps,
    at_once,
    forms_of,
    hides,
    is_free_of,
    masked,
    masked_in_steps,
    masked_text,
    takes_secrets,
)
from boardclient._interface._fields import encode
from boardclient._interface._operations import Request
from boardclient._interface._responses import BODY_KEPT_BYTES, Response
from boardclient._transport._values import RawResponse
from boardclient.errors import CredentialError, ShownRequest
from boardclient.models import check_filled

T = TypeVar("T")
CredentialsIn = Literal["body", "query"]

_SHORTEST_REFUSED: Final = 8
"""The length of a credential that paths may not hold. A shorter one may be a part of a path by chance."""

_NOT_COPIED: Final = "credentials are not pickled or copied: make them where they are used"


@attrs.frozen
class _Signing:
    """The secrets of credentials, and what is made of them once."""

    token: str
    key: str | None
    query: str
    fields: bytes
    refused: tuple[str, ...]
    """What may not be in a path."""
    forms: list[frozenset[bytes]] = attrs.field(factory=list)
    """What redaction searches for, once it is asked for."""


@takes_secrets
class Credentials:
    """An access token, and the API key where one is used (interface 5.5, 5.6).

    The repr shows neither, and they can't be pickled or copied.

    Args:
        token: The access token.
        key: The API key. None (default): only the token is sent.

    Raises:
        ValueError, TypeError: one of them is empty or can't be sent.
    """

    __slots__ = ("__weakref__", "_signing")
    _signing: Callable[[], _Signing]

    def __init__(self, token: str, key: str | None = None) -> None:
        check_filled(token, "token")
        if key is not None:
            check_filled(key, "key")
        # Signing a request then takes one concatenation: its fields follow the comma.
        pairs = {"token": token} if key is None else {"key": key, "token": token}
        refused = tuple(one for one in pairs.values() if len(one) >= _SHORTEST_REFUSED)
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items())
        signing = _Signing(token, key, query, encode(pairs)[:-1] + b",", refused)
        object.__setattr__(self, "_signing", lambda: signing)  # nothing that looks through objects calls it

    @property
    def token(self) -> str:
        """The access token."""
        return self._signing().token

    @property
    def key(self) -> str | None:
        """The API key, None if none is used."""
        return self._signing().key

    def __setattr__(self, name: str, value: object) -> None:
        raise attrs.exceptions.FrozenInstanceError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credentials) and (self.token, self.key) == (other.token, other.key)

    def __hash__(self) -> int:
        return hash((self.token, self.key))

    def __repr__(self) -> str:
        return "Credentials()"

    def __reduce__(self) -> NoReturn:
        raise TypeError(_NOT_COPIED)

    def sign(self, request: Request[Any], credentials_in: CredentialsIn) -> tuple[str, bytes | None]:
        """Return the target and the body of a request with the credentials in one of them. No frame of an error may hold it.

        They go into the query if there is no body, or if `credentials_in` is "query". A token without a key always goes there
        (interface 5.6).
        """
        body, signing = request.body, self._signing()
        if body is not None and credentials_in == "body" and signing.key is not None and request.operation.signable_body:
            return request.target, signing.fields + body[1:] if body != b"{}" else signing.fields[:-1] + b"}"
        return f"{request.target}{'&' if '?' in request.target else '?'}{signing.query}", body

    def are_in(self, path: str) -> bool:
        """Return True if a path or a part of one holds one of these, as it is or encoded."""
        if "%" in path:
            return not is_free_of(path.encode(), forms_of(self._signing().refused))
        for secret in self._signing().refused:  # noqa: SIM110 -- `any` takes three times as long
            if secret in path:
                return True
        return False

    def show(self, request: Request[Any], root: str, credentials_in: CredentialsIn, *others: Credentials) -> ShownRequest:
        """Return the request as errors show it. `root` is the base URL.

        `***` stands in place of these and the other credentials. What is large is not searched: it would block the event loop.
        """
        forms = self._forms_with(others)
        body = request.body
        is_large = body is not None and len(body) > BODY_KEPT_BYTES
        shown = b"@body.json" if is_large else body and masked(body, forms)
        return ShownRequest(
            method=request.method,
            url=root + masked(request.target.encode(), forms, BODY_KEPT_BYTES).decode(),
            body=None if shown is None else shown.decode("utf-8", "replace"),
            has_key=self.key is not None,
            is_in_body=not is_large and self.sign(request, credentials_in)[1] is not body,
        )

    def redact(self, response: RawResponse, *others: Credentials) -> RawResponse:
        """Return the response with `***` in place of these and the other credentials.

        They are found as they are, percent-encoded, escaped as in JSON or HTML, and escaped several times. A large body is cut to
        what an error keeps, and not within a credential.
        """
        return at_once(self.redact_in_steps(response, *others))

    def redact_in_steps(self, response: RawResponse, *others: Credentials) -> Steps[RawResponse]:
        """Do what `redact` does, in steps."""
        headers = self.redact_headers(response.headers, *others)
        yield
        body = yield from masked_in_steps(response.body, self._forms_with(others), BODY_KEPT_BYTES)
        return RawResponse(response.status, headers, body)

    def redact_headers(self, headers: Mapping[str, str], *others: Credentials) -> Mapping[str, str]:
        """Return a copy of the first 64 KiB of headers, with `***` in place of the credentials, in names too."""
        text = "\0".join([*headers, *headers.values()])
        if len(text) > BODY_KEPT_BYTES:
            sizes = accumulate(len(name) + len(value) + 2 for name, value in headers.items())
            kept = CIMultiDict(field for field, size in zip(headers.items(), sizes, strict=True) if size <= BODY_KEPT_BYTES)
            return self.redact_headers(kept, *others)
        forms = self._forms_with(others)
        if is_free_of(text.encode("utf-8", "surrogateescape"), forms):
            return CIMultiDict(headers)
        return CIMultiDict((masked_text(name, forms), masked_text(value, forms)) for name, value in headers.items())

    def _forms_with(self, others: Iterable[Credentials] = ()) -> frozenset[bytes]:
        signing = self._signing()
        if not signing.forms:
            signing.forms.append(forms_of([self.token] if self.key is None else [self.token, self.key]))
        return signing.forms[0].union(*[other._forms_with() for other in others]) if others else signing.forms[0]


class Exchange(Protocol):
    """Send forms on the session's pool, and run tasks that end with the session."""

    @property
    def timeout(self) -> float | None:
        """The timeout of a call in seconds, None for no timeout."""
        ...

    def check_url(self, url: str, name: str) -> str:
        """Return the URL if a form may be sent to it. Errors call it `name`.

        Raises:
            ValueError: it is neither https nor plain http that the session allows.
        """
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the coroutine in its own task, which the session cancels when it closes.

        Raises:
            SessionClosedError: the session is closed.
        """
        ...

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        """Send a form once, and return the response, whatever its status.

        Args:
            url: The absolute URL.
            fields: The fields of the form.
            timeout: The seconds until the exchange ends with a `DeadlineError`, more than 0. None (default): no limit.

        Raises:
            TransportError: no complete response arrived. Its `effect` says whether the form was sent.
            TypeError, ValueError: the URL is neither https nor plain http that the session allows, or the timeout can't be.
        """
        ...


class CredentialProvider(Protocol):
    """Supply the credentials that sign requests. Many tasks may call both methods at once.

    An exception of theirs reaches the caller as the cause of a `CredentialError`. Events, logs and journals name the attribute
    `account` of a provider that has one.

    ```python
    class FromVault:
        async def acquire(self, exchange: Exchange) -> Credentials:
            return Credentials(await read_token())  # a function of yours

        async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
            return Credentials(await read_token())  # equal ones make the 401 final
    ```
    """

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials for the next request.

        Args:
            exchange: What can send a form to a token endpoint, without credentials: the session of the call.
        """
        ...

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return the credentials that replace those which the service refused with 401.

        Return equal ones if there are no others: then the 401 is final.

        Args:
            rejected: The credentials that the service refused.
            exchange: What can send a form to a token endpoint, as for `acquire`.
        """
        ...


class OwnProvider:
    """The base class of this package's providers: what sessions ask them, and tell them, besides the protocol."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(_NOT_COPIED)

    is_account_shown: ClassVar[bool] = True
    """Whether events, logs and journals name the account."""

    def __init_subclass__(cls, **options: object) -> None:
        """Drop an inherited `current`, which would bypass a subclass's own `acquire`."""
        super().__init_subclass__(**options)
        if "acquire" in vars(cls) and "current" not in vars(cls):
            cls.current = OwnProvider.current  # type: ignore[method-assign]  # -- the class has none of its own

    def current(self) -> Credentials | None:
        """Return the credentials if no waiting is needed. After None the call awaits `acquire`."""
        return None

    def waiting_for(self) -> str:
        """Return what `acquire` and `renew` wait for, for the text of `DeadlineError`."""
        return "credentials"

    def is_current(self, credentials: Credentials) -> bool:
        """Return True if credentials that were returned earlier may still sign a request."""
        return True

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service accepted the credentials. It is called once for each object."""

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 after the call has renewed once. It is not called if `renew` returned equal credentials."""


@takes_secrets
class StaticCredentials(OwnProvider):
    """Sign with one token that never changes. A 401 is final (interface section 5).

    ```python
    credentials = StaticCredentials(token="…", key="…")
    async with AsyncSession(credentials, "https://board.example") as session:
        print(session)
    ```

    Args:
        token: The access token.
        key: The API key. None (default): only the token is sent.

    Raises:
        ValueError, TypeError: one of them is empty or can't be sent.
    """

    def __init__(self, token: str, key: str | None = None) -> None:
        self._credentials = Credentials(token, key)

    def current(self) -> Credentials:
        """Return the credentials."""
        return self._credentials

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials."""
        return self._credentials

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return the same credentials: there are no others."""
        return self._credentials

    def __repr__(self) -> str:
        return "StaticCredentials(***)"


@hides("_provider", "_own")
class GuardedProvider:
    """Wraps a credential provider, which may do anything if it is an application's own."""

    def __init__(self, provider: CredentialProvider, exchange: Exchange) -> None:
        if isinstance(provider, type):
            raise TypeError(f"credentials must be a CredentialProvider, not the class {provider.__name__}")
        if not all(callable(getattr(provider, name, None)) for name in ("acquire", "renew")):
            raise TypeError("credentials must be a CredentialProvider, such as StaticCredentials(token=…)")
        self._provider = provider
        self._exchange = exchange
        self._own = own = provider if isinstance(provider, OwnProvider) else OwnProvider()
        self.current: Callable[[], Credentials | None] = own.current
        """Returns the credentials if they are available without waiting, otherwise None."""
        self.waiting_for: Callable[[], str] = own.waiting_for
        self.is_current: Callable[[Credentials], bool] = own.is_current
        """Returns False if the credentials were replaced."""
        self.accepted: Credentials | None = None
        """The credentials that the service accepted last."""

    @property
    def account(self) -> str | None:
        """The account that events, logs and journals name, None if there is none."""
        account = getattr(self._provider, "account", None)
        return account if isinstance(account, str) and self._own.is_account_shown else None

    async def obtain(
        self, line: str, rejected: Credentials | None, is_cancelled: Callable[[], bool]
    ) -> Credentials | CredentialError:
        """Ask the provider for credentials, other than the rejected ones if any."""
        try:
            exchange = self._exchange
            given = await (self._provider.acquire(exchange) if rejected is None else self._provider.renew(rejected, exchange))
            if isinstance(given, Credentials):
                return given
            return CredentialError(f"{line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            return own_error(error)
        except (Exception, asyncio.CancelledError) as error:  # any other exception becomes the cause of a CredentialError
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            failure = CredentialError(f"{line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
            return failure

    def note_accepted(self, credentials: Credentials) -> None:
        self.accepted = credentials
        self._own.note_accepted(credentials)

    async def note_refused(self, credentials: Credentials) -> None:
        await self._own.note_refused(credentials, self._exchange)


def is_issued_by(issuer: str | None, *addresses: str) -> bool:
    """Return False if the redirect of a sign-in names another issuer than a service with these addresses (RFC 9207).

    The interface shows no issuer, so its origin is compared.
    """
    if issuer is None:
        return True
    origins = [urlsplit(address)[:2] for address in (issuer, *addresses)]
    return origins[0] in origins[1:]


def own_error(error: CredentialError) -> CredentialError:
    """Return a copy of a provider's error, which calls may share: each call writes its history into its own."""
    own = copy.copy(error)
    own.message, own.attempts, own.__cause__ = str(error), (), error.__cause__
    return own
