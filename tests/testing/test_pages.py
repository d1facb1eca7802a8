"""The pages of boards and cards, at the addresses that answers show."""

from __future__ import annotations

import pytest

from boardclient.testing import BoardRules, _pages


async def test_a_board_s_address_shows_its_lists_and_cards(client, service) -> None:
    seeded = service.seed({"To Do": ["Book the hall"], "Done": []}, "Party")
    async with client.http.get(seeded.url) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (200, "text/html")
    assert "Party" in text
    assert "Book the hall" in text
    assert service.rules.card_url(seeded.cards["Book the hall"]) in text
    assert service.calls == []


async def test_the_url_of_a_board_or_card_is_a_page(client, service) -> None:
    board = await (await client.ask("POST", "/1/boards", {"name": "B"})).json()
    home = await client.made("/1/lists", name="L", idBoard=board["id"])
    card = await (await client.ask("POST", "/1/cards", {"name": "C", "idList": home, "desc": "d", "due": "2027-01-02"})).json()
    for address, words in ((board["url"], "1 card<"), (card["url"], "2027-01-02")):
        async with client.http.get(address) as response:
            assert response.status == 200
            assert words in await response.text()


async def test_the_content_of_a_page_can_be_requested_alone(client, service) -> None:
    seeded = service.seed({"To Do": ["A"]})
    async with client.http.get(seeded.url) as response:
        page = await response.text()
    async with client.http.get(seeded.url + "?content") as response:
        content = await response.text()
    assert content in page
    assert "<html" not in content
    await client.made("/1/cards", name="New", idList=seeded.lists["To Do"])
    async with client.http.get(seeded.url + "?content") as response:
        assert "New" in await response.text()


async def test_unknown_boards_and_cards_have_no_page(client, service) -> None:
    for path in ("/b/none", "/c/none", "/b/none?content"):
        async with client.http.get(service.base_url + path) as response:
            assert (response.status, response.content_type) == (404, "text/html")


def test_markup_in_names_is_escaped_and_empty_names_have_a_placeholder() -> None:
    rules = BoardRules()
    evil = '<script>"&</script>'
    seeded = rules.seed({evil: [evil], "": [""]}, evil)
    rules.cards[seeded.cards[evil]].labels.append(evil)
    rules.cards[seeded.cards[evil]].due = "2027-01-02"
    for identifier, kind in ((seeded.id, "b"), *((card, "c") for card in seeded.cards.values())):
        text = _pages.show(rules, f"/{kind}/{identifier}", whole=False).body
        assert "<script>" not in text
    assert "Untitled" in _pages.show(rules, f"/b/{seeded.id}", whole=False).body


def test_long_and_archived_lists_and_a_board_without_lists() -> None:
    """A long list is cut and counted, an archived one says so, and so does a board without lists."""
    rules = BoardRules()
    seeded = rules.seed({"Old": [f"card {number}" for number in range(230)]})
    rules.lists[seeded.lists["Old"]].closed = True
    text = _pages.show(rules, f"/b/{seeded.id}", whole=False).body
    assert "and 30 more" in text
    assert "Old (archived)" in text
    assert "no lists" in _pages.show(rules, f"/b/{rules.seed({}).id}", whole=False).body


@pytest.mark.parametrize(
    ("due", "shown"),
    [
        ("2027-01-31T17:00:00Z", "2027-01-31 17:00 UTC"),
        ("2027-01-31T17:00:30Z", "2027-01-31 17:00:30Z"),
        ("2027-01-31T17:00:00+01:00", "2027-01-31T17:00:00+01:00"),
        ("2027-01-31", "2027-01-31"),
    ],
)
def test_a_due_date_is_shown_as_it_was_sent_and_readable(due: str, shown: str) -> None:
    rules = BoardRules()
    seeded = rules.seed({"L": ["C"]})
    rules.cards[seeded.cards["C"]].due = due
    assert f"due {shown}<" in _pages.show(rules, f"/b/{seeded.id}", whole=False).body
