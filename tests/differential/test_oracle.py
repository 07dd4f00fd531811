"""The oracle accepts errors that rounding explains, and no others."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest
from configurations import LONGEST_IN_HALF
from contexts import Network
from graphs import Tensor
from onnx import TensorProto, helper
from oracle import Oracle, run

from tvmflow.ir.half_sums import CHUNK, MOST_PRODUCTS

pytestmark = pytest.mark.onnxruntime


def oracle_of(nodes, feeds, opset=18, **options):
    """Return the oracle of some nodes, and the reference's result."""

    def network(shape, dtype):
        outputs = (Tensor("y", shape, dtype),)
        return Network("", "", "normal", opset, tuple(nodes), {}, feeds, outputs)

    model = network((), "float32").model
    model.graph.output[0].ClearField("type")
    (result,) = run(model, feeds)
    return Oracle(network(result.shape, result.dtype.name), **options), result


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_the_reference_is_right(rng):
    node = helper.make_node("LRN", ["x"], ["y"], size=5)
    oracle, result = oracle_of([node], {"x": normal(rng, 1, 16, 4, 4)})
    assert oracle.judge({"y": result}) is None


@pytest.mark.parametrize("operator", ["LRN", "Softmax", "Tanh", "Exp"])
def test_five_ten_thousandths_are_wrong(rng, operator):
    attributes = {"size": 5} if operator == "LRN" else {}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    oracle, result = oracle_of([node], {"x": normal(rng, 1, 16, 4, 4)})
    complaint = oracle.judge({"y": result * np.float32(1 + 5e-4)})
    assert "256 of 256 values are wrong" in complaint


def test_one_wrong_value_is_found(rng):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    feeds = {"x": normal(rng, 1, 16, 4, 4), "w": normal(rng, 8, 16, 3, 3)}
    oracle, result = oracle_of([node], feeds)
    changed = result.copy()
    changed[0, 3, 1, 1] *= np.float32(1 + 1e-4)
    assert "1 of 32 values are wrong; at [0, 3, 1, 1]" in oracle.judge({"y": changed})


def test_sums_in_another_order_are_right(rng):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, w = normal(rng, 8, 512), normal(rng, 512, 8)
    oracle, _ = oracle_of([node], {"x": x, "w": w})
    assert oracle.judge({"y": (x[:, ::-1].astype("f8") @ w[::-1]).astype("f4")}) is None
    one_by_one = np.add.accumulate(x[:, :, None] * w[None], axis=1, dtype="f4")[:, -1]
    assert oracle.judge({"y": one_by_one}) is None


def test_pictures_of_one_element_have_the_norm_zero(rng):
    """ONNX Runtime's own result is less exact."""
    node = helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["y"])
    feeds = {"x": 3 * normal(rng, 2, 3, 1, 1), "scale": normal(rng, 3), "bias": normal(rng, 3)}
    oracle, _ = oracle_of([node], feeds)
    exact = np.broadcast_to(feeds["bias"].reshape(3, 1, 1), (2, 3, 1, 1))
    assert oracle.judge({"y": exact}) is None
    assert "of 6 values are wrong" in oracle.judge({"y": exact * np.float32(1 + 5e-4)})


def test_moves_are_exact(rng):
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    oracle, result = oracle_of([node], {"x": normal(rng, 5, 6)})
    assert oracle.judge({"y": result}) is None
    assert oracle.judge({"y": np.nextafter(result, np.float32(9))}) is not None


def test_sums_of_whole_numbers_are_exact(rng):
    feeds = {n: rng.integers(-4, 5, (6, 6)).astype("f4") for n in ("x", "w")}
    oracle, result = oracle_of([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds)
    assert oracle.judge({"y": result}) is None
    assert oracle.judge({"y": result + np.float32(1e-5)}) is not None


def test_a_step_is_wide_only_where_it_is(rng):
    """Floor of a product: one value is a rounding error away from the next whole number."""
    x = rng.uniform(0.2, 0.8, (4, 4)).astype("f4") + np.arange(4, dtype="f4")
    x[0, 0] = 3 / np.float32(1.1)
    nodes = [helper.make_node("Mul", ["x", "a"], ["p"]), helper.make_node("Floor", ["p"], ["y"])]
    oracle, result = oracle_of(nodes, {"x": x, "a": np.float32([1.1])})
    other = result.copy()
    other[0, 0] = 5 - result[0, 0]
    assert oracle.judge({"y": other}) is None
    other = result.copy()
    other[1, 1] += 1
    assert "1 of 16 values are wrong" in oracle.judge({"y": other})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stands_in_its_place(rng, value):
    x = normal(rng, 3, 4)
    x[1, 2] = value
    oracle, result = oracle_of([helper.make_node("Relu", ["x"], ["y"])], {"x": x})
    assert oracle.judge({"y": result}) is None
    other = result.copy()
    other[1, 2] = 1
    assert oracle.judge({"y": other}) is not None
    other = result.copy()
    other[0, 0] = np.nan
    assert oracle.judge({"y": other}) is not None


def test_nan_reaches_its_neighbours_in_tiles_alone(rng):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    x = normal(rng, 1, 16, 8, 8)
    x[0, 0, 0, 0] = np.nan
    for extent, complaint in ((3, None), (1, "values are wrong")):
        feeds = {"x": x, "w": normal(rng, 8, 16, extent, extent)}
        oracle, result = oracle_of([node], feeds)
        other = result.copy()
        other[:, :, :2, :2] = np.nan
        said = oracle.judge({"y": other})
        assert (said is None) if complaint is None else complaint in said
        other[:, :, :2, :2] = 0
        assert "values are wrong" in oracle.judge({"y": other})


def test_storage_in_half_precision_is_wider(rng):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    feeds = {"x": normal(rng, 1, 16, 4, 4), "w": normal(rng, 8, 16, 3, 3)}
    _, result = oracle_of([node], feeds)
    rounded = {n: a.astype("f2").astype("f4") for n, a in feeds.items()}
    _, stored = oracle_of([node], rounded)
    oracle, _ = oracle_of([node], feeds, half=True)
    assert oracle.judge({"y": stored}) is None
    assert oracle.judge({"y": result * np.float32(1.05)}) is not None
    strict, _ = oracle_of([node], feeds)
    assert strict.judge({"y": stored}) is not None


def test_sums_in_half_precision_are_judged_by_their_length(rng):
    """A product of 2,048 numbers of one sign is summed in halves, whole and in chunks."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    feeds = {"x": abs(normal(rng, 6, 2048)), "w": abs(normal(rng, 2048, 6))}
    feeds = {name: array.astype("f2").astype("f4") for name, array in feeds.items()}
    products = (feeds["x"][:, :, None] * feeds["w"][None]).astype("f2")
    whole = np.add.accumulate(products, axis=1, dtype="f2")[:, -1].astype("f4")
    length = LONGEST_IN_HALF["mixed"]
    parts = (products[:, at : at + length] for at in range(0, 2048, length))
    chunks = sum(np.add.accumulate(p, axis=1, dtype="f2")[:, -1].astype("f4") for p in parts)
    oracle, _ = oracle_of([node], feeds, half=True, longest_in_half=length)
    assert oracle.judge({"y": chunks}) is None
    assert oracle.judge({"y": whole}) is not None


def test_lengths_of_sums_are_those_of_the_code():
    assert LONGEST_IN_HALF == {"mixed": CHUNK, "fp16": MOST_PRODUCTS}


def test_an_overflow_in_half_precision_may_show_or_not(rng):
    """100,000 is infinite in half precision, and never another number."""
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Mul", ["r", "b"], ["y"]),
    ]
    feeds = {"x": np.full((2, 3), 10, "f4"), "a": np.float32([1e4]), "b": np.float32([1e-4])}
    oracle, result = oracle_of(nodes, feeds, half=True)
    assert oracle.judge({"y": result}) is None
    assert oracle.judge({"y": np.full_like(result, np.inf)}) is None
    assert oracle.judge({"y": np.zeros_like(result)}) is not None


def test_a_result_may_be_rounded_where_most_runs_overflow(monkeypatch):
    """The few runs that do not overflow do not round the result, either."""
    oracle, result = oracle_of([helper.make_node("Log", ["x"], ["y"])], {"x": np.float32([88_600])})
    oracle.half = True
    runs = [[np.full_like(result, np.inf)], [result * np.float32(1.00001)]]
    monkeypatch.setattr(oracle, "samples", lambda _count: runs)
    assert oracle.judge({"y": result.astype("f2").astype("f4")}) is None
    assert oracle.judge({"y": result * np.float32(1.001)}) is not None


def test_what_is_rounded_within_an_operator_counts(rng):
    """Gelu of −4 contains 1 + erf(…), of which few digits are left."""
    x = np.full((2, 3), -4, "f4")
    oracle, result = oracle_of([helper.make_node("Gelu", ["x"], ["y"])], {"x": x}, opset=20)
    one = np.float32(1) + np.float32(erf(-4 / 2**0.5))
    assert oracle.judge({"y": np.float32(0.5) * x * one}) is None
    assert oracle.judge({"y": result * np.float32(1.2)}) is not None


@pytest.mark.parametrize("type_", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_what_a_type_has_no_number_for_may_be_one_in_another(rng, type_):
    """Between conversions modules compute in single, where 17 · sigmoid(-17) is not 0."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=type_),
        helper.make_node("Swish", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    x = np.linspace(-40, 3, 48, dtype="f4")
    oracle, result = oracle_of(nodes, {"x": x}, opset=24)
    exact = (x / (1 + np.exp(-x.astype("f8")))).astype("f4")
    found = np.where(result == 0, exact, result)
    assert not np.array_equal(found, result)
    assert oracle.judge({"y": found}) is None
    assert "1 of 48 values" in oracle.judge({"y": np.where(x == -40, np.float32(-1e-4), result)})


def test_the_same_runtime_runs_the_network_with_errors(rng):
    """Node names do not matter; ONNX's evaluator unpools wrongly from the second sample on."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "places"], name="pool", **pool),
        helper.make_node("MaxUnpool", ["p", "places"], ["u"], name="unpool", **pool),
        helper.make_node("Conv", ["u", "w"], ["y"], name="conv"),
    ]
    feeds = {"x": normal(rng, 2, 4, 6, 6), "w": normal(rng, 5, 4, 1, 1)}
    oracle, result = oracle_of(nodes, feeds, half=True)
    for (sample,) in oracle.samples(6):
        np.testing.assert_allclose(sample, result, rtol=0.02, atol=0.02)


def test_numbers_that_are_nearly_equal_may_be(rng):
    """Random errors hardly ever make two numbers equal."""
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["p"]),
        helper.make_node("Equal", ["p", "b"], ["y"]),
    ]
    x, a = rng.uniform(1, 2, 64).astype("f4"), np.float32([1.1])
    b = np.where(np.arange(64) < 32, x * a, x).astype("f4")
    b[:16] = np.nextafter(b[:16], np.float32(9))
    oracle, result = oracle_of(nodes, {"x": x, "a": a, "b": b})
    assert result.sum() == 16
    assert oracle.judge({"y": np.arange(64) < 32}) is None
    assert oracle.judge({"y": np.zeros(64, bool)}) is None
    assert "16 of 64 values are wrong" in oracle.judge({"y": np.arange(64) < 48})
