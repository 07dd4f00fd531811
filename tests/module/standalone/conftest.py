"""Libraries of the mock model, built once, and of small plans."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support import drivers, runtime_build
from support.commands import run
from support.fake_opencl import build_fake, compile_c
from support.mock_library import C_COMPILER, build_mock
from support.small_plans import Plan
from support.standalone_api import OPENCL, Model

import tvmflow


@pytest.fixture(scope="session")
def mock_tenfold(mock: Path) -> Path:
    """Return a library next to it whose output is ten times the sum."""
    return build_mock(mock.with_name("libtenfold.so"), scale=10)


@pytest.fixture(scope="session")
def tvm_module(mock: Path) -> Path:
    """Return a library that needs TVM's runtime, like modules that are not standalone."""
    path = mock.with_name("libmodule.so")
    source = path.with_suffix(".c")
    source.write_text(
        "void TVMFFIErrorSetRaisedFromCStrParts(void);\n"
        "const char __tvm_ffi__library_bin[] = {0};\n"
        "void __tvm_ffi_main(void) { TVMFFIErrorSetRaisedFromCStrParts(); }\n"
    )
    run(*C_COMPILER, "-shared", "-fPIC", source, "-o", path)
    return path


@pytest.fixture(scope="module")
def link(tmp_path_factory, kernels):
    """Return a function that links the runtime with a plan for OpenCL, for the CPU, or both.

    ``functions`` are those of cpu_kernels.c that the library has, and ``drivers`` replaces the
    table of drivers' faults.
    """
    folder = tmp_path_factory.mktemp("libraries")
    names = (f"lib{number}.so" for number in count())

    def run(
        plan: Plan | None,
        *flags: str,
        weights: bytes | None = None,
        cpu: Plan | None = None,
        functions: Sequence[str] = ("add", "add_apart", "fail", "count"),
        drivers: bytes | None = None,
    ) -> Path:
        whole = cpu or plan
        content = whole.weights() if whole.content and weights is None else weights or b""
        own = {"cpu_plan": cpu.encode(), "functions": functions, "more": [kernels]} if cpu else {}
        opencl = plan.encode() if plan else b""
        own["drivers"] = drivers
        return runtime_build.link(folder / next(names), opencl, content, *flags, **own)

    return run


@pytest.fixture(scope="session")
def kernels(tmp_path_factory) -> str:
    """Return the object file of cpu_kernels.c."""
    source = Path(__file__).with_name("cpu_kernels.c")
    return str(compile_c(tmp_path_factory.mktemp("kernels") / "kernels.o", "-c", source))


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """Return the fake driver; each module of tests has its own settings and counts."""
    return build_fake(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def opened(library, driver):
    """Return a function that creates an instance of a library on the fake driver."""

    def create(path: Path = library, **options: Any) -> Model:
        return Model(path, **{"opencl_library": driver, "backend": OPENCL, **options})

    return create


@pytest.fixture(scope="module")
def compiled_once(network):
    """Return a function that compiles the module's network to a library, once for each options."""
    known: dict[str, Path] = {}

    def compile(**options: Any) -> Path:
        key = json.dumps(options)
        if key not in known:
            path = network.with_name(f"lib{len(known)}.so")
            fixed = {"target": "opencl", "format": "standalone"}
            with tvmflow.compile(network, **fixed, **options) as module:
                known[key] = module.save(path)
        return known[key]

    return compile


@pytest.fixture(params=["loader", "intel"])
def application_library(request):
    """Return an OpenCL library whose functions an application can call."""
    path = drivers.system_loader() if request.param == "loader" else drivers.INTEL.path
    if path is None:
        pytest.skip(f"no OpenCL library: {request.param}")
    count = ctypes.c_uint32()
    if ctypes.CDLL(path).clGetPlatformIDs(0, None, ctypes.byref(count)) or not count.value:
        pytest.skip(f"{path} has no platform")
    return path
