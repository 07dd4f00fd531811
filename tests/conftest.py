"""Markers for what a machine must have, caches shared by tests, and fixtures for all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import tiers
from support.android_tools import no_android, no_kotlin
from support.browser import no_browser
from support.cuda_host import missing as no_cuda_host
from support.drivers import ONLY_PIP
from support.oclgrind import Oclgrind

from tvmflow.runtime import load

if TYPE_CHECKING:
    from tvmflow.explain.profiling.record import Ceilings

#: A function that returns why the machine lacks something, or `None` if it has it.
Reason = Callable[[], "str | None"]


#: Optimisation takes most of the time of numeric tests: kernels are small, and run once.
UNOPTIMISED = {"TVMFLOW_OPENCL_OPTIONS": "-cl-opt-disable", "TVMFLOW_LLVM_OPT_LEVEL": "0"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for what `make test` leaves out."""
    parser.addoption(
        "--tier",
        choices=("quick", "rest", "optimised", "every"),
        default="quick",
        help="quick tests; the rest, a sample of their cases; those marked optimised, with drivers "
        "and LLVM optimising as for users, a sample again; every case of every test",
    )
    parser.addoption("--measure", action="store_true", help="write how long the tests take")
    parser.addoption("--wheel", action="store_true", help="run the tests that build a wheel, too")


def pytest_configure(config: pytest.Config) -> None:
    """Set how compilers optimise, and share compiled programs among all test processes.

    The folders are in pytest's cache, so that the next run finds programs of this one, and
    `--cache-clear` deletes them; without that cache, in a folder for this run alone.
    Processes that tests start inherit the variables.
    """
    if config.getoption("--tier") != "optimised":
        for variable, value in UNOPTIMISED.items():
            os.environ.setdefault(variable, value)
    variables = {"TVMFLOW_CACHE_DIR": "programs", "POCL_CACHE_DIR": "pocl"}
    if ONLY_PIP:
        # An empty folder: the system's loader finds no driver.
        variables["OCL_ICD_VENDORS"] = "no-drivers"
    missing = {variable: name for variable, name in variables.items() if variable not in os.environ}
    if not missing:
        # Test processes inherit them from the main process.
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
    """Deselect tests that are not in the tier.

    In a file or test that was named explicitly, all tests not marked slow count as quick.
    """
    tier, wheel = config.getoption("--tier"), config.getoption("--wheel")
    marked = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in items}
    names = [name for name, marks in marked.items() if wheel or "wheel" not in marks]
    durations = tiers.read()
    short = [name for name in names if not marked[name] & {"slow", "oclgrind"}]
    if not config.option.file_or_dir:
        quick = tiers.quick(durations, short)
        short = [name for name in short if name in quick or "quick" in marked[name]]
    if tier == "rest":
        left = set(names) - set(short)
        chosen = tiers.sample(durations, [n for n in names if n in left], tiers.commit())
    elif tier == "optimised":
        optimised = [name for name in names if "optimised" in marked[name]]
        chosen = tiers.sample(durations, optimised, tiers.commit())
    else:
        chosen = set(short if tier == "quick" else names)
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        parts[item.nodeid in chosen].append(item)
    if parts[False]:
        config.hook.pytest_deselected(items=parts[False])
        items[:] = parts[True]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write how long the tests took, with ``--measure``."""
    if not config.getoption("--measure"):
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    tiers.write(seconds, every=config.getoption("--tier") == "every")


@pytest.fixture(autouse=True)
def all_cores() -> Iterator[None]:
    """Reset the affinity: TVM binds the thread that runs its loops, and its children, to a core."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(autouse=True, scope="session")
def quiet_machine() -> Iterator[None]:
    """Ignore other programs' load: several tests run at once, but measure as on a quiet machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvmflow.runtime.load.cpu_times", lambda: None)
        yield


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate other programs that take half of the processors."""
    ticks = count(1)

    def half() -> load.CpuTimes:
        now = float(next(ticks))
        return load.CpuTimes(busy=now, total=2 * now, own=0.0)

    monkeypatch.setattr(load, "cpu_times", half)
    monkeypatch.setattr(load, "_LEAST_S", 0.0)


@cache
def _no_opencl() -> str | None:
    import tvm

    try:
        if tvm.opencl(0).exist:
            return None
        # An allocation reports the reason of its failure.
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


def _no_ssh() -> str | None:
    if not Path("/usr/sbin/sshd").exists():
        return "there is no server (Debian's openssh-server)"
    return _no_command("ssh")()


def _no_mesa() -> str | None:
    from tvmflow.devices.gpus import find_gpu
    from tvmflow.errors import DeviceError
    from tvmflow.explain.isa import mesa

    try:
        mesa.find_tree(find_gpu("adreno-740"), "sid")
    except DeviceError as error:
        return str(error).replace("\n", " ")
    return None


def _no_ocloc() -> str | None:
    from tvmflow.devices.gpus import find_gpu
    from tvmflow.errors import DeviceError
    from tvmflow.explain.isa.intel import OCLOC

    try:
        OCLOC.find(find_gpu("intel-tgl"), "sid")
    except DeviceError as error:
        return str(error).replace("\n", " ")
    return None


def _no_nvdisasm() -> str | None:
    from tvmflow.errors import DeviceError
    from tvmflow.runtime.cuda_compiler import find_tool

    try:
        find_tool("nvdisasm")
    except DeviceError as error:
        return str(error).replace("\n", " ")
    return None


#: Markers and the functions that check for their requirements.
NEEDS: dict[str, Reason] = {
    "opencl": _no_opencl,
    "cuda": _no_cuda,
    "cuda_host": no_cuda_host,
    "nvcc": _no_command("nvcc"),
    "oclgrind": _no_command("oclgrind"),
    "onnxruntime": _no_module("onnxruntime"),
    "cross": _no_module("ziglang"),
    "adb": _no_command("adb"),
    "ssh": _no_ssh,
    "java": _no_command("javac"),
    "kotlin": no_kotlin,
    "android": no_android,
    "browser": no_browser,
    "arm64": _no_arm64,
    "mesa": _no_mesa,
    "nvdisasm": _no_nvdisasm,
    "ocloc": _no_ocloc,
}

#: Requirements that `make test` installs itself: if one is missing, CI fails instead of skipping.
INSTALLED = ("opencl", "onnxruntime", "cross")
#: Requirements from the system's packages, which a newcomer's machine may lack.
FROM_SYSTEM = ("oclgrind", "adb", "ssh", "java", "kotlin", "android", "browser", "arm64")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose requirements this machine lacks."""
    for name, missing in NEEDS.items():
        if item.get_closest_marker(name) is None:
            continue
        hidden = ONLY_PIP and name in FROM_SYSTEM
        reason = f"what {name} needs counts as missing" if hidden else missing()
        if reason is None:
            continue
        if name in INSTALLED and os.environ.get("CI"):
            pytest.fail(f"{reason}; in CI nothing that `make test` installs may be missing")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def missing() -> Callable[[str], str | None]:
    """Return a function that returns why a marker's requirement is missing."""
    return lambda name: NEEDS[name]()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator with the same numbers in every run, and different ones in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def optimising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimise as for users, with LLVM and in drivers of processes that the test starts."""
    for variable in UNOPTIMISED:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="session")
def long_tier(request: pytest.FixtureRequest) -> bool:
    """Return whether more than quick tests were requested."""
    return request.config.getoption("--tier") != "quick"


@pytest.fixture
def every_driver(request: pytest.FixtureRequest, long_tier: bool) -> bool:
    """Return whether a module runs on each driver, and under Oclgrind, or drivers take turns.

    They take turns in quick tests, and in slow ones, of which there are many.
    """
    return long_tier and request.node.get_closest_marker("slow") is None


@pytest.fixture(scope="session")
def under_oclgrind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Oclgrind]]:
    """Return a function that returns a process under Oclgrind, the same as long as it lives."""
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
    """Set ceilings above those of any device: measuring takes seconds, and is tested elsewhere."""
    from tvmflow.explain.profiling import ceilings
    from tvmflow.explain.profiling.record import Ceilings

    known = Ceilings(10.0, 1e5, 0.001, texture_gbps=3.0, int8_gops=4e5)
    monkeypatch.setattr(ceilings._Device, "measure", lambda self: known)
    monkeypatch.setattr(ceilings, "_cache_path", lambda info: None)
    return known
