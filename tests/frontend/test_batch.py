"""The proof that samples of a batch are independent: models it accepts, and models it must not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from random_operators import OPERATORS
from random_resize import resize
from random_shapes import SHAPES
from random_windows import WINDOWS, Random
from reference import graph_model, node_model, onnxruntime_results
from support.onnx_models import nodes_of

from tvmflow.frontend.batch import Batch, BatchProof, prove_independence
from tvmflow.frontend.expand_shapes import expand
from tvmflow.frontend.source import open_model

FAMILIES = {**WINDOWS, "Resize": resize, **OPERATORS, **SHAPES}
PARTS = ((0, 2), (2, 5))


def prove(model, **shapes) -> BatchProof:
    source = open_model(model)
    given = {name: ("1..4", *shape) for name, shape in shapes.items()}
    return prove_independence(source, expand(source.inputs, given, {}).probes)


def named(text):
    """Parse nodes, which are named after their first result."""
    nodes = nodes_of(text)
    for node in nodes:
        node.name = node.output[0]
    return nodes


def network(text, constants):
    return graph_model(named(text), {"x": ["N", 3, 4, 4]}, "y", constants)


WEIGHT = np.ones((5, 3, 3, 3), np.float32)
#: ``x.view(x.size(0), -1)``, as exporters write it.
VIEW = """
    s = Shape(x) n = Gather<axis = 0>(s, zero) n1 = Unsqueeze(n, axes)
    shape = Concat<axis = 0>(n1, rest) y = Reshape(x, shape)
"""
VIEW_CONSTANTS = {"zero": 0, "axes": [0], "rest": [-1]}
HALVES = {"two": [2], "minus": [-1]}


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ("y = Conv(x, w)", {"w": WEIGHT}, Batch(0)),
        ("y = Softmax<axis = 1>(x)", {}, Batch(0)),
        ("y = Transpose<perm = [1, 0, 2, 3]>(x)", {}, Batch(1)),
        ("y = ReduceMean<keepdims = 0>(x, axes)", {"axes": [2, 3]}, Batch(0)),
        (
            "t = Transpose<perm = [1, 2, 0, 3]>(x) y = ReduceSum<keepdims = 0>(t, a)",
            {"a": [0, 3]}, Batch(1),
        ),
        (VIEW, VIEW_CONSTANTS, Batch(0)),
        ("f = Flatten(x) y = MatMul(f, w)",
         {"w": np.ones((48, 5), np.float32)}, Batch(0)),
        # A sequence of rows, with the batch as the second axis.
        (
            ("m = ReduceMean<keepdims = 0>(x, last) t = Transpose<perm = [2, 0, 1]>(m) "
             "y = GRU<hidden_size = 2>(t, w, r)"),
            {"last": [3], "w": np.ones((1, 6, 3), "f"), "r": np.ones((1, 6, 2), "f")}, Batch(2),
        ),
        # Each sample has three rows.
        ("y = Reshape(x, shape)", {"shape": [-1, 16]}, Batch(0, 3)),
        # The class token of a transformer is a constant, repeated for each sample.
        (
            ("s = Shape<end = 1>(x) shape = Concat<axis = 0>(s, one) tokens = Expand(token, shape) "
             "f = Flatten(x) y = Concat<axis = 1>(tokens, f)"),
            {"one": [1], "token": np.ones((1, 1), np.float32)}, Batch(0),
        ),
        # PyTorch exports `token.expand(n, -1)` so.
        (
            """
            s = Shape<end = 1>(x) shape = Concat<axis = 0>(s, minus)
            ones = ConstantOfShape<value = int64[1] {1}>(two) minuses = Mul(ones, minus)
            open = Equal(shape, minuses) wanted = Where(open, ones, shape) y = Expand(token, wanted)
            """,
            {**HALVES, "token": np.ones((1, 7), np.float32)}, Batch(0),
        ),
        ("y = Slice(x, begin, end, axis)",
         {"begin": [1], "end": [3], "axis": [2]}, Batch(0)),
        ("y = Pad(x, pads)", {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}, Batch(0)),
        ("y = Concat<axis = 1>(x, x)", {}, Batch(0)),
        ("y = Gather<axis = 2>(x, i)", {"i": [0, 2]}, Batch(0)),
    ],
)  # fmt: skip
def test_proven(nodes, constants, expected):
    proof = prove(network(nodes, constants), x=(3, 4, 4))
    assert proof.proven, proof
    assert proof.inputs == {"x": Batch(0)}
    assert proof.outputs == {"y": expected}


@pytest.mark.parametrize(
    ("nodes", "constants", "node_name", "reason"),
    [
        ("y = Softmax<axis = 0>(x)", {}, "y (Softmax)", "along the axis of the batch"),
        ("y = ReduceMax(x)", {}, "y (ReduceMax)", "along the axis of the batch"),
        (
            "t = Transpose<perm = [1, 0, 2, 3]>(x) y = ReduceSum(t, a)",
            {"a": [1]}, "y (ReduceSum)", "along the axis of the batch",
        ),
        ("y = Reshape(x, shape)", {"shape": [3, -1]}, "y (Reshape)", "mixes the batch"),
        (
            "t = Transpose<perm = [1, 0, 2, 3]>(x) y = Flatten<axis = 2>(t)",
            {}, "y (Flatten)", "mixes the batch",
        ),
        (
            "t = Transpose<perm = [1, 0, 2, 3]>(x) y = Conv(t, w)",
            {"w": np.ones((2, 2, 1, 1), np.float32)}, "y (Conv)", "not on its first axis",
        ),
        (
            "s = Shape<end = 1>(x) f = Cast<to = 1>(s) y = Div(x, f)",
            {}, "y (Div)", "computes with the batch's extent",
        ),
        ("y = NonZero(x)", {}, "y (NonZero)", "nothing is known"),
        ("y = CumSum(x, zero)", {"zero": 0}, "y (CumSum)", "along the axis"),
        ("y = Gather<axis = 0>(x, zero)", {"zero": 0}, "y (Gather)", "along the axis"),
        ("y = Slice(x, a, b, a)", {"a": [0], "b": [1]}, "y (Slice)", "a part of the batch"),
        (
            "y = Pad(x, pads)", {"pads": [1, 0, 0, 0, 0, 0, 0, 0]},
            "y (Pad)", "pads the batch",
        ),
        ("y = Concat<axis = 0>(x, x)", {}, "y (Concat)", "along the axis"),
        ("y = Tile(x, r)", {"r": [2, 1, 1, 1]}, "y (Tile)", "repeats the batch"),
        (
            "y = MatMul(w, x)", {"w": np.ones((2, 3, 5, 4), np.float32)},
            "", "no other batches",
        ),
        # Twice the smaller half is not a multiple of the batch.
        (
            ("s = Shape<end = 1>(x) half = Div(s, two) even = Mul(half, two) "
             "shape = Concat<axis = 0>(even, minus) y = Reshape(x, shape)"),
            HALVES, "y (Reshape)", "is no multiple",
        ),
        (
            "s = Shape<end = 1>(x) n = Squeeze(s) y = Range(zero, n, one)",
            {"zero": 0, "one": 1}, "y (Range)", "nothing is known",
        ),
        # For a batch of 1, Squeeze removes the axis of the batch.
        ("m = ReduceMean(x, axes) y = Squeeze(m)",
         {"axes": [2, 3]}, "y (Squeeze)", "the axis of a batch of 1"),
        ("d, mask = Dropout(x) f = Cast<to = 1>(mask) y = ReduceSum(f, a)",
         {"a": [0]}, "y (ReduceSum)", "along the axis of the batch"),
        ("y = Relu(c) unused = Relu(x)",
         {"c": np.ones(3, np.float32)}, "", "no axis for the batch"),
    ],
)  # fmt: skip
def test_not_proven(nodes, constants, node_name, reason):
    proof = prove(network(nodes, constants), x=(3, 4, 4))
    assert not proof.proven
    assert not proof.outputs
    assert reason in proof.reason
    assert proof.node == node_name


def test_branches_that_read_the_batch():
    branches = {
        f"{side}_branch": helper.make_graph(
            named(f"t = {op_type}<keepdims = 0>(x, axes)"), "branch", [],
            [helper.make_tensor_value_info("t", 1, [3])],
            [helper.make_tensor("axes", 7, [3], [0, 2, 3])],
        )
        for side, op_type in (("then", "ReduceMean"), ("else", "ReduceMax"))
    }  # fmt: skip
    choice = helper.make_node("If", ["c"], ["m"], name="m", **branches)
    nodes = [choice, *named("y = BatchNormalization(x, w, w, m, w)")]
    inputs = {"x": ["N", 3, 4, 4], "c": ([], "bool")}
    model = graph_model(nodes, inputs, "y", {"w": np.ones(3, np.float32)})
    proof = prove(model, x=(3, 4, 4))
    assert (proof.node, proof.reason) == ("m (If)", "nothing is known of this operator")


def test_channels_of_a_quantized_tensor_are_not_its_samples():
    nodes = "q = QuantizeLinear<axis = 1>({0}, s, z) y = DequantizeLinear<axis = 1>(q, s, z)"
    constants = {"s": np.ones(3, np.float32), "z": np.zeros(3, np.uint8)}
    assert prove(network(nodes.format("x"), constants), x=(3, 4, 4)).proven
    turned = "t = Transpose<perm = [1, 0, 2, 3]>(x) " + nodes.format("t")
    assert "scale for each" in prove(network(turned, constants), x=(3, 4, 4)).reason


def test_two_inputs_with_one_batch():
    inputs = {"a": ["N", 3], "b": ["N", 3]}
    assert prove(graph_model("y = Mul(a, b)", inputs, "y"), a=(3,)).outputs == {"y": Batch(0)}
    crossed = graph_model("t = Transpose(b) y = MatMul(a, t)", inputs, "y")
    assert "different axes" in prove(crossed, a=(3,)).reason


def check_samples(family: str, seed: int) -> bool:
    """Check that ONNX Runtime's results for parts equal the whole's if independence is proven."""
    op_type, values, attributes, opset = FAMILIES[family](Random(seed))
    rng = np.random.default_rng(seed)
    behind = int(rng.integers(1, 5))
    batched, axes = [], {}
    for index, (value, constant) in enumerate(values):
        # Further inputs may be shared by all samples.
        alone = index > 0 and rng.random() < 0.5
        if value is None or constant or value.ndim < behind or alone:
            batched.append((value, constant))
            continue
        axis = value.ndim - behind
        chosen = rng.integers(0, value.shape[axis], 5) if value.shape[axis] else np.zeros(0, int)
        batched.append((np.take(value, chosen, axis), False))
        axes[f"x{index}"] = axis
    if not axes:
        return False
    model, feeds = node_model(op_type, batched, opset, **attributes)
    shapes = [
        {n: (*f.shape[: axes[n]], size, *f.shape[axes[n] + 1 :]) if n in axes else f.shape
         for n, f in feeds.items()}
        for size in (2, 3)
    ]  # fmt: skip
    for value in model.graph.input:
        if value.name in axes:
            value.type.tensor_type.shape.dim[axes[value.name]].dim_param = "N"
    proof = prove_independence(open_model(model), [(shapes[0], shapes[1])])
    expected = onnxruntime_results(model, feeds)
    if not proof.proven or expected is None:
        return False
    place = proof.outputs["y0"]
    found = []
    for begin, end in PARTS:
        part = {
            n: np.take(f, range(begin, end), axes[n]) if n in axes else f for n, f in feeds.items()
        }
        results = onnxruntime_results(model, part)
        assert results is not None
        found.append(results[0])
    whole = np.concatenate(found, place.axis)
    assert whole.shape == expected[0].shape, (seed, op_type, attributes)
    wanted = expected[0].astype(np.float64)
    close = np.allclose(whole.astype(np.float64), wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
    assert close, (seed, op_type, attributes, opset, axes)
    return True


@pytest.mark.onnxruntime
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_random_operators(family):
    proven = sum(check_samples(family, seed) for seed in range(40))
    assert proven
