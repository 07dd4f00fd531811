"""Networks whose result was wrong, that did not compile, or that lost a NaN.

A case is a function that builds the network; its docstring describes the fault.  To add one,
rebuild the fuzzer's network (its ``.onnx`` shows the nodes) with the graph's methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from contexts import Network
from graphs import Graph, Tensor

Build = Callable[[Graph], "list[Tensor]"]

CASES: dict[str, Build] = {}
#: Version of ONNX's operator set, by case.
OPSETS: dict[str, int] = {}
OPSET = 17


def case(name: str, build: Build, opset: int = OPSET) -> None:
    """Register a case."""
    assert name not in CASES, name
    CASES[name] = build
    OPSETS[name] = opset


def network_of(name: str, prefix: str = "") -> Network:
    """Return a case as a network; the same name gives the same numbers."""
    seed = sum(name.encode())
    g = Graph(lambda _: seed, OPSETS[name], prefix, "normal")
    outputs = CASES[name](g)
    return Network(
        name, "regression", g.kind, g.opset, tuple(g.nodes), g.constants, g.feeds, tuple(outputs)
    )


def integers(g: Graph, *values: int) -> Tensor:
    return g.constant(np.array(values, np.int64))


def picture(g: Graph, channels: int = 16, size: int = 8) -> Tensor:
    return g.input([1, channels, size, size])


def convolved(g: Graph, channels: int = 64, kernel: int = 3) -> Tensor:
    """Return a convolution's blocked result."""
    x = picture(g)
    weights = g.weights((channels, x.channels, kernel, kernel), scale=0.2)
    return g.one("Conv", [x, weights], pads=[kernel // 2] * 4)


# ---- Slices of a convolution's channels that begin within a block ------------------------------
# `(v_k + 2) // 16 + v_kk` became `(v0 + 2) % 32 // 16`: wrong on llvm, opencl and in buffers.


def slice_(begin: int, end: int, g: Graph) -> list[Tensor]:
    places = [integers(g, begin), integers(g, end), integers(g, 1)]
    return [g.one("Slice", [convolved(g), *places])]


for begin, end in ((1, 33), (2, 34), (4, 36), (8, 40), (6, 34)):
    case(f"slice_{begin}_{end}", partial(slice_, begin, end))


def split(g: Graph) -> list[Tensor]:
    return [g.node("Split", [convolved(g), integers(g, 8, 16, 40)], 3, axis=1)[1]]


def gather(g: Graph) -> list[Tensor]:
    return [g.one("Gather", [convolved(g), integers(g, *range(2, 34))], axis=1)]


def pad_channels(g: Graph) -> list[Tensor]:
    return [g.one("Pad", [convolved(g, 60), integers(g, 0, 1, 0, 0, 0, 3, 0, 0)])]


def cumsum_reverse(g: Graph) -> list[Tensor]:
    return [g.one("CumSum", [convolved(g), g.constant(np.int64(1))], reverse=1)]


def lrn(g: Graph) -> list[Tensor]:
    return [g.one("LRN", [convolved(g)], size=5, alpha=1e-4, beta=0.75)]


case("split_8_16_40", split)
case("gather_2_33", gather)
case("pad_channels", pad_channels)
case("cumsum_reverse", cumsum_reverse)
case("lrn", lrn)


# ---- Tile on every axis: wrong on llvm, in the passes after `lower` ----------------------------


def tile(g: Graph) -> list[Tensor]:
    return [g.one("Tile", [g.input([2, 3, 4, 5]), integers(g, 7, 6, 4, 2)])]


case("tile", tile)


# ---- Comparisons: a true lane of a vector is −1 in OpenCL, a true scalar is 1 -------------------


def masked(kind: str, g: Graph) -> Tensor:
    x, other = picture(g), g.weights((1, 16, 8, 8))
    mask = g.one("Greater", [x, g.constant(np.float32(0.1))])
    if kind == "where":
        return g.one("Where", [mask, x, other])
    if kind == "not":
        mask = g.one("Not", [mask])
    if kind == "and":
        mask = g.one("And", [mask, g.one("Less", [x, other])])
    return g.one("Cast", [mask], to=1)


def into_transpose(kind: str, g: Graph) -> list[Tensor]:
    return [g.one("Transpose", [masked(kind, g)], perm=[0, 2, 3, 1])]


def into_conv(kind: str, group: int, g: Graph) -> list[Tensor]:
    weights = g.weights((16, 16 // group, 3, 3), scale=0.2)
    return [g.one("Conv", [masked(kind, g), weights], pads=[1] * 4, group=group)]


for kind in ("where", "cast"):
    case(f"{kind}_transpose", partial(into_transpose, kind))
for kind in ("where", "cast", "not", "and"):
    case(f"{kind}_conv", partial(into_conv, kind, 1))
    case(f"{kind}_depthwise", partial(into_conv, kind, 16))


# ---- Not compiled: a tile that straddles a group ("Cannot unroll non-constant loop") ------------


def grouped(size: int, g: Graph) -> list[Tensor]:
    return [g.one("Conv", [picture(g, 272, size), g.weights((272, 68, 1, 1), scale=0.1)], group=4)]


for size in (7, 14):
    case(f"group_272_{size}", partial(grouped, size))


# ---- Not compiled: the head of a face detector in textures ("undefined.size() == 0") -------------


def box_head(channels: int, numbers: int, size: int, g: Graph) -> list[Tensor]:
    x = picture(g, 8, size)
    y = g.one("Conv", [x, g.weights((channels, 8, 1, 1), scale=0.3)])
    y = g.one("Transpose", [y], perm=[0, 2, 3, 1])
    return [g.one("Reshape", [y, integers(g, 1, -1, numbers)])]


for channels, numbers, size in ((12, 4, 16), (12, 3, 8), (24, 4, 10), (6, 2, 20)):
    case(f"box_head_{channels}_{numbers}_{size}", partial(box_head, channels, numbers, size))


# ---- A division by zero inside TVM; a store of a single channel of a texel ---------------------


def grid_sample_extent_1(g: Graph) -> list[Tensor]:
    grid = g.weights((1, 5, 5, 2), scale=0.5)
    attributes = {"padding_mode": "reflection", "align_corners": 1}
    return [g.one("GridSample", [g.input([1, 4, 1, 8]), grid], **attributes)]


def shrink_reduce_5d(g: Graph) -> list[Tensor]:
    y = g.one("Shrink", [g.input([3, 4, 4, 7, 4])], lambd=0.4)
    y = g.one("Add", [g.one("Abs", [y]), g.constant(np.float32(0.1))])
    return [g.one("ReduceLogSum", [y, integers(g, 1)])]


def affine_grid(axes: int, g: Graph) -> list[Tensor]:
    """A grid with an extent of 1 and aligned corners did not compile; centres were not zero."""
    theta = g.input([2, axes, axes + 1])
    return [g.one("AffineGrid", [theta, integers(g, 2, 1, *[1, 5, 6][:axes])], align_corners=1)]


case("affine_grid_2d", partial(affine_grid, 2), opset=20)
case("affine_grid_3d", partial(affine_grid, 3), opset=20)
case("grid_sample_extent_1", grid_sample_extent_1)
case("shrink_reduce_5d", shrink_reduce_5d, opset=20)


# ---- NaN and infinities that became numbers ------------------------------------------------------


def special(g: Graph, shape: Sequence[int] = (1, 16, 8, 8)) -> Tensor:
    """Return an input with NaN and infinities."""
    g.kind = "special"
    return g.input(shape)


def nan_unary(op_type: str, g: Graph) -> list[Tensor]:
    return [g.one(op_type, [special(g)])]


def nan_binary(op_type: str, g: Graph) -> list[Tensor]:
    x = special(g)
    return [g.one(op_type, [x, g.weights(x.shape)])]


def nan_clip(g: Graph) -> list[Tensor]:
    return [g.one("Clip", [special(g), *(g.constant(np.float32(v)) for v in (0, 6))])]


def nan_pow(g: Graph) -> list[Tensor]:
    return [g.one("Pow", [special(g), g.constant(np.float32(0.5))])]


for op_type in ("Relu", "Sign", "Elu", "Selu", "Celu", "HardSigmoid"):
    case(f"nan_{op_type.lower()}", partial(nan_unary, op_type))
for op_type in ("Max", "Min"):
    case(f"nan_{op_type.lower()}", partial(nan_binary, op_type))


def one_or_the_other(first: str, second: str, g: Graph) -> list[Tensor]:
    """Two comparisons that are false for NaN: TVM folded their `or` to true, or to `x != 1`."""
    x, one = special(g), g.constant(np.float32(1))
    return [g.one("Or", [g.one(first, [x, one]), g.one(second, [x, one])])]


def choice_less_itself(g: Graph) -> list[Tensor]:
    """``where(x < 0, 0, x) - x`` was folded to 0 where x is positive, also for infinity."""
    x, zero = special(g), g.constant(np.float32(0))
    return [g.one("Sub", [g.one("Where", [g.one("Less", [x, zero]), zero, x]), x])]


def sum_less_summand(g: Graph) -> list[Tensor]:
    """``x + y - x`` was simplified to y, also if x is infinite."""
    x = special(g)
    return [g.one("Sub", [g.one("Add", [x, g.weights(x.shape)]), x])]


case("nan_clip", nan_clip)
case("nan_pow", nan_pow)
case("nan_or_less", partial(one_or_the_other, "Less", "GreaterOrEqual"))
case("nan_or_greater", partial(one_or_the_other, "Less", "Greater"))
# Such models were refused: ONNX has no shape inference for these operators before set 16.
case("or_equal_before_16", partial(one_or_the_other, "LessOrEqual", "GreaterOrEqual"), opset=13)
case("choice_less_itself", choice_less_itself)
case("sum_less_summand", sum_less_summand)


def last_of_nothing(op_type: str, limit: float, g: Graph) -> list[Tensor]:
    """With ``select_last_index``, a NaN was taken for the infinity of the other elements."""
    rows = np.full((1, 5, 4, 3), np.nan, np.float32)
    rows[:, 1, 0], rows[:, 2, 1], rows[:, 3, 0], rows[:, 3, 2] = limit, limit, limit, 1
    x = g.fed(g.constant(rows))
    return [g.one(op_type, [x], axis=2, select_last_index=1)]


case("last_of_nothing_max", partial(last_of_nothing, "ArgMax", -np.inf))
case("last_of_nothing_min", partial(last_of_nothing, "ArgMin", np.inf))


def small(op_type: str, g: Graph) -> list[Tensor]:
    """The hyperbolic tangent of 10^-9 was 0 on CPUs: ``exp(x) - 1`` lost all digits."""
    return [g.one(op_type, [g.one("Mul", [convolved(g), g.constant(np.float32(1e-9))])])]


case("small_tanh", partial(small, "Tanh"))
case("small_atanh", partial(small, "Atanh"))


# ---- Intermediate results of an operator that do not fit half precision ------------------------


def large(op_type: str, g: Graph, **attributes: Any) -> list[Tensor]:
    """Squares beyond 65504 between two kernels: norms were infinite, and quotients by them 0."""
    x = g.one("Mul", [convolved(g), g.constant(np.float32(300))])
    return [g.one(op_type, [x], **attributes)]


def sums_that_cancel(g: Graph) -> list[Tensor]:
    """Partial running sums were stored in 16 bits: off by 2^-11 of the largest of them."""
    return [g.one("CumSum", [g.input([1, 30, 5, 5]), g.constant(np.int64(1))])]


case("sums_that_cancel", sums_that_cancel)
case("large_l2_norm", partial(large, "LpNormalization", axis=1, p=2))
case("large_lp_pool", partial(large, "GlobalLpPool", p=2))
case("large_reduce_l2", partial(large, "ReduceL2", axes=[1]))


def gather_nd(g: Graph) -> list[Tensor]:
    """A macro repeated the text of sixteen indices sixteen times: drivers compiled for minutes."""
    indices = g.constant(np.array([[-1], [-1], [-1]], np.int64))
    y = g.one("GatherND", [convolved(g), indices])
    return [g.one("LeakyRelu", [y], alpha=0.25)]


case("gather_nd_in_half", gather_nd)


def bytes_between(g: Graph) -> list[Tensor]:
    """Unaligned vectors of four bytes were read as one integer, which OpenCL C broadcasts."""
    x = g.input([1, 60, 6, 5], "uint8")
    y = g.cast(g.one("Slice", [x, integers(g, 2), integers(g, 6), integers(g, 2)]), "float32")
    return [g.one("Conv", [y, g.weights((60, 1, 3, 3))], group=60, pads=[1] * 4)]


case("bytes_between", bytes_between)


def masks_concatenated(g: Graph) -> list[Tensor]:
    """A choice between masks had no type in OpenCL C: drivers refused the kernel."""
    mask = g.one("Greater", [g.input([2, 60, 6, 6]), g.constant(np.float32(0))])
    return [g.cast(g.one("Concat", [mask, mask, mask], axis=-2), "float32")]


case("masks_concatenated", masks_concatenated)


def bytes_transposed(g: Graph) -> list[Tensor]:
    """A work-group read local memory before all items had written it: a barrier was missing."""
    x = g.input([1, 30, 7, 8], "uint8")
    return [g.cast(g.one("Transpose", [x], perm=[0, 2, 3, 1]), "float32")]


case("bytes_transposed", bytes_transposed)


# ---- Limits and constants of other dtypes -----------------------------------------------------


def of_dtype(dtype: str, op_type: str, g: Graph) -> list[Tensor]:
    """Constants were wrong: -1 in uint8, half a bias in uint16, limits of fp32 in float64."""
    x = g.cast(g.one("Abs", [picture(g)]), dtype)
    limits = [g.constant(np.float64(v)) for v in (0.1, 0.7)] if op_type == "Clip" else []
    return [g.one(op_type, [x, *limits], **({"bias": 0.5} if op_type == "Shrink" else {}))]


case("sign_of_uint8", partial(of_dtype, "uint8", "Sign"))
case("shrink_of_uint16", partial(of_dtype, "uint16", "Shrink"))
case("clip_of_float64", partial(of_dtype, "float64", "Clip"))


def zeros_quantized(g: Graph) -> list[Tensor]:
    """The scale of a tensor of zeros was zero; in ONNX Runtime it is one."""
    zeros = g.one("Mul", [picture(g), g.constant(np.float32(0))])
    return list(g.node("DynamicQuantizeLinear", [g.one("Abs", [zeros])], 3))


case("zeros_quantized", zeros_quantized)


def infinities_beside_taps(g: Graph) -> list[Tensor]:
    """Products with zeros between the taps of a dilated kernel turned infinities into NaN."""
    x = g.input([1, 6, 9])
    x = g.one("Log", [g.one("Relu", [x])])
    w = g.weights((6, 5, 3))
    return [g.one("ConvTranspose", [x, w], dilations=[2], strides=[2], pads=[2, 1])]


case("infinities_beside_taps", infinities_beside_taps)


# ---- Rounding to 16 bits before a comparison, and operands that are zero ------------------------


def unpooled(g: Graph) -> list[Tensor]:
    """Maxima in 16 bits were compared with elements in 32 bits: none was equal."""
    x = g.fed(g.constant(g.rng.standard_normal((3, 3, 1, 6)).astype(np.float32)))
    window: dict[str, Any] = {"kernel_shape": [1, 2], "strides": [1, 2]}
    return [g.one("MaxUnpool", list(g.node("MaxPool", [x], 2, **window)), **window)]


def scalars(op_type: str, g: Graph) -> list[Tensor]:
    """A scalar times zero was zero for NaN, too; a scalar divided by zero was refused."""
    x = g.fed(g.constant(np.float32(np.nan)))
    return [g.one(op_type, [x, g.constant(np.float32(0))])]


def nothing_counts(g: Graph) -> list[Tensor]:
    """The loss of labels that are all ignored is 0 / 0, which TVM did not evaluate."""
    labels = g.constant(np.zeros((1, 36), np.int64))
    x = g.one("Reshape", [convolved(g, channels=1), integers(g, 1, 1, 64)])
    x = g.one("Slice", [x, integers(g, 0), integers(g, 36), integers(g, 2)])
    weights = g.constant(np.array([1.3], np.float32))
    return [g.one("SoftmaxCrossEntropyLoss", [x, labels, weights], ignore_index=0)]


def places(g: Graph) -> list[Tensor]:
    """Integers that are kept as floats were rounded to 16 bits between two kernels."""
    x = g.fed(g.constant(g.rng.permutation(15000)[None, :300]))
    x = g.one("Cast", [x], to=1)
    last = g.one("ReduceMax", [x], axes=[1])
    row = g.one("Floor", [g.one("Div", [g.one("Sub", [last, x]), g.constant(np.float32(80))])])
    return [g.one("Cast", [row], to=7), g.one("ArgMax", [row], axis=1)]


def counted(g: Graph) -> list[Tensor]:
    """Counts of true elements were rounded to 16 bits between two kernels."""
    mask = g.one("Greater", [g.input([1, 5000]), g.constant(np.float32(-2.5))])
    number = g.one("CumSum", [g.one("Cast", [mask], to=1), g.constant(np.int64(1))])
    left = g.one("Sub", [g.one("ReduceMax", [number], axes=[1]), number])
    return [g.one("Cast", [left], to=7)]


def one_where_it_holds(g: Graph) -> list[Tensor]:
    """A nested `Select` on the same condition got a scalar true, which OpenCL C took for false."""
    x = g.one("Conv", [g.input([3, 3, 4, 4]), g.weights((16, 3, 1, 1))])
    mask = g.one("GreaterOrEqual", [x, g.weights((3, 1, 4, 1))])
    return [g.one("LeakyRelu", [g.one("Cast", [mask], to=1)], alpha=0.25)]


def palette(g: Graph) -> list[Tensor]:
    """TVM computed ArgMax's indices in 32 bits, as their bounds allow, but shifted them by 62."""
    labels = g.one("ArgMax", [convolved(g)], axis=1, keepdims=0)
    return [g.one("Gather", [g.weights((64, 3)), labels])]


def scattered_beside(g: Graph) -> list[Tensor]:
    """Indices shorter than the data along an axis that is not scattered wrote to wrong elements."""
    index = g.constant(np.broadcast_to(np.array([1, 3]), (1, 8, 4, 2)).copy())
    x = g.one("ScatterElements", [convolved(g, 16), index, g.weights((1, 8, 4, 2))], axis=3)
    return [g.one("Relu", [x])]


def scattered_rows(g: Graph) -> list[Tensor]:
    """ScatterND, which writes single elements, got a texture for data of five axes."""
    x = g.input([1, 2, 2, 4, 4])
    x = g.one("ScatterND", [x, g.constant(np.zeros((1, 2), np.int64)), g.weights((1, 2, 4, 4))])
    x = g.one("Reshape", [x, integers(g, 1, 4, 4, 4)])
    return [g.one("Conv", [x, g.weights((5, 4, 1, 1))])]


case("palette", palette)
case("scattered_beside", scattered_beside, 18)
case("scattered_rows", scattered_rows, 18)
case("one_where_it_holds", one_where_it_holds)
case("unpooled", unpooled)
case("places", places)
case("counted", counted)
case("scalar_times_zero", partial(scalars, "Mul"))
case("scalar_by_zero", partial(scalars, "Div"))
case("nothing_counts", nothing_counts)
