"""Models from JSON arrays, read part by part: a listing may have any length, and no step holds the event loop. No I/O.

An array is cut into parts of 16 KiB at boundaries between elements, which msgspec reads at once. A boundary is guessed from the
names with which the first element begins, and the guess was right exactly when the part can be read. Where it was not, the
standard library decodes one element after another, which finds the end of each, and what is no JSON at its first byte.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec

from boardclient._interface._fields import (
    LENIENT,
    MOST_VALUE_BYTES,
    READERS,
    UNREADABLE,
    Misfit,
    check_utf_8,
    decode_error,
    encode,
    not_json,
    split,
    value_at,
)
from boardclient.errors import DecodeError
from boardclient.models import BoardList, Card, JsonValue

T = TypeVar("T")

_PART_BYTES: Final = 16 * 2**10
"""The size of a part. As long as one of its models is kept and its `extra` was not read, the whole part is kept."""
_WINDOW_BYTES: Final = 64 * 2**10
"""How far the end of an element is looked for at first."""
_BLANK_BYTES: Final = 256 * 2**10
"""How much white space is skipped at once."""
_CUTS_TRIED: Final = 4
_SLICE_ELEMENTS: Final = 256
_SLICE_PARTS: Final = 8
_SPACE: Final = rb"[ \t\n\r]*"
_TO_NEXT_NAME: Final = _SPACE + rb":" + _SPACE + rb'"[^"\\]*"' + _SPACE + rb"," + _SPACE
_NAMES: Final = re.compile(rb"(\{" + _SPACE + rb'"[^"]*")(?:' + _TO_NEXT_NAME + rb'("[^"]*"))?')
_BLANK: Final = frozenset({b" ", b"\t", b"\n", b"\r"})
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_BEGINNINGS: Final = frozenset(b'{["-0123456789tfn')
"""The first bytes of JSON values."""
_BREAKING_OFF: Final = 16
"""More characters than a number, a literal or an escape of JSON has at its end, when an error of the decoder names its place."""


@cache  # finding the hook takes as long as reading a card
def _hook_of_array(model: type) -> Callable[[bytes], list[Any]]:
    return cast("Any", LENIENT.get_structure_hook(list[model]))  # type: ignore[no-any-return,valid-type]  # -- no annotation


def _read_at_once(model: type, array: bytes) -> list[Any] | None:
    """Return the models of an array, None if an element is not as documented."""
    try:
        check_utf_8(array)
        return _hook_of_array(model)(array)
    except UNREADABLE:
        return None


class _Part(NamedTuple):
    """The models of a part of an array, or its elements if one of them is not as documented."""

    models: list[Any] = []  # noqa: RUF012 -- it is not changed
    elements: Sequence[object] = ()


_Seams: TypeAlias = tuple[re.Pattern[bytes], re.Pattern[bytes]]


def _seams(body: bytes, start: int) -> _Seams:
    """Return two patterns of the text between elements, the more specific one first. Their group is where an element ends.

    Elements are assumed to begin with the names with which the first one begins. A second name excludes most inner objects.
    """
    if body[start : start + 1] != b"{":
        comma = re.compile(rb"(),")
        return comma, comma
    names = _NAMES.match(body, start, start + _WINDOW_BYTES)
    first, second = map(re.escape, names.groups(b"")) if names else (rb"\{", b"")
    between = rb"\}()" + _SPACE + rb"," + _SPACE
    general = re.compile(between + rb"(?=" + first + rb")")
    return re.compile(between + rb"(?=" + first + _TO_NEXT_NAME + second + rb")") if second else general, general


def _part_of(model: type, array: bytes) -> _Part | None:
    """Read an array in one step. None if msgspec can't."""
    if (models := _read_at_once(model, array)) is not None:
        return _Part(models)
    try:
        check_utf_8(array)
        return _Part([], split(array))
    except UNREADABLE:
        return None


class _Reader:
    """Reads the elements of one array, from `position` on."""

    def __init__(self, model: type, body: bytes) -> None:
        self._model = model
        self._body = body
        self._position = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
        self._count = 0
        self._seams: _Seams | None = None

    def parts(self) -> Iterator[_Part]:
        """Yield the parts of the array, and empty ones between the steps that find none.

        Raises:
            DecodeError: the body is not an array, or an element is too long.
        """
        yield from self._skip_blanks()
        if self._next() != b"[":
            raise DecodeError("the response is not an array") if self._may_begin() else not_json()
        self._position += 1
        yield from self._skip_blanks()
        # Before each element, and after the last one: only an empty array ends before its first.
        while self._count or self._next() != b"]":
            if not self._may_begin():
                raise not_json()
            yield from self._part()
            yield from self._skip_blanks()
            if self._next() != b",":
                break
            self._position += 1
            yield from self._skip_blanks()
        if self._next() != b"]":
            raise not_json()
        self._position += 1
        yield from self._skip_blanks()
        if self._position < len(self._body):
            raise not_json()

    def _next(self) -> bytes:
        return self._body[self._position : self._position + 1]

    def _may_begin(self) -> bool:
        """Return True if a value can begin with the next byte."""
        return self._position < len(self._body) and self._body[self._position] in _BEGINNINGS

    def _skip_blanks(self) -> Iterator[_Part]:
        size = 16
        while self._next() in _BLANK:
            blanks = self._body[self._position : self._position + size]
            rest = blanks.lstrip()  # with two characters more than JSON has, at a fifth of the time
            skipped = blanks[: len(blanks) - len(rest)]
            if b"\x0b" in skipped or b"\x0c" in skipped:
                raise not_json()
            self._position += len(skipped)
            if not rest:
                size = min(64 * size, _BLANK_BYTES)
                yield _Part()

    def _part(self) -> Iterator[_Part]:
        """Read the next elements, by a guess of where they end if it is right, otherwise one by one."""
        if self._seams is None:
            self._seams = _seams(self._body, self._position)
        window = _WINDOW_BYTES
        while (found := self._guessed(self._seams, window) or self._decoded(window)) is None:
            if window >= MOST_VALUE_BYTES:
                words = f"[{self._count}] of the response is longer than {MOST_VALUE_BYTES // 2**20} MiB"
                raise DecodeError(f"{words}, which is more than one record may have", f"[{self._count}]")
            window *= 2
            yield _Part()
        part, self._position = found
        self._count += len(part.models) or len(part.elements)
        yield part

    def _guessed(self, seams: _Seams, window: int) -> tuple[_Part, int] | None:
        """Return the next part and where it ends. None if no boundary is found.

        A candidate boundary is real exactly when the text before it, plus a closing bracket, parses as a JSON array: within a
        string, an object or an inner array it does not.
        """
        specific, general = seams
        body, start, position = self._body, self._position, self._position + _PART_BYTES
        if len(body) - start <= 2 * _PART_BYTES:  # there may be no boundary
            part = _part_of(self._model, b"".join((b"[", memoryview(body)[start:])))
            return part and (part, body.rindex(b"]"))
        for _ in range(_CUTS_TRIED):
            found = specific.search(body, position, position + _PART_BYTES)
            if (found := found or general.search(body, position, start + window)) is None:
                return None
            end = found.start(1)
            part = _part_of(self._model, b"".join((b"[", memoryview(body)[start:end], b"]")))
            if part is not None:
                return part, end
            # it is probably in an inner array
            position = max(found.end(), body.find(b"]", found.end(), start + window))
        return None

    def _decoded(self, window: int) -> tuple[_Part, int] | None:
        """Return the next elements, decoded one by one, and where they end. None if the first does not end in the window."""
        start, stop = self._position, self._position + window
        is_last = stop >= len(self._body)
        try:
            text, _ = codecs.utf_8_decode(self._body[start:stop], "strict", is_last)
        except UnicodeDecodeError:
            text = ""
        values, end = _values(text, is_last)
        if not values:
            return None
        return self._part_of_values(values), start + (end if text.isascii() else len(text[:end].encode()))

    def _part_of_values(self, values: list[JsonValue]) -> _Part:
        """Return decoded elements as a part, by way of a text that msgspec reads: models then cost a third."""
        try:
            return _part_of(self._model, encode(values)) or _Part([], values)
        except ValueError:  # a number that msgspec does not write
            return _Part([], values)


def _values(text: str, is_last: bool) -> tuple[list[JsonValue], int]:
    """Decode some of the values at the beginning of a text, which commas separate. Return them, and where the last one ends.

    Without `is_last` the text may break off anywhere.

    Raises:
        DecodeError: it is not JSON.
    """
    values: list[JsonValue] = []
    end = start = 0
    is_json = bool(text)
    while is_json and end < _PART_BYTES:
        try:
            value, after = value_at(text, start)
        except json.JSONDecodeError as error:
            is_json = not is_last and (error.pos > len(text) - _BREAKING_OFF or error.msg.startswith("Unterminated string"))
            break
        except UNREADABLE:
            is_json = False
            break
        if after == len(text) and not is_last:  # a number may have further digits
            break
        values.append(value)
        end = after
        start = cast("re.Match[str]", _BLANKS.match(text, after)).end()
        if not text.startswith(",", start):
            break
        start = cast("re.Match[str]", _BLANKS.match(text, start + 1)).end()
    if not is_json:
        raise not_json()
    return values, end


def _slices(model: type, body: bytes) -> Iterator[list[Any]]:
    """Yield the models of an array in slices, of which each takes some milliseconds at most.

    After an element that is not as documented, slices are empty. Its error is raised at the end, since a body that is not JSON is
    reported as that.
    """
    read_one = LENIENT.get_structure_hook(model)
    misfit: DecodeError | None = None
    before = parts = 0
    values: list[Any] = []
    for part in _Reader(model, body).parts():
        parts += 1 if part.models else _SLICE_PARTS  # the slow way
        values += part.models if misfit is None else ()
        try:
            for element in part.elements if misfit is None else ():
                values.append(read_one(bytes(element) if isinstance(element, msgspec.Raw) else element, model))
                if len(values) >= _SLICE_ELEMENTS:
                    yield values
                    before, values = before + len(values), []
        except Misfit as found:
            misfit = decode_error(model, f"[{before + len(values)}]", found)
        if parts >= _SLICE_PARTS or len(values) >= _SLICE_ELEMENTS:
            yield values
            before, values, parts = before + len(values), [], 0
    yield values
    if misfit is not None:
        raise misfit


def _many(model: type, body: bytes) -> list[Any]:
    models = _read_at_once(model, body) if len(body) <= _PART_BYTES else None
    return [value for values in _slices(model, body) for value in values] if models is None else models


cards: Final[Callable[[bytes], list[Card]]] = partial(_many, Card)
lists: Final[Callable[[bytes], list[BoardList]]] = partial(_many, BoardList)
slices_of_cards: Final[Callable[[bytes], Iterator[list[Card]]]] = partial(_slices, Card)
slices_of_lists: Final[Callable[[bytes], Iterator[list[BoardList]]]] = partial(_slices, BoardList)


def read(model: type[T], body: bytes) -> T:
    """Return a body as a model, or as a list of models.

    Raises:
        DecodeError: the body is something else.
        TypeError: neither `model` nor its element is a class of `models` that a body can be.
    """
    arguments = get_args(model)
    element = arguments[0] if get_origin(model) is list else model
    if element not in READERS:
        raise TypeError("a response is read as Board, BoardList, Card or Member, or as a list of these, such as list[Card]")
    return cast("T", _many(element, body) if arguments else READERS[element](body))
