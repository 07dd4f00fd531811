"""Models in float16 compute in fp32, so results are as accurate as ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.quantized_networks import NETWORKS, picture
from support.turns import in_turn

import tvmflow

WAYS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "cpu", "buffer", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", "texture", id="textures", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", "auto", id="mali", marks=pytest.mark.opencl),
    pytest.param("opencl", "nvidia", "auto", id="nvidia", marks=pytest.mark.opencl),
]
TURNS = ("textures", "mali", "nvidia")

#: A graph's text, and the shapes of its inputs (letters before w) and weights (w and later).
CASES = {
    "conv": ("y = Conv<pads=[1,1,1,1]>(a, w)", {"a": (1, 512, 7, 7), "w": (31, 512, 3, 3)}),
    "depthwise": (
        "t = Conv<pads=[1,1,1,1], group=17>(a, w) y = Relu(t)",
        {"a": (1, 17, 9, 9), "w": (17, 1, 3, 3)},
    ),
    "grouped": ("y = Conv<group=2>(a, w)", {"a": (2, 16, 9, 9), "w": (12, 8, 3, 3)}),
    "transposed": (
        "y = ConvTranspose<strides=[2,2]>(a, w)",
        {"a": (1, 30, 9, 9), "w": (30, 12, 2, 2)},
    ),
    "gemm": ("y = Gemm<transB=1>(a, w, x)", {"a": (3, 4096), "w": (50, 4096), "x": (50,)}),
    "gemv": ("y = MatMul(a, w)", {"a": (1, 4096), "w": (4096, 50)}),
    "matmul": ("y = MatMul(a, b)", {"a": (2, 40, 700), "b": (2, 700, 30)}),
    "pool": (
        "t = AveragePool<kernel_shape=[3,3]>(a) y = GlobalAveragePool(t)",
        {"a": (1, 17, 30, 30)},
    ),
    "softmax": ("y = Softmax(a)", {"a": (2, 4, 1000)}),
    "mean": ("y = ReduceMean<axes=[2]>(a)", {"a": (2, 4, 5000)}),
    "norm": ("y = LayerNormalization(a, w)", {"a": (2, 4, 1000), "w": (1000,)}),
    # Values between these convolutions are beyond the range of float16.
    "beyond": (
        "t = Conv(a, w) v = Relu(t) y = Conv(v, x)",
        {"a": (1, 9, 5, 5), "w": (8, 9, 1, 1), "x": (7, 8, 1, 1)},
    ),
}
#: Factors for weights of some cases.
FACTORS = {("beyond", "w"): 6e4, ("beyond", "x"): 1e-3}


def model_of(case):
    """Build a model with random weights like those of trained layers, and inputs for it."""
    text, shapes = CASES[case]
    inputs = {name: shape for name, shape in shapes.items() if name < "w"}
    declared = ", ".join(f"float16{list(shape)} {name}" for name, shape in inputs.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({declared}) => (float16 y) {{ {text} }}'
    )
    rng = np.random.default_rng(1)
    feeds = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        if name in inputs:
            feeds[name] = values.astype(np.float16)
        else:
            values *= FACTORS.get((case, name), 1)
            values /= np.sqrt(max(np.prod(shape[1:]), shape[0] if len(shape) == 2 else 1))
            tensor = numpy_helper.from_array(values.astype(np.float16), name)
            model.graph.initializer.append(tensor)
    return onnx.shape_inference.infer_shapes(model), feeds


def retyped(model, source, target):
    """Return the model with all tensors of one type changed to another."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kind = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}
    kind |= {np.float16: TensorProto.FLOAT16}
    tensors = [*result.graph.initializer]
    tensors += [a.t for n in result.graph.node if n.op_type == "Constant" for a in n.attribute]
    for tensor in tensors:
        if tensor.data_type == kind[source]:
            values = numpy_helper.to_array(tensor).astype(target)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in [*result.graph.input, *result.graph.output]:
        value.type.tensor_type.elem_type = kind[target]
    del result.graph.value_info[:]
    return result


def errors(model, feeds, target, device, storage):
    """Return the largest errors of tvmflow and ONNX Runtime against float64, and our families."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    theirs = session.run(None, feeds)
    wide = {name: values.astype(np.float64) for name, values in feeds.items()}
    exact = ReferenceEvaluator(retyped(model, np.float16, np.float64)).run(None, wide)
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        results = module(feeds)
        ours = [results[output.name] for output in model.graph.output]
        assert not module.metadata["extensions"]
        families = {kernel["family"] for kernel in module.metadata["kernels"]}
    assert {array.dtype.name for array in ours} == {"float16"}

    def largest(found):
        return max(np.abs(f - e).max() for f, e in zip(found, exact, strict=True))

    return largest(ours), largest(theirs), families


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("case", "target", "device", "storage"), in_turn(CASES, WAYS, TURNS))
def test_sums_are_as_exact_as_onnx_runtimes(case, target, device, storage):
    ours, theirs, families = errors(*model_of(case), target, device, storage)
    assert 0 < ours <= 1.1 * theirs
    assert "fallback" not in families


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("name", "target", "device", "storage"),
    in_turn(("mobilenet_v2", "resnet18"), WAYS, tuple(way.id for way in WAYS[1:])),
)
def test_networks_are_as_exact_as_onnx_runtimes(name, target, device, storage):
    model = retyped(NETWORKS[name](), np.float32, np.float16)
    feeds = {key: values.astype(np.float16) for key, values in picture(model).items()}
    ours, theirs, _ = errors(model, feeds, target, device, storage)
    assert ours <= theirs


@pytest.mark.onnxruntime
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_what_float16_has_not_is_infinite_where_it_is_asked_for(target):
    """A node's cast and an output in float16 overflow to infinity."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[1, 8] x, float16[1, 8] h) => (float[1, 8] y, float16[1, 8] z)"
        "{ c = Cast<to = 10>(x) y = Cast<to = 1>(c) z = Mul(h, h) }"
    )
    x = np.float32([[1e5, -1e5, 65519, 65521, -65504, np.inf, np.nan, 1]])
    h = np.float16([[300, -300, 250, 255.9, 0, np.inf, np.nan, 1]])
    with tvmflow.compile(model, target=target) as module:
        found = module(x=x, h=h)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for name, wanted in zip(("y", "z"), session.run(None, {"x": x, "h": h}), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-3)


@pytest.mark.opencl
def test_weights_stay_in_16_bits():
    model, _ = model_of("gemm")
    with tvmflow.compile(model, target="opencl", device="mali", storage="buffer") as module:
        scopes = module.metadata["weight_scopes"].values()
        assert list(scopes) == ["global.half"] * 2


@pytest.mark.opencl
@pytest.mark.parametrize("device", ["cpu", "adreno", "mali"])
def test_no_arithmetic_of_halves_is_needed_to_move_them(device):
    """Halves are stored from the application's tensor and returned without any fp32 tensor."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float16[3, 50] x) => (float16[50, 3] y) { y = Transpose<perm = [1, 0]>(x) }"
    )
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float16)
    with tvmflow.compile(
        model, target="opencl", device=device, dtype="fp16", accumulate="fp32"
    ) as module:
        assert module.metadata["extensions"] == []
        lines = "\n".join(module.device_sources()).splitlines()
        assert not any("tvmflow_half_read" in line for line in lines if line[:1] != "#")
        np.testing.assert_array_equal(module(x=x)["y"], x.T)
