"""The places of rows: each row that waits is in one of them, and their repr says in which."""

import pytest

from boardclient import CardDraft
from boardclient.bulk._engine._places import Places
from boardclient.bulk._life import Row, State


def row(index: int = 0, list_id: str = "one", *, state: State = "ready", put_off_at: float | None = None) -> Row:
    """Make a row."""
    made = Row(index, CardDraft(f"card {index}", list_id))
    made.state = state
    if put_off_at is not None:
        made.put_off_at = put_off_at
    return made


def refused(index: int, *, sent_as: int = 0) -> Row:
    """Make a row that was refused."""
    made = row(index, state="doubted")
    made.is_refused, made.sent_as = True, sent_as
    return made


def test_the_repr_says_how_many_rows_wait_where() -> None:
    places = Places()
    assert repr(places) == "<Places empty>"
    places.ready.append(row())
    places.keep_back(row(1))
    places.set_aside(row(2, state="doubted"))
    places.set_aside(row(3, state="open"))
    places.set_aside(refused(4))
    places.returned.append(refused(5))
    assert repr(places) == "<Places 1 ready, 1 kept back, 1 refused, 1 returned, 1 doubted, 1 open>"


def test_the_last_row_of_each_list_is_kept_back() -> None:
    """The one before it may be sent. In the end the last list's row is kept back alone."""
    places = Places()
    for index, list_id in enumerate(["one", "one", "two"]):
        places.keep_back(row(index, list_id))
    assert repr(places) == "<Places 1 ready, 2 kept back>"
    places.let_go()
    assert repr(places) == "<Places 2 ready, 1 kept back>"
    places.let_go()
    assert repr(places) == "<Places 3 ready>"
    assert [waiting.index for waiting in places.ready] == [0, 1, 2]


def test_rows_that_were_put_off_come_first() -> None:
    """The one that was put off the longest ago is the first."""
    places = Places()
    places.ready.append(row(0))
    places.queue_first(row(1, put_off_at=2.0))
    places.queue_first(row(2, put_off_at=1.0))
    assert [waiting.index for waiting in places.ready] == [2, 1, 0]


@pytest.mark.parametrize("state", ["doubted", "open"])
def test_all_rows_leave_when_a_run_ends(state: State) -> None:
    """Rows that an earlier run saw refused stay as they are, since this one has not begun with them."""
    places = Places()
    places.set_aside(row(0, state=state))
    places.keep_back(row(1))
    places.set_aside(refused(2, sent_as=1))
    places.set_aside(refused(3))
    places.returned += [refused(4, sent_as=2), refused(5)]
    assert [left.index for left in places.clear()] == [2, 4, 0, 1]
    assert repr(places) == "<Places empty>"
