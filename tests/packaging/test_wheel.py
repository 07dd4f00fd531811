"""A source distribution, the wheel built from it, and its use in an empty environment."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.specifiers import SpecifierSet

from tvmflow.agent.executable import agent_build

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.wheel

#: Script for the empty environment; it does not use the command line's own modules.
USE = """
import json, sys
import tvmflow
from tvmflow import models
from tvmflow.verify.tolerance import compare
from tvmflow.verify.reference import run_reference
import numpy as np

model = models.build("mobilenet_v2", "mobilenet_v2.onnx", seed=7)
image = np.random.default_rng(7).random((1, 3, 224, 224), dtype=np.float32)
with tvmflow.compile(model, target="opencl") as module:
    module.save("mobilenet_v2.so")
with tvmflow.load("mobilenet_v2.so") as module:
    (name,) = [info.name for info in module.inputs]
    outputs = module({name: image})
    reference, _ = run_reference(model, {name: image}, list(outputs.keys()))
    compared = [compare(key, value, reference[key]) for key, value in outputs.items()]
print(json.dumps({
    "where": tvmflow.__file__,
    "shapes": [list(value.shape) for value in reference.values()],
    "spread": min(float(value.std()) for value in reference.values()),
    "error": max(one.max_rel_error for one in compared),
    "passed": all(one.passed for one in compared),
}))
"""

#: Takes the agent of a host for which the environment has no compiler.
USE_AGENT = """
import os, sys
from tvmflow.agent import executable
from tvmflow.devices.host import Host

executable.tools = lambda host: []
os.environ["TVMFLOW_CACHE_DIR"] = sys.argv[1]
print(executable.agent_executable(Host.parse("android-armv7")))
"""


def run(command: Sequence[object], cwd: Path, timeout: float, path: str | None = None) -> str:
    """Run a command as a user with a clean environment would; return its output."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    hidden += ("TVMFLOW_OPENCL_OPTIONS", "TVMFLOW_LLVM_OPT_LEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.run(
        [str(word) for word in command],
        # If the system's commands are hidden, so are its OpenCL drivers: PoCL needs `ld`.
        env={**environment, **({"PATH": path, "OCL_ICD_VENDORS": str(cwd)} if path else {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the distributions that `make wheel` builds from tracked files alone."""
    source = tmp_path_factory.mktemp("source")
    tracked = run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT, 400
    )
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Links to folders stay links.  Files keep their time: installed files are not older.
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    run(["make", "wheel", f"VENV={sys.prefix}", f"PYTHON={sys.executable}"], source, 900)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def other_python() -> str:
    """Return the newest other supported Python of this machine, or the tests' own."""
    supported = SpecifierSet(metadata.metadata("tvmflow")["Requires-Python"])
    versions = [f"3.{minor}" for minor in range(30, 0, -1) if f"3.{minor}" in supported]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        found = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
        for python in filter(None, found):
            # Some such commands only print which package to install.
            call = [str(python), "-c", "import ensurepip, venv"]
            if subprocess.run(call, capture_output=True, check=False).returncode == 0:
                return str(python)
    return sys.executable


def test_the_source_distribution_holds_what_is_built(dist: Path):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"} <= names
    there = {path for path in (ROOT / "native").rglob("*") if path.is_file()}
    assert {str(path.relative_to(ROOT)) for path in there} <= names
    assert not any(name.startswith("tests/") or name.endswith(".so") for name in names)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    # auditwheel adds entries for folders.
    names = [name for name in ZipFile(wheel).namelist() if not name.endswith("/")]
    tops = {name.split("/")[0] for name in names}
    assert tops == {"tvmflow", wheel.name.split("-py3-")[0] + ".dist-info"}
    assert {"tvmflow/runtime/libtvmflow_opencl.so", "tvmflow/py.typed"} <= set(names)
    assert "tvmflow/probe/kernels.cl" in names
    page = ROOT / "tvmflow" / "explain" / "profiling" / "page"
    assert {f"tvmflow/explain/profiling/page/{path.name}" for path in page.glob("*.*s")} <= set(
        names
    )
    data = {"tflite_gpu.csv", "LICENSE", "README.md"}
    assert {f"tvmflow/explain/yardstick/{name}" for name in data} <= set(names)
    for top in ("schedules", "models", "tuning_logs"):
        packed = {name for name in names if name.startswith(f"tvmflow/{top}/")}
        packed = {name for name in packed if not name.endswith("README.md")}
        there = {path for path in (ROOT / top).rglob("*") if path.is_file()}
        there = {path for path in there if path.suffix != ".pyc" and path.name != "README.md"}
        assert packed == {f"tvmflow/{path.relative_to(ROOT)}" for path in there}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    # Of measurements that the package contains.
    assert any(name.endswith("licenses/tvmflow/explain/yardstick/LICENSE") for name in names)
    assert not any(name.endswith((".cc", ".o")) or "tests/" in name for name in names)


def test_the_wheel_holds_what_is_compiled_for_other_machines(wheel: Path):
    packed = {
        name for name in ZipFile(wheel).namelist() if name.endswith((".c", ".h", ".hpp", ".java"))
    }
    native = ROOT / "native"
    there = {
        path
        for folder, ends in {
            "agent": (".c", ".h"),
            "core": (".c", ".h"),
            "standalone": (".c", ".h"),
            "bindings": (".c", ".h", ".hpp", ".java"),
            "isa": ".c",
            "bionic": ".h",
        }.items()
        for path in (native / folder).rglob("*")
        if path.name.endswith(ends)
    }
    assert packed == {f"tvmflow/native_sources/{path.relative_to(native)}" for path in there}


def test_the_wheel_holds_the_agents_of_all_hosts(wheel: Path):
    with ZipFile(wheel) as archive:
        agents = {
            path.name: lzma.decompress(archive.read(f"tvmflow/agent/bin/{path.name}"))
            for path in map(Path, archive.namelist())
            if path.parent.name == "bin" and path.name
        }
    machines = {
        name.removesuffix(f"-{agent_build()}.xz"): int.from_bytes(content[18:20], "little")
        for name, content in agents.items()
    }
    # The machine's number in the header of an ELF file: EM_ARM, EM_X86_64, EM_AARCH64.
    assert machines == {
        "agent-android-armv7": 40,
        "agent-android-x64": 62,
        "agent-linux-x64": 62,
        "agent-android-arm64": 183,
        "agent-linux-arm64": 183,
    }


def test_the_wheel_fits_any_python_3_of_a_linux_with_its_glibc(wheel: Path):
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    assert tag, wheel.name
    # auditwheel would put unknown libraries into a folder next to the package.
    library = ZipFile(wheel).read("tvmflow/runtime/libtvmflow_opencl.so")
    asked = re.findall(rb"GLIBC_2\.(\d+)", library)
    assert max(map(int, asked)) <= int(tag[1])
    assert b"$ORIGIN/../../tvm/lib:$ORIGIN/../../tvm_ffi/lib" in library


@pytest.mark.timeout(1800)
def test_an_empty_environment_without_a_compiler_compiles_and_runs_mobilenet_v2(
    wheel: Path, other_python: str, tmp_path: Path
):
    """It runs in another Python than the tests' own, if there is one."""
    run([other_python, "-m", "venv", tmp_path / "venv"], tmp_path, 900)
    python = tmp_path / "venv" / "bin" / "python"
    # The extra `cross` links modules; nothing else can without a compiler on the path.
    extras = "cpu-opencl,cross,verify"
    alone = str(python.parent)
    assert not any(shutil.which(name, path=alone) for name in ("cc", "gcc", "clang", "g++"))
    install = [python, "-m", "pip", "install", f"tvmflow[{extras}] @ {wheel.as_uri()}"]
    run(install, tmp_path, 900, alone)
    result = json.loads(run([python, "-c", USE], tmp_path, 900, alone).splitlines()[-1])
    assert Path(result["where"]).is_relative_to(tmp_path)
    assert result["shapes"] == [[1, 1000]]
    # An output of zeros would agree with any zeros.
    assert result["spread"] > 0
    assert result["passed"], f"relative error {result['error']:.3g}"

    command = python.with_name("tvmflow")
    inspect = [command, "inspect", "mobilenet_v2.so", "--json"]
    assert json.loads(run(inspect, tmp_path, 400, alone))["target"] == "opencl"

    agent = Path(run([python, "-c", USE_AGENT, tmp_path / "cache"], tmp_path, 400, alone).strip())
    assert agent.is_relative_to(tmp_path / "cache")
    assert os.access(agent, os.X_OK)
    with ZipFile(wheel) as archive:
        packed = archive.read(f"tvmflow/agent/bin/{agent.name}.xz")
    assert agent.read_bytes() == lzma.decompress(packed)
