"""What a session and its views share, and how it ends. The awaiting of `aclose` and of the provider's exchange is here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlencode

from boardclient._flights import Flights
from boardclient._operations import Answer, Response
from boardclient._transport import Pool, Settings
from boardclient.errors import TransportError
from boardclient.events import Event, Observer

if TYPE_CHECKING:
    import aiohttp

_logger: Final = logging.getLogger("boardclient")


class Shared:
    """What a session and its views share: the pool, the calls under way, the observers. Owned by the session."""

    def __init__(
        self, base_url: str, settings: Settings, lent: aiohttp.ClientSession | None, observers: Iterable[Observer]
    ) -> None:
        url = settings.check_url(base_url, "base_url").rstrip("/")
        if url.endswith("/1"):
            raise ValueError('base_url must not end in "/1": the paths of the service start with it')
        self.base_url = url
        self.settings = settings
        self.pool = Pool(settings, lent)
        self.flights = Flights()
        self.observers = tuple(observers)

    def notify(self, event: Event) -> None:
        """Hand the event to every observer; what one raises is logged."""
        for observer in self.observers:
            try:
                observer(event)
            except Exception:
                _logger.exception("an observer failed")

    async def post_form(self, url: str, fields: Mapping[str, str]) -> Response:
        """Send a form once on the session's own pool: the `Exchange` of credential providers."""
        try:
            target = self.settings.check_url(url, "the URL of the form")
            flight = self.flights.begin("POST", None)
        except Exception:
            del fields  # no credential stays in the frame that an error carries
            raise
        body = urlencode(fields, quote_via=quote_plus).encode()
        flight.started = time.time()
        try:
            outcome = await self.pool.send("POST", target, body, flight, "application/x-www-form-urlencoded")
        except asyncio.CancelledError as cancellation:
            interrupted = flight.settle()
            if interrupted is None:
                raise cancellation.with_traceback(None)  # noqa: B904 -- the same one, without the frames that hold the form
            error = interrupted
        else:
            if isinstance(outcome, Answer):
                return Response(outcome.status, outcome.headers, outcome.body)
            error = TransportError(f"the form was not answered: {outcome.why}", outcome.phase, "POST", outcome.effect)
        finally:
            self.flights.end(flight)
            del fields, body
        raise error

    async def aclose(self) -> None:
        """End what is under way and close the pool; once is enough."""
        drained = self.flights.close()
        if drained is not None:
            await drained.wait()
        if self.flights.is_at_home:
            await self.pool.aclose()
        else:
            self.pool.abandon()
