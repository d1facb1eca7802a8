"""The command `serve`: the embedded service or a recording, with a request log."""

import asyncio
import random
import shlex
from collections.abc import Container
from datetime import datetime

import attrs

from boardclient.cli import _settings
from boardclient.cli._errors import FileError, UsageError
from boardclient.cli._running import reported
from boardclient.cli._signals import run_until_signal
from boardclient.cli._text import note
from boardclient.testing import BoardService, Call, ReplayService, faults, replay

_FIRST_ERROR_STATUS = 400

_chance = random.random


@attrs.frozen
class _Share(Container[int]):
    """Contains each number with the probability `share`."""

    share: float

    def __contains__(self, number: object) -> bool:
        return _chance() < self.share


def serve(
    options: _settings.Options,
    *,
    port: int,
    members: tuple[str, ...],
    redirect_uri: str,
    token_lifetime: float | None,
    latency: float,
    fail: float,
    rate_limit: float | None,
    recording: str | None,
) -> None:
    """Run the embedded service, or replay a recording, until a signal comes."""

    async def work() -> None:
        service: BoardService | ReplayService
        if recording is not None:
            if token_lifetime or latency or fail or rate_limit:
                raise UsageError("--replay can't be combined with --token-lifetime, --latency, --fail or --rate-limit")
            service, words = _replay_service(recording, port), f"Replaying {recording}"
        else:
            service = BoardService(
                port=port,
                members=members,
                redirect_uri=redirect_uri,
                token_lifetime=token_lifetime,
                latency=latency,
                on_call=_log,
            )
            _add_faults(service, fail, rate_limit)
            words = f"Serving the members {', '.join(member.name for member in service.members)}"
        try:
            await _serve(service, words)
        except OSError as error:
            raise UsageError(f"can't listen on port {port}: {error.strerror}") from None

    with reported():
        run_until_signal(work)


def _add_faults(service: BoardService, fail: float, rate_limit: float | None) -> None:
    # Half of the failures happen before the request is carried out, half after it: a client can't tell which.
    for fault in (faults.status(503, commit=True), faults.status(503)):
        share = fail / 2 if fault.commit else fail / (2 - fail)
        service.faults.planned.append(faults.Planned(fault=fault, operation=None, calls=_Share(share), times=None))
    if rate_limit is not None:
        service.faults.rate_limit = faults.rate_limit(rate_limit, burst=max(1, int(rate_limit)), retry_after=1)


def _replay_service(recording: str, port: int) -> ReplayService:
    """Return a service that replays a file.

    Raises:
        FileError: the file can't be read, or is no recording.
    """
    try:
        service = replay(recording, strict=False, repeats=True, port=port)
    except OSError as error:
        raise FileError(f"can't read {recording}: {error.strerror}") from None
    except ValueError as error:
        raise FileError(str(error)) from None
    service.on_request = _write
    return service


async def _serve(service: BoardService | ReplayService, words: str) -> None:
    """Run a service until cancelled, and print the environment for its clients.

    Its credentials are made for this run and are of no use elsewhere, so they may be printed.

    Raises:
        OSError: the port is in use.
    """
    async with service:
        for name, value in service.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print(end="", flush=True)
        note(f"{words} until SIGINT or SIGTERM.")
        note("Set the environment above in another terminal.")
        if isinstance(service, BoardService):
            note("The authorize URL is the page on which users give consent.")
        await asyncio.Event().wait()


def _log(call: Call) -> None:
    """Print a line for a request, without query and body, which hold credentials."""
    fault = "" if call.fault is None else f"  ({type(call.fault).__name__})"
    _write(call.method, call.path, call.status, f"{call.operation}{fault}")


def _write(method: str, path: str, status: int | None, more: str) -> None:
    is_bad = status is None or status >= _FIRST_ERROR_STATUS
    shown = "no response" if status is None else str(status)
    line = f"{datetime.now():%H:%M:%S}  {method:6} {path}  {shown}  {more}"
    note(line.rstrip(), fg="red" if is_bad else None)
