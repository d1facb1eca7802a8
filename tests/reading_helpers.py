"""A body for the tests of reading."""

from __future__ import annotations

import json


def board(cards: int) -> bytes:
    """Return a listing of that many cards, of about a kilobyte each, with texts that look like seams."""
    one = {"name": "n", "desc": "x" * 600, "labels": [{"id": "l", "name": "m"}, {"id": "k"}], "badges": {"a": {"b": 1}}}
    return json.dumps([{"id": f"c{number}", **one, "text": "},{" * 100} for number in range(cards)]).encode()
