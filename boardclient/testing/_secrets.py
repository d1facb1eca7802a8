"""Find secrets in what a program could print, log or pickle, also encoded."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Final, TypeAlias
from urllib.parse import quote

import attrs

from boardclient._base._redaction import encoded, forms_of, is_free_of

_Sink: TypeAlias = "tuple[str, str | bytes]"
# They hold no text, or lead to all of the program.
_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    range,
    type,
    ModuleType,
    FunctionType,
    MethodType,
    BuiltinFunctionType,
    io.IOBase,
)
_SHORTEST_ENCODED: Final = 6
"""A shorter text is not searched for in base64 and hexadecimal: it would be found by chance."""
_LINE_BREAK: Final = re.compile(rb"[\r\n]|\\+[rn]")
"""A line break, also escaped. Base64 is broken into lines: https://www.rfc-editor.org/rfc/rfc2045#section-6.8."""
_LIBRARIES = frozenset({"boardclient", "aiohttp", "tenacity", "cattrs", "msgspec", "yarl", "multidict", "asyncio"})


def is_library_frame(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _LIBRARIES and not module.startswith("boardclient.testing")


def assert_no_secrets(thing: object, *, secrets: Iterable[str], frames: Callable[[FrameType], bool] = is_library_frame) -> None:
    """Check that no secret can be read from an object.

    It searches the object's `str`, `repr`, pickle, items and attributes, and theirs in turn; of a `StringIO` or `BytesIO` the
    content. Of an exception it also searches the
    arguments, notes, causes and contexts, the printed traceback, and the locals of frames; of a log record also the message.
    A secret is found as it is, as bytes, percent-encoded, escaped as in JSON, HTML, a `repr` or `ascii()`, and in base64, also
    broken into lines, and hexadecimal if it has six bytes or more. Compressed and encrypted forms are not found.

    ```python
    try:
        await session.cards.get("none")
    except NotFoundError as error:
        assert_no_secrets(error, secrets=[service.token])
    ```

    Args:
        thing: The object to search.
        secrets: The secrets. None of them may be empty.
        frames: A function that returns True for the frames whose locals to search. By default those of this package and its
            libraries, since the application's own frames may hold secrets.

    Raises:
        AssertionError: a secret was found. The message names the places, not the secret.
        ValueError: a secret is empty, or there is none.
    """
    __tracebackhide__ = True
    forms = _encoded_forms(_checked(secrets))
    places = [name for name, text in _Search(frames).sinks(thing) if _holds(text, forms)]
    if places:
        raise AssertionError(f"a secret can be read from: {', '.join(dict.fromkeys(places))}")


def _checked(secrets: Iterable[str]) -> list[str]:
    given = [secrets] if isinstance(secrets, str) else list(secrets)
    if not given or not all(given):
        raise ValueError("name at least one secret, none of them empty")
    return given


def _encoded_forms(secrets: Sequence[str]) -> frozenset[bytes]:
    """Return what to search for with `_redaction.is_free_of`, which undoes percent-encoding and escapes by itself."""
    forms = {*forms_of(secrets)}
    for secret in secrets:
        forms |= {repr(secret)[1:-1].encode(), ascii(secret)[1:-1].encode()}
        for text in (secret.encode(), quote(secret, safe="").encode()):
            forms |= {*(encoded(text) if len(text) >= _SHORTEST_ENCODED else ()), repr(text)[2:-1].encode()}
    return frozenset(forms)


def _holds(text: str | bytes, forms: frozenset[bytes]) -> bool:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Twice, since a break within the base64 of a secret hides it, and its removal could hide a secret that has one.
    return not (is_free_of(raw, forms) and is_free_of(_LINE_BREAK.sub(b"", raw), forms))


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            # Slots are mangled as attributes are: https://docs.python.org/3/reference/datamodel.html#slots.
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)
    yield from getattr(thing, "__dict__", {}).items()


def _texts(thing: object, name: str) -> Iterator[_Sink]:
    for way in (str, repr, format):
        try:
            yield f"{way.__name__}({name})", way(thing)
        except Exception as error:  # then the text of the error is searched
            yield f"{way.__name__}({name})", repr(error)


def _pickled(thing: object, name: str) -> Iterator[_Sink]:
    with contextlib.suppress(Exception):  # what can't be pickled does not leak by pickling
        yield f"pickle.dumps({name})", pickle.dumps(thing)


@attrs.define
class _Search:
    frames: Callable[[FrameType], bool]
    _seen: dict[int, object] = attrs.field(init=False, factory=dict)

    def sinks(self, thing: object) -> Iterator[_Sink]:
        name = type(thing).__name__
        # The pickle of an exception is searched with its other forms, also where it is a part of something.
        if not isinstance(thing, BaseException):
            yield from _pickled(thing, name)
        # A list instead of recursion: objects may be nested deeper than the recursion limit.
        waiting: list[tuple[str, object]] = [(name, thing)]
        while waiting:
            place, found = waiting.pop()
            if isinstance(found, io.StringIO | io.BytesIO) and not found.closed:
                place, found = f"{place}.getvalue()", found.getvalue()
            if isinstance(found, _ATOMS) or id(found) in self._seen:
                continue
            # The object is kept as well: another one could get the number of one that is gone, and would not be searched.
            self._seen[id(found)] = found
            yield from self._shown(found, place)
            with contextlib.suppress(Exception):  # those of an object that can't be looked into
                waiting.extend(self._parts(found, place))

    def _shown(self, thing: object, name: str) -> Iterator[_Sink]:
        if isinstance(thing, str | bytes):
            yield name, thing
            return
        if isinstance(thing, bytearray | memoryview):
            yield name, bytes(thing)
            return
        if isinstance(thing, TracebackType):
            yield from self._traceback(thing, name)
            return
        yield from _texts(thing, name)
        if isinstance(thing, logging.LogRecord):
            yield f"{name}.getMessage()", _message(thing)
        if isinstance(thing, BaseException):
            yield f"format_exception({name})", "".join(traceback.format_exception(type(thing), thing, None, chain=False))
            yield from _pickled(thing, name)

    def _parts(self, thing: object, name: str) -> Iterator[tuple[str, object]]:
        if isinstance(thing, str | bytes | bytearray | memoryview | TracebackType):
            return
        if isinstance(thing, BaseException):
            for part in ("__cause__", "__context__", "__traceback__", "args"):
                yield f"{name}.{part}", getattr(thing, part)
            if isinstance(thing, BaseExceptionGroup):
                yield f"{name}.exceptions", thing.exceptions
        if isinstance(thing, Mapping):
            for index, (key, value) in enumerate(thing.items()):
                yield f"key {index} of {name}", key
                yield f"value {index} of {name}", value
        elif isinstance(thing, Sequence | AbstractSet):
            yield from ((f"{name}[{index}]", item) for index, item in enumerate(thing))
        yield from ((f"{name}.{attribute}", value) for attribute, value in _attributes(thing))

    def _traceback(self, trace: TracebackType, name: str) -> Iterator[_Sink]:
        for frame, _ in traceback.walk_tb(trace):
            if self.frames(frame):
                for variable, value in frame.f_locals.items():
                    yield from _texts(value, f"local {variable} of {frame.f_code.co_name} in {name}")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # the parts of a record that can't be formatted are searched
        return repr(error)
