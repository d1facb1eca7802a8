"""The table of a row's life: every path ends, and no path sends a row again whose card may exist."""

import pytest

from boardclient.bulk._engine._row_responses import MOST_REFUSALS, event_of
from boardclient.bulk._life import LIVES, MOST_SENDS, Life, Unknown
from boardclient.errors import BadRequestError, BoardClientError, ConsentRequired, Effect, RateLimitError, TransportError

RESULTS = {"created", "already", "found", "failed", "unknown"}


def paths(life: Life) -> dict[str, set[str]]:
    """Return the states that can follow each state."""
    following: dict[str, set[str]] = {}
    for (state, _), (after, _) in life.items():
        following.setdefault(state, set()).add(after)
    return following


@pytest.mark.parametrize("unknown", LIVES)
def test_every_row_ends(unknown: Unknown) -> None:
    """From each state that a row can come to, it can come to its end, and nothing follows it."""
    following = paths(LIVES[unknown])
    reached, new = set(), {"new"}
    while new:
        reached |= new
        new = set().union(*(following.get(state, set()) for state in new)) - reached
    assert reached == {*following, "ended"}
    for start in following:
        seen, new = set(), {start}
        while new:
            seen |= new
            new = set().union(*(following.get(state, set()) for state in new)) - seen
        assert "ended" in seen, start


@pytest.mark.parametrize("unknown", LIVES)
def test_each_row_ends_with_one_result_or_is_left_to_the_next_run(unknown: Unknown) -> None:
    """An end has a result or withdraws the row, and nothing else does."""
    for (state, event), (after, reaction) in LIVES[unknown].items():
        assert (after == "ended") == (reaction in RESULTS | {"withdraw"}), (state, event)


def test_a_stop_ends_every_state_without_a_request_in_flight() -> None:
    """What may exist is unknown then, what was refused has failed, and the rest is left to the next run."""
    for life in LIVES.values():
        for state in {state for state, _ in life} - {"sent", "resent"}:
            after, reaction = life[state, "stopped"]
            assert after == "ended"
            expected = {"new": "withdraw", "ready": "withdraw"}
            if life is not LIVES["reconcile"]:
                expected["doubted"] = "failed"
            assert reaction == expected.get(state, "unknown")


def test_only_the_caller_s_choice_sends_again_what_may_exist() -> None:
    """A row of unknown effect is sent again with "resend", and with "reconcile" only if it is absent."""
    assert LIVES["report"]["sent", "lost"] == ("ended", "unknown")
    for (state, event), (after, reaction) in LIVES["reconcile"].items():
        if state in {"doubted", "open"} and after == "ready":
            assert (state, event) in {("open", "absent"), ("doubted", "admitted")}
        if reaction == "return":  # a row that is refused, and is admitted again
            assert (state, event) == ("doubted", "absent")
    assert LIVES["resend"]["sent", "lost"][0] == LIVES["resend"]["resent", "lost"][0] == "again"
    assert all(after != "again" for unknown in ("report", "reconcile") for after, _ in LIVES[unknown].values())


@pytest.mark.parametrize(
    ("error", "sends", "refusals", "event"),
    [
        (TransportError("lost", "receive"), 1, 1, "lost"),
        (TransportError("lost", "receive"), MOST_SENDS, 1, "lost too often"),
        (BoardClientError("unreadable", Effect.DONE), 1, 1, "lost"),
        (TransportError("refused", "connect", effect=Effect.NOT_SENT), 9, 9, "put off"),
        (RateLimitError("429", 429), 9, 9, "put off"),
        (ConsentRequired("sign in", effect=Effect.REJECTED), 1, 1, "put off"),
        (BadRequestError("400", 400), 1, 1, "refused"),
        (BadRequestError("400", 400), 1, MOST_REFUSALS, "refused too often"),
    ],
)
def test_the_effect_of_a_failure_decides(error: BoardClientError, sends: int, refusals: int, event: str) -> None:
    """What may have been done is never put off or refused."""
    assert event_of(error, sends, refusals) == event
