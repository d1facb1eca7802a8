"""What importing the package does, and what it must not do."""

import importlib
import importlib.metadata
import importlib.resources
import json
import subprocess
import sys

import pytest

import boardclient

_BESIDES = {"EncryptedTokenStore", "LeaseRecord", "LeaseState", "StoredToken"}
_CONTRACT = """AsyncSession Response
    Credentials CredentialProvider StaticCredentials OAuthCredentials AuthorizationRequest
    Token TokenStore MemoryTokenStore FileTokenStore
    Board BoardPrefs BoardList Card Member CardDraft Position JsonValue
    BoardClientError TransportError DeadlineError ApiError BadRequestError AuthenticationError PermissionDeniedError
    NotFoundError RateLimitError ServerError DecodeError CredentialError ConsentRequired SessionClosedError
    InvalidIdentifierError JournalError Effect Attempt
    BulkRun BulkReport BulkProgress CardResult Pace"""
_OPTIONAL = ("rich", "pytest", "_pytest", "click", "aioresponses", "uvloop", "hypothesis", "cryptography", "itsdangerous")
_OPTIONAL += ("fastapi", "starlette", "litestar", "quart", "httpx", "httpx2", "mcp")


_PROBE = """
import importlib.abc, json, logging, sys, threading

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def writes(mode):
    return isinstance(mode, str) and set(mode) & set("wax+")

def hook(event, arguments):
    if not watching:
        return
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.system", "sqlite3.connect"):
        opened.append(event)
    elif event == "open" and writes(arguments[1]) and ".pyc" not in str(arguments[0]):
        opened.append(f"open {arguments[0]}")

sys.meta_path.insert(0, Absent())
import aiohttp, cattrs, httptools, msgspec, tenacity  # what these do on import is not this package's affair

opened, watching = [], True
sys.addaudithook(hook)
import boardclient
for name in boardclient.__all__:  # also what is imported when it is first asked for
    getattr(boardclient, name)
watching = False

root, own = logging.getLogger(), logging.getLogger("boardclient")
handlers = [repr(handler) for handler in root.handlers + own.handlers]
threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
levels = [root.level - logging.WARNING, own.level - logging.NOTSET]
print(json.dumps({"modules": sorted(sys.modules), "opened": opened, "threads": threads, "handlers": handlers, "levels": levels}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[object]]:
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PROBE, *_OPTIONAL], stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    answer: dict[str, list[object]] = json.loads(done.stdout)
    return answer


def test_import_leaves_out_what_few_need(imported: dict[str, list[object]]) -> None:
    """Neither aiohttp's server nor an optional dependency nor the embedded service is loaded, and none has to be installed."""
    modules = [str(name) for name in imported["modules"]]
    assert "boardclient.session" in modules
    unwanted = ("aiohttp.web", "boardclient.testing", "boardclient.cli", "boardclient.integrations", *_OPTIONAL)
    assert [name for name in modules if any(name == other or name.startswith(f"{other}.") for other in unwanted)] == []


def test_credentials_and_token_stores_load_no_aiohttp() -> None:
    """A program that only keeps tokens, such as `boardclient auth status`, need not wait for it."""
    line = (
        "from boardclient import FileTokenStore, OAuthCredentials, StaticCredentials; import sys; print('aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-B", "-c", line], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stdout == "False\n"


_BEYOND_LIBRARIES = """
import aiohttp, attrs, cattrs, httptools, msgspec, tenacity, json, sys
before = set(sys.modules)
import boardclient
boardclient.AsyncSession
loaded = set(sys.modules) - before
values = [value for name in loaded for value in vars(sys.modules[name]).values() if isinstance(value, type)]
classes = {value for value in values if "__attrs_attrs__" in vars(value) and value.__module__ in loaded}
print(json.dumps({"foreign": sorted(name for name in loaded if name.split(".")[0] != "boardclient"), "classes": len(classes)}))
"""


def test_import_of_the_session_costs_little_beyond_its_libraries() -> None:
    """No module is loaded that the libraries do not load, and few attrs classes are made: each takes half a millisecond."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", _BEYOND_LIBRARIES], stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    loaded = json.loads(done.stdout)
    assert loaded["foreign"] == []
    assert 0 < loaded["classes"] <= 26


@pytest.mark.parametrize("extra", ["fastapi", "litestar", "opentelemetry", "quart", "starlette"])
def test_an_integration_without_its_extra_names_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, also where an adapter stands on another one."""
    needed = "starlette" if extra == "fastapi" else extra
    for name in {extra, needed}:
        monkeypatch.delitem(sys.modules, f"boardclient.integrations.{name}", raising=False)
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'boardclient\[{extra}\]'$") as caught:
        importlib.import_module(f"boardclient.integrations.{extra}")
    assert str(caught.value).startswith(f"boardclient.integrations.{extra} needs {needed}: ")
    assert str(caught.value.name).partition(".")[0] == needed


def test_import_opens_nothing(imported: dict[str, list[object]]) -> None:
    """No socket, process, thread, database or file for writing comes from an import."""
    assert imported["opened"] == []
    assert imported["threads"] == []


def test_import_configures_no_logging(imported: dict[str, list[object]]) -> None:
    """Logging is the application's: no handler and no level."""
    assert imported["handlers"] == []
    assert imported["levels"] == [0, 0]


def test_warnings_are_shown_where_logging_is_not_configured() -> None:
    """Python writes them to standard error, each in one line."""
    code = r"import logging, boardclient.logs; logging.getLogger('boardclient').warning('one\nforged')"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stderr == "one\\nforged\n"


def test_version_is_the_distribution_version() -> None:
    """`__version__` is read from the installed distribution."""
    assert boardclient.__version__ == importlib.metadata.version("boardclient")


def test_public_names_are_those_of_the_contract() -> None:
    """`__all__` has the names of the contract, sorted, and each exists."""
    public = [name for name in boardclient.__all__ if name != "__version__"]
    assert public == sorted(public)
    assert set(public) == set(_CONTRACT.split()) | _BESIDES
    assert [name for name in public if not hasattr(boardclient, name)] == []


def test_fixture_plugin_is_registered() -> None:
    """A run of pytest finds the `board_service` fixture of the installed package without configuration."""
    names = {
        entry.name: entry.value for entry in importlib.metadata.entry_points(group="pytest11") if entry.name == "boardclient"
    }
    assert names == {"boardclient": "boardclient._pytest_plugin"}


def test_typing_marker_is_shipped() -> None:
    """Type checkers use the annotations of the installed package."""
    files = importlib.resources.files("boardclient")
    assert files.joinpath("py.typed").is_file()


def test_every_public_name_is_listed_and_no_other_is_had() -> None:
    """`dir` shows the public names before they are imported, and a misspelt one is an AttributeError."""
    assert {*boardclient.__all__, "__version__"} <= set(dir(boardclient))
    with pytest.raises(AttributeError, match="AsyncSesion"):
        _ = boardclient.AsyncSesion  # type: ignore[attr-defined]  # -- misspelt on purpose
