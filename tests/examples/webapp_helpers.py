"""What the tests of the example web application share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from boardclient.testing import BoardService

FOLDER = Path(__file__).parent.parent.parent / "docs" / "examples" / "webapp"
COOKIE_SECRET = "cookie-secret-canary-3"


def environment(service: BoardService, tokens: Path) -> dict[str, str]:
    """Return what configures the application."""
    return {**service.environment, "BOARDCLIENT_COOKIE_SECRET": COOKIE_SECRET, "BOARDCLIENT_TOKENS": str(tokens)}


def load_app() -> ModuleType:
    """Import the application as a server does that is started in its folder."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("webapp_example", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
