"""The lowest versions that `pyproject.toml` allows have no hole that is known here."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]

SAFE = {
    "aiohttp": "3.13.3",  # CVE-2025-69223 and others
    "cryptography": "46.0.5",  # CVE-2026-26007
    "django": "5.2.11",  # CVE-2025-64459, CVE-2026-1207
    "starlette": "0.49.1",  # CVE-2024-47874, CVE-2025-54121, CVE-2025-62727
}
"""The first version without a hole that matters here. Add a line with each advisory, and raise the bound."""


def bounds() -> list[tuple[str, str]]:
    named = [*_PROJECT["dependencies"], *(one for extra in _EXTRAS.values() for one in extra)]
    found = [Requirement(one) for one in named]
    lowest = [(one.name, next(iter(spec.version for spec in one.specifier if spec.operator == ">="), "0")) for one in found]
    return sorted({(name, version) for name, version in lowest if name in SAFE})


@pytest.mark.parametrize(("name", "lowest"), bounds())
def test_no_lower_bound_has_a_known_hole(name: str, lowest: str) -> None:
    """An installation of the lowest versions gets none that an advisory names."""
    assert Version(lowest) >= Version(SAFE[name])


def test_what_brings_starlette_bounds_it() -> None:
    """FastAPI allows older ones, so its extra names a bound of its own."""
    assert any(Requirement(one).name == "starlette" for one in _EXTRAS["fastapi"])
