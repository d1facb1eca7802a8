"""What a run of the command line costs before a command is called, and how it ends when something is wrong around it."""

import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from boardclient import cli as entry
from boardclient.cli._app import app
from boardclient.cli._output import whole
from boardclient.testing import BoardService

_HEAVY = ("aiohttp", "rich", "attrs", "asyncio", "msgspec", "tenacity", "pydantic", "boardclient.testing", "importlib.metadata")
_HEAVY += ("boardclient.credentials", "boardclient.errors", "boardclient.models", "csv", "pathlib", "sqlite3", "tempfile")
_PROBE = f"""
import sys
before = set(sys.modules)  # those of a measurement of coverage
from boardclient.cli import main
try:
    main()
finally:
    print(sorted(set({_HEAVY!r}) & set(sys.modules) - before), file=sys.stderr)
"""
_COMPLETE = {"_BOARDCLIENT_COMPLETE": "bash_complete", "COMP_WORDS": "boardclient b", "COMP_CWORD": "1"}


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **options.pop("env", {})}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=env, **options)


@pytest.mark.parametrize("argv", ["--version", "--help", "bord", *(f"{name} --help" for name in app.commands)])
def test_what_prints_a_page_imports_little(argv: str) -> None:
    """Neither aiohttp nor rich, credentials or the embedded service are imported to print a line, or the help of any command."""
    assert run("-c", _PROBE, *argv.split()).stderr.splitlines()[-1] == "[]"


def test_completion_imports_little_and_completes() -> None:
    """Completion prints the commands that fit, and imports neither aiohttp nor rich."""
    done = run("-c", _PROBE.replace("main()", "main(['ignored'])"), env={**_COMPLETE})
    assert "plain,board" in done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["show", "resolve"])
def test_a_journal_is_read_without_aiohttp(command: str, tmp_path: Path) -> None:
    """Nothing is sent for it, and aiohttp is half of what such a command would take."""
    done = run("-c", _PROBE, "journal", command, str(tmp_path / "cards.csv.journal"))
    assert "there is no journal" in done.stderr
    assert "'boardclient.models'" in done.stderr.splitlines()[-1]
    assert "'aiohttp'" not in done.stderr.splitlines()[-1]


_INTERRUPTED = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from boardclient.cli import main
main(["whoami"])
"""


@pytest.mark.parametrize(
    ("module", "code", "err"), [("boardclient.cli._app", -signal.SIGINT, ""), ("aiohttp", 130, "boardclient: ended by SIGINT\n")]
)
def test_an_interrupt_while_it_starts_prints_no_traceback(module: str, code: int, err: str) -> None:
    """Whatever is being imported when Ctrl-C is pressed. A shell says 130 of either."""
    done = run("-c", _INTERRUPTED, module, env={"BOARDCLIENT_BASE_URL": "https://board.example", "BOARDCLIENT_TOKEN": "t"})
    assert (done.returncode, done.stdout, done.stderr) == (code, "", err)


def test_a_handler_of_the_application_s_own_is_left_alone(bare_cli) -> None:
    """A shell's `&` ignores SIGINT; that holds."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert bare_cli("--version").code == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


_WRITERS = [
    (["export", "{board}"], "name,desc,due"),
    (["board", "show", "{board}", "--json"], '{"id":'),
    (["board", "show", "{board}"], "0" * 20),
    (["export", "{board}", "--output", "/dev/stdout"], "name,desc,due"),
]


@pytest.fixture
def large_board(board_service: BoardService, monkeypatch) -> dict[str, str]:
    """Give a board whose output is larger than a pipe holds, to a Python that is unbuffered, as in containers."""
    for name, value in {**board_service.environment, "PYTHONUNBUFFERED": "1"}.items():
        monkeypatch.setenv(name, value)
    board = board_service.seed({"To Do": [f"{row} {'x' * 300}" for row in range(400)]})
    return {"board": board.id}


def start(argv: list[str], **options) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "boardclient", *argv], stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.full
@pytest.mark.parametrize(("argv", "begin"), _WRITERS)
def test_a_slow_reader_of_a_pipe_that_does_not_wait_gets_all(large_board, argv: list[str], begin: str) -> None:
    """Otherwise the output ends with what the pipe holds, and with exit code 0."""
    command, texts = [part.format(**large_board) for part in argv], []
    for is_blocking in (True, False):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writer, is_blocking)
        with start(command, stdout=writer) as process, open(reader, "rb", buffering=0) as pipe:
            os.close(writer)
            texts.append(b"".join(iter(lambda pipe=pipe: pipe.read(512), b"")))
            assert (process.wait(), process.stderr.read()) == (0, "")
    assert texts[0].decode().startswith(begin)
    assert len(texts[0]) > 65536
    assert texts[1] == texts[0]


@pytest.mark.full
@pytest.mark.parametrize("argv", [argv for argv, _ in _WRITERS[:-1]])
def test_a_disk_that_fills_up_ends_a_command_with_words(large_board, tmp_path: Path, monkeypatch, argv: list[str]) -> None:
    """A limit of 64 KiB for a file stands for the disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    command = [part.format(**large_board) for part in argv]
    for name in [name for name in os.environ if name.startswith("COVERAGE")]:  # whose file would be cut as well
        monkeypatch.delenv(name)
    with (tmp_path / "out").open("wb") as out, start(command, stdout=out, preexec_fn=limit) as process:
        assert (process.wait(), process.stderr.read()) == (
            1,
            "boardclient: error: can't write the output: File too large: allow larger files with: ulimit -f unlimited\n",
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_on_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "boardclient", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "boardclient: error: can't write the output: No space left on device: make room on the disk\n"


def test_a_closed_pipe_ends_a_program_silently() -> None:
    """A reader that has what it wants, such as `head`, is no error to report."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "boardclient", "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_closed_standard_error_is_replaced_by_the_null_device(monkeypatch, capsys) -> None:
    """Otherwise a journal might get its descriptor, and be sent messages."""
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as caught:
        entry.main(["--version"])
    assert caught.value.code == 0
    assert os.fstat(sys.stderr.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_a_program_whose_output_is_closed_fails_if_it_prints(monkeypatch, capsys) -> None:
    """As on a full disk: what it printed is lost."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as caught:
        entry.main(["--version"])
    assert caught.value.code == 1
    assert "can't write the output: Bad file descriptor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["login", "--with-token"], "there is no token on standard input"),
        (["import", "-", "--board", "BOARD", "--list", "Done"], "the file is empty"),
        (["card", "delete", "CARD"], "give --yes"),
    ],
)
def test_a_closed_standard_input_is_empty(cli, board, monkeypatch, argv: list[str], words: str) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = cli(*(board.board if arg == "BOARD" else arg for arg in argv))
    sys.stdin.close()
    assert (code, out) == (2, "")
    assert words in err


def test_json_is_valid_whatever_the_service_sends(cli, board_service: BoardService) -> None:
    body = b'{"id": "m", "karma": 1e400, "all": [-1e400, "\\u007f\\u0085\\u202e\\ud800"], "name": "Infinity"}'
    board_service.faults.add(board_service.faults.foreign_body(body), "members.me")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    code, out, _ = cli("whoami", "--json")
    assert code == 0
    found = json.loads(out, parse_constant=refuse)
    assert found == {"id": "m", "karma": None, "all": [None, "\x7f\x85\u202e\ufffd"], "name": "Infinity"}
    assert out.strip().isprintable()


class _Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        self.write("")


def test_a_full_standard_error_stops_nothing(cli, board_service: BoardService, board, csv_file, monkeypatch) -> None:
    """What can only be reported there is lost."""
    monkeypatch.setattr(sys, "stderr", _Full())
    board_service.faults.add(board_service.faults.status(400), "cards.create", call=1)
    assert cli("import", csv_file("name\nA\nB\n"), "--board", board.board, "--list", "Done").code == 1
    assert len(board_service.rules.cards) == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["whoami"], {"id": "000000000000000000000000", "username": "member", "fullName": "A Member"}),
        (["board", "create", "Plan"], {"name": "Plan"}),
        (["list", "create", "L", "--board", "{board}"], {"name": "L", "board_id": "{board}", "closed": False}),
        (["list", "archive", "{done}", "--yes"], {"id": "{done}", "closed": True}),
        (["card", "create", "C", "--list", "{todo}", "--due", "2027-01-02T03:04:05Z"], {"name": "C"}),
        (["card", "get", "{card}"], {"id": "{card}", "name": "A", "list_id": "{todo}"}),
        (["card", "move", "{card}", "--list", "{done}"], {"id": "{card}", "list_id": "{done}"}),
        (["card", "label", "{card}", "urgent"], {"id": "{card}", "label": "urgent"}),
        (["card", "delete", "{card}", "--yes"], {"id": "{card}"}),
    ],
)
def test_records_are_printed_as_json(cli, board_service: BoardService, board, argv, expected) -> None:
    cli("card", "create", "A", "--list", board.todo)
    names = {**board._asdict(), "card": next(iter(board_service.rules.cards))}
    code, out, err = cli(*(part.format(**names) for part in argv), "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    wanted = {name: value.format(**names) if isinstance(value, str) else value for name, value in expected.items()}
    assert json.loads(out).items() >= wanted.items()


def test_a_board_is_printed_as_json(cli, board) -> None:
    cli("card", "create", "A", "--list", board.todo, "--due", "2027-01-02T03:04:05Z")
    found = json.loads(cli("board", "show", board.board, "--json").out)
    assert found["id"] == board.board
    assert [item["name"] for item in found["lists"]] == ["To Do", "Doing", "Done"]
    assert [(card["name"], card["list_id"], card["due"]) for card in found["cards"]] == [
        ("A", board.todo, "2027-01-02T03:04:05+00:00")
    ]


def test_what_a_service_calls_its_fields_steers_no_terminal(cli, board_service: BoardService) -> None:
    """The names of the fields are the service's texts, too; a boolean is not Python's."""
    body = b'{"id": "m1", "a\\u001b[2Jb": "x", "admin": true, "count": 3}'
    board_service.faults.add(board_service.faults.foreign_body(body), "members.me")
    out = cli("whoami").out
    assert "\x1b" not in out
    assert "a\\x1b[2Jb" in out
    assert "true" in out
    assert "True" not in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["whoami", "--timeout", "9"],
            "--timeout belongs before the command: boardclient --timeout …",
        ),
        (["card", "creat"], "; did you mean 'create'?\n"),
        (["--json", "board", "show"], "--json follows the command: boardclient board show … --json\n"),
        (["board", "--json=id", "show", "b"], "--json follows the command: boardclient board show … --json\n"),
        (["--json"], "no such option '--json'; did you mean '--version'?\n"),
        (["--nothing", "whoami"], "no such option '--nothing'\n"),
        (["--board", "b", "card"], "no such option '--board'\n"),
        (["card", "show"], "no such command 'show'; did you mean 'get'?\n"),
        (["card", "rm"], "did you mean 'delete'?\n"),
        (["auth", "list"], "did you mean 'status'?\n"),
        (["import", "a.csv", "--dry-run"], "no such option '--dry-run'; did you mean '--preview'?\n"),
        (["import", "a.csv", "--sep", ";"], "no such option '--sep'; did you mean '--delimiter'?\n"),
        (["export", "Launch", "-o", "a.csv"], "no such option '-o'; did you mean '--output'?\n"),
        (["request", "POST", "/1/boards", "-d", "{}"], "no such option '-d'; did you mean '--input'?\n"),
        (["board", "ls"], "did you mean 'list'?\n"),
        (["--base-url"], "boardclient: error: option '--base-url' requires an argument\n"),
        (["card", "fly"], "no such command 'fly'\n"),
        (["board", "create"], "usage: boardclient board create [OPTIONS] NAME; --help says more\n"),
        (["board", "create"], "boardclient: error: missing argument 'NAME'\n"),
        (["whoami", "--nothing"], "error: no such option '--nothing'\n"),
        (["--timeout", "soon", "whoami"], "'soon' is not a valid number\n"),
        (["import", "c.csv", "--board", "b", "--concurrency", "many"], "'many' is not a valid whole number\n"),
        (
            ["--base-url", "board.example", "whoami"],
            "the service's address (BOARDCLIENT_BASE_URL, --base-url) must be an absolute http or https URL, such as https://",
        ),
    ],
)
def test_usage_errors_say_what_to_write(bare_cli, monkeypatch, argv, words) -> None:
    """A misplaced option, a number and an address in another form are named in the words of the command line."""
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "t")
    bare_cli(*argv).fails(2, words)


def test_a_group_shows_whole_sentences(bare_cli) -> None:
    """No line about a command ends in dots."""
    for group in ("auth", "board", "card", "journal", "ledger", "list"):
        out = bare_cli(group, "--help").out
        assert "..." not in out.partition("Commands:")[2], out


def test_a_group_without_a_command_shows_its_help(bare_cli) -> None:
    code, out, err = bare_cli("card")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: boardclient card [OPTIONS] COMMAND [ARGS]...\n")


def test_an_interrupt_while_nothing_runs_ends_a_command_with_a_line(bare_cli, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("boardclient.cli._running.run", interrupted)
    code, out, err = bare_cli("whoami")
    assert (code, out) == (130, "")
    assert err.endswith("boardclient: ended by SIGINT\n")


def test_a_time_zone_needs_data_unless_it_is_utc(cli, board, monkeypatch) -> None:
    """A small container has none."""
    import zoneinfo

    for name in ["tzdata", *(name for name in sys.modules if name.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=())
    try:
        for zone in ("UTC", "utc"):
            assert cli("board", "show", board.board, "--timezone", zone).code == 0
        code, _, err = cli("board", "show", board.board, "--timezone", "Europe/Berlin")
    finally:
        zoneinfo.reset_tzpath()
    assert code == 2
    assert "this machine has no time zone data but UTC: pip install tzdata" in err


def test_the_stream_that_writes_all_is_still_the_same_file(bare_cli, tmp_path: Path, monkeypatch) -> None:
    """Programs that ask for the descriptor, such as a prompt, get it."""
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert bare_cli("--version").code == 0
        assert sys.stdout.fileno() == stdout.fileno()
        assert not sys.stdout.isatty()
    assert (tmp_path / "out").read_text().count("\n") == 1


class _Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_reader_that_closes_the_pipe_of_a_command_ends_it_silently(cli, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Closed())
    code, _, err = cli("whoami")
    assert (code, err) == (1, "")


def test_a_pipe_that_does_not_wait_gets_the_whole_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe is waited for."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink, b"-" * 4096)
    read, select_, is_full = bytearray(), select.select, threading.Event()

    def drain() -> None:
        is_full.wait()
        while part := os.read(source, 65536):
            read.extend(part)

    def waited_for(*files: Any) -> Any:
        is_full.set()
        return select_(*files)

    monkeypatch.setattr(select, "select", waited_for)
    reader = threading.Thread(target=drain)
    reader.start()
    with io.TextIOWrapper(io.FileIO(sink, "w")) as stream:
        whole(stream).write("x" * 200_000)
    reader.join()
    os.close(source)
    assert bytes(read).lstrip(b"-") == b"x" * 200_000


@pytest.mark.parametrize("name", app.commands)
def test_the_help_of_a_command_describes_each_argument_and_option(name: str) -> None:
    command = app.commands[name].load()
    for one in (command, *getattr(command, "commands", {}).values()):
        assert [param.name for param in one.params if not param.help] == []
