"""What is kept for later commands, by several at once and on machines that lack something, and what other programs get of it."""

import asyncio
import errno
import io
import os
import signal
import stat
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from test_account import folder, stdin_of

from boardclient import AsyncSession, AuthenticationError, ConsentRequired, FileTokenStore
from boardclient.testing import BoardService

__all__ = ["folder"]


@pytest.fixture
def signed_in(cli, board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign in with a token and a key, and take the variables away."""
    monkeypatch.setattr(sys, "stdin", stdin_of(board_service.token.encode()))
    assert cli("login", "--with-token").code == 0
    for name in ("BASE_URL", "TOKEN", "KEY"):
        monkeypatch.delenv(f"BOARDCLIENT_{name}")


def run(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "boardclient", *argv], capture_output=True, text=True, check=False, **options)


# --- several at once


@pytest.mark.full
def test_commands_that_run_at_the_same_time_keep_what_each_has_learnt(cli, board_service: BoardService) -> None:
    """No other list of boards exists, so each name has to be kept."""
    command = [sys.executable, "-m", "boardclient", "board", "create"]
    runs = [subprocess.Popen([*command, f"Board {number}"], stdout=subprocess.DEVNULL) for number in range(8)]
    assert [process.wait() for process in runs] == [0] * 8
    assert len(cli("board", "list").out.splitlines()) == 8


def test_a_sign_in_keeps_what_others_have_kept_while_it_waited(cli, board_service: BoardService, monkeypatch) -> None:
    """The browser may take minutes."""
    stdin = io.BytesIO(board_service.token.encode())

    class Waiting:
        def isatty(self) -> bool:
            return False

        @property
        def buffer(self) -> object:
            assert run("board", "create", "Launch").returncode == 0
            return stdin

    monkeypatch.setattr(sys, "stdin", Waiting())
    assert cli("login", "--with-token").code == 0
    assert cli("board", "list").out.endswith("\tLaunch\n")
    monkeypatch.delenv("BOARDCLIENT_TOKEN")
    assert cli("whoami").code == 0


def test_a_command_that_is_killed_while_it_writes_leaves_the_file_whole(cli, signed_in, folder: Path) -> None:
    """The next one waits for nothing, and finds what was there before."""
    before = (folder / "profiles.json").read_bytes()
    killed = (
        "import os, signal\nos.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\nimport boardclient.cli as cli\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", killed, "board", "name", "b1", "Launch"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "profiles.json").read_bytes() == before
    assert cli("board", "name", "b2", "Plan").code == 0
    assert cli("board", "list").out == "b2\tPlan\n"


def test_a_lock_that_is_held_for_long_is_named(cli, signed_in, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("boardclient.credentials._profiles._LOCK_SECONDS", 0.0)
    holding = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\nc.execute('BEGIN EXCLUSIVE')\nprint(flush=True)\ninput()"
    held = [sys.executable, "-c", holding, str(folder / "profiles.lock")]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        code, _, err = cli("board", "name", "b1", "Launch")
        holder.communicate("\n")
    assert code == 2
    assert "profiles.json: database is locked" in err


def test_a_file_that_others_could_read_is_made_private(cli, board_service: BoardService, folder: Path, monkeypatch) -> None:
    """It gets the key and the client's secret."""
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text('{"services": {}, "current": null}')
    (folder / "profiles.json").chmod(0o644)
    modes, real = list[int](), os.fsync

    def fsync(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(sys, "stdin", stdin_of(board_service.token.encode()))
    assert cli("login", "--with-token").code == 0
    assert {*modes} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert board_service.key in (folder / "profiles.json").read_text()


# --- what a machine lacks


@pytest.mark.full
@pytest.mark.parametrize("home", ["/dev/null", ""])
def test_no_home_folder_fails_no_command_for_which_the_environment_names_all(board_service, board, tmp_path, home: str) -> None:
    """As in containers: HOME is no folder, or is empty."""
    (tmp_path / "rows.csv").write_text("name,list\nA,To Do\n")
    env = {"PATH": os.environ["PATH"], **board_service.environment, "HOME": home}
    for argv in (
        ["whoami"],
        ["board", "create", "B"],
        ["board", "show", board.board],
        ["import", "rows.csv", "--board", board.board],
        ["auth", "status"],
        ["doctor"],
        ["run", "--", "true"],
    ):
        done = run(*argv, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_without_a_home_folder_what_needs_one_says_what_to_set(bare_cli, board_service, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without an entry
    bare_cli("whoami").fails(
        2, "the service's address is not set (the home folder is not known: set HOME): set BOARDCLIENT_BASE_URL"
    )
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", board_service.base_url)
    bare_cli("whoami").fails(4, "(the home folder is not known: set HOME): set BOARDCLIENT_TOKEN, or run boardclient login\n")
    bare_cli("login", "--with-token").fails(2, "can't write the file of profiles: the home folder is not known: set HOME")
    assert "the home folder is not known" in bare_cli("doctor").out


@pytest.mark.parametrize(
    ("platform", "variable", "place"), [("win32", "APPDATA", ""), ("darwin", "HOME", "Library/Application Support")]
)
def test_the_files_are_where_the_system_keeps_those_of_applications(
    cli, tmp_path: Path, monkeypatch, platform: str, variable: str, place: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "of user"))
    monkeypatch.setattr(sys, "platform", platform)
    assert cli("board", "name", "b1", "Launch").code == 0
    assert (tmp_path / "of user" / place / "boardclient" / "profiles.json").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EMFILE, "Too many open files: allow more with: ulimit -n 1024"), (errno.EACCES, "Permission denied")],
)
def test_a_file_that_can_t_be_opened_is_named_with_what_helps(bare_cli, monkeypatch, number: int, words: str) -> None:
    """It is not called damaged, and nobody is asked to delete it."""

    def refuse(path: Path, **_: object) -> str:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    code, _, err = bare_cli("whoami")
    assert code == 2
    assert f"profiles.json can't be read: {words})" in err
    assert "delete" not in err


@pytest.fixture
def foreign_keyring(monkeypatch) -> types.ModuleType:
    """Put a module in place of keyring, which tests give its functions."""
    module = types.ModuleType("keyring")
    monkeypatch.setitem(sys.modules, "keyring", module)
    entries: dict[str, str] = {}
    module.get_password = lambda service, name: entries.get(name)
    module.set_password = lambda service, name, value: entries.__setitem__(name, value)
    module.delete_password = lambda service, name: entries.pop(name)
    module.entries = entries
    return module


def test_a_keyring_that_hangs_ends_a_command_with_words(
    cli, foreign_keyring, signed_in, board_service, monkeypatch, caplog
) -> None:
    """It waits for a password that nobody can type. A token in the environment does without it."""
    monkeypatch.setattr("boardclient.credentials._keyring._SECONDS", 0.0)
    never = threading.Event()
    foreign_keyring.get_password = lambda service, name: never.wait()
    cli("whoami").fails(4, "did not answer for 0 s: unlock it, set BOARDCLIENT_TOKEN, or run boardclient login\n")
    assert "waiting for the system's keyring, which may ask you to unlock it" in caplog.text
    assert cli("board", "list").code == 0
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    assert cli("whoami").code == 0
    never.set()


@pytest.mark.parametrize("entry", ["nonsense", "[]"])
def test_a_damaged_entry_in_the_keyring_is_named(cli, foreign_keyring, signed_in, board_service, entry: str) -> None:
    foreign_keyring.entries[board_service.base_url] = entry
    cli("whoami").fails(4, "its entry of boardclient is damaged: run boardclient login\n")


def test_a_keyring_may_fail_in_any_way(cli, foreign_keyring, board_service, monkeypatch) -> None:
    """A backend without a bus raises errors of its own. The secrets are kept in files then."""

    def fail(*_: str) -> None:
        raise RuntimeError("no bus")

    foreign_keyring.set_password = fail
    monkeypatch.setattr(sys, "stdin", stdin_of(board_service.token.encode()))
    assert "tokens.sqlite3 (mode 0600)" in cli("login", "--with-token").out


# --- other programs


def test_the_token_is_printed_for_other_programs(cli, signed_in, board_service: BoardService, monkeypatch) -> None:
    code, out, err = cli("auth", "token")
    assert (code, out, err) == (0, f"{board_service.token}\n", "")
    assert cli("auth", "token", "--json").out == f'{{"token": "{board_service.token}"}}\n'
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, err = cli("auth", "token")
    assert out == f"{board_service.token}\n"
    assert "can act in your name" in err
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "another")
    assert cli("auth", "token").out == "another\n"


def test_no_token_is_printed_if_there_is_none(cli, signed_in, board_service: BoardService, folder: Path) -> None:
    asyncio.run(FileTokenStore(folder / "tokens.sqlite3").delete(board_service.base_url))
    for _ in range(2):
        cli("auth", "token").fails(4, "run boardclient login")
        cli("logout")


_SCRIPT = "import os, sys; sys.exit([name for name in sorted(os.environ) if name.startswith('BOARDCLIENT_')] != sys.argv[1:])"


def test_a_program_gets_service_and_token_and_its_exit_code_is_passed_on(signed_in, board_service: BoardService) -> None:
    """Options of the program are its own, with and without "--"."""
    names = ["BOARDCLIENT_BASE_URL", "BOARDCLIENT_KEY", "BOARDCLIENT_TOKEN"]
    assert run("run", "--", sys.executable, "-c", _SCRIPT, *names).returncode == 0
    assert run("run", sys.executable, "-c", _SCRIPT, "--json", "x").returncode == 1
    assert run("run", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "x").stdout == "['--json', 'x']\n"
    assert run("run", "sh", "-c", "exit 42").returncode == 42
    code = "import asyncio; from boardclient import AsyncSession as A; asyncio.run(A.from_env().ping())"
    assert run("run", "--", sys.executable, "-W", "ignore", "-c", code).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ])
def test_a_signal_that_ends_the_program_is_passed_on(signed_in, number: signal.Signals) -> None:
    """Also one that Python ignores: the program has the usual handlers."""
    assert run("run", "--", "sh", "-c", f"kill -{number} $$").returncode == -number


@pytest.mark.parametrize(
    ("program", "code", "words"), [("no-such-program", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")]
)
def test_a_program_that_can_t_be_run_is_named(cli, signed_in, program: str, code: int, words: str) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)]
    done = cli("run", program)
    assert done.code == code
    assert [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)] == handlers
    assert done.err.startswith(f"boardclient: error: can't run {program}: {words}")


async def test_a_program_uses_the_sign_in_of_the_terminal(signed_in, board_service: BoardService) -> None:
    for name in (None, board_service.base_url, f"{board_service.base_url}/"):
        async with AsyncSession.from_profile(name, timeout=5) as session:
            await session.members.me()
    assert board_service.calls[-1].query["key"] == board_service.key


async def test_a_program_takes_the_token_of_the_next_sign_in(signed_in, board_service: BoardService) -> None:
    """Until then a call raises that the user has to sign in."""
    async with AsyncSession.from_profile() as session:
        board_service.rules.expire_tokens()
        with pytest.raises(ConsentRequired, match="has to sign in; run boardclient login"):
            await session.members.me()
        token = board_service.rules.issue_token()
        command = [sys.executable, "-m", "boardclient", "login", "--with-token"]
        environment = {**os.environ, "BOARDCLIENT_KEY": board_service.key}
        await asyncio.to_thread(subprocess.run, command, input=token, text=True, check=True, env=environment)
        await session.members.me()


async def test_variables_come_before_the_profile_unless_it_is_named(signed_in, board_service: BoardService, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "another-token")
    async with AsyncSession.from_profile(retry=None) as session:
        with pytest.raises(AuthenticationError):
            await session.members.me()
    async with AsyncSession.from_profile(board_service.base_url) as session:
        await session.members.me()


def test_a_service_that_nobody_has_signed_in_to_is_named(signed_in, board_service: BoardService, folder: Path) -> None:
    words = f"no profile of https://other.example .there are {board_service.base_url}.: run boardclient --base-url"
    with pytest.raises(ValueError, match=words):
        AsyncSession.from_profile("https://other.example")
    (folder / "profiles.json").write_text("nonsense")
    with pytest.raises(ValueError, match="mend it, or delete it"):
        AsyncSession.from_profile(board_service.base_url)
    (folder / "profiles.json").unlink()
    with pytest.raises(ValueError, match="there are none"):
        AsyncSession.from_profile(board_service.base_url)


@pytest.mark.parametrize("command", [["board", "list"], ["logout"]])
def test_profiles_that_can_t_be_read_are_not_shown_as_empty(signed_in, cli, folder: Path, board_service, command) -> None:
    """A token that may be kept is not said to be deleted."""
    (folder / "profiles.json").write_text("{")
    cli("--base-url", board_service.base_url, *command).fails(2, f"{folder / 'profiles.json'} can't be read")


# --- what others may change


def test_profiles_that_others_may_change_are_refused(cli, signed_in, folder: Path) -> None:
    """Who can change the file of profiles sends the token to a service of their own."""
    path = folder / "profiles.json"
    path.chmod(0o622)
    cli("whoami").fails(2, f"others may change {path}, which names where tokens are sent: chmod 600 {path}")
    path.chmod(0o600)
    assert cli("whoami").code == 0


@pytest.mark.parametrize("command", [["whoami"], ["logout"], ["login", "--with-token"]])
def test_an_address_with_a_password_is_refused_without_showing_it(cli, command: list[str]) -> None:
    """What is no address of a service is not repeated."""
    result = cli("--base-url", "https://user:very-secret@board.example", *command)
    result.fails(2, "the service's address must hold no user and no password")
    assert "very-secret" not in result.out + result.err
