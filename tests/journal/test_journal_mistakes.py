"""What may be done to the file of a journal by mistake: a clear refusal, and never a row that is sent twice."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from boardclient import CardDraft, JournalError
from boardclient.bulk.journal import adopt, read_journal, read_unknown, rehearsed

IDENTITY = {"service": "https://boards.example", "board": "b1"}


def write(path: Path, names: Iterable[str] = (), **identity: str) -> None:
    """Write rows with cards, as a run does."""
    rows = [(index, CardDraft(name, "l1"), f"card {index}") for index, name in enumerate(names)]
    adopt(path, {**IDENTITY, **identity}, rows)


def actions(path: Path, names: str) -> list[str]:
    """Return what a run would do with rows."""
    with rehearsed(path, IDENTITY) as decide:
        return [action for _, action, _ in decide([(index, CardDraft(name, "l1")) for index, name in enumerate(names)])]


def test_what_a_deleted_journal_left_is_not_taken_for_the_new_one(path: Path) -> None:
    """SQLite would play a left rollback journal back into any file of that name."""
    left = path.with_name(f"{path.name}-journal")
    left.write_bytes(b"\xd9\xd5\x05\xf9 \xa1c\xd7" + bytes(600))
    with pytest.raises(JournalError, match="belongs to a journal that is gone"):
        write(path)
    left.write_bytes(b"")
    assert actions(path, "a") == ["send"]


def test_a_copy_beside_its_original_is_refused(path: Path) -> None:
    """Either would send what only the other knows. A copy whose original is gone is the journal."""
    write(path, "a")
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with pytest.raises(JournalError, match=r"copy is a copy of .*cards.journal"):
        write(copy)
    path.unlink()
    assert actions(copy, "a") == ["done"]


def test_an_older_copy_put_back_is_refused(path: Path) -> None:
    """The lock beside it knows how far rows were sent."""
    write(path, "a")
    older = path.read_bytes()
    write(path, "ab")
    path.write_bytes(older)
    with pytest.raises(JournalError, match="is an older copy: a run has used a newer one here"):
        write(path)
    path.with_name(f"{path.name}-lock").unlink()
    assert actions(path, "ab") == ["done", "send"]


def cut(size: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:-size])


def scribble(path: Path) -> None:
    found = path.read_bytes()
    path.write_bytes(found[: 12 * 4096] + b"\xff" * 3 * 4096 + found[15 * 4096 :])


def misspell(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"NOT NULL", b"NOT NUL\x82", 1))  # SQLite's message quotes it


def sql(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(statement)

    return change


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut(4096), "is damaged"),
        (cut(100), r"is damaged \(it was cut off\)"),
        (scribble, "is damaged"),
        (misspell, r"is damaged \(its tables can't be read\)"),
        (sql("DROP TABLE boardclient_outcomes"), "is damaged"),
        (sql("DELETE FROM boardclient_jobs"), r"is damaged \(its metadata can't be read\)"),
        (sql("PRAGMA user_version = 9"), "was written by a newer boardclient"),
        (sql("PRAGMA user_version = 1"), "was written by an older boardclient"),
        (sql("PRAGMA application_id = 1"), "is not a journal of boardclient"),
        (lambda path: path.write_bytes(b""), "is not a journal of boardclient"),
        (lambda path: path.write_bytes(b"name,list\n" * 1000), "is not a journal of boardclient"),
        (lambda path: (path.unlink(), path.mkdir()), "can't be used"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(path: Path, harm: Callable[[Path], object], why: str) -> None:
    """The journal is never begun anew, since its rows would be sent again."""
    for _ in range(2):
        write(path, [f"card {n}" * 40 for n in range(200)])
    harm(path)
    with pytest.raises(JournalError, match=why):
        write(path, "a")


def test_a_damaged_list_of_the_cards_from_before_is_named(path: Path) -> None:
    """Without it, a run could take one of them for that of a row."""
    write(path, "a")
    sql("UPDATE boardclient_jobs SET baseline = x'00'")(path)
    with pytest.raises(JournalError, match=r"the list of the cards from before is damaged \(ValueError\)"):
        write(path, "ab")


def test_only_the_owner_can_read_a_journal(path: Path) -> None:
    """The file holds what the cards say."""
    write(path, "a")
    assert [item.stat().st_mode & 0o777 for item in path.parent.iterdir()] == [0o600] * 2


@pytest.mark.parametrize("missing", ["folder", "link", "place", "lock"])
def test_a_place_that_can_not_be_used_is_named(path: Path, missing: str) -> None:
    """The message says what to do."""
    where = path / "no" / "journal" if missing == "folder" else path
    if missing == "link":
        path.symlink_to(path.with_name("no") / "journal")
    elif missing != "folder":
        path.with_name(f"{path.name}-{'new' if missing == 'place' else 'lock'}").mkdir()
    with pytest.raises(JournalError, match=r"create it|choose a folder that is writable|check the path"):
        write(where)
    for read in (read_journal, read_unknown):
        with pytest.raises(JournalError, match=r"there is no journal|create it|check the path"):
            read(where)
