"""Proxies of the environment, certificates of issuers that are not known, and limits of the machine."""

import errno
import http.server
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_helpers import into

import boardclient
from boardclient.cli._output import in_words
from boardclient.testing import assert_no_secrets


class _Server(http.server.ThreadingHTTPServer):
    """Answers each request with a member, and keeps what it was asked for. As a proxy it opens no tunnel."""

    def __init__(self) -> None:
        seen = self.seen = list[str]()
        self.status = 200

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path.partition("?")[0])
                self.send_response(self.server.status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b'{"id": "m1"}')

            def do_CONNECT(self) -> None:
                seen.append(f"{self.path} {self.headers.get('Proxy-Authorization', '')}".strip())
                self.send_error(503 if self.server.status == 200 else self.server.status)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: _Server, monkeypatch: pytest.MonkeyPatch) -> _Server:
    """Run a proxy, and take those of the machine away."""
    for name in ("http", "https", "all", "no"):
        for variable in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "token-of-this-test")
    return server


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}"])
def test_the_proxy_of_the_environment_is_used(bare_cli, proxy: _Server, monkeypatch, variable: str, form: str) -> None:
    """As curl does, also where its address has no scheme."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "http://board.invalid")
    monkeypatch.setenv(variable, form.format(proxy.server_port))
    code, out, _ = bare_cli("--allow-insecure", "whoami")
    assert (code, out) == (0, "id\tm1\n")
    assert proxy.seen == ["http://board.invalid/1/members/me"]


@pytest.mark.parametrize("no_proxy", ["board.invalid", ".invalid", "other.example, board.invalid", "*", "BOARD.invalid"])
def test_a_host_that_needs_no_proxy_gets_none(bare_cli, proxy: _Server, monkeypatch, no_proxy: str) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "http://board.invalid")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("no_proxy", no_proxy)
    code, _, err = bare_cli("--allow-insecure", "whoami")
    assert (code, proxy.seen) == (1, [])
    assert "the host name board.invalid does not resolve" in err


@pytest.mark.parametrize(("no_proxy", "is_used"), [("10.0.0.0/8,127.0.0.0/8", False), ("10.0.0.0/8", True), ("", True)])
def test_networks_that_need_no_proxy_get_none(cli, board_service, proxy: _Server, monkeypatch, no_proxy: str, is_used) -> None:
    """A proxy on this machine may see what goes to this machine."""
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert cli("whoami").code == 0
    assert bool(proxy.seen) == is_used


def test_a_proxy_elsewhere_sees_nothing_that_is_not_encrypted(cli, board_service, proxy: _Server, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    assert cli("whoami").code == 0


def test_doctor_names_the_proxy_without_its_password(bare_cli, proxy: _Server, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "http://board.invalid")
    monkeypatch.setenv("http_proxy", f"http://user:pass-of-proxy@127.0.0.1:{proxy.server_port}")
    code, out, err = bare_cli("--allow-insecure", "doctor")
    assert code == 0
    place = f"through the proxy http://127.0.0.1:{proxy.server_port}"
    assert f"http://board.invalid responds {place} (http_proxy)" in out
    assert_no_secrets(out + err, secrets=["pass-of-proxy"])
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://board.invalid")
    monkeypatch.setenv("https_proxy", os.environ["http_proxy"])
    code, out, err = bare_cli("doctor")
    assert code == 1
    assert f"{place} (https_proxy): GET /1/members/me: no connection to board.invalid: the proxy refused, check HTTPS_" in out
    assert proxy.seen[-1].startswith("board.invalid:443 Basic ")
    assert_no_secrets(out + err, secrets=["pass-of-proxy"])


def test_a_proxy_that_can_t_be_used_is_named_as_the_command_line_knows_it(bare_cli, proxy: _Server, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://board.invalid")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    bare_cli("whoami").fails(2, "the proxy of the environment (HTTPS_PROXY, HTTP_PROXY) must be an http or https URL")


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("variable", ["all_proxy", "HTTP_PROXY"])
def test_doctor_says_that_a_proxy_wants_credentials(bare_cli, proxy: _Server, monkeypatch, scheme: str, variable: str) -> None:
    """And which variable names it, also where that is the one for all addresses."""
    proxy.status = 407
    variable = variable.replace("HTTP", scheme.upper())
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", f"{scheme}://board.invalid")
    monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.server_port}")
    code, out, _err = bare_cli("--allow-insecure", "doctor")
    assert code == 1
    assert f"({variable}): GET /1/members/me: " in out
    assert "the proxy wants credentials" in out
    assert "give them in its variable, such as HTTPS_PROXY=http://user:password@proxy.example:3128" in out
    assert "proxy=" not in out.replace("HTTPS_PROXY=", "")


def test_a_variable_for_all_proxies_is_named_where_it_is_the_cause(bare_cli, proxy: _Server, monkeypatch) -> None:
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://board.invalid")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    bare_cli("whoami").fails(1, "the proxy can't be reached, check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY")
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1")
    bare_cli("whoami").fails(2, "the proxy of the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) must be an http or https URL")
    assert "through the proxy socks5h://127.0.0.1:1 (ALL_PROXY): the proxy of the environment" in bare_cli("doctor").out


def test_credentials_of_netrc_are_not_sent(bare_cli, proxy: _Server, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / ".netrc").write_text("machine board.invalid login me password of-another-program\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "http://board.invalid")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    sent, real = list[str](), http.server.BaseHTTPRequestHandler.parse_request

    def parse(handler: http.server.BaseHTTPRequestHandler) -> bool:
        done = real(handler)
        sent.extend(handler.headers.keys())
        return done

    monkeypatch.setattr(http.server.BaseHTTPRequestHandler, "parse_request", parse)
    assert bare_cli("--allow-insecure", "whoami").code == 0
    assert "Authorization" not in sent


@pytest.mark.full
def test_an_issuer_that_is_not_known_is_named_with_the_variable_that_helps(
    bare_cli, server: _Server, tmp_path, monkeypatch
) -> None:
    """`ssl=`, which programs have, is no option."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "t")
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    found = bare_cli("doctor")  # plain http at a port of TLS
    assert f"the port speaks TLS: the address begins with https, https://127.0.0.1:{server.server_port}" in found.out
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", f"https://127.0.0.1:{server.server_port}")
    for command in ("whoami", "doctor"):
        code, out, err = bare_cli(command)
        assert code == 1
        assert "check the host, or set SSL_CERT_FILE to a file with the certificate of its issuer" in out + err
        assert "ssl=" not in out + err
    environment = {**os.environ, "SSL_CERT_FILE": str(cert)}  # which OpenSSL reads once for a process
    subprocess.run([sys.executable, "-m", "boardclient", "whoami"], env=environment, check=True)


def test_errors_are_in_words_of_the_command_line(cli, board_service, tmp_path, monkeypatch) -> None:
    """A parameter of programs is no advice here, and a variable that is set already is looked at."""
    board_service.faults.add(board_service.faults.status(429, {"Retry-After": "3600"}))
    assert "limiter=" not in cli("--timeout", "5", "whoami").err
    issuer = boardclient.TransportError(
        "the certificate was refused, check the host, or give ssl= a context that trusts its issuer"
    )
    words, file = "or set SSL_CERT_FILE to a file with the certificate of its issuer", tmp_path / "some.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert in_words(issuer).endswith(f"{words} (now it names {file}, which is no file)")
    file.touch()
    assert in_words(issuer).endswith(f"{words} (now it names {file})")
    monkeypatch.delenv("SSL_CERT_FILE")
    assert in_words(issuer).endswith(words)
    client = boardclient.TransportError("the peer wants a client certificate: give ssl= a context with one")
    assert in_words(client).endswith(": which the command line can't give: ssl= of a session can")


def _no_more_files(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_low_limit_of_open_files_is_named_and_no_permissions(cli, board, csv_file, monkeypatch) -> None:
    """SQLite says the same of each file that it can't open."""
    path = csv_file("name\nA\n")
    assert cli("import", path, *into(board)).code == 0
    Path(f"{path}.journal").rename(f"{path}.aside")
    Path(f"{path}.journal").mkdir()
    assert "check its permissions" in cli("journal", "show", f"{path}.journal").err
    monkeypatch.setattr(os, "open", _no_more_files)
    cli("journal", "show", f"{path}.journal").fails(
        2, "can't be used (Too many open files: allow more with: ulimit -n 1024): then run again"
    )


def test_a_limit_at_which_no_command_can_begin_is_named(cli, board, monkeypatch) -> None:
    monkeypatch.setattr("asyncio.new_event_loop", _no_more_files)
    monkeypatch.setattr("asyncio.runners.events.new_event_loop", _no_more_files)
    code, out, err = cli("board", "show", board.board, "--json")
    assert (code, out) == (1, "")
    assert err == "boardclient: error: Too many open files: allow more with: ulimit -n 1024\n"
