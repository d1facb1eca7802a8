"""Signing in and out, where tokens are kept, what happens when they end, and what `doctor` finds."""

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import click
import pytest
from fault_helpers import Meanwhile
from import_helpers import counts, into, names, summary
from waiting import SECONDS

from boardclient import FileTokenStore
from boardclient.cli._commands import _account
from boardclient.testing import BoardService, assert_no_secrets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the folder of profiles and secrets."""
    return tmp_path / "config" / "boardclient"


@pytest.fixture
def oauth_cli(bare_cli, board_service: BoardService, monkeypatch):
    """Call the command line, configured for sign-ins at `board_service`."""
    for name, value in board_service.environment.items():
        if name not in {"BOARDCLIENT_TOKEN", "BOARDCLIENT_REDIRECT_URI"}:
            monkeypatch.setenv(name, value)
    return bare_cli


class Browser:
    """Goes where the command line sends it, consents, and comes back."""

    def __init__(self, service: BoardService) -> None:
        self.service, self.pages, self.is_back = service, list[str](), threading.Event()
        self.forged: dict[str, str] = {}
        self.answer: dict[str, str] = {}

    def __call__(self, address: str) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        self.service.rules.redirect_uri = asked["redirect_uri"]  # a service allows any port of a loopback address (RFC 8252 7.3)
        answer = self.answer or {"code": self.service.rules.new_code(challenge=asked["code_challenge"])}
        for query in [*([self.forged] if self.forged else []), {**answer, "state": asked["state"]}]:
            with urllib.request.urlopen(f"{asked['redirect_uri']}?{urlencode(query)}") as page:
                self.pages.append(page.read().decode())
        self.is_back.set()


@pytest.fixture
def browser(board_service: BoardService, monkeypatch) -> Browser:
    browser = Browser(board_service)
    monkeypatch.setattr("webbrowser.open", browser)
    return browser


def stdin_of(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data))


def record(out: str) -> dict[str, str]:
    return dict(line.split("\t") for line in out.splitlines())


def test_a_browser_signs_in_and_the_token_is_kept_in_private_files(
    oauth_cli, board_service, browser, folder, monkeypatch
) -> None:
    code, out, err = oauth_cli("login")
    assert code == 0
    place = f"the file {folder / 'tokens.sqlite3'} (mode 0600)"
    assert record(out) == {"service": board_service.base_url, "account": "A Member", "kept_in": place}
    assert "Sign in at: " in err
    assert browser.is_back.wait(SECONDS)
    assert "You are signed in" in browser.pages[0]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert_no_secrets(out + err, secrets=[board_service.client_secret, *board_service.rules.tokens])

    for name in board_service.environment:  # from now on everything is known
        monkeypatch.delenv(name, raising=False)
    found = record(oauth_cli("auth", "status").out)
    assert found == {"service": board_service.base_url, "kept_in": place, "account": "A Member", "accepted": "true"}
    assert oauth_cli("whoami").code == 0

    assert record(oauth_cli("--base-url", board_service.base_url, "logout").out)["deleted"] == "true"
    assert board_service.client_secret not in (folder / "profiles.json").read_text()
    oauth_cli("--base-url", board_service.base_url, "whoami").fails(4, "run boardclient login")
    assert record(oauth_cli("--base-url", board_service.base_url, "logout").out)["deleted"] == "false"


def test_a_sign_in_is_printed_as_json(oauth_cli, board_service: BoardService, browser) -> None:
    assert json.loads(oauth_cli("login", "--json=service,account").out) == {
        "service": board_service.base_url,
        "account": "A Member",
    }
    assert json.loads(oauth_cli("logout", "--json").out) == {"service": board_service.base_url, "deleted": True}
    assert json.loads(oauth_cli("board", "name", "b1", "B", "--json").out) == {"id": "b1", "name": "B"}


def test_a_redirect_of_another_sign_in_is_not_taken(oauth_cli, browser) -> None:
    browser.forged = {"code": "stolen", "state": "another"}
    assert oauth_cli("login").code == 0
    assert browser.is_back.wait(SECONDS)
    assert "its state is another one" in browser.pages[0]


def test_an_address_of_another_sign_in_that_is_pasted_is_not_taken(oauth_cli, board_service, browser, monkeypatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"https://app.example/callback?code=stolen&state=another\n")
    opened, come_back = threading.Event(), browser.__call__
    monkeypatch.setattr("webbrowser.open", lambda address: opened.wait(SECONDS) and come_back(address))
    real = click.secho

    def told(text: str, **options: object) -> None:
        if "its state is another one" in text:
            opened.set()
        real(text, **options)

    monkeypatch.setattr("click.secho", told)
    with open(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert oauth_cli("login").code == 0
    os.close(writer)
    assert opened.is_set()


def test_a_sign_in_says_that_the_token_of_the_environment_is_used(oauth_cli, board_service, browser, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    assert "BOARDCLIENT_TOKEN is set: commands use it in place of this sign-in" in oauth_cli("login").err


def test_a_refusal_ends_the_sign_in(oauth_cli, browser, folder) -> None:
    browser.answer = {"error": "access_denied", "error_description": "the user <refused>"}
    code, out, err = oauth_cli("login")
    assert (code, out) == (1, "")
    assert err.endswith("error: not signed in: the user <refused>\n")
    assert browser.is_back.wait(SECONDS)
    assert "the user &lt;refused&gt;" in browser.pages[0]
    assert not (folder / "tokens.sqlite3").exists()


@pytest.mark.parametrize("form", ["{code}\nmore", "\n{uri}?code={quoted}&state={state}", "code={quoted}&state={state}"])
@pytest.mark.parametrize("redirect_uri", [None, "https://app.example/callback"])
def test_a_code_or_an_address_can_be_pasted(oauth_cli, board_service, monkeypatch, form: str, redirect_uri: str | None) -> None:
    """Where the browser runs on another machine."""
    reader, writer = os.pipe()
    if redirect_uri is not None:
        monkeypatch.setenv("BOARDCLIENT_REDIRECT_URI", redirect_uri)

    def paste(text: str, **_: object) -> None:
        """Paste what the address that is printed leads to."""
        if not text.startswith("Sign in at: "):
            return
        asked = {name: values[0] for name, values in parse_qs(urlsplit(text.split()[-1]).query).items()}
        board_service.rules.redirect_uri = asked["redirect_uri"]
        code = board_service.rules.new_code(challenge=asked["code_challenge"])
        quoted = urlencode({"": code})[1:]
        pasted = form.format(code=code, quoted=quoted, uri=asked["redirect_uri"], state=asked["state"])
        os.write(writer, f"{pasted}\n".encode())

    monkeypatch.setattr("webbrowser.open", lambda address: None)
    monkeypatch.setattr("click.secho", paste)
    with open(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert oauth_cli("login").code == 0
    os.close(writer)


@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_standard_input_that_ends_does_not_end_the_sign_in(oauth_cli, browser, monkeypatch, is_pipe: bool) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader) as pipe, open(os.devnull) as nowhere:
        monkeypatch.setattr(sys, "stdin", pipe if is_pipe else nowhere)
        assert oauth_cli("login").code == 0


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_sign_in_to_which_nobody_comes_back_ends_with_words(oauth_cli, monkeypatch, is_alone: bool) -> None:
    """Soon if there is neither a browser nor an input, as in a job of a server."""
    monkeypatch.setattr("boardclient.cli._commands._sign_in._SECONDS", 60.0 if is_alone else 0.0)
    monkeypatch.setattr("boardclient.cli._commands._sign_in._ALONE_SECONDS", 0.0)
    monkeypatch.setattr("webbrowser.open", lambda address: not is_alone)
    with open(os.devnull) as nowhere:
        monkeypatch.setattr(sys, "stdin", nowhere)
        code, out, err = oauth_cli("login")
    assert (code, out) == (1, "")
    assert err.endswith("error: not signed in: nobody came back within 0 s; or use: boardclient login --with-token\n")
    assert ("There is no browser that could be opened and no input" in err) == is_alone


def test_a_browser_that_can_t_be_opened_is_no_matter_once_the_user_is_back(oauth_cli, browser, monkeypatch) -> None:
    """A browser of the terminal returns when its user ends it, which may be after the sign-in."""
    ended, signed_in = threading.Event(), threading.Event()

    def open_in_terminal(address: str) -> bool:
        browser(address)
        signed_in.wait(SECONDS)
        threading.current_thread().ended = ended
        return False

    monkeypatch.setattr("webbrowser.open", open_in_terminal)
    assert oauth_cli("login").code == 0
    thread = next(one for one in threading.enumerate() if one._target is not None and "open_browser" in one._target.__name__)
    signed_in.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_head_of_the_redirect_address_signs_nobody_in(oauth_cli, browser, board_service, monkeypatch) -> None:
    """Scanners of links send one before the browser comes back."""
    statuses = list[int]()

    def look_first(address: str) -> None:
        redirect_uri, state = (parse_qs(urlsplit(address).query)[name][0] for name in ("redirect_uri", "state"))
        head = urllib.request.Request(f"{redirect_uri}?{urlencode({'code': 'c', 'state': state})}", method="HEAD")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(head)
        statuses.append(caught.value.code)
        caught.value.close()
        browser(address)

    monkeypatch.setattr("webbrowser.open", look_first)
    assert oauth_cli("login").code == 0
    assert statuses == [405]


def test_the_status_names_the_environment_where_the_token_is_there(cli) -> None:
    assert record(cli("auth", "status").out)["kept_in"] == "the environment"


def test_a_service_that_is_not_the_current_one_is_left_as_well(oauth_cli, browser, folder) -> None:
    oauth_cli("login")
    profiles = json.loads((folder / "profiles.json").read_text())
    (folder / "profiles.json").write_text(json.dumps({**profiles, "current": "https://board.example"}))
    assert oauth_cli("logout").code == 0
    assert json.loads((folder / "profiles.json").read_text())["current"] == "https://board.example"


def test_an_api_token_is_read_from_standard_input(cli, board_service: BoardService, monkeypatch, folder) -> None:
    monkeypatch.delenv("BOARDCLIENT_TOKEN")
    monkeypatch.setattr(sys, "stdin", stdin_of(f"\ufeff {board_service.token}\r\n".encode()))  # as Windows writes
    assert cli("login", "--with-token").code == 0
    monkeypatch.delenv("BOARDCLIENT_KEY")
    assert cli("whoami").code == 0
    for text, code in [("", 2), ("wrong-token-value", 4)]:
        monkeypatch.setattr(sys, "stdin", stdin_of(text.encode()))
        result = cli("login", "--with-token")
        assert (result.code, result.out) == (code, "")
        assert "wrong-token-value" not in result.err
    assert cli("whoami").code == 0
    board_service.rules.expire_tokens()
    assert record(cli("auth", "status").out)["accepted"] == "false"
    cli("whoami").fails(4, "run boardclient login")


def test_a_sign_in_says_that_it_waits_for_a_token(cli, board_service: BoardService, monkeypatch) -> None:
    """A user who has forgotten to give one sees why nothing happens."""
    said, real = threading.Event(), _account.note

    def note(text: str) -> None:
        real(text)
        said.set()

    class Waiting(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            said.wait()
            return super().readline(size)

    monkeypatch.setattr(_account, "note", note)
    monkeypatch.setattr(_account, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Waiting(board_service.token.encode())))
    code, _, err = cli("login", "--with-token")
    assert (code, err.splitlines()[0]) == (0, "waiting for the access token on standard input, a line of text")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32-be", "latin-1"])
def test_a_token_in_a_file_of_another_encoding_is_read_or_named(cli, board_service, monkeypatch, encoding: str) -> None:
    """PowerShell writes files in UTF-16, with a mark that names it."""
    text = board_service.token if encoding == "utf-16" else f"{board_service.token}\xe9"
    monkeypatch.setattr(sys, "stdin", stdin_of(f"{text}\r\n".encode(encoding)))
    code, _, err = cli("login", "--with-token")
    assert code == (0 if encoding == "utf-16" else 2)
    assert ("not UTF-8 text: save its file in this encoding" in err) == (code == 2)


def test_what_a_sign_in_lacks_is_named(oauth_cli, monkeypatch) -> None:
    for name in ("AUTH_URL", "AUTHORIZE_URL", "CLIENT_SECRET"):
        monkeypatch.delenv(f"BOARDCLIENT_{name}")
    oauth_cli("login").fails(
        2, "not set: BOARDCLIENT_AUTH_URL, BOARDCLIENT_AUTHORIZE_URL, BOARDCLIENT_CLIENT_SECRET; or use a token"
    )


def test_a_redirect_address_in_use_is_named(oauth_cli, monkeypatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("BOARDCLIENT_REDIRECT_URI", f"http://127.0.0.1:{taken.getsockname()[1]}/callback")
        code, _, err = oauth_cli("login")
    assert code == 2
    assert "Address already in use" in err


# --- the keyring


@pytest.fixture
def keyring(monkeypatch) -> dict[str, str]:
    """Put a keyring in place, and give its entries."""
    entries: dict[str, str] = {}
    module, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})

    def delete(service: str, name: str) -> None:
        if name not in entries:
            raise errors.KeyringError(name)
        del entries[name]

    module.get_password = lambda service, name: entries.get(name)
    module.set_password = lambda service, name, value: entries.__setitem__(name, value)
    module.delete_password, module.errors = delete, errors
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return entries


def test_the_token_is_kept_in_the_keyring_if_there_is_one(oauth_cli, board_service, browser, keyring, folder) -> None:
    for _ in range(2):  # the second token replaces the first
        assert record(oauth_cli("login").out)["kept_in"] == "the system's keyring"
    assert keyring.keys() == {board_service.base_url}
    assert board_service.client_secret in json.loads(keyring[board_service.base_url]).values()
    token = json.loads(keyring[board_service.base_url])["token"]
    assert token in board_service.rules.tokens
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert token.encode() not in kept
    assert board_service.client_secret.encode() not in kept
    assert oauth_cli("whoami").code == 0
    assert oauth_cli("logout").code == 0
    assert keyring == {}


def test_the_later_of_two_sign_ins_is_kept(oauth_cli, board_service, browser, keyring, monkeypatch) -> None:
    real, asked = FileTokenStore.generation, []

    async def generation(store: FileTokenStore, account: str, **at: str) -> int:
        asked.append(account)
        return await real(store, account, **at) - (len(asked) == 1)

    monkeypatch.setattr(FileTokenStore, "generation", generation)
    assert oauth_cli("login").code == 0
    assert oauth_cli("whoami").code == 0


def test_an_entry_that_is_gone_from_the_keyring_counts_as_no_token(oauth_cli, board_service, browser, keyring, folder) -> None:
    oauth_cli("login")
    asyncio.run(FileTokenStore(folder / "tokens.sqlite3").delete(board_service.base_url))
    assert oauth_cli("whoami").code == 4
    keyring.clear()
    oauth_cli("login")
    del keyring[board_service.base_url]
    assert oauth_cli("whoami").code == 4
    assert oauth_cli("login").code == 0
    assert oauth_cli("whoami").code == 0


def locked(*_: str) -> None:
    raise sys.modules["keyring.errors"].KeyringError("it is locked")


def test_a_keyring_that_is_locked_is_named(oauth_cli, board_service, browser, keyring, monkeypatch) -> None:
    oauth_cli("login")
    monkeypatch.setattr(sys.modules["keyring"], "get_password", locked)
    oauth_cli("whoami").fails(4, "the system's keyring can't be used: it is locked; run boardclient login")
    assert oauth_cli("board", "list").code == 0
    monkeypatch.setenv("BOARDCLIENT_TOKEN", next(iter(board_service.rules.tokens)))
    assert oauth_cli("whoami").code == 0  # variables override what is kept
    monkeypatch.delenv("BOARDCLIENT_TOKEN")


def test_a_logout_with_a_locked_keyring_says_what_is_left(oauth_cli, board_service, browser, keyring, monkeypatch) -> None:
    """It ends with 1 as long as the keyring has the token, signs out of the rest, and the next one tries again."""
    oauth_cli("login")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["keyring"], "get_password", locked)
        for _ in range(2):
            words = (
                f"it is locked; it has the token and the secrets of {board_service.base_url} still: run boardclient logout again"
            )
            oauth_cli("logout").fails(1, words)
        oauth_cli("whoami").fails(4, "not signed in")
    assert keyring.keys() == {board_service.base_url}
    assert oauth_cli("logout").code == 0
    assert keyring == {}
    assert record(oauth_cli("logout").out)["deleted"] == "false"


def test_a_sign_in_that_falls_back_to_the_file_leaves_no_entry_behind(
    oauth_cli, board_service, browser, keyring, monkeypatch
) -> None:
    """The entry of an earlier sign-in is deleted at once, or, where the keyring is locked, by the next logout that can."""
    oauth_cli("login")
    module = sys.modules["keyring"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "set_password", locked)
        assert "mode 0600" in oauth_cli("login").out
    assert keyring == {}
    oauth_cli("login")
    with monkeypatch.context() as patch:
        patch.setattr(module, "set_password", locked)
        patch.setattr(module, "get_password", locked)
        assert "mode 0600" in oauth_cli("login").out
        assert keyring
        oauth_cli("logout").fails(1, "still")
    assert oauth_cli("logout").code == 0
    assert keyring == {}


@pytest.mark.parametrize(
    ("ring", "words"),
    [
        (types.SimpleNamespace(name="SecretService Keyring"), "the system's keyring (SecretService Keyring)"),
        (type("PlaintextKeyring", (), {"file_path": "/home/ann/ring", "name": "x"})(), "plain text in /home/ann/ring"),
        (
            types.SimpleNamespace(name="chainer", backends=[types.SimpleNamespace(name="KWallet")]),
            "the system's keyring (KWallet)",
        ),
        (types.SimpleNamespace(), "the system's keyring"),
    ],
)
def test_the_keyring_is_named(oauth_cli, browser, keyring, monkeypatch, ring: object, words: str) -> None:
    """Where the token is kept names the back end, which may be a file that others read."""
    monkeypatch.setattr(sys.modules["keyring"], "get_keyring", lambda: ring, raising=False)
    assert record(oauth_cli("login").out)["kept_in"] == words


def test_a_keyring_that_keeps_nothing_is_not_used(oauth_cli, browser, keyring, monkeypatch) -> None:
    """As that of `keyring --disable`."""
    monkeypatch.setattr(sys.modules["keyring"], "set_password", lambda *_: None)
    assert record(oauth_cli("login").out)["kept_in"].startswith("the file ")
    assert oauth_cli("whoami").code == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"services": {}, "current": 5}',
        '{"services": {"URL": {"boards": []}}, "current": null}',
        '{"services": {"URL": {"boards": {"a": 5}}}, "current": null}',
        '{"services": {"URL": {"client": null}}, "current": null}',
        '{"services": {"URL": {"client": {"timeout": "1"}}}, "current": null}',
        '{"services": {"URL": {"secrets": null}}, "current": null}',
    ],
)
def test_profiles_of_another_shape_are_named(cli, board_service, folder, monkeypatch, text: str) -> None:
    """Also by a command that looks for a name. Completion offers nothing."""
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text(text.replace("URL", board_service.base_url))
    cli("board", "show", "Launch").fails(1, "names of boards are not known: ", "profiles.json can't be read")
    line = {"_BOARDCLIENT_COMPLETE": "bash_complete", "COMP_WORDS": "boardclient board show ", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "boardclient"], env={**os.environ, **line}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_signal_ends_the_reading_of_a_token(cli, monkeypatch) -> None:
    """The event loop, which handles signals otherwise, stands still meanwhile."""

    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

        def readline(self, *_: object) -> bytes:
            seen.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
            return b""

    seen: list[object] = []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Terminal()))
    code, _, err = cli("login", "--with-token")
    assert code == 2
    assert err.startswith("Paste the access token, and press Enter.\n")
    assert seen == [signal.SIG_DFL, signal.SIG_DFL]


@pytest.mark.full
def test_an_import_by_a_cluster_needs_a_token_in_the_environment(oauth_cli, browser, board, tmp_path) -> None:
    """They run in other processes, which don't know who has signed in here."""
    file = tmp_path / "cards.csv"
    file.write_text("name,list\nA,To Do\n")
    oauth_cli("login")
    oauth_cli("import", str(file), "--board", board.board, "--engine", "dask").fails(2, "BOARDCLIENT_TOKEN")


# --- tokens that end


def test_an_import_outlives_its_token(oauth_cli, board_service, browser, board, csv_file) -> None:
    """With `--patience`, or on a terminal, the user may sign in by `boardclient login` in another one. Other commands end."""
    oauth_cli("login")
    environment = {"BOARDCLIENT_BASE_URL": board_service.base_url, "BOARDCLIENT_KEY": board_service.key}
    rows = "name\n" + "".join(f"card {n}\n" for n in range(50))

    def expire() -> None:
        board_service.rules.expire_tokens()
        threading.Thread(target=sign_in_elsewhere, daemon=True).start()

    def sign_in_elsewhere() -> None:
        token = board_service.rules.issue_token()
        command = [sys.executable, "-m", "boardclient", "login", "--with-token"]
        subprocess.run(command, input=token, text=True, check=True, env={**os.environ, **environment})

    board_service.faults.add(Meanwhile(expire, is_after=True), "cards.create", call=20)
    code, out, err = oauth_cli("import", csv_file(rows), *into(board), "--concurrency", "4", "--patience", "600", "--json")
    assert code == 0, err
    assert summary(out)["created"] == 50
    assert len(names(board_service)) == 50
    board_service.rules.expire_tokens()
    oauth_cli("card", "create", "A", "--list", board.todo).fails(4, "run boardclient login")


@pytest.mark.parametrize("patience", [(), ("--patience", "0.01")])
def test_an_import_that_nobody_sees_ends_when_its_token_is_refused(
    oauth_cli, board_service, browser, board, csv_file, monkeypatch, patience: tuple[str, ...]
) -> None:
    """It does not wait for a sign-in, unless `--patience` says for how long. The same command line resumes it."""
    oauth_cli("login")
    path = csv_file("name\n" + "".join(f"card {n}\n" for n in range(9)))
    board_service.faults.add(Meanwhile(board_service.rules.expire_tokens, is_after=True), "cards.create", call=3)
    line = ("import", path, *into(board), "--concurrency", "1", "--json")
    code, out, err = oauth_cli(*line, *patience)
    assert (code, counts(summary(out))) == (4, {"created": 3, "already": 0, "failed": 0, "unknown": 0})
    assert summary(out)["not_reached"] == 6
    assert err.endswith("the service refuses the token: run boardclient login; then the same command line resumes it\n")
    oauth_cli("login")
    code, out, _ = oauth_cli(*line)
    assert (code, counts(summary(out))) == (0, {"created": 6, "already": 3, "failed": 0, "unknown": 0})
    assert len(names(board_service)) == 9


# --- files


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "profiles.json can't be read (Expecting value"),
        ("[]", "profiles.json can't be read (it holds no profiles): mend it"),
        ('{"services": 3, "current": null}', "profiles.json can't be read (it holds no profiles): mend it"),
        ('{"services": {"x": {"colour": 1}}, "current": null}', "profiles.json can't be read (it holds no profiles): mend it"),
    ],
)
def test_profiles_that_can_t_be_read_are_named(bare_cli, board_service, folder: Path, monkeypatch, text: str, why: str) -> None:
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text(text)
    for command in ("whoami", "export b", "board name b B", "login --with-token"):
        monkeypatch.setattr(sys, "stdin", stdin_of(board_service.token.encode()))
        code, _, err = bare_cli(*command.split())
        assert (code, err.count("\n")) == (2, 1)
        assert why in err
        assert "mend it, or delete it" in err
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", board_service.base_url)
    for command, exit_code in (("whoami", 4), ("board name b B", 2)):
        bare_cli(*command.split()).fails(exit_code, "mend it, or delete it")
    assert (folder / "profiles.json").read_text() == text


def test_a_board_is_created_even_if_its_name_can_t_be_kept(cli, board_service, folder: Path, monkeypatch) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")
    cli("board", "name", "b", "B").fails(2, "Not a directory; set XDG_CONFIG_HOME to a folder that can be written")
    folder.unlink()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = cli("board", "create", "B")
    assert code == 0
    assert record(out)["name"] == "B"
    assert f"can't write {folder / 'profiles.json'}: No space left on device: make room on the disk" in err
    assert {path.name for path in folder.iterdir()} == {"profiles.lock"}
    assert len(board_service.rules.boards) == 1


@pytest.mark.parametrize("value", ["", "config"])
def test_a_variable_that_names_no_folder_is_ignored(cli, tmp_path: Path, monkeypatch, value: str) -> None:
    """Otherwise the token would be written into the working directory."""
    home, working = tmp_path / "home", tmp_path / "working"
    for path in (home, working):
        path.mkdir()
    monkeypatch.chdir(working)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    monkeypatch.setattr(sys, "stdin", stdin_of(os.environ["BOARDCLIENT_TOKEN"].encode()))
    monkeypatch.delenv("BOARDCLIENT_TOKEN")
    assert cli("login", "--with-token").code == 0
    assert list(working.iterdir()) == []
    assert (home / ".config" / "boardclient" / "profiles.json").exists()


# --- doctor


def findings(out: str) -> dict[str, str]:
    return {line.split("\t")[0]: line.split("\t")[1] for line in out.splitlines()}


def test_doctor_finds_nothing_wrong(cli) -> None:
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    assert findings(out) == dict.fromkeys(["versions", "configuration", "credentials", "connection", "token", "clock"], "ok")
    found = json.loads(cli("doctor", "--json").out)
    assert found["clock"]["state"] == "ok"
    assert json.loads(cli("doctor", "--json=token").out) == {"token": {"state": "ok", "found": "accepted"}}


@pytest.mark.parametrize(
    ("variables", "code", "wrong", "words"),
    [
        ({"BASE_URL": ""}, 1, "configuration", "set BOARDCLIENT_BASE_URL"),
        ({"BASE_URL": "http://127.0.0.1:1"}, 1, "connection", "no connection"),
        ({"BASE_URL": "https://127.0.0.1:1"}, 1, "connection", "no connection"),
        ({"BASE_URL": "http://board.example"}, 1, "connection", "or --allow-insecure (before the command)"),
        ({"TOKEN": ""}, 4, "credentials", "not signed in"),
        ({"TOKEN": "wrong"}, 4, "token", "refused; the credentials are those of BOARDCLIENT_KEY and BOARDCLIENT_TOKEN"),
    ],
)
def test_doctor_says_what_is_wrong(cli, monkeypatch, variables, code, wrong: str, words: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BOARDCLIENT_{name}", value)
    result = cli("doctor")
    assert result.code == code
    assert findings(result.out)[wrong] == "wrong"
    assert words in result.out


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"[]"])
def test_doctor_takes_no_other_server_for_the_service(cli, board_service: BoardService, body: bytes) -> None:
    board_service.faults.add(board_service.faults.foreign_body(body), "members.me")
    assert cli("whoami").code == 1
    result = cli("doctor")
    assert result.code == 1
    assert findings(result.out)["connection"] == "wrong"
    assert "token" not in findings(result.out)


PAGE = b"<!doctype html><html><head><style>p{}</style></head><body><h1>Hotel &amp; Wi-Fi</h1><p>Sign in</p></body></html>"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, PAGE, "responds with a page, and not as the service does ('Hotel & Wi-Fi Sign in'): check the address ("),
        (404, PAGE, "responds with a page, and not as the service does (status 404, 'Hotel & Wi-Fi Sign in'): check the address"),
        (
            404,
            b"",
            "is not where the service is (status 404, an empty body): check the address (BOARDCLIENT_BASE_URL, --base-url)",
        ),
        (200, b"OK " * 50, "is not where the service is ('OK OK"),
        (502, PAGE, "(status 502, 'Hotel & Wi-Fi Sign in')"),
        (502, b"{}", "the service failed"),
    ],
)
def test_doctor_shows_the_first_words_of_what_is_not_the_service(
    cli, board_service, status: int, body: bytes, words: str
) -> None:
    """A portal, a page of an error, or another server is at the address."""
    board_service.faults.add(board_service.faults.foreign_body(body, "text/html", status), "members.me")
    code, out, _ = cli("doctor")
    assert (code, findings(out)["connection"]) == (1, "wrong")
    assert words in out
    assert f"connection\twrong\t{board_service.base_url}" in out or status == 502


def test_doctor_says_that_quotation_marks_belong_to_the_value(cli, board_service, monkeypatch) -> None:
    """Docker and systemd leave them in the variables that they read from a file."""
    monkeypatch.setenv("BOARDCLIENT_TOKEN", f'"{board_service.token}"')
    code, out, _ = cli("doctor")
    assert (code, board_service.token in out) == (4, False)
    assert "token\twrong\trefused; BOARDCLIENT_TOKEN holds quotation marks, which are sent: write it without them" in out
    monkeypatch.setenv("BOARDCLIENT_TOKEN", f"Bearer {board_service.token}")
    words = "refused; BOARDCLIENT_TOKEN holds spaces, which are sent: write it without them"
    assert words in cli("doctor").out
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "'https://board.example'")
    words = "BOARDCLIENT_BASE_URL is 'https://board.example', with the quotation marks: write it without them"
    assert f"configuration\twrong\t{words}" in cli("doctor").out
    cli("whoami").fails(2, words)


def test_doctor_checks_the_token_exchange(cli, board_service: BoardService, monkeypatch) -> None:
    """Nothing that is secret is sent there."""
    monkeypatch.setenv("BOARDCLIENT_AUTH_URL", board_service.auth_url)
    monkeypatch.setenv("BOARDCLIENT_CLIENT_SECRET", board_service.client_secret)
    code, out, _ = cli("doctor")
    assert (code, findings(out)["auth_url"], board_service.calls[-1].body) == (0, "ok", None)
    for url, words in (
        ("board.example", "'board.example' (BOARDCLIENT_AUTH_URL): it must be an absolute http or https URL"),
        ("http://127.0.0.1:1", "no connection to 127.0.0.1:1"),
        (board_service.auth_url, "exchanges no tokens (status 404, an empty body): check the address (BOARDCLIENT_AUTH_URL, "),
    ):
        board_service.faults.add(board_service.faults.foreign_body(b"", status=404), "token.exchange")
        monkeypatch.setenv("BOARDCLIENT_AUTH_URL", url)
        code, out, _ = cli("doctor")
        assert (code, findings(out)["auth_url"]) == (1, "wrong")
        assert words in out


def test_doctor_checks_the_time_zone(cli, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_TIMEZONE", "Europe/Berlin")
    assert "timezone\tok\tdates without an offset are in Europe/Berlin (BOARDCLIENT_TIMEZONE), where it is " in cli("doctor").out
    monkeypatch.setenv("BOARDCLIENT_TIMEZONE", "Berlin")
    code, out, _ = cli("doctor")
    assert code == 1
    assert "timezone\twrong\tBOARDCLIENT_TIMEZONE: 'Berlin' is not a time zone; names are like Europe/Berlin or UTC" in out


def test_a_wrong_key_beside_the_token_of_a_sign_in_says_which_variable(oauth_cli, browser, monkeypatch) -> None:
    assert oauth_cli("login").code == 0
    monkeypatch.setenv("BOARDCLIENT_KEY", "another")
    words = (
        "the key is that of BOARDCLIENT_KEY, and the token that of the sign-in: unset BOARDCLIENT_KEY, or run boardclient login"
    )
    assert f"token\twrong\trefused; {words}" in oauth_cli("doctor").out
    oauth_cli("whoami").fails(4, words)


# --- several services


@pytest.fixture
def two(bare_cli, board_service: BoardService, monkeypatch) -> Iterator[BoardService]:
    """Sign in to two services, the second of which is the current one, and give that one."""
    with BoardService() as other:
        for service in (board_service, other):
            monkeypatch.setattr(sys, "stdin", stdin_of(service.token.encode()))
            monkeypatch.setenv("BOARDCLIENT_KEY", service.key)
            assert bare_cli("--base-url", service.base_url, "login", "--with-token").code == 0
        monkeypatch.delenv("BOARDCLIENT_KEY")
        yield other


def test_the_status_lists_each_service(bare_cli, two: BoardService, board_service: BoardService) -> None:
    """That which commands use comes first. Its state alone decides on the exit code."""
    code, out, _ = bare_cli("auth", "status")
    services = [line.split("\t")[1] for line in out.splitlines() if line.startswith("service\t")]
    assert (code, services) == (0, [two.base_url, board_service.base_url])
    board_service.rules.expire_tokens()
    code, out, _ = bare_cli("auth", "status", "--json")
    found = json.loads(out)
    assert (code, found["service"], found["accepted"]) == (0, two.base_url, True)
    assert [(one["service"], one["current"], one["accepted"]) for one in found["profiles"]] == [
        (two.base_url, True, True),
        (board_service.base_url, False, False),
    ]
    two.faults.add(two.faults.status(503), "members.me")
    assert bare_cli("--timeout", "0.2", "--base-url", board_service.base_url, "auth", "status").code == 4
    code, out, _err = bare_cli("--timeout", "0.2", "auth", "status", "--json")
    assert (code, json.loads(out)["accepted"]) == (1, None)


def test_the_status_names_what_is_known_where_nobody_is_signed_in(bare_cli, two: BoardService, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://board.example")
    code, out, err = bare_cli("auth", "status", "--json")
    found = json.loads(out)
    assert (code, found["service"], found["accepted"], len(found["profiles"])) == (4, "https://board.example", False, 2)
    assert "not signed in to https://board.example" in err


def test_a_service_of_several_is_chosen(bare_cli, two: BoardService, board_service: BoardService, monkeypatch) -> None:
    """By its address, by its host, and without a word if there are two."""
    for words, service in (
        ([], board_service),
        ([], two),
        ([f"{board_service.base_url}/"], board_service),
        ([two.base_url.removeprefix("http://")], two),
    ):
        assert bare_cli("auth", "switch", *words) == (0, f"service\t{service.base_url}\n", "")
        assert json.loads(bare_cli("auth", "status", "--json").out)["service"] == service.base_url
    bare_cli("auth", "switch", "board.example").fails(2, "there is no sign-in to board.example: signed in to ")
    bare_cli("auth", "switch", "127.0.0.1").fails(2, "which one: signed in to http://127.0.0.1:")
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", two.base_url)
    assert "BOARDCLIENT_BASE_URL is set: commands use it in place of this choice" in bare_cli("auth", "switch").err


def test_doctor_compares_the_clocks(cli, board_service: BoardService) -> None:
    faults = board_service.faults
    faults.add(faults.status(500, headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}), "members.me", call=1)
    code, out, _ = cli("doctor")
    assert code == 1
    assert findings(out)["clock"] == "warning"
    assert findings(out)["connection"] == "wrong"
    faults.add(faults.status(500, headers={"Date": "soon"}), "members.me", call=2)
    assert "clock" not in findings(cli("doctor").out)


def test_doctor_draws_on_a_terminal(on_a_terminal) -> None:
    assert "token          ok     accepted" in on_a_terminal("doctor")


def test_auth_status_says_on_a_terminal_who_is_not_signed_in(on_a_terminal) -> None:
    assert on_a_terminal("auth", "status").splitlines()[0] == "signed in"
    assert on_a_terminal("auth", "status", code=4, BOARDCLIENT_TOKEN="refused").splitlines()[0] == "not signed in"


# --- where a sign-in listens


def listening(port: int) -> list[str]:
    """Return the loopback addresses that take connections."""
    found = []
    for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")):
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.connect((address, port))
            found.append(address)
    return found


@pytest.mark.parametrize(
    ("host", "addresses"), [("localhost", ["::1", "127.0.0.1"]), ("[::1]", ["::1"]), ("127.0.0.1", ["127.0.0.1"])]
)
def test_a_sign_in_listens_at_each_address_of_the_name(
    oauth_cli, board_service, monkeypatch, host: str, addresses: list[str]
) -> None:
    """A browser tries one address of a name after another, and another program must not be the one that it finds."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    uri, found = f"http://{host}:{port}/callback", []
    monkeypatch.setenv("BOARDCLIENT_REDIRECT_URI", uri)
    board_service.rules.redirect_uri = uri

    def browse(address: str) -> bool:
        found.extend(listening(port))
        asked = dict(parse_qsl(urlsplit(address).query))
        query = {"code": board_service.rules.new_code(challenge=asked["code_challenge"]), "state": asked["state"]}
        threading.Thread(target=lambda: urllib.request.urlopen(f"{uri}?{urlencode(query)}").close()).start()
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    assert oauth_cli("login").code == 0
    assert found == addresses


def test_a_sign_in_that_can_t_have_all_addresses_has_none(oauth_cli, board_service, monkeypatch) -> None:
    """Where another program has one of them, the sign-in is refused before a browser is opened."""
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail("a browser was opened"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("BOARDCLIENT_REDIRECT_URI", f"http://localhost:{port}/callback")
        oauth_cli("login").fails(2, f"can't listen at http://localhost:{port}/callback (127.0.0.1): Address already in use")
    assert listening(port) == []


def test_a_sign_in_without_ipv6_listens_at_the_other_address(oauth_cli, board_service, monkeypatch) -> None:
    """A machine that has no ::1 has no program there."""
    monkeypatch.setattr("boardclient.cli._commands._sign_in._SECONDS", 0.0)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", _without_ipv6(asyncio.BaseEventLoop.create_server))
    monkeypatch.setenv("BOARDCLIENT_REDIRECT_URI", "http://localhost:0/callback")
    oauth_cli("login").fails(1, "nobody came back")


def _without_ipv6(create: Any) -> Any:
    async def created(loop: Any, factory: Any, host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "::1":
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return await create(loop, factory, host, *arguments, **options)

    return created


def test_a_redirect_of_another_issuer_signs_nobody_in(oauth_cli, board_service, monkeypatch) -> None:
    """A redirect that names another service is refused, and the sign-in waits for its own."""
    said = []

    def browse(address: str) -> bool:
        asked = dict(parse_qsl(urlsplit(address).query))
        board_service.rules.redirect_uri = asked["redirect_uri"]
        code = board_service.rules.new_code(challenge=asked["code_challenge"])
        for issuer in ("https://evil.example", board_service.auth_url):
            query = {"code": code, "state": asked["state"], "iss": issuer}
            with urllib.request.urlopen(f"{asked['redirect_uri']}?{urlencode(query)}") as page:
                said.append(page.read().decode())
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    assert oauth_cli("login").code == 0
    assert "it comes from another service" in said[0]
    assert "You are signed in" in said[1]
