"""Drivers to run tests on, a driver without a device, and scripts in separate processes.

A process has one OpenCL library, chosen by environment variables before its first use.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from support.build_cache import cached_build
from support.drivers import DRIVERS, POCL, Driver
from support.forks import run_forked

SCRIPTS = Path(__file__).with_name("scripts")
NATIVE_TESTS = Path(__file__).parents[1] / "native"


@dataclass(frozen=True)
class Outcome:
    """Last line that a script printed, as JSON, and its exit status."""

    status: int
    result: Any
    stderr: str


def run_script(
    name: str, *arguments: object, env: dict[str, str] | None = None, timeout: float = 600
) -> Outcome:
    """Run a script of this folder in a separate process."""
    command = [str(SCRIPTS / name), *map(str, arguments)]
    process = run_forked(command, {**os.environ, **(env or {})}, timeout)
    lines = process.stdout.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        result = None
    return Outcome(process.returncode, result, process.stderr)


@pytest.fixture(scope="session")
def script() -> Callable[..., Outcome]:
    """Return a function that runs a script and fails the test if the script fails."""

    def run(name: str, *arguments: object, **options: Any) -> Any:
        outcome = run_script(name, *arguments, **options)
        assert outcome.status == 0, outcome.stderr
        return outcome.result

    return run


@dataclass(frozen=True)
class Usable:
    """A driver that works here."""

    name: str
    #: Variables that select it.
    env: dict[str, str]
    images: bool


@cache
def _find(driver: Driver) -> Usable | str:
    """Return the driver, or the reason why it cannot be used."""
    path = driver.path
    if path is None:
        return f"the driver {driver.name} is not installed"
    env = driver.variables(path)
    outcome = run_script("exists.py", env=env)
    if not outcome.result or not outcome.result["exists"]:
        return f"the driver {driver.name} has no device here"
    return Usable(driver.name, env, outcome.result["images"])


def _require(driver: Driver) -> Usable:
    found = _find(driver)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Usable:
    """Return each driver that is installed."""
    return _require(request.param)


@pytest.fixture
def pocl() -> Usable:
    """Return PoCL."""
    return _require(POCL)


@pytest.fixture(scope="session")
def fake_library() -> Path:
    """Compile the driver without a device."""
    compiler = os.environ.get("CXX") or which("g++") or which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    name, source = "libfake_opencl.so", NATIVE_TESTS / "fake_driver.cc"
    options = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, str(source), "-o"]

    def build(folder: Path) -> None:
        subprocess.run([*command, str(folder / name)], check=True)

    headers = (NATIVE_TESTS.parents[1] / "native" / "core").glob("*.h")
    return cached_build("fake_driver", command, [source, *headers], build) / name


@pytest.fixture
def fake(fake_library: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment for the driver without a device, with a separate cache."""
    return {
        "TVMFLOW_OPENCL_LIBRARY": str(fake_library),
        "TVMFLOW_OPENCL_DEVICE": "",
        "TVMFLOW_CACHE_DIR": str(tmp_path / "cache"),
        "TVMFLOW_CACHE": "1",
        "FAKE_LOG": str(tmp_path / "builds.log"),
    }


@pytest.fixture
def builds(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that lists the fake driver's builds: ``source`` or ``binary``."""
    log = tmp_path / "builds.log"
    return lambda: log.read_text().split() if log.exists() else []
