"""Finds the recorded interaction for a request that is made again. No I/O.

Requests are equal if they have the same method, path, query and body. The order of names and the credentials don't count. If a
secret was replaced by `***`, any text matches it.
"""

from __future__ import annotations

import collections
import difflib
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Final, cast

from boardclient.testing._recording import Interaction, RecordedRequest, Unanswered
from boardclient.testing._records import Json
from boardclient.testing._redacting import SIGNING, STARS

_COMPARED_LENGTH: Final = 500
_MOST_COMPARED: Final = 200
_SHOWN_LENGTH: Final = 300


class Playlist:
    """The interactions of a recording. It is thread-safe.

    Each is used once. With `repeats`, the last of equal ones may be used any number of times.
    """

    def __init__(self, interactions: Iterable[Interaction], ignored: Iterable[str], *, repeats: bool = False) -> None:
        self.interactions: Final = tuple(interactions)
        self._repeats = repeats
        self._used: set[int] = set()
        self._ignored = frozenset((*SIGNING, *ignored))
        self._texts = [self._text(one.request) for one in self.interactions]
        self._unused: dict[str, collections.deque[int]] = {}
        """The numbers of those that are not used yet, by their text."""
        for number, text in enumerate(self._texts):
            self._unused.setdefault(text, collections.deque()).append(number)
        self._starred = [text for text in self._unused if STARS in text]
        self._lock = threading.Lock()

    def take(self, request: RecordedRequest) -> int | None:
        """Return the number of the interaction for a request, and use it up.

        It is None if there is none, or if all of them are used.
        """
        text = self._text(request)
        with self._lock:
            for fitting in (text, *(starred for starred in self._starred if _fits(text, starred))):
                if waiting := self._unused.get(fitting):
                    number = waiting[0] if self._repeats and len(waiting) == 1 else waiting.popleft()
                    self._used.add(number)
                    return number
        return None

    def unused(self) -> list[str]:
        """Return the requests that were not made again, except for cancelled ones."""
        with self._lock:
            numbers = sorted(number for waiting in self._unused.values() for number in waiting if number not in self._used)
        left = [number for number in numbers if not isinstance(self.interactions[number].outcome, Unanswered)]
        return [_shown(self._texts[number]) for number in left]

    def explain(self, request: RecordedRequest) -> str:
        """Say why no interaction is left for a request, and name the most similar one."""
        text = self._text(request)
        times = sum(text == one or _fits(text, one) for one in self._texts)
        if times:
            return f"{_shown(text)} was recorded {times} times and is asked once more"
        nearest = self._nearest(request, text)
        if nearest is None:
            return f"{_shown(text)} is not in the recording, nor is anything like it"
        differences = "; ".join(_differences(self._fields(request), self._fields(self.interactions[nearest].request)))
        return f"{_shown(text)} is not in the recording; the nearest is {_shown(self._texts[nearest])}" + (
            f", where {differences}" if differences else ""
        )

    def _nearest(self, request: RecordedRequest, text: str) -> int | None:
        same = [number for number, one in enumerate(self.interactions) if one.request.operation == request.operation]
        matcher = difflib.SequenceMatcher(b=text[:_COMPARED_LENGTH], autojunk=False)
        ratios: dict[int, float] = {}
        for number in (same or range(len(self._texts)))[:_MOST_COMPARED]:
            matcher.set_seq1(self._texts[number][:_COMPARED_LENGTH])
            ratios[number] = matcher.ratio()
        return max(ratios, key=lambda number: ratios[number], default=None)

    def _fields(self, request: RecordedRequest) -> dict[str, Json]:
        """Return the fields of a request that are compared, by name."""
        fields = cast("dict[str, Json]", {**request.query})
        body = request.body
        if body is not None and isinstance(body.value, dict):
            # The values of a form are secret, so only its names are compared.
            fields |= dict.fromkeys(body.value) if body.kind == "form" else body.value
        elif body is not None:
            fields["the body"] = body.value
        return {name: value for name, value in fields.items() if name not in self._ignored}

    def _text(self, request: RecordedRequest) -> str:
        fields = self._fields(request)
        shown = json.dumps(fields, sort_keys=True, ensure_ascii=False) if fields else ""
        return f"{request.method} {request.path} {shown}".rstrip()


def _fits(text: str, starred: str) -> bool:
    """Return True if a text matches a recorded one whose stars stand for any text."""
    first, *others = starred.split(STARS)
    if not others or not text.startswith(first):
        return False
    *middle, last = others
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) >= at


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def _differences(asked: dict[str, Json], recorded: dict[str, Json]) -> Iterator[str]:
    for name in sorted({*asked, *recorded}):
        if name not in recorded:
            yield f"{name} is absent"
        elif name not in asked or json.dumps(asked[name], sort_keys=True) != json.dumps(recorded[name], sort_keys=True):
            yield f"{name} is {_shown(json.dumps(recorded[name], ensure_ascii=False))}"
