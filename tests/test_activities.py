"""What instruments make of activities that are out of the ordinary."""

from __future__ import annotations

import logging

import pytest

from boardclient import logs
from boardclient._base._activities import LOGS, Activity, Instrument, Observers
from boardclient.events import BulkProgress, CredentialsRenewed, Event
from boardclient.integrations.opentelemetry import _OpenTelemetry

_PROGRESS = BulkProgress(done=0, created=0, failed=0, unknown=0, rate=0.0, seconds=0.0)


class _Ends(Instrument):
    """Counts the activities that end."""

    ended = 0

    def end(self, activity: Activity) -> None:
        self.ended += 1


def test_an_activity_ends_once() -> None:
    """A run that is closed after its last result has one end, the first."""
    ends = _Ends()
    activity = Activity(kind="run", operation="a run", instruments=[ends])
    activity.begin()
    activity.end()
    activity.end(RuntimeError("late"))
    assert (ends.ended, activity.error) == (1, None)


def test_events_reach_whom_they_are_for(caplog: pytest.LogCaptureFixture) -> None:
    """Phases are for logs and spans, events for observers; progress is logged by no one."""
    caplog.set_level(logging.INFO, "boardclient")
    seen: list[Event] = []
    activity = Activity(kind="run", operation="a run")
    renewed = CredentialsRenewed(operation="x")
    telemetry = _OpenTelemetry(None, None)
    telemetry.note(activity, renewed)
    telemetry.end(activity)
    telemetry.begin(activity)
    for event in (renewed, _PROGRESS, "a phase"):
        LOGS.note(activity, event)
        Observers([seen.append]).note(activity, event)
        telemetry.note(activity, event)
    telemetry.end(activity)
    assert seen == [renewed, _PROGRESS]
    assert [record.getMessage() for record in caplog.records] == ["a run credentials renewed", "a run a phase"]


def test_an_activity_that_is_over_keeps_nothing_of_its_instruments() -> None:
    """A task or connection that outlives a call may keep its activity: a context variable refers to it."""

    class Keeping(Instrument):
        def begin(self, activity: Activity) -> None:
            activity.state[self] = "a span"

    activity = Activity(kind="call", operation="x", instruments=(Keeping(),)).begin()
    assert list(activity.state.values()) == ["a span"]
    activity.end(ValueError("x"))
    assert (activity.state, activity.error) == ({}, None)


@pytest.mark.parametrize(("wanted", "level"), [("debug", logging.DEBUG), ("loud", logging.INFO)])
def test_the_environment_configures_logs(monkeypatch: pytest.MonkeyPatch, wanted: str, level: int) -> None:
    """The level is that of the environment, and an unknown word counts as info."""
    logger = logging.getLogger("boardclient")
    before = list(logger.handlers), logger.level
    monkeypatch.setenv("BOARDCLIENT_LOG", wanted)
    try:
        logs._configure()
        assert logger.level == level
    finally:
        logger.handlers[:] = before[0]
        logger.setLevel(before[1])


def test_names_forge_no_line_of_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """A line break in what comes from outside, such as an account's name, is escaped in every record."""
    forged = "ann\r\n2026-01-01 WARNING boardclient: forged\x1b[2K\u2028"
    for name in ("boardclient", "boardclient.calls", "boardclient.transport", "boardclient.web"):
        logging.getLogger(name).warning("account %s", forged, extra={"account": forged, "request_id": forged})
    assert len(caplog.records) == 4
    for record in caplog.records:
        assert record.getMessage() == "account ann\\r\\n2026-01-01 WARNING boardclient: forged\\x1b[2K\\u2028"
        assert record.account == record.request_id == record.getMessage().removeprefix("account ")  # type: ignore[attr-defined]  # -- extra
