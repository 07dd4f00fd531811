"""Running sums for OpenCL and CUDA, in steps of doubling distance.

TVM's kernel counts on 32 threads that run in step, which OpenCL does not promise, nor CUDA since
compute capability 7.0; sums of more than 16 elements are wrong where they do not.  Here each step
is a kernel of its own, right on any device::

    y1[i] = x[i] + x[i - 1]        y2[i] = y1[i] + y1[i - 2]        y3[i] = y2[i] + y2[i - 4]
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, relax, te, tirx
from tvm.ir import Call

from ..ir.passes import module_pass
from ..ir.rewriter import Rewriter, op_name, shape_of

#: TVM's pattern of functions that are not fused: inlined into each other, steps would double
#: what they read.
_OPAQUE = 8
#: Attribute of functions whose results are parts of sums, and stay in fp32 whatever is stored.
PARTIAL = "tvmflow.partial"


@module_pass("ReplaceScans")
def ReplaceScans(mod: IRModule) -> IRModule:  # noqa: N802
    """Replace running sums along an axis; a module without any stays as it is."""
    found: list[Any] = []
    tvm_ffi.structural_walk(mod["main"], (Call, found.append))
    return _Scans(mod).run() if any(_is_scan(call) for call in found) else mod


def _is_scan(call: Any) -> bool:
    return op_name(call) == "relax.cumsum" and call.attrs.axis is not None


class _Scans(Rewriter):
    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        if not _is_scan(value):
            return super().rewrite(var, value)
        shape, dtype = shape_of(value), str(value.ty.dtype)
        axis = int(value.attrs.axis) % len(shape)
        x = self.substitute(value.args[0])
        if str(value.args[0].ty.dtype) != dtype:
            x = self.bb.emit(relax.op.astype(x, dtype))
        distance = 1
        if value.attrs.exclusive:
            x = self.bb.emit(self._shifted(x, axis, 1, add=False))
        while distance < shape[axis]:
            last = 2 * distance >= shape[axis]
            x = self.bb.emit(self._shifted(x, axis, distance, add=True, partial=not last))
            distance *= 2
        return x

    def _shifted(
        self, x: relax.Expr, axis: int, distance: int, *, add: bool, partial: bool = False
    ) -> relax.Call:
        """``x[i - distance]``, or the sum of ``x[i]`` and that."""

        def step(data: te.Tensor) -> te.Tensor:
            def body(*index: Any) -> Any:
                place = list(index)
                place[axis] = index[axis] - distance
                earlier = tirx.if_then_else(
                    index[axis] >= distance, data(*place), tirx.const(0, data.dtype)
                )
                return data(*index) + earlier if add else earlier

            return te.compute(data.shape, body, name="running_sum")

        attributes = {"op_pattern": _OPAQUE, **({PARTIAL: True} if partial else {})}
        return self.bb.call_te(step, x, primfunc_name_hint="running_sum", primfunc_attrs=attributes)
