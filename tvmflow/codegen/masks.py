"""Booleans in vectors: masks of OpenCL C, where a true lane is -1 and a true scalar is 1.

A comparison of vectors gives a mask, as wide as its operands.  Masks can select (`Select`), and be
combined with each other; as numbers, in memory, or compared with booleans they are wrong.
:func:`MaskLanes` therefore keeps selections by masks, and computes everything else lane by lane,
where booleans are scalars.  Before::

    for k in T.vectorized(4):
        y[k] = T.Cast("float32", x[k] > 0)          # convert_float4(x > 0): -1 where it is true
    for k in T.vectorized(4):
        m[k] = x[k] > 0                             # a tensor of booleans

After::

    for k in T.vectorized(4):
        y[k] = T.Select(x[k] > 0, 1, 0)
    for k in T.unroll(4):
        m[k] = x[k] > 0

:func:`VerifyMasks` rejects remaining misuses.
"""

from __future__ import annotations

from functools import partial

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.booleans import COMPARISONS, is_boolean, keeps_booleans
from ..ir.expressions import CHOICE, nodes_in, uses, with_fields
from ..ir.passes import map_nodes, node_pass, prim_func_pass, refuse
from ..ir.rewriter import op_name

#: Operators that combine two booleans; the last three are bitwise for numbers.
_JOINS = (tirx.And, tirx.Or, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor)


@prim_func_pass("opencl")
def MaskLanes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave only masks that select as vectors of booleans; runs before ``VectorizeLoop``."""
    function = map_nodes(function, (tirx.LT, _as_condition))
    return map_nodes(map_nodes(function, (tirx.Cast, _as_choice)), (tirx.For, _lanes))


def _as_condition(test: tirx.LT) -> tirx.Expr:
    """Return the condition of a test of a boolean that was cast to a number: ``0 < cast(c)``.

    As a `Select`, the cast would nest conditions, which TVM's simplifier takes long for.
    """
    number, zero = test.b, test.a
    made = isinstance(number, tirx.Cast) and is_boolean(number.value) and not is_boolean(number)
    return number.value if made and getattr(zero, "value", None) == 0 else test


def _as_choice(cast: tirx.Cast) -> tirx.Expr:
    if is_boolean(cast) or not is_boolean(cast.value):
        return cast
    one, zero = (tirx.const(value, cast.ty.dtype) for value in (1, 0))
    return tirx.Select(cast.value, one, zero)


def _lanes(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    kind, body = loop.kind, loop.body
    if keeps_booleans(body) or _joins_one_for_all(body, loop.loop_var):
        kind = tirx.ForKind.UNROLLED
    else:
        # The selection takes a vector of conditions; conditions of all lanes become branches.
        body = _with_branches(body, loop.loop_var)
    return with_fields(loop, kind=kind, body=body)


def _joins_one_for_all(body: tirx.Stmt, lane: tirx.Var) -> bool:
    """Return whether a `Select` combines a condition of each lane with one for all lanes.

    The latter would be replicated as unsigned numbers, which OpenCL C does not combine with a mask.
    """
    return any(
        uses(joined.a, lane) != uses(joined.b, lane)
        for choice in nodes_in(body, tirx.Select)
        for joined in nodes_in(choice.condition, *_JOINS)
        if is_boolean(joined)
    )


def _with_branches(body: tirx.Stmt, lane: tirx.Var) -> tirx.Stmt:
    """Turn each `Select` on a condition for all lanes into a branch, in a vector's statement."""

    def branch(choice: tirx.Select) -> tirx.Expr:
        if uses(choice.condition, lane) or not uses(choice, lane):
            return choice
        sides = [choice.condition, choice.true_value, choice.false_value]
        return Call(CHOICE, sides, ret_ty=choice.ty)

    return tvm_ffi.structural_map(body, (tirx.Select, branch))


@node_pass(tirx.Select)
def FoldChoices(choice: tirx.Select) -> tirx.Expr:
    """Replace a `Select` on a constant condition by one side; runs after TVM's simplifications.

    Inside a `Select`, TVM folds another one's equal condition to a scalar true for all lanes, which
    OpenCL C takes for false.
    """
    test = choice.condition
    known = test.value if isinstance(test, tirx.Broadcast) else test
    if not isinstance(known, tirx.IntImm):
        return choice
    return choice.true_value if known.value else choice.false_value


@node_pass(tirx.For, targets=("cuda",))
def BranchLanes(loop: tirx.For) -> tirx.For:
    """Turn conditions for all lanes of a vector into branches; runs before ``VectorizeLoop``.

    TVM's CUDA code gives a replicated condition another type than it declares.
    """
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    return with_fields(loop, body=_with_branches(loop.body, loop.loop_var))


def _is_wide(expr: tirx.Expr) -> bool:
    return is_boolean(expr) and expr.ty.dtype.lanes > 1


def _joins_one(node: tirx.Expr) -> bool:
    return is_boolean(node) and any(isinstance(x, tirx.Broadcast) for x in (node.a, node.b))


#: Statements and expressions that must not have vectors of booleans, verbs for errors about them,
#: and tests for the misuse.
_MISUSES = (
    ((TensorLoad,), "reads", _is_wide),
    ((tirx.BufferStore,), "writes", lambda node: _is_wide(node.value)),
    ((tirx.Cast,), "converts", lambda node: _is_wide(node) or _is_wide(node.value)),
    (COMPARISONS, "compares", lambda node: _is_wide(node.a)),
    ((tirx.Select,), "chooses", _is_wide),
    (_JOINS, "joins with one boolean", _joins_one),
    ((Call,), "chooses", lambda node: op_name(node) == CHOICE and _is_wide(node)),
    ((tirx.Bind,), "names", lambda node: _is_wide(node.value)),
    ((tirx.Shuffle,), "puts together", is_boolean),
)


@prim_func_pass("opencl")
def VerifyMasks(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Raise a `CompileError` unless all vectors of booleans are masks; changes nothing."""
    wrong = partial(refuse, function, remedy="Compile with `target=llvm`, and report the model.")
    masks = "a vector of booleans, which OpenCL C has as masks only"
    for kinds, verb, is_misuse in _MISUSES:
        if any(is_misuse(node) for node in nodes_in(function.body, *kinds)):
            wrong(f"{verb} {masks}")
    for node in nodes_in(function.body, tirx.Select):
        test = node.condition
        # A replicated boolean is 1 in each lane, but `select` tests the highest bit.
        if test.ty.dtype.lanes != node.ty.dtype.lanes or isinstance(test, tirx.Broadcast):
            wrong(f"chooses by one boolean in place of {masks}")
    return function
