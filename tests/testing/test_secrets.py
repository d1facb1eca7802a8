"""The search for secrets finds them wherever they are planted, and nowhere else."""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import pickle
import threading
import types
from urllib.parse import quote, quote_plus

import attrs
import pytest

from boardclient.testing import assert_no_secrets

SECRET = 'tök/en "1"+=\\'
PLAIN = "s3cr3t-value"


class Failure(Exception):
    pass


class Custom(Exception):
    def __init__(self, text="", **fields):
        super().__init__("nothing to see")
        self.__dict__.update(fields)
        self.text = text

    def __str__(self):
        return "nothing"

    def __repr__(self):
        return "Custom()"


@attrs.define(repr=False)
class Slotted:
    hidden: object


class Private:
    __slots__ = ("__inner", "unset")

    def __init__(self, inner):
        self.__inner = inner


class OneSlot:
    __slots__ = "only"

    def __init__(self, only):
        self.only = only

    def __reduce__(self):
        raise TypeError("not to be pickled")


class ShownAs:
    """Shows a text in one form only."""

    def __init__(self, way):
        self.way = way

    def __str__(self):
        return PLAIN if self.way == "str" else "nothing"

    def __repr__(self):
        if self.way == "error":
            raise ValueError(PLAIN)
        return PLAIN if self.way == "repr" else "nothing"

    def __format__(self, spec):
        return PLAIN if self.way == "format" else "nothing"


class PickledSecretly:
    def __reduce__(self):
        return str, (PLAIN,)


class PickledSecretlyError(Exception):
    def __reduce__(self):
        return Failure, (PLAIN,)


def caught(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def library(source, module="boardclient.somewhere"):
    """Give a function of a module that counts as the package's."""
    place = types.ModuleType(module)
    exec(compile(source, f"<{module}>", "exec"), place.__dict__)
    return place.fail


def chained(how):
    def fail():
        try:
            raise Failure(PLAIN)
        except Failure as first:
            if how == "cause":
                raise Failure("outer") from first
            if how == "suppressed":
                raise Failure("outer") from None
            raise Failure("outer")  # noqa: B904 -- the implicit context is the point

    return caught(fail)


def noted():
    error = Failure("x")
    error.add_note(f"note {PLAIN}")
    return error


def record(message, *args, **extra):
    made = logging.LogRecord("name", logging.INFO, "path", 1, message, args, None)
    made.__dict__.update(extra)
    return made


def failed_record():
    return logging.LogRecord("name", logging.INFO, "path", 1, "text", (), (Failure, Failure(PLAIN), None))


def deep(levels):
    error = Failure(PLAIN)
    for _ in range(levels):
        outer = Failure("outer")
        outer.__cause__ = error
        error = outer
    return error


def circle(text):
    things = [text]
    things.append(things)
    error = Failure("x")
    error.args = (error, things)
    error.__context__ = Failure("other")
    error.__context__.__context__ = error
    return error


LOCALS = [
    "def fail():\n    token = {0!r}\n    raise ValueError('x')",
    "class Hidden:\n    def __repr__(self):\n        return {0!r}\ndef fail():\n    it = Hidden()\n    raise ValueError('x')",
    "class Hidden:\n    def __str__(self):\n        return {0!r}\ndef fail():\n    it = Hidden()\n    raise ValueError('x')",
]


class Unseen:
    """Raises at whatever looks for its attributes, but for a slot."""

    __slots__ = ("hidden",)

    def __init__(self, hidden):
        self.hidden = hidden

    @property
    def __dict__(self):
        raise RuntimeError("no")


def kept_log(text):
    handler = logging.StreamHandler(io.StringIO())
    handler.stream.write(text)
    return handler


PLANTED = {
    "text": lambda: f"a {PLAIN} b",
    "bytes": lambda: b"a " + PLAIN.encode() + b"\xff",
    "bytearray": lambda: bytearray(PLAIN.encode()),
    "memoryview": lambda: memoryview(PLAIN.encode()),
    "list": lambda: ["x", PLAIN],
    "set": lambda: {PLAIN},
    "nested": lambda: {"a": [({"b": PLAIN},)]},
    "key": lambda: {PLAIN: 1},
    "attribute": lambda: types.SimpleNamespace(a=types.SimpleNamespace(b=PLAIN)),
    "slot": lambda: Slotted(PLAIN),
    "slot in a slot": lambda: Slotted(Slotted(PLAIN)),
    "private slot": lambda: Private(PLAIN),
    "one slot": lambda: OneSlot(PLAIN),
    "slot beside attributes that can't be read": lambda: [Unseen(PLAIN)],
    "log of a handler": lambda: kept_log(PLAIN),
    "text in memory": lambda: [io.StringIO(PLAIN), threading.Lock()],
    "bytes in memory": lambda: [io.BytesIO(PLAIN.encode()), threading.Lock()],
    "str": lambda: ShownAs("str"),
    "repr": lambda: ShownAs("repr"),
    "format": lambda: ShownAs("format"),
    "the error of a repr": lambda: ShownAs("error"),
    "pickle": PickledSecretly,
    "exception text": lambda: Failure(PLAIN),
    "exception arguments": lambda: Custom("x", args=(PLAIN,)),
    "exception attribute": lambda: Custom(PLAIN),
    "exception attribute, deep": lambda: Custom("x", more={"a": Slotted([PLAIN])}),
    "exception pickle": PickledSecretlyError,
    "note": noted,
    "cause": lambda: chained("cause"),
    "context": lambda: chained("context"),
    "suppressed context": lambda: chained("suppressed"),
    "deep cause": lambda: deep(100),
    "group": lambda: ExceptionGroup("x", [Failure("a"), Failure(PLAIN)]),
    "exception in a list": lambda: [Failure(PLAIN)],
    "circle": lambda: circle(PLAIN),
    "local": lambda: caught(library(LOCALS[0].format(PLAIN))),
    "repr of a local": lambda: caught(library(LOCALS[1].format(PLAIN))),
    "str of a local": lambda: caught(library(LOCALS[2].format(PLAIN))),
    "local under the package": lambda: caught(library(LOCALS[0].format(PLAIN), "aiohttp.client")),
    "local in the traceback alone": lambda: caught(library(LOCALS[0].format(PLAIN))).__traceback__,
    "local of a cause": lambda: ExceptionGroup("x", [caught(library(LOCALS[0].format(PLAIN)))]),
    "record message": lambda: record(PLAIN),
    "record arguments": lambda: record("%s", PLAIN),
    "record message in parts": lambda: record("s3cr3t-%s", "value"),
    "record extra": lambda: record("text", extra={"a": PLAIN}),
    "record exception": failed_record,
    "record that can't be formatted": lambda: record("%d %d", PLAIN),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_finds_a_secret_in_every_sink(plant):
    """A secret in an exception, a log record, an object or a frame is found, and the message does not repeat it."""
    with pytest.raises(AssertionError, match="a secret can be read from") as error:
        assert_no_secrets(plant(), secrets=["absent", PLAIN])
    assert PLAIN not in str(error.value)


FORMS = {
    "as it is": SECRET,
    "percent": quote(SECRET, safe=""),
    "percent, in lower case": "t%c3%b6k%2fen%20%221%22%2b%3d%5c",
    "percent, as in a path": quote(SECRET),
    "percent, as in a query": "t%C3%B6k/en%20%221%22+=%5C",
    "percent, as in a form": quote_plus(SECRET),
    "JSON": json.dumps({"token": SECRET}),
    "JSON in UTF-8": json.dumps({"token": SECRET}, ensure_ascii=False),
    "JSON bytes": json.dumps({"token": SECRET}, ensure_ascii=False).encode(),
    "repr": repr({"token": SECRET}),
    "repr of bytes": repr(SECRET.encode()),
    "ascii": ascii(SECRET),
    "ascii in JSON": json.dumps([ascii(SECRET)]),
    "bytes": b"\xc3" + SECRET.encode(),
    "pickle": pickle.dumps(Failure(SECRET)),
    "JSON in JSON": json.dumps(json.dumps(SECRET)),
    "percent twice": quote(quote(SECRET, safe=""), safe=""),
    "HTML": html.escape(SECRET).replace('"', "&quot;"),
    "hexadecimal": SECRET.encode().hex(),
    "hexadecimal in capitals": SECRET.encode().hex().upper(),
    **{f"base64 after {before} bytes": base64.b64encode(b"x" * before + SECRET.encode() + b":y") for before in range(4)},
    "base64 in lines": base64.encodebytes(b"x" * 50 + SECRET.encode()),
    "base64 in lines of a mail": base64.encodebytes(b"x" * 50 + SECRET.encode()).replace(b"\n", b"\r\n").decode(),
    "repr of base64 in lines": repr([repr(base64.encodebytes(b"x" * 50 + SECRET.encode()))]),
    "base64 for URLs": base64.urlsafe_b64encode(f"~{SECRET}?".encode()).decode(),
    "base64 of percent": base64.b64encode(quote(SECRET, safe="").encode()),
}


@pytest.mark.parametrize("shown", FORMS.values(), ids=FORMS.keys())
def test_finds_a_secret_in_every_form(shown):
    """A secret is found however it is encoded."""
    with pytest.raises(AssertionError, match="a secret"):
        assert_no_secrets(shown, secrets=[SECRET])


def closed_file():
    file = io.StringIO("nothing")
    file.close()
    return file


CLEAN = {
    "text": lambda: "nothing",
    "number": lambda: 7,
    "exception": lambda: chained("cause"),
    "group": lambda: ExceptionGroup("x", [Failure("a")]),
    "record": lambda: record("%s", "x"),
    "locals": lambda: caught(library(LOCALS[0].format("nothing"))),
    "circle": lambda: circle("nothing"),
    "unset slot": lambda: Private("nothing"),
    "attributes that can't be read": lambda: Unseen("nothing"),
    "a closed file": lambda: [closed_file()],
    "function": lambda: assert_no_secrets,
    "what can't be pickled": lambda: OneSlot(lambda: None),
}


@pytest.mark.parametrize("make", CLEAN.values(), ids=CLEAN.keys())
def test_finds_nothing_where_nothing_is(make):
    """Objects of every kind that hold no secret pass, circular ones too."""
    assert_no_secrets(make(), secrets=["absent", "ab\x01"])


@pytest.mark.parametrize("module", ["application", "boardclient.testing._service"])
def test_the_applications_own_frames_are_searched_on_request_only(module):
    error = caught(library(LOCALS[0].format(PLAIN), module))
    assert_no_secrets(error, secrets=[PLAIN])
    with pytest.raises(AssertionError, match=r"local token of fail"):
        assert_no_secrets(error, secrets=[PLAIN], frames=lambda frame: True)


@pytest.mark.parametrize("secrets", [[], [""], ["a", ""], ""])
def test_refuses_to_search_for_nothing(secrets):
    """An empty secret, or none at all, is an error of the caller."""
    with pytest.raises(ValueError, match="at least one"):
        assert_no_secrets("x", secrets=secrets)
