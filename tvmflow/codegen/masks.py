"""Booleans in vectors: masks of OpenCL C, where a true lane is -1 and a true scalar is 1.

A comparison of vectors gives a mask, as wide as its operands.  It can choose (`Select`), and be
joined with others; as a number, in memory, or compared with another boolean it is wrong.  So
:func:`MaskLanes` leaves choices by masks as they are, and has everything else computed lane by
lane, where booleans are scalars.  Before::

    for k in T.vectorized(4):
        y[k] = T.Cast("float32", x[k] > 0)          # convert_float4(x > 0): -1 where it is true
    for k in T.vectorized(4):
        m[k] = x[k] > 0                             # a tensor of booleans

After::

    for k in T.vectorized(4):
        y[k] = T.Select(x[k] > 0, 1, 0)
    for k in T.unroll(4):
        m[k] = x[k] > 0

:func:`VerifyMasks` refuses what is left.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad

from ..ir.expressions import uses
from ..ir.passes import prim_func_pass, refuse
from .textures import name_of, target_kind

_CHOICE = Op.get("prim.if_then_else")
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
#: Functions that give masks for vectors, or take one boolean for all lanes.
_MASK_CALLS = (
    _CHOICE,
    *map(Op.get, ("tirx.isnan", "tirx.isinf", "tirx.isfinite", "prim.likely")),
)


def is_boolean(expr: Any) -> bool:
    """Whether a value is a boolean, or a vector of them."""
    return str(getattr(getattr(expr, "ty", None), "dtype", "")).startswith("bool")


def keeps_booleans(node: Any) -> bool:
    """Whether a statement, or an expression, has booleans that are more than choices.

    Such are tensors of booleans, comparisons of booleans, choices between them, and functions
    of them.
    """
    found: list[Any] = []

    def load(node: TensorLoad) -> None:
        if str(node.source.dtype) == "bool":
            found.append(node)

    def store(node: tirx.BufferStore) -> None:
        if str(node.buffer.dtype) == "bool":
            found.append(node)

    def compare(node: Any) -> None:
        if is_boolean(node.a):
            found.append(node)

    def choose(node: tirx.Select) -> None:
        if is_boolean(node):
            found.append(node)

    def cast(node: tirx.Cast) -> None:
        if is_boolean(node):
            found.append(node)

    def call(node: Call) -> None:
        boolean = is_boolean(node) or any(is_boolean(argument) for argument in node.args)
        masks = any(node.op.same_as(op) for op in _MASK_CALLS)
        if boolean and (not masks or (is_boolean(node) and node.op.same_as(_CHOICE))):
            found.append(node)

    tvm_ffi.structural_walk(
        node,
        [
            (TensorLoad, load),
            (tirx.BufferStore, store),
            (_COMPARISONS, compare),
            (tirx.Select, choose),
            (tirx.Cast, cast),
            (Call, call),
        ],
    )
    return bool(found)


@prim_func_pass("MaskLanes")
def MaskLanes(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Leave no boolean in a vector but masks that choose; runs before ``VectorizeLoop``."""
    if target_kind(function) != "opencl":
        return function
    numbers = tvm_ffi.structural_map(function.body, (tirx.Cast, _as_choice))
    return function.with_body(tvm_ffi.structural_map(numbers, (tirx.For, _lanes)))


def _as_choice(cast: tirx.Cast) -> Any:
    if is_boolean(cast) or not is_boolean(cast.value):
        return cast
    one, zero = (tirx.const(value, cast.ty.dtype) for value in (1, 0))
    return tirx.Select(cast.value, one, zero)


def _lanes(loop: tirx.For) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    kind, body = loop.kind, loop.body
    if keeps_booleans(body):
        kind = tirx.ForKind.UNROLLED
    else:
        # `select` takes a vector of conditions; one for all lanes is a branch.
        def branch(choice: tirx.Select) -> Any:
            if uses(choice.condition, loop.loop_var) or not uses(choice, loop.loop_var):
                return choice
            return Call(
                _CHOICE,
                [choice.condition, choice.true_value, choice.false_value],
                ret_ty=choice.ty,
            )

        body = tvm_ffi.structural_map(body, (tirx.Select, branch))
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, body, annotations=loop.annotations)


@prim_func_pass("VerifyMasks")
def VerifyMasks(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Check that vectors of booleans are masks only; a pass that changes nothing.

    Raises
    ------
    CompileError
        Naming the primary function and what is wrong in it.
    """
    if target_kind(function) != "opencl":
        return function

    def wrong(what: str) -> None:
        refuse(
            f"The primary function {name_of(function)} {what} a vector of booleans, which OpenCL C "
            "has as masks only.",
            remedy="Compile with `target=llvm`, and report the model.",
        )

    def lanes(expr: Any) -> int:
        return int(tvm_ffi.dtype(expr.ty.dtype).lanes) if is_boolean(expr) else 1

    def load(node: TensorLoad) -> None:
        if lanes(node) > 1:
            wrong("reads")

    def store(node: tirx.BufferStore) -> None:
        if lanes(node.value) > 1:
            wrong("writes")

    def cast(node: tirx.Cast) -> None:
        if max(lanes(node), lanes(node.value)) > 1:
            wrong("converts")

    def compare(node: Any) -> None:
        if lanes(node.a) > 1:
            wrong("compares")

    def choose(node: tirx.Select) -> None:
        if lanes(node) > 1:
            wrong("chooses")
        wide = int(tvm_ffi.dtype(node.ty.dtype).lanes)
        # A boolean that is repeated is 1 in each lane, whose highest bit `select` asks for.
        if lanes(node.condition) != wide or isinstance(node.condition, tirx.Broadcast):
            wrong("chooses by one boolean in place of")

    def call(node: Call) -> None:
        if node.op.same_as(_CHOICE) and lanes(node) > 1:
            wrong("chooses")

    def bind(node: tirx.Bind) -> None:
        if lanes(node.value) > 1:
            wrong("names")

    def shuffle(node: tirx.Shuffle) -> None:
        if is_boolean(node):
            wrong("puts together")

    tvm_ffi.structural_walk(
        function.body,
        [
            (TensorLoad, load),
            (tirx.BufferStore, store),
            (tirx.Cast, cast),
            (_COMPARISONS, compare),
            (tirx.Select, choose),
            (Call, call),
            (tirx.Bind, bind),
            (tirx.Shuffle, shuffle),
        ],
    )
    return function
