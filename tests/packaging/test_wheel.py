"""A wheel, built from the tree and used in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.wheel

#: Runs in the empty environment: the command line's own modules do not matter here.
USE = """
import json, sys
import tvmflow
from tvmflow import models
from tvmflow.verify.tolerance import compare
from tvmflow.verify.compare import run_reference
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


def run(command: Sequence[object], cwd: Path, timeout: float) -> str:
    """Run a command as a user with a clean environment would; return its output."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    hidden += ("TVMFLOW_OPENCL_OPTIONS", "TVMFLOW_LLVM_OPT_LEVEL")
    process = subprocess.run(
        [str(word) for word in command],
        env={name: value for name, value in os.environ.items() if name not in hidden},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds in isolation, from what git tracks and nothing else."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT, 400
    )
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", output, source]
    run(pip, output, 900)
    (path,) = output.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    names = ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"tvmflow", wheel.name.split("-py3-")[0] + ".dist-info"}
    assert {"tvmflow/runtime/libtvmflow_opencl.so", "tvmflow/py.typed"} <= set(names)
    page = ROOT / "tvmflow" / "explain" / "profiling" / "page"
    assert {f"tvmflow/explain/profiling/page/{path.name}" for path in page.glob("*.*s")} <= set(
        names
    )
    for top in ("schedules", "models", "tuning_logs"):
        packed = {name for name in names if name.startswith(f"tvmflow/{top}/")}
        packed = {name for name in packed if not name.endswith("README.md")}
        there = {path for path in (ROOT / top).rglob("*") if path.is_file()}
        there = {path for path in there if path.suffix != ".pyc" and path.name != "README.md"}
        assert packed == {f"tvmflow/{path.relative_to(ROOT)}" for path in there}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.endswith((".cc", ".o")) or "tests/" in name for name in names)


def test_the_wheel_holds_what_is_compiled_for_other_machines(wheel: Path):
    packed = {name for name in ZipFile(wheel).namelist() if name.endswith((".c", ".h", ".hpp"))}
    native = ROOT / "native"
    there = {
        path
        for folder, ends in {
            "standalone": (".c", ".h"),
            "bindings": (".c", ".h", ".hpp"),
            "isa": ".c",
            "opencl": ".h",
            "bionic": ".h",
        }.items()
        for path in (native / folder).rglob("*")
        if path.name.endswith(ends)
    }
    assert packed == {f"tvmflow/native_sources/{path.relative_to(native)}" for path in there}


def test_the_wheel_fits_any_python_3_of_this_platform(wheel: Path):
    assert "-py3-none-linux_" in wheel.name


@pytest.mark.timeout(1800)
def test_an_empty_environment_compiles_and_runs_mobilenet_v2(wheel: Path, tmp_path: Path):
    run([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path, 900)
    python = tmp_path / "venv" / "bin" / "python"
    run(
        [python, "-m", "pip", "install", f"tvmflow[cpu-opencl,verify] @ {wheel.as_uri()}"],
        tmp_path,
        900,
    )
    result = json.loads(run([python, "-c", USE], tmp_path, 900).splitlines()[-1])
    assert Path(result["where"]).is_relative_to(tmp_path)
    assert result["shapes"] == [[1, 1000]]
    # An output of zeros would agree with anything that is zero.
    assert result["spread"] > 0
    assert result["passed"], f"relative error {result['error']:.3g}"

    command = python.with_name("tvmflow")
    described = json.loads(run([command, "inspect", "mobilenet_v2.so", "--json"], tmp_path, 400))
    assert described["target"] == "opencl"
