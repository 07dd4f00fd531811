"""Models of operator sets 1 to 6 are brought to 7 first, and mean the same."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference import assert_right, load_and_run

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend import load_model
from tvmflow.frontend.prepare import OLDEST_OPSET


@cache
def cases():
    """ONNX's cases of networks that PyTorch exported, all of operator set 6."""
    from onnx.backend.test import loader

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("pytorch-operator", "pytorch-converted"):
            for case in loader.load_model_tests(kind=kind):
                model = onnx.load(Path(case.model_dir) / "model.onnx")
                if model.opset_import[0].version < OLDEST_OPSET:
                    found[case.name] = model, Path(case.model_dir)
    return found


def arrays(folder, kind, count):
    files = [folder / "test_data_set_0" / f"{kind}_{index}.pb" for index in range(count)]
    return [numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]


def check(name):
    model, folder = cases()[name]
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    feeds = dict(zip(names, arrays(folder, "input", len(names)), strict=True))
    assert_right(load_and_run(model, feeds), arrays(folder, "output", len(model.graph.output)))


def test_there_are_cases():
    assert len(cases()) == 112


@pytest.mark.parametrize(
    "name",
    ["test_operator_add_broadcast", "test_PReLU_2d_multiparam", "test_BatchNorm2d_eval",
     "test_operator_pad", "test_Linear", "test_operator_addmm"],
)  # fmt: skip
def test_some(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cases()))
def test_all(name):
    check(name)


def model_of(node, shapes, constants, opset=6, ir_version=3):
    """A model of one node, in which weights are inputs, too."""
    tensors = {name: np.asarray(array) for name, array in constants.items()}
    graph = helper.make_graph(
        [node],
        "old",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
        + [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in tensors.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def test_slopes_are_of_channels(rng):
    """A square picture with as many columns as channels: both readings have a result."""
    x, slope = rng.standard_normal((1, 4, 4, 4)).astype("f4"), rng.random(4).astype("f4")
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    (y,) = load_and_run(model_of(node, {"x": x.shape}, {"slope": slope}), {"x": x})
    np.testing.assert_array_equal(y, np.where(x < 0, x * slope[:, None, None], x))


def test_one_operand_is_broadcast_along_an_axis(rng):
    x, bias = rng.standard_normal((2, 3, 3, 3)).astype("f4"), rng.random(3).astype("f4")
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    (y,) = load_and_run(model_of(node, {"x": x.shape}, {"b": bias}), {"x": x})
    np.testing.assert_array_equal(y, x + bias[:, None, None])


def test_concatenation_has_an_axis_by_default(rng):
    x = rng.standard_normal((2, 3, 2)).astype("f4")
    node = helper.make_node("Concat", ["x", "x"], ["y"])
    (y,) = load_and_run(model_of(node, {"x": x.shape}, {}, opset=1), {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([x, x], 1))


def test_what_the_converter_does_not_take_is_refused():
    """Tile had other inputs in operator set 1."""
    node = helper.make_node("Tile", ["x", "n", "a"], ["y"])
    constants = {"n": np.float32(2), "a": np.float32(1)}
    with pytest.raises(UnsupportedModelError, match="operator set 1, and ONNX's version") as caught:
        load_model(model_of(node, {"x": (2, 3)}, constants, opset=1))
    assert "operator set 18" in caught.value.remedy


def test_the_model_is_not_changed():
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    model = model_of(node, {"x": (1, 4, 4, 4)}, {"slope": np.ones(4, "f4")})
    before = model.SerializeToString()
    load_model(model)
    assert model.SerializeToString() == before
