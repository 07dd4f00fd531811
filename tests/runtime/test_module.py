"""Modules of kind ``opencl``: the stock serialized form, in both directions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

sys.path.insert(0, str(Path(__file__).with_name("scripts")))
import modules

SOURCE = "// Function: k\n__kernel void k(__global float* x) { x[0] = 1; }\n"
FUNCTIONS = {"k": (("handle", "int32"), ("blockIdx.x", "threadIdx.x"))}


def test_bytes_equal_those_of_the_module_without_a_runtime(script, tmp_path):
    ours, stock = tmp_path / "ours.c", tmp_path / "stock.c"
    assert script("fallback.py", ours) == {"kind": "opencl", "with_runtime": True}
    without = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    result = script("fallback.py", stock, env=without)
    assert result == {"kind": "opencl", "with_runtime": False}
    assert len(ours.read_text()) > 1000
    assert ours.read_text() == stock.read_text()


@pytest.mark.opencl
def test_a_module_from_a_process_without_the_plugin_runs_here(script, tmp_path):
    path = tmp_path / "stock.so"
    script("scale_library.py", path, env={"TVM_DEVICE_BACKEND_AUTOLOAD": "0"})
    device = tvm.opencl()
    x = tvm.runtime.tensor(np.arange(100, dtype="float32"), device)
    y = tvm.runtime.empty((100,), "float32", device)
    tvm_ffi.load_module(path)["triple"](x, y)
    assert (y.numpy() == 3 * x.numpy()).all()


def test_the_source_can_be_inspected():
    module = modules.load(modules.module_bytes(SOURCE, FUNCTIONS))
    assert module.kind == "opencl"
    assert module.inspect_source() == module.inspect_source("cl") == SOURCE
    assert module.inspect_source("ptx") == ""
    assert module.implements_function("k")
    assert not module.implements_function("other")
    assert module.is_binary_serializable()
    assert module.is_runnable()


@pytest.mark.parametrize("format_name", ["xclbin", "spirv", ""])
def test_other_formats_are_refused(format_name):
    with pytest.raises(ValueError, match=f"format '{format_name}'"):
        modules.load(modules.module_bytes(SOURCE, FUNCTIONS, form=format_name))


def test_a_function_without_source_is_refused():
    functions = {**FUNCTIONS, "missing": FUNCTIONS["k"]}
    with pytest.raises(ValueError, match="no kernel 'missing'"):
        modules.load(modules.module_bytes(SOURCE, functions))


def test_a_launch_parameter_that_opencl_lacks_is_refused():
    functions = {"k": (("handle",), ("clusterCtaIdx.x",))}
    module = modules.load(modules.module_bytes(SOURCE, functions))
    with pytest.raises(ValueError, match=r"clusterCtaIdx\.x"):
        module["k"]


def test_every_cut_is_an_error():
    data = modules.module_bytes(SOURCE, FUNCTIONS)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="damaged"):
            modules.load(data[:length])
    with pytest.raises(ValueError, match="damaged"):
        modules.load(data + b"x")


def test_absurd_lengths_are_errors():
    data = modules.module_bytes(SOURCE, FUNCTIONS)
    for position in range(len(data) - 8):
        changed = data[:position] + b"\xff" * 8 + data[position + 8 :]
        # Changes within texts are not noticed here; none may crash or exhaust memory.
        try:
            modules.load(changed)
        except ValueError:
            continue


def test_unknown_settings_are_refused():
    configure = tvm_ffi.get_global_func("tvmflow.opencl.configure")
    with pytest.raises(ValueError, match="no setting 'colour'"):
        configure(json.dumps({"colour": "red"}))
