"""Divisions of indices, kept from TVM's flattening of buffers where it would lose carries.

TVM 0.27 simplifies flat indices by a detection of iteration maps (`arith::IterMapSimplify`),
which loses carries: of ``(x % 16 + 2) // 16``, that is 1 for ``x = 14``, it makes
``(x + 2) % 16 // 16``, that is 0.  Slices, padding and sums over channels that begin within a
block have such indices.  Where a constant is added before a division, and only there, the
detection is wrong; it declines what it does not know, which a call of a function is.
:func:`HideDivisions` makes such divisions calls, before ``FlattenBuffer``::

    x[(v % 16 + 2) // 16, v]          x[tvmflow_carry(v % 16 + 2, 16, 0), v]

and :func:`RestoreDivisions` makes them divisions again, after it.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Call

from ..ir.passes import node_pass
from ..ir.rewriter import op_name

_NAME = "tvmflow_carry"
#: By the call's last argument.
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


@node_pass(*_DIVISIONS)
def HideDivisions(node: tirx.FloorDiv | tirx.FloorMod) -> tirx.Expr:
    """Make divisions of sums with a constant calls; runs before ``FlattenBuffer``."""
    if str(node.ty.dtype) not in ("int32", "int64") or not _adds_constant(node.a):
        return node
    kind = _DIVISIONS.index(type(node))
    return tirx.call_pure_extern(node.ty.dtype, _NAME, node.a, node.b, tirx.const(kind, "int32"))


def _adds_constant(value: tirx.Expr) -> bool:
    """True if a number that is not zero is a term of a sum, whatever it is multiplied by."""
    if isinstance(value, (tirx.Add, tirx.Sub)):
        return any(
            int(part) != 0 if isinstance(part, tirx.IntImm) else _adds_constant(part)
            for part in (value.a, value.b)
        )
    if isinstance(value, tirx.Mul):
        return _adds_constant(value.a) or _adds_constant(value.b)
    return False


@node_pass(Call)
def RestoreDivisions(call: Call) -> tirx.Expr:
    """Make calls divisions again; runs after ``FlattenBuffer``."""
    if op_name(call) != "tirx.call_pure_extern" or call.args[0].value != _NAME:
        return call
    _, dividend, divisor, kind = call.args
    return _DIVISIONS[int(kind)](dividend, divisor)
