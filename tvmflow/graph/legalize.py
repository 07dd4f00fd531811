"""Lowering of operators to primary functions: replacements for wrong TVM lowerings, and fusion.

Before::

    lv  = R.call_tir(conv2d, (x, W))        lv1 = R.add(lv, b)      lv2 = R.clip(lv1, 0, 6)

After::

    lv2 = R.call_tir(fused_conv2d_add_clip, (x, W, b))

TVM simplifies floating-point expressions by integer rules:

- ``(a + b) - b`` becomes ``a`` and ``a - a`` becomes 0, but sums are rounded (models add and
  subtract 12582912 to round to integers), and infinity less infinity is NaN; here ``b * -1`` is
  added.
- ``a < b or b <= a`` becomes true, and ``a < b or b < a`` becomes ``a != b``, wrong for NaN; here
  truth values are combined with bitwise operators.
- ``not (a < b)`` becomes ``b <= a``, which is false for NaN just like ``a < b``; here it is a
  choice between false and true, which TVM does not simplify.

TVM also defines some operators differently:

- ``sign`` of NaN is 0 in TVM, and NaN here.
- ``argmax`` and ``argmin`` compare elements with NaN, which is not ordered.
- transposed convolutions with a dilation multiply inserted zeros of the kernel, which turn
  infinities that no tap reads into NaN; here only the taps are multiplied.
- ``max``, ``min`` and maxima of windows start from the largest finite number, which is wrong if all
  elements are infinite (a fully masked row, for example); here they start from infinity.

Running sums for OpenCL and CUDA are computed in steps of doubling distance.  TVM's kernel counts on
32 threads that run in lockstep, which neither OpenCL nor CUDA (since compute capability 7.0)
guarantees; without lockstep, sums of more than 16 elements are wrong.  Here each step is a separate
kernel, correct on any device::

    y1[i] = x[i] + x[i - 1]        y2[i] = y1[i] + y1[i - 2]        y3[i] = y2[i] + y2[i - 4]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial

import tvm
from tvm import IRModule, relax, te, tirx, topi
from tvm.ir import Call
from tvm.relax import backend, transform
from tvm.tirx import floordiv, floormod

from ..devices.target import TargetSpec
from ..errors import CompileError
from ..ir import expressions as ir
from ..ir.expressions import nodes_in
from ..ir.extremes import lowest, reducer
from ..ir.operator import FUNCTION_ATTRIBUTE
from ..ir.passes import module_pass
from ..ir.rewriter import Rewriter, ints, op_name, shape_of
from ..ir.rounding import elementwise
from ..ir.signatures import bindings_of

#: A function that emits the TIR of a call.
Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def extreme(
    x: te.Tensor, axes: Collection[int] | None, keepdims: bool, *, largest: bool
) -> te.Tensor:
    """Return TE of the maximum or minimum over some axes, or all."""
    rank = len(x.shape)
    reduced = {int(axis) % rank for axis in (range(rank) if axes is None else axes)}
    kept = [axis for axis in range(rank) if axis not in reduced]
    shape = [1 if a in reduced else x.shape[a] for a in (range(rank) if keepdims else kept)]
    reduce = reducer(largest, str(x.dtype))

    def element(*places: tirx.Var) -> tirx.Expr:
        at = dict(zip(kept, [places[a] for a in kept] if keepdims else places, strict=True))
        over = {axis: te.reduce_axis((0, x.shape[axis])) for axis in sorted(reduced)}
        return reduce(x(*[(at | over)[axis] for axis in range(rank)]), axis=list(over.values()))

    return te.compute(shape, element, name="extreme")


def position(x: te.Tensor, axis: int | None, keepdims: bool, *, largest: bool) -> te.Tensor:
    """Return TE of the position of the first extreme along an axis, as in ONNX Runtime.

    The first element is the extreme until another one exceeds it.  Comparisons with NaN are false,
    so the first element wins if it is NaN, and a later NaN never wins.
    """
    find = topi.argmax if largest else topi.argmin
    if axis is None or not str(x.dtype).startswith("float"):
        return find(x, axis, keepdims)
    along = int(axis) % len(x.shape)
    infinity = float("inf") if largest else float("-inf")
    win, lose = tirx.const(infinity, x.dtype), tirx.const(-infinity, x.dtype)
    least = tirx.const(float("-inf"), x.dtype)

    numbers = te.compute(
        x.shape,
        lambda *i: tirx.Select(x(*i) >= least, x(*i), tirx.Select(i[along] == 0, win, lose)),
        name="numbers",
    )
    return find(numbers, along, keepdims)


def _extreme(
    builder: relax.BlockBuilder, call: relax.Call, compute: Callable[..., te.Tensor], hint: str
) -> relax.Expr:
    x, axes, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
    if axes is not None:
        axes = int(axes) if compute is position else list(ints(axes))
    compute = partial(compute, largest=hint.endswith("max"))
    return builder.call_te(compute, x, axes, keepdims, primfunc_name_hint=hint)


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def element(x: tirx.Expr) -> tirx.Expr:
        # The remaining values are zero or NaN, and stay.
        rest = x if dtype.startswith("uint") else tirx.Select(x < zero, tirx.const(-1, dtype), x)
        return tirx.Select(x > zero, one, rest)

    return elementwise(builder, call, "sign", element)


def _subtract(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    whole = not str(call.ty.dtype).startswith("float")

    def element(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return a - b if whole else a + b * tirx.const(-1, call.ty.dtype)

    return elementwise(builder, call, "subtract", element)


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower max pooling in one or three dimensions; two dimensions have a schedule family."""
    attrs, rank = call.attrs, len(shape_of(call)) - 2
    window, strides, padding, dilation = map(
        ints, (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
    )

    def compute(x: te.Tensor) -> te.Tensor:
        if any(padding):
            before, after = [0, 0, *padding[:rank]], [0, 0, *padding[rank:]]
            x = topi.nn.pad(x, before, after, lowest(str(x.dtype)), name="pad")
        over = [te.reduce_axis((0, extent)) for extent in window]

        def element(*index: tirx.Var) -> tirx.Expr:
            at = [
                place * stride + step * tap
                for place, stride, step, tap in zip(index[2:], strides, dilation, over, strict=True)
            ]
            return reducer(True, str(x.dtype))(x(*index[:2], *at), axis=over)

        return te.compute(shape_of(call), element, name="max_pool")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="max_pool")


def _conv_transpose(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower dilated transposed convolutions that have no blocked form."""
    attrs = call.attrs
    strides, padding, dilation = map(ints, (attrs.strides, attrs.padding, attrs.dilation))
    if max(dilation) == 1:
        return call.op.get_attr("FLegalize")(builder, call)
    groups, dtype = int(attrs.groups), str(call.ty.dtype)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        inputs, outputs = int(x.shape[1]) // groups, int(w.shape[1])
        channel = te.reduce_axis((0, inputs), name="channel")
        taps = [te.reduce_axis((0, extent)) for extent in w.shape[2:]]

        def element(n: tirx.Var, k: tirx.Var, *place: tirx.Var) -> tirx.Expr:
            # The input's element that a tap contributes to this output, if there is one.
            steps = [
                p + before - tap * step
                for p, before, tap, step in zip(place, padding, taps, dilation, strict=False)
            ]
            at = [floordiv(v, stride) for v, stride in zip(steps, strides, strict=True)]
            there = [floormod(v, stride) == 0 for v, stride in zip(steps, strides, strict=True)]
            for source, size in zip(at, x.shape[2:], strict=True):
                there += [source >= 0, source < size]
            source = floordiv(k, outputs) * inputs + channel
            left = x(n, source, *at).astype(dtype)
            product = left * w(source, floormod(k, outputs), *taps).astype(dtype)
            spread = tirx.if_then_else(tirx.all(*there), product, tirx.const(0, dtype))
            return te.sum(spread, axis=[channel, *taps])

        return te.compute(shape_of(call), element, name="conv_transpose")

    return builder.call_te(compute, *call.args, primfunc_name_hint="conv_transpose")


_FALSE, _TRUE = tirx.const(False, "bool"), tirx.const(True, "bool")

#: Legalisations that replace TVM's, by operator.
LEGALIZE: dict[str, Legalize] = {
    "relax.sign": _sign,
    "relax.logical_not": partial(
        elementwise, name="logical_not", element=lambda x: tirx.Select(x, _FALSE, _TRUE)
    ),
    "relax.logical_or": partial(elementwise, name="logical_or", element=tirx.bitwise_or),
    "relax.subtract": _subtract,
    **{f"relax.{n}": partial(_extreme, compute=position, hint=n) for n in ("argmax", "argmin")},
    **{f"relax.{n}": partial(_extreme, compute=extreme, hint=n) for n in ("max", "min")},
    **{f"relax.nn.conv{rank}d_transpose": _conv_transpose for rank in (1, 2, 3)},
    "relax.nn.max_pool1d": _max_pool,
    "relax.nn.max_pool3d": _max_pool,
}


def not_legalized(mod: IRModule, target: TargetSpec, error: Exception) -> CompileError:
    """Return the error for the first call that TVM cannot legalise, found by trying each alone."""
    legalize = tvm.transform.Sequential(
        [backend.DispatchSampling(), backend.DispatchSortScan(), transform.LegalizeOps(LEGALIZE)]
    )
    for binding in bindings_of(mod["main"]):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        alone = relax.Function(relax.analysis.free_vars(call), call, is_pure=True)
        single = mod.clone()
        single["main"] = alone.with_attr("global_symbol", "main")
        try:
            with target.tvm_target:
                legalize(transform.Normalize()(single))
        except Exception as found:  # noqa: BLE001 (any exception is the reason that we look for)
            return CompileError(
                f"The operator {op_name(call)} of the node {binding.var.name} could not be "
                f"turned into loops: {str(found).strip().splitlines()[-1]}",
                remedy="Leave the node out of the model, or report it.",
            )
    return CompileError(
        f"Operators could not be turned into loops: {str(error).strip().splitlines()[-1]}",
        remedy="Report the model.",
    )


#: Attribute of functions whose results are partial sums, which stay in fp32 in every mode.
PARTIAL = "tvmflow.partial"


@module_pass("DecomposeCumsum")
def DecomposeCumsum(mod: IRModule) -> IRModule:  # noqa: N802
    """Replace running sums and products along an axis by steps of doubling distance."""
    found = any(_is_running(call) for call in nodes_in(mod["main"], Call))
    return _CumsumInSteps(mod).run() if found else mod


#: Neutral element and combining operation of each operator for running sums and products.
_RUNNING: dict[str, tuple[int, Callable[[tirx.Expr, tirx.Expr], tirx.Expr]]] = {
    "relax.cumsum": (0, operator.add), "relax.cumprod": (1, operator.mul),
}  # fmt: skip


def _is_running(call: relax.Expr) -> bool:
    return op_name(call) in _RUNNING and call.attrs.axis is not None


class _CumsumInSteps(Rewriter):
    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        if not _is_running(value):
            return super().rewrite(var, value)
        shape, dtype = shape_of(value), str(value.ty.dtype)
        axis = int(value.attrs.axis) % len(shape)
        x = self.substitute(value.args[0])
        if str(value.args[0].ty.dtype) != dtype:
            x = self.bb.emit(relax.op.astype(x, dtype))
        distance = 1
        name = str(op_name(value))
        if value.attrs.exclusive:
            x = self.bb.emit(self._shifted(x, axis, 1, name, joined=False))
        while distance < shape[axis]:
            last = 2 * distance >= shape[axis]
            step = self._shifted(x, axis, distance, name, joined=True, is_partial=not last)
            x = self.bb.emit(step)
            distance *= 2
        return x

    def _shifted(
        self,
        x: relax.Expr,
        axis: int,
        distance: int,
        name: str,
        *,
        joined: bool,
        is_partial: bool = False,
    ) -> relax.Call:
        """Return ``x[i - distance]``, or with ``joined`` its sum (or product) with ``x[i]``."""
        start, join = _RUNNING[name]

        def step(data: te.Tensor) -> te.Tensor:
            def body(*index: tirx.Var) -> tirx.Expr:
                place = list(index)
                place[axis] = index[axis] - distance
                earlier = tirx.if_then_else(
                    index[axis] >= distance, data(*place), tirx.const(start, data.dtype)
                )
                return join(data(*index), earlier) if joined else earlier

            return te.compute(data.shape, body, name="running_sum")

        # Fusing a step into the next one would double the reads.
        attributes = {"op_pattern": ir.OPAQUE, **({PARTIAL: True} if is_partial else {})}
        return self.bb.call_te(step, x, primfunc_name_hint="running_sum", primfunc_attrs=attributes)


@module_pass("AnnotateCustomOperators")
def AnnotateCustomOperators(mod: IRModule) -> IRModule:  # noqa: N802
    """Fuse custom operators with their neighbours.

    TVM fuses nothing into functions that it cannot classify, such as a sum with two results, and no
    function that reads several elements into a sum.  An operator with independent elements is
    inlined into its readers, also into sums; others inline their operands.
    """
    known = {kind: kind for kind in (ir.ELEMENTWISE, ir.BROADCAST, ir.PRODUCT)}
    known[ir.INJECTIVE] = ir.BROADCAST
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and FUNCTION_ATTRIBUTE in function.attrs:
            single = function.attrs[FUNCTION_ATTRIBUTE] == 1
            kind = int(function.attrs["op_pattern"])
            pattern = known.get(kind, ir.REDUCTION) if single else ir.REDUCTION
            result[name] = function.with_attr("op_pattern", pattern)
    return result
