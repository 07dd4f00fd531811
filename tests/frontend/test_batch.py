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

from tvmflow.frontend.batch import Batch, BatchProof, prove_independence
from tvmflow.frontend.load import expand_shapes
from tvmflow.frontend.source import open_model

FAMILIES = {**WINDOWS, "Resize": resize, **OPERATORS, **SHAPES}
PARTS = ((0, 2), (2, 5))


def prove(model, **shapes) -> BatchProof:
    source = open_model(model)
    given = {name: ("1..4", *shape) for name, shape in shapes.items()}
    return prove_independence(source, expand_shapes(source, given, {}).probes)


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def network(*nodes, outputs="y", constants=None, shape=("N", 3, 4, 4), opset=18):
    arrays = {n: np.array(a) for n, a in (constants or {}).items()}
    return graph_model(nodes, {"x": (list(shape), "float32")}, outputs.split(), arrays, opset)


WEIGHT = np.ones((5, 3, 3, 3), np.float32)
#: ``x.view(x.size(0), -1)``, as exporters write it.
VIEW = [
    node("Shape", "x", "s"),
    node("Gather", "s zero", "n", axis=0),
    node("Unsqueeze", "n axes", "n1"),
    node("Concat", "n1 rest", "shape", axis=0),
    node("Reshape", "x shape", "y"),
]
VIEW_CONSTANTS = {"zero": 0, "axes": [0], "rest": [-1]}
HALVES = {"two": [2], "minus": [-1]}


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ([node("Conv", "x w", "y")], {"w": WEIGHT}, Batch(0)),
        ([node("Softmax", "x", "y", axis=1)], {}, Batch(0)),
        ([node("Transpose", "x", "y", perm=[1, 0, 2, 3])], {}, Batch(1)),
        ([node("ReduceMean", "x axes", "y", keepdims=0)], {"axes": [2, 3]}, Batch(0)),
        (
            [
                node("Transpose", "x", "t", perm=[1, 2, 0, 3]),
                node("ReduceSum", "t a", "y", keepdims=0),
            ],
            {"a": [0, 3]}, Batch(1),
        ),
        (VIEW, VIEW_CONSTANTS, Batch(0)),
        ([node("Flatten", "x", "f"), node("MatMul", "f w", "y")],
         {"w": np.ones((48, 5), np.float32)}, Batch(0)),
        # A sequence of rows, with the batch as the second axis.
        (
            [
                node("ReduceMean", "x last", "m", keepdims=0),
                node("Transpose", "m", "t", perm=[2, 0, 1]),
                node("GRU", "t w r", "y", hidden_size=2),
            ],
            {"last": [3], "w": np.ones((1, 6, 3), "f"), "r": np.ones((1, 6, 2), "f")}, Batch(2),
        ),
        # Each sample has three rows.
        ([node("Reshape", "x shape", "y")], {"shape": [-1, 16]}, Batch(0, 3)),
        # The class token of a transformer is a constant, repeated for each sample.
        (
            [
                node("Shape", "x", "s", end=1),
                node("Concat", "s one", "shape", axis=0),
                node("Expand", "token shape", "tokens"),
                node("Flatten", "x", "f"),
                node("Concat", "tokens f", "y", axis=1),
            ],
            {"one": [1], "token": np.ones((1, 1), np.float32)}, Batch(0),
        ),
        # PyTorch exports `token.expand(n, -1)` so.
        (
            [
                node("Shape", "x", "s", end=1),
                node("Concat", "s minus", "shape", axis=0),
                node("ConstantOfShape", "two", "ones", value=helper.make_tensor("v", 7, [1], [1])),
                node("Mul", "ones minus", "minuses"),
                node("Equal", "shape minuses", "open"),
                node("Where", "open ones shape", "wanted"),
                node("Expand", "token wanted", "y"),
            ],
            {**HALVES, "token": np.ones((1, 7), np.float32)}, Batch(0),
        ),
        ([node("Slice", "x begin end axis", "y")],
         {"begin": [1], "end": [3], "axis": [2]}, Batch(0)),
        ([node("Pad", "x pads", "y")], {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}, Batch(0)),
        ([node("Concat", "x x", "y", axis=1)], {}, Batch(0)),
        ([node("Gather", "x i", "y", axis=2)], {"i": [0, 2]}, Batch(0)),
    ],
)  # fmt: skip
def test_proven(nodes, constants, expected):
    proof = prove(network(*nodes, constants=constants), x=(3, 4, 4))
    assert proof.proven, proof
    assert proof.inputs == {"x": Batch(0)}
    assert proof.outputs == {"y": expected}


@pytest.mark.parametrize(
    ("nodes", "constants", "node_name", "reason"),
    [
        ([node("Softmax", "x", "y", axis=0)], {}, "y (Softmax)", "along the axis of the batch"),
        ([node("ReduceMax", "x", "y")], {}, "y (ReduceMax)", "along the axis of the batch"),
        (
            [node("Transpose", "x", "t", perm=[1, 0, 2, 3]), node("ReduceSum", "t a", "y")],
            {"a": [1]}, "y (ReduceSum)", "along the axis of the batch",
        ),
        ([node("Reshape", "x shape", "y")], {"shape": [3, -1]}, "y (Reshape)", "mixes the batch"),
        (
            [node("Transpose", "x", "t", perm=[1, 0, 2, 3]), node("Flatten", "t", "y", axis=2)],
            {}, "y (Flatten)", "mixes the batch",
        ),
        (
            [node("Transpose", "x", "t", perm=[1, 0, 2, 3]), node("Conv", "t w", "y")],
            {"w": np.ones((2, 2, 1, 1), np.float32)}, "y (Conv)", "not on its first axis",
        ),
        (
            [node("Shape", "x", "s", end=1), node("Cast", "s", "f", to=1), node("Div", "x f", "y")],
            {}, "y (Div)", "computes with the batch's extent",
        ),
        ([node("NonZero", "x", "y")], {}, "y (NonZero)", "nothing is known"),
        ([node("CumSum", "x zero", "y")], {"zero": 0}, "y (CumSum)", "along the axis"),
        ([node("Gather", "x zero", "y", axis=0)], {"zero": 0}, "y (Gather)", "along the axis"),
        ([node("Slice", "x a b a", "y")], {"a": [0], "b": [1]}, "y (Slice)", "a part of the batch"),
        (
            [node("Pad", "x pads", "y")], {"pads": [1, 0, 0, 0, 0, 0, 0, 0]},
            "y (Pad)", "pads the batch",
        ),
        ([node("Concat", "x x", "y", axis=0)], {}, "y (Concat)", "along the axis"),
        ([node("Tile", "x r", "y")], {"r": [2, 1, 1, 1]}, "y (Tile)", "repeats the batch"),
        (
            [node("MatMul", "w x", "y")], {"w": np.ones((2, 3, 5, 4), np.float32)},
            "", "no other batches",
        ),
        # Twice the smaller half is not a multiple of the batch.
        (
            [
                node("Shape", "x", "s", end=1),
                node("Div", "s two", "half"),
                node("Mul", "half two", "even"),
                node("Concat", "even minus", "shape", axis=0),
                node("Reshape", "x shape", "y"),
            ],
            HALVES, "y (Reshape)", "is no multiple",
        ),
        (
            [
                node("Shape", "x", "s", end=1),
                node("Squeeze", "s", "n"),
                node("Range", "zero n one", "y"),
            ],
            {"zero": 0, "one": 1}, "y (Range)", "nothing is known",
        ),
        # For a batch of 1, Squeeze removes the axis of the batch.
        ([node("ReduceMean", "x axes", "m"), node("Squeeze", "m", "y")],
         {"axes": [2, 3]}, "y (Squeeze)", "the axis of a batch of 1"),
        ([helper.make_node("Dropout", ["x"], ["d", "mask"]), node("Cast", "mask", "f", to=1),
          node("ReduceSum", "f a", "y")],
         {"a": [0]}, "y (ReduceSum)", "along the axis of the batch"),
        ([node("Relu", "c", "y"), node("Relu", "x", "unused")],
         {"c": np.ones(3, np.float32)}, "", "no axis for the batch"),
    ],
)  # fmt: skip
def test_not_proven(nodes, constants, node_name, reason):
    proof = prove(network(*nodes, constants=constants), x=(3, 4, 4))
    assert not proof.proven
    assert not proof.outputs
    assert reason in proof.reason
    assert proof.node == node_name


def test_branches_that_read_the_batch():
    branches = {
        f"{side}_branch": helper.make_graph(
            [node(op_type, "x axes", "t", keepdims=0)], "branch", [],
            [helper.make_tensor_value_info("t", 1, [3])],
            [helper.make_tensor("axes", 7, [3], [0, 2, 3])],
        )
        for side, op_type in (("then", "ReduceMean"), ("else", "ReduceMax"))
    }  # fmt: skip
    nodes = [node("If", "c", "m", **branches), node("BatchNormalization", "x w w m w", "y")]
    inputs = {"x": (["N", 3, 4, 4], "float32"), "c": ([], "bool")}
    model = graph_model(nodes, inputs, ["y"], {"w": np.ones(3, np.float32)})
    proof = prove(model, x=(3, 4, 4))
    assert (proof.node, proof.reason) == ("m (If)", "nothing is known of this operator")


def test_channels_of_a_quantized_tensor_are_not_its_samples():
    nodes = [
        node("QuantizeLinear", "x scale zero", "q", axis=1),
        node("DequantizeLinear", "q scale zero", "y", axis=1),
    ]
    constants = {"scale": np.ones(3, np.float32), "zero": np.zeros(3, np.uint8)}
    assert prove(network(*nodes, constants=constants), x=(3, 4, 4)).proven
    turned = [node("Transpose", "x", "t", perm=[1, 0, 2, 3]), *nodes]
    turned[1].input[0] = "t"
    assert "scale for each" in prove(network(*turned, constants=constants), x=(3, 4, 4)).reason


def test_two_inputs_with_one_batch():
    inputs = {"a": (["N", 3], "float32"), "b": (["N", 3], "float32")}
    model = graph_model([node("Mul", "a b", "y")], inputs, ["y"])
    assert prove(model, a=(3,)).outputs == {"y": Batch(0)}
    crossed = graph_model([node("Transpose", "b", "t"), node("MatMul", "a t", "y")], inputs, ["y"])
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
