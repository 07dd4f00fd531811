"""BoxDecode and its gradient: values, NaN and infinities, fusion, names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.cuda_host import cuda_host
from support.operators import build, check, feeds_for, random, references

import tvmflow
from tvmflow.ir.operator import DOMAIN
from tvmflow.ir.operators import OPERATORS
from tvmflow.verify.compare import verify
from tvmflow.verify.tolerance import NETWORK, OPERATOR, STORED_AS_HALF, assert_close

DECODE = OPERATORS["BoxDecode"]

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    pytest.param("cuda", "nvidia", id="cuda", marks=pytest.mark.cuda_host),
    *(
        pytest.param("opencl", device, id=f"opencl-{device}", marks=pytest.mark.opencl)
        for device in ("cpu", "adreno", "mali", "nvidia")
    ),
]


def anchors(count: int) -> np.ndarray:
    """Return boxes x1 y1 x2 y2 of some extent."""
    corners, sizes = np.abs(random((2, count, 2), seed=9))
    return np.concatenate([corners, corners + sizes + 0.1], -1)


def custom(name: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(name, inputs, [output], output, domain=DOMAIN, **attributes)


def decoder(shape: Sequence[int], **attributes: object) -> onnx.ModelProto:
    """Return a model of one node; anchors are an input, too."""
    node = custom("BoxDecode", ["x", "anchors"], "y", **attributes)
    return build([node], {"x": shape, "anchors": shape[-2:]}, ["y"])


def run(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], target: str, device: str, **options: str
) -> np.ndarray:
    """Return the output ``y``; CUDA modules run on the host."""
    with closing(tvmflow.compile(model, target=target, device=device, **options)) as module:
        return cuda_host()(module, feeds)["y"] if target == "cuda" else module(**feeds)["y"]


def evaluate(*arrays: np.ndarray, operator=DECODE, **attributes: object) -> np.ndarray:
    return operator.reference(arrays, operator.complete(attributes))[0]


# -- numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("shape", [(1, 4), (3, 2, 31, 4)], ids=str)
def test_boxes(shape: Sequence[int], target: str, device: str):
    check(decoder(shape), target, device)


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_gradient(target: str, device: str):
    shape, node = (2, 7, 4), custom("BoxDecodeGrad", ["x", "anchors", "g"], "y", limit=0.5)
    inputs = {"x": shape, "anchors": shape[-2:], "g": shape}
    check(build([node], inputs, ["y"]), target, device)


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_stored_in_16_bits(storage: str):
    """Weights (anchors) and tensors between kernels are stored in 16 bits; fp32 in between."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["d"], "head"),
        custom("BoxDecode", ["d", "anchors"], "boxes"),
        helper.make_node("Softmax", ["boxes"], ["y"], "last"),
    ]
    model = build(nodes, {"x": (2, 9, 8)}, ["y"], {"w": random((8, 4), 0.3), "anchors": anchors(9)})
    feeds = feeds_for(model)
    found = run(model, feeds, "opencl", "adreno", storage=storage, dtype="fp16", accumulate="fp32")
    assert_close(found, references(model, feeds)[0], STORED_AS_HALF)


@pytest.mark.parametrize(("target", "device"), TARGETS[:2])
def test_tensors_of_16_bits(target: str, device: str):
    """The model's own tensors have 16 bits: computed in fp32, the reference in float64."""
    nodes = [
        *(
            helper.make_node("Cast", [name], [f"{name}_half"], to=TensorProto.FLOAT16)
            for name in ("x", "anchors")
        ),
        custom("BoxDecode", ["x_half", "anchors_half"], "y_half"),
        helper.make_node("Cast", ["y_half"], ["y"], to=TensorProto.FLOAT),
    ]
    model = build(nodes, {"x": (2, 9, 4)}, ["y"], {"anchors": anchors(9)})
    feeds = feeds_for(model)
    halves = {**OPERATOR, "float32": OPERATOR["float16"]}
    assert_close(run(model, feeds, target, device), references(model, feeds)[0], halves)


def test_boxes_as_in_the_papers():
    """Offsets shift by half a width and a quarter of a height, double width and halve height."""
    anchor = np.array([[10.0, 20.0, 30.0, 60.0]])
    box = evaluate(np.array([[0.5, -0.25, np.log(2), np.log(0.5)]]), anchor)
    np.testing.assert_allclose(box, [[10.0, 20.0, 50.0, 40.0]])
    # Beyond the limit, sizes no longer grow.
    large = evaluate(np.array([[0.0, 0.0, 100.0, -100.0]]), anchor, limit=np.log(3))
    np.testing.assert_allclose(large, [[-10.0, 40.0, 50.0, 40.0]])


def test_the_gradient_is_the_slope(rng: np.random.Generator):
    offsets, boxes = rng.standard_normal((2, 7, 4)), anchors(7).astype(np.float64)
    weights = rng.standard_normal((2, 7, 4))
    gradient = evaluate(offsets, boxes, weights, operator=DECODE.gradient, limit=0.4)
    assert (gradient == 0).any(), "nothing is beyond the limit"
    for index in np.ndindex(offsets.shape):
        step = np.zeros(offsets.shape)
        step[index] = 1e-6
        ends = [evaluate(offsets + sign * step, boxes, limit=0.4) for sign in (1, -1)]
        slope = ((ends[0] - ends[1]) * weights).sum() / 2e-6
        assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_no_numbers_stay_where_they_are(target: str, device: str):
    """NaN, infinities and inverted anchors are computed with as they are."""
    model = decoder((1, 8, 4))
    offsets, boxes = random((1, 8, 4)), anchors(8)
    offsets[0, 0, 0] = offsets[0, 1, 3] = np.nan
    offsets[0, 2, 2], offsets[0, 3, 3], offsets[0, 4, 1] = np.inf, -np.inf, np.inf
    boxes[5], boxes[6, 0] = boxes[5, ::-1].copy(), np.nan
    feeds = {"x": offsets, "anchors": boxes}
    (expected,) = references(model, feeds)
    assert np.isnan(expected[0, 0]).tolist() == [True, False, True, False]
    assert_close(run(model, feeds, target, device), expected, OPERATOR)


# -- in networks --------------------------------------------------------------------------


def functions(module: tvmflow.Module) -> list[str]:
    return [kernel["function"] for kernel in module.metadata["kernels"]]


def head(*following: onnx.NodeProto) -> onnx.ModelProto:
    """Return a detector's head on ``x``: scores to offsets to boxes, and the nodes that follow."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["offsets"], "squash"),
        custom("BoxDecode", ["offsets", "anchors"], "boxes"),
        *following,
    ]
    return build(nodes, {"x": (2, 9, 4)}, ["y"], {"anchors": anchors(9)})


#: Nodes that follow the boxes, and the expected primary functions.
FOLLOWING = {
    "elementwise": (
        [helper.make_node("Relu", ["boxes"], ["y"], "cut")],
        ["fused_tir_tanh_BoxDecode_relu"],
    ),
    "sum": (
        [helper.make_node("ReduceMax", ["boxes"], ["y"], "most", axes=[2])],
        ["fused_tir_tanh_BoxDecode_max"],
    ),
    "boxes": (
        [custom("BoxDecode", ["boxes", "anchors"], "y")],
        ["fused_tir_tanh_BoxDecode_BoxDecode"],
    ),
    "product": (
        [helper.make_node("MatMul", ["boxes", "square"], ["y"], "product")],
        ["fused_tir_tanh_BoxDecode", "dense"],
    ),
}


@pytest.mark.parametrize("name", list(FOLLOWING))
def test_fusion(name: str):
    """Elementwise operators before and after it are fused with it."""
    following, expected = FOLLOWING[name]
    model = head(*following)
    if name == "product":
        model.graph.initializer.append(onnx.numpy_helper.from_array(random((4, 4)), "square"))
    feeds = feeds_for(model)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        found = sorted(module.metadata["schedules"], key=len, reverse=True)
        assert found == expected
        assert_close(module(**feeds)["y"], references(model, feeds)[0], OPERATOR)


def test_products_before_it_keep_their_schedule():
    """The result of a product or convolution is read at other places than it is written."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["p", "b"], ["offsets"], "bias"),
        custom("BoxDecode", ["offsets", "anchors"], "y"),
    ]
    constants = {"w": random((8, 4), 0.3), "b": random((4,)), "anchors": anchors(9)}
    model = build(nodes, {"x": (2, 9, 8)}, ["y"], constants)
    feeds = feeds_for(model)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        families = {n: s["family"] for n, s in module.metadata["schedules"].items()}
        assert families == {"fused_dense_add": "dense", "BoxDecode": "boxes"}
        assert_close(module(**feeds)["y"], references(model, feeds)[0], OPERATOR)


def test_kernels_and_tensors_are_traced_back_to_the_node():
    """Boxes with two readers are a tensor of their own, under the node's name."""
    model = head(
        helper.make_node("Softmax", ["boxes"], ["y"], "one"),
        helper.make_node("Softmax", ["boxes"], ["z"], "two", axis=1),
    )
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (2, 9, 4)))
    with closing(tvmflow.compile(model, target="opencl", device="adreno")) as module:
        tensors = {t["name"]: t for t in module.metadata["memory"]["tensors"]}
        assert tensors["boxes"]["producer"] == "fused_tir_tanh_BoxDecode"
        assert len(tensors["boxes"]["readers"]) == 2
        assert "fused_tir_tanh_BoxDecode" in functions(module)
        assert "boxes" in {placement["tensor"] for placement in module.metadata["placements"]}


def test_a_difference_is_found(tmp_path):
    """The reference is independent of the compiled network."""
    model = tmp_path / "head.onnx"
    onnx.save(head(helper.make_node("Relu", ["boxes"], ["y"], "cut")), model)
    other = head(helper.make_node("LeakyRelu", ["boxes"], ["y"], "cut", alpha=0.01))
    with closing(tvmflow.compile(other, target="llvm")) as module:
        report = verify(model, module)
        assert not report.passed
        assert report.outputs[0].tolerance == NETWORK["float32"]
