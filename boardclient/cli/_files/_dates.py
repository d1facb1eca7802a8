"""Reads the dates of files and options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from boardclient.models import read_date


def parse_due(text: str, zone: tzinfo | None = None, date_format: str | None = None) -> datetime:
    """Parse a date or date-time, which is ISO 8601 or of the given `strptime` format.

    Without an offset it is in `zone`, by default that of this machine. A plain date means midnight.

    Raises:
        ValueError: it is not a date-time, or is outside of the years 1 to 9999 in UTC.
    """
    if date_format is None:
        return read_date(text, zone)
    try:
        due = datetime.strptime(text, date_format)
    except (ValueError, re.error):  # re.error: a directive that comes twice
        hint = ", or no date" if "%" in date_format else ", which is not like %d.%m.%Y"
        raise ValueError(f"is not of the form {date_format}{hint}") from None
    try:
        if due.utcoffset() is None:
            due = due.astimezone() if zone is None else due.replace(tzinfo=zone)
        if not 1 < due.year < 9999:
            due.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is outside of the years 1 to 9999 in UTC") from None
    return due
