"""What a status means: the table that every other module asks."""

import pytest

from boardclient import _statuses
from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    Effect,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    TransportError,
)


@pytest.mark.parametrize(
    ("status", "kind", "effect", "traits"),
    [
        (100, ApiError, Effect.UNKNOWN, set()),
        (200, ApiError, Effect.DONE, {"is_final"}),
        (302, ApiError, Effect.REJECTED, {"is_final"}),
        (304, ApiError, Effect.REJECTED, {"is_final"}),
        (400, BadRequestError, Effect.REJECTED, {"is_final"}),
        (401, AuthenticationError, Effect.REJECTED, {"ends_run"}),
        (403, PermissionDeniedError, Effect.REJECTED, set()),
        (404, NotFoundError, Effect.REJECTED, {"is_final"}),
        (407, ApiError, Effect.REJECTED, {"ends_run"}),
        (408, ApiError, Effect.UNKNOWN, set()),
        (409, ApiError, Effect.REJECTED, {"is_final"}),
        (425, ApiError, Effect.REJECTED, set()),
        (429, RateLimitError, Effect.REJECTED, {"is_throttling"}),
        (500, ServerError, Effect.UNKNOWN, {"is_transient"}),
        (599, ServerError, Effect.UNKNOWN, {"is_transient"}),
        (700, ApiError, Effect.UNKNOWN, set()),
    ],
)
def test_a_status_means_one_thing(status: int, kind: type[ApiError], effect: Effect, traits: set[str]) -> None:
    """Each status has its error, its effect and what follows from it; one that is not known means what its class means."""
    meaning = _statuses.status_of(status)
    held = {name for name in ("is_throttling", "is_transient", "ends_run", "is_final") if getattr(meaning, name)}
    assert (meaning.error, meaning.effect, held) == (kind, effect, traits)


def test_the_status_of_an_error_decides_what_a_run_does() -> None:
    """What ends a run, is final or throttles is decided by the status of a response, and by the class of any other error."""
    assert _statuses.is_throttling(RateLimitError("slow", 429))
    assert not _statuses.is_throttling(TransportError("reset"))
    assert _statuses.is_final(BadRequestError("no name", 400))
    assert not _statuses.is_final(ServerError("down", 503))
    assert not _statuses.is_final(BoardClientError("any"))
    ending = [AuthenticationError("401", 401), CredentialError("expired"), JournalError("full"), SessionClosedError("closed")]
    assert all(map(_statuses.ends_run, ending))
    assert not any(map(_statuses.ends_run, [BadRequestError("400", 400), TransportError("reset")]))
