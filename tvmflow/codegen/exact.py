"""Arithmetic of fp32 that is rounded once an operation, on every target.

What becomes an integer must not depend on the device: a quotient of 24.500004 that is a few units
in the last place less becomes 24 and not 25.  OpenCL C's division may be off by 2.5 units, and
compilers take ``a * b + c`` together.  Three operators of Relax, with one of TIR behind each, do
neither:

- ``quotient(x, y)``, correctly rounded;
- ``product(x, y)``, rounded also where it is added to something;
- ``multiply_add(x, y, z)``, x * y + z rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, Op
from tvm.relax.transform.legalize_ops.common import register_legalize
from tvm.tirx.op import register_intrin_lowering

from ..ir.rewriter import constant_array

#: Prefix of the functions in kernels' source; operator and number of lanes follow.
FUNCTION = "tvmflow_exact_"
_OPERATORS = ("quotient", "product", "multiply_add")
_PURE = 1


def quotient(x: relax.Expr, y: relax.Expr) -> relax.Call:
    """x / y, correctly rounded where it is less than 2^30; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.quotient"), [x, y])


def product(x: relax.Expr, y: relax.Expr) -> relax.Call:
    """x * y, rounded whatever is done with it; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.product"), [x, y])


def multiply_add(x: relax.Expr, y: relax.Expr, z: relax.Expr) -> relax.Call:
    """x * y + z, rounded once; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.multiply_add"), [x, y, z])


def _result_type(call: relax.Call, _context: Any) -> relax.TensorType:
    shapes = [tuple(int(e) for e in argument.ty.shape) for argument in call.args]
    return relax.TensorType(np.broadcast_shapes(*shapes), "float32")


def elementwise(
    bb: relax.BlockBuilder, call: relax.Call, name: str, element: Callable[..., tirx.PrimExpr]
) -> relax.Expr:
    """Emit one function whose elements are independent; operands broadcast, numbers stay such."""
    shape = [int(e) for e in call.ty.shape]
    operands: list[Any] = []
    for argument in call.args:
        array = constant_array(argument)
        if array is not None and array.ndim == 0:
            operands.append(tirx.const(array.item(), str(array.dtype)))
        else:
            operands.append(argument)

    def compute(*tensors: Any) -> te.Tensor:
        def at(*index: Any) -> tirx.PrimExpr:
            values = [_element(t, index, shape) if isinstance(t, te.Tensor) else t for t in tensors]
            return element(*values)

        return te.compute(shape, at, name=name, tag="broadcast")

    return bb.call_te(compute, *operands, primfunc_name_hint=name)


def _legalized(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name = call.op.name.removeprefix("relax.tvmflow.")
    intrinsic = f"tirx.tvmflow_{name}"
    return elementwise(bb, call, name, partial(tirx.call_intrin, "float32", intrinsic))


def _element(tensor: te.Tensor, at: tuple[Any, ...], shape: list[int]) -> tirx.PrimExpr:
    """An operand's element for one of the result.

    Where nothing is repeated, indices are the result's, also of axes of one element: TVM then sees
    that the function is elementwise, and fuses it behind convolutions.
    """
    places = list(zip(at, shape, strict=True))[len(at) - len(tensor.shape) :]
    own = zip(places, tensor.shape, strict=True)
    return tensor(*(i if int(extent) == whole else 0 for (i, whole), extent in own))


# -- Targets ------------------------------------------------------------------------------


# LLVM divides correctly, and is not asked to fuse.
_LLVM: dict[str, Callable[..., tirx.PrimExpr]] = {
    "quotient": tirx.Div,
    "product": tirx.Mul,
    "multiply_add": lambda *operands: tirx.call_llvm_pure_intrin(
        operands[0].ty, "llvm.fma", *operands
    ),
}


def _for_llvm(name: str) -> Callable[[Call], tirx.PrimExpr]:
    return lambda call: _LLVM[name](*call.args)


def _for_opencl(name: str) -> Callable[[Call], tirx.PrimExpr]:
    def lowered(call: Call) -> tirx.PrimExpr:
        # OpenCL C has one of them itself.
        lanes = call.ty.dtype.lanes
        function = "fma" if name == "multiply_add" else f"{FUNCTION}{name}{lanes}"
        return tirx.call_pure_extern(call.ty, function, *call.args)

    return lowered


_CUDA = {"quotient": "__fdiv_rn", "product": "__fmul_rn", "multiply_add": "__fmaf_rn"}


def _for_cuda(name: str) -> Callable[[Call], tirx.PrimExpr]:
    return lambda call: tirx.call_pure_extern(call.ty, _CUDA[name], *call.args)


for _name in _OPERATORS:
    _operator = f"relax.tvmflow.{_name}"
    tvm.ir._ffi_api.RegisterOp(_operator, "Arithmetic of fp32 that is rounded once.")
    tvm.ir.register_op_attr(_operator, "FInferType", _result_type)
    tvm.ir.register_op_attr(_operator, "FPurity", True)
    register_legalize(_operator, _legalized)
    _intrinsic = f"tirx.tvmflow_{_name}"
    tvm.ir._ffi_api.RegisterOp(_intrinsic, "Arithmetic of fp32 that is rounded once.")
    tvm.ir.register_op_attr(_intrinsic, "TVectorizable", True)
    tvm.ir.register_op_attr(_intrinsic, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(_intrinsic, "TScriptPrinterName", f"tvmflow_{_name}")
    register_intrin_lowering(_intrinsic, target="llvm", f=_for_llvm(_name))
    register_intrin_lowering(_intrinsic, target="opencl", f=_for_opencl(_name))
    register_intrin_lowering(_intrinsic, target="cuda", f=_for_cuda(_name))

# In a function of its own, and without contraction, no compiler fuses a product with a sum.
_PRODUCT = """\
inline float{n} tvmflow_exact_product{w}(float{n} a, float{n} b) {{
#pragma OPENCL FP_CONTRACT OFF
  return a * b;
}}
"""

# a - q * b, exactly where q is a / b but for some units: all products of halves of the numbers (of
# 12 bits) are exact, so that it does not matter what is fused.
#
# Then the quotient: after one step of Newton's method it is the nearest number or a neighbour.  It
# moves to the next one, away from zero or towards it (t), where that is nearer: where what is left
# is more than half the distance.  In integers, as comparisons of vectors and of numbers differ.
_QUOTIENT = """\
inline float{n} tvmflow_exact_rest{w}(float{n} a, float{n} q, float{n} b) {{
#ifdef FP_FAST_FMAF
  return fma(-q, b, a);
#else
  float{n} qh = as_float{n}(as_int{n}(q) & -4096), bh = as_float{n}(as_int{n}(b) & -4096);
  float{n} ql = q - qh, bl = b - bh;
  return ((a - qh * bh) - qh * bl - ql * bh) - ql * bl;
#endif
}}
inline float{n} tvmflow_exact_quotient{w}(float{n} a, float{n} b) {{
  float{n} y = 1.0f / b, first = a * y;
  float{n} q = first + tvmflow_exact_rest{w}(a, first, b) * y;
  float{n} rest = tvmflow_exact_rest{w}(a, q, b);
  int{n} bits = as_int{n}(q);
  int{n} t = (as_int{n}(rest) ^ bits ^ as_int{n}(b)) >> 31;
  float{n} half_gap = as_float{n}((bits + t) & 0x7f800000) * 5.9604645e-8f * fabs(b);
  bits += (t | 1) & (as_int{n}(half_gap - fabs(rest)) >> 31);
  // Elsewhere than from 2^-30 to 2^30 it stays as it is, also infinite or no number.
  int{n} size = as_int{n}(first) & 0x7fffffff;
  int{n} stays = ((size - 0x30800000) | (0x4e800000 - size)) >> 31;
  return as_float{n}((bits & ~stays) | (as_int{n}(first) & stays));
}}
"""


#: Functions in OpenCL C for all that TVM vectorises by.
OPENCL = "".join(
    (
        "#ifndef TVMFLOW_EXACT\n#define TVMFLOW_EXACT\n",
        *(
            (_PRODUCT + _QUOTIENT).format(n=lanes if lanes > 1 else "", w=lanes)
            for lanes in (1, 2, 4, 8, 16)
        ),
        "#endif\n",
    )
)


def with_functions(source: str) -> str:
    """A kernel's source behind the functions that it calls."""
    return OPENCL + source if FUNCTION in source else source
