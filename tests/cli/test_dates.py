"""The dates of files: nothing that a date says is guessed or dropped."""

from pathlib import Path

import pytest
from import_helpers import into

from boardclient.testing import BoardService

DAY = "write a whole date, such as %d.%m.%Y"


def dues(service: BoardService) -> dict[str, str | None]:
    return {card.name: card.due for card in service.rules.cards.values()}


@pytest.mark.parametrize(
    ("form", "text", "due"),
    [
        ("%d.%m.%Y", "31.1.2027", "2027-01-31T00:00:00Z"),
        ("%d.%m.%Y", " 31.01.2027 ", "2027-01-31T00:00:00Z"),
        ("%d/%m/%y", "31/01/27", "2027-01-31T00:00:00Z"),
        ("%d %B %Y", "31 January 2027", "2027-01-31T00:00:00Z"),
        ("%b %d, %Y %I:%M %p", "Jan 31, 2027 05:00 PM", "2027-01-31T17:00:00Z"),
        ("%d.%m.%Y um %H Uhr", "31.01.2027 um 17 Uhr", "2027-01-31T17:00:00Z"),
        ("%Y-%m-%dT%H:%M:%S.%f%z", "2027-01-31T17:00:00.250000+01:00", "2027-01-31T16:00:00.250000Z"),
        ("%Y-%m-%d %H:%M %z", "2027-01-31 17:00 Z", "2027-01-31T17:00:00Z"),
        ("%Y-%j", "2027-031", "2027-01-31T00:00:00Z"),
        ("%G-W%V-%u", "2027-W04-7", "2027-01-31T00:00:00Z"),
        ("%Y%m%d", "20270131", "2027-01-31T00:00:00Z"),
        ("%Y%m%d", "09990131", "0999-01-31T00:00:00Z"),
        ("%Y%m%dT%H%M%S%z", "20270131T170000Z", "2027-01-31T17:00:00Z"),
        ("%Y%m%d %I%p", "20270131  5PM", "2027-01-31T17:00:00Z"),
        ("%Y%m%d %H:%M:%S.%f", "20270131 17:00:00.5", "2027-01-31T17:00:00.500000Z"),
        ("%Y-%j", "2028-366", "2028-12-31T00:00:00Z"),
        ("%G-W%V-%u", "2026-W53-7", "2027-01-03T00:00:00Z"),
        ("100%% %d.%m.%Y", "100% 31.01.2027", "2027-01-31T00:00:00Z"),
        ("100%% %Y-%j", "100% 2027-31", "2027-01-31T00:00:00Z"),
    ],
)
def test_a_form_that_names_a_whole_date_is_read(cli, board_service, board, csv_file, form: str, text: str, due: str) -> None:
    assert cli("import", csv_file(f'name,due\nA,"{text}"\n'), *into(board), "--date-format", form).code == 0
    assert dues(board_service) == {"A": due}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("%d.%m.", f"it has no year: {DAY}"),
        ("%m/%Y", f"it has no day: {DAY}"),
        ("%H:%M", f"it has no year and no month and no day: {DAY}"),
        ("31.12.2026", f"it has no year and no month and no day: {DAY}"),
        ("%Y-%m-%d %H:%M %Z", "%Z can't be used: strptime drops the zone that it reads. %z reads offsets"),
        ("%a %d.%m.%Y", "%a can't be used: strptime drops the day of the week: take it out of the file"),
        ("%x", "%x can't be used: it is another form on each machine"),
        ("%-d.%m.%Y", "%- can't be used: %d, %m and %H read 1 as well as 01"),
        ("%d.%m.%Y %Q", "%Q can't be used: there are %Y, %y, %m,"),
        ("%d.%m.%Y %", "% can't be used: there are"),
        ("%d.%m.%Y %y", "it names the year twice, by %Y and %y: leave one of them out"),
        ("%d.%m.%Y %j", "%j is month and day: write %Y and %j alone"),
        ("%Y-W%V-%u", "a date by weeks is read by %G, %V and %u alone"),
        ("%Y week %U", "%U can't be used: %G, %V and %u read dates by weeks"),
        ("%m/%d/%Y %H:%M %p", "%p is read beside %I alone: write %I in place of %H"),
        ("%m/%d/%Y %I:%M", "%I does not tell morning from afternoon without %p"),
        ("%d.%m.%Y %M", "it has a minute and no hour: write a whole time"),
        ("%d.%m.%Y %H:%S", "it has a second and no minute"),
        ("%Y-%m-%dT%H:%M:%SZ", "the letters Z say a zone that is not read: write %z, which reads Z and offsets"),
        ("%d.%m.%Y %H:%M CET", "the letters CET say a zone that is not read"),
    ],
)
def test_a_form_of_which_a_part_would_be_guessed_or_dropped_is_refused(
    cli, board_service: BoardService, board, csv_file, form: str, words: str
) -> None:
    """The message says what to write in its place. Nothing was sent."""
    line = ("import", csv_file("name,due\nA,\n"), *into(board))
    cli(*line, "--date-format", "%d.%m.%Y", "--date-format", form).fails(2, f"--date-format {form!r}: {words}")
    assert not board_service.calls


def test_letters_of_a_zone_are_read_in_the_zone_that_is_given(cli, board_service: BoardService, board, csv_file) -> None:
    path = csv_file("name,due\nA,31.01.2027 17:00 CET\n")
    options = ("--date-format", "%d.%m.%Y %H:%M CET", "--timezone", "Europe/Berlin")
    assert cli("import", path, *into(board), *options).code == 0
    assert dues(board_service) == {"A": "2027-01-31T16:00:00Z"}


def test_forms_are_tried_in_order(cli, board_service: BoardService, board, csv_file) -> None:
    """One column may have dates with and without a time. A value of none of the forms is named with all of them."""
    forms = ("--date-format", "%d.%m.%Y %H:%M", "--date-format", "%d.%m.%Y")
    path = csv_file("name,due\nA,31.01.2027\nB,01.02.2027 17:00\n")
    assert cli("import", path, *into(board), *forms).code == 0
    assert dues(board_service) == {"A": "2027-01-31T00:00:00Z", "B": "2027-02-01T17:00:00Z"}
    cli("import", csv_file("name,due\nC,soon\n"), *into(board), *forms, "--journal", f"{path}.other").fails(
        2, "'soon': is not a date of the form %d.%m.%Y %H:%M or %d.%m.%Y"
    )


def test_a_value_that_two_forms_read_differently_is_refused(cli, board_service: BoardService, board, csv_file) -> None:
    forms = ("--date-format", "%d/%m/%Y", "--date-format", "%m/%d/%Y")
    path = csv_file("name,due\nA,31/01/2027\nB,01/31/2027\nC,03/03/2027\nD,03/04/2027\n")
    cli("import", path, *into(board), *forms).fails(
        2,
        "row 5, column due: '03/04/2027': is 3 April 2027 00:00 by %d/%m/%Y and 4 March 2027 00:00 by %m/%d/%Y:"
        " give the form of this file alone",
        "the file has 1 mistake",
    )
    path = csv_file("name,due\nA,31/01/2027\nB,01/31/2027\nC,03/03/2027\n")
    assert cli("import", path, *into(board), *forms).code == 0
    assert dues(board_service)["C"] == "2027-03-03T00:00:00Z"


def test_numbers_side_by_side_need_all_their_digits(cli, board, csv_file) -> None:
    """Otherwise this is the 11th of January or the 1st of November."""
    path = csv_file("name,due\nA,1112027\n")
    cli("import", path, *into(board), "--date-format", "%d%m%Y").fails(2, "is not a date of the form %d%m%Y")


@pytest.mark.parametrize(("form", "text"), [("%Y-%j", "2027-366"), ("%y-%j %H%M", "27-366 2028"), ("%G-W%V-%u", "2027-W53-1")])
def test_a_day_or_a_week_that_the_year_does_not_have_is_refused(cli, board, csv_file, form: str, text: str) -> None:
    result = cli("import", csv_file(f"name,due\nA,{text}\n"), *into(board), "--date-format", form)
    assert result.code == 2
    assert f"'{text}': is not a date of the form {form}" in result.err


@pytest.mark.parametrize(("form", "text"), [(None, "2027-03-28T02:30"), ("%d.%m.%Y %H:%M", "31.10.2027 02:30")])
def test_a_time_that_clocks_show_twice_or_never_is_refused(cli, board, csv_file, form: str | None, text: str) -> None:
    options = ("--timezone", "Europe/Berlin", *(("--date-format", form) if form else ()))
    result = cli("import", csv_file(f"name,due\nA,{text}\n"), *into(board), *options)
    assert result.code == 2
    assert f"'{text}': is shown twice or never by the clocks of Europe/Berlin: write it with an offset, +0" in result.err


@pytest.mark.parametrize(
    ("zone", "day", "due"),
    [("America/Santiago", "2026-09-06", "2026-09-06T04:00:00Z"), ("America/Havana", "2026-11-01", "2026-11-01T04:00:00Z")],
)
def test_a_day_at_whose_begin_clocks_change_is_read(
    cli, board_service: BoardService, board, csv_file, zone: str, day: str, due: str
) -> None:
    assert cli("import", csv_file(f"name,due\nA,{day}\n"), *into(board), "--timezone", zone).code == 0
    assert dues(board_service) == {"A": due}


@pytest.mark.parametrize("text", ["2027-01-31+02:00", "2027-01-31x17:00", "2027-W04", "1801267200", "2027-01-31T17:00 UTC"])
def test_what_is_no_iso_date_is_refused(cli, board_service: BoardService, board, csv_file, text: str) -> None:
    """The sign of an offset is no T, and digits are no seconds."""
    cli("import", csv_file(f"name,due\nA,{text}\n"), *into(board)).fails(2, f"row 2, column due: '{text}': ", "; --date-format")
    cli("card", "create", "A", "--list", board.done, "--due", text).fails(2, f"--due '{text}' ")
    assert not board_service.calls_of("cards.create")


def test_a_date_out_of_the_calendar_of_utc_is_refused(cli, board, csv_file) -> None:
    path = csv_file("name,due\nA,0001-01-01 00:00 +2300\n")
    options = ("--date-format", "%Y-%m-%d %H:%M %z")
    cli("import", path, *into(board), *options).fails(2, "is outside of the years 1 to 9999 in UTC")
    assert not Path(f"{path}.journal").exists()
