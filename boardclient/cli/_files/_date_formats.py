"""The forms of dates that `--date-format` names: which of them say a whole date, and what a text says by them.

A form is taken only if `strptime` drops nothing of what it reads, and fills in nothing but a time that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from itertools import pairwise

from boardclient.cli._output import UsageError, quoted
from boardclient.models import aware

_PARTS = {
    "%Y": "year",
    "%y": "year",
    "%m": "month",
    "%b": "month",
    "%B": "month",
    "%d": "day",
    "%j": "day of the year",
    "%G": "year of weeks",
    "%V": "week",
    "%u": "day of the week",
    "%H": "hour",
    "%I": "hour",
    "%M": "minute",
    "%S": "second",
    "%f": "fraction",
    "%p": "half of the day",
    "%z": "offset",
}
"""What each directive says that can be used."""
_DATE = ("year", "month", "day")
_DATES = ({*_DATE}, {"year", "day of the year"}, {"year of weeks", "week", "day of the week"})
"""What says a whole date."""
_OF_DATES = frozenset[str]().union(*_DATES)
_TIMES = ("hour", "minute", "second", "fraction")
_IN_PLACE_OF = {
    "%Z": "strptime drops the zone that it reads. %z reads offsets such as +01:00 and Z; for a zone that is the same in all rows"
    " write its letters in place of %Z, and give --timezone",
    "%a": "strptime drops the day of the week: take it out of the file",
    "%A": "strptime drops the day of the week: take it out of the file",
    "%w": "%G, %V and %u read dates by weeks",
    "%U": "%G, %V and %u read dates by weeks",
    "%W": "%G, %V and %u read dates by weeks",
    "%c": "it is another form on each machine: write its parts, such as %d.%m.%Y %H:%M",
    "%x": "it is another form on each machine: write its parts, such as %d.%m.%Y",
    "%X": "it is another form on each machine: write its parts, such as %H:%M:%S",
    "%-": "%d, %m and %H read 1 as well as 01",
    "%e": "%d reads 1 as well as 01",
    "%D": "write %m/%d/%y",
    "%F": "write %Y-%m-%d",
    "%R": "write %H:%M",
    "%T": "write %H:%M:%S",
}
"""What to write in place of those that can't."""
_DIRECTIVE = re.compile("%.?", re.DOTALL)
_NUMERIC = frozenset(f"%{letter}" for letter in "YymdjGVuHIMSf")
_NUMBERS = re.compile("%[YymdjGVuHIMSf]%[YymdjGVuHIMSf]")
"""Numbers side by side."""
_ZONE = re.compile(
    r"\b(?:Z|UTC|GMT|BST|IST|JST|KST|MSK|HKT|SGT|NZ[SD]T|A[CEW][SD]T|(?:CE|EE|WE)S?T|[AECMP][SD]T)\b",
)
"""Letters that name a zone."""


def check_formats(forms: Iterable[str], zone: tzinfo | None) -> None:
    """Check that the forms of dates can be used. `zone` is that of dates without an offset, None if the user has named none.

    Raises:
        UsageError: one can't.
    """
    for form in forms:
        if flaw := flaw_of_format(form, zone):
            raise UsageError(f"--date-format {quoted(form)}: {flaw}")


def flaw_of_format(form: str, zone: tzinfo | None = None) -> str | None:
    """Return why a form does not say a whole date and nothing that is dropped, with what to write, or None."""
    directives = [found for found in _DIRECTIVE.findall(form) if found != "%%"]
    for directive in directives:
        if directive not in _PARTS:
            return f"{directive} can't be used: {_IN_PLACE_OF.get(directive, 'there are ' + ', '.join(_PARTS))}"
    parts = [_PARTS[directive] for directive in directives]
    # Of two that say the same, such as %m and %b, strptime keeps one in silence. One twice is an error of `re` there.
    for part in parts:
        if parts.count(part) > 1:
            twice = " and ".join(directive for directive in directives if _PARTS[directive] == part)
            return f"it names the {part} twice, by {twice}: leave one of them out"
    return _flaw_of_date(_OF_DATES.intersection(parts)) or _flaw_of_time(directives, parts) or _flaw_of_zone(form, parts, zone)


def _flaw_of_date(parts: frozenset[str]) -> str | None:
    if parts in _DATES:
        return None
    # strptime would take both, and let one of them win.
    if "year" in parts and "day of the year" in parts:
        return "%j is month and day: write %Y and %j alone"
    if parts & _DATES[2]:
        return "a date by weeks is read by %G, %V and %u alone, such as %G-W%V-%u"
    missing = " and no ".join(part for part in _DATE if part not in parts)
    return f"it has no {missing}: write a whole date, such as %d.%m.%Y"


def _flaw_of_time(directives: Sequence[str], parts: Sequence[str]) -> str | None:
    if "%p" in directives and "%I" not in directives:
        return "%p is read beside %I alone: write %I in place of %H"
    if "%I" in directives and "%p" not in directives:
        return "%I does not tell morning from afternoon without %p: add it, or write %H"
    for before, part in pairwise(_TIMES):
        if part in parts and before not in parts:
            return f"it has a {part} and no {before}: write a whole time, such as %H:%M"
    return None


def _flaw_of_zone(form: str, parts: Sequence[str], zone: tzinfo | None) -> str | None:
    named = _ZONE.search(_DIRECTIVE.sub("-", form))
    if named is None or zone is not None or "offset" in parts:
        return None
    return f"the letters {named[0]} say a zone that is not read: write %z, which reads Z and offsets, or give --timezone, too"


def read_by_formats(text: str, formats: Sequence[str], zone: tzinfo | None) -> datetime:
    """Return the date that a text says by the first of the forms that reads it.

    Raises:
        ValueError: none reads it, or two of them read it differently, or it is outside of the years 1 to 9999 in UTC.
    """
    # All forms are tried: two that read a text differently show that nobody can say which date it is.
    found = {form: aware(due, zone) for form in formats if (due := _read(text, form)) is not None}
    if not found:
        raise ValueError(f"is not a date of the form {' or '.join(formats)}")
    first, *others = found
    for form in others:
        if found[form] != found[first]:
            readings = " and ".join(f"{found[one].day} {found[one]:%B %Y %H:%M} by {one}" for one in (first, form))
            raise ValueError(f"is {readings}: give the form of this file alone")
    return found[first]


def _read(text: str, form: str) -> datetime | None:
    try:
        due = datetime.strptime(text, form)
    except ValueError:
        return None
    # Numbers side by side are cut where it fits, so that "1112027" is no date of %d%m%Y, and day 366 or week 53 of a year that
    # has none is counted into the next one.
    is_exact = _NUMBERS.search(form) is None and "%j" not in form and "%V" not in form
    return due if is_exact or re.fullmatch(_as_written(due, form), text, re.IGNORECASE) else None


def _as_written(due: datetime, form: str) -> str:
    """Return the pattern of the texts that say a date by a form. Numbers side by side have all their digits."""
    parts = [part for part in re.split(f"({_DIRECTIVE.pattern})", form, flags=re.DOTALL) if part]
    pattern = ""
    for before, part, behind in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        if part not in _PARTS:
            pattern += r"\s*".join(map(re.escape, re.split(r"\s+", "%" if part == "%%" else part)))
        # strptime has read it already, in more forms than a pattern here could list.
        elif part == "%z":
            pattern += ".+"
        elif part in _NUMERIC:
            pattern += _digits(due, part, is_beside=before in _NUMERIC or behind in _NUMERIC)
        else:
            pattern += re.escape(due.strftime(part))
    return pattern


def _digits(due: datetime, directive: str, *, is_beside: bool) -> str:
    """Return the pattern of the digits that say a part of a date."""
    # Years before 1000 have fewer digits on some systems: https://bugs.python.org/issue13305.
    digits = due.strftime(directive).zfill(4 if directive in {"%Y", "%G"} else 1)
    if is_beside:
        return digits
    return f"{digits.rstrip('0')}0*" if directive == "%f" else f"0*{digits.lstrip('0')}"
