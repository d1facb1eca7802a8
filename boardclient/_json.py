"""Convert between JSON text and Python values, and split long arrays. No I/O.

msgspec decodes. It refuses two things that the grammar of JSON allows: numbers beyond the range of a float, and unpaired
surrogates as escapes (https://www.rfc-editor.org/rfc/rfc8259#section-8.2). The standard library decodes such text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, Generic, NoReturn, TypeAlias, TypeVar, cast

import attrs
import msgspec

from boardclient.errors import DecodeError
from boardclient.models import JsonValue

V = TypeVar("V")
UNREADABLE: Final = (ValueError, RecursionError, msgspec.MsgspecError)
"""What msgspec and the standard library raise for text that they can't decode."""

_encode: Final = msgspec.json.Encoder(enc_hook=str.__str__).encode  # msgspec encodes no subclasses of `str`
_decode: Final = msgspec.json.Decoder().decode
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

_MOST_DIGITS: Final = 4300
"""Python converts no longer texts to integers: https://docs.python.org/3/library/stdtypes.html#int-max-str-digits"""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


_standard: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)


def encode(value: object) -> bytes:
    """Return the value as JSON.

    Raises:
        ValueError: JSON cannot express it.
    """
    try:
        return _encode(value)
    except (TypeError, OverflowError, *UNREADABLE) as error:
        problem = type(error).__name__
    raise ValueError(f"the value can't be sent as JSON ({problem})")


def decode(body: bytes | msgspec.Raw) -> JsonValue:
    """Return the value of a JSON text. A byte order mark is ignored, as RFC 8259 section 8.1 permits.

    Raises:
        DecodeError: it is not JSON.
    """
    try:
        return cast("JsonValue", _decode(body))
    except UNREADABLE:
        pass
    try:
        return cast("JsonValue", _standard.decode(bytes(body).decode("utf-8-sig")))
    except UNREADABLE:
        pass
    raise _not_json()


def check_utf_8(text: bytes) -> None:
    """Check that the text is UTF-8. msgspec does not, in values that it skips.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    if not text.isascii():
        text.decode()


def _not_json() -> DecodeError:
    return DecodeError("the body is not JSON")


# --- arrays

Elements: TypeAlias = "Sequence[msgspec.Raw | bytes]"
ReadArray: TypeAlias = Callable[[bytes], list[V]]
"""Returns the values of an array, or raises one of `UNREADABLE`."""


@attrs.define(eq=False)
class Part(Generic[V]):
    """Some consecutive elements of an array.

    They are values, or texts if an element was refused. It is never changed: `attrs.define` and not `frozen` makes it in half the
    time.
    """

    values: list[V] = attrs.field(factory=list)
    texts: Elements = ()


PART_BYTES: Final = 16 * 2**10
"""The size of a part. As long as one of its values is kept and its `extra` was not read, the whole part is kept."""
_WINDOW_BYTES: Final = 64 * 2**10
"""How far the most specific boundary is searched for after a wrong one was found: the element may be longer than a part."""
_CUTS_TRIED: Final = 16
_REST_BYTES: Final = 16 * 2**20
_REST_ELEMENTS: Final = 256
"""How much msgspec splits in one step if no cut is found, which takes at most 30 ms."""
_SPACE: Final = rb"[ \t\n\r]*"
_TO_NEXT_NAME: Final = _SPACE + rb":" + _SPACE + rb'"[^"\\]*"' + _SPACE + rb"," + _SPACE
_START: Final = re.compile(_SPACE + rb"\[" + _SPACE)
_EMPTY: Final = re.compile(_START.pattern + rb"\]" + _SPACE)
_NAMES: Final = re.compile(rb"(\{" + _SPACE + rb'"[^"]*")(?:' + _TO_NEXT_NAME + rb'("[^"]*"))?')


def split_array(body: bytes, read: ReadArray[V]) -> Iterator[Part[V]]:
    """Split an array into parts, which `read` reads. Other tasks can run in between.

    A part may be empty. Elements are valid JSON, except for numbers beyond the range of a float.

    Raises:
        DecodeError: the body is not a JSON array.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    if len(body) <= 2 * PART_BYTES and (part := read_whole(body, read)) is not None:
        yield part
        return
    if _EMPTY.fullmatch(body):
        return
    start = _START.match(body)
    if start is None:
        decode(body)
        raise DecodeError("the response is not an array")
    position, tries, seams = start.end(), _CUTS_TRIED, _seams(body, start.end())
    is_rest_tried = False
    following: int | None = position
    while len(body) - position > 2 * PART_BYTES:  # with less there may be no boundary
        following = yield from _cut(body, position, seams, tries, read)
        # If no cut was found, another one is unlikely.
        tries = 1 if following is None else _CUTS_TRIED
        if following is None and not is_rest_tried:
            is_rest_tried = True
            if (elements := _few_large(body, position)) is not None:
                for element in elements:
                    yield read_whole(b"[%b]" % element, read) or Part([], (element,))
                return
        if following is None:
            following = yield from _walk(body, position)
        if following is None:
            return
        position = following
    part = read_whole(b"".join((b"[", memoryview(body)[position:])), read)
    if part is not None and (part.values or part.texts):  # without elements the array ends in a comma
        yield part
        return
    while following is not None:
        following = yield from _walk(body, following)


def _few_large(body: bytes, position: int) -> Elements | None:
    """Return the remaining elements if they are few and large, otherwise None.

    The standard library, which is the alternative, takes a second for an element of 10 MB.
    """
    if len(body) - position > _REST_BYTES or not body.startswith(b"{", position):
        return None
    part = read_whole(b"".join((b"[", memoryview(body)[position:])), _split)
    return part.values if part is not None and part.values and len(part.values) <= _REST_ELEMENTS else None


def read_whole(array: bytes, read: ReadArray[V]) -> Part[V] | None:
    """Read an array in one step. Return None if msgspec can't split it."""
    try:
        check_utf_8(array)
        return Part(read(array))
    except UNREADABLE:
        pass
    try:
        check_utf_8(array)
        return Part([], _split(array))
    except UNREADABLE:
        return None


def split_whole(array: bytes) -> Elements:
    """Split an array that msgspec has read before.

    Raises:
        DecodeError: it is nested too deep for what is left of the stack.
    """
    try:
        return _split(array)
    except UNREADABLE:
        pass
    raise _not_json()


def _seams(body: bytes, start: int) -> list[re.Pattern[bytes]]:
    """Return the patterns of text between two elements, the most specific first.

    Elements are assumed to begin with the names with which the first one begins.
    """
    # Inner objects often begin with an identifier too. A second name excludes most of them.
    names = _NAMES.match(body, start)
    first, second = map(re.escape, names.groups(b"")) if names else (b"", b"")
    beginnings = [first + _TO_NEXT_NAME + second] if second else []
    beginnings += [first, rb"\{"] if first else [rb"\{"]
    return [re.compile(rb"\}" + _SPACE + rb"," + _SPACE + rb"(?=" + beginning + rb")") for beginning in beginnings]


def _seam_after(body: bytes, position: int, seams: Sequence[re.Pattern[bytes]], window: int) -> re.Match[bytes] | None:
    """Find what may be a boundary between elements.

    The first of `seams` is searched for within the window, the others within `PART_BYTES`, and at last the last of them in the
    whole body.
    """
    for seam in seams:
        if (found := seam.search(body, position, position + window)) is not None:
            return found
        window = PART_BYTES
    return seams[-1].search(body, position)


def _cut(
    body: bytes, start: int, seams: Sequence[re.Pattern[bytes]], tries: int, read: ReadArray[V]
) -> Generator[Part[V], None, int | None]:
    """Yield the elements of the next `PART_BYTES` or more.

    Return where the rest begins, None if no boundary is found. A candidate boundary is real exactly when the text before it, plus
    a closing bracket, parses as a JSON array: within a string, an object or an inner array it does not.
    """
    position, skipped, window = start + PART_BYTES, 0, PART_BYTES
    for _ in range(tries):
        found = _seam_after(body, position, seams, window)
        if found is None:
            return None
        part = read_whole(b"".join((b"[", memoryview(body)[start : found.start() + 1], b"]")), read)
        if part is not None:
            yield part
            return found.end()
        yield Part()
        # It is probably in an inner array, which ends soon. After that, skip further each time.
        position, skipped = max(found.end() + skipped, body.find(b"]", found.end() + skipped)), skipped * 2 or 64
        window = _WINDOW_BYTES
    return None


_REST: Final = re.compile(_SPACE)
_AFTER: Final = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")


def _walk(body: bytes, start: int) -> Generator[Part[V], None, int | None]:
    """Yield the elements of the next `PART_BYTES` or more, by the standard library.

    This is for elements that msgspec can't read, and if no cut is found. Return where the following element begins, None at the
    end.

    Raises:
        DecodeError: the body is not JSON.
    """
    size = PART_BYTES
    while True:
        is_last = start + size >= len(body)
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(body[start : start + size], final=is_last)
        except UnicodeDecodeError:
            break
        elements, end, is_closed = _scan(text)
        following = start + len(text[:end].encode())
        if elements and not (is_closed and _REST.fullmatch(body, following) is None):
            yield Part([], elements)
            return None if is_closed else following
        if is_closed or is_last:
            break
        yield Part()  # the element is longer than the window
        size *= 2
    raise _not_json()


def _scan(text: str) -> tuple[list[bytes], int, bool]:
    """Return the complete elements of a text, where the next begins, and if it ended."""
    elements: list[bytes] = []
    position = len(text) - len(text.lstrip(" \t\n\r"))
    while True:
        try:
            _, end = _standard.raw_decode(text, position)
        except UNREADABLE:
            return elements, position, False
        after = _AFTER.match(text, end)
        if after is None:  # the element may continue after the text
            return elements, position, False
        elements.append(text[position:end].encode())
        position = after.end()
        if after[1] == "]":
            return elements, position, True
