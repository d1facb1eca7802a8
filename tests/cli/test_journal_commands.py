"""What a journal shows of an import, and that looking leaves it alone."""

from pathlib import Path

import pytest
from import_helpers import Renamed, into

from boardclient.testing import BoardService

FIVE = "name,reference\nA,r-1\nB,\nC,r-3\x1b\nD,r-4\nE,r-5\n"


@pytest.fixture
def journal(cli, board_service: BoardService, board, csv_file) -> Path:
    """Give the journal of an import with rows in several states."""
    faults = board_service.faults
    faults.add(faults.status(400), "cards.create", call=[2])
    faults.add(Renamed(board_service), "cards.create", call=[3])
    faults.add(faults.status(403), "cards.create", call=[4])
    path = csv_file(FIVE)
    assert cli("import", path, *into(board), "--concurrency", "1").code == 1
    return Path(f"{path}.journal")


@pytest.mark.parametrize("command", [("undo",), ("journal", "show"), ("journal", "resolve")])
def test_the_file_in_place_of_its_journal_names_the_journal(cli, journal: Path, command: tuple[str, ...]) -> None:
    """An import is undone by its journal, and not by its file."""
    words = f"this is the file of an import, whose journal is {journal}"
    cli(*command, str(journal).removesuffix(".journal")).fails(2, words)


def test_show_sums_it_up(bare_cli, board_service: BoardService, board, journal: Path) -> None:
    """`journal show` prints how many rows are in which state."""
    before = journal.read_bytes()
    code, out, err = bare_cli("journal", "show", str(journal))
    assert (code, err) == (0, "")
    fields = dict(line.split("\t") for line in out.splitlines())
    assert fields.pop("created_at").startswith("20")
    assert fields.pop("cards_known_by") == "what they say"
    assert fields == {
        "path": str(journal),
        "service": board_service.base_url,
        "board": board.board,
        "runs": "1",
        "rows_in_file": "5",
        "rows": "5",
        "logged": "0",
        "done": "2",
        "failed": "2",
        "waiting": "0",
        "unknown": "1",
        "undone": "0",
    }
    assert journal.read_bytes() == before


@pytest.mark.parametrize("command", ["show", "resolve"])
def test_a_file_that_is_not_a_journal_is_an_error_of_one_line(bare_cli, tmp_path: Path, command: str) -> None:
    code, out, err = bare_cli("journal", command, str(tmp_path / "missing"))
    assert (code, out) == (2, "")
    assert "there is no journal" in err
    assert err.count("\n") == 1
    (tmp_path / "text").write_text("text " * 1000)
    assert bare_cli("journal", command, str(tmp_path / "text")).code == 2
