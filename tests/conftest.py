"""What tests need of the machine, the caches they share, and fixtures for all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browser import no_browser
from cuda_host import missing as no_cuda_host
from oclgrind import Oclgrind

if TYPE_CHECKING:
    from tvmflow.profiling.record import Ceilings

#: A function that says why the machine lacks something, or `None` when it is there.
Reason = Callable[[], "str | None"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that includes slow tests."""
    parser.addoption("--slow", action="store_true", help="run slow tests, too")


def pytest_configure(config: pytest.Config) -> None:
    """Let all test processes, and those that they start, share compiled programs.

    The folders lie in pytest's cache, so that the next run finds what this one compiled
    and `--cache-clear` forgets it; without that cache, in a folder for this run alone.
    """
    variables = {"TVMFLOW_CACHE_DIR": "programs", "POCL_CACHE_DIR": "pocl"}
    missing = {variable: name for variable, name in variables.items() if variable not in os.environ}
    if not missing:
        # A test process has those of the one that started it.
        return
    cache = getattr(config, "cache", None)
    if cache is None:
        temporary = Path(tempfile.mkdtemp(prefix="tvmflow-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(temporary, ignore_errors=True))
    for variable, name in missing.items():
        folder = temporary / name if cache is None else cache.mkdir(name)
        folder.mkdir(exist_ok=True)
        os.environ[variable] = str(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless they are asked for."""
    if config.getoption("--slow") or os.environ.get("RUN_SLOW", "0") not in ("", "0"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@cache
def _no_opencl() -> str | None:
    import tvm

    try:
        if tvm.opencl(0).exist:
            return None
        # An allocation says why there is none.
        tvm.runtime.empty((1,), device=tvm.opencl(0))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the reason)
        return f"no OpenCL device: {str(error).strip().splitlines()[0]}"
    return "no OpenCL device"


@cache
def _no_cuda() -> str | None:
    from tvmflow.runtime.devices import cuda_devices

    return None if cuda_devices() else "no NVIDIA GPU with CUDA"


def _no_command(name: str) -> Reason:
    return lambda: None if which(name) else f"the command {name} is not installed"


def _no_module(name: str) -> Reason:
    return lambda: None if find_spec(name) else f"the Python package {name} is not installed"


def _no_arm64() -> str | None:
    if not Path("/usr/aarch64-linux-gnu/lib/libc.so.6").exists():
        return "there are no libraries for 64-bit Arm (Debian's libc6-arm64-cross)"
    return _no_command("qemu-aarch64-static")()


#: Markers and what they need.
NEEDS: dict[str, Reason] = {
    "opencl": _no_opencl,
    "cuda": _no_cuda,
    "cuda_host": no_cuda_host,
    "nvcc": _no_command("nvcc"),
    "oclgrind": _no_command("oclgrind"),
    "onnxruntime": _no_module("onnxruntime"),
    "cross": _no_module("ziglang"),
    "java": _no_command("javac"),
    "kotlin": _no_command("kotlinc"),
    "browser": no_browser,
}

#: What `make test` installs itself: without it, CI fails instead of testing nothing.
INSTALLED = ("opencl", "onnxruntime", "cross")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine lacks."""
    for name, missing in NEEDS.items():
        if item.get_closest_marker(name) is None:
            continue
        reason = missing()
        if reason is None:
            continue
        if name in INSTALLED and os.environ.get("CI"):
            pytest.fail(f"{reason}; in CI nothing that `make test` installs may be missing")
        pytest.skip(reason)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same in every run, and others in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def under_oclgrind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Oclgrind]]:
    """Return a function that gives a process under Oclgrind, the same while it lives."""
    started: list[Oclgrind] = []

    def running() -> Oclgrind:
        if not started or not started[-1].alive:
            started.append(Oclgrind(tmp_path_factory.mktemp("oclgrind")))
        return started[-1]

    yield running
    for found in started:
        found.close()


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs code in a new Python process, in an empty folder.

    Its arguments are the code, the code's arguments, and ``env``: variables to set, or to
    remove where the value is ``None``.
    """

    def run(
        code: str, *args: object, env: dict[str, str | None] | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        changed = {**os.environ, **(env or {})}
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, args)],
            env={name: value for name, value in changed.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> Ceilings:
    """Ceilings of every device, above any: measuring takes seconds, and has tests of its own."""
    from tvmflow.profiling import ceilings
    from tvmflow.profiling.record import Ceilings

    known = Ceilings(10.0, 1e5, 0.001, texture_gbps=3.0, int8_gops=4e5)
    monkeypatch.setattr(ceilings._Device, "measure", lambda self: known)
    monkeypatch.setattr(ceilings, "_kept_at", lambda info: None)
    return known
