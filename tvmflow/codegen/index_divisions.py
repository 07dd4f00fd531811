"""Protection of index divisions from TVM's flattening of buffers, which may lose carries.

TVM 0.27 simplifies flat indices by a detection of iteration maps (`arith::IterMapSimplify`),
which loses carries: it turns ``(x % 16 + 2) // 16``, which is 1 for ``x = 14``, into
``(x + 2) % 16 // 16``, which is 0.  Slices, padding and sums over channels that begin within a
block have such indices.  The detection is only wrong if a constant is added before a division; it
declines unknown expressions such as function calls.  :func:`HideDivisions` turns these divisions
into calls, before ``FlattenBuffer``::

    x[(v % 16 + 2) // 16, v]          x[tvmflow_carry(v % 16 + 2, 16, 0), v]

and :func:`RestoreDivisions` turns them back into divisions, after it.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Call

from ..ir.passes import node_pass
from ..ir.rewriter import op_name

_NAME = "tvmflow_carry"
#: Kinds of divisions, by the call's last argument.
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


@node_pass(*_DIVISIONS)
def HideDivisions(node: tirx.FloorDiv | tirx.FloorMod) -> tirx.Expr:
    """Turn divisions of sums with a constant into calls; runs before ``FlattenBuffer``."""
    if str(node.ty.dtype) not in ("int32", "int64") or not _adds_constant(node.a):
        return node
    kind = _DIVISIONS.index(type(node))
    return tirx.call_pure_extern(node.ty.dtype, _NAME, node.a, node.b, tirx.const(kind, "int32"))


def _adds_constant(value: tirx.Expr) -> bool:
    """Return whether a non-zero constant is a term of a sum, whatever it is multiplied by."""
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
    """Turn calls back into divisions; runs after ``FlattenBuffer``."""
    if op_name(call) != "tirx.call_pure_extern" or call.args[0].value != _NAME:
        return call
    _, dividend, divisor, kind = call.args
    return _DIVISIONS[int(kind)](dividend, divisor)
