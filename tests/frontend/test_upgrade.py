"""Models of operator sets 1 to 6 are upgraded to 7 without a change in meaning."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from reference import assert_right, load_and_run
from support.onnx_models import model_of as any_model

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend.load import load_model
from tvmflow.frontend.prepare import OLDEST_OPSET


@cache
def cases():
    """Return ONNX's test cases of networks that PyTorch exported, all of operator set 6."""
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
    """Build a model of one node, in which weights are inputs, too."""
    return old_model([node], shapes, ["y"], constants, opset, ir_version)


def old_model(nodes, shapes, outputs, constants, opset, ir_version=3):
    tensors = {name: np.asarray(array) for name, array in constants.items()}
    inputs = shapes | {name: (array.shape, array.dtype) for name, array in tensors.items()}
    return any_model(nodes, inputs, outputs, tensors, opset, ir_version)


def test_slopes_are_of_channels(rng):
    """With as many columns as channels, slopes per column would give another result."""
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


X = np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)
SCALE, BIAS, MEAN, SPREAD = np.random.default_rng(3).uniform(0.5, 1.5, (4, 3)).astype(np.float32)
PER_CHANNEL = np.s_[:, None, None]
NORMALIZED = (X - MEAN[PER_CHANNEL]) / np.sqrt(SPREAD[PER_CHANNEL] + 1e-5)
NORMALIZED = NORMALIZED * SCALE[PER_CHANNEL] + BIAS[PER_CHANNEL]
NORM = ({"s": SCALE, "b": BIAS, "m": MEAN, "v": SPREAD}, {"epsilon": 1e-5})
OF_TWO = {"b": BIAS}

#: Operator, its first and last operator set, constants, attributes, and its result for X.
OLD = {
    "test mode": ("BatchNormalization", 6, 6, NORM[0], {"is_test": 1, **NORM[1]}, [NORMALIZED]),
    "consumed": (
        "BatchNormalization", 1, 5, NORM[0],
        {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1], **NORM[1]}, [NORMALIZED],
    ),
    "dropout": ("Dropout", 1, 6, {}, {"is_test": 1, "ratio": 0.3}, [X]),
    "clip": (
        "Clip", 1, 5, {}, {"min": -0.5, "max": 0.7, "consumed_inputs": [0]},
        [X.clip(-0.5, 0.7)],
    ),
    "relu": ("Relu", 1, 5, {}, {"consumed_inputs": [0]}, [X.clip(0)]),
    "leaky": ("LeakyRelu", 1, 5, {}, {"alpha": 0.25}, [np.where(X < 0, X / 4, X)]),
    "add": ("Add", 1, 6, OF_TWO, {"broadcast": 1, "axis": 1}, [X + BIAS[PER_CHANNEL]]),
    "add behind": ("Add", 1, 6, {"b": X[0, 0]}, {"broadcast": 1}, [X + X[0, 0]]),
    "multiply": ("Mul", 1, 6, {"b": np.float32(2)}, {"broadcast": 1}, [X * 2]),
    "divide": ("Div", 1, 6, {"b": SCALE[:2]}, {"broadcast": 1, "axis": 0}, [(X.T / SCALE[:2]).T]),
    "greater": ("Greater", 1, 6, OF_TWO, {"broadcast": 1, "axis": 1}, [BIAS[PER_CHANNEL] < X]),
    "less": ("Less", 1, 6, {"b": X[0, 0]}, {"broadcast": 1}, [X[0, 0] > X]),
    "greater of one shape": ("Greater", 1, 6, {"b": X[::-1].copy()}, {}, [X[::-1] < X]),
    "cast": ("Cast", 1, 5, {}, {"to": "INT32"}, [X.astype(np.int32)]),
    "concat": ("Concat", 1, 3, {"b": X[:, :1]}, {}, [np.concatenate([X, X[:, :1]], 1)]),
    "reshape": ("Reshape", 1, 4, {}, {"shape": [0, -1]}, [X.reshape(2, -1)]),
    "pad": (
        "Pad", 1, 1, {}, {"paddings": [0, 0, 1, 0, 0, 0, 2, 1], "value": 1.5},
        [np.pad(X, [(0, 0), (0, 0), (1, 2), (0, 1)], constant_values=1.5)],
    ),
    "pad, reflected": (
        "Pad", 1, 1, {}, {"paddings": [0, 0, 1, 0, 0, 0, 2, 1], "mode": "reflect"},
        [np.pad(X, [(0, 0), (0, 0), (1, 2), (0, 1)], "reflect")],
    ),
    "pad renamed": (
        "Pad", 2, 6, {}, {"pads": [0, 1, 0, 0, 0, 0, 0, 0], "mode": "edge"},
        [np.pad(X, [(0, 0), (1, 0), (0, 0), (0, 0)], "edge")],
    ),
    "upsample": (
        "Upsample", 1, 6, {}, {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"},
        [X.repeat(2, 2).repeat(3, 3)],
    ),
    "slice": (
        "Slice", 1, 6, {}, {"starts": [1, 0], "ends": [9, -1], "axes": [1, 3]},
        [X[:, 1:, :, :-1]],
    ),
    "slice in front": ("Slice", 1, 6, {}, {"starts": [0, 1], "ends": [1, 9]}, [X[:1, 1:]]),
    "split": ("Split", 1, 6, {}, {"axis": 1, "split": [1, 2]}, [X[:, :1], X[:, 1:]]),
    "split by an input": (
        "Split", 1, 1, {"l": np.float32([1, 2])}, {"axis": 1}, [X[:, :1], X[:, 1:]],
    ),
    "split evenly": ("Split", 1, 6, {}, {"axis": 2}, [X[:, :, :2], X[:, :, 2:]]),
    "tile": (
        "Tile", 1, 5, {"n": np.float32(2), "a": np.float32(1)}, {},
        [np.tile(X, (1, 2, 1, 1))],
    ),
    "repeats": ("Tile", 6, 6, {"n": np.int64([1, 2, 1, 3])}, {}, [np.tile(X, (1, 2, 1, 3))]),
    "largest": (
        "TopK", 1, 6, {}, {"axis": 1, "k": 1}, [X.max(1, keepdims=True), X.argmax(1)[:, None]],
    ),
    "sum": ("Sum", 1, 5, {"b": X + 1}, {}, [X + (X + 1)]),
    "maximum": ("Max", 1, 5, {"b": X[::-1].copy()}, {}, [np.maximum(X, X[::-1])]),
    "minimum": ("Min", 1, 5, {"b": X[::-1].copy()}, {}, [np.minimum(X, X[::-1])]),
    "norm of windows": (
        "LpPool", 1, 1, {}, {"kernel_shape": [4, 5], "p": 1.0},
        [np.abs(X).sum((2, 3), keepdims=True)],
    ),
    "norm of pictures": (
        "GlobalLpPool", 1, 1, {}, {"p": 1.0},
        [np.abs(X).sum((2, 3), keepdims=True)],
    ),
    # The mean excludes padding in operator set 1, but ONNX's evaluator includes it.
    "average": (
        "AveragePool", 1, 6, {}, {"kernel_shape": [1, 5], "pads": [0, 4, 0, 0], "strides": [1, 5]},
        [X[..., :1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OLD)
def test_operators_of_old_sets(case):
    """Operators are right in the first and the last operator set that has their form."""
    op_type, first, last, constants, attributes, expected = OLD[case]
    for opset in {first, last}:
        outputs = [f"y{index}" for index in range(len(expected))]
        node = helper.make_node(op_type, ["x", *constants], outputs, **attributes)
        kinds = {n: (a.shape, a.dtype) for n, a in zip(outputs, expected, strict=True)}
        model = old_model([node], {"x": X.shape}, kinds, constants, opset)
        assert_right(load_and_run(model, {"x": X}), [a.copy() for a in expected])


@pytest.mark.parametrize("case", OLD)
def test_operators_of_old_sets_among_others(case):
    """A product along an axis needs its operand's shape, which ONNX infers for few operators."""
    op_type, first, _, constants, attributes, expected = OLD[case]
    wanted = expected[0]
    zero, one = np.zeros(3, "f4"), np.ones(wanted.shape[-1:], "f4")
    nodes = [
        helper.make_node("Add", ["x", "zero"], ["same"], broadcast=1, axis=1),
        helper.make_node(
            op_type, ["same", *constants], [f"r{i}" for i in range(len(expected))], **attributes
        ),
    ]
    result = "r0"
    if wanted.dtype == np.float32:
        axes = {"broadcast": 1, "axis": wanted.ndim - 1}
        nodes.append(helper.make_node("Mul", ["r0", "one"], ["product"], **axes))
        result = "product"
    weights = {"zero": zero, "one": one, **constants}
    kinds = {result: (wanted.shape, wanted.dtype)}
    model = old_model(nodes, {"x": X.shape}, kinds, weights, first)
    assert_right(load_and_run(model, {"x": X}), [wanted.copy()])


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5), (1, 3, 4, 5)])
def test_an_axis_may_be_counted_from_the_end(shape, rng):
    b = rng.standard_normal(shape).astype("f4")
    node = helper.make_node("Sub", ["x", "b"], ["y"], broadcast=1, axis=-len(shape))
    (y,) = load_and_run(model_of(node, {"x": X.shape}, {"b": b}), {"x": X})
    np.testing.assert_array_equal(y, X - b)


def test_products_of_matrices_broadcast():
    a, w, b = X[0, 0], X[0, 1].T.copy(), X[0, 2, :, 0].copy()
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], broadcast=1, alpha=0.5)
    for opset in (1, 6):
        model = model_of(node, {"x": a.shape}, {"w": w, "b": b}, opset)
        assert_right(load_and_run(model, {"x": a}), [0.5 * (a @ w) + b])


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "reason"),
    [
        ("Tile", ["x", "x", "x"], {}, "the tiles of Tile y are computed"),
        ("Split", ["x"], {}, "does not say along which axis"),
        ("GlobalLpPool", ["x"], {"p": 1.5}, "exponent of GlobalLpPool y is 1.5"),
        ("Cast", ["x"], {"to": "INT"}, "INT"),
        ("ImageScaler", ["x"], {"scale": 2.0}, "ImageScaler"),
    ],
)
def test_what_cannot_be_upgraded_is_refused(op_type, inputs, attributes, reason):
    node = helper.make_node(op_type, inputs, ["y"], **attributes)
    with pytest.raises(UnsupportedModelError, match="operator set 1, and") as caught:
        load_model(model_of(node, {"x": X.shape}, {}, opset=1))
    assert reason in caught.value.message
    assert "operator set 18" in caught.value.remedy


def test_the_model_is_not_changed():
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    model = model_of(node, {"x": (1, 4, 4, 4)}, {"slope": np.ones(4, "f4")})
    before = model.SerializeToString()
    load_model(model)
    assert model.SerializeToString() == before
