"""Texels beyond a border are read by a sampler that returns zeros, and not in branches."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import expected
from support.operators import build, random

import tvmflow
from tvmflow.codegen.clamp_reads import read_with_sampler
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

NODES = {
    "Conv": {"pads": [1, 2, 1, 0]},
    "depthwise": {"pads": [1] * 4, "group": 6, "strides": [2, 2]},
    # Its border is the lowest number, and not zero.
    "MaxPool": {"pads": [1] * 4, "kernel_shape": [3, 3], "strides": [2, 2]},
    "AveragePool": {"pads": [0, 1, 1, 1], "kernel_shape": [3, 3], "count_include_pad": 1},
}


@pytest.mark.opencl
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", NODES)
def test_borders_are_read_without_branches(kind, dtype, tmp_path):
    weights = {"Conv": (10, 6, 3, 3), "depthwise": (6, 1, 3, 3)}
    names = ["x", "w"] if kind in weights else ["x"]
    node = helper.make_node(kind if kind[0].isupper() else "Conv", names, ["y"], **NODES[kind])
    constants = {"w": random(weights[kind])} if kind in weights else {}
    model = build([node], {"x": (1, 6, 13, 9)}, ["y"], constants)
    # All negative: a maximum must not see zeros.
    x = -np.abs(random((1, 6, 13, 9))) - 1
    (right,) = expected(model, {"x": x})
    options = {"device": "adreno", "storage": "texture", "dtype": dtype, "dump_ir": tmp_path}
    options["accumulate"] = "fp32"
    with tvmflow.compile(model, target="opencl", **options) as module:
        assert_close(module(x=x)["y"], right, NETWORK if dtype == "fp32" else STORED_AS_HALF)
    (source,) = tmp_path.glob("*export.0.opencl")
    (kernel,) = (text for text in source.read_text().split("\n}") if "tvmflow_inside(" in text)
    body = kernel[kernel.index("__kernel void", kernel.index("reqd_work_group_size")) :]
    assert re.search(r"read_imagef\(\w+, image_sampler", body)
    # A branch would assign to this variable.
    assert "condval" not in body


def test_only_reads_of_borders_take_the_sampler():
    read = "v = READ_IMAGEF(x_ptr, image_sampler, ((int4)({}, 1, 0, 0)));\n"
    border = read_with_sampler(read.format("tvmflow_inside((0 <= x), x, -1)") + read.format("x"))
    assert border.count("= read_imagef(x_ptr, image_sampler") == 1
    assert border.count("= READ_IMAGEF(x_ptr, image_sampler") == 1
    assert border.count("#define tvmflow_inside") == 1
