"""Source of kernels: grouped and transposed convolutions, and functions without a family."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from support.operators import build, random

import tvmflow

pytestmark = pytest.mark.opencl

CONDITION = re.compile(r"\bif \(")
LOOP = re.compile(r"\bfor \((?:int|long) ")


def kernels(model, family, folder):
    """Return the source of a family's kernels, in order, from buffers on the preset adreno."""
    options = {"target": "opencl", "device": "adreno", "storage": "buffer", "dump_ir": folder}
    with tvmflow.compile(model, **options) as module:
        names = [k["name"] for k in module.metadata["kernels"] if k["family"] == family]
    (path,) = folder.glob("*_build.0.opencl")
    source, found = path.read_text(), []
    for name in names:
        start = re.search(rf"__kernel void {name}\([^)]*\) {{", source).start()
        found.append(source[start : source.index("\n}", start)])
    return found


def test_runs_of_lanes_share_an_input_of_grouped_convolutions(tmp_path):
    """With two groups of 4 and 6 channels, two of four lanes read the same input."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, pads=[1] * 4)
    model = build([node], {"x": (1, 8, 6, 6)}, ["y"], {"w": random((12, 4, 3, 3))})
    (kernel,) = kernels(model, "grouped", tmp_path)
    # A row of six columns is in registers, which only constants index.
    assert "float grouped_local_ptr[24];" in kernel
    assert not re.search(r"grouped_local_ptr \+ [^0-9]", kernel)
    # The loops are over the window only; each step has four inputs for six columns and two runs.
    assert len(LOOP.findall(kernel)) == 2
    assert len(re.findall(r"\(float2\)\(\w+\)\) \* tvmflow_at_float2\(B_ptr", kernel)) == 4 * 6 * 2
    # The results are whole vectors again.
    assert len(re.findall(r"put_float4\(grouped_ptr", kernel)) == 6
    assert not re.search(r"\bgrouped_ptr\[", kernel)


def test_outputs_of_transposed_convolutions_know_their_taps(tmp_path):
    """With a window of 4 x 4 and strides of 2, each output has 2 x 2 taps."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)
    model = build([node], {"x": (1, 8, 6, 6)}, ["y"], {"w": random((8, 8, 4, 4))})
    (kernel,) = kernels(model, "conv2d_transpose", tmp_path)
    rows, columns, inputs, taps = 2, 6, 4, 4
    sums = r"conv2d_transpose_local_ptr\[\d+\]"
    products = re.findall(rf"{sums} \+= ", kernel)
    assert len(products) == rows * columns * inputs * taps
    # There is one loop, over blocks of inputs.  Only copies of inputs are tested, 2 x 5 for each
    # of two rows of taps: no test is between products.
    assert len(LOOP.findall(kernel)) == 1
    assert len(re.findall(r"at_float4\(x_0_blocked_ptr", kernel)) == 2 * 2 * 5
    assert len(CONDITION.findall(kernel)) <= 2 * 2 * 5
    last = kernel.rindex("if (")
    assert not re.search(rf"{sums} \+?= [^;]*\?", kernel)
    assert len(re.findall(rf"{sums} \+= ", kernel[last:])) >= len(products) // 2
    assert len(re.findall(r"put_float4\(conv2d_transpose_ptr", kernel)) == rows * columns


def test_each_block_without_a_family_is_a_kernel(tmp_path):
    """A scatter transposes its indices, copies the tensor, and writes the rows, in this order."""
    node = helper.make_node("ScatterND", ["x", "p", "u"], ["y"])
    inputs = {"x": (6, 10), "u": (2, 10)}
    model = build([node], inputs, ["y"], {"p": np.array([[1], [4]])})
    turn, copy, write = kernels(model, "fallback", tmp_path)
    # Elementwise blocks store vectors, and their loops are unrolled.
    assert "put_" in turn
    assert not LOOP.search(turn)
    assert not LOOP.search(copy)
    assert len(LOOP.findall(write)) == 1
    # Extents that are no multiple of the work-groups are tested.
    assert len(CONDITION.findall(copy)) == len(CONDITION.findall(write)) == 1
