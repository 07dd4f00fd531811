"""How single operators are rewritten to the blocked layout.

A rule gets the pass and the old call.  It returns a :class:`Result`, or ``None``
to decline: the operator then reads and writes plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

from ..graph.rewriter import constant_array, op_name, shape_of
from ..schedules import conv2d, dense, depthwise, pooling, softmax
from . import blocked

if TYPE_CHECKING:
    from .layout import LayoutPass

#: ``op_pattern`` of a function that elementwise consumers may be fused into.
OUT_ELEMWISE_FUSABLE = 4


@dataclass(frozen=True)
class Result:
    """What a call became, and whether that is in the blocked layout."""

    expr: relax.Expr
    is_blocked: bool


Rule = Callable[["LayoutPass", relax.Call], "Result | None"]


def _ints(values: object) -> tuple[int, ...]:
    return tuple(int(v) for v in values)  # type: ignore[attr-defined]


def conv2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Direct and depthwise convolution with constant weights."""
    attrs, block = call.attrs, layout.block
    x, weight = call.args[0], constant_array(call.args[1])
    if weight is None or attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW":
        return None
    outputs, inputs = weight.shape[:2]
    groups = int(attrs.groups)
    window = {
        "strides": _ints(attrs.strides),
        "padding": _ints(attrs.padding),
        "dilation": _ints(attrs.dilation),
    }
    if groups > 1 and inputs == 1 and outputs == groups:
        expr = layout.bb.emit_te(
            depthwise.compute,
            layout.blocked(x),
            layout.constant(blocked.depthwise_weight(weight, block)),
            **window,
            primfunc_name_hint="depthwise",
            primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
        )
        return Result(expr, True)
    if groups > 1 and (outputs // groups) % block:
        return None
    # A few channels would leave most lanes empty: such an input is read in its plain layout.
    read_plain = inputs <= block // 4 and not layout.is_blocked(x)
    source = layout.substitute(x) if read_plain else layout.blocked(x)
    expr = layout.bb.emit_te(
        conv2d.compute,
        source,
        layout.constant(blocked.conv_weight(weight, block)),
        **window,
        groups=groups,
        primfunc_name_hint="conv2d",
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


def pool2d_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Max and average pooling."""
    attrs = call.attrs
    if attrs.layout != "NCHW" or not str(call.ty.dtype).startswith("float"):
        return None
    expr = layout.bb.emit_te(
        pooling.compute,
        layout.blocked(call.args[0]),
        kind="max" if op_name(call) == "relax.nn.max_pool2d" else "avg",
        window=_ints(attrs.pool_size),
        strides=_ints(attrs.strides),
        padding=_ints(attrs.padding),
        dilation=_ints(attrs.dilation),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
        primfunc_name_hint="pool",
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, True)


def unary_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Elementwise operators of one tensor (further arguments are scalars or attributes)."""
    x = call.args[0]
    if not layout.is_blocked(x):
        return None
    return Result(relax.Call(call.op, [layout.blocked(x), *call.args[1:]], call.attrs), True)


def binary_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Elementwise operators of two tensors, with broadcasting of constants and maps."""
    if not any(layout.is_blocked(a) for a in call.args):
        return None
    operands = []
    for arg in call.args:
        operand = _broadcast_operand(layout, arg, shape_of(call))
        if operand is None:
            return None
        operands.append(operand)
    return Result(relax.Call(call.op, operands, call.attrs), True)


def _broadcast_operand(
    layout: LayoutPass, arg: relax.Expr, shape: tuple[int, ...]
) -> relax.Expr | None:
    """``arg`` in a form that broadcasts to the blocked form of ``shape``, or ``None``."""
    array = constant_array(arg)
    if array is not None:
        if array.size == 1:
            return layout.constant(array.reshape(()))
        if array.ndim > 4:
            return None
        return layout.blocked(layout.constant(array.reshape((1,) * (4 - array.ndim) + array.shape)))
    own = shape_of(arg)
    if len(own) != 4 or own[1] != shape[1]:
        return None
    return layout.blocked(arg)


def spatial_reduction_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Reductions over height and width that keep the axes (global pooling)."""
    x, attrs = call.args[0], call.attrs
    if not layout.is_blocked(x) or not attrs.keepdims or attrs.axis is None:
        return None
    if sorted(a % 4 for a in _ints(attrs.axis)) != [2, 3]:
        return None
    return Result(relax.Call(call.op, [layout.blocked(x)], attrs), True)


def concat_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Concatenation of channels whose seams fall between blocks, or of other axes."""
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    if not fields or not all(layout.is_blocked(f) for f in fields):
        return None
    axis = int(call.attrs.axis) % 4
    if axis == 1 and any(shape_of(f)[1] % layout.block for f in fields[:-1]):
        return None
    parts = relax.Tuple([layout.blocked(f) for f in fields])
    return Result(relax.op.concat(parts, axis), True)


def matmul_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """A product with constant weights (packed) or large ones (``[K, N]`` or ``[N, K]``)."""
    x, weight = call.args
    if len(shape_of(x)) != 2 or len(shape_of(weight)) != 2:
        return None
    if str(call.ty.dtype) != "float32":
        return None
    array = constant_array(weight)
    attrs = {"op_pattern": OUT_ELEMWISE_FUSABLE}
    if array is not None:
        packed = layout.constant(blocked.dense_weight(array, layout.block))
        expr = layout.bb.emit_te(
            dense.compute_packed,
            layout.substitute(x),
            packed,
            array.shape[1],
            primfunc_name_hint="dense",
            primfunc_attrs=attrs,
        )
        return Result(expr, False)
    rows = layout.transposed_parameter(weight)
    if rows is None and not layout.is_parameter(weight):
        return None
    expr = layout.bb.emit_te(
        dense.compute_columns if rows is None else dense.compute_rows,
        layout.substitute(x),
        layout.substitute(weight) if rows is None else rows,
        layout.block,
        primfunc_name_hint="dense",
        primfunc_attrs=attrs,
    )
    return Result(expr, False)


def softmax_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Softmax and log-softmax of plain tensors, as one function with its own schedule."""
    if not str(call.ty.dtype).startswith("float"):
        return None
    expr = layout.bb.emit_te(
        softmax.compute,
        layout.substitute(call.args[0]),
        int(call.attrs.axis) % len(shape_of(call)),
        op_name(call) == "relax.nn.log_softmax",
        primfunc_name_hint="softmax",
        # Opaque to fusion: the row's statistics belong to this function alone.
        primfunc_attrs={"op_pattern": 8},
    )
    return Result(expr, False)


_UNARY = (
    "nn.relu nn.leakyrelu nn.gelu nn.gelu_tanh nn.silu nn.softplus clip sigmoid tanh exp sqrt "
    "rsqrt abs negative erf log floor ceil round square sin cos"
)
_BINARY = "add subtract multiply divide maximum minimum power"
_REDUCTION = "mean sum max min"

RULES: dict[str, Rule] = {
    "relax.nn.conv2d": conv2d_rule,
    "relax.nn.max_pool2d": pool2d_rule,
    "relax.nn.avg_pool2d": pool2d_rule,
    "relax.concat": concat_rule,
    "relax.matmul": matmul_rule,
    "relax.nn.softmax": softmax_rule,
    "relax.nn.log_softmax": softmax_rule,
    **{f"relax.{name}": unary_rule for name in _UNARY.split()},
    **{f"relax.{name}": binary_rule for name in _BINARY.split()},
    **{f"relax.{name}": spatial_reduction_rule for name in _REDUCTION.split()},
}
