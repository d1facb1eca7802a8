"""Recognises ISO 8601 dates and date-times, basic and extended."""

from __future__ import annotations

import re
from datetime import date, timedelta

_DATE = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)-(?P<day>\d\d)|(?P<month_>\d\d)(?P<day_>\d\d)|-?(?P<ordinal>\d{3})"
    r"|(?P<dash>-)?W(?P<week>\d\d)(?(dash)-)(?P<weekday>[1-7]))",
    re.ASCII,
)
_TIME = re.compile(
    r"(?P<hour>\d\d)(?:(?P<colon>:)?(?P<minute>\d\d)(?:(?(colon):)(?P<second>\d\d))?)?(?P<fraction>[.,]\d+)?"
    r"(?:Z|[+\-\u2212](?P<zone_hour>\d\d)(?::?(?P<zone_minute>\d\d))?)?",
    re.ASCII,
)


def is_date_time(text: str) -> bool:
    """Return True if a text is an ISO 8601 date or date-time."""
    day, mark, time = text.partition("T")
    return _is_date(day) and (not mark or _is_time(time))


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    parts = {name: int(value) for name, value in found.groupdict().items() if value and value.isdigit()}
    year = parts["year"]
    try:
        if "week" in parts:
            date.fromisocalendar(year, parts["week"], parts["weekday"])
        elif "ordinal" in parts:
            return parts["ordinal"] > 0 and (date(year, 1, 1) + timedelta(parts["ordinal"] - 1)).year == year
        else:
            date(year, parts.get("month", parts.get("month_", 0)), parts.get("day", parts.get("day_", 0)))
    except (ValueError, OverflowError):
        return False
    return True


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if found is None:
        return False
    hour, minute, second, zone_hour, zone_minute = (
        int(found[name] or 0) for name in ("hour", "minute", "second", "zone_hour", "zone_minute")
    )
    is_midnight = (hour, minute, second) == (24, 0, 0) and not (found["fraction"] or "").strip(".,0")
    is_time = hour < 24 and minute < 60 and second <= 60  # with a leap second: ISO 8601-1:2019, 4.3.10
    return (is_time or is_midnight) and zone_hour < 24 and zone_minute < 60
