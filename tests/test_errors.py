"""The exception tree of the contract (section 4): what each error holds, and that it survives pickle and copy."""

from __future__ import annotations

import copy
import copyreg
import itertools
import pickle
from datetime import UTC, datetime

import pytest

from boardclient import errors
from boardclient.errors import (
    ApiError,
    Attempt,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    ConsentRequired,
    CredentialError,
    DeadlineError,
    DecodeError,
    Effect,
    InvalidIdentifierError,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    TransportError,
)
from boardclient.events import BulkProgress

HISTORY = (
    Attempt(
        number=1,
        started_at=datetime(2027, 1, 2, tzinfo=UTC),
        seconds=0.25,
        effect=Effect.UNKNOWN,
        why="status 503",
        status=503,
        pause_seconds=1.5,
    ),
    Attempt(number=2, started_at=datetime(2027, 1, 2, 0, 0, 2, tzinfo=UTC), seconds=0.5, effect=Effect.NOT_SENT, why="connect"),
)
API_ERRORS = (ApiError, BadRequestError, AuthenticationError, PermissionDeniedError, NotFoundError, RateLimitError, ServerError)
PLAIN_ERRORS = (
    BoardClientError,
    CredentialError,
    ConsentRequired,
    InvalidIdentifierError,
    JournalError,
    SessionClosedError,
)


def an_error(kind: type[BoardClientError]) -> BoardClientError:
    """Build an error with every attribute set."""
    if issubclass(kind, ApiError):
        return kind("a message", 429, {"Retry-After": "7"}, b"\x00body", "POST /1/cards", 7.0, Effect.UNKNOWN, HISTORY)
    if issubclass(kind, TransportError):
        return kind("a message", "send", "POST /1/cards", Effect.NOT_SENT, HISTORY)
    if issubclass(kind, DecodeError):
        return kind("a message", "[3].name", "GET /1/cards/c", Effect.DONE, HISTORY)
    if issubclass(kind, ConsentRequired):
        return kind("a message", "ann", "/login", Effect.UNKNOWN, HISTORY)
    return kind("a message", Effect.UNKNOWN, HISTORY)


KINDS = (*API_ERRORS, TransportError, DeadlineError, DecodeError, *PLAIN_ERRORS)
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle{protocol}": lambda e, p=protocol: pickle.loads(pickle.dumps(e, p)) for protocol in range(2, 6)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickle_and_copy(kind: type[BoardClientError], way: str) -> None:
    """An error that was pickled or copied has every attribute of the original, an application's own and its notes included."""
    error = an_error(kind)
    error.repeatable = True
    error.add_note("a note")
    error.mine = ["anything"]  # type: ignore[attr-defined]  # -- applications do this
    twin = WAYS[way](error)
    assert type(twin) is kind
    assert twin is not error
    assert vars(twin) == vars(error)
    assert twin.args == error.args == ("a message",)
    assert (str(twin), repr(twin)) == (str(error), repr(error))
    assert twin.attempts == HISTORY
    assert twin.effect is error.effect


@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_with_another_constructor_survives_too(way: str) -> None:
    """An application's subclass is rebuilt without its constructor, whatever that asks for."""
    error = OddError(3, name="x")
    twin = WAYS[way](error)
    assert (type(twin), str(twin), twin.name) == (OddError, "odd 3", "x")


class OddError(BoardClientError):
    def __init__(self, number: int, *, name: str) -> None:
        super().__init__(f"odd {number}")
        self.name = name


@pytest.mark.parametrize(
    ("kind", "effect"),
    [
        *((kind, Effect.REJECTED) for kind in API_ERRORS),
        (TransportError, Effect.UNKNOWN),
        (DeadlineError, Effect.UNKNOWN),
        (DecodeError, Effect.DONE),
        *((kind, Effect.NOT_SENT) for kind in PLAIN_ERRORS),
    ],
)
def test_every_error_can_be_built_without_arguments(kind: type[BoardClientError], effect: Effect) -> None:
    """An error built bare has the effect of its kind, no history and an empty message."""
    error = kind()
    assert (error.effect, error.attempts, error.repeatable, str(error)) == (effect, (), False, "")
    assert repr(error) == f"{kind.__name__}('', effect={effect.name}, attempts=0)"


def test_the_tree_is_the_documented_one() -> None:
    """Each error has the parents that the contract names, and nothing else derives from the base in this module."""
    assert all(kind.__base__ is ApiError for kind in API_ERRORS[1:])
    assert all(
        kind.__base__ is BoardClientError for kind in (ApiError, TransportError, DecodeError, CredentialError, JournalError)
    )
    assert SessionClosedError.__base__ is BoardClientError
    assert ConsentRequired.__base__ is CredentialError
    assert issubclass(DeadlineError, TransportError)
    named = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BoardClientError)}
    assert named >= set(KINDS)


def test_a_deadline_error_is_a_timeout_error() -> None:
    """A DeadlineError is caught as TimeoutError and as OSError, and its phase is the deadline."""
    error = DeadlineError("late")
    assert error.phase == "deadline"
    assert (str(error), error.errno, error.args) == ("late", None, ("late",))
    with pytest.raises(TimeoutError, match="late"):
        raise error


def test_attributes_are_where_the_contract_puts_them() -> None:
    """The error of a response has status, headers, body, request and retry_after; the others phase, path and request."""
    api = an_error(ServerError)
    assert isinstance(api, ApiError)
    assert (api.status, dict(api.headers), api.body, api.request) == (429, {"Retry-After": "7"}, b"\x00body", "POST /1/cards")
    assert api.retry_after == 7.0
    transport = an_error(TransportError)
    assert isinstance(transport, TransportError)
    assert (transport.phase, transport.request) == ("send", "POST /1/cards")
    decode = an_error(DecodeError)
    assert isinstance(decode, DecodeError)
    assert (decode.path, decode.request) == ("[3].name", "GET /1/cards/c")
    consent = an_error(ConsentRequired)
    assert isinstance(consent, ConsentRequired)
    assert (consent.account, consent.login_url) == ("ann", "/login")
    assert (ConsentRequired().account, ConsentRequired().login_url) == ("", None)


ORDER = [Effect.NOT_SENT, Effect.REJECTED, Effect.UNKNOWN, Effect.DONE]


@pytest.mark.parametrize("effects", [c for n in range(4) for c in itertools.product(ORDER, repeat=n)])
def test_the_worst_effect_is_the_gravest(effects: tuple[Effect, ...]) -> None:
    """The worst of some effects is the last in the order of the contract, and of none it is NOT_SENT."""
    expected = ORDER[max((ORDER.index(effect) for effect in effects), default=0)]
    assert Effect.worst(iter(effects)) is expected


@pytest.mark.parametrize(
    ("done", "total", "rate", "remaining"),
    [(3, None, 2.0, None), (3, 9, 0.0, None), (3, 9, 2.0, 3.0), (9, 9, 2.0, 0.0), (12, 9, 2.0, 0.0)],
)
def test_progress_estimates_what_is_left(done: int, total: int | None, rate: float, remaining: float | None) -> None:
    """The seconds left follow from the total and the rate, are never negative, and None where either is not known."""
    progress = BulkProgress(done=done, created=done, failed=0, unknown=0, rate=rate, seconds=1.0, total=total)
    assert progress.remaining_seconds == remaining


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (BadRequestError, 400),
        (AuthenticationError, 502),
        (ConsentRequired, 401),
        (PermissionDeniedError, 403),
        (NotFoundError, 404),
        (InvalidIdentifierError, 404),
        (ApiError, 502),
        (ServerError, 502),
        (TransportError, 502),
        (DecodeError, 502),
        (RateLimitError, 503),
        (CredentialError, 503),
        (SessionClosedError, 503),
        (DeadlineError, 504),
        (JournalError, 500),
        (BoardClientError, 500),
    ],
)
def test_every_error_suggests_a_status(kind: type[BoardClientError], status: int) -> None:
    """A web application can answer with the suggested status, whatever the error, and a copied one too."""
    assert an_error(kind).suggested_status == copy.copy(an_error(kind)).suggested_status == status


@pytest.mark.parametrize("is_pickled_otherwise", [False, True])
def test_a_copy_has_notes_of_its_own(is_pickled_otherwise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to one call's error is not in those of others that share its failure.

    Libraries such as tblib, which dask uses, register their own way to pickle all exceptions.
    """
    if is_pickled_otherwise:
        monkeypatch.setitem(copyreg.dispatch_table, BoardClientError, lambda error: (lambda: error, ()))
    error = BoardClientError("a")
    error.add_note("of all")
    other = copy.copy(error)
    other.add_note("of one")
    assert (error.__notes__, other.__notes__) == (["of all"], ["of all", "of one"])


def test_a_printed_effect_is_the_word_of_documents_and_logs() -> None:
    """`print(error.effect)` shows "not sent", "rejected", "unknown" or "done"."""
    assert [str(effect) for effect in Effect] == ["not sent", "rejected", "unknown", "done"]
