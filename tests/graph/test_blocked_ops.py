"""Single operators between two convolutions: right, and without leaving the blocked layout."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.networks import Graph
from support.onnx_models import expected
from support.operators import feeds_for
from support.turns import in_turn

import tvmflow
from tvmflow.verify.tolerance import assert_close

WAYS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "adreno", "texture", id="texture", marks=pytest.mark.opencl),
]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def between(channels, middle, height=9, width=11, batch=1):
    """Convolution to ``channels``, what ``middle`` adds, convolution."""
    g = Graph(batch, 3, height, width)
    x = middle(g, g.relu(g.conv("x", channels, 3)))
    return g.model(g.conv(x, 5, 3), opset=20)


def node(operator, outputs, *constants, **attributes):
    """Return a function that adds a node with constant inputs; ``None`` omits an input."""

    def middle(g, x):
        inputs = ["" if c is None else g.constant(np.asarray(c)) for c in constants]
        return g.node(operator, [x, *inputs], outputs, **attributes)

    return middle


def transposed(inputs, outputs, kernel, strides, pads=0, extra=0, dilations=(1, 1), groups=1):
    def middle(g, x):
        weight = g.weights(inputs, outputs // groups, *kernel)
        return g.node(
            "ConvTranspose", [x, weight, g.weights(outputs)], outputs, strides=list(strides),
            pads=[pads] * 4, output_padding=[extra] * 2, dilations=list(dilations), group=groups,
        )  # fmt: skip

    return inputs, middle, 6, 7


TRANSPOSED = {
    "4x4_stride_2": transposed(8, 8, (4, 4), (2, 2), pads=1),
    "3x3_stride_2_output_padding": transposed(7, 5, (3, 3), (2, 2), pads=1, extra=1),
    "2x2_stride_2": transposed(18, 30, (2, 2), (2, 2)),
    "no_stride": transposed(5, 7, (3, 3), (1, 1), pads=1),
    "5x5_stride_3": transposed(5, 7, (5, 5), (3, 3), pads=1),
    "gaps": transposed(5, 6, (1, 1), (2, 2)),
    "dilation_with_a_common_factor": transposed(5, 7, (3, 3), (2, 2), pads=1, dilations=(2, 2)),
    "other_rows_than_columns": transposed(5, 7, (3, 2), (3, 2), dilations=(2, 3)),
    "large_stride": transposed(3, 3, (16, 16), (8, 8), pads=4),
    "groups": transposed(6, 10, (4, 4), (2, 2), pads=1, groups=2),
    "groups_of_blocks": transposed(32, 32, (3, 3), (2, 2), pads=1, groups=2),
    "a_filter_a_channel": transposed(18, 18, (4, 4), (2, 2), pads=1, groups=18),
}


def grouped(inputs, outputs, groups, kernel=3, **more):
    return inputs, lambda g, x: g.conv(x, outputs, kernel, groups=groups, **more)


GROUPED = {
    "6_to_10": grouped(6, 10, 2),
    "9_to_21": grouped(9, 21, 3),
    "several_filters_a_channel": grouped(8, 16, 8),
    "many_pointwise": grouped(64, 64, 32, kernel=1),
    "one_output_a_group": grouped(18, 6, 6, stride=2),
    "dilated": grouped(18, 18, 9, dilations=[2, 2], pads=[2] * 4),
}


def resize(mode, coordinates, scales, channels=7, **more):
    factors = np.array([1, 1, *scales], np.float32)
    middle = node(
        "Resize", channels, None, factors, mode=mode,
        coordinate_transformation_mode=coordinates, **more,
    )  # fmt: skip
    return channels, middle


def crop_and_resize(g, x):
    region = g.constant(np.array([0, 0, 0.2, 0.3, 1, 1, 0.9, 1.3], np.float32))
    return g.node(
        "Resize", [x, region, "", g.constant(ints(1, 7, 8, 8))], 7, mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.5,
    )  # fmt: skip


RESIZES = {
    "nearest": resize("nearest", "asymmetric", (2, 2), nearest_mode="floor"),
    "nearest_odd": resize("nearest", "half_pixel", (1.3, 0.7), 18, nearest_mode="ceil"),
    "linear": resize("linear", "half_pixel", (2, 2)),
    "linear_corners": resize("linear", "align_corners", (2, 3)),
    "linear_down": resize("linear", "pytorch_half_pixel", (0.6, 0.5)),
    "linear_antialiased": resize("linear", "half_pixel", (0.5, 0.5), antialias=1),
    "linear_to_one": resize("linear", "pytorch_half_pixel", (0.13, 0.3)),
    "linear_symmetric": resize("linear", "half_pixel_symmetric", (1.3, 0.7)),
    "cubic": resize("cubic", "half_pixel", (2, 2)),
    "cubic_down": resize("cubic", "asymmetric", (0.6, 1.5), 18),
    "crop": (7, crop_and_resize),
}


def concat(*channels, axis=1):
    def middle(g, x):
        parts = [g.conv(x, c) for c in channels]
        return g.node("Concat", parts, sum(channels) if axis == 1 else channels[0], axis=axis)

    return 6, middle


def concat_with_the_input(g, x):
    return g.node("Concat", ["x", g.conv(x, 5), "x"], 11, axis=1)


def split(g, x):
    sizes = g.constant(ints(1, 6, 4, 7))
    g.nodes.append(helper.make_node("Split", [x, sizes], ["a", "b", "c", "d"], axis=1))
    g.channels.update(a=1, b=6, c=4, d=7)
    return g.node("Concat", ["d", g.relu("b"), "a"], 14, axis=1)


def slices(channels, outputs, axes, starts, ends, steps):
    return channels, node("Slice", outputs, ints(*starts), ints(*ends), ints(*axes), ints(*steps))


def shuffle(channels, groups):
    def middle(g, x):
        y = g.node("Reshape", [x, g.constant(ints(1, groups, channels // groups, 9, 11))], 0)
        y = g.node("Transpose", [y], 0, perm=[0, 2, 1, 3, 4])
        return g.node("Reshape", [y, g.constant(ints(1, channels, 9, 11))], channels)

    return channels, middle


def repeat_by_expand(g, x):
    y = g.node("Reshape", [x, g.constant(ints(1, 7, 9, 1, 11, 1))], 0)
    y = g.node("Expand", [y, g.constant(ints(1, 7, 9, 2, 11, 2))], 0)
    return g.node("Reshape", [y, g.constant(ints(1, 7, 18, 22))], 7)


PADS = ints(0, 0, 1, 2, 0, 0, 3, 1)
MOVES = {
    "concat_3_5": concat(3, 5),
    "concat_many": concat(1, 7, 4, 6),
    "concat_at_seams": concat(16, 32, 5),
    "concat_rows": concat(5, 5, axis=2),
    "concat_with_the_input": (6, concat_with_the_input),
    "split": (18, split),
    "slice_channels": slices(18, 7, (1,), (5,), (12,), (1,)),
    "slice_channels_at_a_block": slices(18, 10, (1,), (4,), (14,), (1,)),
    "slice_channels_by_3": slices(18, 6, (1,), (1,), (18,), (3,)),
    "slice_channels_backwards": slices(7, 7, (1,), (6,), (-20,), (-1,)),
    "slice_rows_and_columns": slices(7, 7, (2, 3), (1, 2), (7, 10), (1, 2)),
    "pad_constant": (7, node("Pad", 7, PADS, np.float32(0.5), mode="constant")),
    "pad_reflect": (7, node("Pad", 7, PADS, mode="reflect")),
    "pad_edge": (7, node("Pad", 7, PADS, mode="edge")),
    "pad_channels": (7, node("Pad", 12, ints(0, 2, 1, 0, 0, 3, 0, 0), np.float32(-1))),
    "depth_to_space": (20, node("DepthToSpace", 5, blocksize=2)),
    "depth_to_space_crd": (12, node("DepthToSpace", 3, blocksize=2, mode="CRD")),
    "space_to_depth": (5, node("SpaceToDepth", 20, blocksize=2), 8, 10),
    "transpose_rows_and_columns": (7, node("Transpose", 7, perm=[0, 1, 3, 2])),
    "shuffle_18": shuffle(18, 3),
    "shuffle_32": shuffle(32, 2),
    "repeat_by_expand": (7, repeat_by_expand),
}


def elementwise(operator, *constants, **attributes):
    """After a convolution, where it is an epilogue, and after a pooling."""

    def middle(g, x):
        inputs = [g.constant(np.asarray(c)) for c in constants]
        left = g.node(operator, [g.conv(x, 7), *inputs], 7, **attributes)
        right = g.node("MaxPool", [x], 7, kernel_shape=[3, 3], pads=[1] * 4)
        right = g.node(operator, [right, *inputs], 7, **attributes)
        return g.node("Add", [left, right], 7)

    return 7, middle


def gate_by_map(g, x):
    return g.node("Mul", [x, g.node("Sigmoid", [g.conv(x, 1, 3)], 1)], 7)


def gate_by_channel(g, x):
    pooled = g.node("ReduceMean", [x, g.constant(ints(-1, -2))], 7, keepdims=1)
    return g.node("Div", [g.node("HardSigmoid", [g.conv(pooled, 7)], 7), g.node("Exp", [x], 7)], 7)


def constants_of_all_ranks(g, x):
    for shape in ((), (1,), (11,), (9, 11), (7, 1, 1), (1, 1, 9, 1), (1, 7, 9, 11)):
        x = g.node("Add", [g.weights(*shape), x], 7)
    return x


SLOPES = np.linspace(-0.5, 0.8, 7, dtype=np.float32).reshape(7, 1, 1)
ELEMENTWISE = {
    "leaky_relu": elementwise("LeakyRelu", alpha=0.2),
    "prelu": elementwise("PRelu", SLOPES),
    "hard_swish": elementwise("HardSwish"),
    "elu": elementwise("Elu"),
    "mish": elementwise("Mish"),
    "gelu": elementwise("Gelu"),
    "thresholded_relu": elementwise("ThresholdedRelu", alpha=0.3),
    "shrink": elementwise("Shrink", bias=0.1, lambd=0.2),
    "atan": elementwise("Atan"),
    "sign": elementwise("Sign"),
    "gate_by_map": (7, gate_by_map),
    "gate_by_channel": (7, gate_by_channel),
    "constants_of_all_ranks": (7, constants_of_all_ranks),
}


def run(model, target, device, storage):
    """Compare with ONNX Runtime; return the primary functions."""
    feeds = feeds_for(model)
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        assert_close(module(**feeds)[module.outputs[0].name], expected(model, feeds)[0])
        return module.metadata["kernels"]


CASES = {
    f"{family}-{name}": case
    for family, cases in (
        ("transposed", TRANSPOSED),
        ("grouped", GROUPED),
        ("resize", RESIZES),
        ("move", MOVES),
        ("elementwise", ELEMENTWISE),
    )
    for name, case in cases.items()
}


#: Their constants have the shape of one sample.
ONE_SAMPLE = {"resize-crop", "move-shuffle_18", "move-shuffle_32", "move-repeat_by_expand"}


@pytest.mark.parametrize(
    ("case", "target", "device", "storage"), in_turn(CASES, WAYS, ("llvm", "texture"))
)
def test_the_layout_is_kept(case, target, device, storage):
    batch = 1 if case in ONE_SAMPLE else 2
    kernels = run(between(*CASES[case], batch=batch), target, device, storage)
    functions = [kernel["function"] for kernel in kernels]
    assert sum("unpack" in f for f in functions) == 1
    # The input's channels are packed where they are not read in their plain layout.
    assert sum("pack" in f and "unpack" not in f for f in functions) <= 1


@pytest.mark.parametrize("family", ["conv2d_transpose", "grouped"])
def test_the_family_has_a_schedule_of_its_own(family):
    transposed = family == "conv2d_transpose"
    case = TRANSPOSED["2x2_stride_2"] if transposed else GROUPED["several_filters_a_channel"]
    kernels = run(between(*case), "llvm", "cpu", "buffer")
    assert family in {kernel["family"] for kernel in kernels}


@pytest.mark.parametrize(("target", "device", "storage"), WAYS)
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extreme(operator, axis, target, device, storage):
    g = Graph(1, 3, 9, 11)
    place = g.node(operator, [g.conv("x", 7, 3)], 1, axis=axis, keepdims=axis % 2)
    run(g.model(g.node("Cast", [place], 1, to=TensorProto.FLOAT)), target, device, storage)


@pytest.mark.parametrize(("target", "device", "storage"), WAYS)
def test_infinity_in_one_group_does_not_reach_another(target, device, storage):
    """No output may multiply an input that is not its own, not even by zero."""
    g = Graph(1, 6, 5, 6)
    large = g.node("Mul", ["x", g.constant(np.float32([1, 1, 1e30, 1, 1, 1]).reshape(6, 1, 1))], 6)
    infinite = g.node("Mul", [g.conv(large, 6, groups=6), g.constant(np.float32(1e15))], 6)
    y = g.conv(infinite, 10, 3, groups=2)
    weight = g.weights(10, 6, 3, 3)
    y = g.node("ConvTranspose", [y, weight], 12, strides=[2, 2], group=2)
    run(g.model(y), target, device, storage)
