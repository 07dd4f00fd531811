"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from ....devices.choices import GEMM, WINOGRAD
from ....ir import blocked
from ....ir.rewriter import constant_array, op_name, shape_of
from ....schedules import (
    conv2d,
    conv2d_transpose,
    depthwise,
    gemm,
    grouped,
    pooling,
    winograd,
)
from ..algorithms import Convolution
from .quantized import quantized
from .result import OPAQUE, OUT_ELEMWISE_FUSABLE, Result, Rule, ints, is_float

if TYPE_CHECKING:
    from ..layout import LayoutPass


def _unchanged(compute: Callable[..., Any]) -> Callable[..., Any]:
    return compute


def conv2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Direct, grouped and depthwise convolution with constant weights."""
    attrs, block = call.attrs, layout.block
    x, weight = call.args[0], constant_array(call.args[1])
    if weight is None or attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW":
        return None
    outputs, inputs = weight.shape[:2]
    groups = int(attrs.groups)
    padded = any(ints(attrs.padding))
    of_one_filter = groups > 1 and inputs == 1 and outputs == groups
    # Lanes of one vector read different channels: no four of them lie side by side.
    mixed = groups > 1 and bool((outputs // groups) % block)
    dots = not of_one_filter and not mixed and (groups == 1 or inputs % 4 == 0)
    integers = quantized(layout, x, weight, (1, 2, 3), dots=dots, staged=not padded)
    around = _unchanged
    if integers is not None:
        x, weight, around = integers.source, integers.weight, integers.integers.around
    else:
        algorithm = layout.algorithm(Convolution.of(call), weight.dtype)
        if algorithm in WINOGRAD:
            return _winograd(layout, call, weight, WINOGRAD[algorithm])
        if algorithm == GEMM:
            return _gemm(layout, call, weight)
    options = {
        "strides": ints(attrs.strides),
        "padding": ints(attrs.padding),
        "dilation": ints(attrs.dilation),
        "sums": layout.sums(call, int(inputs * weight[0, 0].size), weight),
        "primfunc_attrs": {"op_pattern": OUT_ELEMWISE_FUSABLE},
    }
    if of_one_filter:
        expr = layout.bb.emit_te(
            around(depthwise.compute),
            layout.blocked(x),
            layout.constant(blocked.depthwise_weight(weight, block)),
            **options,
            primfunc_name_hint="depthwise",
        )
        return Result(expr, True)
    packed = layout.constant(blocked.conv_weight(weight, block))
    if mixed:
        expr = layout.bb.emit_te(
            around(grouped.compute),
            layout.blocked(x),
            packed,
            outputs,
            **options,
            groups=groups,
            primfunc_name_hint="grouped",
        )
        return Result(expr, True)
    # A few channels would leave most lanes empty: such an input is read in its plain layout.
    read_plain = inputs <= block // 4 and not layout.is_blocked(x)
    expr = layout.bb.emit_te(
        around(conv2d.compute),
        layout.substitute(x) if read_plain else layout.blocked(x),
        packed,
        **options,
        groups=groups,
        primfunc_name_hint="conv2d",
    )
    if integers is not None and integers.excess is not None:
        excess = blocked.block_constant(integers.excess.reshape(1, -1, 1, 1), block)
        expr = relax.op.subtract(expr, layout.constant(excess))
    return Result(expr, True)


def _gemm(layout: LayoutPass, call: relax.Call, weight: np.ndarray) -> Result:
    """The product of a matrix of the picture's windows with one of the weights."""
    outputs, inputs, *kernel = weight.shape
    block = layout.block
    depth = gemm.padded_depth(kernel[0] * kernel[1] * blocked.blocks_of(inputs, block) * block)
    columns = gemm.padded(blocked.blocks_of(outputs, block) * block)
    expr = layout.bb.emit_te(
        gemm.compute_conv,
        layout.blocked(call.args[0]),
        layout.constant(blocked.gemm_weight(weight, block, depth, columns)),
        channels=inputs,
        outputs=outputs,
        kernel=tuple(kernel),
        strides=ints(call.attrs.strides),
        padding=ints(call.attrs.padding),
        dilation=ints(call.attrs.dilation),
        half=layout.half or weight.dtype.itemsize == 2,
        primfunc_name_hint="conv2d",
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


def _winograd(layout: LayoutPass, call: relax.Call, weight: np.ndarray, outputs: int) -> Result:
    """Three functions; only elementwise operators after the last one are fused with them."""
    tiles = layout.bb.emit_te(
        winograd.compute_input,
        layout.blocked(call.args[0]),
        outputs=outputs,
        padding=ints(call.attrs.padding),
        primfunc_name_hint=winograd.Input.NAME,
        name_hint=f"{layout.bb.hint}_tiles",
        primfunc_attrs={"op_pattern": OPAQUE},
    )
    transformed = winograd.transformed_weight(weight, outputs)
    products = layout.bb.emit_te(
        winograd.compute_product,
        tiles,
        layout.constant(blocked.winograd_weight(transformed, layout.block)),
        primfunc_name_hint=winograd.Product.NAME,
        name_hint=f"{layout.bb.hint}_products",
        primfunc_attrs={"op_pattern": OPAQUE},
    )
    height, width = shape_of(call)[2:]
    expr = layout.bb.emit_te(
        winograd.compute_output,
        products,
        outputs=outputs,
        height=height,
        width=width,
        primfunc_name_hint=winograd.Output.NAME,
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


def conv2d_transpose_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Transposed convolution with constant weights, grouped or not."""
    attrs, block = call.attrs, layout.block
    weight = constant_array(call.args[1])
    if weight is None or attrs.data_layout != "NCHW" or attrs.kernel_layout != "IOHW":
        return None
    groups, kernel = int(attrs.groups), ints(weight.shape[2:])
    strides, dilation = ints(attrs.strides), ints(attrs.dilation)
    rows, columns = (
        conv2d_transpose.whole_periods(kernel[a], strides[a], dilation[a]) for a in range(2)
    )
    packed = blocked.transposed_weight(weight, groups, (rows, columns), block)
    inputs = weight.shape[0] // groups
    expr = layout.bb.emit_te(
        conv2d_transpose.compute,
        layout.blocked(call.args[0]),
        layout.constant(packed),
        groups * weight.shape[1],
        kernel=kernel,
        strides=strides,
        padding=ints(attrs.padding),
        output_padding=ints(attrs.output_padding),
        dilation=dilation,
        groups=groups,
        sums=layout.sums(call, int(inputs * weight[0, 0].size), weight),
        primfunc_name_hint="conv2d_transpose",
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


def pool2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Max and average pooling."""
    attrs = call.attrs
    if attrs.layout != "NCHW" or not is_float(call):
        return None
    kind = "max" if op_name(call) == "relax.nn.max_pool2d" else "avg"
    window = ints(attrs.pool_size)
    expr = layout.bb.emit_te(
        pooling.compute,
        layout.blocked(call.args[0]),
        kind=kind,
        window=window,
        strides=ints(attrs.strides),
        padding=ints(attrs.padding),
        dilation=ints(attrs.dilation),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
        sums=layout.sums(call, window[0] * window[1]) if kind == "avg" else None,
        primfunc_name_hint="pool",
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


RULES: dict[str, Rule] = {
    "relax.nn.conv2d": conv2d_rule,
    "relax.nn.conv2d_transpose": conv2d_transpose_rule,
    "relax.nn.max_pool2d": pool2d_rule,
    "relax.nn.avg_pool2d": pool2d_rule,
}
