"""Every family against ONNX Runtime, over awkward shapes, on every kind of device."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import model_of
from support.operators import build, check, conv, random, single
from support.turns import in_turn

pytestmark = pytest.mark.optimised

#: Each preset gives other schedules, all of which must be right on any device.  GPUs' presets,
#: which differ in tiles and work-groups, take turns, and so do the two for CPUs.
TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    *(
        pytest.param("opencl", device, id=f"opencl-{device}", marks=pytest.mark.opencl)
        for device in ("cpu", "adreno", "mali", "nvidia")
    ),
]
CPUS = ("llvm", "opencl-cpu")
GPUS = ("opencl-adreno", "opencl-mali", "opencl-nvidia")

CONVOLUTIONS = {
    "one_channel": lambda: conv((1, 1, 8, 8), 1),
    "first_layer": lambda: conv((1, 3, 33, 29), 20, (7, 7), stride=2, pad=3),
    "7_to_7": lambda: conv((1, 7, 10, 10), 7),
    "batch_2": lambda: conv((2, 8, 7, 7), 9),
    "31_to_30": lambda: conv((1, 31, 5, 5), 30),
    "24_to_17_not_square": lambda: conv((1, 24, 15, 13), 17),
    "pointwise": lambda: conv((1, 24, 13, 13), 20, (1, 1), pad=0),
    "pointwise_strided": lambda: conv((1, 24, 13, 13), 20, (1, 1), pad=0, stride=2),
    "5x5_strided": lambda: conv((1, 9, 13, 17), 20, (5, 5), pad=2, stride=2),
    "dilated": lambda: conv((1, 9, 13, 17), 20, dilation=2, pad=2),
    "1x3": lambda: conv((1, 5, 9, 9), 6, (1, 3), pad=1),
    "large_window": lambda: conv((1, 4, 32, 32), 4, (11, 11), pad=5),
    "no_padding": lambda: conv((1, 18, 9, 9), 18, pad=0),
    "bare": lambda: conv((1, 18, 9, 9), 18, bias=False, activation=None),
    "residual": lambda: conv((1, 18, 9, 9), 18, residual=True),
    "sigmoid": lambda: conv((1, 18, 9, 9), 6, activation="Sigmoid"),
    "groups_of_blocks": lambda: conv((1, 32, 9, 9), 64, groups=2),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(CONVOLUTIONS, TARGETS, CPUS, GPUS))
def test_convolution(case, target, device):
    families = {"conv2d", "conv2d_1x1", "winograd_product"}
    assert families.intersection(check(CONVOLUTIONS[case](), target, device))


DEPTHWISE = {
    "18": lambda: conv((1, 18, 9, 9), 18, groups=18),
    "strided_batch": lambda: conv((2, 7, 9, 9), 7, groups=7, stride=2),
    "5x5": lambda: conv((1, 32, 14, 14), 32, (5, 5), pad=2, groups=32),
    "dilated": lambda: conv((1, 18, 12, 12), 18, groups=18, dilation=2, pad=2),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(DEPTHWISE, TARGETS, CPUS, GPUS))
def test_depthwise(case, target, device):
    assert "depthwise" in check(DEPTHWISE[case](), target, device)


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: conv((1, 8, 9, 9), 16, groups=8), id="multiplier"),
        pytest.param(lambda: conv((1, 6, 9, 9), 10, groups=2), id="odd_groups"),
    ],
)
def test_grouped_convolution_without_a_family_of_its_own(model, target, device):
    check(model(), target, device)


#: Groups whose outputs neither fill vectors nor are a power of two.
UNEVEN_GROUPS = {
    "3_strided_batch": lambda: conv((2, 12, 9, 7), 12, groups=4, stride=2),
    "17_residual": lambda: conv((1, 34, 7, 9), 34, groups=2, residual=True),
    "40_pointwise": lambda: conv((1, 34, 5, 7), 80, (1, 1), groups=2, pad=0),
    "multiplier_3_bare": lambda: conv((1, 5, 9, 9), 15, groups=5, bias=False, activation=None),
    "12_dilated": lambda: conv((1, 18, 12, 12), 36, groups=3, dilation=2, pad=2),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(UNEVEN_GROUPS, TARGETS, CPUS, GPUS))
def test_uneven_groups(case, target, device):
    """On CPUs each group is padded to whole vectors until after the convolution."""
    families = check(UNEVEN_GROUPS[case](), target, device)
    assert device != "cpu" or "grouped" not in families


STRIDED = {"strides": [2, 2], "pads": [1] * 4}


def pool(shape, operator="MaxPool", **attributes):
    return single(operator, [shape], **{"kernel_shape": [3, 3], **attributes})


def average(**attributes):
    return pool((1, 5, 10, 10), "AveragePool", **attributes)


POOLING = {
    **{
        f"max_{c}_channels": (lambda c=c: pool((1, c, 9, 11), **STRIDED)) for c in (1, 3, 7, 18, 30)
    },
    "max_ceil": lambda: pool((1, 5, 10, 10), strides=[2, 2], ceil_mode=1),
    "max_dilated": lambda: pool((1, 5, 12, 10), kernel_shape=[3, 2], dilations=[2, 3]),
    "average": lambda: average(**STRIDED),
    "average_counting_padding": lambda: average(pads=[1] * 4, count_include_pad=1),
    "average_ceil": lambda: average(strides=[2, 2], ceil_mode=1),
    "average_ceil_counting_padding": lambda: average(**STRIDED, ceil_mode=1, count_include_pad=1),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(POOLING, TARGETS, CPUS, GPUS))
def test_pooling(case, target, device):
    assert "pooling" in check(POOLING[case](), target, device)


DENSE = {
    "gemm": lambda: single(
        "Gemm", [(1, 33)], {"w": random((20, 33)), "b": random((20,))}, transB=1
    ),
    "gemm_batch_5": lambda: single("Gemm", [(5, 33)], {"w": random((33, 20)), "b": random((20,))}),
    "product_of_two_inputs": lambda: single("MatMul", [(5, 7), (7, 9)]),
    "product_of_two_inputs_by_8": lambda: single("MatMul", [(3, 30), (30, 24)]),
    "matmul_1001": lambda: single("MatMul", [(17, 33)], {"w": random((33, 1001))}),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(DENSE, TARGETS, CPUS, GPUS))
def test_dense(case, target, device):
    computed = case == "product_of_two_inputs" and device != "cpu"
    assert ("matmul" if computed else "dense") in check(DENSE[case](), target, device)


SOFTMAX = {
    "rows": lambda: single("Softmax", [(2, 5, 7)], axis=-1),
    "middle_axis": lambda: single("Softmax", [(2, 5, 7)], axis=1),
    "channels_of_a_map": lambda: single("Softmax", [(1, 7, 5, 5)], axis=1),
    "vector": lambda: single("Softmax", [(9,)], axis=0),
    "log_1001": lambda: single("LogSoftmax", [(3, 1001)], axis=1),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(SOFTMAX, TARGETS, CPUS, GPUS))
def test_softmax(case, target, device):
    assert "softmax" in check(SOFTMAX[case](), target, device)


def test_softmax_does_not_overflow():
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    model = build(nodes, {"x": (2, 50)}, ["y"], {"s": np.float32(1e4)})
    check(model, "llvm", "cpu")


REDUCTIONS = {
    f"{operator}_{name}": (
        lambda o=operator, a=attributes: single(o, [(2, 7, 5, 6)], opset=11, **a)
    )
    for operator in ("ReduceMean", "ReduceMax", "ReduceSum")
    for name, attributes in {
        "spatial": {"axes": [2, 3], "keepdims": 1},
        "channels": {"axes": [1], "keepdims": 0},
        "all": {"keepdims": 0},
        "outer_and_inner": {"axes": [0, 2], "keepdims": 1},
    }.items()
} | {
    "global_average": lambda: single("GlobalAveragePool", [(1, 7, 9, 9)]),
    "global_max": lambda: single("GlobalMaxPool", [(1, 7, 9, 9)]),
    "product": lambda: single("ReduceProd", [(3, 7)], opset=11, axes=[1], keepdims=0),
    "vector_to_scalar": lambda: single("ReduceSum", [(7,)], opset=11, keepdims=0),
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(REDUCTIONS, TARGETS, CPUS, GPUS))
def test_reduction(case, target, device):
    assert "reduction" in check(REDUCTIONS[case](), target, device)


BESIDE = {
    "conv2d": ("Conv", (1, 5, 9, 9), (1, 7, 9, 9), {"w": random((7, 5, 3, 3))}, {"pads": [1] * 4}),
    "depthwise": ("Conv", (1, 7, 9, 9), (1, 7, 7, 7), {"w": random((7, 1, 3, 3))}, {"group": 7}),
    "pooling": ("MaxPool", (1, 7, 8, 8), (1, 7, 7, 7), {}, {"kernel_shape": [2, 2]}),
    "dense": ("MatMul", (3, 7), (3, 9), {"w": random((7, 9))}, {}),
    "reduction": ("GlobalAveragePool", (1, 7, 9, 9), (1, 7, 1, 1), {}, {}),
    "softmax": ("Softmax", (3, 50), (3, 50), {}, {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("case", "target", "device"), in_turn(BESIDE, TARGETS, CPUS, GPUS))
def test_elementwise_blocks_before_the_anchor(case, target, device):
    """A summand of the anchor's result is computed in the same function, before the anchor."""
    operator, shape, result, constants, attributes = BESIDE[case]
    nodes = [
        helper.make_node("Mul", ["z", "half"], ["r"]),
        helper.make_node(operator, ["x", *constants], ["c"], **attributes),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    constants = {**constants, "half": np.float32(0.5)}
    check(build(nodes, {"x": shape, "z": result}, ["y"], constants), target, device)


OTHERS = {
    "add_broadcast": lambda: single("Add", [(1, 7, 5, 5), (1, 7, 1, 1)]),
    "transpose": lambda: single("Transpose", [(2, 3, 4, 5)], perm=[0, 2, 3, 1]),
    "concat_3_and_5_channels": lambda: single("Concat", [(1, 3, 5, 5), (1, 5, 5, 5)], axis=1),
    "transposed_convolution": lambda: single(
        "ConvTranspose",
        [(1, 6, 7, 7)],
        {"w": random((6, 5, 3, 3))},
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
    ),
    "instance_norm": lambda: single(
        "InstanceNormalization", [(1, 6, 7, 7)], {"s": random((6,)), "b": random((6,))}
    ),
    # One reduction has two results, the index and the value.
    "argmax": lambda: model_of("y = ArgMax<axis = 1>(x)", {"x": (3, 7, 5)}),
    "remainder_of_bytes": lambda: model_of(
        "b = Cast<to = 3>(x) m = Mod(b, three) y = Cast<to = 1>(m)",
        {"x": (40,)},
        "y",
        {"three": np.array(3, np.int8)},
    ),
    # TVM wrote the loops itself, in a block without axes, after a transposition.
    "scatter": lambda: single(
        "ScatterND",
        [(4, 7, 3)],
        {"i": np.array([[0, 1], [2, 6]]), "u": random((2, 3))},
        opset=18,
        reduction="add",
    ),
    "cumulative_sum": lambda: single("CumSum", [(3, 7)], {"axis": np.array(1, np.int64)}),
} | {
    name.lower(): (lambda n=name: single(n, [(3, 16)]))
    for name in ("Tan", "Acos", "Asin", "Atan", "Sinh", "Cosh", "Acosh", "Asinh", "Atanh", "Erf")
}


@pytest.mark.parametrize(("case", "target", "device"), in_turn(OTHERS, TARGETS, CPUS, GPUS))
def test_operators_of_the_fallback(case, target, device):
    check(OTHERS[case](), target, device)
