"""Print how large the code base is: `python tests/size.py`. It takes a minute, and needs the groups `test` and `full`.

Lines of code are without blank lines, comments and docstrings. Ordinary life is all operations, retries, OAuth with tokens in a
file, errors, calls in bulk, a bulk run of 900 rows with refusals and lost responses, its second run, and the command line with
its demo. Web applications, tests, frameworks and several workers are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import coverage
from code_base import circles, code_lines, floors, imported_modules, imports, modules, part_of

_TESTS = Path(__file__).parent
_APART = {"testing", "_pytest_plugin", "integrations", "web", "distributed", "store"}
_OF_WORKERS = {"boardclient._pipeline._pace._shared"}


async def _live(folder: Path) -> None:
    from boardclient import CardDraft, FileTokenStore, NotFoundError
    from boardclient.testing import BoardService, faults

    store = FileTokenStore(folder / "tokens")
    async with BoardService() as service, service.session(service.oauth_credentials(store=store)) as session:
        board = await session.boards.create("Board", default_lists=True)
        todo, doing, *_ = await session.boards.lists(board.id)
        extra = await session.lists.create("Extra", board_id=board.id, pos="bottom")
        await session.lists.archive(extra.id)
        service.faults.add(faults.status(503), "cards.get", times=1)
        service.faults.add(faults.status(429, {"Retry-After": "0"}), "cards.create", times=1)
        card = await session.cards.create("Card", list_id=todo.id, desc="Text")
        await session.cards.get(card.id)
        await session.cards.move(card.id, list_id=doing.id)
        await session.cards.add_label(card.id, "0" * 24)
        await session.cards.delete(card.id)
        with contextlib.suppress(NotFoundError):
            await session.cards.get(card.id)
        created = [result async for result in session.map(lambda name: session.cards.create(name, list_id=todo.id), "ABC")]
        assert not any(result.error for result in created)
        service.rules.expire_tokens()
        await session.members.me()
        await session.request("GET", f"/1/boards/{board.id}/cards")
        service.faults.add(faults.status(429, {"Retry-After": "0"}), "cards.create", call=range(70, 1000, 90))
        service.faults.add(faults.drop(commit=True), "cards.create", call=range(100, 1000, 100))
        service.faults.add(faults.drop(), "cards.create", call=range(150, 1000, 100))
        for rows in (450, 900):
            drafts = [CardDraft(f"Row {row}", todo.id, reference=f"r{row}") for row in range(rows)]
            await session.cards.create_many(drafts, board_id=board.id, settle=0.2, journal=folder / "rows.journal").wait()


def _type(folder: Path) -> None:
    """Use the command line."""
    from boardclient.cli import main
    from boardclient.testing import BoardService

    with BoardService() as service:
        os.environ.update(service.environment)
        board = service.seed({"To Do": ["Card"], "Doing": []})
        card, todo, doing = board.cards["Card"], board.lists["To Do"], board.lists["Doing"]
        (folder / "rows.csv").write_text("name,desc\nOne,Text\nTwo,\n", encoding="utf-8")
        journal = str(folder / "rows.csv.journal")
        lines = [
            f"whoami|board create Board|board show {board.id}|list create Later --board {board.id}|list archive {doing} --yes",
            f"card create New --list {todo}|card get {card}|card move {card} --list {doing}|card label {card} {todo}",
            f"card delete {card} --yes|import {folder}/rows.csv --board {board.id} --list {todo} --settle 0.1",
            f"import {folder}/rows.csv --board {board.id} --list {todo} --json|export {board.id} --output {folder}/out.csv",
            f"journal show {journal}|undo {journal} --yes|doctor|auth status|demo|--help|import --help|bord",
        ]
        for line in "|".join(lines).split("|"):
            nowhere = io.StringIO()
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                main(line.split())


def _ordinary() -> float:
    """Return the share of statements that ordinary life runs."""
    paths = [path for module, path in modules().items() if part_of(module) not in _APART and module not in _OF_WORKERS]
    measured = coverage.Coverage(data_file=None, include=[str(path) for path in paths], config_file=False)
    with tempfile.TemporaryDirectory() as name, measured.collect():
        asyncio.run(_live(Path(name)))
        _type(Path(name))
    results = [measured.analysis2(str(path)) for path in paths]
    return 1 - sum(len(missing) for _, _, _, missing, _ in results) / sum(len(lines) for _, lines, *_ in results)


def _is_private(path: Path) -> bool:
    imported = imports(path.read_text(encoding="utf-8"), path.stem)
    return any("._" in name and not name.endswith("__") for name, _ in imported if name.startswith("boardclient."))


async def _walks() -> list[int]:
    import test_walks

    from boardclient.testing import BoardService

    counts = []
    for walk in (test_walks.card, test_walks.renewal, test_walks.lost_row):
        async with BoardService() as service:
            counts.append(len(test_walks.modules(await walk(service))))
    return counts


def main() -> None:
    ordinary = _ordinary()
    package, tests = [*modules().values()], [*_TESTS.rglob("*.py")]
    cases = [path for path in tests if path.name.startswith("test_")]
    lines = [sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) for paths in (package, tests)]
    print(f"modules; lines of code; physical lines   {len(package)}; {code_lines(package):,}; {lines[0]:,}")
    print("modules a card, a renewal, a lost row pass  ", ", ".join(map(str, asyncio.run(_walks()))))
    most = (max(counts) for counts in zip(*floors(package).values(), strict=True))
    print("modules; folders side by side, at most      ", "; ".join(map(str, most)))
    print("circles of imports                         ", len(circles(imported_modules())))
    print(f"statements that ordinary life runs          {ordinary:.0%}")
    print(f"tests: lines of code; physical lines        {code_lines(tests):,}; {lines[1]:,}")
    print(f"tests: files that import private modules    {sum(map(_is_private, cases)) / len(cases):.0%}")


if __name__ == "__main__":
    sys.exit(main())
