"""Softmax, argmax and topk appended to a network's outputs, against NumPy in fp64.

Scores are integers, exact in 16 bits, too, and many of them are equal: the first of them
counts as the largest.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.cuda_host import cuda_host
from support.operators import build

import tvmflow
from tvmflow.errors import CompileError, DeviceError, ModelError
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

IMAGE, ROWS, SEQUENCE = (2, 3, 5, 6), (3, 5), (2, 4, 5)
CLASSES = 7


def network(
    shape: tuple[int, ...] = IMAGE, opset: int = 17, batch: int | str | None = None
) -> onnx.ModelProto:
    """Return a network with ``scores``, input times integers, and ``positive``, of booleans."""
    image = len(shape) == 4
    nodes = [
        helper.make_node("Conv" if image else "MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Greater", ["scores", "zero"], ["positive"]),
        helper.make_node("Identity", ["x"], ["own_indices"]),
    ]
    inputs = {"x": (batch or shape[0], *shape[1:])}
    constants = {"w": weights(shape), "zero": np.float32(0)}
    outputs = ["scores", "positive", "own_indices"]
    return build(nodes, inputs, outputs, constants, opset, element_type=None)


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """Return integers from -2 to 2."""
    image = len(shape) == 4
    extents = (CLASSES, shape[1], 1, 1) if image else (shape[-1], CLASSES)
    return np.random.default_rng(3).integers(-2, 3, extents).astype(np.float32)


def feeds(shape: tuple[int, ...] = IMAGE) -> dict[str, np.ndarray]:
    """Return integers from -1 to 1."""
    return {"x": np.random.default_rng(4).integers(-1, 2, shape).astype(np.float32)}


def wanted(what: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected outputs in fp64."""
    w = weights(x.shape).astype(np.float64)
    image = x.ndim == 4
    result = np.einsum("nchw,oc->nohw", x, w[..., 0, 0]) if image else x @ w
    for step in what.split("+"):
        kind, _, given = step.partition("@")
        axis = int(given) if given else 1 if image else -1
        if kind == "argmax":
            return {"scores": result.argmax(axis).astype(np.int32)}
        if kind.startswith("topk"):
            places = np.argsort(-result, axis, kind="stable")
            places = places.take(range(int(kind.removeprefix("topk:"))), axis)
            found = np.take_along_axis(result, places, axis)
            return {"scores": found, "scores_indices": places.astype(np.int32)}
        powers = np.exp(result - result.max(axis, keepdims=True))
        result = powers / powers.sum(axis, keepdims=True)
    return {"scores": result}


def check(module: tvmflow.Module, what: str, got: object, x: np.ndarray) -> None:
    """Compare the outputs that are present: values and dtypes."""
    half = module.metadata["options"]["dtype"] == "fp16"
    for name, reference in wanted(what, x).items():
        if reference.dtype.kind == "f":
            reference = reference.astype(np.float32)
        assert got[name].dtype == reference.dtype
        assert_close(got[name], reference, STORED_AS_HALF if half else NETWORK, name)


OPENCL = pytest.mark.opencl
CASES = [
    (IMAGE, "softmax"),
    (IMAGE, "argmax"),
    pytest.param(IMAGE, "softmax+topk:3", marks=pytest.mark.quick),
    (IMAGE, "topk:2@-1"),
    (IMAGE, "softmax@2+argmax"),
    (ROWS, "softmax+topk:5"),
    (SEQUENCE, "softmax+argmax"),
    (SEQUENCE, "topk:4@1"),
]


@pytest.mark.parametrize(("shape", "what"), CASES)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"target": "llvm"}, id="llvm"),
        pytest.param({"device": "cpu"}, id="opencl", marks=OPENCL),
        pytest.param({"device": "adreno", "dtype": "fp16", "accumulate": "fp32"}, id="fp16",
                     marks=OPENCL),
    ],
)  # fmt: skip
def test_outputs_are_what_was_asked_for(options, shape, what):
    with tvmflow.compile(network(shape), results={"scores": what}, **options) as module:
        names = [info.name for info in module.outputs]
        check(module, what, module(feeds(shape)), **feeds(shape))
    # The other outputs keep their positions.
    assert names[:3] == ["scores", "positive", "own_indices"]
    assert names[3:] == ["scores_indices"] * ("topk" in what)


@pytest.mark.cuda_host
@pytest.mark.parametrize("what", ["softmax+topk:3", "softmax+argmax"])
def test_for_cuda(what):
    made = tvmflow.compile(network(), results={"scores": what}, target="cuda")
    with closing(made) as module:
        check(module, what, cuda_host()(module, feeds()), **feeds())


@pytest.mark.parametrize("what", ["softmax+topk:3", "softmax@2", "argmax"])
@pytest.mark.parametrize("opset", [5, 9, 10, 11, 12, 13])
def test_each_operator_set_has_its_forms(opset, what):
    model = network(opset=opset)
    del model.graph.output[1:], model.graph.node[1:]
    before = model.SerializeToString()
    with tvmflow.compile(model, results={"scores": what}, target="llvm") as module:
        check(module, what, module(feeds()), **feeds())
    assert model.SerializeToString() == before


def test_other_readers_of_the_output_and_nested_graphs_have_what_it_was():
    model = network()
    branch = helper.make_graph(
        [helper.make_node("Neg", ["scores"], ["minus"])], "branch", [],
        [helper.make_tensor_value_info("minus", TensorProto.FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["yes"], ["negative"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.output.append(
        helper.make_tensor_value_info("negative", TensorProto.FLOAT, [2, 7, 5, 6])
    )
    with tvmflow.compile(model, results={"scores": "softmax"}, target="llvm") as module:
        got = module(feeds())
    scores = wanted("topk:7", **feeds())["scores"]
    assert np.array_equal(got["positive"].sum(1), (scores > 0).sum(1))
    assert np.array_equal(np.sort(got["negative"], 1), -scores)


@pytest.mark.parametrize("is_declared", [True, False])
def test_several_shapes(is_declared):
    model = network(batch="N")
    if not is_declared:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    options = {"shapes": {"x": ("1..2", *IMAGE[1:])}, "target": "llvm"}
    with tvmflow.compile(model, results={"scores": "softmax+topk:2"}, **options) as module:
        for batch in (1, 2, 3):
            x = feeds((batch, *IMAGE[1:]))
            check(module, "softmax+topk:2", module(x), **x)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "options",
    [{"target": "llvm"}, pytest.param({"device": "cpu"}, marks=[OPENCL, pytest.mark.quick])],
)
def test_a_library_tests_itself_and_is_verified(options, tmp_path):
    what, path = "softmax+topk:3", tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="net.weights", size_threshold=0)
    before = path.read_bytes()
    made = tvmflow.compile(
        path, results={"scores": what}, format="standalone", file_name="libnet.so", **options
    )
    with made as module:
        assert "ONNX Runtime" in module.metadata["reference"]
        assert module.self_test().compared > 0
        check(module, what, module(feeds()), **feeds())
        assert tvmflow.verify(path, module, feeds()).passed
    assert path.read_bytes() == before


@OPENCL
@pytest.mark.parametrize(("what", "compared"), [("softmax+topk:2", 3 * 2), ("argmax", 0)])
def test_in_16_bits_the_self_test_leaves_indices_out(what, compared):
    model = network(ROWS)
    del model.graph.output[1:], model.graph.node[1:]
    made = tvmflow.compile(
        model, results={"scores": what}, device="adreno", dtype="fp16", accumulate="fp32",
        format="standalone", file_name="libnet.so",
    )  # fmt: skip
    with made as module:
        if compared:
            assert module.self_test().compared == compared
        else:
            with pytest.raises(DeviceError, match="the library carries none"):
                module.self_test()


@pytest.mark.onnxruntime
def test_verify_finds_what_is_wrong(tmp_path):
    path, asked = tmp_path / "net.onnx", {"scores": "softmax"}
    model = network()
    onnx.save(model, path)
    with tvmflow.compile(path, results=asked, target="llvm") as module:
        assert tvmflow.verify(path, module).passed
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(-weights(IMAGE), "w"))
        onnx.save(model, path)
        report = tvmflow.verify(path, module)
        assert [output.passed for output in report.outputs] == [False, False, True]
        model.graph.output[0].name = model.graph.node[0].output[0] = "other"
        model.graph.node[1].input[0] = "other"
        onnx.save(model, path)
        with pytest.raises(CompileError, match=r"the output 'scores'; the outputs of .* are other"):
            tvmflow.verify(path, module)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("results", "error"),
    [
        ({"score": "softmax"}, "the output 'score'; the outputs of the model are scores, positive"),
        ({"x": "softmax"}, "the output 'x'; the outputs"),
        ({"scores": "sigmoid"}, "The result 'sigmoid' was asked for of the output 'scores'; exp"),
        ({"scores": "argmax+softmax"}, r"The result 'argmax\+softmax' was asked for"),
        ({"scores": "topk"}, "The result 'topk' was asked for"),
        ({"scores": "topk:0"}, "The 0 largest elements .* expected 1 or more"),
        ({"scores": "softmax+topk:8"}, "The 8 largest elements .* has 7 along the axis 1"),
        ({"scores": "softmax@4"}, "along the axis 4; it has 4 axes"),
        ({"scores": "argmax@-5"}, "along the axis -5; it has 4 axes"),
        ({"positive": "softmax"}, "'positive' was asked for, whose elements are bool; expected"),
        ({"positive": "argmax"}, "'positive' was asked for, whose elements are bool; expected"),
        ({"own": "topk:2"}, "the output 'own_indices'; the model has a tensor of that name"),
    ],
)
def test_what_cannot_be_is_refused(results, error):
    model = network()
    if "own" in results:
        model.graph.node[0].output[0] = model.graph.node[1].input[0] = "own"
        model.graph.output[0].name = "own"
    with pytest.raises(CompileError, match=error) as caught:
        tvmflow.compile(model, results=results, target="llvm")
    assert caught.value.remedy


def test_more_than_an_open_axis_has_are_refused():
    options = {"shapes": {"x": IMAGE}, "target": "llvm"}
    with pytest.raises(ModelError, match=r"'scores' \(TopK\) .* less than the requested k"):
        tvmflow.compile(network(batch="N"), results={"scores": "topk:3@0"}, **options)


def test_an_output_that_is_an_input_is_refused():
    model = network()
    model.graph.output.append(model.graph.input[0])
    with pytest.raises(CompileError, match="'x', which is an input or a weight"):
        tvmflow.compile(model, results={"x": "softmax"}, target="llvm")
