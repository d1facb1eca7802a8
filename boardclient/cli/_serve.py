"""The command `serve`: the embedded service, with a line for each request."""

import asyncio
import random
import shlex
from collections.abc import Container
from datetime import datetime

import attrs

from boardclient.cli import _settings
from boardclient.cli._errors import UsageError
from boardclient.cli._running import reported
from boardclient.cli._signals import run_until_signal
from boardclient.cli._text import note
from boardclient.testing import BoardService, Call, faults

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
) -> None:
    """Run the embedded service until a signal ends it."""
    service = BoardService(
        port=port,
        members=members,
        redirect_uri=redirect_uri,
        token_lifetime=token_lifetime,
        latency=latency,
        on_call=_log,
    )
    # Half of the failures happen before the request is carried out, half after it: a client can't tell which.
    for fault in (faults.status(503, commit=True), faults.status(503)):
        share = fail / 2 if fault.commit else fail / (2 - fail)
        service.faults.planned.append(faults.Planned(fault=fault, operation=None, calls=_Share(share), times=None))
    if rate_limit is not None:
        service.faults.rate_limit = faults.rate_limit(rate_limit, burst=max(1, int(rate_limit)), retry_after=1)

    async def work() -> None:
        try:
            await _serve(service)
        except OSError as error:
            raise UsageError(f"can't listen on port {port}: {error.strerror}") from None

    with reported():
        run_until_signal(work)


async def _serve(service: BoardService) -> None:
    """Run a service until cancelled, and print the environment for its clients.

    Its credentials are made for this run and are of no use elsewhere, so they may be printed.

    Raises:
        OSError: the port is in use.
    """
    async with service:
        values = {
            _settings.BASE_URL: service.base_url,
            _settings.AUTH_URL: service.auth_url,
            _settings.KEY: service.key,
            _settings.TOKEN: service.token,
            "BOARDCLIENT_CLIENT_ID": service.client_id,
            "BOARDCLIENT_CLIENT_SECRET": service.client_secret,
            "BOARDCLIENT_REDIRECT_URI": service.redirect_uri,
            "BOARDCLIENT_AUTHORIZE_URL": service.authorize_url,
        }
        for name, value in values.items():
            print(f"export {name}={shlex.quote(value)}")
        print(end="", flush=True)
        note(f"Serving {', '.join(member.name for member in service.members)} until SIGINT or SIGTERM.")
        note("Set the environment above in another terminal. The authorize URL is the page on which users give consent.")
        await asyncio.Event().wait()


def _log(call: Call) -> None:
    """Print a line for a request, without query and body, which hold credentials."""
    status = "no response" if call.status is None else str(call.status)
    fault = "" if call.fault is None else f"  ({type(call.fault).__name__})"
    is_bad = call.status is None or call.status >= _FIRST_ERROR_STATUS
    note(
        f"{datetime.now():%H:%M:%S}  {call.method:6} {call.path}  {status}  {call.operation}{fault}", fg="red" if is_bad else None
    )
