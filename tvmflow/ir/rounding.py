"""Arithmetic of fp32 that is rounded once an operation, whatever the device.

What becomes an integer must not depend on the device: a quotient of 24.500004 that is a few units
in the last place less becomes 24 and not 25.  OpenCL C's division may be off by 2.5 units, and
compilers take ``a * b + c`` together.  Three operators of Relax, with one of TIR for each, do
neither:

- ``quotient(x, y)``, correctly rounded;
- ``product(x, y)``, rounded also where it is added to something;
- ``multiply_add(x, y, z)``, x * y + z rounded once.

:mod:`tvmflow.codegen.rounding` has the functions that they call in OpenCL C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Op
from tvm.tirx.op import register_intrin_lowering

from .expressions import lower_to_function, register_intrinsic, register_operator
from .rewriter import constant_array

#: Prefix of the operators of TIR.
INTRINSIC = "tirx.tvmflow_"
#: Prefix of the functions in OpenCL C; operator and number of lanes follow.
FUNCTION = "tvmflow_exact_"


def quotient(x: relax.Expr, y: relax.Expr) -> relax.Call:
    """Return x / y, correctly rounded where it is less than 2^30; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.quotient"), [x, y])


def product(x: relax.Expr, y: relax.Expr) -> relax.Call:
    """Return x * y, rounded whatever is done with it; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.product"), [x, y])


def multiply_add(x: relax.Expr, y: relax.Expr, z: relax.Expr) -> relax.Call:
    """Return x * y + z, rounded once; tensors broadcast."""
    return relax.Call(Op.get("relax.tvmflow.multiply_add"), [x, y, z])


def _result_type(call: relax.Call, _context: relax.BlockBuilder) -> relax.TensorType:
    shapes = [tuple(int(e) for e in argument.ty.shape) for argument in call.args]
    return relax.TensorType(np.broadcast_shapes(*shapes), "float32")


def elementwise(
    bb: relax.BlockBuilder, call: relax.Call, name: str, element: Callable[..., tirx.Expr]
) -> relax.Expr:
    """Emit one function whose elements are independent; operands broadcast, numbers stay such."""
    shape = [int(e) for e in call.ty.shape]
    arrays = [constant_array(argument) for argument in call.args]
    operands = [
        argument if array is None or array.ndim else tirx.const(array.item(), str(array.dtype))
        for argument, array in zip(call.args, arrays, strict=True)
    ]

    def compute(*tensors: te.Tensor | tirx.Expr) -> te.Tensor:
        def at(*index: tirx.Var) -> tirx.Expr:
            return element(*(_element(tensor, index, shape) for tensor in tensors))

        return te.compute(shape, at, name=name, tag="broadcast")

    return bb.call_te(compute, *operands, primfunc_name_hint=name)


def _legalized(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name = call.op.name.removeprefix("relax.tvmflow.")
    return elementwise(bb, call, name, partial(tirx.call_intrin, "float32", f"{INTRINSIC}{name}"))


def _element(
    tensor: te.Tensor | tirx.Expr, at: Sequence[tirx.Var], shape: Sequence[int]
) -> tirx.Expr:
    """Return an operand's element for an element of the result.

    Where nothing is repeated, indices are the result's, also of axes of one element: TVM then sees
    that the function is elementwise, and fuses it behind convolutions.
    """
    if not isinstance(tensor, te.Tensor):
        return tensor
    places = list(zip(at, shape, strict=True))[len(at) - len(tensor.shape) :]
    own = zip(places, tensor.shape, strict=True)
    return tensor(*(i if int(extent) == whole else 0 for (i, whole), extent in own))


_SUMMARY = "Arithmetic of fp32 that is rounded once."

#: Code of each operator: for LLVM, which divides correctly and does not fuse by itself, and the
#: functions for OpenCL C, which has one of them built in, and for CUDA.
_LOWERED: dict[str, tuple[Callable[..., tirx.Expr], str, str]] = {
    "quotient": (tirx.Div, FUNCTION + "quotient{}", "__fdiv_rn"),
    "product": (tirx.Mul, FUNCTION + "product{}", "__fmul_rn"),
    "multiply_add": (
        lambda x, *yz: tirx.call_llvm_pure_intrin(x.ty, "llvm.fma", x, *yz), "fma", "__fmaf_rn",
    ),
}  # fmt: skip
for _name, (_llvm, _opencl, _cuda) in _LOWERED.items():
    register_operator(f"relax.tvmflow.{_name}", _SUMMARY, _result_type, _legalized)
    _intrinsic = f"{INTRINSIC}{_name}"
    register_intrinsic(_intrinsic, _SUMMARY)
    register_intrin_lowering(_intrinsic, target="llvm", f=lambda call, f=_llvm: f(*call.args))
    lower_to_function(_intrinsic, "opencl", _opencl)
    lower_to_function(_intrinsic, "cuda", _cuda)
