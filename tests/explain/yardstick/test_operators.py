"""Operators of compiled functions, from their schedules and tensors."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import model_of

import tvmflow
from tvmflow.explain.yardstick.measured import Operator
from tvmflow.explain.yardstick.operators import operators_of
from tvmflow.module.artifact import read_artifact
from tvmflow.module.functions import functions_of_shape

NODES = """
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0)
    b = Conv<pads = [1, 1, 1, 1], group = 16>(a, w1)
    c = Conv<strides = [2, 2]>(b, w2)
    d = Conv<pads = [1, 1, 1, 1], group = 4>(c, w3)
    e = Conv(d, w4)
    f = Conv<pads = [1, 1, 1, 1]>(e, w5)
    g = Concat<axis = 1>(e, f)
    h = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(g)
    i = Conv<pads = [2, 2, 2, 2], dilations = [2, 2], group = 24>(h, w6)
    j = GlobalAveragePool(i)
    k = Flatten(j)
    y = Gemm<transB = 1>(k, w7)
"""
WEIGHTS = [
    (16, 3, 3, 3), (16, 1, 3, 3), (32, 16, 1, 1), (32, 8, 3, 3), (8, 32, 3, 3), (16, 8, 3, 3),
    (24, 1, 3, 3), (12, 24),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("operators")


def operators(path):
    """Return the operators of a module by the names of the tensors that their functions write."""
    artifact = read_artifact(path)
    about = artifact.metadata
    functions = functions_of_shape(artifact.read_functions(), about)
    found = operators_of(about, functions)
    nodes = {t["producer"]: t["name"] for t in about["memory"]["tensors"]}
    return {nodes[name]: operator for name, operator in found.items()}


@pytest.fixture(scope="module")
def compiled(folder):
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in
               enumerate(WEIGHTS)}  # fmt: skip
    model = model_of(NODES, {"x": (1, 3, 60, 60)}, {"y": (1, 12)}, weights, opset=18)

    def build(**options):
        path = folder / "net.so"
        tvmflow.compile(model, target="opencl", device="adreno", **options).save(path)
        return operators(path)

    return build


def test_each_layer_has_its_operator(compiled):
    found = compiled()
    assert sorted(map(str, found.values())) == [
        "concat, 24, 13×13",
        "conv2d 1×1 stride 2, 16 → 32, 15×15",
        "conv2d 3×3 stride 2, 3 → 16, 30×30",
        "conv2d 3×3, 32 → 8, 13×13",
        "conv2d 3×3, 8 → 16, 13×13",
        "dense, 24 → 12",
        "depthwise 3×3, 16, 30×30",
        "grouped 3×3 4 groups, 32 → 32, 15×15",
        "mean, 24, 7×7",
        "pooling 3×3 stride 2, 24, 7×7",
    ]


def test_winograds_product_has_the_convolution(compiled):
    found = compiled(algorithms={"f": "winograd2"})
    # Its tiles cover 14×14.
    assert [found[name] for name in found if "products" in name] == [
        Operator("conv2d", 8, 16, 13, 13, window=3)
    ]


def test_shapes_of_other_versions_have_none(folder, compiled):
    compiled()
    artifact = read_artifact(folder / "net.so")
    about = artifact.metadata
    functions = functions_of_shape(artifact.read_functions(), about)
    for shape in (None, {}, {"batch": "one"}):
        schedules = {n: {**each, "shape": shape} for n, each in about["schedules"].items()}
        found = operators_of({**about, "schedules": schedules}, functions)
        assert {each.kind for each in found.values()} <= {"concat"}
    assert operators_of({}, functions) == {}
