"""Passes that only CUDA needs; elsewhere they change nothing.

*Vectors.*  CUDA has registers for vectors of 16 bytes.  TVM's code for eight lanes of fp32 does
not compile where one of them is a constant, and for sixteen there is none: such loops become
steps of four lanes.  Before and after::

    for i in T.vectorized(8):                  for s in T.unroll(2):
        y[i] = T.max(x[i], 0.0)                    for i in T.vectorized(4):
                                                       y[s * 4 + i] = T.max(x[s * 4 + i], 0.0)

Copies of eight halves stay whole: they are one access of 16 bytes.

*Storage.*  TVM lets buffers in shared memory share their bytes twice: as typed buffers, which
leaves pointers to tiles of a tensor core with the wrong type and makes vectors of elements that
``cp.async`` copies, and as bytes.  Functions with ``shared.dyn`` leave all of it to the second.

*Loads.*  TVM's code generator gives the operands of vector casts, functions and choices a variable
each, remembers it by the operand's text, and takes it again where the same text comes in the same
scope, whatever was stored in between: the second of two maxima would be taken with what the sum was
before the first.  Loads of what a kernel writes are bound to variables of their own, whose names
are unique.  Before and after::

    s[0:4] = T.max(s[0:4], a)                  load = s[0:4]
    s[0:4] = T.max(s[0:4], b)                  s[0:4] = T.max(load, a)
                                               load_1 = s[0:4]
                                               s[0:4] = T.max(load_1, b)
"""

from __future__ import annotations

import itertools

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import nodes_in, substitute_vars
from ..ir.passes import map_nodes, node_pass, prim_func_pass
from ..ir.rewriter import op_name

#: Lanes of fp32 in a vector register.
LANES = 4
_CHOICE, _ADDRESS = "prim.if_then_else", "tirx.address_of"


@node_pass(tirx.For, targets=("cuda",))
def SplitVectors(loop: tirx.For) -> tirx.Stmt:
    """Vectorised loops of more than four lanes in steps of four; runs on loops, no blocks."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    extent = int(loop.extent)
    if extent <= LANES or extent % LANES or _copies_halves(loop.body, extent):
        return loop
    dtype = str(loop.loop_var.ty.dtype)
    step, lane = tirx.Var(f"{loop.loop_var.name}_step", dtype), tirx.Var("lane", dtype)
    zero, lanes, steps = (tirx.const(i, dtype) for i in (0, LANES, extent // LANES))
    body = substitute_vars(loop.body, {loop.loop_var: step * lanes + lane})
    inner = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, body)
    return tirx.For(step, zero, steps, tirx.ForKind.UNROLLED, inner)


def _copies_halves(body: tirx.Stmt, extent: int) -> bool:
    """True if a loop does nothing but move eight halves, or zeros in their place."""
    if extent != 2 * LANES or not isinstance(body, tirx.BufferStore):
        return False
    value = body.value
    if op_name(value) == _CHOICE:
        value = value.args[1]
    return isinstance(value, TensorLoad) and str(value.ty.dtype) == "float16"


@prim_func_pass()
def RewriteStorage(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """TVM's pass, by which buffers share memory, but not in functions with ``shared.dyn``."""
    allocated = nodes_in(function.body, tirx.AllocBuffer)
    if any(statement.buffer.scope() == "shared.dyn" for statement in allocated):
        return function
    return tirx.transform.StorageRewrite()(IRModule({"main": function}))["main"]


@prim_func_pass("cuda")
def BindLoads(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Loads that TVM's code generator may take for earlier ones; runs last, on kernels."""
    names = (f"load_{number}" for number in itertools.count())

    def bind(statement: tirx.BufferStore | tirx.Evaluate | tirx.Bind) -> tirx.Stmt:
        bindings: list[tirx.Stmt] = []

        def load(found: TensorLoad) -> tirx.Var:
            variable = tirx.Var(next(names), found.ty)
            bindings.append(tirx.Bind(variable, found))
            return variable

        def operand(found: tirx.Cast | tirx.Select | Call) -> tirx.Expr:
            lanes = tvm_ffi.dtype(str(getattr(found.ty, "dtype", "void"))).lanes
            return found if lanes == 1 else tvm_ffi.structural_map(found, (TensorLoad, load))

        value, held = _hold(statement.value)
        value = tvm_ffi.structural_map(value, ((tirx.Cast, tirx.Select, Call), operand))
        # The outer ones first.
        for variable, found in reversed(held.items()):
            value = substitute_vars(value, {variable: found})
        if isinstance(statement, tirx.BufferStore):
            last: tirx.Stmt = tirx.BufferStore(statement.buffer, value, statement.indices)
        elif isinstance(statement, tirx.Bind):
            last = tirx.Bind(statement.var, value)
        else:
            last = tirx.Evaluate(value)
        return tirx.SeqStmt([*bindings, last]) if bindings else statement

    return map_nodes(function, ((tirx.BufferStore, tirx.Evaluate, tirx.Bind), bind))


def _hold(value: tirx.Expr) -> tuple[tirx.Expr, dict[tirx.Var, tirx.Expr]]:
    """Replace what loads must stay in by variables: choices have scopes of their own."""
    held: dict[tirx.Var, tirx.Expr] = {}

    def hold(found: tirx.Expr) -> tirx.Expr:
        if isinstance(found, Call) and op_name(found) not in (_CHOICE, _ADDRESS):
            return found
        variable = tirx.Var("held", found.ty)
        held[variable] = found
        return variable

    return tvm_ffi.structural_map(value, ((Call, tirx.Let), hold)), held
