"""Django's own test clients. All else is tested as with each framework."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from web_apps import MakeSignIn, django_app

from boardclient import Card
from boardclient.testing import BoardService


async def test_djangos_own_test_client(consenting: BoardService, make: MakeSignIn) -> None:
    """`AsyncClient` runs no lifespan, so a test opens the session itself. Pages that are not ours are Django's."""
    boards = django_app(make).boards
    from django.test import AsyncClient

    async with boards.running():
        client = AsyncClient()
        assert (await client.get("/nowhere")).headers["Content-Type"].startswith("text/html")
        assert (await client.post("/logout", headers={"origin": "https://evil.example"})).status_code == 403
        state = parse_qs(urlsplit((await client.get("/login"))["Location"]).query)["state"][0]
        done = await client.get("/callback", {"code": consenting.new_code(), "state": state})
        assert (done.status_code, done["Location"]) == (303, "/")
        assert (await client.get("/me")).json()["id"] == consenting.members[0].id


async def test_a_request_without_asgi(make: MakeSignIn) -> None:
    """A request of WSGI is refused with a clear error, as are errors that are not of this package."""
    boards = django_app(make).boards
    from django.test import AsyncRequestFactory, RequestFactory

    with pytest.raises(TypeError, match="serve Django by ASGI"):
        await boards.user_session(RequestFactory().get("/me"))
    with pytest.raises(ZeroDivisionError):
        await boards.handle(AsyncRequestFactory().get("/me"), ZeroDivisionError())


def test_djangos_json_takes_models_by_an_encoder(make: MakeSignIn) -> None:
    """Anywhere in the value. What is no model is Django's."""
    django_app(make)
    from django.http import JsonResponse

    from boardclient.integrations.django import ModelJSONEncoder

    card = Card("c", "Book the hall", due=datetime(2027, 1, 2, 3, tzinfo=UTC), extra={"labels": [{"id": "l"}]})
    response = JsonResponse({"card": card, "more": [(card, 1)], "day": date(2027, 1, 2)}, encoder=ModelJSONEncoder)
    assert json.loads(response.content) == {"card": card.to_dict(), "more": [[card.to_dict(), 1]], "day": "2027-01-02"}
    with pytest.raises(TypeError):
        JsonResponse({"a": object()}, encoder=ModelJSONEncoder)
