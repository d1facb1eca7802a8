"""Cards of a realistic size: 1.7 KB with 31 fields."""

import json
from typing import Any


def card(number: int) -> dict[str, Any]:
    def key(salt: int) -> str:
        return f"{(number * 7919 + salt) * 2654435761 % 2**96:024x}"

    short, due = key(10)[-8:], "2027-03-01T12:00:00.000Z"
    badges = {
        "attachmentsByType": {"service": {"board": 0, "card": 0}}, "location": False, "votes": number % 3,
        "viewingMemberVoted": False, "subscribed": False,
        "checkItems": 4, "checkItemsChecked": number % 5, "checkItemsEarliestDue": None, "comments": 2,
        "attachments": 1, "description": True, "due": due, "dueComplete": False, "start": None,
    }  # fmt: skip
    labels = [
        {"id": key(salt), "idBoard": key(2), "name": name, "color": "red"} for salt, name in ((8, "urgent"), (9, "customer"))
    ]
    cover = {"idAttachment": None, "color": None, "idUploadedBackground": None, "size": "normal", "brightness": "dark"}
    desc = f"What is to be done for row {number}, at the length of a real board's card, and not just one word. " * 3
    return {
        "id": key(1), "badges": badges, "checkItemStates": [], "closed": False, "dueComplete": False,
        "dateLastActivity": "2026-11-20T08:15:30.123Z", "desc": desc, "descData": {"emoji": {}}, "due": due, "dueReminder": 1440,
        "email": None, "idBoard": key(2), "idChecklists": [key(3), key(4)], "idList": key(5), "idMembers": [key(6), key(7)],
        "idMembersVoted": [], "idShort": number, "idAttachmentCover": None, "labels": labels, "idLabels": [key(8), key(9)],
        "manualCoverAttachment": False, "name": f"Card {number} of the import", "pos": 65536.0 + number, "shortLink": short,
        "shortUrl": f"https://boards.example/c/{short}", "start": None, "subscribed": False,
        "url": f"https://boards.example/c/{short}/{number}-card", "cover": cover, "isTemplate": False, "cardRole": None,
    }  # fmt: skip


def board(cards: int) -> bytes:
    return json.dumps([card(number) for number in range(cards)], separators=(",", ":")).encode()
