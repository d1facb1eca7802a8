"""ddtrace on sessions of our own, in a process of its own: it changes many libraries, for good."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import asyncio

import ddtrace
from ddtrace.trace import TraceFilter, tracer

from boardclient import ApiError
from boardclient.testing import BoardService

spans = []


class Kept(TraceFilter):
    def process_trace(self, trace):
        spans.extend(trace)  # and nothing is left to be sent to an agent


async def main():
    async with BoardService() as service, service.session(retry=None) as early:
        await early.members.me()
        service.calls.clear()
        ddtrace.patch(aiohttp=True)
        tracer.configure(trace_processors=[Kept()])
        async with service.session(retry=None) as late:
            for session in (early, late):
                await session.members.me()
                try:
                    await session.cards.create("a card", list_id="none")
                except ApiError as error:
                    assert error.status == 404, error
        found = [span for span in spans if span.name == "aiohttp.request"]
        text = "".join(f"{span.resource} {span.get_tags()!r} {span!r}" for span in spans)
        assert service.key not in text and service.token not in text, text
        assert all("traceparent" in {name.lower() for name in call.headers} for call in service.calls)
    print([span.get_tag("http.url").replace(service.base_url, "") for span in found])


asyncio.run(main())
"""
_QUIET = ("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "DD_REMOTE_CONFIGURATION_ENABLED", "DD_TRACE_STARTUP_LOGS")


def test_ddtrace_sees_calls_without_credentials() -> None:
    """Sessions from before and after ddtrace are traced, the trace reaches the service, and no span holds a credential."""
    environment = {**os.environ, **dict.fromkeys(_QUIET, "false"), "DD_TRACE_AGENT_URL": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(["/1/members/me", "/1/cards"] * 2)
