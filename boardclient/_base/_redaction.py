"""Texts without their secrets, as errors and instruments show them. No I/O.

A response may hold a secret in any form. So it is searched as it is, and again after each of up to four passes that undo
percent-encoding, escapes of JSON and JavaScript, HTML character references and broken lines. This finds a secret in mixed and
nested forms with a plain search. (A regular expression compiled from the secret took up to 1.6 s to compile, and was exponential
for some.) Base64 and hexadecimal digits are no escapes: these forms of the secret are searched for.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, unquote_plus

from multidict import CIMultiDict

CREDENTIAL_NAMES: Final = frozenset({"key", "token"})
"""The names of credentials in a query and in a JSON body (interface 5.5, 5.6)."""
_SECRET_NAMES: Final = CREDENTIAL_NAMES | {"client_secret", "code", "code_verifier", "refresh_token"}
"""The names of secrets in the query, in a form, or at the top level of a JSON body."""
_REPLACED: Final = frozenset({"Content-Encoding", "Content-Length", "Transfer-Encoding"})
"""Headers that describe the encoded body. Instruments see the decoded one."""
_PASSES: Final = 4
_LONGEST_FORM: Final = 32
"""How many bytes one byte of a secret may take in an escaped form."""
_SHORTEST_FORM: Final = 4
"""An unescaped form of fewer bytes is not searched for: it would be found everywhere."""
_SHORTEST_ENCODED: Final = 8
"""A secret of fewer bytes is not searched for in base64 and hexadecimal digits: these would be found in any number."""
_ESCAPE: Final = re.compile(
    # What is percent-encoded or made a reference several times is undone in one pass. No run of characters is scanned twice.
    rb"%(?:25)*(?:(?P<hex>[0-9A-Fa-f]{2})|u(?P<unit>[0-9A-Fa-f]{4}))"
    rb"|\\(?:x(?P<hex_2>[0-9A-Fa-f]{2})"
    rb"|u(?P<high>[Dd][89ABab][0-9A-Fa-f]{2})\\u(?P<low>[Dd][C-Fc-f][0-9A-Fa-f]{2})"
    rb"|u(?P<unit_2>[0-9A-Fa-f]{4})|[ux]\{0*(?P<unit_3>[0-9A-Fa-f]{1,6})\}|U(?P<unit_4>[0-9A-Fa-f]{8})"
    rb"|(?P<octal>[0-7]{1,3})|(?P<short>[\"'\\/bfnrt])|(?P<fold>[\r\n][\r\n \t]*))"
    rb"|&(?P<again>(?:amp;)+)?(?:(?:#0*(?P<decimal>[0-9]{1,7})|#[xX]0*(?P<unit_5>[0-9A-Fa-f]{1,6}))(?(again);|;?)"
    rb"|(?P<name>[A-Za-z]{2,16});|(?(again)(?!)|(?P<name_2>amp|AMP|lt|LT|gt|GT|quot|QUOT)))"
    rb"|(?P<fold_2>[\r\n][\r\n \t]*)"
)
_ESCAPING: Final = re.compile(rb"[%\\&\r\n]")
"""What an escape begins with."""
_NAMES: Final = (
    'Tab \t NewLine \n excl ! quot " QUOT " num # dollar $ percnt % amp & AMP & apos \' lpar ( rpar ) ast * midast * plus + '
    "comma , period . sol / colon : semi ; lt < LT < equals = gt > GT > quest ? commat @ lsqb [ lbrack [ bsol \\ rsqb ] rbrack ] "
    "Hat ^ lowbar _ UnderBar _ grave ` DiacriticalGrave ` lcub { lbrace { verbar | vert | VerticalLine | rcub } rbrace }"
)
"""The character references of ASCII: https://html.spec.whatwg.org/multipage/named-characters.html."""
# The module `html` takes a millisecond to import, and a process that is out of files can't import it.
_REFERENCES: Final = dict(zip(*[iter(_NAMES.encode().split(b" "))] * 2, strict=True))
_SHORT_ESCAPES: Final = dict(zip(b"bfnrt", (b"\b", b"\f", b"\n", b"\r", b"\t"), strict=True))

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


def without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks, whose frames may hold secrets, of an error, its causes and its groups."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one.with_traceback(None))
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return error


class Hidden:
    """An attribute that nothing finds which looks through objects, as logs, debuggers and test runners do.

    They follow fields, slots and `__dict__`, and print what they find. The value is in a function, which they don't call.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = f"_{name.lstrip('_')}_hidden"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else vars(instance)[self._place]()

    def __set__(self, instance: object, value: object) -> None:
        vars(instance)[self._place] = lambda: value


def hides(*names: str) -> Callable[[type[T]], type[T]]:
    """Let a class hide attributes."""

    def hiding(kind: type[T]) -> type[T]:
        for name in names:
            hidden = Hidden()
            hidden.__set_name__(kind, name)
            setattr(kind, name, hidden)
        return kind

    return hiding


def without_fields(kind: type[T]) -> type[T]:
    """Let a class of attrs have no fields once it is made.

    `attrs.asdict` would copy secrets, and pytest prints the fields of two objects that differ, whatever their `repr`.
    """
    for one in kind.__mro__:
        if "__attrs_attrs__" in vars(one):
            delattr(one, "__attrs_attrs__")
    return kind


def takes_secrets(kind: type[T]) -> type[T]:
    """Let a constructor refuse its arguments without keeping them in frames."""
    init = kind.__init__

    @functools.wraps(init)
    def checked(self: Any, *arguments: Any, **options: Any) -> None:
        try:
            init(self, *arguments, **options)
        except Exception as error:
            refusal = without_frames(error)
        else:
            return
        del self, arguments, options
        raise refusal

    kind.__init__ = checked  # type: ignore[method-assign]  # -- with the same parameters
    return kind


def raises_without_frames(function: F) -> F:
    """Let an async function raise without frames, which would hold its secret arguments."""

    @functools.wraps(function)
    async def called(*arguments: Any, **options: Any) -> Any:
        try:
            return await function(*arguments, **options)
        except BaseException as error:
            failure = without_frames(error)
        finally:
            del arguments, options
        try:
            raise failure
        finally:
            del failure  # it would be in a reference cycle with this frame

    return cast("F", called)


def forms_of(secrets: Iterable[str]) -> frozenset[bytes]:
    """Return what to search for: the secrets, and their forms after each pass."""
    return frozenset(form for secret in secrets for form in _forms(secret))


def is_free_of(text: bytes, forms: Iterable[bytes]) -> bool:
    """Return True if none of the forms is in the text, nor in what it is after a pass."""
    return not any(_holds(plain, forms) for plain in _passes(text))


def _holds(text: bytes, forms: Iterable[bytes]) -> bool:
    # By `find`: `in` takes the number of a byte as well, and trying that first costs three times the search.
    return any(text.find(form) >= 0 for form in forms)


def masked(text: bytes, forms: frozenset[bytes], kept_bytes: int | None = None) -> bytes:
    """Return the text with `***` in place of these forms of secrets.

    With `kept_bytes` only so many bytes of the text are kept. A secret at the cut is replaced as a whole.
    """
    return at_once(masked_in_steps(text, forms, kept_bytes))


Steps: TypeAlias = Generator[None, None, T]
"""Work in steps of some milliseconds, between which other tasks may run. It returns the result."""


def at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


def masked_in_steps(text: bytes, forms: frozenset[bytes], kept_bytes: int | None = None) -> Steps[bytes]:
    """Do what `masked` does, in steps."""
    if kept_bytes is not None:
        text = text[: kept_bytes + _LONGEST_FORM * max(map(len, forms))]
    end = len(text) if kept_bytes is None else min(len(text), kept_bytes)
    # Nearly all bodies are free of secrets, which costs the least to see. A secret that is there as it is needs no passes.
    places: list[tuple[int, int]] = []
    _find(places, text, forms, range(len(text) + 1))
    blank = bytearray(text)
    for start, stop in _merged(places):
        blank[start:stop] = bytes(stop - start)
    for plain in _passes_in_steps(bytes(blank)):
        yield
        if plain is not None and _holds(plain, forms):
            places = []
            sources: Sequence[int] = range(len(text) + 1)
            traced = text
            for _ in range(_PASSES + 1):
                _find(places, traced, forms, sources)
                traced, sources = _traced_pass(traced, sources)
                yield
            break
    pieces, at = [], 0
    for start, stop in _merged(places):
        if start >= end:
            break
        pieces += [text[at:start], b"***"]
        at = stop
    return b"".join([*pieces, text[at:end]])


def masked_text(text: str, forms: frozenset[bytes]) -> str:
    """Return the text of a header with `***` in place of these forms of secrets."""
    return masked(text.encode("utf-8", "surrogateescape"), forms).decode("utf-8", "surrogateescape")


def masked_value(value: T, forms: frozenset[bytes]) -> T:
    """Return a value of JSON with `***` in place of these forms of secrets, in the names of objects too."""
    if isinstance(value, str):
        return cast("T", masked_text(value, forms))
    if isinstance(value, Mapping):
        return cast("T", {masked_text(str(name), forms): masked_value(one, forms) for name, one in value.items()})
    return cast("T", [masked_value(one, forms) for one in value]) if isinstance(value, list) else value


def _forms(secret: str) -> Iterator[bytes]:
    """Yield what to search for: the secret, and its forms after each pass."""
    for number, form in enumerate(_passes(secret.encode())):
        if number == 0 or len(form) >= _SHORTEST_FORM:
            yield form
            yield form.replace(b" ", b"+")
    if len(secret) >= _SHORTEST_ENCODED:
        yield from encoded(secret.encode())
    yield "\0".join(secret).encode()  # UTF-16 in either byte order, whose codec a process that is out of files can't import


def encoded(secret: bytes) -> Iterator[bytes]:
    """Yield the secret in hexadecimal digits and, wherever it begins in what is encoded, in base64."""
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for offset in range(3):  # three bytes are four characters, and those that hold bits of other bytes are left out
        whole = base64.b64encode(bytes(offset) + secret)
        form = whole[-(-offset * 4 // 3) : (offset + len(secret)) * 4 // 3]
        yield form
        yield form.translate(bytes.maketrans(b"+/", b"-_"))


def _passes(text: bytes) -> Iterator[bytes]:
    """Yield the text as it is, and after each pass that changes it."""
    return (plain for plain in _passes_in_steps(text) if plain is not None)


def _passes_in_steps(text: bytes) -> Iterator[bytes | None]:
    """Yield the text as it is, and after each pass that changes it. None between the parts of a pass."""
    yield text
    for _ in range(_PASSES if _ESCAPING.search(text) else 0):
        pieces: list[bytes] = []
        at = 0
        for number, match in enumerate(_ESCAPE.finditer(text), 1):
            start, stop = match.span()
            pieces += [text[at:start], _plain_form(match)]
            at = stop
            if number % _STEP_ESCAPES == 0:
                yield None
        before, text = text, b"".join([*pieces, text[at:]])
        if text == before:
            return
        yield text


def _find(found: list[tuple[int, int]], text: bytes, forms: Iterable[bytes], sources: Sequence[int]) -> None:
    """Add the start and end of each form in the text, as `sources` says where its bytes come from."""
    for form in forms:
        start = text.find(form)
        while start >= 0:
            place = sources[start], sources[start + len(form)]
            if found and found[-1][0] <= place[0] < found[-1][1]:  # in a text of one letter, each place overlaps the one before
                found[-1] = found[-1][0], max(place[1], found[-1][1])
            else:
                found.append(place)
            start = text.find(form, start + 1)  # a secret may overlap itself


def _merged(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places in order, merged where they overlap."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _traced_pass(text: bytes, sources: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return the text after a pass, and where each of its bytes and its end come from, as `sources` says of the text before."""
    pieces: list[bytes] = []
    traced: list[int] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        start, stop = match.span()
        plain = _plain_form(match)
        pieces += [text[at:start], plain]
        traced += [*sources[at:start], *[sources[start]] * len(plain)]
        at = stop
    return b"".join([*pieces, text[at:]]), [*traced, *sources[at:]]


_STEP_ESCAPES: Final = 4096
"""How many escapes are undone at once. Each takes a microsecond."""
_plain_forms: Final[dict[bytes, bytes]] = {}
"""What escapes stand for. Few different ones are met, and looking one up takes a fifth of undoing it."""
_MOST_PLAIN_FORMS: Final = 4096


def _plain_form(match: re.Match[bytes]) -> bytes:
    escape: bytes = match[0]
    plain = _plain_forms.get(escape)
    if plain is None:
        plain = _plain(match)
        if len(escape) <= _LONGEST_FORM and len(_plain_forms) < _MOST_PLAIN_FORMS:
            _plain_forms[escape] = plain
    return plain


def _plain(match: re.Match[bytes]) -> bytes:
    kind = match.lastgroup or ""
    found: bytes = match[kind]
    kind = kind.partition("_")[0]
    if kind == "hex":
        return bytes([int(found, 16)])
    if kind == "octal":
        return bytes([int(found, 8) & 0xFF])
    if kind == "short":
        return _SHORT_ESCAPES.get(found[0], found)
    if kind == "name":
        return _REFERENCES.get(found) or bytes(match[0])
    if kind == "fold":
        return b""
    if kind == "low":
        return bytes.fromhex((match["high"] + found).decode()).decode("utf-16-be").encode()
    number = min(int(found, 10 if kind == "decimal" else 16), sys.maxunicode)
    return chr(number).encode("utf-8", "surrogatepass")


# --- a request and its response, as instruments see them


def shown_url(url: str) -> str:
    """Return a URL without the credentials in its query."""
    address, mark, query = url.partition("?")
    if mark:
        kept = [pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]).lower() not in CREDENTIAL_NAMES]
        address += "?" * bool(kept) + "&".join(kept)
    return address


def secrets_of(url: str, body: bytes | None, *, is_form: bool) -> list[str]:
    """Return the secrets in a request."""
    fields: list[tuple[str, object]] = [*parse_qsl(url.partition("?")[2])]
    if body is not None:
        text = body.decode("utf-8", "replace")
        fields += parse_qsl(text) if is_form else _fields(text)
    return [value for name, value in fields if name.lower() in _SECRET_NAMES and isinstance(value, str) and value]


def _fields(text: str) -> list[tuple[str, object]]:
    value = _decoded(text)
    return [*value.items()] if isinstance(value, dict) else []


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def shown_response(
    headers: Mapping[str, str], body: bytes, forms: frozenset[bytes], *, is_token: bool
) -> tuple[CIMultiDict[str], bytes]:
    """Return the headers and the decoded body of a response without secrets, and of a token without all its texts."""
    if is_token:
        value = _decoded(body.decode("utf-8", "replace"))
        found: list[str] = []
        body = json.dumps(_without_texts(value, found)).encode()
        forms |= forms_of(found)
    else:
        body = masked(body, forms)
    shown = CIMultiDict((masked_text(name, forms), masked_text(value, forms)) for name, value in headers.items())
    for name in _REPLACED:
        shown.popall(name, None)
    shown["Content-Length"] = str(len(body))
    return shown, body


def _without_texts(value: Any, found: list[str]) -> Any:
    """Return a JSON value with `***` in place of its texts, which go into `found`."""
    if isinstance(value, dict):
        return {name: _without_texts(part, found) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_texts(part, found) for part in value]
    if isinstance(value, str) and value:
        found.append(value)
        return "***"
    return value
