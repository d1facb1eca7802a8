"""What drafts are read from: ISO 8601 texts, in one way wherever a date is read, and mappings. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, tzinfo
from typing import Any, Final

_VARIABLE: Final = "BOARDCLIENT_TIMEZONE"
_EXAMPLES: Final = "such as 2027-01-31 or 2027-01-31T17:00:00+01:00"
_DAY: Final = r"\d{4}-\d\d-\d\d|\d{8}|\d{4}-W\d\d-\d|\d{4}W\d{3}"
_TIME: Final = r"\d\d(?::\d\d(?::\d\d(?:[.,]\d+)?)?|\d\d(?:\d\d(?:[.,]\d+)?)?)?"
_OFFSET: Final = r"Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?"
_DATE: Final = re.compile(rf"({_DAY})(?:([T ])({_TIME}))?({_OFFSET})?", re.ASCII | re.IGNORECASE)
"""The forms that are read. `datetime.fromisoformat` takes others, too: any character between date and time, so that it reads
"2027-01-31+02:00" as two o'clock, and weeks without a day."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Mn", "Zl", "Zp", "Zs"})
"""Categories of characters that nobody sees alone (https://www.unicode.org/reports/tr44/#General_Category_Values)."""
_BLANK: Final = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and a symbol that are drawn as nothing: the fillers of Hangul, and the Braille pattern without dots."""
_DROPPED: Final = re.compile(r"[.,]\d{6}\d*[1-9]")
"""A part of a second that a datetime does not hold."""


def read_date(text: str, zone: tzinfo | None = None) -> datetime:
    """Return the date or date-time of an ISO 8601 text, as an aware datetime.

    A date without a time means midnight. What the text does not say is never guessed, and nothing that it says is dropped.

    Args:
        text: Such as `2027-01-31`, `20270131T1700Z` or `2027-01-31T17:00:00+01:00`. Digits alone are a date as well, and never a
            number of seconds.
        zone: The time zone of a text without an offset. None (default): that of the variable `BOARDCLIENT_TIMEZONE`, or of this
            machine.

    Raises:
        ValueError: it is not such a text, is outside of the years 1 to 9999 in UTC, or has no offset and is shown twice or never
            by the clocks of its zone, which change. The message begins behind the text.
    """
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"is not an ISO 8601 date {_EXAMPLES}")
    day, separator, _, offset = found.groups()
    if offset and not separator:
        raise ValueError(f"has an offset but no time: write {day}T00:00:00{offset}")
    if _DROPPED.search(text):
        raise ValueError("has more digits than a millionth of a second")
    try:
        due = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError(f"is not an ISO 8601 date {_EXAMPLES}") from None
    return aware(due, zone)


def aware(due: datetime, zone: tzinfo | None = None) -> datetime:
    """Return a date with a time zone. One without gets `zone`, which has the default of `read_date`.

    Raises:
        ValueError: it is outside of the years 1 to 9999 in UTC, or the clocks of its zone show it twice or never.
    """
    is_naive = due.utcoffset() is None
    if is_naive and zone is None:
        zone = configured_zone()
    try:
        due, last = (_in_zone(due.replace(fold=fold), zone) for fold in (0, 1)) if is_naive else (due, due)
        if not 1 < due.year < 9999:
            due.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is outside of the years 1 to 9999 in UTC") from None
    # PEP 495. Midnight stands for the begin of its day, at which the clocks of some zones change.
    if due.utcoffset() != last.utcoffset() and due.time() != time.min:
        clocks = "this machine" if zone is None else zone
        raise ValueError(f"is shown twice or never by the clocks of {clocks}: write it with an offset, {due:%z} or {last:%z}")
    return due


def _in_zone(due: datetime, zone: tzinfo | None) -> datetime:
    return due.astimezone() if zone is None else due.replace(tzinfo=zone)


def find_zone(name: str) -> tzinfo:
    """Return a time zone of the IANA database.

    Raises:
        ValueError: there is none of this name.
    """
    from zoneinfo import ZoneInfo, available_timezones

    if name.upper() == "UTC":
        return UTC  # which needs no data
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: a name such as ".." is read as a path
        if not available_timezones():
            raise ValueError("this machine has no time zone data but UTC: pip install tzdata") from None
        raise ValueError(f"{name!r} is not a time zone; names are like Europe/Berlin or UTC") from None


def configured_zone() -> tzinfo | None:
    """Return the time zone that the environment names, or None.

    Raises:
        ValueError: there is none of this name.
    """
    name = os.environ.get(_VARIABLE, "").strip()
    if not name:
        return None
    try:
        return find_zone(name)
    except ValueError as error:
        problem = str(error)
    raise ValueError(f"can't be read without a time zone: {_VARIABLE}: {problem}")


def moment_of(value: object, zone: tzinfo | None = None, /) -> datetime:
    """Return what `due` of a draft says: a date-time as it is, and a date or a text as `read_date` reads it.

    Raises:
        TypeError: it is something else, such as a number.
        ValueError: it is not a date.
    """
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str | date):
        raise TypeError(f"due must be an ISO 8601 text or a datetime, not {type(value).__name__}")
    text = value if isinstance(value, str) else value.isoformat()
    try:
        return read_date(text, zone)
    except ValueError as error:
        problem = f"due {text[:40]!r} {error}"
    raise ValueError(problem)


def moment_or_none(value: object) -> datetime | None:
    """Return what `moment_of` does for pydantic, which takes a TypeError for a mistake of the program."""
    try:
        return None if value is None else moment_of(value)
    except TypeError as error:
        problem = str(error)
    raise ValueError(problem)


def is_visible(text: str, /) -> bool:
    """Return True if a text has a character that people see.

    White space, control characters, marks of direction, joiners, fillers and marks that stand on no letter are not.
    """
    if text[:1].isascii() and text[:1].isalnum():
        return True
    from unicodedata import category  # few names begin otherwise

    return any(category(character) not in _INVISIBLE and character not in _BLANK for character in text)


def fields_of(values: Mapping[str, object], names: Sequence[str], zone: tzinfo | None = None) -> dict[str, Any]:
    """Return the values of a draft's fields, of which `names` are all, without those that are not given.

    Raises:
        TypeError, ValueError: one is unknown or lacking, or the date can't be read.
    """
    for name in values:
        if name not in names:
            raise ValueError(f"a draft has no field {name!r}{did_you_mean(str(name), names)}; its fields are {', '.join(names)}")
    given = {
        name: value
        for name, value in values.items()
        if not (_is_missing(value) or (name in {"due", "pos", "reference"} and value == ""))
    }
    if lacking := [name for name in ("name", "list_id") if name not in given]:
        raise ValueError(f"a draft needs {' and '.join(lacking)}")
    if "due" in given:
        given["due"] = moment_of(given["due"], zone)
    return given


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return the end of a message that asks whether the nearest of the names was meant, or "" if none is near."""
    from difflib import get_close_matches  # only a mistake needs it

    plain = name.lower()
    within = [one for one in names if plain and (one.startswith(plain) or plain.startswith(one))]  # such as due in due_date
    found = within or get_close_matches(plain, names, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def _is_missing(value: object) -> bool:
    """Return True for what stands for no value: None, NaN and NaT, which equal nothing, and pandas' NA, which raises then."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array, whose elements may be equal or not
        return False
