"""Damaged ONNX files are refused with one sentence, or imported if they are still valid."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from reference import graph_model

from tvmflow.errors import ModelError, TvmflowError
from tvmflow.frontend.load import load_model


def small_model() -> onnx.ModelProto:
    """Build a model with a bit of everything in a file: shapes, attributes, constants."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["c", "", "s"], ["r"], name="resize", mode="nearest"),
        helper.make_node("Pad", ["r", "p"], ["q"], name="pad"),
        helper.make_node("Shape", ["q"], ["z"], name="shape"),
        helper.make_node("ConstantOfShape", ["z"], ["o"], name="ones"),
        helper.make_node("Add", ["q", "o"], ["a"], name="add"),
        helper.make_node("Reshape", ["a", "n"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "m"], ["y"], name="gemm", transB=1),
    ]
    rng = np.random.default_rng(4)
    constants = {
        "w": rng.standard_normal((2, 3, 3, 3), dtype=np.float32),
        "b": rng.standard_normal(2, dtype=np.float32),
        "s": np.array([1, 1, 2, 2], np.float32),
        "p": np.array([0, 0, 1, 1, 0, 0, 0, 0]),
        "n": np.array([1, -1]),
        "m": rng.standard_normal((5, 2 * 9 * 9), dtype=np.float32),
    }
    return graph_model(nodes, {"x": ([1, 3, 4, 4], "float32")}, ["y"], constants)


CONTENT = small_model().SerializeToString()


def test_the_whole_file():
    assert load_model(CONTENT).outputs[0].shape == (1, 5)


@pytest.mark.parametrize("part", range(0, 100, 3))
def test_a_file_that_is_cut_short(tmp_path, part):
    path = tmp_path / "net.onnx"
    path.write_bytes(CONTENT[: len(CONTENT) * part // 100])
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert caught.value.remedy
    assert "\n" not in caught.value.message


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage(data):
    content = bytearray(CONTENT)
    # Weights are not damaged, as any bytes are valid there.
    places = [i for i in range(len(content)) if not 600 < i < len(content) - 1000]
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.sampled_from(places))
        content[position] = data.draw(st.integers(0, 255))
    with suppress(TvmflowError):
        load_model(bytes(content))


_NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 7, 2**31 - 1, 2**31, 2**40, 2**63 - 1])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_numbers_in_shapes_and_attributes(data):
    model = small_model()
    shapes = [model.graph.input[0].type.tensor_type.shape.dim[i] for i in range(4)]
    for dim in shapes:
        if data.draw(st.booleans()):
            dim.dim_value = data.draw(_NUMBERS)
    for tensor in model.graph.initializer:
        if data.draw(st.booleans()):
            continue
        if tensor.name in ("p", "n"):
            values = data.draw(st.lists(_NUMBERS, min_size=tensor.dims[0], max_size=tensor.dims[0]))
            tensor.raw_data = np.array(values, np.int64).tobytes()
        elif data.draw(st.booleans()):
            tensor.dims[0] = data.draw(_NUMBERS)
    for attribute in model.graph.node[0].attribute:
        attribute.ints[:] = data.draw(st.lists(_NUMBERS, max_size=5))
    with suppress(TvmflowError):
        load_model(model)
