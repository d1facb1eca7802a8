"""Secrets are found in whatever form a service writes them, also where they hold escapes themselves."""

from __future__ import annotations

import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boardclient._redaction import redacted

WRITTEN = {
    "plain": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
    "lower percent": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "form": quote_plus,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "HTML": html.escape,
}
CORE = "canary4k7e9t3z"
TEXT = st.text(st.sampled_from("aZ09%2fF+ /\\\"'&;uneé😀#x"), max_size=8)


@pytest.mark.parametrize("form", WRITTEN)
@settings(deadline=None, max_examples=50)
@given(before=TEXT, after=TEXT, around=TEXT)
def test_a_secret_is_found_in_every_form(form: str, before: str, after: str, around: str) -> None:
    """The core of a secret, which has no other form, is redacted everywhere, whatever surrounds it."""
    secret = f"{before}{CORE}{after}"
    text = f"{around} {WRITTEN[form](secret)} {around}"
    assert CORE.encode() not in redacted(text.encode(), [secret])


@pytest.mark.parametrize("outer", WRITTEN)
@pytest.mark.parametrize("inner", WRITTEN)
def test_forms_within_forms(outer: str, inner: str) -> None:
    """A secret in a form that is written in a form again is found."""
    secret = f"ké&y/ 1\"{CORE}\\+%2f'"
    assert CORE.encode() not in redacted(WRITTEN[outer](WRITTEN[inner](secret)).encode(), [secret])


def test_what_unescapes_to_next_to_nothing_is_not_searched_for() -> None:
    """A secret of escapes alone does not take every letter of a text along."""
    assert redacted(b"all %41%42 and AB", ["%41%42"]) == b"all *** and AB"
