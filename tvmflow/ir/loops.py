"""Loops in Relax, as calls of packed functions that are opaque to the passes.

A call reads and writes plain buffers::

    lv : (bool[], int64[], float32[2, 3]) = R.call_pure_packed("tvmflow.loop:NODE", going, i, a, w)

:mod:`tvmflow.compiler.loops` replaces it with a function that calls the body repeatedly.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

#: Prefix of the names of these functions; the node's name follows.
PREFIX = "tvmflow.loop:"


def loop_call(
    node: str, arguments: Sequence[relax.Expr], types: Sequence[relax.TensorType]
) -> relax.Call:
    """Return the call of a loop on its first condition, its state, and what its body captures.

    Its results, of ``types``, are the last condition, which is false, and the final state.
    """
    function = relax.ExternFunc(PREFIX + node)
    return relax.op.call_pure_packed(function, *arguments, ty_args=relax.TupleType(list(types)))


def is_loop_call(value: relax.Expr) -> bool:
    """Return whether an expression is the call of a loop."""
    called = value.args[0] if isinstance(value, relax.Call) and value.args else None
    return isinstance(called, relax.ExternFunc) and str(called.global_symbol).startswith(PREFIX)
