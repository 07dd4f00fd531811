"""Quantized operators against ONNX Runtime: 8-bit tensors, sums in fp32 or int32, rounding."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from support.onnx_models import expected, model_of, nodes_of
from support.turns import in_turn

import tvmflow
from tvmflow.codegen.opencl_source import store_bytes
from tvmflow.schedules.integers import EXACT_LIMIT, narrowest, sums_of

TARGETS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "cpu", "buffer", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", "texture", id="adreno", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", "auto", id="mali", marks=pytest.mark.opencl),
]


def integers(dtype, shape, seed=1):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def network(nodes, shape, dtype, constants, opset=17):
    model = model_of(nodes, {"x": (shape, dtype)}, "y", constants, opset)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def qlinear_conv(shape, outputs, kernel=3, groups=1, x="uint8", w="int8", zero=0, **attributes):
    """Build one with a bias, and a scale for each channel unless weights have a zero point."""
    weight = integers(w, (outputs, shape[1] // groups, kernel, kernel), seed=2)
    count = () if zero else (outputs,)
    scales = np.random.default_rng(3).uniform(0.01, 0.02, count).astype(np.float32)
    fan = np.sqrt(weight[0].size)
    constants = {
        "xs": np.float32(0.02), "xz": np.array(113 if x == "uint8" else -9, x), "w": weight,
        "ws": scales, "wz": np.full(count, zero, w), "ys": np.float32(0.015 * 70 * fan * 0.02),
        "yz": np.array(119 if x == "uint8" else 5, x),
        "b": integers("int16", outputs, seed=4).astype(np.int32) // 8,
    }  # fmt: skip
    attributes.setdefault("pads", [kernel // 2] * 4)
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"], group=groups, **attributes)
    return network([node], shape, x, constants)


def conv_integer(shape, outputs, zero=None, groups=1):
    constants = {"w": integers("uint8", (outputs, shape[1] // groups, 3, 3), 2)}
    constants["xz"] = np.array(100, np.uint8)
    if zero is not None:
        constants["wz"] = np.array(zero, np.uint8)
    node = helper.make_node("ConvInteger", ["x", *constants], ["y"], pads=[1] * 4, group=groups)
    return network([node], shape, "uint8", constants, opset=10)


def qlinear_matmul(shape, units, *, columns):
    count = (units,) if columns else ()
    constants = {
        "xs": np.float32(0.03), "xz": np.uint8(131), "w": integers("int8", (shape[-1], units), 2),
        "ws": np.random.default_rng(3).uniform(0.01, 0.03, count).astype(np.float32),
        "wz": np.zeros(count, np.int8), "ys": np.float32(0.03 * 0.02 * 80 * np.sqrt(shape[-1])),
        "yz": np.uint8(128),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"])
    return network([node], shape, "uint8", constants)


def matmul_integer(shape, units):
    constants = {"w": integers("uint8", (shape[-1], units), 2)}
    constants |= {"xz": np.uint8(7), "wz": np.uint8(3)}
    node = helper.make_node("MatMulInteger", ["x", *constants], ["y"])
    return network([node], shape, "uint8", constants)


def surrounded(shape, outputs, groups=1):
    """Build a convolution in real numbers between pairs of QuantizeLinear and DequantizeLinear."""
    constants = {
        "s": np.float32(0.02), "z": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0),
        "w": integers("int8", (outputs, shape[1] // groups, 3, 3), 2),
        "ys": np.float32(0.05), "yz": np.uint8(100),
    }  # fmt: skip
    conv = helper.make_node("Conv", ["d", "wd"], ["c"], pads=[1] * 4, group=groups)
    before = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    after = "r = Relu(c) rq = QuantizeLinear(r, ys, yz) y = DequantizeLinear(rq, ys, yz)"
    nodes = [*nodes_of(f"{before} wd = DequantizeLinear(w, ws, wz)"), conv, *nodes_of(after)]
    return network(nodes, shape, "float32", constants)


#: Networks with the family that computes each.
CASES = {
    "conv": (lambda: qlinear_conv((1, 7, 9, 11), 13), "conv2d"),
    "conv_pointwise_batch": (lambda: qlinear_conv((2, 20, 8, 8), 17, 1), "conv2d_1x1"),
    "conv_pointwise_split": (lambda: qlinear_conv((1, 136, 3, 3), 17, 1), "conv2d_1x1"),
    "conv_unpadded": (lambda: qlinear_conv((1, 20, 8, 8), 17, pads=[0] * 4), "conv2d"),
    "conv_int8": (lambda: qlinear_conv((1, 18, 9, 9), 31, x="int8", strides=[2, 2]), "conv2d"),
    "conv_zero_point": (lambda: qlinear_conv((1, 5, 7, 7), 9, w="uint8", zero=120), "conv2d"),
    "conv_first": (lambda: qlinear_conv((1, 3, 15, 15), 9), "conv2d"),
    "conv_depthwise": (lambda: qlinear_conv((1, 18, 9, 9), 18, groups=18), "depthwise"),
    "conv_grouped": (lambda: qlinear_conv((1, 18, 9, 9), 4, groups=2), "grouped"),
    # On CPUs each group is padded to whole vectors; an injective function removes the padding.
    "conv_uneven_groups": (lambda: qlinear_conv((1, 18, 9, 9), 12, groups=2), "moving"),
    "conv_uneven_groups_zero_point": (
        lambda: qlinear_conv((1, 16, 9, 9), 12, groups=2, w="uint8", zero=120),
        "moving",
    ),
    "integer": (lambda: conv_integer((1, 9, 8, 8), 7), "conv2d"),
    "integer_large_sums": (lambda: conv_integer((1, 99, 5, 5), 7, 17), "conv2d"),
    "integer_depthwise": (lambda: conv_integer((1, 6, 6, 6), 6, groups=6), "depthwise"),
    "matmul": (lambda: qlinear_matmul((5, 37), 13, columns=False), "dense"),
    "matmul_columns": (lambda: qlinear_matmul((2, 9, 65), 33, columns=True), "dense"),
    "matmul_integer": (lambda: matmul_integer((7, 1001), 13), "dense"),
    "qdq": (lambda: surrounded((1, 7, 9, 9), 13), "conv2d"),
    "qdq_depthwise": (lambda: surrounded((1, 9, 9, 9), 9, groups=9), "depthwise"),
}


@pytest.mark.parametrize(
    ("case", "target", "device", "storage"), in_turn(CASES, TARGETS, ("adreno", "mali"))
)
def test_quantized_operator(case, target, device, storage):
    build, family = CASES[case]
    model = build()
    kind = model.graph.input[0].type.tensor_type
    shape = [d.dim_value for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype == np.float32:
        x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    else:
        x = integers(dtype, shape, seed=5)
    (reference,) = expected(model, {"x": x})
    assert len(np.unique(reference)) > 20
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        output = module(x=x)["y"]
        assert family in [kernel["family"] for kernel in module.metadata["kernels"]]
    assert output.dtype == reference.dtype
    np.testing.assert_array_equal(output, reference)


def test_sums_are_in_fp32_only_where_they_are_exact():
    weight = np.full((1, 1), EXACT_LIMIT // 255, np.int64)
    assert sums_of(weight, (1,), 255) == "float32"
    assert sums_of(weight + 1, (1,), 255) == "int32"


@pytest.mark.parametrize(("largest", "dtype"), [(127, "int8"), (255, "int16"), (99999, "int32")])
def test_weights_are_stored_in_the_narrowest_type(largest, dtype):
    assert narrowest(np.array([-3, largest], np.int32)).dtype == dtype


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("target", "device", "storage"), TARGETS)
def test_sums_of_quantizers_that_measure_their_input_are_exact(target, device, storage):
    """The zero point is computed, and Winograd, in floats, would pay for this many channels."""
    weight, bias = integers("int8", (24, 24, 3, 3), 2), integers("int16", (1, 24, 1, 1), 3)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,24,32,50] x) => (int32[1,24,32,50] y)'
        "{ q, scale, zero = DynamicQuantizeLinear(x) c = ConvInteger<pads = [1,1,1,1]>(q, w, zero)"
        "  y = Add(c, b) }"
    )
    constants = {"w": weight, "b": bias.astype(np.int32)}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    x = np.random.default_rng(0).choice([0, 0.1, 10], (1, 24, 32, 50)).astype(np.float32)
    (reference,) = expected(model, {"x": x})
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        np.testing.assert_array_equal(module(x=x)["y"], reference)


@pytest.mark.opencl
def test_tensors_and_weights_of_8_bits_stay_so(tmp_path):
    """This includes the tensor between two convolutions, which share the blocked layout."""
    first = qlinear_conv((1, 8, 6, 6), 8)
    nodes = [*first.graph.node, *qlinear_conv((1, 8, 6, 6), 8).graph.node]
    nodes[0].output[0], nodes[1].input[0] = "between", "between"
    constants = {t.name: numpy_helper.to_array(t) for t in first.graph.initializer}
    model = network(nodes, (1, 8, 6, 6), "uint8", constants)
    with tvmflow.compile(model, target="opencl", device="adreno", dump_ir=tmp_path) as module:
        kernels = [kernel["family"] for kernel in module.metadata["kernels"]]
    # Both convolutions are one function; the others pack and unpack.
    assert sorted(kernels) == ["conv2d", "moving", "moving"]
    (path,) = tmp_path.glob("*_build.*.opencl")
    convolutions = [line for line in path.read_text().splitlines() if "void fused_conv2d" in line]
    assert convolutions
    for line in convolutions:
        assert line.count("uchar*") == 2
        # They are weights, four in each, the correction of the sums, biases and a zero point.
        assert line.count("__global int*") == 4


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_halves_are_rounded_to_even_and_limited(target, dtype):
    """Every half from far below the limits to far above them is rounded, as vectors and scalars."""
    x = np.arange(-1000, 1007, dtype=np.float32).reshape(1, -1) / 2
    x = np.concatenate([x, [[-np.inf, np.inf, -3e38, 3e38, 0.49999997, -0.49999997]]], axis=1)
    x = x.astype(np.float32)
    constants = {"s": np.float32(1), "z": np.array(7, dtype)}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    model = network([node], x.shape, "float32", constants)
    (reference,) = expected(model, {"x": x})
    with tvmflow.compile(model, target=target) as module:
        np.testing.assert_array_equal(module(x=x)["y"], reference)


@pytest.mark.opencl
def test_epilogues_round_by_addition_and_store_whole_vectors(tmp_path):
    model = qlinear_conv((1, 20, 8, 8), 32)
    tvmflow.compile(model, target="opencl", device="cpu", dump_ir=tmp_path).close()
    (path,) = tmp_path.glob("*_build.*.opencl")
    kernels = path.read_text()
    assert "rint(" not in kernels
    assert "TVMFLOW_STORE_BYTES(16, " in kernels


def test_stores_of_bytes_are_found_by_their_pointers():
    header = "__kernel void k(__global uchar* restrict y_ptr, __global float* z_ptr) {"
    body = "vstore4((uchar4)(f(a, 1)), 0, y_ptr + g(2, 3)); vstore4(b, 0, z_ptr + 1);"
    written = store_bytes(header + body)
    assert "TVMFLOW_STORE_BYTES(4, ((uchar4)(f(a, 1))), (y_ptr + g(2, 3)));" in written
    assert "vstore4(b, 0, z_ptr + 1);" in written
    assert store_bytes("vstore4(b, 0, z_ptr + 1);") == "vstore4(b, 0, z_ptr + 1);"
    # TVM puts the declarations of other kernels before each one.
    others = "__kernel void other(__global char* restrict z_ptr);\n"
    assert store_bytes(others + header + body) == written.replace(header, others + header)


@pytest.mark.opencl
@pytest.mark.onnxruntime
def test_kernels_store_bytes_and_longs_to_pointers_of_the_same_name():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> '
        "g (int32[3,4] x) => (int64[3,4] wide, uint8[3,4] narrow)"
        "{ y = Mul(x, x) wide = Cast<to = 7>(y) narrow = Cast<to = 2>(y) }"
    )
    x = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    with tvmflow.compile(model, target="opencl", device="cpu") as module:
        found = module(x)
    np.testing.assert_array_equal(found["wide"], (x * x).astype(np.int64))
    np.testing.assert_array_equal(found["narrow"], (x * x).astype(np.uint8))


@pytest.mark.opencl
@pytest.mark.oclgrind
@pytest.mark.parametrize(
    ("device", "storage"),
    [("adreno", "auto"), pytest.param("cpu", "buffer", marks=pytest.mark.slow)],
)
def test_kernels_of_integers_are_clean(device, storage, under_oclgrind):
    """The kernels are of five families, at odd extents, with partial blocks of channels."""
    layers = [
        {"kernel": 3, "strides": [2, 2]},
        {"kernel": 3, "groups": 18},
        {"kernel": 3, "groups": 9},
        {"kernel": 1},
    ]
    nodes, constants, value = [], {}, "x"
    for index, layer in enumerate(layers):
        model = qlinear_conv((1, 5 if index == 0 else 18, 9, 7), 18, **layer)
        names = {t.name: f"{t.name}{index}" for t in model.graph.initializer}
        constants |= {names[t.name]: numpy_helper.to_array(t) for t in model.graph.initializer}
        node = model.graph.node[0]
        node.input[:] = [names.get(name, value) for name in node.input]
        value = node.output[0] = f"v{index}"
        nodes.append(node)
    constants |= {"shape": np.array([1, -1])}
    nodes.append(helper.make_node("Reshape", [value, "shape"], ["flat"]))
    last = qlinear_matmul((1, 360), 11, columns=True)
    constants |= {t.name: numpy_helper.to_array(t) for t in last.graph.initializer}
    last.graph.node[0].input[0] = "flat"
    nodes.append(last.graph.node[0])
    model = network(nodes, (1, 5, 9, 7), "uint8", constants)
    x = integers("uint8", (1, 5, 9, 7), seed=5)
    (reference,) = expected(model, {"x": x})
    with tvmflow.compile(model, target="opencl", device=device, storage=storage) as module:
        families = {kernel["family"] for kernel in module.metadata["kernels"]}
        output = under_oclgrind()(module, {"x": x})["y"]
    assert families >= {"conv2d", "conv2d_1x1", "depthwise", "grouped"}
    np.testing.assert_array_equal(output, reference)
    assert len(np.unique(reference)) > 5
