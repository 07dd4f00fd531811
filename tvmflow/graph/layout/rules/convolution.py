"""Rules for convolutions and pooling."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from tvm import relax

from ....devices.choices import GEMM, WINOGRAD
from ....ir import blocked
from ....ir.expressions import OPAQUE
from ....ir.rewriter import constant_array, ints, op_name, shape_of
from ....schedules import conv2d, conv2d_transpose, depthwise, gemm, grouped, pooling, winograd
from ..algorithms import Convolution
from ..layout import LayoutPass, Result, is_float, rule
from ..quantized import quantized


@rule("relax.nn.conv2d")
def conv2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite direct, grouped and depthwise convolutions with constant weights."""
    attrs, block = call.attrs, layout.block
    x, weight = call.args[0], constant_array(call.args[1])
    if weight is None or attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW":
        return None
    outputs, inputs = weight.shape[:2]
    groups = int(attrs.groups)
    padded = any(ints(attrs.padding))
    of_one_filter = groups > 1 and inputs == 1 and outputs == groups
    # Lanes of one vector read different channels, of which no four are adjacent.
    mixed = groups > 1 and not of_one_filter and bool((outputs // groups) % block)
    spread = mixed and layout.device.is_cpu and _is_better_spread(outputs // groups, block)
    if spread:
        weight, mixed = blocked.spread_groups(weight, groups, block), False
    dots = not of_one_filter and not mixed and (groups == 1 or inputs % 4 == 0)
    integers = quantized(layout, x, weight, (1, 2, 3), dots=dots, staged=not padded)
    if integers is not None:
        x, weight = integers.source, integers.weight
    elif weight.dtype.kind == "f":  # Winograd's transforms and products of matrices are in floats.
        algorithm = layout.algorithm(Convolution.of(call), weight.dtype)
        if algorithm in WINOGRAD:
            return _winograd(layout, call, weight, WINOGRAD[algorithm])
        if algorithm == GEMM:
            return _gemm(layout, call, weight)
    options = _windows(attrs)
    options["sums"] = layout.sums(call, int(inputs * weight[0, 0].size), weight)
    name, family = ("grouped", grouped) if mixed else ("conv2d", conv2d)
    arguments = [outputs] if mixed else []
    if of_one_filter:
        name, family = "depthwise", depthwise
        packed_weight = blocked.split_axis(weight[:, 0], 0, block)
    else:
        options["groups"] = groups
        packed_weight = blocked.split_axis(weight, 0, block)
    compute = family.compute if integers is None else integers.integers.around(family.compute)
    packed = layout.constant(packed_weight)
    # A few channels would leave most lanes empty, so such an input is read in its plain layout.
    read_plain = name == "conv2d" and inputs <= block // 4
    source = layout.existing(x) if read_plain else layout.blocked(x)
    expr = layout.emit(name, compute, source, packed, *arguments, **options)
    if integers is not None and integers.excess is not None:
        excess = blocked.block_constant(integers.excess.reshape(1, -1, 1, 1), block)
        expr = relax.op.subtract(expr, layout.constant(excess))
    if spread:
        source, each = layout.bb.emit(expr), outputs // groups
        expr = layout.emit("close_gaps", blocked.close_gaps, source, groups, each, pattern=None)
    return Result(expr, True)


def _is_better_spread(outputs: int, block: int) -> bool:
    """Return whether padding groups to whole vectors takes at most two thirds of the vectors.

    Without padding, vectors are runs of lanes of one group; with it, `close_gaps` removes the
    padding lanes afterwards.
    """
    vectors = blocked.blocks_of(outputs, block)
    return 2 * outputs > 3 * vectors * gcd(outputs, block)


def _windows(attrs: Any) -> dict[str, Any]:
    return {name: ints(getattr(attrs, name)) for name in ("strides", "padding", "dilation")}


def _gemm(layout: LayoutPass, call: relax.Call, weight: np.ndarray) -> Result:
    """Emit the product of a matrix of the picture's windows and a matrix of the weights."""
    outputs, inputs, *kernel = weight.shape
    block = layout.block
    depth = gemm.padded_depth(kernel[0] * kernel[1] * blocked.blocks_of(inputs, block) * block)
    columns = gemm.padded(blocked.blocks_of(outputs, block) * block)
    source = layout.blocked(call.args[0])
    return layout.emit_blocked(
        "conv2d",
        gemm.compute_conv,
        source,
        layout.constant(blocked.gemm_weight(weight, block, depth, columns)),
        channels=inputs,
        outputs=outputs,
        kernel=tuple(kernel),
        half=layout.half or weight.dtype.itemsize == 2,
        zero_lanes=source in layout.zero_lanes,
        **_windows(call.attrs),
    )


def _winograd(layout: LayoutPass, call: relax.Call, weight: np.ndarray, outputs: int) -> Result:
    """Emit Winograd's three functions; only elementwise operators after the last are fused."""
    hint, (height, width) = layout.bb.hint, shape_of(call)[2:]
    tiles = layout.emit(
        winograd.Input.NAME, winograd.compute_input, layout.blocked(call.args[0]),
        outputs=outputs, padding=ints(call.attrs.padding),
        name_hint=f"{hint}_tiles", pattern=OPAQUE,
    )  # fmt: skip
    packed = blocked.winograd_weight(winograd.transformed_weight(weight, outputs), layout.block)
    products = layout.emit(
        winograd.Product.NAME, winograd.compute_product, tiles, layout.constant(packed),
        name_hint=f"{hint}_products", pattern=OPAQUE,
    )  # fmt: skip
    return layout.emit_blocked(
        winograd.Output.NAME, winograd.compute_output, products,
        outputs=outputs, height=height, width=width,
    )  # fmt: skip


@rule("relax.nn.conv2d_transpose")
def conv2d_transpose_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite transposed convolutions with constant weights, grouped or not."""
    attrs, block = call.attrs, layout.block
    weight = constant_array(call.args[1])
    if weight is None or attrs.data_layout != "NCHW" or attrs.kernel_layout != "IOHW":
        return None
    groups, kernel, windows = int(attrs.groups), ints(weight.shape[2:]), _windows(attrs)
    taps = conv2d_transpose.whole_periods
    rows, columns = map(taps, kernel, windows["strides"], windows["dilation"])
    packed = blocked.transposed_weight(weight, groups, (rows, columns), block)
    products = int(weight.shape[0] // groups * weight[0, 0].size)
    return layout.emit_blocked(
        "conv2d_transpose",
        conv2d_transpose.compute,
        layout.blocked(call.args[0]),
        layout.constant(packed),
        groups * weight.shape[1],
        kernel=kernel,
        output_padding=ints(attrs.output_padding),
        groups=groups,
        sums=layout.sums(call, products, weight.swapaxes(0, 1)),
        **windows,
    )


@rule("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
def pool2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite max and average pooling."""
    attrs = call.attrs
    if attrs.layout != "NCHW" or not is_float(call):
        return None
    kind = "max" if op_name(call) == "relax.nn.max_pool2d" else "avg"
    window = ints(attrs.pool_size)
    return layout.emit_blocked(
        "pool",
        pooling.compute,
        layout.blocked(call.args[0]),
        kind=kind,
        window=window,
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
        sums=layout.sums(call, window[0] * window[1]) if kind == "avg" else None,
        **_windows(attrs),
    )
