"""Convolutions and products as products of padded matrices on CUDA, with tensor cores."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from cuda_host import cuda_host
from onnx import TensorProto, helper, numpy_helper
from operators import feeds_for, single

import tvmflow
from tvmflow.tolerance import NETWORK, STORED_AS_HALF, assert_close

TOLERANCES = {"fp32": NETWORK, "fp16": STORED_AS_HALF}


def conv(
    channels, outputs, size, kernel=3, *, batch=1, stride=1, dilation=1, pad=1, residual=False
):
    """A convolution between two others, of two channels, so that its own tensors are in blocks."""
    rng = np.random.default_rng(channels * outputs + size)

    def weight(name, *shape):
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        return numpy_helper.from_array(values.astype(np.float32), name)

    weights = [
        weight("w0", channels, 2, 1, 1), weight("w", outputs, channels, kernel, kernel),
        weight("b", outputs), weight("w2", 2, outputs, 1, 1),
    ]  # fmt: skip
    window = {"pads": [pad] * 4, "strides": [stride] * 2, "dilations": [dilation] * 2}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w", "b"], ["layer"], **window),
        helper.make_node(
            "Add" if residual else "Relu", ["layer", "a"][: 2 if residual else 1], ["c"]
        ),
        helper.make_node("Conv", ["c", "w2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 2, size, size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(model, feeds, **options):
    """What a model gives on the host, and the families that it was given."""
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        families = [entry["family"] for entry in module.metadata["schedules"].values()]
        return cuda_host()(module, feeds), families


def reference(model, feeds):
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]


def picture(model):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


CONVOLUTIONS = [
    pytest.param(conv(20, 24, 7), id="channels_20_map_7"),
    pytest.param(conv(24, 40, 9, batch=3, stride=2), id="batch_3_stride_2"),
    pytest.param(conv(32, 32, 11, dilation=2, pad=2), id="dilation"),
    pytest.param(conv(40, 40, 9, 1, pad=0, residual=True), id="pointwise_residual"),
    pytest.param(conv(16, 33, 10, 5, pad=0), id="window_5"),
]
FAMILY = {"fp32": "gemm_simt", "fp16": "gemm_tensor"}


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
@pytest.mark.parametrize("model", CONVOLUTIONS)
def test_convolutions_are_right(model, dtype):
    feeds = picture(model)
    outputs, families = run(model, feeds, dtype=dtype, algorithms={"layer": "gemm"})
    assert families.count(FAMILY[dtype]) == 1
    assert_close(outputs["y"], reference(model, feeds), TOLERANCES[dtype])


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
@pytest.mark.parametrize(
    "shapes",
    [[(70, 150), (150, 100)], [(3, 60, 96), (3, 96, 101)]],
    ids=["rows_70_depth_150", "batch_3_columns_101"],
)
def test_products_of_computed_matrices_are_right(shapes, dtype):
    model = single("MatMul", shapes)
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype=dtype)
    assert families == [FAMILY[dtype]]
    assert_close(outputs["y"], reference(model, feeds), TOLERANCES[dtype])


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
def test_products_with_weights_are_right(dtype):
    weights = np.random.default_rng(5).standard_normal((96, 200)).astype(np.float32)
    model = single("MatMul", [(2, 37, 96)], {"w": weights})
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype=dtype)
    assert FAMILY[dtype] in families
    assert_close(outputs["y"], reference(model, feeds), TOLERANCES[dtype])
