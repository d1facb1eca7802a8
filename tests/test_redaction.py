"""Secrets are found in whatever form a service writes them, also where they hold escapes themselves."""

from __future__ import annotations

import asyncio
import base64
import functools
import html
import html.entities
import json
import re
import sys
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_helpers import ANY, TOKEN, session_of

from boardclient import ApiError, Credentials, DecodeError, NotFoundError, Response
from boardclient._base._redaction import forms_of, is_free_of, masked_in_steps

WRITTEN = {
    "plain": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
    "lower percent": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "form": quote_plus,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "HTML": html.escape,
    "JavaScript": lambda text: re.sub(r"[!-/:-@[-`{-~]", lambda mark: f"\\x{ord(mark[0]):02x}", text),
    "escape()": lambda text: re.sub(r"[!-/:-@[-`{-~]", lambda mark: f"%u{ord(mark[0]):04X}", text),
}
NAMES = {mark: name for name, mark in html.entities.html5.items() if len(mark) == 1 and mark.isascii() and name.endswith(";")}
MARKS = re.compile(r"[\t\n!-/:-@[-`{-~]")
WRITTEN |= {
    "percent five times": lambda text: functools.reduce(lambda form, _: quote(form, safe=""), range(5), text),
    "HTML by name": lambda text: MARKS.sub(lambda mark: f"&{NAMES[mark[0]]}", text),
    "HTML of many digits": lambda text: MARKS.sub(lambda mark: f"&#{ord(mark[0]):020d};", text),
    "HTML without semicolons": lambda text: MARKS.sub(lambda mark: f"&#{ord(mark[0]):07d}", text.translate(DIGITS)),
    "HTML five times": lambda text: functools.reduce(lambda form, _: html.escape(form), range(5), text),
    "code points": lambda text: MARKS.sub(lambda mark: f"\\u{{{ord(mark[0]):x}}}", text),
    "Python": lambda text: MARKS.sub(lambda mark: f"\\U{ord(mark[0]):08x}", text),
    "octal": lambda text: MARKS.sub(lambda mark: f"\\{ord(mark[0]):03o}", text),
    "broken lines": lambda text: "\r\n  ".join(re.findall("(?s).{1,5}", text)),
    "continued lines": lambda text: "\\\n".join(re.findall("(?s).{1,5}", text)),
}
DIGITS = {ord(digit): f"&#{ord(digit)};" for digit in "0123456789"}
"""A digit after a reference without a semicolon would belong to it."""
CORE = "canary4k7e9t3z"
TEXT = st.text(st.sampled_from("aZ09%2fF+ /\\\"'&;uneé😀#x"), max_size=8)
KEPT_BYTES = 64 * 2**10


def redacted(text: bytes, token: str, key: str | None = None) -> bytes:
    """Return the body of a response as an error keeps it."""
    return Credentials(token, key).redact(Response(400, {}, text)).body


@pytest.mark.parametrize("form", WRITTEN)
@settings(deadline=None, max_examples=settings.default.max_examples * 50 // 100)
@given(before=TEXT, after=TEXT, around=TEXT)
def test_a_secret_is_found_in_every_form(form: str, before: str, after: str, around: str) -> None:
    """The core of a secret, which has no other form, is redacted everywhere, whatever surrounds it."""
    secret = f"{before}{CORE}{after}"
    text = f"{around} {WRITTEN[form](secret)} {around}"
    assert CORE.encode() not in redacted(text.encode(), secret)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes, bytes.hex])
@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "client:" * 9])
def test_a_secret_is_found_where_it_is_encoded_with_others(encode: Any, before: str) -> None:
    """In base64 and hexadecimal digits nothing of it is left but bits that its neighbours share, wherever it begins."""
    secret = "k\xfb\xff?~" + CORE * 4
    encoded = encode(f"{before}{secret}!?".encode())
    shown = redacted(encoded.encode().upper() if isinstance(encoded, str) else encoded, secret)
    assert len(shown.replace(b"***", b"")) <= 2 * len(before) + 8
    assert b"***" in shown
    assert redacted(b"616263 YWJj", "abc") == b"616263 YWJj"  # of short secrets these forms are in any number


@pytest.mark.parametrize("outer", WRITTEN)
@pytest.mark.parametrize("inner", WRITTEN)
def test_forms_within_forms(outer: str, inner: str) -> None:
    """A secret in a form that is written in a form again is found."""
    secret = f"ké&y/ 1\"{CORE}\\+%2f'"
    assert CORE.encode() not in redacted(WRITTEN[outer](WRITTEN[inner](secret)).encode(), secret)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_secret_in_utf_16_is_found(encoding: str) -> None:
    """Only the first or last byte of it, which is zero, may stay."""
    found = redacted(f"a {CORE} b".encode(encoding), CORE)
    assert found.replace(b"\0", b"").endswith(b"a *** b")


def test_what_unescapes_to_next_to_nothing_is_not_searched_for() -> None:
    """A secret of escapes alone does not take every letter of a text along."""
    assert redacted(b"all %41%42 and AB", "%41%42") == b"all *** and AB"


@pytest.mark.parametrize(
    "form",
    ["a&amp;b/&lt;c", "a&#38;b&#x2F;&#x3c;c", "a%26amp;b/&lt;c", "a\\u0026b\\/\\u003cc", "a%5Cu0026b%252F%253Cc", "%25a&b/<c%"],
)
def test_mixed_forms(form: str) -> None:
    """HTML references and mixed escapes are found; the text around the secret stays unchanged."""
    found = redacted(f"&lt;{form}%41\\n".encode() + b"\xff", "a&b/<c")
    assert found in (b"&lt;***%41\\n\xff", b"&lt;%25***%%41\\n\xff")


@pytest.mark.parametrize(
    ("text", "secrets"),
    [("x-client-7f3a9c21-b0d4aa-y", ("client-7f3a9c21", "7f3a9c21-b0d4aa")), ("x-abcabcabc-y", ("abcabc",))],
)
def test_secrets_that_overlap(text: str, secrets: tuple[str, ...]) -> None:
    """Nothing of a secret stays where another one, or itself, begins before its end."""
    assert redacted(text.encode(), *secrets) == b"x-***-y"


def test_the_beginning_of_a_large_text_is_kept() -> None:
    """Of a large text the beginning is left, and no half of a secret at its end."""
    for length in range(KEPT_BYTES - 20, KEPT_BYTES + 16 * 128 + 20, 23):
        kept = redacted(b"." * length + b"0123456789secret" * 300, "0123456789secret")
        assert b"01" not in kept
        assert KEPT_BYTES - 100 <= len(kept) <= KEPT_BYTES


async def test_the_beginning_of_large_headers_is_kept(wire: Any) -> None:
    """An error and an event keep the first 64 KiB of a response's headers, and none of them in half."""
    fields = {f"X-{number}": f"%{TOKEN} " * 1000 for number in range(10)}
    wire.get(ANY, status=404, headers=fields)
    events: list[Any] = []
    async with session_of(observers=[events.append]) as session:
        with pytest.raises(NotFoundError) as caught:
            await session.members.me()
    for headers in (caught.value.headers, events[-1].headers):
        kept = {name: value for name, value in headers.items() if name in fields}
        assert kept == dict.fromkeys(list(fields)[:5], "%*** " * 1000)


@pytest.mark.full
def test_a_cut_is_after_the_last_of_several_secrets() -> None:
    """A text full of one secret is not cut within another one: half of that would be left, pulled into what is kept."""
    new, old = "n" * 55, "0123456789" * 5 + "abcde"
    for shift in range(0, 56, 3):
        kept = redacted(b"." * shift + new.encode() * 1300 + old.encode() * 60, new, old)
        assert b"0123" not in kept
        assert b"nn" not in kept
        assert len(kept) <= KEPT_BYTES


HARD = (
    "\\",
    "%5c",
    "%25",
    "%",
    "&",
    "&amp;",
    "&amp",
    "&#0",
    "&#x",
    "&a",
    "\\u{0",
    "\r\n \t",
    " ",
    "\n",
    "a\n",
    "\\ud800",
    "&#47",
    "\\0",
)


@pytest.mark.full
def test_the_work_grows_with_the_text_alone() -> None:
    """Of texts made of escapes and their beginnings each byte is looked at a few times, for secrets of escapes as well."""
    for hard in HARD:
        secrets = (hard * 40 + "x", "%5c" * 20)
        counts = []
        for size in (2**14, 2**15):
            calls = 0

            def count(*_: object) -> None:
                nonlocal calls
                calls += 1

            sys.setprofile(count)
            try:
                redacted((hard * (size // len(hard))).encode(), *secrets)
            finally:
                sys.setprofile(None)
            counts.append(calls)
        assert counts[1] <= 2.1 * counts[0] + 2000
        assert is_free_of((hard * (2**21 // len(hard))).encode(), [b"no such text"])  # a run that is scanned twice takes hours


async def test_a_long_error_body_is_searched_in_steps(wire: Any) -> None:
    """Between the passes over 64 KiB of escapes other tasks run, and what is found is replaced all the same."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    escaped = "".join(f"%{byte:02x}" for byte in TOKEN.encode())
    body = escaped + "%2541" * 13_000
    counting = asyncio.create_task(count())
    async with session_of() as session:
        for status, kind in ((404, ApiError), (200, DecodeError)):
            wire.get(ANY, status=status, body=body)
            before = turns
            with pytest.raises(kind) as caught:
                await session.members.me()
            assert turns - before > 5
            assert not isinstance(caught.value, ApiError) or caught.value.body.startswith(b"***%2541")
    counting.cancel()


@pytest.mark.parametrize("escapes", ["\\/", "%41", "&lt;", "\\u0041"])
def test_a_pass_over_many_escapes_is_made_in_steps(escapes: str) -> None:
    """No step undoes more than 4096 of them, so that each takes some milliseconds."""
    number = 30_000
    steps = sum(1 for _ in masked_in_steps((escapes * number).encode(), forms_of([TOKEN])))
    assert steps >= number // 4096
