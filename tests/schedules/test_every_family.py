"""Every family of schedules under Oclgrind: no access out of bounds, no data race."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.checks import check_outputs
from support.operators import build, feeds_for, random

import tvmflow
from tvmflow.schedules import (
    FAMILIES,
    attention,
    attention_groups,
    dynamic_shapes,
    gemm_simt,
    gemm_tensor,
)
from tvmflow.schedules.boxes import masked_mean, per_box

pytestmark = [pytest.mark.oclgrind, pytest.mark.opencl]

#: Tensors computed by Winograd's algorithm, although they are small.
ALGORITHMS = {"b": "winograd4", "c": "direct"}


def network():
    """Build an operator for each family, with partial blocks of channels and odd extents."""
    same = {"pads": [1] * 4}
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"]),
        node("Conv", ["a", "w2"], ["b"], **same),
        node("Conv", ["b", "w2"], ["c"], **same),
        node("Conv", ["c", "w3"], ["d"], group=6, **same),
        node("Conv", ["d", "w4"], ["e"], group=2, **same),
        node("ConvTranspose", ["e", "w5"], ["f"], strides=[2, 2]),
        node("MaxPool", ["f"], ["g"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Resize", ["g", "", "scales"], ["wide"], mode="linear"),
        node("InstanceNormalization", ["wide", "s", "o"], ["h"]),
        node("ReduceMean", ["h", "axes"], ["m"], keepdims=0),
        node("Concat", ["m", "more"], ["n"], axis=1),
        node("Gemm", ["n", "w6"], ["one"]),
        node("Gemm", ["rows", "w7"], ["many"]),
        node("MatMul", ["many", "right"], ["product"]),
        node("Softmax", ["product"], ["soft"], axis=1),
        node("Transpose", ["soft"], ["turned"], perm=[1, 0]),
        node("Tile", ["one", "twice"], ["moved"]),
        node("ScatterND", ["turned", "places", "updates"], ["scattered"]),
        node("Unsqueeze", ["turned", "first"], ["steps"]),
        node("GRU", ["steps", "w8", "w9"], ["states"], hidden_size=5, direction="bidirectional"),
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["picked"]),
    ]
    weights = {
        "w1": random((6, 5, 1, 1), 0.4), "w2": random((6, 6, 3, 3), 0.15),
        "w3": random((6, 1, 3, 3), 0.3), "w4": random((6, 3, 3, 3), 0.2),
        "w5": random((6, 7, 2, 2), 0.2), "s": random((7,)) + 2, "o": random((7,)),
        "axes": np.array([2, 3]), "scales": np.array([1, 1, 2, 2], np.float32),
        "w6": random((128, 9), 0.1), "w7": random((10, 24), 0.3),
        "first": np.array([0]), "w8": random((2, 15, 17), 0.3), "w9": random((2, 15, 5), 0.3),
        "twice": np.array([1, 2]), "places": np.array([[1, 2], [0, 3]]), "updates": random((2,)),
        "most": np.array([9]), "iou": np.array([0.2], np.float32),
    }  # fmt: skip
    inputs = {"x": (1, 5, 9, 7), "more": (1, 121), "rows": (17, 10), "right": (24, 19)}
    inputs |= {"boxes": (2, 37, 4), "scores": (2, 3, 37)}
    outputs = ["moved", "scattered", "states", "picked"]
    return build(nodes, inputs, outputs, weights, opset=18, element_type=None)


def reached_families():
    """Return the names of the families that `network` must reach on an Adreno."""
    for_cuda = {gemm_tensor.NAME, gemm_simt.NAME}
    # Custom operators, which ONNX Runtime does not have, and open extents are in tests/ops.
    custom = {masked_mean.NAME, per_box.NAME, dynamic_shapes.NAME}
    # Samples at computed positions, and attention, have their own tests.
    elsewhere = {"grid_sample", attention.NAME, attention_groups.NAME}
    return {family.NAME for family in FAMILIES} - for_cuda - custom - elsewhere


@pytest.mark.parametrize(
    ("device", "storage"),
    [("adreno", "texture"), ("adreno", "buffer"), ("mali", "texture"), ("cpu", "buffer")],
)
def test_every_family_is_clean(device, storage, under_oclgrind):
    model = network()
    options = {"device": device, "storage": storage, "algorithms": ALGORITHMS}
    with tvmflow.compile(model, **options) as module:
        if (device, storage) == ("adreno", "texture"):
            families = {choice["family"] for choice in module.metadata["schedules"].values()}
            assert families == reached_families()
        check_outputs(model, module, feeds_for(model), run=under_oclgrind())
