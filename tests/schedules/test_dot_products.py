"""Dot products of four 8-bit numbers: the operator, its instructions, networks that use it."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from support.first_stages import chosen_schedules
from support.knob_choices import sample_knobs
from support.onnx_models import expected, model_of
from support.quick_knobs import is_quick
from tvm import s_tir, te, tirx

import tvmflow
from tvmflow.codegen.dot_products import CUDA, FUNCTION, OPENCL, with_functions
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import PRESETS
from tvmflow.ir import blocked
from tvmflow.ir.dot_products import dot
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.conv2d import Shape as ConvShape
from tvmflow.schedules.integers import narrowest, words

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    pytest.param("opencl", "cpu", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", id="mali", marks=pytest.mark.opencl),
]


def product(depth, lanes):
    """Return ``y[i] = sum_k dot(x[k], w[k, i])``, scheduled in vectors."""
    x = te.placeholder((depth,), "int32", name="x")
    w = te.placeholder((depth, lanes), "int32", name="w")
    k = te.reduce_axis((0, depth), name="k")
    zero = tirx.const(0, "int32")
    y = te.compute((lanes,), lambda i: te.sum(dot(zero, x[k], w[k, i]), axis=k), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, w, y]))
    block = sch.get_sblock("y")
    i, k = sch.get_loops(block)
    sch.reorder(k, i)
    sch.vectorize(i)
    sch.decompose_reduction(block, k)
    return sch.mod


def built(depth, lanes, cpu, triple=None, features=()):
    machine = {"mcpu": cpu} if triple is None else {"mtriple": triple, "mattr": [*features]}
    target = tvm.target.Target({"kind": "llvm", **machine})
    with target:
        return tvm.tirx.build(product(depth, lanes), target, pipeline=TIR_PIPELINE)


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("extreme", [False, True])
def test_the_operator_matches_numpy(lanes, extreme):
    """The operator uses the CPU's instruction if it has one, and arithmetic for other widths."""
    from tvm.target.codegen import llvm_get_system_cpu

    rng = np.random.default_rng(lanes)
    x = rng.integers(0, 256, (9, 4)).astype(np.uint8)
    w = rng.integers(-128, 128, (9, lanes, 4)).astype(np.int8)
    if extreme:
        # Sums of pairs exceed 16 bits, where instructions that add in 16 bits would be wrong.
        x[:], w[:] = 255, rng.choice([-128, 127], (9, lanes, 1))
    run = tvm.runtime.Executable(built(9, lanes, str(llvm_get_system_cpu())))
    result = tvm.runtime.tensor(np.zeros(lanes, np.int32))
    operands = (np.ascontiguousarray(a).view("<i4")[..., 0].copy() for a in (x, w))
    run(*map(tvm.runtime.tensor, operands), result)
    expected = np.einsum("ka,kia->i", x.astype(np.int64), w.astype(np.int64))
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(("cpu", "is_there"), [("sapphirerapids", True), ("x86-64", False)])
def test_the_instruction_is_one_of_the_targets_cpu(cpu, is_there):
    assembly = built(8, 16, cpu).inspect_source("asm")
    assert ("vpdpbusd" in assembly) == is_there
    # The instruction accumulates: there is no separate addition.
    assert not (is_there and re.search(r"vpaddd\s.*zmm", assembly))


def test_other_processors_get_arithmetic():
    assembly = built(8, 16, None, "aarch64-linux-android").inspect_source("asm")
    assert re.search(r"\tml[as]\t|\tmla\s|\tmul\s", assembly)
    assert "sdot" not in assembly


def test_arm_s_instruction_takes_four_lanes():
    assembly = built(8, 16, None, "aarch64-linux-android", ["+dotprod"]).inspect_source("asm")
    assert assembly.count("sdot\t") == 4
    # The instruction accumulates in vectors that stay in registers.
    loop = assembly[assembly.index("ld1r") : assembly.rindex("sdot")]
    assert not re.search(r"\t(mla|mov|ext|ins|add)\tv", loop)


def test_functions_precede_kernels_that_call_them():
    assert with_functions("kernel", OPENCL) == "kernel"
    assert with_functions(f"{FUNCTION}16(s, x, w)", OPENCL).startswith(OPENCL)
    # Kernels are built together, so the functions may be included twice.
    assert OPENCL.startswith("#ifndef")
    assert "dp4a.u32.s32" in CUDA


def test_words_hold_four_neighbours():
    weight = np.arange(-3, 4, dtype=np.int8).reshape(7, 1)
    packed = blocked.words(weight, 0)
    assert packed.shape == (2, 1)
    np.testing.assert_array_equal(
        np.ascontiguousarray(packed).view(np.int8).ravel(), [-3, -2, -1, 0, 1, 2, 3, 0]
    )
    assert [int(d) for d in words(te.placeholder((1, 7, 5, 5), "int8"), 1).shape] == [1, 2, 5, 5]


@pytest.mark.parametrize(("low", "high", "fits"), [(-128, 127, True), (-5, 250, False)])
def test_weights_beyond_int8_are_multiplied_one_by_one(low, high, fits):
    assert (narrowest(np.array([low, high], np.int32)).dtype == np.int8) == fits


# -- networks with DequantizeLinear and QuantizeLinear around real operators ------------------


class Network:
    """Builder of a model in QDQ form: real operators between DequantizeLinear and Quantize."""

    def __init__(self, opset=17):
        self.nodes, self.constants, self.opset = [], {}, opset
        self.rng = np.random.default_rng(11)

    def node(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name, value):
        self.constants[name] = np.asarray(value)
        return name

    def quantized(self, name, scale, zero):
        """Quantize the real tensor ``name`` to 8 bits and dequantize it."""
        s, z = self.constant(f"{name}_s", np.float32(scale)), self.constant(f"{name}_z", zero)
        self.node("QuantizeLinear", [name, s, z], f"{name}_q")
        return self.node("DequantizeLinear", [f"{name}_q", s, z], f"{name}_d")

    def weight(self, name, shape, axis, dtype="int8", zero=0):
        limits = np.iinfo(dtype)
        values = self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        count = shape[axis]
        fan = np.sqrt(np.prod(shape) / count)
        scales = self.rng.uniform(0.5, 1, count).astype(np.float32) / np.float32(70 * fan)
        names = [
            self.constant(name, values),
            self.constant(f"{name}_s", scales),
            self.constant(f"{name}_z", np.full(count, zero, dtype)),
        ]
        return self.node("DequantizeLinear", names, f"{name}_d", axis=axis)

    def bias(self, name, count):
        return self.constant(name, self.rng.standard_normal(count).astype(np.float32) / 4)

    def model(self, shape, output):
        model = model_of(self.nodes, {"x": shape}, output, self.constants, self.opset)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def residual_network(zero):
    """Build a first layer, an inverted residual block as in MobileNetV2, and a classifier."""
    n, dtype = Network(), zero.dtype
    d = n.quantized("x", 0.02, zero)
    for name, inputs, outputs, kernel, groups in (
        ("first", 3, 9, 3, 1), ("expand", 9, 30, 1, 1), ("filter", 30, 30, 3, 30),
        ("project", 30, 9, 1, 1),
    ):  # fmt: skip
        weight = n.weight(f"{name}_w", (outputs, inputs // groups, kernel, kernel), 0)
        operands = [d, weight, n.bias(f"{name}_b", outputs)]
        y = n.node("Conv", operands, name, pads=[kernel // 2] * 4, group=groups)
        if name != "project":
            y = n.node("Relu", [y], f"{name}_relu")
        d = n.quantized(y, 0.015, zero if name == "project" else dtype.type(np.iinfo(dtype).min))
        shortcut = d if name == "first" else shortcut  # noqa: F821 (the first layer comes first)
    d = n.quantized(n.node("Add", [d, shortcut], "sum"), 0.02, zero)
    d = n.quantized(n.node("GlobalAveragePool", [d], "pool"), 0.01, zero)
    d = n.quantized(n.node("Flatten", [d], "flat"), 0.01, zero)
    gemm = [d, n.weight("dense_w", (13, 9), 0), n.bias("dense_b", 13)]
    d = n.quantized(n.node("Gemm", gemm, "dense", transB=1), 0.01, zero)
    return n.model((1, 3, 11, 13), n.node("Identity", [d], "y"))


def run_both(model, target, device, folder=None, **options):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    # With optimisation, ONNX Runtime rounds biases to the sums' scale; both results are right.
    references = []
    for optimized in (False, True):
        # Its fused product rejects zero points of rows, which its separate nodes support.
        with contextlib.suppress(Fail):
            references += expected(model, {"x": x}, optimized=optimized)
    with tvmflow.compile(model, target=target, device=device, dump_ir=folder, **options) as module:
        output = module(x=x)[0]
        reference = min(references, key=lambda found: np.count_nonzero(found != output))
        return output, reference, module.metadata["kernels"]


def assert_within_a_step(output, reference, step, share):
    """Check that results differ by a step at most, and seldom: at ties rounding may differ."""
    errors = np.abs(output - reference)
    assert len(np.unique(reference)) > 8
    assert errors.max() <= step * 1.01
    assert (errors > step / 2).mean() <= share


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("zero", [np.uint8(117), np.int8(-7)], ids=["uint8", "int8"])
def test_a_network_with_real_operators_is_computed_in_integers(zero, target, device, tmp_path):
    output, reference, _ = run_both(residual_network(zero), target, device, tmp_path)
    assert_within_a_step(output, reference, 0.01, 0.1)
    text = next(tmp_path.glob("2_layout*")).read_text()
    # All but the depthwise convolution use dot products: it has no four channels to sum.
    assert text.count("T.tvmflow_dot4(") == 4


def dense_network(kind):
    n = Network()
    d = n.quantized("x", 0.02, np.uint8(131))
    weight = n.weight("w", (37, 21), 1)
    if kind == "gemm":
        y = n.node("Gemm", [d, weight, n.bias("b", 21)], "z", beta=0.5)
    else:
        y = n.node("MatMul", [d, weight], "z")
    n.node("Identity", [n.quantized(y, 0.02, np.uint8(120))], "y")
    return n.model((6, 37) if kind == "gemm" else (2, 5, 37), "y")


@pytest.mark.parametrize("kind", ["gemm", "matmul"])
@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_dense_layers_with_real_operators(kind, target, device):
    output, reference, _ = run_both(dense_network(kind), target, device)
    assert_within_a_step(output, reference, 0.02, 0.02)


@pytest.mark.parametrize("why", ["weights of 8 bits without a fitting axis", "a scale of a row"])
def test_other_forms_are_computed_in_real_numbers(why):
    """Scales along the summed axis, or per row of the left operand, keep the product real."""
    n = Network()
    if why == "a scale of a row":
        scales = n.constant("s", np.array([0.02, 0.03, 0.01], np.float32))
        zeros = n.constant("z", np.array([128, 120, 130], np.uint8))
        n.node("QuantizeLinear", ["x", scales, zeros], "q", axis=0)
        d, axis = n.node("DequantizeLinear", ["q", scales, zeros], "d", axis=0), 1
    else:
        d, axis = n.quantized("x", 0.02, np.uint8(131)), 0
    n.node("MatMul", [d, n.weight("w", (16, 9), axis)], "y")
    output, reference, _ = run_both(n.model((3, 16), "y"), "llvm", "cpu")
    np.testing.assert_allclose(output, reference, atol=1e-4)


def test_halves_are_rounded_to_even():
    """With weights of 1 and a ratio of 0.5, every second result is between two steps."""
    constants = {
        "xs": np.float32(0.5), "xz": np.uint8(0), "w": np.ones((1, 1, 1, 1), np.int8),
        "ws": np.float32(1), "wz": np.int8(0), "ys": np.float32(1), "yz": np.uint8(3),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"])
    kind = ((1, 1, 16, 16), "uint8")
    model = model_of([node], {"x": kind}, {"y": kind}, constants)
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    with tvmflow.compile(model, target="llvm") as module:
        output = module(x=x)["y"]
    np.testing.assert_array_equal(output, np.rint(x / 2.0).astype(np.uint8) + 3)


def test_cuda_has_the_instruction(tmp_path):
    tvmflow.compile(dense_network("gemm"), target="cuda", dump_ir=tmp_path).close()
    (source,) = tmp_path.glob("*build.0.cuda*")
    assert re.search(rf"= {FUNCTION}1\(", source.read_text())


@pytest.mark.opencl
@pytest.mark.parametrize("device", ["adreno", pytest.param("cpu", marks=pytest.mark.slow)])
def test_any_knobs_are_right(device):
    """The knobs put weights into local or constant memory, split sums, or have small tiles."""
    model, preset, rng = residual_network(np.uint8(117)), PRESETS[device], random.Random(3)
    schedules = chosen_schedules(model, target="opencl", device=device)
    families = {family.NAME: family for family in FAMILIES}
    spaces = {}
    for name, entry in schedules.items():
        if entry["family"] in ("conv2d", "conv2d_1x1"):
            shape = ConvShape(**entry["shape"])
            found = sample_knobs(families[entry["family"]], shape, preset, rng)
            spaces[name] = filter(is_quick, found)
    assert len(spaces) == 3
    for _ in range(2):
        knobs = {name: dataclasses.asdict(next(found)) for name, found in spaces.items()}
        output, reference, _ = run_both(model, "opencl", device, knobs=knobs)
        assert_within_a_step(output, reference, 0.01, 0.1)
