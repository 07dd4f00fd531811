"""Cost of importing the package, and its content."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, metadata

import pytest

import tvmflow

#: Packages whose import takes between a tenth of a second and seconds.
HEAVY = ("tvm", "tvm_ffi", "onnx", "onnxruntime", "numpy", "rich")


def heavy_imports(run_python: Callable, statement: str) -> list[str]:
    """Return the heavy packages that a statement imports in a new process."""
    process = run_python(
        f"import sys\n{statement}\nprint(*(m for m in {HEAVY} if m in sys.modules))"
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_importing_the_package_imports_nothing_heavy(run_python: Callable):
    assert heavy_imports(run_python, "import tvmflow") == []


def test_importing_the_command_line_does_not_import_tvm(run_python: Callable):
    found = heavy_imports(run_python, "import tvmflow.cli")
    assert not {"tvm", "tvm_ffi", "onnx", "onnxruntime"} & set(found)


def test_every_name_that_is_imported_on_first_use_is_public():
    for package in (tvmflow, tvmflow.ops):
        assert {*package._LAZY} <= {*package.__all__}


def test_public_names_are_there_on_first_use(run_python: Callable):
    code = "import tvmflow\nfor name in tvmflow.__all__: getattr(tvmflow, name)"
    assert run_python(code).returncode == 0
    listed = "import tvmflow\nassert {*tvmflow.__all__} <= {*dir(tvmflow)}"
    assert heavy_imports(run_python, listed) == []
    code = "import tvmflow as t\nprint(callable(t.analysis.coalescing), callable(t.lab.run_lab))"
    assert run_python(code).stdout.split() == ["True", "True"]


@pytest.mark.parametrize("name", ["schedules", "models"])
def test_folders_at_the_top_of_the_tree_are_part_of_the_package(name: str):
    assert import_module(f"tvmflow.{name}").__name__ == f"tvmflow.{name}"


@pytest.mark.parametrize("name", ["schedules", "models", "tuning_logs", "native", "setup"])
def test_no_package_of_a_common_name_is_installed(run_python: Callable, name: str):
    process = run_python(f"import importlib.util as u; print(u.find_spec({name!r}))")
    assert process.stdout.strip() == "None"


def test_the_plugin_is_declared_to_tvm():
    entries = metadata.entry_points(group="tvm.backends")
    assert [e.value for e in entries if e.name == "tvmflow_opencl"] == [
        "tvmflow.runtime.plugin:autoload"
    ]


def test_tvm_loads_the_plugin_by_itself(run_python: Callable):
    code = (
        "import tvm, tvm_ffi\n"
        "assert tvm_ffi.get_global_func('device_api.opencl', allow_missing=True) is not None\n"
    )
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    assert "tvmflow" not in process.stderr, "loading it was reported as a warning"


def test_the_python_that_runs_is_one_the_project_supports():
    required = metadata.metadata("tvmflow")["Requires-Python"]
    assert required == "<3.15,>=3.10"
    assert (3, 10) <= sys.version_info[:2] <= (3, 14)
